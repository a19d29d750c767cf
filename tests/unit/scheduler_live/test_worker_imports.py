"""What a process that answers one question of the server imports."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from scheduler.live.loop.prediction_tasks import forecast_targets, predict_from_catalog
from scheduler.live.loop.solver_process import solve_and_bound
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
