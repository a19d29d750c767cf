"""`walras queue`: who is next, how full the fleet is, and what a narrow terminal shows of it."""

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from tests.unit.walras.conftest import job_body
from walras.api import JobView
from walras.cli.job_commands import _job_listing
from walras.cli.terminal_output import render_table

Run = Callable[..., Any]


def test_the_queue_shows_who_is_next_below_a_headline(run: Run, fake: Any) -> None:
    """Waiting jobs in the server's order, those it does not name behind them, running ones last; a server without an
    overview leaves them as they come."""
    for state in ("RUNNING", "PENDING", "HELD", "PENDING", "PENDING"):
        fake.add(state=state)
    assert [line.split()[0] for line in run("queue", "--no-header").stdout.splitlines()] == list("12345")
    types = [{"accelerator": "a100", "free": 1, "capacity": 4}, {"accelerator": "h100", "free": 0, "capacity": 8}]
    fake.overview = {
        "as_of": "2026-11-05T18:00:00Z", "policy": "walras", "counts": {"RUNNING": 1, "PENDING": 3, "HELD": 1},
        "types": types, "machines": [], "pools": [], "history": [], "names": {}, "alerts": [],
        "queue": [fake.jobs[5], fake.jobs[2]], "waiting": 4,
    }  # fmt: skip
    first, title, *rows = run("queue").stdout.splitlines()
    assert first.startswith("1 running, 4 waiting; free: 1 of 4 a100, 0 of 8 h100 (")
    assert title.split()[0] == "JOB"
    assert [row.split()[0] for row in rows] == ["5", "2", "3", "4", "1"]
    assert [job["id"] for job in json.loads(run("queue", "-o", "json").stdout)] == [5, 2, 3, 4, 1]


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
    title, *rows = shown.getvalue().splitlines()
    assert max(map(len, (title, *rows))) <= width
    for at, row in enumerate(rows):
        assert f".00{at + 1}" in row
        assert {str(123450 + at), "1,234,567"} <= set(row.split())


def test_watching_ends_quietly(run: Run, fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`queue -w` shows the queue again and again, until Ctrl-C, which is exit code 130 without a word."""
    fake.add()
    looks = []

    async def look(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("walras.cli.terminal_output.pause", look)
    result = run("queue", "-w")
    assert (result.exit_code, result.stderr, looks) == (130, "", [2.0] * 3)
    assert [path.split("?")[0] for _, path, _ in fake.requests] == ["/api/v1/overview", "/api/v1/jobs"] * 3
