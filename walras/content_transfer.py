"""Sending folders to a store of content, and fetching them from it: the server's through its port, or another one.

A transfer may be cut at any moment and begun again: chunks that are there already are not sent or fetched a second
time, and a folder appears whole or not at all. Hashing and the disk are kept off the event loop.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from walras.content import ContentTree, TreeDraft, check_chunk, find_chunks, pack_chunk
from walras.errors import UserError
from walras.transport import ApiCall, Transport

_BASE = "/content/v1"
#: The most chunks in transfer at once, and the most names in one request.
_AT_ONCE, _NAMES_IN_ONE = 4, 10_000


class TreeTransfer(ABC):
    """Transfers of trees, chunk by chunk; subclasses define what a store does with one chunk or one list."""

    #: Whether the store verifies the hash of bytes before it keeps them.
    _is_checked_there = False

    def __init__(self) -> None:
        #: Bytes sent to the store and received from it, for progress and statistics.
        self.sent_bytes = self.fetched_bytes = 0

    async def send(self, folder: Path, tree: ContentTree) -> str:
        """Make a folder's files durable in the store; returns the tree's name.

        Raises DamagedContent where a file changes meanwhile, ServerUnreachable or ClusterError where trying again may
        help, or what the store refuses.
        """
        wanted = set(await self._missing(tree))
        chunks = find_chunks(folder, tree, wanted, check=not self._is_checked_there)
        lock = asyncio.Lock()
        await _all_or_first_error([self._put_all(chunks, lock) for _ in range(_AT_ONCE)])
        return await self._commit(tree)

    async def _put_all(self, chunks: Iterator[tuple[str, bytes]], lock: asyncio.Lock) -> None:
        while True:
            async with lock:
                found = await asyncio.to_thread(lambda: list(islice(chunks, 1)))
            if not found:
                return
            sent = await self._put(*found[0])
            self.sent_bytes += sent

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
        names = iter(sorted(draft.missing))
        await _all_or_first_error([self._get_all(names, draft) for _ in range(_AT_ONCE)])
        await asyncio.to_thread(draft.finish)

    async def _get_all(self, names: Iterator[str], draft: TreeDraft) -> None:
        for name in names:
            content = await self._get(name)
            self.fetched_bytes += len(content)
            await asyncio.to_thread(draft.put, name, content)

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

    def __init__(self, transport: Transport, base: str = _BASE) -> None:
        super().__init__()
        self._transport = transport
        self._base = base

    async def _missing(self, tree: ContentTree) -> list[str]:
        names, found = list(tree.chunk_sizes()), list[str]()
        for first in range(0, len(names), _NAMES_IN_ONE):
            question = {"names": names[first : first + _NAMES_IN_ONE]}
            found += (await self._transport.json(ApiCall("POST", f"{self._base}/missing", body=question)))["names"]
        return found

    async def _put(self, name: str, content: bytes) -> int:
        body, encoding = await asyncio.to_thread(pack_chunk, content)
        try:
            await self._transport.bytes(
                ApiCall("PUT", f"{self._base}/chunks/{name}", query={"encoding": encoding}, data=body)
            )
        except UserError:
            await asyncio.to_thread(check_chunk, name, content)  # what was read, or what arrived?
            raise
        return len(body)

    async def _commit(self, tree: ContentTree) -> str:
        body = await asyncio.to_thread(tree.encoded)
        committed = await self._transport.json(ApiCall("POST", f"{self._base}/trees", data=body))
        return str(committed["name"])

    async def _get_list(self, name: str) -> bytes:
        return await self._transport.bytes(ApiCall("GET", f"{self._base}/trees/{name}"))

    async def _get(self, name: str) -> bytes:
        return await self._transport.bytes(ApiCall("GET", f"{self._base}/chunks/{name}"))


async def _all_or_first_error(work: list[Coroutine[Any, Any, None]]) -> None:
    """Runs all of it at once; the first error ends the rest and is raised itself, not in a group."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
