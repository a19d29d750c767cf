"""`walras plan collection`: the least money and the least time by hand, bounds, and files that will not do."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from walras.cli.main import app

EXAMPLE = Path(__file__).resolve().parents[3] / "configs" / "collections" / "five-models.yaml"
#: The fast machine is dearer per step: 4 USD for 3 steps an hour, against 1 USD for 1. Twelve hours' work each.
MACHINES = "machines: [{name: slow, usd_per_h: 1, count: 2}, {name: fast, usd_per_h: 4, count: 1}]\n"
JOB = "{name: %s, steps: 43200, steps_per_s: {slow: 1, fast: 3}}"
TWO = f"{MACHINES}jobs: [{JOB % 'a'}, {JOB % 'b'}]\n"


def _run(*args: object) -> Any:
    return CliRunner().invoke(app, ["plan", "collection", *(str(arg) for arg in args)])


def _told(*args: object) -> Any:
    result = _run(*args, "-o", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def two(tmp_path: Path) -> Path:
    path = tmp_path / "two.yaml"
    path.write_text(TWO)
    return path


def test_time_is_bought_only_where_it_is_short(two: Path) -> None:
    """Twelve hours: both on cheap machines. Eight: both on the fast one, one after the other; with moves it is less."""
    long, short = _told(two, "--deadline", "12h"), _told(two, "--deadline", "8h")
    assert (long["plan"]["usd"], long["plan"]["time_h"]) == (24, 12)
    assert (short["plan"]["usd"], short["plan"]["time_h"]) == (32, 8)
    assert [(job["machine_type"], job["starts_h"], job["hours"]) for job in short["jobs"]] == [
        ("fast", 0, 4),
        ("fast", 4, 4),
    ]
    stays, moves = (bound["usd"] for bound in short["bounds"])
    assert (stays, moves) == (pytest.approx(32), pytest.approx(28))
    assert short["above_bound"] == pytest.approx(0, abs=1e-6)


def test_a_budget_buys_time(two: Path) -> None:
    """24 USD: twelve hours; 32 USD: eight."""
    assert [_told(two, "--budget", usd)["plan"]["time_h"] for usd in (24, 32)] == [12, 8]


def test_the_same_money_is_not_spent_more_slowly(two: Path) -> None:
    """A deadline of a week leaves the two cheap machines side by side, not one after the other on one of them."""
    told = _told(two, "--deadline", "1w")
    assert (told["plan"]["usd"], told["plan"]["time_h"]) == (24, 12)
    assert {job["machine"] for job in told["jobs"]} == {0, 1}


@pytest.mark.parametrize("asked", [("--deadline", "24h"), ("--budget", 140)])
def test_the_example_keeps_what_it_is_asked_and_its_bounds(asked: tuple[object, ...]) -> None:
    """Nobody is on two machines at once, no machine has two jobs at once, sums add up, no plan is below its bounds."""
    told = _told(EXAMPLE, *asked)
    plan, jobs = told["plan"], told["jobs"]
    assert len(jobs) == 12
    assert plan["usd"] == pytest.approx(sum(job["usd"] for job in jobs))
    assert plan["time_h"] == pytest.approx(max(job["starts_h"] + job["hours"] for job in jobs))
    assert plan["time_h"] <= 24 if asked[0] == "--deadline" else plan["usd"] <= 140
    by_machine: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for job in jobs:
        spans = by_machine.setdefault((job["machine_type"], job["machine"]), [])
        spans.append((job["starts_h"], job["starts_h"] + job["hours"]))
    for spans in by_machine.values():
        assert all(first[1] <= second[0] + 1e-9 for first, second in pairwise(spans))
    for bound in told["bounds"]:
        for what in ("usd", "time_h"):
            assert bound[what] is None or bound[what] <= plan[what] * (1 + 1e-6)
    fastest, cheapest = told["others"]
    assert fastest["time_h"] <= plan["time_h"] * (1 + 1e-3)
    assert cheapest["usd"] <= plan["usd"] * (1 + 1e-9)


def test_people_see_every_job_and_the_bounds(two: Path) -> None:
    """A line per job, a line per plan, and how far the plan may be from the best."""
    shown = _run(two, "--deadline", "8h").stdout
    for told in ("fast 0", "bound: moves are free", "fastest at any price", "At most 0.0% more money"):
        assert told in shown


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ((), "--deadline"),
        (("--deadline", "8h", "--budget", 10), "either money or time"),
        (("--deadline", "0h"), "above 0"),
        (("--deadline", "1h"), "cannot all be done within 1h00m; the fastest plan takes"),
        (("--budget", "inf"), "--budget"),
        (("--budget", 20), "fix: at least 24.00"),
    ],
)
def test_what_cannot_be_planned_is_told_with_a_fix(two: Path, args: tuple[object, ...], told: str) -> None:
    """Exit code 2, and words that name the option."""
    result = _run(two, *args)
    assert result.exit_code == 2, result.output
    assert told in result.stderr
    assert "fix:" in result.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (TWO.replace("slow: 1, fast: 3", "slw: 1"), "jobs[0].steps_per_s.slw"),
        (TWO.replace("name: b", "name: a"), "jobs[1].name"),
        (TWO.replace("name: fast", "name: slow"), "machines[1].name"),
        (TWO.replace("steps: 43200", "steps: 0"), "jobs[0].steps"),
        (TWO.replace("slow: 1, fast: 3", ""), "jobs[0].steps_per_s"),
        (TWO.replace("count: 2", "count: 0"), "machines[0].count"),
        (TWO.replace("count: 2", "machines: 2"), "machines[0].machines"),
        (MACHINES + "jobs: []\n", "jobs"),
        ("- 1\n", "fields are expected"),
    ],
)
def test_a_file_that_will_not_do_is_named_with_its_field(tmp_path: Path, text: str, told: str) -> None:
    """File, path of the field, exit code 2."""
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    result = _run(path, "--deadline", "12h")
    assert result.exit_code == 2, result.output
    assert told in result.stderr
    assert "bad.yaml" in result.stderr
