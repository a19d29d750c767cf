"""A log is shown from its last lines, or from what came within a time, without reading the rest."""

from pathlib import Path

import pytest

from scheduler.live.store import data_folder
from scheduler.live.store.data_folder import LogStore, offset_of_last_lines, offset_since


@pytest.mark.parametrize("piece", [3, 256 * 1024])
@pytest.mark.parametrize(
    ("content", "lines", "rest"),
    [
        (b"one\ntwo\nthree\n", 1, b"three\n"),
        (b"one\ntwo\nthree\n", 2, b"two\nthree\n"),
        (b"one\ntwo\nthr", 2, b"two\nthr"),
        (b"one\ntwo\n", 9, b"one\ntwo\n"),
        (b"\n\n\n", 2, b"\n\n"),
        (b"one\n", 0, b""),
        (b"", 3, b""),
    ],
)
def test_the_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, lines: int, rest: bytes, piece: int
) -> None:
    monkeypatch.setattr(data_folder, "_PIECE_BYTES", piece)
    (tmp_path / "0.log").write_bytes(content)
    assert content[offset_of_last_lines(tmp_path / "0.log", lines) :] == rest


def test_what_came_within_a_time_and_the_later_of_both(tmp_path: Path) -> None:
    """What came at the instant itself is shown; a cut entry and a log of an older release do no harm."""
    now = [1000.0]
    store = LogStore(tmp_path, 10**6, lambda: now[0])
    offset = 0
    for at, text in ((1000.0, b"first\n"), (1000.2, b"same second\n"), (1060.0, b"a\nb\nc\n"), (1090.0, b"last\n")):
        now[0] = at
        offset = store.append(1, 1, 0, offset, text).next_offset
    now[0] = 1100.0

    def shown(lines: int | None, since_s: float | None) -> bytes:
        return store.read(1, 1, 0, store.start(1, 1, 0, "", lines=lines, since_s=since_s), 10**6)

    assert shown(None, 45.0) == b"a\nb\nc\nlast\n"
    assert shown(2, 45.0) == b"c\nlast\n"
    assert shown(3, 11.0) == b"last\n"
    assert shown(None, 5.0) == b""
    assert shown(None, 500.0).startswith(b"first\nsame second\n")
    log = tmp_path / "1" / "1" / "0.log"
    with open(log.with_suffix(".times"), "ab") as times:
        times.write(b"cut")
    assert shown(None, 45.0) == b"a\nb\nc\nlast\n"
    store.append(1, 1, 0, offset, b"more\n")
    assert shown(None, 5.0) == b"more\n"
    log.with_suffix(".times").unlink()
    assert offset_since(log, 1e9) == 0
    assert store.start(9, 1, 0, "", lines=3, since_s=None) == 0
