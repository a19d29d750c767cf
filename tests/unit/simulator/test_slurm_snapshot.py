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
from simulator.workloads.slurm_snapshot import _type_named, read_slurm_snapshot
from walras.cli.main import app
from walras.errors import ConfigError
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import load_yaml

SQUEUE = """JOBID|NAME|USER|ACCOUNT|STATE|NODES|TRES_PER_NODE|CPUS|MIN_MEMORY|TIME_LIMIT|TIME_LEFT|PRIORITY
11|train big|ada|vision|RUNNING|2|gres/gpu:a100:4|64|0|1-00:00:00|6:30:00|900
12_[1-3%1]|sweep|bob|nlp|PENDING|1|gres/gpu:1|8|4G|2:00:00|2:00:00|100
13|urgent|eve|(null)|PENDING|1|gpu:v100:2|8|4G|45:00|45:00|500
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
    assert (urgent.gang, urgent.types, urgent.duration_s, urgent.project) == (2, ("v100",), 2700.0, "default")
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
    assert CliRunner().invoke(app, ["simulate", "workload", *words, "--used", "0.5"]).exit_code == 0
    first = read_trace(out).jobs[0]
    assert (first.duration_s, first.estimate_s) == (3.25 * 3600, 6.5 * 3600)
    assert CliRunner().invoke(app, ["simulate", "workload", *words, "--force", "--used", "0"]).exit_code == 2


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
        (SQUEUE + "16|a|b|PENDING|1|gpu:1|8|4G|45:00|45:00|500\n", SINFO, "7: 11 cells, 12 expected"),
        (SQUEUE.replace("1-00:00:00|6:30:00", "1-00:00:00|soon"), SINFO, "2: TIME_LEFT is 'SOON'"),
        (SQUEUE.replace("12_[1-3%1]", "12_[1-x]"), SINFO, "3: JOBID"),
        (SQUEUE.replace("12_[1-3%1]", "12_[1-999999999]"), SINFO, "more than 1,000,000 jobs"),
        (SQUEUE, SINFO.replace("n3", "\x1b[31mn3"), "5: NODELIST"),
        (SQUEUE, SINFO.replace("n3", "n[3-9]"), "5: NODELIST is 'n[3-9]'"),
        (SQUEUE, SINFO.replace("32|256000|alloc", "0/32/0/32|256000|alloc"), "5: CPUS is '0/32/0/32'"),
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


WIDE = """JOBID|USER|ACCOUNT|STATE|NODES|TASKS|TRES_PER_NODE|TRES_PER_JOB|TRES_PER_TASK|TRES_ALLOC|CPUS|\
TIME_LIMIT|TIME_LEFT|NAME
1|u|a|RUNNING|1|1|N/A|gres:gpu:2|N/A|cpu=1,node=1|1|1:00:00|59:59|a|b
2|u|a|PENDING|2|4|N/A|N/A|gres:gpu:3090:1|cpu=4|4|4:00:00|4:00:00|c
3|u|a|RUNNING|2|2|gres:gpu:2080ti:4|N/A|N/A|cpu=2|2|4:00:00|INVALID|d
4|u|a|RUNNING|1|1|N/A|N/A|N/A|cpu=1,gres/gpu=2,gres/gpu:a100=2|1|UNLIMITED|N/A|e
5|u|a|PENDING|1|1|gpu:a100:1,gpu:v100:1|N/A|N/A|cpu=1|1|4:00:00|4:00:00|f
6|u|a|PENDING|1|1|N/A|N/A|N/A|cpu=1|1|4:00:00|4:00:00|g
7|u|a|PENDING|1|1|gres:gpu|N/A|N/A|cpu=1|1|4:00:00|4:00:00|h
"""


def test_jobs_are_counted_by_the_column_that_says_it(tmp_path: Path) -> None:
    """--gpus, --gpus-per-task, types of digits, what was allocated; a name with a bar; a time that is none."""
    found = read_slurm_snapshot(*slurm(tmp_path, WIDE))
    assert [(job.name, job.gang, job.accelerator, job.left_s) for job in found.jobs] == [
        ("1 a|b", 2, "", 3599.0), ("2 c", 4, _type_named("3090"), 14_400.0),
        ("3 d", 8, _type_named("2080ti"), 14_400.0),
        ("4 e", 2, "a100", 604_800.0), ("7 h", 1, "", 14_400.0),
    ]  # fmt: skip
    assert found.first_skipped[-2:] == [
        "job 5 asks for accelerators of several types", "job 6 asks for no accelerator",
    ]  # fmt: skip


def test_a_job_without_accelerators_per_machine_is_named_with_the_command_that_tells_more(tmp_path: Path) -> None:
    (told,) = [each for each in read_slurm_snapshot(*slurm(tmp_path)).first_skipped if "job 14" in each]
    assert "what --gpus asks for is told by: SLURM_BITSTR_LEN=0 squeue -a -O" in told


def test_numbers_and_states_have_slurms_short_forms(tmp_path: Path) -> None:
    row = "9|n|u|a|{}|{}|gpu:1|{}|1|1:00:00|1:00:00|1\n"
    queue = SQUEUE.splitlines(keepends=True)[0] + row.format("R", "1-4", "64+") + row.format("PD", "2K", "1.5K")
    found = read_slurm_snapshot(*slurm(tmp_path, queue, "NODELIST|GRES|CPUS|MEMORY|STATE\nm|gpu:8|64|1T|plnd\n"))
    assert [(job.nodes, job.gang, job.cpus) for job in found.jobs] == [(1, 1, 64.0), (2048, 2048, 0.75)]
    assert found.nodes[0].memory_bytes == 2**40


def test_machines_of_several_types_and_of_none_that_is_in_use(tmp_path: Path) -> None:
    """Two slices of one machine share its cores; a node of a state that is not known takes no job."""
    machines = (
        "NODELIST|GRES|CPUS|MEMORY|STATE\nm|gpu:2080ti:8|32|256000|idle\nn|gpu:rtx6000:2|32|190000|inval\n"
        "o|gpu:nvidia_a100_1g.5gb:6(S:0),gpu:nvidia_a100_3g.20gb:2(S:0)|128|8000|mixed\np|gpu:a100:1|8|8000|strange\n"
        "q|gpu:3090:2|8|8000|planned\nr|gpu:0|8|8000|idle\ns|gpu:4|8|8000|completing\n"
    )
    found = read_slurm_snapshot(*slurm(tmp_path, machines=machines))
    assert [(each.name, each.accelerator, each.accelerators, each.cpus) for each in found.nodes] == [
        ("m", _type_named("2080ti"), 8, 32.0), ("o", "a100-1g.5gb", 6, 96.0), ("o", "a100-3g.20gb", 2, 32.0),
        ("q", _type_named("3090"), 2, 8.0), ("s", "gpu", 4, 8.0),
    ]  # fmt: skip
    assert found.first_skipped[:2] == ["machine n is inval", "machine p is strange"]


def test_what_is_not_understood_is_named(tmp_path: Path) -> None:
    """A flag by which a machine takes no job, a word of GPUs in no form of Slurm's, an array that squeue cut off."""
    machines = (
        "NODELIST|GRES|CPUS|MEMORY|STATE\nm|gpu:a100:4|8|8000|IDLE+DRAIN\nn|gpu:a100:four|8|8000|idle\n"
        "o|gpu:a100:no_consume:2|8|8000|mixed+cloud\np|gpu:a100:2,gpu=v|8|8000|idle\n"
    )
    row = "8_[1-3,7,2...%4]|n|u|a|PENDING|1|gres/gpu:1,gres/gpumem=0|1|0|1:00:00|1:00:00|1\n"
    odd = "9|n|u|a|PENDING|1|gpu:a100:half|1|0|1:00:00|1:00:00|1\n"
    found = read_slurm_snapshot(*slurm(tmp_path, SQUEUE.splitlines(keepends=True)[0] + row + odd, machines))
    assert [(each.name, each.accelerators) for each in found.nodes] == [("o", 2), ("p", 2)]
    assert [job.gang for job in found.jobs] == [1, 1, 1, 1]
    assert [each.partition(": SLURM")[0] for each in found.first_skipped] == [
        "machine m is idle+drain", "machine n has gpu:a100:four, which is not understood",
        "machine p has gpu=v, which is not understood", "tasks of job 8_[1-3,7,2...%4] are not listed",
        "job 9 asks for gpu:a100:half, which is not understood",
    ]  # fmt: skip
