"""`walras queue`: who is next, how full the fleet is, and what a narrow terminal shows of it."""

import io
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from tests.unit.walras.conftest import job_body
from walras.cli.forecast_text import expected_text
from walras.cli.job_commands import _job_listing
from walras.cli.terminal_output import render_table
from walras.resources.jobs import JobView

Run = Callable[..., Any]


def test_the_queue_shows_who_is_next_below_a_headline(run: Run, fake: Any) -> None:
    """The server sorts, before the limit cuts; one that cannot leaves jobs as they come."""
    for state in ("RUNNING", "PENDING", "HELD", "PENDING", "PENDING"):
        fake.add(state=state)
    assert [line.split()[0] for line in run("queue", "--no-header").stdout.splitlines()] == list("12345")
    types = [{"accelerator": "a100", "free": 1, "capacity": 4}, {"accelerator": "h100", "free": 0, "capacity": 8}]
    machines = [
        {"node_id": "n1", "pool": "p", "accelerator": "a100", "state": "up", "cells": [0, 1, 1, 1]},
        {"node_id": "n2", "pool": "p", "accelerator": "a100", "state": "drained", "cells": [0] * 4},
    ]
    fake.overview = {
        "as_of": "2026-11-05T18:00:00Z", "policy": "walras", "counts": {"RUNNING": 1, "PENDING": 3, "HELD": 1},
        "types": types, "machines": machines, "pools": [], "history": [], "names": {}, "alerts": [],
        "queue": [], "waiting": 3,
    }  # fmt: skip
    fake.turn = [5, 2, 3, 4, 1]
    first, title, *rows = run("queue").stdout.splitlines()
    assert first.startswith("1 running, 3 waiting, 1 held; free: 1 of 4 a100, 0 of 8 h100; 4 a100 take no jobs (")
    assert title.split()[0] == "JOB"
    assert [row.split()[0] for row in rows] == ["5", "2", "3", "4", "1"]
    assert [job["id"] for job in json.loads(run("queue", "-o", "json").stdout)] == [5, 2, 3, 4, 1]
    assert [job["id"] for job in json.loads(run("queue", "-n", "2", "-o", "json").stdout)] == [5, 2]


@pytest.mark.parametrize("width", [80, 120])
def test_a_sweep_in_a_narrow_terminal(width: int) -> None:
    """Numbers are whole, and of the names what differs is there."""
    names = [f"resnet-imagenet-learning-rate-sweep-lr={number / 1000}" for number in range(1, 6)]
    jobs = [
        JobView.model_validate(
            job_body(123450 + at, name=name, steps=1234567, usd=1234.5, detail="needs 8 of 64, 3 free")
        )
        for at, name in enumerate(names)
    ]
    shown = io.StringIO()
    Console(file=shown, width=width, color_system=None).print(render_table(_job_listing(jobs), width))
    title, *told = shown.getvalue().splitlines()
    assert max(map(len, (title, *told))) <= width
    rows = [line for line in told if line.startswith("1234")]
    assert len(rows) == len(jobs)
    for at, row in enumerate(rows):
        assert f".00{at + 1}" in row
        assert {str(123450 + at), "1,234,567"} <= set(row.split())


def test_nothing_that_matters_is_cut_at_eighty_columns() -> None:
    """Of each job its number, name, user, state, accelerators, where or why it waits, and when."""
    now = time.time()
    waits = {"start": (now + 300, now + 600, now + 900), "as_of": now}
    ends = {"start": None, "end": (now + 9 * 86400, now + 10 * 86400, now + 11 * 86400), "as_of": now}
    jobs = [
        JobView.model_validate(job_body(number, name="train-resnet-long-name-1", **fields))
        for number, fields in (
            (123456, {"reason": "WAIT:SWEEP", "forecast": waits, "accelerators": 1024, "user": "grace.hopper"}),
            (123457, {"reason": None, "state": "RUNNING", "accelerator": "h100-80gb", "forecast": ends}),
        )
    ]
    shown = io.StringIO()
    Console(file=shown, width=80, color_system=None).print(render_table(_job_listing(jobs), 80))
    text = " ".join(shown.getvalue().split())
    for job in jobs:
        parts = [str(job.id), job.name, job.user, job.state, str(job.accelerators), expected_text(job.forecast, now)]
        parts.append(job.reason.words if job.reason else job.accelerator)
        assert [part for part in parts if part not in text] == []
    assert max(map(len, shown.getvalue().splitlines())) <= 80


def test_watching_ends_quietly(run: Run, fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`queue -w` shows the queue again and again, until Ctrl-C, which is exit code 130 without a word."""
    fake.turn = [fake.add()]
    looks = []

    async def look(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("walras.cli.terminal_output.pause", look)
    result = run("queue", "-w")
    assert (result.exit_code, result.stderr, looks) == (130, "", [2.0] * 3)
    assert [path.split("?")[0] for _, path, _ in fake.requests] == ["/api/v1/overview", "/api/v1/jobs"] * 3


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
    assert run("hold", "--off", "1,2[3]").exit_code == 0
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
