"""`walras plan checkpoint`: closed forms and published shapes of plans, and input that will not do."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from optimizer.renting.spot_lifetimes import CheckpointCosts, useful_part
from walras.cli.main import app

JOB = ("--write", "20s", "--work", "10h")
MEMORYLESS = ("--lifetime", "exponential", "--mean-life", "8h")


def _run(*args: object) -> Any:
    return CliRunner().invoke(app, ["plan", "checkpoint", *(str(arg) for arg in args)])


def _told(*args: object) -> tuple[Any, dict[str, Any]]:
    result = _run(*args, "-o", "json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    return told, {plan["name"]: plan for plan in told["plans"]}


def test_without_memory_the_plan_is_young_and_daly_s() -> None:
    """Even segments, as long as the closed form expects at their interval, none better than the best."""
    told, plans = _told(*MEMORYLESS, *JOB)
    assert told["young_daly_h"] == pytest.approx((2 * 20 / 3600 * 8) ** 0.5, rel=1e-3)
    best = plans["best"]
    interval_h = best["segments_h"][0]
    assert max(best["segments_h"]) - min(best["segments_h"]) < 2 * told["step_h"]
    closed_h = 10 / useful_part(CheckpointCosts(20 / 3600, 120 / 3600), 1 / 8, interval_h)
    assert best["expected_h"] == pytest.approx(closed_h, rel=1e-3)
    assert plans["Young-Daly"]["expected_h"] >= best["expected_h"] - 1e-9
    assert plans["no checkpoints"]["expected_h"] > 1.5 * best["expected_h"]


@pytest.mark.parametrize("law", [MEMORYLESS, ("--lifetime", "bathtub")])
def test_hours_are_accounted_for(law: tuple[str, ...]) -> None:
    """Work, what was lost, written and restarted is what is expected; ten hours of writing are thirty checkpoints'."""
    _, plans = _told(*law, *JOB)
    for plan in plans.values():
        whole = 10 + plan["lost_h"] + plan["writing_h"] + plan["revocations"] * 120 / 3600
        assert plan["expected_h"] == pytest.approx(whole)
        assert min(plan["lost_h"], plan["writing_h"], plan["revocations"]) >= 0
    even = plans["Young-Daly"]
    assert even["writing_h"] == pytest.approx(len(even["segments_h"]) * 20 / 3600)


def test_in_a_bathtub_saving_is_for_the_young_and_the_old() -> None:
    """Short segments first, long ones in the middle of the machine's life; an old machine of middle age is kept."""
    told, plans = _told("--lifetime", "bathtub", *JOB)
    segments_h = plans["best"]["segments_h"]
    assert segments_h == sorted(segments_h)
    assert segments_h[-1] > 10 * segments_h[0]
    assert told["better_than_a_new_machine"] is None
    middle, kept = _told("--lifetime", "bathtub", *JOB, "--age", "8h")
    assert middle["better_than_a_new_machine"] is True
    assert kept["best"]["expected_h"] < plans["best"]["expected_h"]


def test_work_that_no_machine_outlasts_never_ends_unsaved() -> None:
    """Thirty hours without a checkpoint on machines of a day: never, for people; null, for programs."""
    job = ("--lifetime", "bathtub", "--write", "5m", "--work", "30h", "--step", "30m")
    _, plans = _told(*job)
    assert plans["no checkpoints"]["expected_h"] is None
    assert plans["best"]["expected_h"] < 36
    assert "never" in _run(*job).stdout


def test_lives_may_come_from_a_file(tmp_path: Path) -> None:
    """Machines that all live an hour: two half hours are saved, a whole one never; one still alive counts as alive."""
    path = tmp_path / "lives.csv"
    path.write_text("lifetime_s\n3600\n3600\n")
    told, plans = _told("--lifetime", path, "--write", "1m", "--work", "2h")
    assert told["mean_life_h"] == pytest.approx(1, abs=0.01)
    assert plans["no checkpoints"]["expected_h"] is None
    assert max(plans["best"]["segments_h"]) < 1
    path.write_text("lifetime_s,taken\n3600,1\n7200,0\n")
    half, _ = _told("--lifetime", path, "--write", "1m", "--work", "2h")
    assert half["mean_life_h"] == pytest.approx(1.5, abs=0.01)


def test_people_are_told_when_to_save() -> None:
    """The best segments, alike ones together, and what they are measured by."""
    shown = _run("--lifetime", "bathtub", *JOB).stdout
    assert "Best: save after 4 x 10m00s" in shown
    assert "No plan in steps of 5m00s is expected to end sooner than the best one." in shown


def test_work_that_is_too_long_is_planned_in_parts() -> None:
    """Four days on machines of an hour: no step is short enough, unless one is asked for."""
    job = ("--lifetime", "exponential", "--mean-life", "1h", "--write", "20s", "--work", "96h")
    refused = _run(*job)
    assert refused.exit_code == 2
    assert "fix: plan a part, such as --work 12h38m" in refused.stderr
    assert _run(*job, "--step", "2h").exit_code == 0


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--lifetime", "exponential", *JOB), "--mean-life"),
        (("--lifetime", "bathtub", "--mean-life", "8h", *JOB), "--mean-life"),
        (("--lifetime", "bathtub", "--bathtub", "0.4,1h,1h", *JOB), "--bathtub"),
        (("--lifetime", "bathtub", "--bathtub", "2,1h,1h,24h", *JOB), "--bathtub"),
        (("--lifetime", "bathtub", "--bathtub", "0.4,1h,0h,24h", *JOB), "--bathtub"),
        (("--lifetime", "bathtub", "--bathtub", "0.4,1h,soon,24h", *JOB), "--bathtub"),
        (("--lifetime", "bathtub", "--age", "25h", *JOB), "--age"),
        (("--lifetime", "bathub", *JOB), "neither a law nor a file"),
        ((*MEMORYLESS, "--write", "0s", "--work", "10h"), "--write"),
        ((*MEMORYLESS, "--write", "2h", "--work", "1h"), "--write"),
        ((*MEMORYLESS, *JOB, "--step", "1s"), "--step"),
        ((*MEMORYLESS, *JOB, "--step", "11h"), "--step"),
    ],
)
def test_what_cannot_be_planned_is_told_with_a_fix(args: tuple[object, ...], told: str) -> None:
    """Exit code 2, and words that name the option."""
    result = _run(*args)
    assert result.exit_code == 2, result.output
    assert told in result.stderr
    assert "fix:" in result.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("lifetime_s\n-1\n", ":2: lifetime_s is '-1'"),
        ("life\n1\n", "no column lifetime_s"),
        ("lifetime_s,taken\n10,2\n", ":2: taken is '2'"),
        ("lifetime_s,taken\n10,0\n", "no machine was taken"),
    ],
)
def test_lives_that_cannot_be_read_are_named_with_their_line(tmp_path: Path, text: str, told: str) -> None:
    """File, line and column."""
    path = tmp_path / "lives.csv"
    path.write_text(text)
    result = _run("--lifetime", path, *JOB)
    assert (result.exit_code, told in result.stderr) == (2, True), result.stderr
