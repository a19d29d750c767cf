"""`walras simulate`: names, files, options and exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator.reports import repeated_runs
from simulator.reports.run_spec import RunSpec
from walras.cli.main import app

GENERATED = (
    "generate:burst", "--cluster", "hadar-60", "--set", "trace_jobs=8", "--set", "rate=120", "--set", "stretch=0.01",
)  # fmt: skip


BURSTS = ("bursts", "--cluster", "sia-64", "--policy", "fifo")


def _run(*args: object) -> Any:
    return CliRunner().invoke(app, ["simulate", *(str(arg) for arg in args)])


def test_a_run_of_what_comes_with_walras() -> None:
    """By names alone: no file of one's own is needed."""
    done = _run("run", *BURSTS, "--set", "bounds=none", "-o", "json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["jobs"], told["by_state"]) == (80, {"SUCCEEDED": 80})
    assert len(told["per_job"]) == 80
    assert told["slowdown_mean"] >= 1.0
    assert told["bounds"]["jct_s"] is None


def test_a_run_leaves_its_files(tmp_path: Path) -> None:
    """Six of them, the report among them."""
    out = tmp_path / "run"
    done = _run("run", *GENERATED, "--policy", "fifo", "--set", "bounds=none", "--out", out)
    assert done.exit_code == 0, done.output
    assert "finish-time fairness" in done.stdout
    names = {path.name for path in out.iterdir()}
    assert names == {"summary.json", "jobs.csv", "events.csv.gz", "timeline.json", "scored.json", "report.html"}


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("run", "burst", "--cluster", "sia-64"), "did you mean 'bursts'?"),
        (("run", "bursts", "--cluster", "sia-63"), "did you mean 'sia-64'?"),
        (("run", "bursts", "--cluster", "sia-64", "--policy", "fiffo"), "did you mean 'fifo'?"),
        (("run", "bursts", "--cluster", "sia-64", "--set", "format=cvs"), "did you mean 'csv'?"),
        (("run", "generate:bursts", "--cluster", "sia-64"), "did you mean 'burst'?"),
        (("compare", *GENERATED, "--policy", "fifo", "--seeds", "x"), "write 0-4 or 1,3,5"),
        (("sweep",), "give a grid in a YAML file"),
        (("sweep", "--policy", "fifo"), "workloads"),
        (("sweep", "--workload", *BURSTS, "--jobs", "dask"), "tcp://HOST:PORT"),
        (("replay", "gone.jsonl"), "gone.jsonl"),
    ],
)
def test_mistakes_are_the_users_and_say_how_to_mend_them(args: tuple[object, ...], told: str, tmp_path: Path) -> None:
    """Exit code 2, never a traceback."""
    done = _run(*args, *(("--out", tmp_path) if args[0] == "sweep" else ()))
    assert done.exit_code == 2, done.output
    assert told in done.stderr


def test_policies_are_compared() -> None:
    """Over seeds with intervals; the JSON holds the value of each."""
    args = ("compare", *GENERATED, "--policy", "fifo", "--policy", "isolated", "--seeds", "0-2", "--set", "bounds=none")
    shown = _run(*args)
    assert shown.exit_code == 0, shown.output
    assert "±" in shown.stdout
    assert "difference to fifo" in shown.stdout
    told = json.loads(_run(*args, "-o", "json").stdout)
    assert (told["policies"], told["seeds"], told["nothing_random"]) == (["fifo", "isolated"], [0, 1, 2], False)
    first = told["measures"]["avg_jct_s"]["policies"]["fifo"]
    assert first["low"] < first["mean"] < first["high"]
    assert len(first["values"]) == 3


def test_a_comparison_with_nothing_random_says_so() -> None:
    """A file's jobs in a world without chance: every seed gives the same."""
    args = (*BURSTS, "--seeds", "0-1", "--set", "bounds=none")
    assert "nothing here is random" in _run("compare", *args).stdout


def test_a_sweep_of_a_file_with_options(tmp_path: Path) -> None:
    """Options replace what the file says; a second sweep runs nothing."""
    spec = tmp_path / "grid.yaml"
    spec.write_text(
        "workloads: [generate:burst]\nclusters: [hadar-60]\npolicies: [fifo]\nrates: [60, 120]\n"
        "trace_jobs: 3\nstretch: 0.01\nseeds: 0-3\nbounds: none\n"
    )
    out = tmp_path / "out"
    args = ("sweep", spec, "--seeds", "0-1", "--out", out, "-o", "json")
    first = _run(*args)
    assert first.exit_code == 0, first.output
    told = json.loads(first.stdout)
    assert (told["runs"], told["ran"], len(told["settings"])) == (4, 4, 2)
    assert json.loads(_run(*args).stdout)["ran"] == 0
    assert len((out / "sweep.csv").read_text().splitlines()) == 5
    broken = tmp_path / "broken.yaml"
    broken.write_text("workload: [x]\n")
    refused = _run("sweep", broken, "--out", out)
    assert refused.exit_code == 2
    assert "workloads" in refused.stderr


def test_a_former_option_is_the_field_that_it_was() -> None:
    """With a note; `--set help` lists the fields without anything else on the line, and a wrong one is refused."""
    args = ("run", *BURSTS, "-o", "json")
    now = _run(*args, "--set", "bounds=none", "--set", "sort=true", "--set", "first=9", "--set", "columns.at=when")
    former = _run(*args, "--bounds=none", "--sort", "--first", 9, "--column", "at=when")
    assert (former.exit_code, former.stdout) == (now.exit_code, now.stdout)
    assert "walras: `--first` is now `--set first=9`" in former.stderr
    assert "walras: `--column` is now `--set columns.at=when`" in former.stderr
    told = _run("run", "--set", "help")
    assert told.exit_code == 0
    assert "skip_bad_rows  false" in told.stdout
    for wrong, said in (("--set=widow=1-2", "did you mean `window`?"), ("--set=first=x", "first"), ("--zzz", "--zzz")):
        refused = _run(*args, wrong)
        assert refused.exit_code == 2
        assert said in refused.stderr


TRACE = "at,name,kind,gang,duration_s\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (TRACE + "9,a,k,1,5\n0,b,k,1,5\n", "t.csv:3: arrives at 0 s, before the row above it (9 s)"),
        (TRACE + "0,a,k,1,5\n1,a,k,1,5\n", "t.csv:3: a second job 'a'"),
        (TRACE + "0,a,k,1,-5\n", "t.csv:2: duration_s is '-5'"),
        (TRACE + "-1,a,k,1,5\n", "t.csv:2: at is '-1'"),
        (TRACE + "0,a,k,0,5\n", "t.csv:2: gang is '0'"),
        (TRACE + "0,a,k,1\n", "t.csv:2: 4 columns, 5 expected"),
        ("at,name,kind,gang,duration_s,depends_on\n0,a,k,1,5,b\n", "t.csv:2: depends_on names 'b'"),
        ("at,name,gang,duration_s\n0,a,1,5\n", "t.csv: in no format that is known"),
        ("at,name,kind,gang\n0,a,k,1\n", "has no length: neither steps nor a duration"),
        (TRACE + "0,a,k,65,5\n", "wants 65 x a100-40gb or 65 x rtx-2080-ti or 65 x t4; no pool is that large"),
        (TRACE, "no job can be read in it"),
        ("", "t.csv: in no format"),
    ],
)
def test_a_trace_that_cannot_be_simulated_is_named_by_line_and_field(tmp_path: Path, text: str, told: str) -> None:
    """Exit code 2 and the fix, before anything runs."""
    (tmp_path / "t.csv").write_text(text)
    done = _run("run", tmp_path / "t.csv", "--cluster", "sia-64", "--policy", "fifo")
    assert done.exit_code == 2, done.output
    assert told in done.stderr
    assert "fix: " in done.stderr


def test_jobs_that_choose_their_batch_need_no_file_but_the_workload() -> None:
    """What comes along runs under the policies it is made for; Sia gets through it sooner than an order."""
    jct = {}
    for policy in ("sia", "fifo"):
        done = _run("run", "adaptive", "--cluster", "sia-64", "--policy", policy, "--set", "bounds=none", "-o", "json")
        assert done.exit_code == 0, done.output
        jct[policy] = json.loads(done.stdout)["avg_jct_s"]
    assert jct["sia"] < 0.8 * jct["fifo"]


def test_a_sweep_that_is_broken_off_says_so_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the second run: exit code 130, the first run is kept, and the same command runs the second alone."""
    grid = ("--workload", GENERATED[0], *GENERATED[1:5], "--policy", "fifo", "--seeds", "0-1", "--set", "bounds=none")
    args = ("sweep", *grid, "--out", tmp_path, "-o", "json")
    whole, begun = repeated_runs.execute_for_metrics, 0

    def interrupted(cell: RunSpec, *how: Any, **more: Any) -> repeated_runs.RunMetrics:
        nonlocal begun
        begun += 1
        if begun == 2:
            raise KeyboardInterrupt
        return whole(cell, *how, **more)

    with monkeypatch.context() as patched:
        patched.setattr(repeated_runs, "execute_for_metrics", interrupted)
        broken = _run(*args)
    assert broken.exit_code == 130
    assert "the same command goes on from there" in broken.stderr
    told = json.loads(_run(*args).stdout)
    assert (told["runs"], told["ran"]) == (2, 1)


@pytest.mark.parametrize(
    ("workload", "field"),
    [
        ("bursts", "trace_jobs=5"), ("bursts", "rate=5"), ("bursts", "slos=true"), ("bursts", "stretch=2"),
        ("generate:burst", "sort=true"), ("generate:burst", "format=csv"), ("adaptive", "skip_bad_rows=true"),
        ("adaptive", "speeds=x.json"), ("bursts", "measured=m.json"),
    ],
)  # fmt: skip
def test_what_is_about_other_workloads_is_refused(
    workload: str, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file's jobs are as many as they are, and generated ones are not read: who asks otherwise meant something.

    Speeds are of a trace, and measured costs of a workload file.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.json").write_text("{}")
    done = _run("run", workload, "--set", field, "--cluster", "sia-64", "--policy", "fifo", "--set", "bounds=none")
    assert done.exit_code == 2, done.output
    assert field.partition("=")[0] in done.stderr


def test_a_sweep_gives_each_workload_what_is_about_it(tmp_path: Path) -> None:
    """A file beside generated jobs is fine; what is about no workload at all is refused."""
    args = (
        "--cluster", "sia-64", "--policy", "fifo", "--set", "bounds=none", "--out", tmp_path, "--set", "trace_jobs=4",
    )  # fmt: skip
    refused = _run("sweep", "--workload", "bursts", *args)
    assert refused.exit_code == 2, refused.output
    assert "no workload is generated: `trace_jobs` would do nothing" in refused.stderr
    done = _run("sweep", "--workload", "bursts", "--workload", "generate:burst", *args)
    assert done.exit_code == 0, done.output


def test_a_window_leaves_out_who_came_before_and_after() -> None:
    """All jobs run, and the figures over jobs are over those of the window; the makespan stays that of all."""
    args = ("run", *BURSTS, "-o", "json")
    whole, part = (json.loads(_run(*args, *more).stdout) for more in ((), ("--set", "window=21-60")))
    jct_s = [job["jct_s"] for job in whole["per_job"] if 21 <= job["job_id"] <= 60]
    assert part["avg_jct_s"] == pytest.approx(sum(jct_s) / 40)
    assert (part["measured_jobs"], part["jobs"], len(part["per_job"])) == (40, 80, 80)
    assert (whole["measured_jobs"], part["makespan_s"]) == (80, whole["makespan_s"])
    assert part["bounds"]["makespan_s"] is None
    assert 0.0 <= part["bounds"]["jct_gap"] <= part["bounds"]["no_contention_gap"]
    assert part["run"]["window"] == [21, 60]
    for wrong in ("5", "0-3", "9-4", "81-90"):
        done = _run(*args, "--set", f"window={wrong}")
        assert done.exit_code == 2
        assert "window" in done.stderr or "there are 80" in done.stderr


def test_rows_that_were_skipped_are_told_wherever_the_figures_are(tmp_path: Path) -> None:
    """Their number in table, JSON, comparison and sweep, and the first of them by line."""
    (tmp_path / "t.csv").write_text(TRACE + "0,a,k,1,5\nx,b,k,1,5\n1,c,k,1,5\n")
    args = (tmp_path / "t.csv", "--set", "skip_bad_rows=true", "--cluster", "sia-64", "--policy", "fifo")
    shown = _run("run", *args)
    assert "rows skipped" in shown.stdout
    assert "t.csv:3: at is 'x'" in shown.stderr
    assert json.loads(_run("run", *args, "-o", "json").stdout)["skipped_rows"] == 1
    assert "rows skipped" in _run("compare", *args).stdout
    assert "rows skipped" not in _run("compare", "bursts", *args[3:], "--set", "bounds=none").stdout


def test_conditions_are_a_file_or_a_name(tmp_path: Path) -> None:
    """Of those below `configs/conditions`; what a file says wrong is named with the file."""
    plain = ("run", *GENERATED, "--policy", "fifo", "--set", "bounds=none", "-o", "json")
    times = [json.loads(_run(*plain, *more).stdout)["avg_jct_s"] for more in ((), ("--set", "conditions=rough"))]
    assert times[0] < times[1]
    (tmp_path / "c.yaml").write_text("faults: {death_evry: 1d}")
    for conditions, told in (("ruogh", "did you mean 'rough'?"), (tmp_path / "c.yaml", "c.yaml: faults.death_evry")):
        done = _run(*plain, "--set", f"conditions={conditions}")
        assert done.exit_code == 2
        assert told in done.stderr
