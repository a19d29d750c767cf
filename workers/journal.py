"""The record of an attempt on this machine: JSON lines, each durable before anything follows from it.

Written by the supervisor alone, read by any agent that comes by. A line torn by a crash is the last one and is ignored.
"""

import json
import os
from pathlib import Path
from typing import Any

JournalEvent = dict[str, Any]


class Journal:
    """Appends events, synced one by one: an attempt has few."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def append(self, event: JournalEvent) -> None:
        os.write(self._file, json.dumps(event).encode() + b"\n")
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


def read_journal(path: Path, offset: int = 0) -> tuple[list[JournalEvent], int]:
    """The events from `offset` on, and the offset after them."""
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            content = file.read()
    except FileNotFoundError:
        return [], offset
    whole = content[: content.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole.splitlines()], offset + len(whole)


def write_durably(path: Path, value: Any) -> None:
    """Replace a small JSON file in one step, readable by its owner only."""
    partial = path.with_name(path.name + ".partial")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, json.dumps(value).encode())
        os.fsync(handle)
    finally:
        os.close(handle)
    os.rename(partial, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
