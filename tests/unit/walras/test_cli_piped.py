"""Commands whose output goes into a pipe that nobody reads to its end."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from walras.cli.main import quiet_broken_pipe

WALRAS = Path(sys.executable).parent / "walras"


@contextlib.contextmanager
def unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Standard output is a pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as given:
        monkeypatch.setattr(sys, "stdout", given)
        yield


@pytest.mark.parametrize(
    "write",
    [
        lambda: sys.stdout.write("a line\n" * 10_000),
        lambda: sys.stdout.buffer.write(b"a line\n" * 10_000),
        lambda: sys.stdout.writelines(["a line\n"] * 10_000),
        lambda: print("a line", flush=True),
    ],
    ids=["text", "bytes", "lines", "print"],
)
def test_a_write_that_nobody_reads_ends_the_command_as_done(
    write: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it was written."""
    with unread(monkeypatch), pytest.raises(SystemExit) as ended, quiet_broken_pipe():
        write()
    assert ended.value.code == 0


def test_a_command_that_failed_keeps_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though what it had written before could not be delivered."""

    def fails() -> None:
        with quiet_broken_pipe():
            sys.stdout.write("little")
            sys.exit(2)

    with unread(monkeypatch), pytest.raises(SystemExit) as ended:
        fails()
    assert ended.value.code == 2


def test_what_was_written_is_out_in_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In order, what was there before included."""
    path = tmp_path / "out"
    with path.open("w") as given:
        monkeypatch.setattr(sys, "stdout", given)
        sys.stdout.write("first ")
        with quiet_broken_pipe():
            sys.stdout.write("second ")
            sys.stdout.flush()
            sys.stdout.buffer.write(b"third")
        assert path.read_text() == "first second third"


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], ["submit", "--help"], ["--version"], ["policy", "list"]], ids=" ".join)
def test_commands_end_quietly_where_nobody_reads(words: list[str]) -> None:
    """Help, tables and lines alike: code 0, and nothing on standard error."""
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run([WALRAS, *words], stdout=writer, stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, b"")
