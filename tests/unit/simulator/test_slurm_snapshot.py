"""Snapshots of Slurm's queues: what becomes jobs and machines, and what is refused or left out."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from simulator.reports.baselines import BoundsChoice
from simulator.reports.run_spec import RunSpec, WorkloadSource, execute_run
from simulator.workloads.formats import read_trace
from simulator.workloads.slurm_snapshot import read_slurm_snapshot
from walras.cli.main import app
from walras.errors import ConfigError
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import load_yaml

SQUEUE = """JOBID|NAME|USER|ACCOUNT|STATE|NODES|TRES_PER_NODE|CPUS|MIN_MEMORY|TIME_LIMIT|TIME_LEFT|PRIORITY
11|train big|ada|vision|RUNNING|2|gres/gpu:a100:4|64|0|1-00:00:00|6:30:00|900
12_[1-3%1]|sweep|bob|nlp|PENDING|1|gres/gpu:1|8|4G|2:00:00|2:00:00|100
13|urgent|eve|nlp|PENDING|1|gpu:v100:2|8|4G|45:00|45:00|500
14|cpu only|eve|nlp|PENDING|1|N/A|8|4G|45:00|45:00|500
15|gone|eve|nlp|COMPLETED|1|gpu:1|8|4G|45:00|0:00|500
"""
SINFO = """NODELIST|GRES|CPUS|MEMORY|STATE
n1|gpu:a100:8(S:0-1)|128|1024000|mixed
n1|gpu:a100:8(S:0-1)|128|1024000|mixed
n2|gpu:a100:8(S:0-1)|128|1024000|idle
n3|gpu:v100:4|32|256000|allocated*
n4|gpu:v100:4|32|256000|drained*
n5|(null)|32|256000|idle
"""


def slurm(folder: Path, queue: str = SQUEUE, machines: str = SINFO) -> tuple[Path, Path]:
    (folder / "squeue.txt").write_text(queue)
    (folder / "sinfo.txt").write_text(machines)
    return folder / "squeue.txt", folder / "sinfo.txt"


def test_a_slurm_queue_becomes_a_trace_and_a_cluster_that_can_be_simulated(tmp_path: Path) -> None:
    """Those that run first, then by priority; an array is its tasks; what has no accelerator is left out and named."""
    queue, machines = slurm(tmp_path)
    out, cluster = tmp_path / "queue.csv", tmp_path / "cluster.yaml"
    words = ["workload", "from-slurm", str(queue), str(machines), "--out", str(out), "--cluster", str(cluster)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "5 jobs, 1 of them running" in done.output
    assert "3 machines with 20 accelerators" in done.output
    assert "machine n4 is drained" in done.output
    assert "job 14 asks for no accelerator" in done.output
    jobs = read_trace(out).jobs
    assert [job.name for job in jobs] == ["11 train big", "13 urgent", "12 sweep", "12 sweep (2)", "12 sweep (3)"]
    big, urgent, first = jobs[:3]
    assert (big.gang, big.nodes, big.types, big.cpus, big.duration_s) == (8, 2, ("a100",), 8.0, 6.5 * 3600)
    assert (urgent.gang, urgent.types, urgent.duration_s, urgent.project) == (2, ("v100",), 2700.0, "nlp")
    assert (first.types, first.user, first.duration_s) == ((), "bob", 7200.0)
    pools = load_yaml(cluster, ClusterConfig).pools
    assert [(pool.accelerator, pool.accelerators, pool.machines) for pool in pools] == [("a100", 8, 2), ("v100", 4, 1)]
    ran = execute_run(RunSpec(WorkloadSource(str(out)), str(cluster), "walras", bounds=BoundsChoice.NONE))
    assert [job.state.value for job in ran.result.jobs] == ["SUCCEEDED"] * 5
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 2
    assert "exists" in again.output


def test_jobs_may_be_said_to_use_a_part_of_what_they_ask_for(tmp_path: Path) -> None:
    """The scheduler is told the whole."""
    queue, machines = slurm(tmp_path)
    out = tmp_path / "queue.csv"
    words = ["from-slurm", str(queue), str(machines), "-o", str(out), "--cluster", str(tmp_path / "c.yaml")]
    assert CliRunner().invoke(app, ["workload", *words, "--used", "0.5"]).exit_code == 0
    first = read_trace(out).jobs[0]
    assert (first.duration_s, first.estimate_s) == (3.25 * 3600, 6.5 * 3600)
    assert CliRunner().invoke(app, ["workload", *words, "--force", "--used", "0"]).exit_code == 2


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 1800.0), ("30:15", 1815.0), ("2:00:00", 7200.0), ("1-12", 129_600.0), ("1-00:30:00", 88_200.0),
     ("UNLIMITED", 604_800.0)],
)  # fmt: skip
def test_times_of_slurm(tmp_path: Path, text: str, seconds: float) -> None:
    queue = "JOBID|USER|STATE|NODES|TRES_PER_NODE|TIME_LIMIT\n1|u|PENDING|1|gpu:1|" + text + "\n"
    assert read_slurm_snapshot(*slurm(tmp_path, queue)).jobs[0].left_s == seconds


@pytest.mark.parametrize(
    ("queue", "machines", "message"),
    [
        ("", SINFO, "no column JOBID"),
        (SQUEUE.replace("JOBID|", "ID|"), SINFO, "no column JOBID"),
        (SQUEUE + "16|a|b|u|x|PENDING|1|gpu:1|8|4G|45:00|45:00|500\n", SINFO, "7: 13 cells, 12 expected"),
        (SQUEUE.replace("1-00:00:00|6:30:00", "1-00:00:00|soon"), SINFO, "2: TIME_LEFT is 'SOON'"),
        (SQUEUE.replace("12_[1-3%1]", "12_[1-x]"), SINFO, "3: JOBID"),
        (SQUEUE.replace("12_[1-3%1]", "12_[1-999999999]"), SINFO, "more than 1,000,000 jobs"),
        (SQUEUE, SINFO.replace("n3", "\x1b[31mn3"), "5: NODELIST"),
        (SQUEUE, "NODELIST|GRES\n", "no column CPUS"),
    ],
)
def test_a_listing_that_is_none_is_named_by_file_and_line(
    tmp_path: Path, queue: str, machines: str, message: str
) -> None:
    with pytest.raises(ConfigError) as told:
        read_slurm_snapshot(*slurm(tmp_path, queue, machines))
    assert message in str(told.value)
    assert told.value.fix


@settings(max_examples=40)
@given(st.text(max_size=300), st.text(max_size=300))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, queue: str, machines: str) -> None:
    """Never another error: what a stranger's cluster prints is a stranger's text."""
    folder = tmp_path_factory.mktemp("any")
    (folder / "a").write_text(SQUEUE.splitlines()[0] + "\n" + queue, encoding="utf-8", errors="replace")
    (folder / "b").write_text(SINFO.splitlines()[0] + "\n" + machines, encoding="utf-8", errors="replace")
    with suppress(ConfigError):
        read_slurm_snapshot(folder / "a", folder / "b")
