"""A sweep in allocations of a real Slurm, as docs/engines.md says: Dask's workers are Slurm's jobs."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_sweep_dask import asked, sweep
from tests.support.attempts import ROOT
from tests.support.real_server import wait_for
from tests.support.slurm_cluster import SlurmCluster, slurm_cluster
from tests.support.sweep_folders import swept_figures

pytest.importorskip("dask_jobqueue", reason="dask-jobqueue is not installed")

pytestmark = pytest.mark.slow


@pytest.fixture
def slurm() -> Iterator[SlurmCluster]:
    with slurm_cluster() as cluster:
        yield cluster


def program_of_the_page() -> str:
    """The Python that docs/engines.md shows."""
    shown = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/engines.md").read_text(), re.MULTILINE | re.DOTALL)
    (program,) = [each for each in shown if "SLURMCluster" in each]
    return str(program)


def test_a_sweep_runs_in_allocations_of_slurm(slurm: SlurmCluster, tmp_path: Path) -> None:
    """The same swept_figures as in one process, by two allocations; when the program ends they are given back."""
    site = {
        "DASK_JOBQUEUE__SLURM__INTERFACE": "lo",
        "DASK_JOBQUEUE__SLURM__PYTHON": sys.executable,
        "DASK_JOBQUEUE__SLURM__JOB_SCRIPT_PROLOGUE": f"['unset LD_LIBRARY_PATH', 'export PYTHONPATH={ROOT}']",
        "DASK_JOBQUEUE__SLURM__LOG_DIRECTORY": str(tmp_path / "dask"),
        "DASK_JOBQUEUE__SLURM__LOCAL_DIRECTORY": str(tmp_path),
        "PATH": f"{slurm.bin}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    with (
        open(tmp_path / "dask.err", "wb") as errors,
        subprocess.Popen(
            [sys.executable, "-c", program_of_the_page()], env={**os.environ, **site}, cwd=tmp_path, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        ) as program,
    ):  # fmt: skip
        assert program.stdin is not None
        assert program.stdout is not None
        address = program.stdout.readline().strip()
        assert address.startswith("tcp://"), (tmp_path / "dask.err").read_text()
        wait_for(lambda: len(asked(address)) == 2, 120, "two allocations work", lambda: slurm.output("squeue"))
        assert len(slurm.jobs("RUNNING")) == 2
        shared = sweep(tmp_path / "shared", "--jobs", address)
        assert shared.returncode == 0, shared.stderr
        assert min(asked(address)) >= 1, "one allocation did everything"
        program.stdin.write("\n")
        program.stdin.flush()
        program.wait(300)
    wait_for(lambda: not slurm.jobs("RUNNING"), 30, "the allocations are given back", lambda: slurm.output("squeue"))
    alone = sweep(tmp_path / "alone")
    assert alone.returncode == 0, alone.stderr
    assert swept_figures(tmp_path / "shared") == swept_figures(tmp_path / "alone")
