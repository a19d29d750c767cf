"""The server's own store of content: chunks and trees by their hashes, in files.

DIR/content/ab/abcd... holds the bytes of a chunk. A tree is stored like a chunk, under the hash of its canonical JSON,
and only once all its chunks are there and durable: every tree in the store is complete. A sweep deletes what no tree in
use needs and what is old enough not to belong to an upload under way. All calls block on the disk: the server makes
them in threads.
"""

import contextlib
import ctypes
import os
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Set
from pathlib import Path

from pydantic import ValidationError

from walras.clocks import random_hex
from walras.content import CHUNK_BYTES, ContentTree, DamagedContent, check_chunk
from walras.errors import ClusterError, Conflict, NotFound

#: The most bytes of a tree's canonical JSON.
TREE_BYTES = 64 * 1024 * 1024
#: Bytes of the disk that are left free for the database and the logs.
FREE_LEAST_BYTES = 256 * 1024 * 1024
#: How many lists of chunks are kept in memory, so that a fetch through a job reads its list once.
_LISTS_KEPT = 8
#: How many files are made durable one by one; of more the whole disk is waited for at once.
_ONE_BY_ONE = 100
#: How many chunks are remembered as durable: 100 MB of memory at most, for 4 TB of content.
_SYNCED_KEPT = 1_000_000


class ContentStore:
    """Chunks and trees below a folder."""

    def __init__(self, folder: Path, wall: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._wall = wall
        self._lists: OrderedDict[str, frozenset[str]] = OrderedDict()
        #: The chunks last written by this process: their bytes are on disk, and their names once their folders are
        #: synced.
        self._synced: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def missing(self, names: Iterable[str]) -> list[str]:
        """Returns the names that are not in the store. Those that are get the age of a new upload."""
        return [name for name in names if not self._keep(name)]

    def _keep(self, name: str) -> bool:
        """Returns whether the name is in the store, and sets its age to 0, since an upload may count on it."""
        try:
            os.utime(self._path(name))
        except FileNotFoundError:
            return False
        return True

    def put(self, name: str, content: bytes) -> None:
        """Store a chunk.

        Raises DamagedContent if the bytes do not have this name, ClusterError if the disk lacks space beside the
        database.
        """
        check_chunk(name, content)
        if len(content) > CHUNK_BYTES:
            raise DamagedContent(f"a chunk has more than {CHUNK_BYTES:,} bytes")
        if not self._keep(name):
            self._write(name, content)

    def put_many(self, chunks: Iterable[tuple[str, bytes]]) -> None:
        """Store small chunks; the disk is waited for once for all of them. Raises as `put`."""
        drafts: dict[Path, Path] = {}
        try:
            for name, content in chunks:
                check_chunk(name, content)
                path = self._path(name)
                if path not in drafts and not self._keep(name):
                    drafts[path] = self._write_draft(path, content)
            if drafts:
                _sync_all(drafts.values())
            for path, draft in drafts.items():
                os.replace(draft, path)
        finally:
            for draft in drafts.values():
                draft.unlink(missing_ok=True)
        self._note_synced([path.name for path in drafts])

    def get(self, name: str, *, check: bool = True) -> bytes:
        """Returns a chunk. Raises NotFound, or DamagedContent where the disk has changed its bytes.

        With `check` False, the receiver must compare the bytes with the name.
        """
        try:
            content = self._path(name).read_bytes()
        except FileNotFoundError:
            raise NotFound(f"no chunk {name[:12]}") from None
        if check:
            check_chunk(name, content)
        return content

    def commit_tree(self, tree: ContentTree) -> str:
        """Make a tree and its chunks durable; returns its name. Raises Conflict for a missing chunk, DamagedContent."""
        sizes = tree.chunk_sizes()
        absent = self.missing(sizes)
        if absent:
            raise Conflict(f"{len(absent)} chunks are missing, the first is {absent[0][:12]}", fix="send them first")
        for name, size in sizes.items():
            if self._path(name).stat().st_size != size:
                raise DamagedContent(f"chunk {name[:12]} does not have {size} bytes")
        encoded = tree.encoded()
        if len(encoded) > TREE_BYTES:
            raise DamagedContent(f"a list of {len(tree.files)} files is too long")
        with self._lock:
            unsure = [name for name in sizes if name not in self._synced]
        if len(unsure) > _ONE_BY_ONE:
            _sync_all([self._path(name) for name in unsure])
        else:
            for name in unsure:
                _sync(self._path(name))
        if not self._keep(tree.name):
            self._write(tree.name, encoded)
        _sync(self._path(tree.name))
        for prefix in {name[:2] for name in (*sizes, tree.name)}:
            _sync(self._folder / prefix)
        _sync(self._folder)
        return tree.name

    def tree(self, name: str) -> ContentTree:
        """Returns a committed tree. Raises NotFound, DamagedContent."""
        try:
            encoded = self._path(name).read_bytes()
        except FileNotFoundError:
            raise NotFound(f"no tree {name[:12]}") from None
        check_chunk(name, encoded)
        try:
            return ContentTree.model_validate_json(encoded)
        except ValidationError:
            raise NotFound(f"{name[:12]} is no tree") from None

    def chunks_of(self, name: str) -> Set[str]:
        """Returns the chunks of a committed tree, from memory for recent trees. Raises NotFound, DamagedContent."""
        with self._lock:
            known = self._lists.get(name)
        if known is None:
            known = frozenset(self.tree(name).chunk_sizes())
        with self._lock:
            self._lists[name] = known
            self._lists.move_to_end(name)
            while len(self._lists) > _LISTS_KEPT:
                self._lists.popitem(last=False)
        return known

    def renew_tree(self, name: str) -> ContentTree:
        """Returns a committed tree after setting its age to 0, as a job needs it. Raises NotFound, DamagedContent."""
        tree = self.tree(name)
        if absent := self.missing([name, *tree.chunk_sizes()]):
            raise NotFound(f"{len(absent)} chunks of tree {name[:12]} are gone")
        return tree

    def sweep(self, in_use: Iterable[str], min_age_s: float) -> int:
        """Delete what none of these trees needs and nobody used within `min_age_s`; returns the bytes freed."""
        kept = self._needed(in_use)
        freed = 0
        for path in self._folder.glob("??/*"):
            with contextlib.suppress(OSError):
                found = path.stat()
                if path.name not in kept and self._wall() - found.st_mtime > min_age_s:
                    path.unlink()
                    freed += found.st_size
        return freed

    def drop(self, names: Iterable[str], in_use: Iterable[str], min_age_s: float) -> set[str]:
        """Delete these trees and what only they need, except what was used within `min_age_s`.

        Returns the names of the trees that are not entirely deleted yet.
        """
        kept = self._needed(in_use)
        left: set[str] = set()
        for name in set(names) - kept:
            try:
                chunks = set(self.tree(name).chunk_sizes()) - kept
            except (NotFound, DamagedContent):
                continue
            young = [chunk for chunk in chunks if not self._remove_old(chunk, min_age_s)]
            if young or not self._remove_old(name, min_age_s):
                left.add(name)
        return left

    def _needed(self, in_use: Iterable[str]) -> set[str]:
        """Returns the names of these trees and of their chunks."""
        needed: set[str] = set()
        for name in in_use:
            with contextlib.suppress(NotFound, DamagedContent):
                needed |= {name, *self.tree(name).chunk_sizes()}
        return needed

    def _remove_old(self, name: str, min_age_s: float) -> bool:
        """Delete content unless it was used within `min_age_s`; returns False where it was."""
        path = self._path(name)
        with contextlib.suppress(FileNotFoundError):
            if self._wall() - path.stat().st_mtime < min_age_s:
                return False
            path.unlink()
        return True

    def _path(self, name: str) -> Path:
        if len(name) != 64 or not set(name) <= set("0123456789abcdef"):
            raise NotFound(f"{name[:80]!r} is no name of content")
        return self._folder / name[:2] / name

    def _write(self, name: str, content: bytes) -> None:
        path = self._path(name)
        draft = self._write_draft(path, content)
        try:
            _sync(draft)  # beside other uploads: syncing all at once at the commit takes longer
            os.replace(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        self._note_synced([name])

    def _write_draft(self, path: Path, content: bytes) -> Path:
        """Writes the bytes beside the chunk's place, not yet durable. Raises ClusterError if the disk lacks space."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if shutil.disk_usage(path.parent).free < FREE_LEAST_BYTES:
            raise ClusterError(f"the server's content store is full: less than {FREE_LEAST_BYTES:,} bytes are free")
        draft = path.with_name(f".{path.name}.{random_hex(None, 8)}")
        try:
            with open(draft, "xb") as file:
                file.write(content)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        return draft

    def _note_synced(self, names: Iterable[str]) -> None:
        with self._lock:
            for name in names:
                self._synced[name] = None
            while len(self._synced) > _SYNCED_KEPT:
                self._synced.popitem(last=False)


def _sync_all(paths: Collection[Path]) -> None:
    """Waits until these files, all on one disk, are durable."""
    syncfs = getattr(ctypes.CDLL(None), "syncfs", None)
    if syncfs is not None:
        descriptor = os.open(next(iter(paths)), os.O_RDONLY | os.O_CLOEXEC)
        try:
            if syncfs(descriptor) == 0:
                return
        finally:
            os.close(descriptor)
    for path in paths:
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
