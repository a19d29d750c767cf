"""Sweeps on the command line: one line in the queue, and commands that take them whole or in part."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from walras.cli.main import app

Run = Callable[..., Any]


@pytest.fixture
def run(fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `walras ARGS` as ada against the fake server."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token").write_text("walras_user_secret\n")
    settings = {"WALRAS_SERVER": fake.url, "WALRAS_TOKEN_FILE": str(tmp_path / "token"), "HOME": str(tmp_path)}
    return lambda *args: CliRunner().invoke(app, list(args), env=settings)


@pytest.fixture
def sweep(fake: Any) -> Any:
    """Job 1 by itself; jobs 2 to 6 are a sweep with indices 0 to 4: ended well, failed, running, and two waiting."""
    fake.add(name="alone", state="FAILED", spec={"run": "x"})
    for index, state in enumerate(("SUCCEEDED", "FAILED", "RUNNING", "PENDING", "PENDING")):
        spec = {"run": "t {lr}", "array": "%2", "matrix": {"lr": ["1", "2", "3", "4", "5"]}, "array_index": index}
        fake.add(name="grid", state=state, sweep=2, sweep_index=index, spec=spec)
    return fake


def acted(fake: Any, verb: str) -> list[int]:
    return [int(path.split("/")[4]) for _, path, _ in fake.requests if path.endswith(f"/{verb}")]


def test_the_queue_shows_one_line_for_a_sweep(run: Run, fake: Any) -> None:
    """Its states are counted and its progress is the part that has ended; other jobs are shown as ever."""
    fake.add()
    fake.add(sweep=2, sweep_index=4, sweep_states={"PENDING": 90, "RUNNING": 8, "SUCCEEDED": 1, "FAILED": 1})
    result = run("queue")
    line = next(line for line in result.stdout.splitlines() if line.lstrip().startswith("2["))
    assert "2[*]" in line
    assert "RUNNING" in line
    assert "8 running, 90 pending, 1 failed, 1 succeeded" in line.replace("  ", " ")
    assert "2%" in line
    assert any("sweeps=folded" in path for _, path, _ in fake.requests)
    fake.requests.clear()
    run("queue", "--expand")
    assert not any("sweeps=folded" in path for _, path, _ in fake.requests)


def test_a_sweep_is_cancelled_as_a_whole_those_that_wait_first(run: Run, sweep: Any) -> None:
    """Ended jobs are left alone; one line tells; a single job of it is named by its index."""
    result = run("cancel", "2")
    called = [body["jobs"] for _, path, body in sweep.requests if path.endswith("jobs:cancel")]
    assert (result.exit_code, called) == (0, [[6, 5, 4]])
    assert result.stdout == "sweep 2: is CANCELLED (3 jobs)\n"


def test_jobs_of_a_sweep_are_named_by_their_indices(run: Run, sweep: Any) -> None:
    assert run("hold", "2[3,4]").exit_code == 0
    assert acted(sweep, "hold") == [5, 6]
    assert run("release", "1,2[3]").exit_code == 0
    assert acted(sweep, "release") == [1, 5]
    assert "grid" in run("show", "2[1]").stdout
    for word, told in (("2[9]", "sweep 2 has no job 9"), ("1[0]", "no sweep begins with job 1"), ("2[x]", "is no job")):
        result = run("cancel", word)
        assert (result.exit_code, told in result.output) == (2, True), result.output


def test_what_failed_of_a_sweep_runs_again_as_a_sweep(run: Run, sweep: Any) -> None:
    """With its limit and its own values; single jobs beside it by themselves; without --failed all of it."""
    result = run("rerun", "2", "--failed")
    assert result.exit_code == 0, result.output
    again = {"run": "t {lr}", "array": "1%2", "matrix": {"lr": ["1", "2", "3", "4", "5"]}}
    assert sweep.jobs[7]["spec"] == again
    assert run("rerun", "--failed").exit_code == 0
    assert [sweep.jobs[job]["spec"] for job in (8, 9)] == [{"run": "x"}, again]
    run("rerun", "2")
    assert sweep.jobs[10]["spec"]["array"] == "0-4%2"


def test_wait_takes_a_sweep_for_all_of_it(run: Run, sweep: Any) -> None:
    assert run("wait", "2[0]", "-o", "json").exit_code == 0
    assert run("wait", "2", "--timeout", "0.1s").exit_code == 101
