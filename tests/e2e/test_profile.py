"""Profiling real scripts in real processes, here and on a machine of a cluster."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.stall_runs import PLANTS, profiled, seconds
from tests.support.real_server import CPU_POOL, FIFO, Serve
from walras.profiling.profiles import ProfilingExtent

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
    command = [WALRAS, "cloud", "profile", "run", str(tmp_path / "job.yaml"), "--steps", "10", *options]
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
    """JSON and picture come from one command, with the model's facts."""
    told = profile(tmp_path, "-o", "json", "--picture", str(tmp_path / "out.svg"), UPDATES="1000")
    assert told.returncode == 0, told.stderr
    data = json.loads(told.stdout)
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


#: A module of the job's is named like a package of ours, and its loader takes its time.
SLOW_LOADER = """
import os, time, torch, optimizer
assert optimizer.MINE and os.environ["PLACE"] == "there" and os.environ["KEY"] == "s3cret"
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        time.sleep(0.03)
        return torch.full((2,), 1.0)
if int(os.environ["UPDATES"]) == 0:
    raise SystemExit("no data for you")
model = torch.nn.Linear(2, 1)
sgd = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in torch.utils.data.DataLoader(Slow(), batch_size=4):
    sgd.zero_grad()
    model(batch).square().sum().backward()
    sgd.step()
"""


def test_a_job_is_profiled_on_a_machine_of_the_cluster(serve: Serve, tmp_path: Path) -> None:
    """Its folder travels, the loader's time is found there, and facts reach the server; a failure shows its log."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(SLOW_LOADER)
    (project / "optimizer.py").write_text("MINE = True\n")
    job = {
        "name": "slow", "run": f"{sys.executable} train.py", "workdir": ".", "envs": {"PLACE": "there", "UPDATES": 1},
        "secrets": {"KEY": {"env": "KEY"}}, "resources": {"accelerators": "cpu:2"},
    }  # fmt: skip
    (project / "job.yaml").write_text(json.dumps(job))
    server = serve([CPU_POOL], FIFO)
    server.start_agent(pool=CPU_POOL)
    # The word `last` is of a home, and other tests submit beside this one.
    here: dict[str, Any] = {"cwd": project, "env": {"KEY": "s3cret", "HOME": str(tmp_path)}}
    asked = ["cloud", "profile", "run", "job.yaml", "--on", "cpu", "--steps", "10", "-o", "json"]
    data = json.loads(server.told(*asked, "--publish", **here))
    assert (data["job"], data["ranks"], data["device"]) == ("slow", 1, "cpu")
    stalls_s = data["stalls_s"]
    assert stalls_s["prepare"] > 0.1, "four items of 30 ms a step"
    assert max(stalls_s, key=lambda name: stalls_s[name] or 0.0) == "prepare"
    assert not (project / "walras-profile-report.json").exists()
    assert json.loads(server.told("cloud", "profile", "show", "last", "-o", "json", **here)) == data
    facts = json.loads(server.told("cloud", "profile", "facts", "-o", "json", **here))
    assert [each["kind"] for each in facts] == [data["kind"]]
    (project / "job.yaml").write_text(json.dumps(job | {"envs": {"PLACE": "there", "UPDATES": 0}}))
    failed = server.command(*asked, **here)
    assert failed.returncode == 2
    assert "no data for you" in failed.stderr
    assert "walras logs 2" in failed.stderr
