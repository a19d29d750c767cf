"""Standard output into a pipe whose reader has enough (`| head`): the command ends there, quietly, as one that is done.

Libraries that write see nothing of it: left to themselves, some end with 1, some print a traceback, some at interpreter
exit alone. SIGPIPE is left as Python has it: to a daemon a broken pipe is a socket whose other end went away.
"""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any


class _Output(io.FileIO):
    """Raises SystemExit(0) where a write fails because nobody reads any more."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            # What is still buffered can go nowhere: not now, and not at interpreter exit.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            raise SystemExit(0) from None


@contextlib.contextmanager
def ends_with_its_reader() -> Iterator[None]:
    """Inside, a write to standard output that nobody reads ends the command; in the end all that was written is out."""
    given = sys.stdout
    if not isinstance(given, io.TextIOWrapper):  # closed, or not the process's own
        yield
        return
    given.flush()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Output(given.fileno(), "w", closefd=False)),
        encoding=given.encoding,
        errors=given.errors,
        line_buffering=given.line_buffering or given.write_through,
    )
    try:
        yield
    finally:
        # The command is over: the code that it ends with stays what it is.
        with contextlib.suppress(SystemExit):
            sys.stdout.flush()
