"""Runs one question in a process of its own, so that the event loop never waits for it.

The process ends with its answer, with the server, or when it takes too long. This module imports only the standard
library, because every such process imports it when it starts.
"""

import asyncio
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any, TypeVar

log = logging.getLogger(__name__)

Question = TypeVar("Question")
Answer = TypeVar("Answer")


def _exit_with_parent() -> None:
    """In the new process: end with the server, even if that was killed, and leave Ctrl-C to the server."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def new_worker_process() -> ProcessPoolExecutor:
    """Returns a pool of one process, which ends with this one."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=_exit_with_parent)


def kill_worker_process(pool: ProcessPoolExecutor) -> None:
    """Kill the process at once."""
    for process in list((pool._processes or {}).values()):
        process.kill()
    pool.shutdown(wait=False, cancel_futures=True)


async def ask_worker_process(find: Callable[[Question], Answer], question: Question, timeout_s: float) -> Answer:
    """Returns what a new process answers. Raises TimeoutError, BrokenProcessPool, and what `find` raises there."""
    process = new_worker_process()
    try:
        work = asyncio.get_running_loop().run_in_executor(process, find, question)
        # Not `wait_for`: it loses a cancellation that comes at the same moment as the answer.
        async with asyncio.timeout(timeout_s):
            return await work
    finally:
        kill_worker_process(process)


async def try_worker_process(
    find: Callable[[Question], Answer], question: Question, timeout_s: float, what: str
) -> Answer | None:
    """As `ask_worker_process`, where nothing depends on the answer: returns None and logs why if there is none."""
    try:
        return await ask_worker_process(find, question, timeout_s)
    except TimeoutError:
        log.warning("%s: no answer within %g s", what, timeout_s)
    except BrokenProcessPool:
        log.warning("%s: the process has died", what)
    except Exception:  # the outermost handler of that process
        log.warning("%s: no answer", what, exc_info=True)
    return None


class SingleFlightTask:
    """Work beside the loop, one task at a time."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @property
    def is_under_way(self) -> bool:
        return self._task is not None and not self._task.done()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start the work; nothing else may be under way."""
        assert not self.is_under_way, "one at a time"
        self._task = asyncio.ensure_future(work)

    async def close(self) -> None:
        """Cancel the work under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
