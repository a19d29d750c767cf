"""Folders by the hash of their content: how code, results and checkpoints travel between machines.

A file is cut into chunks of at most `CHUNK_BYTES`; a chunk's name is the SHA-256 of its bytes. A `ContentTree` lists a
folder's files with their chunks, and its name is the SHA-256 of its canonical JSON. So equal chunks are stored and
sent once, and a reader can verify each of them. A tree is untrusted input: paths that leave the folder, devices and
links do not pass `ContentTree`.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from walras.contract import CONTENT_PATTERN, FILES_MOST
from walras.errors import ConfigError, UserError

CHUNK_BYTES = 4 * 1024 * 1024
#: Characters of a path in a tree.
_PATH_MOST = 1024
_NAMED_IN_ERRORS = 5
#: A chunk is compressed where its beginning shrinks below this share.
_WORTH_COMPRESSING, _SAMPLE_BYTES = 0.9, 16 * 1024

ChunkName = Annotated[str, Field(pattern=CONTENT_PATTERN)]
#: The most chunks in a pack, and the most bytes of one of them.
PACK_CHUNKS, PACKED_BYTES = 5000, 256 * 1024
#: The most bytes of a pack's list.
_LIST_BYTES = PACK_CHUNKS * 80
_LISTED: TypeAdapter[list[tuple[ChunkName, int]]] = TypeAdapter(
    Annotated[
        list[tuple[ChunkName, Annotated[int, Field(ge=0, le=CHUNK_BYTES)]]],
        Field(min_length=1, max_length=PACK_CHUNKS, fail_fast=True),
    ]
)


class DamagedContent(UserError):
    """Bytes whose hash is not their name, or a tree that lists more or less than there is."""


class ContentFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Relative to the folder, with forward slashes.
    path: str = Field(min_length=1, max_length=_PATH_MOST)
    size: int = Field(ge=0, le=2**50)
    is_executable: bool = False
    chunks: tuple[ChunkName, ...] = Field(default=(), fail_fast=True)

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, path: str) -> str:
        pure = PurePosixPath(path)
        if pure.is_absolute() or "\0" in path or pure.as_posix() != path or {"..", "."} & set(pure.parts):
            raise ValueError("is no plain relative path")
        return path

    @model_validator(mode="after")
    def _has_its_chunks(self) -> "ContentFile":
        if len(self.chunks) != -(-self.size // CHUNK_BYTES):
            raise ValueError(f"{self.path}: {len(self.chunks)} chunks cannot hold {self.size} bytes")
        return self

    def chunk_sizes(self) -> list[tuple[str, int]]:
        """Returns each chunk with its length in bytes, in order."""
        whole = [CHUNK_BYTES] * len(self.chunks)
        if whole and self.size % CHUNK_BYTES:
            whole[-1] = self.size % CHUNK_BYTES
        return list(zip(self.chunks, whole, strict=True))


class ContentTree(BaseModel):
    """The regular files of a folder. Empty folders are not kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    files: tuple[ContentFile, ...] = Field(default=(), max_length=FILES_MOST, fail_fast=True)

    @model_validator(mode="after")
    def _is_a_folder(self) -> "ContentTree":
        paths = [file.path for file in self.files]
        if paths != sorted(set(paths)):
            raise ValueError("the files are not sorted, or one stands twice")
        folders = {parent.as_posix() for path in paths for parent in PurePosixPath(path).parents}
        if clash := folders & set(paths):
            raise ValueError(f"{min(clash)} is a file and a folder")
        return self

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def encoded(self) -> bytes:
        """Returns the canonical JSON whose hash names the tree."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode()

    @cached_property
    def name(self) -> str:
        """Kept, because a list of 100,000 files takes seconds to encode."""
        return chunk_name(self.encoded())

    def chunk_sizes(self) -> dict[str, int]:
        """Returns every chunk with its length in bytes."""
        return dict(pair for file in self.files for pair in file.chunk_sizes())


@dataclass(frozen=True, slots=True)
class TreeContent:
    """What a store needs of a checked tree."""

    name: str
    #: Its canonical JSON.
    encoded: bytes
    #: Every chunk with its length in bytes.
    sizes: Mapping[str, int]


def content_of(tree: ContentTree) -> TreeContent:
    """Returns what a store needs of the tree."""
    return TreeContent(tree.name, tree.encoded(), tree.chunk_sizes())


def chunk_name(content: bytes) -> str:
    """Returns the name under which these bytes are stored."""
    return hashlib.sha256(content).hexdigest()


# ------------------------------------------------------------------------------------------------ from a folder


def hash_folder(folder: Path, paths: Iterable[str]) -> ContentTree:
    """Describe these files of a folder (relative, forward slashes). Raises ConfigError for what is no regular file."""
    return ContentTree(files=tuple(_hash_file(folder, path) for path in sorted(set(paths))))


def _hash_file(folder: Path, path: str) -> ContentFile:
    place = folder / path
    if place.is_symlink() or not place.is_file():
        raise ConfigError(f"{place} is no regular file", fix="leave it out (.walrasignore), or copy what it points to")
    chunks, size = [], 0
    for content in read_chunks(place):
        chunks.append(chunk_name(content))
        size += len(content)
    return ContentFile(path=path, size=size, is_executable=os.access(place, os.X_OK), chunks=tuple(chunks))


def read_chunks(place: Path) -> Iterator[bytes]:
    """The chunks of a file, in order."""
    with open(place, "rb", opener=_open_plain) as file:
        while content := file.read(CHUNK_BYTES):
            yield content


def _open_plain(path: str, flags: int) -> int:
    """Opens a regular file, and nothing that somebody put in its place: a pipe would be waited for, for ever."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise FileNotFoundError(errno.ENOENT, "is no regular file", path)


def find_chunks(
    folder: Path, tree: ContentTree, wanted: set[str], *, check: bool = True
) -> Iterator[tuple[str, bytes]]:
    """Yields (name, bytes) of these chunks, each once. Raises DamagedContent where a file has changed meanwhile, but
    not where it only grew.

    `check` False: whoever gets the bytes compares them with the name.
    """
    left = set(wanted)
    for file in tree.files:
        if left.isdisjoint(file.chunks):
            continue
        with open(folder / file.path, "rb", opener=_open_plain) as source:
            for number, (name, size) in enumerate(file.chunk_sizes()):
                if name not in left:
                    continue
                source.seek(number * CHUNK_BYTES)
                content = source.read(size)  # something may append to the file meanwhile
                if check and chunk_name(content) != name:
                    raise DamagedContent(f"{folder / file.path} has changed while it was read", field=file.path)
                left.discard(name)
                yield name, content


def check_sizes(sizes: Mapping[str, int], limit_bytes: int, what: str) -> None:
    """Raise ConfigError with the largest files where files, bytes by path, are larger together than allowed."""
    total = sum(sizes.values())
    if total <= limit_bytes:
        return
    largest = sorted(sizes.items(), key=itemgetter(1), reverse=True)[:_NAMED_IN_ERRORS]
    named = ", ".join(f"{path} ({size / 1e6:,.1f} MB)" for path, size in largest)
    raise ConfigError(
        f"{what} has {total / 1e6:,.1f} MB, {limit_bytes / 1e6:,.1f} are allowed; the largest files: {named}",
        fix="list what need not travel in .walrasignore",
    )


# ------------------------------------------------------------------------------------------------ into a folder


class TreeDraft:
    """A folder that is filled with the files of a tree, chunk by chunk in any order, and appears once it is whole.

    Until then it stands beside its place under another name. After an interruption, chunks that the draft has are not
    fetched again. Calls may come from several threads at once.
    """

    def __init__(self, tree: ContentTree, folder: Path) -> None:
        """Raises FileExistsError where the folder is there already, OSError."""
        if folder.exists():
            raise FileExistsError(folder)
        self._tree = tree
        self._folder = folder
        self._draft = draft_of(folder)
        #: Where the bytes of each chunk belong: file, offset in bytes, length.
        self._places: dict[str, list[tuple[ContentFile, int, int]]] = {}
        for file in tree.files:
            for number, (name, size) in enumerate(file.chunk_sizes()):
                self._places.setdefault(name, []).append((file, number * CHUNK_BYTES, size))
        self.missing = set(self._places) - self._begin()

    def _begin(self) -> set[str]:
        """Make the files, empty or as a draft of the same tree left them; returns the chunks that are whole there."""
        listed = self._draft / _LIST
        with contextlib.suppress(OSError):  # a file of the draft is gone: it begins anew
            # A job may have put the folder there. Through links its checkpoint would go wherever the job wants.
            if not _has_links(self._draft) and _holds(listed, self._tree.name.encode()):
                return {name for file in self._tree.files for name in self._whole_chunks(file)}
        remove_draft(self._folder)
        self._draft.mkdir(parents=True, mode=0o700)
        for file in self._tree.files:
            place = self._place(file)
            place.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(place, flags, 0o755 if file.is_executable else 0o644))
        listed.write_text(self._tree.name)
        return set()

    def _place(self, file: ContentFile) -> Path:
        return self._draft / "files" / file.path

    def _whole_chunks(self, file: ContentFile) -> Iterator[str]:
        with open(self._place(file), "rb", opener=_open_plain) as content:
            for name, size in file.chunk_sizes():
                if chunk_name(content.read(CHUNK_BYTES)[:size]) == name:
                    yield name

    def put(self, name: str, content: bytes) -> None:
        """Write a chunk wherever it belongs. Raises DamagedContent for bytes that are not what the tree says."""
        check_chunk(name, content)
        for file, offset, size in self._places[name]:
            if len(content) != size:
                raise DamagedContent(f"{file.path}: a chunk has {len(content)} bytes, not {size}", field=file.path)
            with open(self._place(file), "r+b", opener=_open_plain) as target:
                target.seek(offset)
                target.write(content)

    def finish(self) -> None:
        """Give the folder its name. All chunks must have been put."""
        (self._draft / "files").mkdir(exist_ok=True)
        for file in self._tree.files:
            if os.stat(self._place(file)).st_size != file.size:
                remove_draft(self._folder)
                raise DamagedContent(f"{file.path} has changed while it was fetched", field=file.path)
        os.rename(self._draft / "files", self._folder)
        remove_draft(self._folder)


#: The name of a file in a draft that holds the name of the draft's tree.
_LIST = "tree"


def draft_of(folder: Path) -> Path:
    """Returns where the files of a folder are gathered until it is whole."""
    return folder.with_name(f".{folder.name}.draft")


def remove_draft(folder: Path) -> None:
    """Remove what a fetch of this folder that was cut has left."""
    shutil.rmtree(draft_of(folder), ignore_errors=True)


def _has_links(folder: Path) -> bool:
    """Returns whether the folder, or anything below it, is a symbolic link."""
    if folder.is_symlink():
        folder.unlink()
        return True
    return any(Path(where, name).is_symlink() for where, *names in os.walk(folder) for name in chain(*names))


def _holds(place: Path, content: bytes) -> bool:
    """Returns whether there is a regular file with these bytes."""
    try:
        with open(place, "rb", opener=_open_plain) as file:
            return file.read(len(content) + 1) == content
    except OSError:
        return False


def check_chunk(name: str, content: bytes) -> None:
    """Raise DamagedContent unless these bytes have this name."""
    if chunk_name(content) != name:
        raise DamagedContent(f"the bytes of chunk {name[:12]} are not what its name says")


# ------------------------------------------------------------------------------------------------ on the way


def pack_chunk(content: bytes) -> tuple[bytes, str]:
    """Returns the bytes to send and their encoding: `zlib` where that pays, else `plain`."""
    sample = content[:_SAMPLE_BYTES]
    if len(zlib.compress(sample, 1)) > _WORTH_COMPRESSING * len(sample):
        return content, "plain"
    return zlib.compress(content, 1), "zlib"


def join_chunks(chunks: Sequence[tuple[str, bytes]]) -> bytes:
    """Returns many small chunks as one, to send them in one request: a line with names and sizes, then the bytes."""
    listed = json.dumps([[name, len(content)] for name, content in chunks], separators=(",", ":")).encode()
    return b"\n".join((listed, b"".join(content for _, content in chunks)))


def split_chunks(joined: bytes) -> list[tuple[str, bytes]]:
    """Undo `join_chunks`. Raises DamagedContent for what it never makes; names are not compared with the bytes."""
    listed, _, rest = joined.partition(b"\n")
    if len(listed) > _LIST_BYTES:
        raise DamagedContent(f"a pack lists more than {PACK_CHUNKS:,} chunks")
    found, at = [], 0
    try:
        for name, size in _LISTED.validate_json(listed):
            found.append((name, rest[at : at + size]))
            at += size
    except ValidationError:
        raise DamagedContent("a pack of chunks does not say what it has") from None
    if at != len(rest):
        raise DamagedContent(f"a pack says {at:,} bytes and has {len(rest):,}")
    return found


def unpack_chunk(body: bytes, encoding: str) -> bytes:
    """Undo `pack_chunk`. Raises DamagedContent for what it never makes, however much it would unpack to."""
    if encoding == "plain":
        content = body
    elif encoding == "zlib":
        unpacker = zlib.decompressobj()
        try:
            content = unpacker.decompress(body, CHUNK_BYTES + 1)
        except zlib.error as error:
            raise DamagedContent(f"a chunk cannot be unpacked: {error}") from None
    else:
        raise DamagedContent(f"no encoding {encoding[:20]!r}", fix="plain or zlib")
    if len(content) > CHUNK_BYTES:
        raise DamagedContent(f"a chunk has more than {CHUNK_BYTES:,} bytes")
    return content
