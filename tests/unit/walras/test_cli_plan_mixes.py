"""`walras plan mixes`: the menu that is shown and written, chosen from by price, and input that will not do."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.layer_profiles import FAST, SLOW, small_profile
from walras.cli.main import app
from walras.spec.job_spec import parse_spec


def _run(*args: object) -> Any:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def _told(*args: object) -> Any:
    result = _run(*args, "-o", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(small_profile()))
    return path


def test_the_menu_is_shown_with_what_a_step_costs(profile: Path) -> None:
    """USD of a step are the prices of all accelerators held, over the speed."""
    told = _told("plan", "mixes", profile, "--offer", f"{FAST}=4", "--offer", f"{SLOW}=4")
    assert told["types"] == [FAST, SLOW]
    assert told["found"] == len(told["menu"])
    for plan in told["menu"]:
        usd_per_h = 3.0 * plan["accelerators"][0] + 1.0 * plan["accelerators"][1]
        assert plan["usd_per_step"] == pytest.approx(usd_per_h / 3600 / plan["steps_per_s"])
    table = _run("plan", "mixes", profile, "--offer", f"{FAST}=4", "--offer", f"{SLOW}=4").output
    assert table.splitlines()[0].split() == ["FAST", "SLOW", "STEPS/S", "USD/STEP", "MICRO-BATCH", "STAGES"]
    assert f"{told['found']} pairs of counts are useful; {told['found']} are shown." in table


def test_walras_chooses_from_the_written_menu_by_price(profile: Path, tmp_path: Path) -> None:
    """Alone the job takes the fastest mix; beside jobs that pay more for the slow type it keeps off that; it holds."""
    out = tmp_path / "menu.json"
    assert _run("plan", "mixes", profile, "--offer", f"{FAST}=2", "--offer", f"{SLOW}=4", "--out", out).exit_code == 0
    problem = json.loads(out.read_text())
    fastest = max(problem["jobs"][0]["configurations"], key=lambda each: each["steps_per_s"])
    assert set(fastest["uses"]) == {FAST, SLOW}
    alone = _told("solve", out, "--policy", "walras", "--check")
    assert alone["check"]["holds"]
    assert _taken(alone) == fastest["uses"]
    others = [
        {"id": row, "weight": 50, "configurations": [{"pool": SLOW, "accelerators": 1, "steps_per_s": 1}]}
        for row in range(2, 6)
    ]
    problem["jobs"] += others
    out.write_text(json.dumps(problem))
    beside = _told("solve", out, "--policy", "walras", "--check")
    assert beside["check"]["holds"]
    assert set(_taken(beside)) == {FAST}
    assert beside["plan"]["prices"]["pools"][SLOW] > 0


def _taken(answer: dict[str, Any]) -> dict[str, int]:
    """What the first job holds in the plan."""
    return next(job["uses"] for job in answer["plan"]["jobs"] if job["id"] == 1)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--offer", "fast"], "is no offer"),
        (["--offer", "fast=0"], "is no offer"),
        (["--offer", "fast=99999999999"], "is no offer"),
        (["--offer", "h100=8"], "measured no 'h100'"),
        (["--offer", "fast=1", "--offer", "fast=2"], "one type or two"),
        (["--offer", "slow=1"], "no plan of small fits on slow=1"),
    ],
)
def test_offers_that_will_not_do_are_named(profile: Path, args: list[str], said: str) -> None:
    """With what to give instead."""
    result = _run("plan", "mixes", profile, *args)
    assert result.exit_code != 0
    assert said in result.output


def test_a_profile_that_misses_layers_is_refused_with_its_place(tmp_path: Path) -> None:
    """All tables have the same layers."""
    data = small_profile()
    data["profiles"][FAST]["2"]["1"].pop()
    path = tmp_path / "short.json"
    path.write_text(json.dumps(data))
    result = _run("plan", "mixes", path, "--offer", f"{FAST}=1")
    assert result.exit_code != 0
    assert "profiles.fast.2.1" in result.output
    assert "has 2 layers of 3" in result.output


def test_the_menu_is_written_as_plans_of_a_job_file(profile: Path, tmp_path: Path) -> None:
    """A job file with the written lines has every mix at its speed; a menu too long for one names what thins it."""
    plans = tmp_path / "plans.yaml"
    offers = ("--offer", f"{FAST}=4", "--offer", f"{SLOW}=4")
    assert "stands in a job file" in _run("plan", "mixes", profile, *offers, "--plans", plans).output
    menu = _told("plan", "mixes", profile, *offers)["menu"]
    spec = parse_spec("run: python train.py\n" + plans.read_text())
    assert [plan.steps_per_s for plan in spec.plans] == [plan["steps_per_s"] for plan in menu]
    assert [sum(use.count for use in plan.uses) for plan in spec.plans] == [sum(each["accelerators"]) for each in menu]
