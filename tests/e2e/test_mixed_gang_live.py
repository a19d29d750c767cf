"""One gang over two unlike pools: a real server, real agents, PyTorch's DistributedDataParallel over gloo."""

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

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

JOB = ROOT / "tests/support/mixed_job.py"
#: Room for the gang in either pool, were nobody else there: three machines with one accelerator, and one with two.
PAIR = A | {"shape": "ax2", "accelerators": 2, "cpus": 4, "memory": "2GB"}
B = A | {"shape": "bx1", "accelerator": "b"}
#: Steps per second on the two types: slow enough to stop the job in the middle.
PACES = {"a": 20.0, "b": 10.0}
#: Of each batch of 12, by pace; the one process runs faster, and has all of it.
ALONE = 1000.0
PARTS = {20.0: 8, 10.0: 4, ALONE: 12}
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
    """What the ranks wrote down: samples of every step over all of them; by attempt its ranks' paces, and its steps."""

    def __init__(self, folder: Path) -> None:
        self.samples: dict[int, list[int]] = defaultdict(list)
        self.paces: dict[int, set[float]] = defaultdict(set)
        self.steps: dict[int, set[int]] = defaultdict(set)
        for path in folder.glob("samples-*"):
            attempt = int(path.name.split("-")[1])
            for line in path.read_text().splitlines():
                step, pace, own = json.loads(line)
                assert len(own) == PARTS[pace]
                self.samples[step] = sorted(self.samples[step] + own)
                self.paces[attempt].add(pace)
                self.steps[attempt].add(step)
        self._weights = folder / "weights"

    def has_learnt_what(self, other: "Trained") -> bool:
        """But for rounding: ranks add up what one process adds up in another order."""
        import torch

        ours, theirs = (torch.load(each._weights, weights_only=True) for each in (self, other))
        return all(torch.allclose(ours[name], theirs[name], rtol=1e-3, atol=1e-5) for name in theirs)


def _alone(folder: Path) -> Trained:
    folder.mkdir()
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "WALRAS_PACE": str(ALONE)}
    subprocess.run([sys.executable, str(JOB), str(folder)], env=env, timeout=60, check=True)
    return Trained(folder)


def test_one_gang_trains_over_two_unlike_pools_and_resumes_there(server: RealServer, tmp_path: Path) -> None:
    """Ranks of one attempt on both types, each with its part of every batch. Stopped in the middle it goes on with the
    next step, and what it has learnt in the end is what one process learns."""
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
        run=[sys.executable, str(JOB), str(out)], resources={"accelerators": "any:2"},
    )  # fmt: skip
    server.until_step(job, 20, 60.0)
    assert _machines(server.attempt(job)) == ["a1", free]

    assert server.call("POST", f"/nodes/{free}/drain")[0] == 200
    wait_for(lambda: server.state(job) == "PENDING", 30.0, f"the job stops; {server.job(job)}")
    ((_, stopped_at, _),) = server.recorded(job)
    assert 20 <= stopped_at < STEPS
    assert server.call("POST", f"/nodes/{free}/resume")[0] == 200
    server.until_state(job, "SUCCEEDED", 120.0)

    first, second = server.job(job)["attempt_list"]
    assert _machines(first) == _machines(second) == ["a1", free]
    found, alone = Trained(out), _alone(tmp_path / "alone")
    assert found.paces == {1: set(PACES.values()), 2: set(PACES.values())}
    assert found.steps == {1: set(range(stopped_at)), 2: set(range(stopped_at, STEPS))}
    assert found.samples == alone.samples
    assert found.has_learnt_what(alone)
