"""Sending folders to a store of content, and fetching them from it: the server's through its port, or another one.

A transfer may be cut at any moment and begun again: chunks that are there already are not sent or fetched a second
time, and a folder appears whole or not at all. Hashing and the disk are kept off the event loop.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from walras.connection.body import ApiCall
from walras.connection.transport import Transport
from walras.errors import NotFound, UserError
from walras.storage.content import (
    CHUNK_BYTES,
    PACKED_BYTES,
    ContentTree,
    DamagedContent,
    TreeDraft,
    check_chunk,
    find_chunks,
    join_chunks,
    pack_chunk,
    split_chunks,
)

_BASE = "/content/v1"
#: The most chunks in transfer at once, and the most names in one request.
_AT_ONCE, _NAMES_IN_ONE = 4, 10_000
#: Chunks that are sent one by one, and of packs of small ones the most chunks and bytes.
_FEW, _PACK_MOST, _PACK_BYTES = 32, 4000, 3 * 1024 * 1024
#: Hears how many chunks are there, and of how many.
Progress = Callable[[int, int], None]
ItemT = TypeVar("ItemT")


class TreeTransfer(ABC):
    """Transfers of trees, chunk by chunk; subclasses define what a store does with one chunk or one list."""

    #: Whether the store verifies the hash of bytes before it keeps them.
    _is_checked_there = False

    def __init__(self) -> None:
        #: Bytes sent to the store and received from it, for progress and statistics.
        self.sent_bytes = self.fetched_bytes = 0

    async def send(self, folder: Path, tree: ContentTree, told: Progress = lambda done, of: None) -> str:
        """Make a folder's files durable in the store; returns the tree's name.

        `told` hears how many chunks have been sent, and of how many.

        Raises DamagedContent where a file changes meanwhile, ServerUnreachable or ClusterError where trying again may
        help, or what the store refuses.
        """
        wanted = set(await self._missing(tree))
        chunks = find_chunks(folder, tree, wanted, check=not self._is_checked_there)
        batches = _batches(chunks, lambda chunk: len(chunk[1]), len(wanted))
        lock, done = asyncio.Lock(), 0

        async def put_all() -> None:
            nonlocal done
            while True:
                async with lock:
                    found = await asyncio.to_thread(next, batches, None)
                if not found:
                    return
                sent = await (self._put(*found[0]) if len(found) == 1 else self._put_many(found))
                self.sent_bytes += sent
                done += len(found)
                told(done, len(wanted))

        await _all_or_first_error([put_all() for _ in range(_AT_ONCE)])
        return await self._commit(tree)

    async def _put_many(self, chunks: Sequence[tuple[str, bytes]]) -> int:
        """Store small chunks; returns the bytes that were sent for them."""
        return sum([await self._put(*chunk) for chunk in chunks])

    async def fetch(
        self, name: str, folder: Path, check: Callable[[ContentTree], None] = lambda _: None
    ) -> ContentTree:
        """Make `folder` with the files of a tree; returns the tree. `check` may raise before its chunks are fetched.

        Raises NotFound, DamagedContent, FileExistsError, and as `send` where trying again may help.
        """
        tree = await self.fetch_list(name)
        check(tree)
        await self.fetch_files(tree, folder)
        return tree

    async def fetch_list(self, name: str) -> ContentTree:
        """Returns the list of a tree's files. Raises NotFound, DamagedContent, and as `fetch`."""
        encoded = await self._get_list(name)
        await asyncio.to_thread(check_chunk, name, encoded)
        return await asyncio.to_thread(ContentTree.model_validate_json, encoded)

    async def fetch_files(self, tree: ContentTree, folder: Path) -> None:
        """Make `folder` with the files of a tree, or of a part of one. Raises as `fetch` does."""
        draft = await asyncio.to_thread(TreeDraft, tree, folder)
        sizes = tree.chunk_sizes()
        batches = _batches(iter(sorted(draft.missing)), lambda name: sizes[name], len(draft.missing))
        await _all_or_first_error([self._get_all(batches, draft) for _ in range(_AT_ONCE)])
        await asyncio.to_thread(draft.finish)

    async def _get_all(self, batches: Iterator[list[str]], draft: TreeDraft) -> None:
        for names in batches:
            chunks = [(names[0], await self._get(names[0]))] if len(names) == 1 else await self._get_many(names)
            self.fetched_bytes += sum(len(content) for _, content in chunks)
            await asyncio.to_thread(_put_into, draft, chunks)

    async def _get_many(self, names: Sequence[str]) -> list[tuple[str, bytes]]:
        """Returns small chunks with their names. Raises NotFound."""
        return [(name, await self._get(name)) for name in names]

    @abstractmethod
    async def _missing(self, tree: ContentTree) -> Iterable[str]:
        """Returns the chunks of a tree that the store does not have."""

    @abstractmethod
    async def _put(self, name: str, content: bytes) -> int:
        """Store a chunk; returns the bytes that were sent for it."""

    @abstractmethod
    async def _commit(self, tree: ContentTree) -> str:
        """Make the tree durable whose chunks are there; returns its name."""

    @abstractmethod
    async def _get_list(self, name: str) -> bytes:
        """Returns the encoded list of a tree. Raises NotFound."""

    @abstractmethod
    async def _get(self, name: str) -> bytes:
        """Returns the bytes of a chunk. Raises NotFound."""


class ContentTransfer(TreeTransfer):
    """Transfers over an open connection to the server."""

    _is_checked_there = True
    #: Whether the server takes and gives packs: one of the release before does not.
    _has_packs = True

    def __init__(self, transport: Transport, base: str = _BASE, *, job_id: int = 0) -> None:
        """`job_id`: the job for whose user a machine sends; 0: the caller sends its own."""
        super().__init__()
        self._transport = transport
        self._base = base
        self._query = {"job_id": str(job_id)} if job_id else {}

    async def _missing(self, tree: ContentTree) -> list[str]:
        names, found = list(tree.chunk_sizes()), list[str]()
        for first in range(0, len(names), _NAMES_IN_ONE):
            question = {"names": names[first : first + _NAMES_IN_ONE]}
            call = ApiCall("POST", f"{self._base}/missing", query=self._query, body=question)
            found += (await self._transport.json(call))["names"]
        return found

    async def _put(self, name: str, content: bytes) -> int:
        body, encoding = await asyncio.to_thread(pack_chunk, content)
        try:
            await self._transport.bytes(
                ApiCall("PUT", f"{self._base}/chunks/{name}", query={"encoding": encoding, **self._query}, data=body)
            )
        except UserError:
            await asyncio.to_thread(check_chunk, name, content)  # what was read, or what arrived?
            raise
        return len(body)

    async def _put_many(self, chunks: Sequence[tuple[str, bytes]]) -> int:
        if self._has_packs:
            body, encoding = await asyncio.to_thread(lambda: pack_chunk(join_chunks(chunks)))
            call = ApiCall("POST", f"{self._base}/packs", query={"encoding": encoding, **self._query}, data=body)
            try:
                await self._transport.bytes(call)
            except NotFound:
                self._has_packs = False
            except UserError:
                for name, content in chunks:  # what was read, or what arrived?
                    check_chunk(name, content)
                raise
            else:
                return len(body)
        return await super()._put_many(chunks)

    async def _get_many(self, names: Sequence[str]) -> list[tuple[str, bytes]]:
        if self._has_packs:
            question, path = {"names": list(names)}, f"{self._base}/packs/fetch"
            call = ApiCall("POST", path, body=question, answer_bytes=CHUNK_BYTES)
            try:
                joined = await self._transport.bytes(call)
            except NotFound:  # one chunk is gone, or an older server: asked for one by one, both are told apart
                self._has_packs = False
            else:
                found = await asyncio.to_thread(split_chunks, joined)
                if [name for name, _ in found] != list(names):
                    raise DamagedContent("a pack has other chunks than were asked for")
                return found
        return await super()._get_many(names)

    async def _commit(self, tree: ContentTree) -> str:
        body = await asyncio.to_thread(tree.encoded)
        committed = await self._transport.json(ApiCall("POST", f"{self._base}/trees", query=self._query, data=body))
        return str(committed["name"])

    async def _get_list(self, name: str) -> bytes:
        return await self._transport.bytes(ApiCall("GET", f"{self._base}/trees/{name}", answer_bytes=CHUNK_BYTES))

    async def _get(self, name: str) -> bytes:
        return await self._transport.bytes(ApiCall("GET", f"{self._base}/chunks/{name}", answer_bytes=CHUNK_BYTES))


def _put_into(draft: TreeDraft, chunks: Sequence[tuple[str, bytes]]) -> None:
    for name, content in chunks:
        draft.put(name, content)


def _batches(items: Iterator[ItemT], size_of: Callable[[ItemT], int], count: int) -> Iterator[list[ItemT]]:
    """Yields the items in their order: small ones together where there are many, so that a request carries more."""
    batch: list[ItemT] = []
    held = 0
    for item in items:
        size = size_of(item)
        if count <= _FEW or size > PACKED_BYTES:
            yield [item]
            continue
        if batch and (held + size > _PACK_BYTES or len(batch) >= _PACK_MOST):
            yield batch
            batch, held = [], 0
        batch.append(item)
        held += size
    if batch:
        yield batch


async def _all_or_first_error(work: list[Coroutine[Any, Any, None]]) -> None:
    """Runs all of it at once; the first error ends the rest and is raised itself, not in a group."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
