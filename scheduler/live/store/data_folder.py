"""The server's folder: its files with what becomes of each, the secrets made at the first start, and the logs of ranks.

`FOLDER_ENTRIES` declares every file: backup, restore, `--new-cluster`, `admin check` and retention read it. Only their
owner can read secrets. DIR/logs/<incarnation>/<job>/<attempt>/<rank>.log holds the bytes that a rank wrote, for every
attempt: the incarnation is the one that granted it, so that a number given out again after a restore never shows
another job's text. (Attempts from before incarnations were kept are in DIR/logs/<job>/.) Bytes arrive with their
offset; those that are there already are skipped and a gap is not taken, so sending again does no harm. The names
consist of numbers and hexadecimal digits only. All calls block on the disk: the server makes them in threads.

Beside RANK.log is RANK.times, which says from time to time when bytes arrived and where they began: pairs of an instant
(Unix seconds, as a float) and an offset, 16 bytes each, in order. A log without it was written by an older release, and
is shown whole.
"""

import contextlib
import hashlib
import json
import os
import re
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from random import Random
from typing import IO

from scheduler.live.holder_shares import FREE_LEAST_BYTES, DiskShares, FileShares, ShareTaken
from scheduler.live.store.store_interface import StoreUnavailable
from scheduler.live.store.table_declaration import Kept
from walras.clocks import random_hex, random_token
from walras.contract import pinned_token, split_token
from walras.errors import ConfigError


class InBackup(Enum):
    """Whether a backup holds a file; a restore puts back what its backup holds."""

    DATABASE = "a copy as of one instant takes its place"
    COPIED = "copied"
    WITH_LOGS = "copied if logs are asked for"
    NEVER = "not copied"


#: Stands for the folder of every incarnation, in `FolderEntry.jobs_in`.
EACH_INCARNATION = "<incarnation>"


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """A file or folder that lies in the data folder."""

    name: str
    in_backup: InBackup
    #: A new cluster in the same folder puts it aside: it must not be taken for that one's.
    of_cluster: bool = False
    #: Whoever reads it can act as the server, its people or its machines.
    is_secret: bool = False
    #: Every start makes it.
    is_folder: bool = False
    #: What is kept otherwise lies in folders with the numbers of jobs, in these folders of it (`.`: in itself).
    kept: Kept = Kept.FOR_EVER
    jobs_in: tuple[str, ...] = ()


_ENTRIES = (
    FolderEntry("walras.db", InBackup.DATABASE, of_cluster=True, is_secret=True),
    FolderEntry("walras.db-wal", InBackup.DATABASE, of_cluster=True),
    FolderEntry("walras.db-shm", InBackup.DATABASE, of_cluster=True),
    FolderEntry("tip", InBackup.DATABASE, of_cluster=True),
    FolderEntry("secret.key", InBackup.COPIED, of_cluster=True, is_secret=True),
    FolderEntry("join.token", InBackup.COPIED, of_cluster=True, is_secret=True),
    FolderEntry("admin.token", InBackup.COPIED, of_cluster=True, is_secret=True),
    # A former cluster's machines that call here are told so only by a server that they trust.
    FolderEntry("tls.crt", InBackup.COPIED),
    FolderEntry("tls.key", InBackup.COPIED, is_secret=True),
    FolderEntry("port", InBackup.COPIED),
    FolderEntry(
        "logs",
        InBackup.WITH_LOGS,
        of_cluster=True,
        is_folder=True,
        kept=Kept.WITH_LOGS,
        jobs_in=(".", EACH_INCARNATION),
    ),
    # Large, and on file systems of their own. The checkpoints of projects, in other folders, stay.
    FolderEntry("checkpoints", InBackup.NEVER, is_folder=True, kept=Kept.WITH_CHECKPOINTS, jobs_in=("jobs",)),
    FolderEntry("content", InBackup.NEVER, is_folder=True),
    FolderEntry("machines", InBackup.NEVER, is_folder=True),
    # Written anew by every start.
    FolderEntry("speeds.yaml", InBackup.NEVER),
    FolderEntry("server.json", InBackup.NEVER),
    FolderEntry("lock", InBackup.NEVER),
)
#: By name: every file and folder that there may be.
FOLDER_ENTRIES = {entry.name: entry for entry in _ENTRIES}


@dataclass(frozen=True, slots=True)
class DataFolder:
    path: Path

    @property
    def join_token_file(self) -> Path:
        return self.path / "join.token"

    @property
    def admin_token_file(self) -> Path:
        return self.path / "admin.token"

    @property
    def port_file(self) -> Path:
        """The file of the port that the first start chose, or that was asked for last."""
        return self.path / "port"

    @property
    def server_file(self) -> Path:
        """Says where the server listens, once it is ready. It is an earlier server's if its process is another."""
        return self.path / "server.json"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def folders_of_jobs(self, entry: FolderEntry) -> Iterator[tuple[int, Path]]:
        """Returns the number and the folder of every job with files of this kind, in each place where they lie."""
        root = self.path / entry.name
        for place in entry.jobs_in:
            is_each = place == EACH_INCARNATION
            inside = [name for name in _names_in(root) if _INCARNATION.fullmatch(name)] if is_each else [place]
            for folder in (root / name for name in inside):
                yield from ((int(name), folder / name) for name in _names_in(folder) if _JOB_FOLDER.fullmatch(name))

    @property
    def content(self) -> Path:
        """Code, results and checkpoints that travel through the server."""
        return self.path / "content"

    @property
    def machines(self) -> Path:
        """Folders of the `local` provider's machines."""
        return self.path / "machines"

    def create(self) -> None:
        for name in (".", *(entry.name for entry in FOLDER_ENTRIES.values() if entry.is_folder)):
            (self.path / name).mkdir(parents=True, exist_ok=True, mode=0o700)

    def join_token(self, chance: Random | None = None) -> str:
        """Returns the token that admits machines, made at the first start. Raises ConfigError if its file is empty."""
        token = split_token(_kept(self.join_token_file, f"wlr_join_{random_token(chance)}"))[0]
        if not token:
            fix = "restore it from a backup, or delete it: a new one is made"
            raise ConfigError(f"{self.join_token_file} is empty", field="--data", fix=fix)
        return token

    def pin(self) -> str:
        """Returns the fingerprint that tokens carry; empty if the server's certificate is not pinned."""
        with contextlib.suppress(FileNotFoundError):
            return split_token(self.join_token_file.read_text(encoding="utf-8"))[1]
        return ""

    def pin_tokens(self, pin: str) -> None:
        """Write the certificate's fingerprint (empty: none) behind the tokens in the folder."""
        self.join_token()
        for path in (self.join_token_file, self.admin_token_file):
            if path.is_file():
                written = path.read_text(encoding="utf-8").strip()
                wanted = pinned_token(split_token(written)[0], pin)
                if wanted != written:
                    write_private(path, wanted + "\n")

    def server_secret(self, chance: Random | None = None) -> bytes:
        """Returns the key of job tokens, made at the first start. Raises ConfigError if its file does not hold one."""
        path = self.path / "secret.key"
        text = _kept(path, random_hex(chance, 64))
        if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
            what = "is empty" if not text else "does not hold 64 hexadecimal digits"
            fix = "restore it from a backup, or delete it: a new one is made, and running jobs get new tokens"
            raise ConfigError(f"{path} {what}", field="--data", fix=fix)
        return bytes.fromhex(text)

    def key_digest(self) -> str:
        """Returns a digest by which the key is told from others; empty if there is no key yet."""
        if not (self.path / "secret.key").is_file():
            return ""
        return hashlib.sha256(b"walras data folder" + self.server_secret()).hexdigest()

    def kept_port(self) -> int:
        """Returns the port that agents call, known also before a server was ever ready there; 0 if unknown."""
        for file, read in ((self.port_file, int), (self.server_file, lambda text: int(json.loads(text)["port"]))):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                return read(file.read_text(encoding="utf-8"))
        return 0

    def keep_port(self, port: int) -> None:
        """Keep the port, which agents are told from now on."""
        if self.kept_port() != port or not self.port_file.is_file():
            write_private(self.port_file, f"{port}\n")

    def announce(self, url: str, port: int) -> None:
        """Write that the server is ready, and where; `sha256` is the fingerprint of a pinned certificate."""
        pin = self.pin()
        told = {"url": url, "pid": os.getpid(), "port": port} | ({"sha256": pin} if pin else {})
        write_private(self.server_file, json.dumps(told))


def write_private(path: Path, text: str) -> None:
    """Replace a file that only its owner can read, atomically: readers see the old text or the new one."""
    draft = path.with_name(f".{path.name}.draft")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _kept(path: Path, fresh: str) -> str:
    """Returns the text of a secret's file; writes `fresh` into it first if the file does not exist."""
    if not path.is_file():
        write_private(path, fresh + "\n")
    return path.read_text(encoding="utf-8", errors="replace").strip()


@dataclass(frozen=True, slots=True)
class LogAppended:
    next_offset: int
    full: bool


@dataclass(frozen=True, slots=True)
class LogPlace:
    """The log of one rank of an attempt."""

    job_id: int
    attempt: int
    rank: int
    #: The incarnation that granted the attempt; empty: it was granted before there were any.
    incarnation: str = ""


#: What stands in a log in the place of bytes for which its user has no share.
CUT_NOTE = b"\n[walras: output is left out here: the logs of this job's user fill their share]\n"
_LOGS_FIX = "an administrator deletes old ones: `walras admin prune --logs 7d`, or `keep: {logs: 30d}`"


#: The most bytes kept of one rank's log; later ones are dropped, and the log says so.
LOG_BYTES = 256 * 1024 * 1024
#: Files and folders of one rank's log at most, and how many of the disk's are left to others.
_FILES_OF_LOG, _FILES_LEFT = 4, 4096


class LogStore:
    """The logs of all ranks, to which bytes are only appended, by each user no more than its share of the disk.

    Beyond its share of bytes a log ends with CUT_NOTE; beyond that of files a new one is not begun.
    """

    def __init__(self, folder: Path, limit_bytes: int, wall: Callable[[], float] = time.time) -> None:
        #: Below what content leaves, so that content alone ends no log.
        self.shares = DiskShares("bytes of logs", folder, FREE_LEAST_BYTES // 2, fix=_LOGS_FIX)
        self.files = FileShares("files of logs", folder, _FILES_LEFT, fix=_LOGS_FIX)
        self.files.lock = self.shares.lock
        #: What was written since the last count began, bytes and files by holder.
        self._since: Counter[str] = Counter()
        self._begun: Counter[str] = Counter()
        #: Whether bytes were left out since the last count: what was deleted meanwhile may make room for more.
        self.is_cutting = False
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._wall = wall

    def append(self, place: LogPlace, offset: int, data: bytes, holder: str = "") -> LogAppended:
        """Append bytes that begin at `offset`; returns the next offset. Raises StoreUnavailable if the disk is full.

        `holder`: who holds them, and gets CUT_NOTE once in the place of what is beyond its share; empty: nobody.
        """
        try:
            return self._append(self._path(place), offset, data, holder)
        except OSError as error:
            # The size of the file says what was written before the failure; the next call continues there.
            raise StoreUnavailable(f"the logs cannot be written: {os.strerror(error.errno or 0)}") from None

    def recount(self, holders: Mapping[int, str]) -> None:
        """Count what each holder has anew, by the holder of each job. Takes minutes where there are many logs."""
        with self.shares.lock:
            self._since.clear()
            self._begun.clear()
            self.is_cutting = False
        found, begun = Counter[str](), Counter[str]()
        for job_id, folder in DataFolder(self._folder.parent).folders_of_jobs(FOLDER_ENTRIES[self._folder.name]):
            if holder := holders.get(job_id):
                for path in folder.rglob("*.*"):
                    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                        found[holder] += path.stat().st_size
                        begun[holder] += _FILES_OF_LOG if path.suffix == ".log" else 0
        with self.shares.lock:
            for shares, seen, since in ((self.shares, found, self._since), (self.files, begun, self._begun)):
                seen.update(since)
                seen.subtract(shares.held)
                shares.count(seen)

    def standing(self) -> str:
        """Returns "ok", or what of the logs is how full, by whom, and what frees it."""
        told = self.shares.standing()
        return self.files.standing() if told == "ok" else told

    def _may_begin(self, holder: str) -> bool:
        """Returns whether the holder may have one more log, after counting it."""
        with self.shares.lock:
            self.files.measure()
            try:
                self.files.check(holder, _FILES_OF_LOG)
            except ShareTaken:
                self.is_cutting = True
                return False
            self.files.put_back(holder, _FILES_OF_LOG)
            self._begun[holder] += _FILES_OF_LOG
            return True

    def _within_share(self, path: Path, piece: bytes, holder: str) -> bytes:
        """Returns what is to be appended in the place of these bytes, after counting it."""
        with self.shares.lock:
            self.shares.measure()
            room = self.shares.share_of(holder) - self.shares.held.get(holder, 0)
            if room < len(CUT_NOTE):
                self.is_cutting = True
                with open(path, "rb") as log:
                    log.seek(max(0, log.seek(0, 2) - len(CUT_NOTE)))
                    piece = b"" if log.read() == CUT_NOTE else CUT_NOTE
            piece = piece[: max(room, len(CUT_NOTE))]
            self.shares.count(Counter({holder: len(piece)}))
            self._since[holder] += len(piece)
            return piece

    def _append(self, path: Path, offset: int, data: bytes, holder: str) -> LogAppended:
        if holder and not path.exists() and not self._may_begin(holder):
            return LogAppended(0, full=False)
        with _open_to_append(path) as file:
            size = file.tell()
            if offset <= size < offset + len(data):
                note_arrival(path, size, self._wall())
                piece = data[size - offset :][: max(0, self._limit_bytes - size)]
                file.write(self._within_share(path, piece, holder) if holder else piece)
                size = file.tell()
        return LogAppended(size, size >= self._limit_bytes)

    def read(self, place: LogPlace, offset: int, limit_bytes: int) -> bytes:
        """Returns bytes from `offset` on; none where nothing was written (yet)."""
        try:
            with open(self._path(place), "rb") as file:
                file.seek(offset)
                return file.read(limit_bytes)
        except FileNotFoundError:
            return b""

    def start(self, place: LogPlace, *, lines: int | None, since_s: float | None) -> int:
        """Returns the offset of the last `lines`, or of what arrived within the last `since_s` seconds: the later of
        the two.

        Returns 0 where nothing was written yet.
        """
        path = self._path(place)
        try:
            by_lines = 0 if lines is None else offset_of_last_lines(path, lines)
            return max(by_lines, 0 if since_s is None else offset_since(path, self._wall() - since_s))
        except FileNotFoundError:
            return 0

    def size(self, place: LogPlace) -> int:
        """Returns how many bytes were written so far."""
        try:
            return self._path(place).stat().st_size
        except FileNotFoundError:
            return 0

    def _path(self, place: LogPlace) -> Path:
        assert not place.incarnation or _INCARNATION.fullmatch(place.incarnation), place.incarnation
        numbers = str(int(place.job_id)), str(int(place.attempt)), f"{int(place.rank)}.log"
        return self._folder.joinpath(place.incarnation, *numbers)


def _open_to_append(path: Path) -> IO[bytes]:
    """Returns the file at this path, opened for appending, and created with its folders if it is new."""
    try:
        return open(path, "ab")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "ab")


_INCARNATION = re.compile(r"[0-9a-f]{16}", re.ASCII)
#: Job folders have fewer digits than an incarnation, which may happen to be decimal.
_JOB_FOLDER = re.compile(r"[1-9][0-9]{0,14}", re.ASCII)


def highest_number_used(folder: DataFolder) -> int:
    """Returns the highest job number of which logs or checkpoints lie here; 0 if there are none.

    A restored database is older than these files, and a number given out again would meet another job's files.
    """
    return max((number for entry in FOLDER_ENTRIES.values() for number, _ in folder.folders_of_jobs(entry)), default=0)


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


# ------------------------------------------------------------------------------------------ places in logs


_ENTRY = struct.Struct("<dQ")
#: The least time between two entries, s.
_PACE_S = 1.0
#: Lines are searched for in at most this many bytes at a log's end.
_LOOKED_AT_BYTES = 64 * 1024 * 1024
_PIECE_BYTES = 256 * 1024


def _times_of(log: Path) -> Path:
    return log.with_suffix(".times")


def note_arrival(log: Path, offset: int, unix_s: float) -> None:
    """Record that bytes from this offset on arrived now, unless the newest entry is less than `_PACE_S` old."""
    path = _times_of(log)
    with open(path, "ab+") as file:
        size = file.tell()
        if size >= _ENTRY.size:
            file.seek(size - size % _ENTRY.size - _ENTRY.size)
            newest, _ = _ENTRY.unpack(file.read(_ENTRY.size))
            if newest <= unix_s < newest + _PACE_S:
                return
        if size % _ENTRY.size:  # an interrupted write
            file.truncate(size - size % _ENTRY.size)
        file.write(_ENTRY.pack(unix_s, offset))


def offset_since(log: Path, unix_s: float) -> int:
    """Returns the offset of the first bytes that arrived at this instant or later; the log's size if none did."""
    try:
        content = _times_of(log).read_bytes()
    except FileNotFoundError:
        return 0
    whole = content[: len(content) - len(content) % _ENTRY.size]
    found = [offset for at, offset in _ENTRY.iter_unpack(whole) if at + _PACE_S > unix_s]
    return min(found, default=log.stat().st_size)


def offset_of_last_lines(log: Path, lines: int) -> int:
    """Returns the offset at which the last `lines` lines begin; an unfinished last line counts as one."""
    if lines <= 0:
        return log.stat().st_size
    with open(log, "rb") as file:
        end = file.seek(0, 2)
        at, breaks = end, 0
        while at > max(0, end - _LOOKED_AT_BYTES):
            begin = max(0, at - _PIECE_BYTES)
            file.seek(begin)
            piece = file.read(at - begin)
            # The line break at the end of the log begins no line.
            stop = len(piece) - (at == end and piece.endswith(b"\n"))
            while (found := piece.rfind(b"\n", 0, stop)) >= 0:
                breaks, stop = breaks + 1, found
                if breaks == lines:
                    return begin + found + 1
            at = begin
        return at
