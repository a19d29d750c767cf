"""The server's folder: which file is what, the secrets made at the first start, and the logs of ranks.

Secrets are readable by their owner only. DIR/logs/<job>/<attempt>/<rank>.log holds what a rank wrote, as bytes, for
every attempt. Bytes arrive with their offset; what is there already is skipped and a gap is not taken, so sending again
does no harm. The names come from numbers alone. All calls block on the disk: the server makes them in threads.
"""

import contextlib
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from walras.contract import pinned_token, split_token


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
    def server_file(self) -> Path:
        """Where the server listens; there once it is ready."""
        return self.path / "server.json"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def content(self) -> Path:
        """Code, results and checkpoints that travel through the server."""
        return self.path / "content"

    @property
    def machines(self) -> Path:
        """Machines of the `local` provider."""
        return self.path / "machines"

    def create(self) -> None:
        for folder in (self.path, self.logs, self.checkpoints, self.content, self.machines):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def join_token(self) -> str:
        """The token that admits machines, made at the first start."""
        return split_token(_kept(self.join_token_file, f"wlr_join_{secrets.token_urlsafe(32)}"))[0]

    def pin(self) -> str:
        """The fingerprint that tokens carry; empty if the server's certificate is not pinned."""
        with contextlib.suppress(FileNotFoundError):
            return split_token(self.join_token_file.read_text(encoding="utf-8"))[1]
        return ""

    def pin_tokens(self, pin: str) -> None:
        """Write the certificate's fingerprint (empty: none) behind the tokens of the folder."""
        self.join_token()
        for path in (self.join_token_file, self.admin_token_file):
            if path.is_file():
                written = path.read_text(encoding="utf-8").strip()
                wanted = pinned_token(split_token(written)[0], pin)
                if wanted != written:
                    write_private(path, wanted + "\n")

    def server_secret(self) -> bytes:
        """The key of job tokens, made at the first start."""
        return bytes.fromhex(_kept(self.path / "secret.key", secrets.token_hex(32)))

    def last_port(self) -> int:
        """Where the former server listened: agents still call there. 0: unknown."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return int(json.loads(self.server_file.read_text(encoding="utf-8"))["port"])
        return 0

    def announce(self, url: str, port: int) -> None:
        """Say that the server is ready, and where; `sha256`: the certificate, where it is pinned."""
        pin = self.pin()
        told = {"url": url, "pid": os.getpid(), "port": port} | ({"sha256": pin} if pin else {})
        write_private(self.server_file, json.dumps(told))


def write_private(path: Path, text: str) -> None:
    """A whole file that only its owner reads, or the old one."""
    draft = path.with_name(f".{path.name}.draft")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def _kept(path: Path, fresh: str) -> str:
    """The secret in a file, which is made with a fresh one if it is not there."""
    if not path.is_file():
        write_private(path, fresh + "\n")
    return path.read_text(encoding="utf-8").strip()


@dataclass(frozen=True, slots=True)
class LogAppended:
    next_offset: int
    full: bool


class LogStore:
    """Append-only bytes of each rank."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes

    def append(self, job_id: int, attempt: int, rank: int, offset: int, data: bytes) -> LogAppended:
        """Take bytes that start at `offset`; answers where to go on."""
        path = self._path(job_id, attempt, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as file:
            size = file.tell()
            if offset <= size < offset + len(data):
                room = max(0, self._limit_bytes - size)
                file.write(data[size - offset :][:room])
                size = file.tell()
        return LogAppended(size, size >= self._limit_bytes)

    def read(self, job_id: int, attempt: int, rank: int, offset: int, limit_bytes: int) -> bytes:
        """Bytes from `offset` on; nothing where nothing was written (yet)."""
        try:
            with open(self._path(job_id, attempt, rank), "rb") as file:
                file.seek(offset)
                return file.read(limit_bytes)
        except FileNotFoundError:
            return b""

    def _path(self, job_id: int, attempt: int, rank: int) -> Path:
        return self._folder / str(int(job_id)) / str(int(attempt)) / f"{int(rank)}.log"
