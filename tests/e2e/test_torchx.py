"""TorchX itself, as its users call it, with a real server and agent."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.real_server import RealServer, server_and_cpu_machine

pytest.importorskip("torchx", reason="no torchx here: `make torchx` adds it")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
TORCHX = [sys.executable, "-W", "ignore", "-c", "from torchx.cli.main import main; main()"]
TRAIN = """
import os, sys
import torch.distributed as dist
dist.init_process_group("gloo")
print("rank", dist.get_rank(), "of", dist.get_world_size(), sys.argv[1:], os.path.basename(os.getcwd()), flush=True)
dist.destroy_process_group()
"""


def torchx(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(cwd)} | environment
    return subprocess.run([*TORCHX, *words], cwd=cwd, env=env, capture_output=True, text=True, timeout=300)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealServer]:
    with server_and_cpu_machine(tmp_path, monkeypatch) as server:
        yield server


def test_torchx_runs_describes_lists_follows_and_cancels(cluster: RealServer, tmp_path: Path) -> None:
    """A distributed script of the workspace runs as TorchX's own component starts it."""
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    access = {"WALRAS_SERVER": cluster.url, "WALRAS_TOKEN_FILE": str(cluster.data / "admin.token")}
    words = ["run", "-s", "walras", "-cfg", "accelerator=cpu,priority=60", "dist.ddp"]
    sizes = ["-j", "1x2", "--cpu", "1", "--memMB", "1024", "--script", "train.py", "--", "--lr", "0.1"]
    begun = torchx(*words, *sizes, cwd=folder, **access)
    assert begun.returncode == 0, begun.stderr
    (handle,) = re.findall(r"walras://\w*/\d+", begun.stdout)
    job_id = int(handle.rpartition("/")[2])
    followed = torchx("log", "--tail", handle, cwd=folder, **access)
    assert followed.returncode == 0, followed.stderr
    for rank in (0, 1):
        assert f"rank {rank} of 2 ['--lr', '0.1'] work" in followed.stdout
    cluster.until_state(job_id, "SUCCEEDED", 60)
    assert cluster.job(job_id)["priority"] == 60
    assert "SUCCEEDED" in torchx("status", handle, cwd=folder, **access).stdout
    assert re.search(
        rf"walras://\S*/{job_id}\s.*SUCCEEDED", torchx("list", "-s", "walras", cwd=folder, **access).stdout
    )

    words = ["run", "-s", "walras", "utils.sh", "sleep", "600"]
    waiting = torchx(*words, cwd=folder, **access)
    (handle,) = re.findall(r"walras://\w*/\d+", waiting.stdout)
    cluster.until_running(int(handle.rpartition("/")[2]))
    assert torchx("cancel", handle, cwd=folder, **access).returncode == 0
    cluster.until_state(int(handle.rpartition("/")[2]), "CANCELLED", 60)


@pytest.mark.parametrize("source", ["namespace", "entry point"])
def test_torchx_finds_it_both_ways(source: str, tmp_path: Path) -> None:
    """By the entry point of pyproject.toml, as an installed wheel has it, and by the namespace of newer releases."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    about = tmp_path / "site" / "elsewhere-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1\n")
    lines = [f"{name} = {place}" for name, place in groups["torchx.schedulers"].items()]
    (about / "entry_points.txt").write_text("[torchx.schedulers]\n" + "\n".join(lines) + "\n")
    code = (
        "from torchx.schedulers import get_scheduler_factories\n"
        "scheduler = get_scheduler_factories()['walras']('session')\n"
        "print(type(scheduler).__module__, list(dict(scheduler.run_opts())))"
    )
    path = os.pathsep.join([str(tmp_path / "site"), str(ROOT)])
    env = os.environ | {"PYTHONPATH": path, "TORCHX_PLUGINS_SOURCE": "1" if source == "namespace" else "2"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    expected = "walras.torchx_scheduler ['accelerator', 'project', 'priority', 'image', 'job']\n"
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
