"""A real PyTorch job with a target, under a real server and agent: what it is told against what really happens."""

import re
import sys
from typing import Any

import pytest

from tests.support.real_server import FIFO, A, RealServer, Serve, wait_for
from tests.support.target_job import SCRIPT

pytestmark = pytest.mark.slow

#: What is said once the job is half-way is this near the truth.
TOLERANCE = 0.25


@pytest.fixture(scope="module")
def cluster(serve_all: Serve) -> RealServer:
    server = serve_all([A], FIFO)
    (server.folder / "train.py").write_text(SCRIPT)
    server.start_agent("n1")
    return server


def submit(server: RealServer, at_most: float, **more: Any) -> int:
    return server.submit(
        run=[sys.executable, "train.py"], target={"value": "loss", "at_most": at_most}, grace_period="5s", **more
    )


def explained(server: RealServer, job: int) -> dict[str, Any]:
    found: dict[str, Any] = server.call("GET", f"/jobs/{job}/explain")[1]
    return found


def test_what_is_foreseen_comes_true(cluster: RealServer) -> None:
    """Half-way, `walras explain` tells the step at which the loss will be at its target within 25 %; the server may die
    meanwhile, and knows afterwards what it knew."""
    job = submit(cluster, 0.2, steps=20_000, envs={"UNTIL": "0.2", "STAY_AT": "2000"})
    told = wait_for(lambda: explained(cluster, job)["target"]["steps_expected"], 60, "something is foreseen")
    assert told > 0
    cluster.kill()
    cluster.start()
    assert explained(cluster, job)["target"]["points"] >= 8
    foreseen: dict[float, float] = {}

    def look() -> bool:
        target = explained(cluster, job)["target"]
        if target["steps_expected"]:
            foreseen[target["foreseen_at_step"]] = target["steps_expected"]
        return max(foreseen, default=0.0) >= 1500

    wait_for(look, 120, "it is half-way", lambda: foreseen)
    (cluster.folder / "go on").touch()
    wait_for(lambda: (look(), cluster.state(job) == "SUCCEEDED")[1], 120, "the job gets there")
    # A machine that is slow to reach the server again after its restart lets the attempt end: another one goes on.
    found = re.search(r"there at step (\d+)", "".join(cluster.log(job, attempt) for attempt in range(1, 9)))
    assert found is not None
    really = int(found[1])
    late = {at: steps for at, steps in foreseen.items() if at >= 0.5 * really}
    assert late, (really, foreseen)
    assert all(abs(steps - really) <= TOLERANCE * really for steps in late.values()), (really, foreseen)
    reached = explained(cluster, job)["target"]["reached_step"]
    assert abs(reached - really) <= 1, "the loop counts a step once it is done"
    for command in ("explain", "show"):
        assert f"was there at step {reached:,.0f}" in " ".join(cluster.command(command, str(job)).stdout.split())


def test_a_job_that_stops_falling_is_told_of(cluster: RealServer) -> None:
    """Trained so hastily that its loss levels off: the condition, with the level, while it runs."""
    job = submit(cluster, 0.01, envs={"RATE": "0.05", "PAUSE_S": "0.002", "LABELS": "noisy"})

    def out_of_reach() -> Any:
        return [each for each in explained(cluster, job)["conditions"] if each["type"] == "target_out_of_reach"]

    condition = wait_for(out_of_reach, 120, "it is out of reach")[0]
    assert "its curve will level off at" in condition["detail"]
    cluster.call("POST", f"/jobs/{job}/cancel")
