"""Resuming is exact: a job stopped in mid-epoch, twice, ends with the same bits as one that never was."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.attempts import SupervisedAttempt, wait_for
from tests.support.quiet_run import RESUME_JOB, run_alone

#: Starting torch eight times takes a minute and a half on a busy machine.
pytestmark = pytest.mark.slow

#: Steps/s by number of ranks. Slow enough to stop the job in the middle of an epoch, which has 26 steps (13 with two
#: ranks), and long before the last one ends, though the one who stops it be held up for seconds.
PACE = {1: 6.0, 2: 3.0}


class Machine:
    """Runs attempts of the job one after the other, each from the checkpoint the one before committed."""

    def __init__(self, folder: Path, ranks: int, **env: str) -> None:
        self._folder = folder
        self._devices = list(range(ranks))
        self._env = env
        self._committed: dict[str, Any] | None = None
        self.attempts: list[SupervisedAttempt] = []

    def run(self, stop_at: int | None) -> dict[str, Any]:
        """One attempt; stopped once it has done this many steps in all."""
        number = len(self.attempts) + 1
        env = dict(self._env)
        if self._committed is not None:
            env["WALRAS_RESUME"] = json.dumps(self._committed)
        if stop_at is not None:
            env["WALRAS_PACE"] = str(PACE[len(self._devices)])
        attempt = SupervisedAttempt(
            self._folder / f"attempt-{number}",
            [sys.executable, str(RESUME_JOB), str(self._folder / "result")],
            attempt=number,
            devices=self._devices,
            env=env,
            grace_s=60.0,
        )
        self.attempts.append(attempt)
        attempt.start()
        if stop_at is not None:
            listener = ProgressListener(attempt)
            listener.wait_for_step(stop_at)
            attempt.tell({"type": "stop", "grace_s": 60.0, "reason": "preempted"})
        ended = attempt.wait_event("ended", 90.0)
        assert ended["exit_code"] == (0 if stop_at is None else 85), (ended, attempt.output())
        self._committed = attempt.events("committed")[-1]["manifest"]
        assert self._committed is not None
        return self._committed

    def run_into_an_epoch(self, stop_at: int, epoch_steps: int) -> None:
        """One attempt, or a few: until one was stopped neither at the beginning nor at the end of an epoch."""
        step = int(self.run(stop_at)["step"])
        while step % epoch_steps == 0:
            step = int(self.run(step + 1)["step"])

    @property
    def result(self) -> str:
        return (self._folder / "result").read_text()


class ProgressListener:
    """Asks the supervisor how far it is."""

    def __init__(self, attempt: SupervisedAttempt) -> None:
        self._attempt = attempt

    def wait_for_step(self, step: int) -> None:
        wait_for(lambda: self._steps() >= step, 60.0, f"step {step}; {self._attempt.output()}")

    def _steps(self) -> int:
        return max(
            [int(message["steps"]) for message in self._attempt.ask_status() if message["type"] == "progress"] or [0]
        )


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Results without any scheduler, by number of ranks."""
    return {ranks: run_alone(tmp_path_factory.mktemp("alone"), ranks) for ranks in (1, 2)}


@pytest.fixture
def machines() -> Iterator[list[Machine]]:
    made: list[Machine] = []
    yield made
    for machine in made:
        for attempt in machine.attempts:
            attempt.close()


def test_one_rank_stopped_twice_ends_with_the_same_bits(
    tmp_path: Path, machines: list[Machine], uninterrupted: dict[int, str]
) -> None:
    """Weights and loss of a job stopped twice in mid-epoch equal those of an uninterrupted run without a scheduler."""
    machine = Machine(tmp_path, 1)
    machines.append(machine)
    machine.run_into_an_epoch(5, epoch_steps=26)
    machine.run_into_an_epoch(31, epoch_steps=26)
    machine.run(stop_at=None)
    assert machine.result == uninterrupted[1]


def test_two_ranks_stopped_twice_end_with_the_same_bits(
    tmp_path: Path, machines: list[Machine], uninterrupted: dict[int, str]
) -> None:
    """The same for DistributedDataParallel on two ranks, which save at the same step."""
    machine = Machine(tmp_path, 2)
    machines.append(machine)
    machine.run_into_an_epoch(2, epoch_steps=13)
    machine.run_into_an_epoch(15, epoch_steps=13)
    machine.run(stop_at=None)
    assert machine.result == uninterrupted[2]


def test_without_the_random_states_the_result_differs(
    tmp_path: Path, machines: list[Machine], uninterrupted: dict[int, str]
) -> None:
    """The control: with their restoration disabled, the same procedure notices."""
    machine = Machine(tmp_path, 1, TEST_WITHOUT_RNG="1")
    machines.append(machine)
    machine.run_into_an_epoch(5, epoch_steps=26)
    machine.run(stop_at=None)
    assert machine.result.split()[2] == uninterrupted[1].split()[2]
    assert machine.result.split()[0] != uninterrupted[1].split()[0]
