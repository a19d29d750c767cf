"""The output of a rank: from its pipe into a file of bounded size that says where something was left out."""

import os
from pathlib import Path

TAIL_BYTES = 64 * 1024
READ_BYTES = 64 * 1024


class RankOutput:
    """Copies one pipe into one file. Keeps the beginning and, where the middle had to go, the last 64 KiB."""

    def __init__(self, pipe: int, path: Path, cap_bytes: int) -> None:
        os.set_blocking(pipe, False)
        self.pipe = pipe
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._room = cap_bytes
        self._tail = b""
        self._left_out = 0

    def copy(self) -> bool:
        """Take in one read's worth; false at the end of the pipe."""
        try:
            chunk = os.read(self.pipe, READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.write(chunk)
        return bool(chunk)

    def drain(self) -> None:
        """Take in what is in the pipe now. A pipe holds 1 MiB at most, and nobody who writes is left."""
        for _ in range(64):
            try:
                chunk = os.read(self.pipe, READ_BYTES)
            except OSError:
                return
            if not chunk:
                return
            self.write(chunk)

    def write(self, chunk: bytes) -> None:
        head, rest = chunk[: self._room], chunk[self._room :]
        if head:
            self._room -= self._append(head)
        if rest:
            kept = self._tail + rest
            self._tail = kept[-TAIL_BYTES:]
            self._left_out += len(kept) - len(self._tail)

    def close(self) -> None:
        if self._left_out:
            self._append(f"\n[walras: {self._left_out} bytes of output left out here]\n".encode())
        self._append(self._tail)
        os.close(self._file)
        os.close(self.pipe)

    def _append(self, content: bytes) -> int:
        """A full disk loses output, never the attempt."""
        try:
            return os.write(self._file, content)
        except OSError:
            self._left_out += len(content)
            return 0
