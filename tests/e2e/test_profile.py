"""Profiling real scripts in real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.stall_runs import PLANTS, profiled, seconds
from walras.profiling.profile_runs import ProfilingExtent

pytestmark = pytest.mark.slow

WALRAS = str(Path(sys.executable).parent / "walras")
SCRIPT = """
import os, sys, torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=float(os.environ.get("LR", "0.01")))
for step in range(int(os.environ["UPDATES"])):
    if step == int(os.environ.get("CRASH", "-1")):
        raise RuntimeError("no more data")
    optimizer.zero_grad()
    model(torch.full((4, 2), 10.0)).square().sum().backward()
    optimizer.step()
"""


def profile(tmp_path: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "train.py").write_text(SCRIPT)
    job = {"run": [sys.executable, "train.py"], "workdir": str(tmp_path), "envs": env}
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    command = [WALRAS, "profile", "run", str(tmp_path / "job.yaml"), "--steps", "10", *options]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | {"PATH": path})


def test_planted_stalls_are_found_where_they_were_planted() -> None:
    """A slow loader, a slow disk, a slow all-reduce and a slow network each show up as their own stall."""
    # So long that what other work on the machine adds is a small part.
    planted = {"LOADER": 0.24, "DISK": 0.48, "REDUCE": 0.36, "NETWORK": 0.3}
    misses: list[str] = []
    # Stalls are differences between runs one after the other: what is wrong with them is so each time.
    for _ in range(3):
        found = seconds(profiled(planted, ProfilingExtent(3, 10, 600.0), sys.executable))
        misses = [
            f"{plant} planted {planted[plant]} s: {found}"
            for plant, stall in PLANTS.items()
            if not 0.9 * planted[plant] <= found[stall] <= 1.5 * planted[plant]
        ]
        if not misses:
            break
    assert misses == []


def test_a_script_is_profiled_from_the_command_line(tmp_path: Path) -> None:
    """Table, JSON and picture come from one command, with the model's facts."""
    told = profile(
        tmp_path, "--json", str(tmp_path / "out.json"), "--picture", str(tmp_path / "out.svg"), UPDATES="1000"
    )
    assert told.returncode == 0, told.stderr
    assert "compute" in told.stdout
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["model"]["parameters"] == 3
    assert data["model"]["gradient_bytes"] == 12
    # Forward and the gradient of the weights: 2 x 4 samples x 2 weights each; the input needs no gradient.
    assert data["model"]["flops_per_step_and_rank"] == 32
    assert data["steps_per_s"] > 0
    assert "compute" in (tmp_path / "out.svg").read_text()


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        ({"UPDATES": "0"}, (), "without a step of a torch optimizer"),
        ({"UPDATES": "1000", "CRASH": "2"}, (), "failed in update 3 (exit code 1)"),
        ({"UPDATES": "1000", "LR": "1e30"}, (), "the loss became NaN"),
        ({"UPDATES": "7"}, (), "ended after 7 of 15 updates"),
    ],
    ids=["never steps", "crashes in step 3", "NaN", "too few"],
)
def test_a_script_that_cannot_be_profiled_is_named(
    tmp_path: Path, env: dict[str, str], options: tuple[str, ...], message: str
) -> None:
    """Each way to fail has its own message and ends with exit code 2, without a traceback of ours."""
    told = profile(tmp_path, *options, **env)
    assert told.returncode == 2, told.stderr
    assert message in told.stderr
    assert "Traceback" not in told.stderr or "no more data" in told.stderr
