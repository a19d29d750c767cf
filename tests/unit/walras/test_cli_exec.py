"""Sessions with a job from a terminal: what it types arrives, and what the job writes is shown whole."""

import os
import pty
import subprocess
import sys

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
