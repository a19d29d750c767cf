"""One gang over two unlike pools that shares each batch by speed: a real server, real agents, DDP over gloo."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.attempts import ROOT
from tests.support.real_server import A, RealServer, wait_for

pytestmark = pytest.mark.slow

JOB = ROOT / "tests/support/mixed_job.py"
#: Room for the gang in either pool, were nobody else there: three machines with one accelerator, and one with two.
PAIR = A | {"shape": "ax2", "accelerators": 2, "cpus": 4, "memory": "2GB"}
B = A | {"shape": "bx1", "accelerator": "b"}
#: Steps per second on the two types: slow enough to stop the job in the middle.
PACES = {"a": 20.0, "b": 10.0}
#: Of each batch of 12, by pace; every 21st batch has half of that.
BY_PACE = [(8, 4), (4, 2)]
#: What a sample costs on the second type, which nobody was told: five times as much as its pace says.
COST_S = 0.083
STEPS = 120
HADAR = {"policy": {"name": "hadar"}, "rules": {"round_s": 2, "resolve_min_s": 1, "backoff_s": 1, "profiling_s": 1}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealServer]:
    server = RealServer(tmp_path, [PAIR, B], HADAR).start()
    yield server
    server.close()


def _occupy(server: RealServer, accelerator: str) -> str:
    """The machine on which somebody sits who cannot be stopped."""
    demand = {"accelerators": f"{accelerator}:1"}
    job = server.submit(name=f"sits-on-{accelerator}", run="sleep 600", preemptible=False, resources=demand)
    server.until_running(job)
    return _machines(server.attempt(job))[0]


def _machines(attempt: dict[str, Any]) -> list[str]:
    return sorted(place.split(":")[0] for place in attempt["placement"])


class Trained:
    """What the ranks wrote down: samples of every step over all of them; by attempt and rank, how many in each step."""

    def __init__(self, folder: Path) -> None:
        self.samples: dict[int, list[int]] = defaultdict(list)
        self.parts: dict[tuple[int, int], dict[int, int]] = {}
        for path in folder.glob("samples-*"):
            attempt, rank = map(int, path.name.split("-")[1:])
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            self.parts[attempt, rank] = {step: len(own) for step, _, own in lines}
            for step, _, own in lines:
                self.samples[step] = sorted(self.samples[step] + own)
        self._weights = folder / "weights"

    def shares(self, attempt: int) -> list[tuple[int, int]]:
        """Samples of both ranks in every step that this attempt took, in their order."""
        first, second = self.parts[attempt, 0], self.parts[attempt, 1]
        assert first.keys() == second.keys()
        return [(first[step], second[step]) for step in sorted(first)]

    def has_learnt_what(self, other: "Trained") -> bool:
        """But for rounding: ranks add up what one process adds up in another order."""
        import torch

        ours, theirs = (torch.load(each._weights, weights_only=True) for each in (self, other))
        return all(torch.allclose(ours[name], theirs[name], rtol=1e-3, atol=1e-5) for name in theirs)


def _alone(folder: Path) -> Trained:
    folder.mkdir()
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "WALRAS_STEPS": str(STEPS)}
    subprocess.run([sys.executable, str(JOB), str(folder)], env=env, timeout=300, check=True)
    return Trained(folder)


def test_one_gang_trains_over_two_unlike_pools_and_resumes_there(server: RealServer, tmp_path: Path) -> None:
    """Ranks of one attempt on both types, whose parts of every batch begin by pace and then follow what a sample really
    costs. Stopped in the middle it goes on with the next step, and what it has learnt in the end is what one process
    learns."""
    out, speeds = tmp_path / "out", tmp_path / "speeds.json"
    out.mkdir()
    speeds.write_text(json.dumps({"mixed_mlp": PACES}))
    server.start_agent("a1", PAIR, speeds=str(speeds))
    server.start_agent("b1", B, speeds=str(speeds))
    server.start_agent("b2", B, speeds=str(speeds))
    _occupy(server, "a")
    (free,) = {"b1", "b2"} - {_occupy(server, "b")}
    job = server.submit(
        name="mixed", profile="mixed_mlp", steps=STEPS, throughput=PACES, mixed=True, grace_period="20s",
        run=[sys.executable, str(JOB), str(out), "0", str(COST_S)], resources={"accelerators": "any:2"},
    )  # fmt: skip
    server.until_step(job, 30, 60.0)
    assert _machines(server.attempt(job)) == ["a1", free]
    values = server.job(job)["last_values"]
    assert values["share_0"] >= 10.0
    assert values["share_0"] + values["share_1"] == 12.0
    assert server.job(job)["first_values"] | {"share_0": 8.0, "share_1": 4.0} == server.job(job)["first_values"]

    assert server.call("POST", f"/nodes/{free}/drain")[0] == 200
    wait_for(lambda: server.state(job) == "PENDING", 60.0, "the job stops", lambda: server.job(job))
    ((_, stopped_at, _),) = server.recorded(job)
    assert 30 <= stopped_at < STEPS
    assert server.call("POST", f"/nodes/{free}/resume")[0] == 200
    server.until_state(job, "SUCCEEDED", 120.0)

    first, second = server.job(job)["attempt_list"]
    assert _machines(first) == _machines(second) == ["a1", free]
    found, alone = Trained(out), _alone(tmp_path / "alone")
    for attempt, steps in ((1, range(stopped_at)), (2, range(stopped_at, STEPS))):
        assert found.parts[attempt, 0].keys() == set(steps)
        shares = found.shares(attempt)
        assert set(shares[:10]) <= set(BY_PACE)
        assert not set(shares[10:]) & set(BY_PACE)
    assert found.samples == alone.samples
    assert found.has_learnt_what(alone)
