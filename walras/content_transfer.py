"""Sending folders to the server's content store, and fetching them from it.

A transfer may be cut at any moment and begun again: chunks that are there already are not sent a second time, and a
folder appears whole or not at all. Hashing and the disk are kept off the event loop.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from walras.content import ContentTree, check_chunk, find_chunks, pack_chunk, write_tree
from walras.transport import ApiCall, Transport

_BASE = "/content/v1"
#: Chunks under way at once, and names in one question.
_AT_ONCE, _NAMES_IN_ONE = 4, 10_000


class ContentTransfer:
    """Transfers over an open connection to the server."""

    def __init__(self, transport: Transport, base: str = _BASE) -> None:
        self._transport = transport
        self._base = base
        #: Bytes that went over the wire, for progress and for figures.
        self.sent_bytes = self.fetched_bytes = 0

    async def send(self, folder: Path, tree: ContentTree) -> str:
        """Make a folder's files durable with the server; returns the tree's name.

        Raises DamagedContent where a file changes meanwhile, ServerUnreachable, or what the server refuses.
        """
        wanted = set(await self._missing(list(tree.chunk_sizes())))
        chunks = find_chunks(folder, tree, wanted)
        lock = asyncio.Lock()
        await _all_or_first_error([self._put_all(chunks, lock) for _ in range(_AT_ONCE)])
        body = await asyncio.to_thread(tree.encoded)
        committed = await self._transport.json(ApiCall("POST", f"{self._base}/trees", data=body))
        return str(committed["name"])

    async def _missing(self, names: list[str]) -> list[str]:
        found: list[str] = []
        for first in range(0, len(names), _NAMES_IN_ONE):
            question = {"names": names[first : first + _NAMES_IN_ONE]}
            found += (await self._transport.json(ApiCall("POST", f"{self._base}/missing", body=question)))["names"]
        return found

    async def _put_all(self, chunks: Iterator[tuple[str, bytes]], lock: asyncio.Lock) -> None:
        while True:
            async with lock:
                found = await asyncio.to_thread(lambda: list(islice(chunks, 1)))
            if not found:
                return
            await self._put(*found[0])

    async def _put(self, name: str, content: bytes) -> None:
        body, encoding = await asyncio.to_thread(pack_chunk, content)
        await self._transport.bytes(
            ApiCall("PUT", f"{self._base}/chunks/{name}", query={"encoding": encoding}, data=body)
        )
        self.sent_bytes += len(body)

    async def fetch(
        self, name: str, folder: Path, check: Callable[[ContentTree], None] = lambda _: None
    ) -> ContentTree:
        """Make `folder` with the files of a tree; returns the tree. `check` may raise before its chunks are fetched.

        Raises NotFound, DamagedContent, FileExistsError, ServerUnreachable.
        """
        tree = await self.fetch_list(name)
        check(tree)
        await self.fetch_files(tree, folder)
        return tree

    async def fetch_list(self, name: str) -> ContentTree:
        """Returns the list of a tree's files. Raises NotFound, DamagedContent, ServerUnreachable."""
        encoded = await self._transport.bytes(ApiCall("GET", f"{self._base}/trees/{name}"))
        await asyncio.to_thread(check_chunk, name, encoded)
        return await asyncio.to_thread(ContentTree.model_validate_json, encoded)

    async def fetch_files(self, tree: ContentTree, folder: Path) -> None:
        """Make `folder` with the files of a tree, or of a part of one. Raises as `fetch` does."""
        store = folder.with_name(f".{folder.name}.chunks")
        await asyncio.to_thread(store.mkdir, parents=True, exist_ok=True)
        wanted = [each for each in tree.chunk_sizes() if not (store / each).exists()]
        names = iter(wanted)
        await _all_or_first_error([self._get_all(names, store) for _ in range(_AT_ONCE)])
        await asyncio.to_thread(write_tree, tree, folder, lambda each: (store / each).read_bytes())
        await asyncio.to_thread(_remove_folder, store)

    async def _get_all(self, names: Iterator[str], store: Path) -> None:
        for name in names:
            content = await self._transport.bytes(ApiCall("GET", f"{self._base}/chunks/{name}"))
            self.fetched_bytes += len(content)
            await asyncio.to_thread(_keep_checked, name, content, store)


def _keep_checked(name: str, content: bytes, store: Path) -> None:
    check_chunk(name, content)
    draft = store / f".{name}"
    draft.write_bytes(content)
    draft.rename(store / name)


def _remove_folder(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


async def _all_or_first_error(work: list[Coroutine[Any, Any, None]]) -> None:
    """Do all of it at once; the first error ends the rest and is raised as itself, not in a group."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
