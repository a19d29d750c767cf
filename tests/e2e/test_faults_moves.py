"""Jobs that are preempted and moved between unlike machines by the whole system end with the bits of a quiet run.

A story is a cluster of two machines of unlike types; the one that the jobs are on is drained, again and again.
"""

import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.quiet_run import RESUME_JOB, run_alone
from tests.support.real_server import FIFO, A, RealServer, wait_for

pytestmark = pytest.mark.slow

#: Room for a job of two ranks, or for one of one rank and its control.
FAST = {**A, "shape": "ax2", "accelerators": 2}
SLOW = {**A, "shape": "bx2", "accelerator": "b", "accelerators": 2}
#: Steps of an epoch by number of ranks; there are three epochs.
EPOCH_STEPS = {1: 26, 2: 13}
#: Steps/s, once the jobs have moved often enough: until then they take their time.
SPEEDS = {"a": 40.0, "b": 24.0}
#: A drain may hit the end of an epoch, where a resume shows less: then there is one move more.
MOVES_MAX = 5


@dataclass(frozen=True)
class Moved:
    """One job of the story, at its end."""

    job: dict[str, Any]
    ranks: int
    #: Digest of the weights, last loss, steps.
    result: list[str]

    @property
    def stopped_at(self) -> list[int]:
        """Steps at which it was preempted in the middle of an epoch."""
        steps = [int(attempt["checkpoint_step"]) for attempt in self.job["attempt_list"][:-1]]
        return [step for step in steps if step % EPOCH_STEPS[self.ranks]]


class Story:
    """Jobs on the one machine or the other."""

    def __init__(self, cluster: RealServer, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._jobs: dict[str, tuple[int, int]] = {}
        self._hurry = folder / "hurry"

    def submit(self, name: str, ranks: int, **envs: str) -> None:
        job_id = self._cluster.submit(
            name=name,
            profile="digits",
            run=[sys.executable, str(RESUME_JOB), str(self._folder / name)],
            resources={"accelerators": f"any:{ranks}"},
            envs=envs | {"TEST_SLOWLY_UNTIL": str(self._hurry)},
        )
        self._jobs[name] = (job_id, ranks)

    def move_all(self, source: str, target: str) -> None:
        """Once every job has taken steps: drain the machine, and take it up again when all run on the other."""
        wait_for(self._have_all_taken_steps, 120, "every job takes steps")
        assert self._cluster.call("POST", f"/nodes/{source}/drain")[0] == 200
        wait_for(lambda: self._run_all_on(target), 120, f"all jobs run on {target}")
        assert self._cluster.call("POST", f"/nodes/{source}/resume")[0] == 200

    def _have_all_taken_steps(self) -> bool:
        jobs = [self._cluster.job(job_id) for job_id, _ in self._jobs.values()]
        assert not any(job["ended_at"] for job in jobs), "a job was over before it had moved often enough"
        return all(
            job["state"] == "RUNNING" and job["steps"] >= max(self._checkpoints(job["id"]), default=0) + 3
            for job in jobs
        )

    def _run_all_on(self, node: str) -> bool:
        newest = [self._cluster.attempt(job_id) for job_id, _ in self._jobs.values()]
        return all(each["state"] == "RUNNING" and each["placement"][0].startswith(node) for each in newest)

    def finish(self) -> dict[str, Moved]:
        self._hurry.touch()
        for job_id, _ in self._jobs.values():
            self._cluster.until_state(job_id, "SUCCEEDED", 120)
        return {name: self._moved(name) for name in self._jobs}

    @property
    def have_all_moved_twice(self) -> bool:
        """In the middle of an epoch each time."""
        return all(
            sum(step % EPOCH_STEPS[ranks] > 0 for step in self._checkpoints(job_id)) >= 2
            for job_id, ranks in self._jobs.values()
        )

    def _checkpoints(self, job_id: int) -> list[int]:
        return [step for _, step, _ in self._cluster.recorded(job_id)]

    def _moved(self, name: str) -> Moved:
        job_id, ranks = self._jobs[name]
        return Moved(self._cluster.job(job_id), ranks, (self._folder / name).read_text().split())


def tell(folder: Path, jobs: list[tuple[str, int, dict[str, str]]]) -> dict[str, Moved]:
    """The jobs (name, ranks, variables) after at least two moves each in the middle of an epoch."""
    speeds = folder / "speeds.yaml"
    speeds.write_text(yaml.safe_dump({"digits": SPEEDS}))
    cluster = RealServer(folder, [FAST, SLOW], FIFO)
    try:
        cluster.start()
        nodes = ["fast", "slow"]
        cluster.start_agent("fast", FAST, speeds=str(speeds))
        story = Story(cluster, folder)
        for name, ranks, envs in jobs:
            story.submit(name, ranks, **envs)
        wait_for(lambda: not (cluster.node("fast") or {"free": 2})["free"], 60, "all have a place on the first machine")
        cluster.start_agent("slow", SLOW, speeds=str(speeds))
        for _ in range(MOVES_MAX):
            story.move_all(*nodes)
            nodes.reverse()
            if story.have_all_moved_twice:
                break
        return story.finish()
    finally:
        cluster.close()


def check_moved(moved: Moved, quiet: list[str]) -> None:
    """Preempted in mid-epoch at least twice, each time to the other machine; then the bits of the quiet run."""
    assert len(moved.stopped_at) >= 2
    places = [attempt["placement"][0].partition(":")[0] for attempt in moved.job["attempt_list"]]
    assert all(before != after for before, after in pairwise(places))
    assert {attempt["reason"] for attempt in moved.job["attempt_list"][:-1]} == {"HOLD:ADMIN"}
    assert moved.job["restarts"] == 0
    assert moved.result == quiet
    assert float.hex(moved.job["last_values"]["loss"]) == quiet[1]


def test_a_job_moved_at_least_twice_ends_with_the_same_bits(tmp_path: Path) -> None:
    """Weights, loss and steps equal those of the same script run by hand without a scheduler; the control, which went
    through the same with the restoration of its random states disabled, ends with other weights."""
    quiet = run_alone(tmp_path, 1).split()
    moved = tell(tmp_path, [("one", 1, {}), ("control", 1, {"TEST_WITHOUT_RNG": "1"})])
    check_moved(moved["one"], quiet)
    control = moved["control"]
    assert len(control.stopped_at) >= 2
    assert control.result[2] == quiet[2]
    assert control.result[0] != quiet[0]


def test_two_ranks_moved_at_least_twice_end_with_the_same_bits(tmp_path: Path) -> None:
    """The same for DistributedDataParallel on two ranks; the values shown are those of rank 0."""
    quiet = run_alone(tmp_path, 2).split()
    check_moved(tell(tmp_path, [("two", 2, {})])["two"], quiet)
