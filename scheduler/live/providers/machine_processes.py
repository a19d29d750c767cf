"""Processes of a machine that is only a folder: found by the folder's name, and ended without survivors.

The agent, its supervisors and their ranks all carry the folder's path in their command line or environment. That finds
them again after the server itself was killed, and finds what has left its process group or lost its parent.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

#: Looking again, because what is being killed may still fork.
_PASSES = 20
_PAUSE_S = 0.05


def agent_process(folder: Path) -> psutil.Process | None:
    """The living agent of the machine, whoever started it."""
    for process in _of_folder(folder):
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()
            if "agent" in command and str(folder) in command:
                return process
    return None


def kill_machine(folder: Path) -> bool:
    """End everything that belongs to the machine. True: nothing is left."""
    own = os.getpid()
    for _ in range(_PASSES):
        found = {process.pid: process for process in _of_folder(folder)}
        for process in list(found.values()):
            with contextlib.suppress(psutil.Error):
                found.update((child.pid, child) for child in process.children(recursive=True))
        found.pop(own, None)
        if not found:
            return True
        for process in found.values():
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(_PAUSE_S)
    return False


def _of_folder(folder: Path) -> Iterator[psutil.Process]:
    """Living processes that mention the folder or something in it."""
    own = os.getpid()
    for process in psutil.process_iter():
        if process.pid != own and _mentions(process, str(folder)):
            yield process


def _mentions(process: psutil.Process, folder: str) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        words = [*process.cmdline(), *process.environ().values()]
    except psutil.Error:
        return False  # gone, or somebody else's
    return any(word == folder or f"{folder}/" in word for word in words)
