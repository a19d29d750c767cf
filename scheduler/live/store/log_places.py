"""Where in a rank's log to begin: at its last lines, or at what arrived since an instant.

Beside RANK.log is RANK.times, which says from time to time when bytes arrived and where they began: pairs of an instant
(Unix seconds, as a float) and an offset, 16 bytes each, in order. A log without it was written by an older release, and
is shown whole. All calls block on the disk.
"""

import struct
from pathlib import Path

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
