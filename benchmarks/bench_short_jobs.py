"""How many jobs of `true` a second one agent with two emulated accelerators runs, beside HyperQueue and Slurm.

    python -m benchmarks short_jobs

Each round runs one sweep under `fifo`, one under the default policy, tasks of HyperQueue on two cores, and an array of
Slurm on two places, each from the request to the last end. The figures are of the best round, since other processes
only slow one down. HyperQueue gets more tasks, because its client looks once a second, and Slurm fewer, because it is
slow. HyperQueue's wheel comes from the package index into a temporary environment, Slurm from `make slurm`.
"""

import statistics
import subprocess
import tempfile
import time
import venv
from collections.abc import Callable
from functools import partial
from pathlib import Path

import yaml

from benchmarks.tables import Measured
from tests.support.debian_packages import folder_of
from tests.support.real_server import RealServer
from tests.support.slurm_cluster import slurm_cluster
from tests.support.waiting import wait_for

JOBS, ROUNDS = 300, 2
_FIFO, _DEFAULT = "fifo", "default policy"
_PATIENCE_S = 300.0
_POLICIES = Path(__file__).parents[1] / "configs" / "policies"
_POOL = {"shape": "ax2", "accelerator": "a", "accelerators": 2, "cpus": 2, "memory": "4GB", "emulated": True}
_HYPERQUEUE = """
import sys, time
from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig
with LocalCluster() as cluster:
    cluster.start_worker(WorkerConfig(cores=2))
    client, times = cluster.client(), []
    for count in (1, int(sys.argv[1])):
        began, job = time.monotonic(), Job()
        for _ in range(count):
            job.program(["true"])
        client.wait_for_jobs([client.submit(job)])
        times.append(time.monotonic() - began)
print(times[-1])
"""


def measure(scale: float) -> list[Measured]:
    """One table."""
    jobs = max(20, round(JOBS * scale))
    with tempfile.TemporaryDirectory(prefix="short-") as name:
        ways = {each: run for each, run in _ways(Path(name), jobs).items() if run is not None}
        took_s = [{each: run() for each, run in ways.items()} for _ in range(ROUNDS)]
    measured = Measured("short jobs", f"{jobs} jobs of `true` in one sweep, two accelerators, best of {ROUNDS} rounds")
    for each in ways:
        wanted = 40 if each in (_FIFO, _DEFAULT) and scale >= 1 else None
        measured.add(each, 1 / min(of_round[each] for of_round in took_s), "jobs/s", at_least=wanted)
    ratio = statistics.median(of_round[_FIFO] / of_round[_DEFAULT] for of_round in took_s)
    measured.add("default policy over fifo, median round", ratio, "", at_least=0.9)
    return [measured]


def _ways(folder: Path, jobs: int) -> dict[str, Callable[[], float] | None]:
    """What runs jobs and returns how long one took, seconds; None: it is not here."""
    python = _environment_with_hyperqueue(folder)
    return {
        _FIFO: partial(_walras, folder, "fifo", jobs),
        _DEFAULT: partial(_walras, folder, "walras", jobs),
        "HyperQueue": None if python is None else partial(_hyperqueue, python, 10 * jobs),
        "Slurm": partial(_slurm, jobs // 5) if folder_of("slurm").is_dir() else None,
    }


def _walras(folder: Path, policy: str, jobs: int) -> float:
    own = Path(tempfile.mkdtemp(dir=folder))
    server = RealServer(own, [_POOL], yaml.safe_load((_POLICIES / f"{policy}.yaml").read_text()), lease="600s")
    try:
        server.start()
        server.start_agent("n1", _POOL)
        server.until_state(server.submit(run="true"), "SUCCEEDED")
        began = time.monotonic()
        sweep = {"run": "true", "workdir": str(own), "array": f"0-{jobs - 1}"}
        status, answer = server.call("POST", "/jobs", sweep)
        assert status == 201, answer
        query = "SELECT count(*) FROM jobs WHERE state = 'SUCCEEDED'"
        wait_for(lambda: server.rows(query) == [(jobs + 1,)], _PATIENCE_S, f"{jobs} jobs have ended")
        return (time.monotonic() - began) / jobs
    finally:
        server.close()


def _environment_with_hyperqueue(folder: Path) -> Path | None:
    python = folder / "hyperqueue" / "bin" / "python"
    venv.create(folder / "hyperqueue", with_pip=True)
    installed = subprocess.run([python, "-m", "pip", "install", "-q", "hyperqueue"], capture_output=True, check=False)
    return python if installed.returncode == 0 else None


def _hyperqueue(python: Path, tasks: int) -> float:
    # Each task leaves two files where it runs.
    line = [str(python), "-c", _HYPERQUEUE, str(tasks)]
    ran = subprocess.run(line, cwd=python.parent, capture_output=True, text=True, check=True)
    return float(ran.stdout.split()[-1]) / tasks


def _slurm(jobs: int) -> float:
    with slurm_cluster() as cluster:
        began = time.monotonic()
        cluster.output("sbatch", "--array", f"0-{jobs - 1}", "--gres=gpu:t4:1", "-o", "/dev/null", "--wrap", "true")
        wait_for(lambda: not cluster.jobs(), _PATIENCE_S, "Slurm's queue is empty")
        return (time.monotonic() - began) / jobs
