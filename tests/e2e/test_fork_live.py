"""Real jobs over unlike machines: forks, gangs that share each batch by speed, and plans of a menu."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.support.attempts import ROOT
from tests.support.real_server import A, RealServer, Serve, wait_for

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "configs/jobs/training/fork_mlp.py"
B = A | {"shape": "bx1", "accelerator": "b"}
#: Steps per second on the two types. Slow enough for the pace to be kept beside other work on the machine.
PACES = {"a": 80.0, "b": 40.0}
STEPS = 1335  # 15 epochs of 89 batches
HADAR = {"policy": {"name": "hadar"}, "rules": {"round_s": 2, "resolve_min_s": 1, "backoff_s": 1, "profiling_s": 1}}


def _said(folder: Path) -> list[dict[str, Any]]:
    """What each part said in the end, in order of rank."""
    return [json.loads(path.read_text().splitlines()[-1]) for path in sorted(folder.glob("said-*"))]


def test_a_forked_job_ends_as_good_as_a_single_run_over_the_same_samples(serve: Serve, tmp_path: Path) -> None:
    """Both machines take steps, by their speed; the loss is within 2 % of one process that made all of them."""
    server = serve([A, B], HADAR)
    out, speeds = tmp_path / "out", tmp_path / "speeds.json"
    out.mkdir()
    speeds.write_text(json.dumps({"fork_mlp": PACES}))
    server.start_agent("n1", A, speeds=str(speeds))
    server.start_agent("n2", B, speeds=str(speeds))
    job = server.submit(
        name="forked", profile="fork_mlp", steps=STEPS, throughput=PACES, grace_period="20s",
        run=f"{sys.executable} {SCRIPT} --seed 0 > {out}/said-$RANK",
        resources={"accelerators": "any:1"}, fork={"max": 2},
    )  # fmt: skip
    server.until_state(job, "SUCCEEDED", 120.0)
    placement = server.attempt(job)["placement"]
    assert sorted(placement) == ["n1:0", "n2:0"]
    base = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    alone = json.loads(subprocess.check_output([sys.executable, SCRIPT, "--seed", "0"], env=base, timeout=300))
    first, second = _said(out)
    assert alone["steps"] == first["steps"] == second["steps"] == STEPS
    assert first["own_steps"] + second["own_steps"] == STEPS
    assert first["loss"] == second["loss"] == pytest.approx(alone["loss"], rel=0.02)
    assert first["unseen_loss"] == pytest.approx(alone["unseen_loss"], rel=0.02)
    fast, slow = max(first["own_steps"], second["own_steps"]), min(first["own_steps"], second["own_steps"])
    assert fast / slow == pytest.approx(PACES["a"] / PACES["b"], rel=0.2)
    # A run at the pace of the fast part takes at least this long; two thirds of it would be without any cost.
    assert first["took_s"] < STEPS / PACES["a"]


JOB = ROOT / "tests/support/mixed_job.py"
#: Room for the gang in either pool, were nobody else there: three machines with one accelerator, and one with two.
PAIR = A | {"shape": "ax2", "accelerators": 2, "cpus": 4, "memory": "2GB"}
#: Steps per second on the two types: slow enough to stop the job in the middle.
MIXED_PACES = {"a": 20.0, "b": 10.0}
#: Of each batch of 12, by pace; every 21st batch has half of that.
BY_PACE = [(8, 4), (4, 2)]
#: What a sample costs on the second type, which nobody was told: five times as much as its pace says.
COST_S = 0.083
MIXED_STEPS = 120


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
        self.taken_at: dict[tuple[int, int], float] = {}
        for path in folder.glob("samples-*"):
            attempt, rank = map(int, path.name.split("-")[1:])
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            self.parts[attempt, rank] = {step: len(own) for step, _, own in lines}
            for step, at, own in lines:
                self.samples[step] = sorted(self.samples[step] + own)
                if rank == 0:
                    self.taken_at[attempt, step] = at
        self._weights = folder / "weights"

    def shares(self, attempt: int) -> list[tuple[int, int]]:
        """Samples of both ranks in every step that this attempt took, in their order."""
        first, second = self.parts[attempt, 0], self.parts[attempt, 1]
        assert first.keys() == second.keys()
        return [(first[step], second[step]) for step in sorted(first)]

    def steps_per_s(self, first: int, last: int) -> float:
        """Steps per second of the first attempt between these steps."""
        return (last - first) / (self.taken_at[1, last] - self.taken_at[1, first])

    def has_learnt_what(self, other: "Trained") -> bool:
        """But for rounding: ranks add up what one process adds up in another order."""
        import torch

        ours, theirs = (torch.load(each._weights, weights_only=True) for each in (self, other))
        return all(torch.allclose(ours[name], theirs[name], rtol=1e-3, atol=1e-5) for name in theirs)


def _alone(folder: Path, **more: str) -> Trained:
    folder.mkdir()
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "WALRAS_STEPS": str(MIXED_STEPS)} | more
    subprocess.run([sys.executable, str(JOB), str(folder)], env=env, timeout=300, check=True)
    return Trained(folder)


def test_one_gang_trains_over_two_unlike_pools_and_resumes_there(serve: Serve, tmp_path: Path) -> None:
    """Ranks of one attempt on both types, whose parts of every batch begin by pace and then follow what a sample really
    costs. Stopped in the middle it goes on with the next step, and what it has learnt in the end is what one process
    learns."""
    server = serve([PAIR, B], HADAR)
    out, speeds = tmp_path / "out", tmp_path / "speeds.json"
    out.mkdir()
    speeds.write_text(json.dumps({"mixed_mlp": MIXED_PACES}))
    server.start_agent("a1", PAIR, speeds=str(speeds))
    server.start_agent("b1", B, speeds=str(speeds))
    server.start_agent("b2", B, speeds=str(speeds))
    _occupy(server, "a")
    (free,) = {"b1", "b2"} - {_occupy(server, "b")}
    job = server.submit(
        name="mixed", profile="mixed_mlp", steps=MIXED_STEPS, throughput=MIXED_PACES, mixed=True, grace_period="20s",
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
    assert 30 <= stopped_at < MIXED_STEPS
    assert server.call("POST", f"/nodes/{free}/resume")[0] == 200
    server.until_state(job, "SUCCEEDED", 120.0)

    first, second = server.job(job)["attempt_list"]
    assert _machines(first) == _machines(second) == ["a1", free]
    found, alone = Trained(out), _alone(tmp_path / "alone")
    for attempt, steps in ((1, range(stopped_at)), (2, range(stopped_at, MIXED_STEPS))):
        assert found.parts[attempt, 0].keys() == set(steps)
        shares = found.shares(attempt)
        assert set(shares[:10]) <= set(BY_PACE)
        assert not set(shares[10:]) & set(BY_PACE)
    assert found.samples == alone.samples
    assert found.has_learnt_what(alone)


WALRAS = {"policy": {"name": "walras"}, "rules": {"round_s": 2, "resolve_min_s": 1, "backoff_s": 1, "profiling_s": 1}}
#: Machines of one accelerator, of speeds 4 : 2 : 1.
UNLIKE = {"a1": A, "b1": B, "b2": B, "c1": A | {"shape": "cx1", "accelerator": "c"}}
#: Steps per second of three accelerators of each type, and of one of the fastest alone.
OF_THREE, OF_ONE = {"a": 18.0, "b": 9.0, "c": 4.5}, 6.0


def test_three_unlike_machines_train_one_job_at_the_sum_of_their_speeds(serve: Serve, tmp_path: Path) -> None:
    """No pool holds the gang. At least .85 of the sum against the fastest machine alone; it resumes on another mix with
    the next step, and its samples are those of one process."""
    batch = {"MIXED_BATCH": "42"}
    server = serve([A, B, UNLIKE["c1"]], WALRAS)
    mixed, single, speeds = tmp_path / "mixed", tmp_path / "single", tmp_path / "speeds.json"
    mixed.mkdir()
    single.mkdir()
    speeds.write_text(json.dumps({"of_three": OF_THREE, "of_one": {"a": OF_ONE}}))
    for name, pool in UNLIKE.items():
        server.start_agent(name, pool, speeds=str(speeds))
    run = [sys.executable, str(JOB)]
    fastest = server.submit(
        name="one", profile="of_one", steps=50, throughput={"a": OF_ONE}, run=[*run, str(single)], envs=batch,
        resources={"accelerators": "a:1"},
    )  # fmt: skip
    server.until_state(fastest, "SUCCEEDED", 120.0)
    other = {"b1", "b2"} - {_occupy(server, "b")}
    job = server.submit(
        name="three", profile="of_three", steps=MIXED_STEPS, throughput=OF_THREE, mixed="shares", grace_period="20s",
        run=[*run, str(mixed)], envs=batch, resources={"accelerators": "any:3"},
    )  # fmt: skip
    server.until_step(job, 70, 90.0)
    assert set(_machines(server.attempt(job))) == {"a1", "c1"} | other
    assert server.call("GET", f"/jobs/{job}/explain")[1]["why"].startswith("has 1 x a + 1 x b + 1 x c, planned at ")

    assert server.call("POST", "/jobs/2/cancel")[0] == 200
    assert server.call("POST", "/nodes/c1/drain")[0] == 200
    server.until_state(job, "SUCCEEDED", 120.0)
    ((_, stopped_at, _),) = [row for row in server.recorded(job) if row[0] == 1]
    assert _machines(server.job(job)["attempt_list"][1]) == ["a1", "b1", "b2"]
    found, alone = Trained(mixed), _alone(tmp_path / "alone", **batch)
    assert found.parts[2, 0].keys() == set(range(stopped_at, MIXED_STEPS))
    assert found.samples == alone.samples
    assert found.has_learnt_what(alone)
    sum_of_speeds = sum(OF_THREE.values()) / 3 / OF_ONE
    gained = found.steps_per_s(15, 65) / Trained(single).steps_per_s(5, 45)
    print(f"{gained:.3f} of the fastest machine; the sum is {sum_of_speeds:.3f}")
    assert gained >= 0.85 * sum_of_speeds


MENU = [
    {"accelerators": {"a": 2}, "steps_per_s": 9.0},
    {"accelerators": {"a": 2, "b": 1}, "steps_per_s": 14.0},
    {"accelerators": {"a": 1, "b": 1}, "steps_per_s": 8.0},
]


def test_ranks_over_two_types_are_told_the_plan_and_people_too(serve: Serve) -> None:
    """All of both machines: three ranks of one attempt that know what they are over; `explain` names the plan. Where
    the machine of one type is taken, the plan without it is what starts."""
    server = serve([PAIR, B], WALRAS)
    server.start_agent("a1", PAIR)
    server.start_agent("b1", B)
    wait_for(lambda: all(server.node_state(name) == "up" for name in ("a1", "b1")), 30.0, "both machines join")
    says = 'echo "rank $RANK of $WORLD_SIZE over $WALRAS_ACCELERATORS"; sleep 600'
    job = server.submit(name="model", run=says, steps=100_000, plans=MENU, profile="model")
    server.until_running(job)
    told = "over a:2,b:1"
    for rank in range(3):
        line = f"rank {rank} of 3 {told}"
        wait_for(lambda rank=rank, line=line: line in server.log(job, 1, rank), 60.0, line)
    status, answer = server.call("GET", f"/jobs/{job}/explain")
    assert status == 200
    assert answer["why"] == "has 2 x a + 1 x b: plans[1] of 3, which states 14 steps/s"
    assert server.call("POST", f"/jobs/{job}/cancel")[0] == 200
    server.until_state(job, "CANCELLED")

    sits = server.submit(
        name="sits-on-b", run="sleep 600", preemptible=False, resources={"accelerators": "b:1"}, priority=90
    )
    server.until_running(sits)
    job = server.submit(name="model", run=says, steps=100_000, plans=MENU, profile="model")
    server.until_running(job)
    wait_for(lambda: "rank 1 of 2 over a:2" in server.log(job, 1, 1), 60.0, "the plan of one type")
