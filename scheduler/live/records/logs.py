"""What ranks wrote, as bytes in files: DIR/logs/<job>/<attempt>/<rank>.log, kept for every attempt.

Bytes arrive with their offset; what is there already is skipped, a gap is not taken, so sending again does no harm. The
names come from numbers alone. All calls block on the disk: the server makes them in threads.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Taken:
    next_offset: int
    full: bool


class LogStore:
    """Append-only bytes of each rank."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes

    def append(self, job_id: int, attempt: int, rank: int, offset: int, data: bytes) -> Taken:
        """Take bytes that start at `offset`; answers where to go on."""
        path = self._path(job_id, attempt, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as file:
            size = file.tell()
            if offset <= size < offset + len(data):
                room = max(0, self._limit_bytes - size)
                file.write(data[size - offset :][:room])
                size = file.tell()
        return Taken(size, size >= self._limit_bytes)

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
