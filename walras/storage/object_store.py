"""Checkpoints in an object store (S3, Google's, Azure's), read and written through fsspec.

LOCATION/chunks/HASH holds the bytes of a chunk as they are, and LOCATION/trees/HASH the list of a checkpoint's files,
written once all its chunks are there. The machine's own environment has the credentials, or the server hands them out
(`walras.storage.checkpoint_store`); none of them are in an address. A store answers with whatever errors its library
has: here they become ours, with the store's name.
"""

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Concatenate, ParamSpec, Self, TypeVar
from urllib.parse import urlsplit

from walras.clocks import SYSTEM_CLOCKS, Clocks
from walras.errors import ClusterError, ConfigError, Conflict, NotFound, UserError, WalrasError
from walras.storage.checkpoint_store import StoreAccess
from walras.storage.content import ContentTree, DamagedContent, check_chunk
from walras.storage.content_transfer import TreeTransfer

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

#: Seconds after which objects that no tree in use needs are deleted. An upload relies on objects half as old.
OBJECTS_KEPT_S = 1800.0
#: The most seconds of one call to a store, including its library's retries.
CALL_TIMEOUT_S = 180.0
_CHUNKS, _TREES = "chunks", "trees"
_THREADS = 4
#: Options for the libraries besides the address, by its scheme.
_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {"config_kwargs": {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 2}}},
}
#: Words by which stores report that they accept no more.
_FULL_WORDS = ("quota", "insufficient storage", "no space", "507")
_DETAIL_MOST = 300


class StoreFailure(ClusterError):
    """An object store that is full, gone, slow, or denies access. Another try may succeed."""


@dataclass(frozen=True)
class StoredObject:
    """What a listing states about an object: its bytes, and when it was written (Unix seconds; 0: unknown)."""

    size: int
    written_at: float


class ObjectFolder:
    """The objects of one location. All calls block; several threads may make them at once."""

    def __init__(self, location: str, access: StoreAccess | None = None) -> None:
        """`access`: what opens this location alone; None: what the machine's own environment has.

        Raises ConfigError where this machine lacks the library that the address needs.
        """
        self.location = location
        #: Credentials for one location alone are refused questions about it as if it were an object.
        self._listed_by = ("",) if access is None else (f"{_CHUNKS}/", f"{_TREES}/")
        scheme = urlsplit(location).scheme
        fix = "pip install 'walras[stores]' (s3), gcsfs (gs) or adlfs (az) on this machine"
        try:
            import fsspec

            options = {"use_listings_cache": False, **_OPTIONS.get(scheme, {})}
            if access is not None:  # an instance cached by the library would outlive its credentials
                opened = {"key": access.key, "secret": access.secret, "token": access.token}
                options |= {**opened, "skip_instance_cache": True}
            self._files, self._root = fsspec.url_to_fs(location, **options)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"checkpoint store {location}: {error}", field="checkpoints", fix=fix) from None

    def listed(self) -> tuple[dict[str, StoredObject], dict[str, StoredObject]]:
        """Returns the chunks and the trees, by name. Raises StoreFailure."""
        found: dict[str, dict[str, StoredObject]] = {_CHUNKS: {}, _TREES: {}}
        with self._told():
            self._files.invalidate_cache()
            for prefix in self._listed_by:
                told = {"prefix": prefix} if prefix else {}
                for path, info in self._files.find(self._root, detail=True, **told).items():
                    inner = PurePosixPath(path)
                    if inner.parent.name in found:
                        found[inner.parent.name][inner.name] = StoredObject(int(info["size"] or 0), _written_at(info))
        return found[_CHUNKS], found[_TREES]

    def folders(self) -> list[str]:
        """Returns the names right below this location. Raises StoreFailure."""
        with self._told():
            self._files.invalidate_cache()
            try:
                return [PurePosixPath(path).name for path in self._files.ls(self._root, detail=False)]
            except FileNotFoundError:
                return []

    def chunk(self, name: str) -> bytes:
        """Raises NotFound, StoreFailure."""
        return self._read(_CHUNKS, name)

    def encoded_tree(self, name: str) -> bytes:
        """Raises NotFound, StoreFailure."""
        return self._read(_TREES, name)

    def tree(self, name: str) -> ContentTree:
        """Raises NotFound, DamagedContent, StoreFailure."""
        encoded = self.encoded_tree(name)
        check_chunk(name, encoded)
        try:
            return ContentTree.model_validate_json(encoded)
        except ValueError:
            raise DamagedContent(f"{name[:12]} is no tree") from None

    def put_chunk(self, name: str, content: bytes) -> None:
        """Raises StoreFailure."""
        with self._told():
            self._files.pipe_file(self._path(_CHUNKS, name), content)

    def put_tree(self, tree: ContentTree) -> None:
        """Raises StoreFailure."""
        with self._told():
            self._files.pipe_file(self._path(_TREES, tree.name), tree.encoded())

    def note(self, name: str) -> bytes:
        """Returns the bytes of a small object that is no checkpoint's. Raises NotFound, StoreFailure."""
        with self._told():
            try:
                return bytes(self._files.cat_file(f"{self._root}/{name}"))
            except FileNotFoundError:
                raise NotFound(f"checkpoint store {self.location} has no {name}") from None

    def put_note(self, name: str, content: bytes) -> None:
        """Raises StoreFailure."""
        with self._told():
            self._files.pipe_file(f"{self._root}/{name}", content)

    def clear(self) -> None:
        """Deletes all objects of this location. Raises StoreFailure."""
        with self._told():
            if found := self._files.find(self._root):
                self._files.rm(found)

    def remove(self, chunks: Set[str], trees: Set[str]) -> None:
        """Delete these objects, the trees first: a tree that is there is whole. Raises StoreFailure."""
        for kind, names in ((_TREES, trees), (_CHUNKS, chunks)):
            with self._told():
                if names:
                    self._files.rm([self._path(kind, name) for name in sorted(names)])

    def _path(self, kind: str, name: str) -> str:
        return f"{self._root}/{kind}/{name}"

    def _read(self, kind: str, name: str) -> bytes:
        refusal = None
        with self._told():
            try:
                return bytes(self._files.cat_file(self._path(kind, name)))
            except FileNotFoundError:
                pass
            except PermissionError as error:  # S3 reports a missing object so to callers who may not list the bucket
                refusal = error
        chunks, trees = self.listed()  # a store that is gone as a whole has not lost this one object
        if refusal is not None and name in (chunks if kind == _CHUNKS else trees):
            with self._told():
                raise refusal
        raise NotFound(f"checkpoint store {self.location} has no {kind}/{name[:12]}")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turns whatever error the store's library raises into one of ours."""
        try:
            yield
        except WalrasError:
            raise
        except FileNotFoundError as error:
            raise StoreFailure(f"checkpoint store {self.location} is gone: {_shortened(error)}") from None
        except PermissionError as error:
            raise StoreFailure(f"checkpoint store {self.location} lets nobody in: {_shortened(error)}") from None
        except Exception as error:
            told = _shortened(error)
            is_full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
            if is_full or any(word in told.lower() for word in _FULL_WORDS):
                raise StoreFailure(f"checkpoint store {self.location} is full: {told}") from None
            raise StoreFailure(f"checkpoint store {self.location} fails: {told}") from None


def _shortened(error: BaseException) -> str:
    return (str(error) or type(error).__name__)[:_DETAIL_MOST]


def _written_at(info: dict[str, Any]) -> float:
    """Returns Unix seconds, from whichever field the store's library has for them."""
    for word in ("LastModified", "last_modified", "mtime", "updated", "created"):
        found = info.get(word)
        if isinstance(found, str):
            try:
                found = datetime.fromisoformat(found)
            except ValueError:
                continue
        if isinstance(found, datetime):
            return found.timestamp()
        if isinstance(found, int | float):
            return float(found)
    return 0.0


class ObjectTransfer(TreeTransfer):
    """Transfers to and from one location. `async with` ends the threads in which they work."""

    def __init__(
        self,
        folder: ObjectFolder,
        clocks: Clocks = SYSTEM_CLOCKS,
        renewed: Callable[[], Awaitable[ObjectFolder]] | None = None,
    ) -> None:
        """`renewed`: the same location, opened anew where what opened it ends soon; asked before every call."""
        super().__init__()
        self._renewed = renewed
        self._folder = folder
        self._clocks = clocks
        self._threads = ThreadPoolExecutor(_THREADS, "object-store")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _call(self, work: Callable[Concatenate[ObjectFolder, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Raises StoreFailure for a store that does not answer in time; its thread ends by itself."""
        loop = asyncio.get_running_loop()
        if self._renewed is not None:
            self._folder = await self._renewed()
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await loop.run_in_executor(self._threads, partial(work, self._folder, *args, **kwargs))
        except TimeoutError:
            raise StoreFailure(
                f"checkpoint store {self._folder.location} does not answer within {CALL_TIMEOUT_S:g} s"
            ) from None

    async def _missing(self, tree: ContentTree) -> set[str]:
        return await self._call(lambda folder: self._find_missing(folder, tree))

    def _find_missing(self, folder: ObjectFolder, tree: ContentTree) -> set[str]:
        """Returns what is listed with its size, and is not deleted before the upload ends: see `sweep_objects`."""
        chunks, trees = folder.listed()
        lasting = set[str]()
        if trees:
            try:
                lasting = set(folder.tree(_newest(trees)).chunk_sizes())
            except UserError as error:
                log.warning("%s: %s", folder.location, error)
        young_at = self._clocks.wall() - OBJECTS_KEPT_S / 2

        def is_there(name: str, size: int) -> bool:
            found = chunks.get(name)
            return found is not None and found.size == size and (name in lasting or found.written_at > young_at)

        return {name for name, size in tree.chunk_sizes().items() if not is_there(name, size)}

    async def _put(self, name: str, content: bytes) -> int:
        await self._call(ObjectFolder.put_chunk, name, content)
        return len(content)

    async def _commit(self, tree: ContentTree) -> str:
        await self._call(_commit_checked, tree)
        return tree.name

    async def _get_list(self, name: str) -> bytes:
        return await self._call(ObjectFolder.encoded_tree, name)

    async def _get(self, name: str) -> bytes:
        return await self._call(ObjectFolder.chunk, name)


def _commit_checked(folder: ObjectFolder, tree: ContentTree) -> None:
    chunks, _ = folder.listed()
    sizes = {name: found.size for name, found in chunks.items()}
    absent = [name for name, size in tree.chunk_sizes().items() if sizes.get(name) != size]
    if absent:
        raise Conflict(
            f"checkpoint store {folder.location} does not have {len(absent)} of the chunks that it took,"
            f" the first is {absent[0][:12]}"
        )
    folder.put_tree(tree)


def _newest(trees: dict[str, StoredObject]) -> str:
    return max(trees, key=lambda name: (trees[name].written_at, name))


def sweep_objects(
    folder: ObjectFolder, in_use: Set[str], now: float, *, is_over: bool = False, is_dry: bool = False
) -> int:
    """Delete what no tree needs that is in use, young, or the newest one; returns how many objects went,
    or with `is_dry` would.

    `now`: Unix seconds. `is_over`: nobody writes there any more, so the newest tree is nothing special.
    Raises StoreFailure, and NotFound or DamagedContent where it cannot be told what is needed: then nothing goes.
    """
    chunks, trees = folder.listed()
    old_at = now - OBJECTS_KEPT_S
    kept = {name for name, found in trees.items() if name in in_use or found.written_at > old_at}
    if trees and not is_over:
        kept.add(_newest(trees))
    needed = {chunk for name in kept for chunk in folder.tree(name).chunk_sizes()}
    unneeded = {name for name, found in chunks.items() if name not in needed and found.written_at <= old_at}
    if not is_dry:
        folder.remove(unneeded, trees.keys() - kept)
    return len(unneeded) + len(trees.keys() - kept)
