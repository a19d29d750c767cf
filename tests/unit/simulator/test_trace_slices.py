"""Parts of a trace, dates in place of seconds, columns by other names, and rows that cannot become jobs."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulator.reports.baselines import BoundsChoice
from simulator.reports.run_spec import RunSpec, WorkloadSource, describe_run, execute_run, run_key
from simulator.workloads.formats import read_trace, slice_jobs
from simulator.workloads.trace_source import ReadOptions, TraceJob
from walras.cli.main import app
from walras.errors import ConfigError


def jobs(count: int = 20) -> list[TraceJob]:
    """A job every hour, the last ones waiting for the first."""
    return [
        TraceJob(3600.0 * n, f"j{n}", "k", 1, duration_s=60.0, deadline_at=3600.0 * n + 100, cancel_at=3600.0 * n + 200,
                 depends_on=("j0", f"j{n - 1}") if n == 10 else ())
        for n in range(count)
    ]  # fmt: skip


def sliced(**options: object) -> list[TraceJob]:
    return slice_jobs(jobs(), ReadOptions(**options), "t.csv")  # type: ignore[arg-type]


def test_a_range_holds_what_arrives_in_it_on_a_clock_of_its_own() -> None:
    """From the first instant, up to and without the last; deadlines and cancellations move along."""
    found = sliced(since="3h", until="6h")
    assert [job.name for job in found] == ["j3", "j4", "j5"]
    assert [job.at for job in found] == [0.0, 3600.0, 7200.0]
    assert (found[1].deadline_at, found[1].cancel_at) == (3700.0, 3800.0)


def test_a_sample_is_the_same_every_time_and_in_order() -> None:
    found = sliced(sample=0.25)
    assert len(found) == 5
    assert found == sliced(sample=0.25)
    assert [job.at for job in found] == sorted(job.at for job in found)


def test_range_sample_and_number_apply_one_after_the_other() -> None:
    within = [job.name for job in sliced(since="2h", until="12h", sample=0.5)]
    assert len(within) == 5
    assert [job.name for job in sliced(since="2h", until="12h", sample=0.5, first=2)] == within[:2]


def test_what_a_job_waits_for_and_is_not_there_counts_as_over() -> None:
    assert sliced(since="9h", first=2)[1].depends_on == ("j9",)
    assert sliced(since="10h")[0].depends_on == ()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"since": "5h", "until": "5h"}, "until"), ({"since": "30h"}, "since"), ({"sample": 0.0}, "sample"),
        ({"sample": 1.5}, "sample"), ({"first": 0}, "first"), ({"since": "soon"}, "since"),
        ({"until": "2026-11-05T18:00:00Z"}, "until"),
    ],
)  # fmt: skip
def test_parts_that_are_none_are_refused(options: dict[str, object], field: str) -> None:
    """An empty range, no part, and a date where the trace counts seconds."""
    with pytest.raises(ConfigError) as told:
        sliced(**options)
    assert told.value.field == field
    assert told.value.fix


DATED = """job_id,user,submit_time_s,num_gpus,duration_s
a,u,2026-11-05T18:00:00Z,1,60
b,u,2026-11-05T20:30:00+01:00,1,60
c,u,2026-11-05 21:00:00,1,60
"""


def test_dates_are_instants_since_the_first_arrival(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(DATED)
    assert [job.at for job in read_trace(path).jobs] == [0.0, 5400.0, 10800.0]
    since = ReadOptions(since="2026-11-05T19:00:00Z", until="2026-11-05T21:00:00Z")
    assert [(job.name, job.at) for job in read_trace(path, reading=since).jobs] == [("b", 1800.0)]


def test_unsorted_dates_can_be_sorted_and_deadlines_follow_the_clock(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "at,name,kind,gang,duration_s,deadline_at,not_before_at\n"
        "2026-11-05T19:00:00Z,b,k,1,60,2026-11-05T20:00:00Z,2026-11-05T19:30:00Z\n2026-11-05T18:00:00Z,a,k,1,60,,\n"
    )
    first, second = read_trace(path, reading=ReadOptions(sort=True)).jobs
    assert (first.name, first.at) == ("a", 0.0)
    assert (second.at, second.deadline_at, second.not_before_at) == (3600.0, 7200.0, 5400.0)


@pytest.mark.parametrize("cell", ["5400", "2026-13-05T18:00:00Z", "2026-11-05T25:00:00"])
def test_dates_beside_seconds_and_impossible_dates_are_named(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(DATED.replace("2026-11-05T20:30:00+01:00", cell))
    with pytest.raises(ConfigError, match=r"t\.csv:3: submit_time_s"):
        read_trace(path)
    kept = read_trace(path, reading=ReadOptions(skip_bad_rows=True))
    assert ([job.name for job in kept.jobs], kept.skipped.count) == (["a", "c"], 1)


def test_columns_of_a_strangers_file_are_named_by_option(tmp_path: Path) -> None:
    """What is unknown is ignored; kinds and names may be missing; a column of ours that is replaced is none."""
    path = tmp_path / "theirs.csv"
    path.write_text("submitted,gpus,ran,gang,owner\n0,2,60,999,ada\n5,4,90,999,bob\n")
    columns = (("at", "submitted"), ("gang", "gpus"), ("duration_s", "ran"), ("user", "owner"))
    first, second = read_trace(path, reading=ReadOptions(columns=columns)).jobs
    assert (first.name, first.kind, first.gang, first.duration_s, first.user) == ("2", "any", 2, 60.0, "ada")
    assert (second.at, second.gang) == (5.0, 4)
    with pytest.raises(ConfigError, match="no column 'gpu'; there are submitted, gpus"):
        read_trace(path, reading=ReadOptions(columns=(("gang", "gpu"),)))


def test_a_format_without_titles_has_nothing_to_map(tmp_path: Path) -> None:
    path = tmp_path / "t.swf"
    path.write_text("; nothing\n")
    with pytest.raises(ConfigError, match="no titles to map"):
        read_trace(path, reading=ReadOptions(columns=(("gang", "gpus"),)))


NO_LENGTH = """job_id,user,submit_time_s,num_gpus,duration_s,model
a,u,0,1,60,
b,u,5,1,,resnet
c,u,6,1,,
d,u,7,1,50,
"""


def test_rows_without_a_length_are_skipped_and_named(tmp_path: Path) -> None:
    """Whether the file says so (no duration, no model) or only the cluster (a model that nobody timed)."""
    path = tmp_path / "t.csv"
    path.write_text(NO_LENGTH)
    reading = ReadOptions(skip_bad_rows=True)
    spec = RunSpec(WorkloadSource(str(path), reading=reading), "philly-512", "fifo", bounds=BoundsChoice.NONE)
    ran = execute_run(spec)
    assert [ran.baselines.name(job.job_id) for job in ran.result.jobs] == ["d", "a"]
    assert ran.skipped.count == 2
    assert "t.csv:3: 'resnet' x 1 has no length" in " ".join(ran.skipped.first)
    with pytest.raises(ConfigError, match=r"t\.csv:4: duration_s is empty"):
        execute_run(RunSpec(WorkloadSource(str(path)), "philly-512", "fifo"))


def test_a_job_that_waits_for_a_skipped_row_is_skipped_too(tmp_path: Path) -> None:
    """It would never start."""
    path = tmp_path / "t.csv"
    path.write_text("at,name,kind,gang,duration_s,depends_on\n0,a,k,9999,60,\n1,b,k,1,60,a\n2,c,k,1,60,\n")
    spec = RunSpec(WorkloadSource(str(path), reading=ReadOptions(skip_bad_rows=True)), "philly-512", "fifo")
    ran = execute_run(spec)
    assert ([ran.baselines.name(job.job_id) for job in ran.result.jobs], ran.skipped.count) == (["c"], 2)


def test_a_trace_of_bad_rows_alone_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("at,name,kind,gang,duration_s\n0,a,k,9999,60\n")
    spec = RunSpec(WorkloadSource(str(path), reading=ReadOptions(skip_bad_rows=True)), "philly-512", "fifo")
    with pytest.raises(ConfigError, match="no row can become a job on this cluster"):
        execute_run(spec)


def test_another_part_is_another_run() -> None:
    """Its key says so, so a sweep does not take one for the other."""
    keys = {
        run_key(describe_run(RunSpec(WorkloadSource("three-types", reading=reading), "gavel-12-12-12", "fifo")))
        for reading in (ReadOptions(), ReadOptions(first=5), ReadOptions(since="1h"), ReadOptions(sample=0.5))
    }
    assert len(keys) == 4


@pytest.mark.parametrize("command", ["describe", "convert", "run", "compare"])
def test_every_command_that_reads_a_trace_takes_a_part_of_it(tmp_path: Path, command: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text("when,name,kind,gpus,duration_s\n0,a,k,1,60\n50,b,k,1,60\n90,c,k,2,60\n95,d,k,1,60\n")
    words = ("columns.at=when", "columns.gang=gpus", "since=40s", "until=3m", "first=2")
    part = [word for text in words for word in ("--set", text)]
    words = {
        "describe": ["workload", "describe", str(path), *part],
        "convert": ["workload", "convert", str(path), str(tmp_path / "out.csv"), *part],
        "run": ["simulate", "run", str(path), "--cluster", "philly-512", "--policy", "fifo", *part],
        "compare": ["simulate", "compare", str(path), "--cluster", "philly-512", "--policy", "fifo", *part],
    }[command]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    if command == "convert":
        assert [job.name for job in read_trace(tmp_path / "out.csv").jobs] == ["b", "c"]
    if command in ("describe", "run"):
        assert re.search(r"\b2 jobs|jobs +2\b", done.output)


@pytest.mark.parametrize("text", ["gang", "=gpus", "gang=", "gang=a,gang=b", "gang=a,at=a"])
def test_a_mapping_that_maps_nothing_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text("at,name,kind,gang,duration_s\n0,a,k,1,60\n")
    options = [word for part in text.split(",") for word in ("--set", f"columns.{part}")]
    done = CliRunner().invoke(app, ["simulate", "workload", "describe", str(path), *options])
    assert done.exit_code == 2
    assert "columns" in done.output
