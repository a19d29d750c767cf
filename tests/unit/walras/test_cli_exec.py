"""Sessions with a job from a terminal: what it types arrives, and what the job writes is shown whole."""

import asyncio
import os
import pty
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from walras.cli.remote_commands import _run_session
from walras.connection.remote_session import SessionAsked, SessionNote
from walras.errors import UserError

WRITTEN = 1_000_000
CHILD = f"""
import asyncio, sys
from walras.cli.remote_commands import _own_input, _write

async def session():
    read = await _own_input()
    typed = [await read(100), await read(100)]
    _write(sys.stdout, b"x" * {WRITTEN})
    print("typed:", typed, "end:", await read(100))

asyncio.run(session())
"""


def test_a_terminal_shows_all_that_a_job_writes() -> None:
    """Input and output of a terminal are one open file: what does not wait for the one cuts off the other."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        shown = b""
        for typed in (b"one\n", b"two\n"):
            os.write(ours, typed)
            while typed.strip() not in shown:  # echoed
                shown += os.read(ours, 65_536)
        os.write(ours, b"\x04")
        while b"end:" not in shown and b"Traceback" not in shown:
            shown += os.read(ours, 65_536)
    os.close(ours)
    assert shown.count(b"x") == WRITTEN, shown[-500:].decode()
    assert b"typed: [b'one\\n', b'two\\n'] end: b''" in shown


class _Session:
    """The server's end of a session: what it sends, until the caller closes."""

    def __init__(self, *notes: SessionNote) -> None:
        self._notes = [
            SimpleNamespace(type=SimpleNamespace(name="TEXT"), data=note.model_dump_json()) for note in notes
        ]

    async def open_session(self, job_id: int, asked: SessionAsked) -> "_Session":
        return self

    async def __aiter__(self) -> Any:
        for note in self._notes:
            yield note

    async def send_str(self, text: str) -> None:
        pass

    async def send_bytes(self, content: bytes) -> None:
        pass

    async def close(self) -> None:
        pass


def test_a_session_that_is_ended_by_the_server_is_no_mistake_of_its_user(capsys: pytest.CaptureFixture[str]) -> None:
    """It began, and its command did not end: 255, with the server's words. One that is refused never began."""
    ready, refused = SessionNote(type="ready"), SessionNote(type="refused", detail="you may not enter job 1 any more")
    asked = SessionAsked(kind="exec", argv=["true"])
    assert asyncio.run(_run_session(_Session(ready, refused), 1, asked)) == 255  # type: ignore[arg-type]
    assert "you may not enter job 1 any more" in capsys.readouterr().err
    with pytest.raises(UserError, match="you may not enter"):
        asyncio.run(_run_session(_Session(refused), 1, asked))  # type: ignore[arg-type]
