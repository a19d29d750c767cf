"""Menus of one language model over A100 and V100 beside the answers that another planner recorded (`WALRAS_DATA`)."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from walras.cli.main import app

pytestmark = pytest.mark.slow
A100, V100 = "A100-40", "V100-16"


@pytest.fixture(scope="module")
def profile(reference_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sailor") / "profile.json"
    path.write_bytes(gzip.decompress((reference_data / "sailor" / "opt350_profiles.json.gz").read_bytes()))
    return path


@pytest.fixture(scope="module")
def recorded(reference_data: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((reference_data / "sailor" / "recorded.json").read_text())["rows"]
    return rows


@pytest.fixture(scope="module")
def menu(profile: Path) -> list[dict[str, Any]]:
    return [*_menu(profile, f"{A100}=80", f"{V100}=240"), *_menu(profile, f"{A100}=128")]


def _menu(profile: Path, *offers: str) -> list[dict[str, Any]]:
    args = [word for offer in offers for word in ("--offer", offer)]
    result = CliRunner().invoke(app, ["plan", "mixes", str(profile), *args, "-o", "json"])
    assert result.exit_code == 0, result.output
    plans: list[dict[str, Any]] = json.loads(result.stdout)["menu"]
    return plans


def _within(menu: list[dict[str, Any]], row: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        plan
        for plan in menu
        if plan["accelerators"][0] <= row["a100_40"] and [*plan["accelerators"], 0][1] <= row["v100_16"]
    ]


def test_no_recorded_answer_is_faster_than_the_menu(menu: list[dict[str, Any]], recorded: list[dict[str, Any]]) -> None:
    """Fifteen asks for speed: equal to a part in 100,000, or our plan is faster; three quarters are equal."""
    asked = [row for row in recorded if row["objective"] == "throughput"]
    ratios = [max(plan["steps_per_s"] for plan in _within(menu, row)) / row["iterations_per_s"] for row in asked]
    assert len(ratios) == 15
    assert min(ratios) > 1 - 1e-5
    assert sum(abs(ratio - 1) < 1e-5 for ratio in ratios) == 11


def test_the_cheapest_plan_that_is_fast_enough_costs_no_more(
    menu: list[dict[str, Any]], recorded: list[dict[str, Any]]
) -> None:
    """The ask for money: the least USD of a step at a least speed."""
    (row,) = [row for row in recorded if row["objective"] == "iteration_cost"]
    able = [plan for plan in _within(menu, row) if plan["steps_per_s"] >= row["min_iterations_per_s"]]
    assert min(plan["usd_per_step"] for plan in able) <= row["usd_per_iteration"] * (1 + 1e-5)
