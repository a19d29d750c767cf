"""A job that trains with `walras.training` repeats at most one step after it was preempted, wherever it was."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.real_server import FIFO, A, Serve, wait_for

pytestmark = pytest.mark.slow

STEPS, EPOCHS = 10, 2
#: The job is in the middle of an epoch, in its last step, evaluates (with the loop's knowledge or without), or does
#: something else before the next epoch.
PLACES = ["step", "last step", "evaluation", "batches of an evaluation", "between epochs"]

#: Stays for `STAY_S` at the place of its first argument, in its first attempt; notes each step once it is done.
TRAINER = f"""
import os, sys, time
from walras.training import Checkpoint, Loop

class State:
    done = 0
    def state_dict(self):
        return {{"done": self.done}}
    def load_state_dict(self, state):
        self.done = state["done"]

def stay_at(place):
    if place == sys.argv[1] and os.environ["WALRAS_ATTEMPT"] == "1" and epoch == 0:
        print("here", flush=True)
        until = time.monotonic() + float(os.environ["STAY_S"])
        while time.monotonic() < until:
            time.sleep(0.05)

state = State()
loop = Loop(Checkpoint(state=state))
for epoch in loop.epochs({EPOCHS}):
    for number in loop.steps(range({STEPS})):
        if number in (5, {STEPS - 1}):
            stay_at("last step" if number == {STEPS - 1} else "step")
        state.done += 1
        with open(sys.argv[2], "a") as file:
            print(epoch, number, file=file)
    stay_at("evaluation")
    for batch in loop.evaluating(range(2)):
        stay_at("batches of an evaluation")
    stay_at("between epochs")
assert state.done == {STEPS * EPOCHS}, state.done
"""


def test_a_preempted_job_repeats_at_most_one_step(serve: Serve, tmp_path: Path) -> None:
    """An urgent job takes all machines once each of the others is at its place; they go on where they were."""
    pool = A | {"shape": "ax5", "accelerators": len(PLACES), "cpus": 10, "memory": "5GB"}
    (script := tmp_path / "trainer.py").write_text(TRAINER)
    server = serve([pool], FIFO)
    server.start_agent(pool=pool)
    done = {place: tmp_path / f"steps of {place}" for place in PLACES}
    jobs = {
        place: server.submit(
            run=[sys.executable, str(script), place, str(path)], envs={"STAY_S": "8"}, grace_period="30s"
        )
        for place, path in done.items()
    }
    for place, job in jobs.items():
        wait_for(lambda job=job: "here" in server.log(job, 1), 60.0, f"job {job} is at {place}")  # type: ignore[misc]
    urgent = server.submit(run="true", priority=90, resources={"accelerators": f"a:{len(PLACES)}"})
    server.until_state(urgent, "SUCCEEDED", 90.0)
    for job in jobs.values():
        server.until_state(job, "SUCCEEDED", 90.0)
    for place, path in done.items():
        attempts = server.job(jobs[place])["attempt_list"]
        assert [attempt["state"] for attempt in attempts] == ["PREEMPTED", "SUCCEEDED"], place
        times = Counter(path.read_text().splitlines())
        assert len(times) == STEPS * EPOCHS, place
        assert times.total() <= STEPS * EPOCHS + 1, (place, times)
