"""`walras profile run --on TYPE`: a real server, a real machine, and the folder of the job travelling there."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.real_server import FIFO, WALRAS, RealServer

pytestmark = pytest.mark.slow

POOL: dict[str, Any] = {
    "shape": "cpux2",
    "accelerator": "cpu",
    "accelerators": 2,
    "cpus": 2,
    "memory": "4GB",
    "emulated": False,
}
#: A module of the job's is named like a package of ours, and its loader takes its time.
SCRIPT = """
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


def walras(server: RealServer, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {"WALRAS_SERVER": server.url, "WALRAS_TOKEN_FILE": str(server.data / "admin.token"), "KEY": "s3cret"}
    env["HOME"] = str(cwd.parent)  # the word `last` is of a home, and other tests submit beside this one
    return subprocess.run(
        [WALRAS, *words], cwd=cwd, env=os.environ | env, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_job_is_profiled_on_a_machine_of_the_cluster(tmp_path: Path) -> None:
    """Its folder travels, the loader's time is found there, and facts reach the server; a failure shows its log."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(SCRIPT)
    (project / "optimizer.py").write_text("MINE = True\n")
    job = {
        "name": "slow", "run": f"{sys.executable} train.py", "workdir": ".", "envs": {"PLACE": "there", "UPDATES": 1},
        "secrets": {"KEY": {"env": "KEY"}}, "resources": {"accelerators": "cpu:2"},
    }  # fmt: skip
    (project / "job.yaml").write_text(json.dumps(job))
    server = RealServer(tmp_path, [POOL], FIFO).start()
    try:
        server.start_agent(pool=POOL)
        asked = ["profile", "run", "job.yaml", "--on", "cpu", "--steps", "10", "--json", "out.json"]
        found = walras(server, *asked, "--publish", cwd=project)
        assert found.returncode == 0, found.stderr
        data = json.loads((project / "out.json").read_text())
        assert (data["job"], data["ranks"], data["device"]) == ("slow", 1, "cpu")
        stalls_s = data["stalls_s"]
        assert stalls_s["prepare"] > 0.1, "four items of 30 ms a step"
        assert max(stalls_s, key=lambda name: stalls_s[name] or 0.0) == "prepare"
        assert "prepare" in found.stdout
        assert not (project / "walras-profile-report.json").exists()
        shown = walras(server, "profile", "show", "last", "-o", "json", cwd=project)
        assert json.loads(shown.stdout) == data
        facts = json.loads(walras(server, "profile", "facts", "-o", "json", cwd=project).stdout)
        assert [each["kind"] for each in facts] == [data["kind"]]
        (project / "job.yaml").write_text(json.dumps(job | {"envs": {"PLACE": "there", "UPDATES": 0}}))
        failed = walras(server, *asked, cwd=project)
        assert failed.returncode == 2
        assert "no data for you" in failed.stderr
        assert "walras logs 2" in failed.stderr
    finally:
        server.close()
