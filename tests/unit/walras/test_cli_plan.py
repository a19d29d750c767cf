"""`walras plan capacity`: published figures for rates, small traces by hand, and input that will not do."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from walras.cli.main import app

PHILLY = "job_id,user,submit_time_s,num_gpus,duration_s,status,gpu_type,cluster\n"
PUBLISHED = ("--arrivals-per-h", 0.2, "--job-length", "500h", "--reserved-price", 0.4)


def _run(*args: object) -> Any:
    return CliRunner().invoke(app, ["plan", "capacity", *(str(arg) for arg in args)])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Ada's long job, and four short ones of Bob's while it runs."""
    rows = ["1,ada,0,1,360000,Pass,v100,c", *(f"{at},bob,{at * 3600},1,360,Pass,v100,c" for at in range(2, 6))]
    path = tmp_path / "trace.csv"
    path.write_text(PHILLY + "\n".join(rows) + "\n")
    return path


def test_the_waiting_game_s_own_example_is_exact() -> None:
    """Arrivals .2, services .002, reserved at .4: 108 servers, price .467, .035 on demand; .432 where all wait."""
    told = json.loads(_run(*PUBLISHED, "-o", "json").stdout)
    plans = {plan["name"]: plan for plan in told["plans"]}
    best = plans["nobody waits"]
    assert (best["accelerators"], round(best["price"], 3), round(best["on_demand"], 3)) == (108, 0.467, 0.035)
    waiting = plans["all wait"]
    assert (waiting["accelerators"], round(waiting["price"], 3)) == (108, 0.432)
    assert waiting["mean_wait_h"] == pytest.approx(20.5, abs=0.05)
    assert plans["all on demand"]["price"] == 1.0
    assert told["bounds"][-1] == {"name": "every reserved hour used", "price": 0.4}


def test_a_trace_is_planned_with_who_would_leave(trace: Path) -> None:
    """Waiting behind a job of 100 h saves Bob nothing: he leaves, and is told of."""
    shown = _run(trace, "--reserved-price", 0.4, "--longest-wait", "200h", "--on-demand", 2, "--leave-above", 15)
    assert shown.exit_code == 0, shown.output
    assert "1 of 2 users would leave" in shown.stdout
    assert "bound: nobody waits, gangs split" in shown.stdout
    assert "USD/H OF WORK" in shown.stdout
    told = json.loads(_run(trace, "--on-demand", 2, "--reserved", 0.8, "--accelerators", 2, "-o", "json").stdout)
    given = told["plans"][-1]
    assert (told["reserved_price"], given["accelerators"], given["on_demand"]) == (0.4, 2, 0.0)
    assert given["price"] == pytest.approx(80 / 100.4)


def test_no_plan_is_cheaper_than_its_bound(trace: Path) -> None:
    """What nobody waits for is held to the first bound, everything to the second."""
    told = json.loads(_run(trace, "--reserved-price", 0.3, "-o", "json").stdout)
    split, used = (bound["price"] for bound in told["bounds"])
    plans = {plan["name"]: plan["price"] for plan in told["plans"]}
    assert plans["nobody waits"] >= split - 1e-9
    assert min(plans.values()) >= used - 1e-9


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ((), "price of a reserved hour"),
        (("--reserved-price", 0.4), "nothing to plan for"),
        (("--reserved-price", 0.4, "--arrivals-per-h", -1, "--job-length", "1h"), "--arrivals-per-h"),
        (("--reserved-price", 1.4), "at most 1"),
        (("--on-demand", 1, "--reserved", 0), "above 0"),
        (("--reserved-price", 0.4, "--reserved", 1), "two prices"),
        ((*PUBLISHED, "--accelerators", 3), "on a trace"),
        ((*PUBLISHED, "--longest-wait", "long"), "--longest-wait"),
        (("--reserved-price", 0.4, "--arrivals-per-h", 1e9, "--job-length", "1h"), "too many"),
        (("no-such-file.csv", "--reserved-price", 0.4), "no-such-file.csv"),
        (("no-such-file.csv", *PUBLISHED), "its own arrivals"),
    ],
)
def test_what_cannot_be_planned_is_told_with_a_fix(args: tuple[object, ...], told: str) -> None:
    """Exit 2, and words that name the field."""
    result = _run(*args)
    assert result.exit_code == 2
    assert told in result.stderr


def test_a_job_without_a_length_is_named(tmp_path: Path) -> None:
    """Reserving for it would be guessing."""
    path = tmp_path / "t.jsonl"
    path.write_text('{"at": 0, "name": "j1", "kind": "k", "gang": 1, "steps": 10}\n')
    result = _run(path, "--reserved-price", 0.4)
    assert (result.exit_code, "j1" in result.stderr) == (2, True)
