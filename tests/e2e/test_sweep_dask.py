"""`walras simulate sweep --jobs tcp://HOST:PORT` on a cluster of one scheduler and two workers, all real processes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.support.sweep_folders import swept_figures

pytest.importorskip("distributed", reason="the extra `dask` is not installed")

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
START_S, RUN_S = 300.0, 600.0
GRID = (
    *("--workload", "generate:burst", "--cluster", "hadar-60", "--policy", "fifo", "--policy", "isolated"),
    *("--rate", "60", "--rate", "120", "--seeds", "0-1", "--set", "trace_jobs=6", "--set", "bounds=none"),
)
#: How many tasks each worker has done, as itself says.
ASK = """
import json, sys
from distributed import Client
with Client(sys.argv[1], timeout="20s") as client:
    print(json.dumps(list(client.run(lambda dask_worker: dask_worker.state.executed_count).values())))
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"}


@contextmanager
def running(*arguments: object, folder: Path) -> Iterator[None]:
    """A process that lives as long as the block."""
    with (folder / "dask.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *map(str, arguments)], cwd=folder, env=environment(), stdout=log, stderr=log
        )
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(300)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(300)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a Dask scheduler with two workers of one thread each."""
    folder = tmp_path_factory.mktemp("dask")
    known = folder / "scheduler.json"
    options = ("--scheduler-file", known, "--host", "127.0.0.1", "--no-dashboard")
    with ExitStack() as stack:
        stack.enter_context(running("distributed.cli.dask_scheduler", *options, "--port", "0", folder=folder))
        until = monotonic() + START_S
        while not known.exists() or not known.read_text():
            assert monotonic() < until, (folder / "dask.log").read_text()
            sleep(0.05)
        address = str(json.loads(known.read_text())["address"])
        for name in ("one", "two"):
            worker = ("--nthreads", "1", "--no-nanny", "--name", name, "--local-directory", folder)
            stack.enter_context(running("distributed.cli.dask_worker", *options, *worker, folder=folder))
        while len(asked(address)) < 2:
            assert monotonic() < until, (folder / "dask.log").read_text()
        yield address


def asked(address: str) -> list[int]:
    """Tasks done by each worker that the scheduler knows."""
    done = subprocess.run(
        [sys.executable, "-c", ASK, address], env=environment(), capture_output=True, text=True, timeout=300, check=True
    )
    counts: list[int] = json.loads(done.stdout.splitlines()[-1])
    return counts


def sweep(out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [
        sys.executable, "-c", "from walras.cli.main import main; main()", "simulate", "sweep", *GRID, "--out", str(out),
        "-o", "json",
    ]  # fmt: skip
    return subprocess.run(
        [*command, *more], cwd=out.parent, env=environment(), capture_output=True, text=True, timeout=RUN_S, check=False
    )


def test_a_sweep_on_two_dask_workers(cluster: str, tmp_path: Path) -> None:
    """The same figures as in one process, worked out by both workers; run again, it runs nothing."""
    alone = sweep(tmp_path / "alone")
    assert alone.returncode == 0, alone.stderr
    before = asked(cluster)
    shared = sweep(tmp_path / "shared", "--jobs", cluster)
    assert shared.returncode == 0, shared.stderr
    assert json.loads(shared.stdout)["ran"] == 8
    did = [after - count for after, count in zip(asked(cluster), before, strict=True)]
    assert min(did) >= 1, f"one worker did everything: {did}"
    assert swept_figures(tmp_path / "shared") == swept_figures(tmp_path / "alone")
    again = sweep(tmp_path / "shared", "--jobs", cluster)
    assert json.loads(again.stdout)["ran"] == 0


def test_no_cluster_at_the_address(tmp_path: Path) -> None:
    """Told in one sentence with what to do, exit code 1 or 2, and no traceback."""
    done = sweep(tmp_path / "out", "--jobs", "tcp://127.0.0.1:9")
    assert done.returncode in (1, 2)
    assert "no Dask scheduler answers" in done.stderr
    assert "Traceback" not in done.stderr
