"""Every command of the documents runs as it stands, against one cluster; what cannot run here says why."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.real_server import WALRAS, RealServer, Serve
from tests.test_pages_for_others import parse_command_line

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
#: Pages whose blocks tests of their own run: README.md and docs/index.md by test_first_hour.py, docs/start.md by
#: test_start_page.py, those for people who come from elsewhere by tests/test_pages_for_others.py.
ELSEWHERE = ("start", "index", "from-")
#: What is not run here, as a pattern, and why.
NOT_HERE = {
    r"--on slurm": "needs a Slurm cluster: tests/e2e/test_slurm_pilots.py runs one",
    r"--on ssh": "needs other machines: tests/e2e/test_ssh_agents.py reaches some",
    r"postgresql": "needs a PostgreSQL server: tests/e2e/test_standby_live.py runs one",
    r"tcp://": "needs a Dask cluster: tests/e2e/test_sweep_dask.py runs one",
    r"^walras (server|agent)": "runs until it is stopped: tests/e2e/test_first_hour.py starts both as README does",
    r"admin (backup|restore)": "stops the server of this test: tests/unit/scheduler_live/test_backup.py",
    r"notify --test": "sends to an address outside: tests/e2e/test_notifications_live.py has a receiver",
    r"workload get": "downloads a trace",
    r"--launch|--recommend|recommend --job": "rents machines of a cloud: tests/e2e/test_recommend_live.py plays one",
    r"wlr_u_0123abcd": "a token that nobody has: tests/unit/walras/test_cli_cluster.py",
    r"rack3-7|eu-1a|us-east1-b|reservation 3": "machines and pools of somebody's own",
    r"cloud capacity --live|--model|a100x8/on_demand": "prices of rented machines: tests/unit/walras/test_cli_plan.py",
    r"--add 4xh100:spot": "a market that this cluster lacks: tests/unit/scheduler_live/test_start_forecasts.py",
    r"grid.yaml|replay DATA|workload-6|jobs.csv|theirs.csv|squeue|philly.csv": "a file of somebody's own",
    r"cloud profile run": "trains for minutes: tests/e2e/test_profile.py",
    r"three-types --cluster|generate:poisson|simulate compare deadlines|cloud spot": "minutes: tests/simulation",
    r"simulate plot|problem.json|queue.csv": "reads what a command above it would have written",
}


def commands_of(page: str) -> list[str]:
    """The commands in a page's blocks, in order, comments and prompts left out."""
    text = (ROOT / "docs" / page).read_text()
    blocks = re.findall(r"^```(?:sh|bash)?\n.*?^```|(?:^    \S.*\n)+", text, re.MULTILINE | re.DOTALL)
    lines = (re.sub(r"^[SM][$#] |\s+#.*", "", line.strip()) for block in blocks for line in block.splitlines())
    return [line for line in lines if line.startswith("walras ")]


PAGES = [
    path.name
    for path in sorted((ROOT / "docs").glob("*.md"))
    if not path.name.startswith(ELSEWHERE) and commands_of(path.name)
]


def runs_here(line: str) -> bool:
    return not any(re.search(pattern, line) for pattern in NOT_HERE)


@pytest.fixture(scope="module")
def cluster(serve_all: Serve) -> RealServer:
    """A cluster with what the pages speak of: two types, people, budgets, and jobs, of which 17 waits."""
    pools = [
        {"shape": f"{name}x{size}", "accelerator": name, "accelerators": size, "cpus": 2 * size,
         "memory": f"{8 * size}GB", "machines": 1, "emulated": True}
        for name, size in (("a100", 8), ("v100", 4))
    ]  # fmt: skip
    rules = {
        "groups": [{"name": "students", "users": ["ada", "bob"]}],
        "budgets": [{"group": "students", "accelerator_h": 200}, {"project": "vision", "month_usd": 500}],
    }
    server = serve_all(pools, {"policy": {"name": "fifo"}, "rules": rules})
    for pool in pools:
        server.start_agent(f"{pool['accelerator']}-1", pool)
    for words in (
        "add user bob role=user projects=vision",
        "add project guests",
        "add project speech",
        "set project vision limits.fleet=64",
    ):
        server.told("admin", *words.split())
    server.submit(name="many", run="true", array="1-16", project="speech")
    server.submit(name="waits", run="true", hold=True)
    server.until_state(16, "SUCCEEDED", 120)
    return server


def prepared(cluster: RealServer, folder: Path) -> Path:
    """A folder with the files that the pages name."""
    (folder / "configs").symlink_to(ROOT / "configs")
    (folder / "DATA").symlink_to(cluster.data)
    (folder / ".walrasignore").write_text("configs\nDATA\n")
    shutil.copy(ROOT / "configs/workloads/three-types.csv", folder / "TRACE.csv")
    (folder / "address.txt").write_text("https://hooks.example.org/walras")
    (folder / "train.py").write_text("print('trained')\n")
    (folder / "job.yaml").write_text(
        'name: digits\nrun: "true"\nsteps: 100\nthroughput: {a100: 10}\nresources: {accelerators: "a100:4"}\n'
    )
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run(page: str, cluster: RealServer, tmp_path: Path) -> None:
    """In the order of the page; each ends with success."""
    prepared(cluster, tmp_path)
    access = cluster.access | {"PATH": f"{Path(WALRAS).parent}:{os.environ['PATH']}"}
    failed = []
    for line in filter(runs_here, commands_of(page)):
        done = subprocess.run(
            ["bash", "-c", line.replace("TRACE", "TRACE.csv")], cwd=tmp_path, env=access,
            capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode:
            failed.append(f"{line}\n    {done.stderr.strip() or done.stdout.strip()}")
    assert not failed, "\n".join(failed)


def test_what_is_not_run_is_written() -> None:
    """Each reason is for a command that a page has, and such a command is one that we would take."""
    lines = [line for page in PAGES for line in commands_of(page)]
    assert [pattern for pattern in NOT_HERE if not any(re.search(pattern, line) for line in lines)] == []
    assert sum(map(runs_here, lines)) >= 45
    for line in lines:
        if not runs_here(line) and "[--" not in line:
            parse_command_line(shlex.split(re.sub(r"<\(.*\)", "token", line).split("<")[0]))
