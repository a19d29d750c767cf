"""docs/concepts.md: what it states of an example is what the command answers, and its pictures can be drawn anew."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from walras.cli.main import app

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/concepts.md").read_text()

pytestmark = pytest.mark.slow


def solved(problem: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["policy", "solve", f"example:{problem}", "--policy", "walras", "-o", "json"])
    assert result.exit_code == 0, result.output
    plan: dict[str, Any] = json.loads(result.stdout)["plan"]
    return plan


def test_the_table_and_the_sums_of_the_page_are_those_of_the_answer() -> None:
    """The table word for word; surpluses and rents, which add up to the bound and to what the plan is worth."""
    shown = CliRunner().invoke(
        app, ["policy", "solve", "example:three_pools", "--policy", "walras"], env={"COLUMNS": "110"}
    )
    assert shown.exit_code == 0, shown.output
    blocks = re.findall(r"^    (.+)$", PAGE, re.MULTILINE)
    printed = [line.rstrip() for line in shown.output.splitlines()]
    assert [line for line in blocks[1:] if line.rstrip() not in printed] == []
    assert len(blocks) == 13

    plan = solved("three_pools")
    prices = plan["prices"]["pools"]
    capacity = {
        pool: about["capacity"]
        for pool, about in json.loads((ROOT / "configs/problems/three_pools.json").read_text())["pools"].items()
    }
    surpluses = sum(job["surplus"] for job in plan["jobs"])
    rents = sum(prices[pool] * capacity[pool] for pool in prices)
    text = " ".join(PAGE.split())
    assert f"the surpluses are {surpluses:.3f} and the pools earn {rents:.3f}, together {surpluses + rents:.3f}" in text
    assert surpluses + rents == pytest.approx(plan["yardstick"]["bound"])
    assert plan["yardstick"]["gap"] == 0


def test_the_second_example_has_the_gap_that_its_picture_shows() -> None:
    assert f"{solved('gangs_of_three')['yardstick']['gap']:.0%}".replace("%", " %") in PAGE


def test_the_pictures_are_drawn_anew(tmp_path: Path) -> None:
    """`make pictures` draws all that the page shows: whole SVG files, which fetch nothing from elsewhere."""
    script = ROOT / "docs/pictures/draw_concepts.py"
    subprocess.run([sys.executable, script, tmp_path], check=True, timeout=200)
    shown = set(re.findall(r"\]\(pictures/(\w+\.svg)\)", PAGE))
    assert {path.name for path in tmp_path.iterdir()} == shown
    for name in shown:
        for path in (tmp_path / name, ROOT / "docs/pictures" / name):
            assert ElementTree.parse(path).getroot().tag.endswith("svg")
            assert not re.search(r"(href|src)=\"http|url\(\"?http|<script", path.read_text())
