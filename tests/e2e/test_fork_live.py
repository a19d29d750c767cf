"""A job that the server forks over two unlike machines: real PyTorch, real agents, one model in the end."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.attempts import ROOT
from tests.support.real_server import A, RealServer

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "configs/jobs/training/fork_mlp.py"
B = A | {"shape": "bx1", "accelerator": "b"}
#: Steps per second on the two types. Slow enough for the pace to be kept beside other work on the machine.
PACES = {"a": 80.0, "b": 40.0}
STEPS = 1335  # 15 epochs of 89 batches
HADAR = {"policy": {"name": "hadar"}, "rules": {"round_s": 2, "resolve_min_s": 1, "backoff_s": 1, "profiling_s": 1}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealServer]:
    server = RealServer(tmp_path, [A, B], HADAR).start()
    yield server
    server.close()


def _said(folder: Path) -> list[dict[str, Any]]:
    """What each part said in the end, in order of rank."""
    return [json.loads(path.read_text().splitlines()[-1]) for path in sorted(folder.glob("said-*"))]


def test_a_forked_job_ends_as_good_as_a_single_run_over_the_same_samples(server: RealServer, tmp_path: Path) -> None:
    """Both machines take steps, by their speed; the loss is within 2 % of one process that made all of them."""
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
