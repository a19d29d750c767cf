"""What a process that answers one question of the server imports, and how it ends."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from scheduler.live.loop.prediction_tasks import forecast_targets, predict_from_catalog
from scheduler.live.loop.solver_process import solve_and_bound
from scheduler.live.loop.worker_process import kill_worker_process, new_worker_process, try_worker_process
from scheduler.live.services.notification_sending import is_known_service
from scheduler.live.services.policy_trial import run_trial


@pytest.mark.parametrize(
    "asked", [forecast_targets, is_known_service, predict_from_catalog, run_trial, solve_and_bound]
)
def test_a_worker_process_imports_nothing_of_the_server(asked: Callable[..., object]) -> None:
    """It imports the module of the function that it is given: with the server's, that would be most of its work."""
    heavy = "{'scheduler.live.loop.event_loop', 'sqlite_utils', 'networkx'}"
    code = f"import sys, {asked.__module__}\nprint({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_server_starts_without_a_modelling_language() -> None:
    """Programs are stated and solved in worker processes, which alone import what that takes."""
    heavy = "{'cvxpy', 'numba', 'torch', 'highspy', 'matplotlib'}"
    code = f"import sys, scheduler.live.main\nprint({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def _die_until(marks: tuple[str, int]) -> str:
    with open(marks[0], "a") as file:
        file.write("x")
    if Path(marks[0]).stat().st_size <= marks[1]:
        os.kill(os.getpid(), signal.SIGKILL)
    return "answer"


async def test_what_a_killed_process_was_asked_is_asked_once_more(tmp_path: Path) -> None:
    """It is the first that is killed where memory runs out; one that dies of the question is not asked for ever."""
    assert await try_worker_process(_die_until, (str(tmp_path / "one"), 1), 60.0, "a question") == "answer"
    assert await try_worker_process(_die_until, (str(tmp_path / "all"), 9), 60.0, "a question") is None
    assert (tmp_path / "all").read_text() == "xx"


@pytest.mark.parametrize("by_us", [True, False])
def test_work_that_was_cancelled_does_not_fail_the_thread_of_a_killed_process(
    monkeypatch: pytest.MonkeyPatch, by_us: bool
) -> None:
    """The process dies long before anything else is done, of our kill or of a Ctrl-C before it leaves those to us."""
    failed = list[threading.ExceptHookArgs]()
    monkeypatch.setattr(threading, "excepthook", failed.append)
    pool = new_worker_process()
    works = [pool.submit(time.sleep, 600) for _ in range(3)]  # of which the pool gives one or two to its process
    assert works[-1].cancel()
    (process,), thread = pool._processes.values(), pool._executor_manager_thread  # type: ignore[attr-defined]

    def kill() -> None:
        os.kill(process.pid, signal.SIGKILL)
        thread.join(60)

    monkeypatch.setattr(process, "kill", kill)
    kill_worker_process(pool) if by_us else kill()
    assert not thread.is_alive()
    assert failed == []
    assert all(isinstance(each.exception(), BrokenProcessPool) for each in works[:1])
