"""Runs one question in a process of its own, so that the event loop never waits for it.

The process ends with its answer, with the server, or when it takes too long. What is asked may run code of others (a
policy of another package): the process may take half of the machine's memory, is the first to end where memory runs
out, prints nothing, and whatever the code raises comes back as an ordinary error. This module imports only the standard
library, because every such process imports it when it starts.
"""

import asyncio
import logging
import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from typing import Any, TypeVar

log = logging.getLogger(__name__)

#: How processes begin: with nothing of this one.
START_METHOD = "spawn"

Question = TypeVar("Question")
Answer = TypeVar("Answer")


def begin_worker() -> None:
    """In a new process: end with the server, even if that was killed, leave Ctrl-C to it, and take what it may."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class _WorkerPool(ProcessPoolExecutor):
    """A pool whose own thread, when the process dies, passes over work that was cancelled instead of failing on it."""

    def _start_executor_manager_thread(self) -> None:
        super()._start_executor_manager_thread()
        thread: Any = self._executor_manager_thread
        thread.terminate_broken = partial(_end_broken, thread)


def _end_broken(thread: Any, cause: Any) -> None:
    for number, work in list(thread.pending_work_items.items()):
        if not work.future.running() and not work.future.set_running_or_notify_cancel():
            del thread.pending_work_items[number]
    type(thread).terminate_broken(thread, cause)


def new_worker_process() -> ProcessPoolExecutor:
    """Returns a pool of one process, which ends with this one."""
    context = multiprocessing.get_context(START_METHOD)
    return _WorkerPool(1, mp_context=context, initializer=begin_worker)


def kill_worker_process(pool: Executor | None) -> None:
    """Kill the process at once, if there is one; of another executor, drop what has not begun."""
    if isinstance(pool, ProcessPoolExecutor):
        for process in list((pool._processes or {}).values()):
            process.kill()
    if pool is not None:
        pool.shutdown(wait=False, cancel_futures=True)


def signal_worker_process(pool: Executor | None, number: int) -> None:
    """Send the process, if there is one, a signal, which it must await."""
    for process in list((pool._processes or {}).values()) if isinstance(pool, ProcessPoolExecutor) else ():
        if process.pid is not None and process.is_alive():
            os.kill(process.pid, number)


def as_error(find: Callable[[Question], Answer], question: Question) -> Answer:
    """In the process: returns the answer. Raises RuntimeError for what would end who awaits it, such as SystemExit."""
    try:
        return find(question)
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


async def ask_worker_process(find: Callable[[Question], Answer], question: Question, timeout_s: float) -> Answer:
    """Returns what a new process answers. Raises TimeoutError, BrokenProcessPool, and what `find` raises there."""
    process = new_worker_process()
    try:
        work = asyncio.get_running_loop().run_in_executor(process, as_error, find, question)
        # Not `wait_for`: it loses a cancellation that comes at the same moment as the answer.
        async with asyncio.timeout(timeout_s):
            return await work
    finally:
        kill_worker_process(process)


async def try_worker_process(
    find: Callable[[Question], Answer], question: Question, timeout_s: float, what: str
) -> Answer | None:
    """As `ask_worker_process`, where nothing depends on the answer: returns None and logs why if there is none.

    A process that dies is followed by one more: it is the first that is killed where memory runs out.
    """
    for _ in range(2):
        try:
            return await ask_worker_process(find, question, timeout_s)
        except TimeoutError:
            log.warning("%s: no answer within %g s", what, timeout_s)
        except BrokenProcessPool:
            log.warning("%s: the process has died", what)
            continue
        except Exception:  # the outermost handler of that process
            log.warning("%s: no answer", what, exc_info=True)
        break
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
