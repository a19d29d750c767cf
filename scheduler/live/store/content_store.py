"""The server's own store of content: chunks and trees by their hashes, in files, and who holds what of it.

DIR/content/ab/abcd... holds the bytes of a chunk. A tree is stored like a chunk, under the hash of its canonical JSON,
and only once all its chunks are there and durable: every tree in the store is complete. A sweep deletes what no tree in
use needs and what is old enough not to belong to an upload under way. Whoever sends content holds it, and learns only
of content of its projects.

Beside the content NAME stand its holders in NAME.by: a line of JSON for each, [holder, projects]. Content without
holders was sent to an older release. Bytes count in full for each of their holders, of a small piece 32 KiB. The most
is what the disk has left beside the database and what is held, so a holder may have as much as it leaves free
(`scheduler.live.holder_shares`). All calls block on the disk: the server makes them in threads.
"""

import contextlib
import ctypes
import json
import os
import shutil
import threading
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from scheduler.live.holder_shares import FREE_LEAST_BYTES, DiskShares, ShareTaken
from walras.clocks import random_hex
from walras.errors import ClusterError, Conflict, NotFound
from walras.storage.content import CHUNK_BYTES, ContentTree, DamagedContent, TreeContent, check_chunk

#: What a piece of content counts at least: it and its list take a block each, and two of a disk's inodes.
LEAST_BYTES = 32 * 1024
_SUFFIX = ".by"
#: Bytes of one list of holders that are read: some thousand holders.
_LIST_BYTES = 256 * 1024
_FIX = "what no job needs goes after 30 days, or now: an administrator runs `walras admin prune --content`"


class SpaceTaken(ShareTaken):
    """A holder would have more bytes of content than its share."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who sends content, or asks for it."""

    name: str
    #: Whose users are told that the content is here.
    projects: tuple[str, ...] = ()
    #: Whether everything is shown to it: machines and administrators.
    sees_all: bool = False
    #: Whether it may use what is kept for jobs that run, and for administrators.
    is_reserved: bool = False


class ContentHolders:
    """The holders of the content below a folder. Their bytes are known once `recount` has seen every part of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.shares = DiskShares("bytes of content", folder, FREE_LEAST_BYTES, has_reserve=True, fix=_FIX)
        self._lock = self.shares.lock
        #: The bytes of each holder by the first two characters of their names.
        self._counted: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def shows(self, name: str, asker: Holder | None) -> bool:
        """Returns whether the asker may learn that this content is here: somebody of its projects has sent it."""
        return (
            asker is None
            or asker.sees_all
            or any(
                holder == asker.name or not {*asker.projects}.isdisjoint(projects)
                for holder, projects in self.holders_of(name)
            )
        )

    def is_unowned(self, name: str) -> bool:
        """Returns whether the content was sent to an older release, which noted no holders."""
        return not self._list_of(name).exists()

    def holders_of(self, name: str) -> list[tuple[str, tuple[str, ...]]]:
        """Returns each holder with the projects for which it sent the content."""
        found = []
        with contextlib.suppress(FileNotFoundError), open(self._list_of(name), encoding="utf-8") as lines:
            for line in lines.read(_LIST_BYTES).splitlines():
                with contextlib.suppress(ValueError):  # torn as the machine lost power
                    holder, projects = json.loads(line)
                    found.append((str(holder), tuple(map(str, projects))))
        return found

    def add(self, sizes: Mapping[str, int], holder: Holder | None) -> None:
        """Note that the holder has sent these, bytes by name. Raises SpaceTaken beyond its share: then nothing is."""
        if holder is None:
            return
        with self._lock:
            known = {name: self.holders_of(name) for name in sizes}
            new = [name for name, holders in known.items() if all(holder.name != each for each, _ in holders)]
            if new:
                self._check(holder, sum(_counted(sizes[name]) for name in new))
            for name, holders in known.items():
                if (holder.name, holder.projects) not in holders:
                    path = self._list_of(name)
                    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                    with open(path, "a", encoding="utf-8") as lines:
                        lines.write(json.dumps([holder.name, holder.projects]) + "\n")
            for name in new:
                self._count(name[:2], Counter({holder.name: _counted(sizes[name])}))

    def remove(self, name: str, size: int) -> None:
        """Note that the content was deleted."""
        with self._lock:
            for holder in {holder for holder, _ in self.holders_of(name)}:
                self._count(name[:2], Counter({holder: -_counted(size)}))
            self._list_of(name).unlink(missing_ok=True)

    def recount(self, folder: Path, older_than_unix_s: float) -> None:
        """Count what holders have in one folder of the store anew; delete lists whose content is gone for long."""
        with self._lock:
            found: Counter[str] = Counter()
            for path in folder.glob(f"*{_SUFFIX}"):
                try:
                    size = os.stat(folder / path.stem).st_size
                except FileNotFoundError:
                    if path.stat().st_mtime < older_than_unix_s:
                        path.unlink()
                    continue
                for holder in {holder for holder, _ in self.holders_of(path.stem)}:
                    found[holder] += _counted(size)
            found.subtract(self._counted[folder.name])
            self._count(folder.name, found)
            self.shares.measure()

    def _check(self, holder: Holder, more: int) -> None:
        if self.shares.measure() <= 0:
            return  # whoever writes says that the disk is full
        try:
            self.shares.check(holder.name, more, is_reserved=holder.is_reserved)
        except ShareTaken as error:
            raise SpaceTaken(f"{error}, and {more:,} more do not fit", fix=error.fix) from None

    def _count(self, prefix: str, more: Counter[str]) -> None:
        self.shares.count(more)
        for holder, size in more.items():
            self._counted[prefix][holder] += size

    def _list_of(self, name: str) -> Path:
        return self._folder / name[:2] / f"{name}{_SUFFIX}"


def _counted(size: int) -> int:
    return max(LEAST_BYTES, size)


def contents_of(folder: Path) -> Iterable[Path]:
    """Yields the files of one folder of the store that are content, or drafts of it."""
    return (path for path in folder.iterdir() if path.suffix != _SUFFIX)


#: The most bytes of a tree's canonical JSON.
TREE_BYTES = 64 * 1024 * 1024
#: How many lists of chunks are kept in memory, so that a fetch through a job reads its list once.
_LISTS_KEPT = 8
#: How many files are made durable one by one; of more the whole disk is waited for at once.
_ONE_BY_ONE = 100
#: How many chunks are remembered as durable: 100 MB of memory at most, for 4 TB of content.
_SYNCED_KEPT = 1_000_000


@dataclass(slots=True)
class SweptContent:
    """What a sweep has deleted, or would delete."""

    size_bytes: int = 0
    #: Bytes by holder; what several hold counts for each.
    of_holders: Counter[str] = field(default_factory=Counter)


class ContentStore:
    """Chunks and trees below a folder. Where a call names no holder, the server itself asks or keeps."""

    def __init__(self, folder: Path, wall: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._wall = wall
        self._lists: OrderedDict[str, frozenset[str]] = OrderedDict()
        #: The chunks last written by this process: their bytes are on disk, and their names once their folders are
        #: synced.
        self._synced: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        self.holders = ContentHolders(folder)

    def missing(self, names: Iterable[str], asker: Holder | None = None) -> list[str]:
        """Returns the names that are not in the store, as far as the asker may know. Those that are get the age of a
        new upload.
        """
        return [name for name in names if not (self._keep(name) and self.holders.shows(name, asker))]

    def _keep(self, name: str) -> bool:
        """Returns whether the name is in the store, and sets its age to 0, since an upload may count on it."""
        try:
            os.utime(self._path(name))
        except FileNotFoundError:
            return False
        return True

    def put(self, name: str, content: bytes, holder: Holder | None = None) -> None:
        """Store a chunk.

        Raises DamagedContent if the bytes do not have this name, SpaceTaken beyond the holder's share, ClusterError if
        the disk lacks space beside the database.
        """
        check_chunk(name, content)
        if len(content) > CHUNK_BYTES:
            raise DamagedContent(f"a chunk has more than {CHUNK_BYTES:,} bytes")
        with self._held({name: len(content)}, holder):
            if not self._keep(name):
                self._write(name, content)

    @contextlib.contextmanager
    def _held(self, sizes: Mapping[str, int], holder: Holder | None) -> Iterator[None]:
        """Notes the holder of content that is written meanwhile. Raises SpaceTaken."""
        self.holders.add(sizes, holder)
        try:
            yield
        except BaseException:
            for name, size in sizes.items():
                if not self._path(name).exists():
                    self.holders.remove(name, size)
            raise

    def put_many(self, chunks: Sequence[tuple[str, bytes]], holder: Holder | None = None) -> None:
        """Store small chunks; the disk is waited for once for all of them. Raises as `put`."""
        for name, content in chunks:
            check_chunk(name, content)
        with self._held({name: len(content) for name, content in chunks}, holder):
            self._write_many(chunks)

    def _write_many(self, chunks: Iterable[tuple[str, bytes]]) -> None:
        drafts: dict[Path, Path] = {}
        try:
            for name, content in chunks:
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

    def commit_tree(self, tree: TreeContent, holder: Holder | None = None) -> str:
        """Make a tree and its chunks durable; returns its name.

        Raises Conflict for a chunk that is missing as far as the holder may know, DamagedContent, SpaceTaken.
        """
        sizes, encoded = tree.sizes, tree.encoded
        absent = self.missing(sizes, holder)
        if absent:
            raise Conflict(f"{len(absent)} chunks are missing, the first is {absent[0][:12]}", fix="send them first")
        for name, size in sizes.items():
            if self._path(name).stat().st_size != size:
                raise DamagedContent(f"chunk {name[:12]} does not have {size} bytes")
        if len(encoded) > TREE_BYTES:
            raise DamagedContent(f"a list of files has more than {TREE_BYTES:,} bytes")
        with self._held({**sizes, tree.name: len(encoded)}, holder):
            self._commit(tree.name, sizes, encoded)
        return tree.name

    def _commit(self, tree: str, sizes: Mapping[str, int], encoded: bytes) -> None:
        with self._lock:
            unsure = [name for name in sizes if name not in self._synced]
        if len(unsure) > _ONE_BY_ONE:
            _sync_all([self._path(name) for name in unsure])
        else:
            for name in unsure:
                _sync(self._path(name))
        if not self._keep(tree):
            self._write(tree, encoded)
        _sync(self._path(tree))
        for prefix in {name[:2] for name in (*sizes, tree)}:
            _sync(self._folder / prefix)
        _sync(self._folder)

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

    def renew_tree(self, name: str, holder: Holder | None = None) -> ContentTree:
        """Returns a committed tree after setting its age to 0, as a job of the holder needs it.

        Raises NotFound, also for what the holder may not know of, DamagedContent, SpaceTaken.
        """
        tree = self.tree(name)
        if not (self.holders.shows(name, holder) or self.holders.is_unowned(name)):
            raise NotFound(f"no tree {name[:12]}")
        if absent := self.missing([name, *tree.chunk_sizes()]):
            raise NotFound(f"{len(absent)} chunks of tree {name[:12]} are gone")
        self.holders.add({name: self._path(name).stat().st_size}, holder)
        return tree

    def sweep(self, in_use: Iterable[str], min_age_s: float, *, is_dry: bool = False) -> SweptContent:
        """Delete what none of these trees needs and nobody used within `min_age_s`; with `is_dry`, only name it."""
        kept = self._needed(in_use)
        swept = SweptContent()
        for folder in self._folder.glob("??"):
            for path in contents_of(folder):
                with contextlib.suppress(OSError):
                    found = path.stat()
                    if path.name not in kept and self._wall() - found.st_mtime > min_age_s:
                        swept.size_bytes += found.st_size
                        swept.of_holders.update(
                            {holder: found.st_size for holder, _ in self.holders.holders_of(path.name)}
                        )
                        if not is_dry:
                            self._remove(path)
            self.holders.recount(folder, self._wall() - min_age_s)
        return swept

    def _remove(self, path: Path) -> None:
        size = path.stat().st_size
        path.unlink()
        self.holders.remove(path.name, size)

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
            self._remove(path)
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
