"""`walras plan workers`: the published cluster, a choice by hand, and files that will not do."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from walras.cli.main import app

EXAMPLE = Path(__file__).resolve().parents[3] / "configs" / "markets" / "transient-workers.yaml"
#: The fast one costs twice as much per step.
SLOW = "{name: slow, steps_per_s: 1, spot_usd_per_h: 1, on_demand_usd_per_h: 3, mean_life: 100w}"
FAST = "{name: fast, steps_per_s: 4, spot_usd_per_h: 8, mean_life: 100w}"
RUN = f"steps: 3600\nworkers: [{SLOW}, {FAST}]\n"


def _run(*args: object) -> Any:
    return CliRunner().invoke(app, ["plan", "workers", *(str(arg) for arg in args)])


def _told(*args: object) -> Any:
    result = _run(*args, "-o", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    return path


def test_eight_transient_workers_save_what_was_published() -> None:
    """62.9 % in 1,841 s within 10 %; the cheapest as fast saves at least 65 %, and is hardly above its bound."""
    told = _told(EXAMPLE, "--cluster", "k80=8", "--within", "1860s")
    clusters = {cluster["name"]: cluster for cluster in told["clusters"]}
    asked = clusters["as asked"]
    assert asked["workers"] == [["k80", 8]]
    assert asked["took_s"] == pytest.approx(1841, rel=0.1)
    assert asked["saved"] == pytest.approx(0.629, rel=0.1)
    best = told["clusters"][0]
    assert (best["name"], best["saved"] >= 0.65, best["took_s"] <= 1860) == ("cheapest in time", True, True)
    assert told["bound_usd"] <= best["usd"] <= 1.02 * told["bound_usd"]
    assert told["tried"] == 44


def test_time_is_bought_only_where_it_is_short(run: Path) -> None:
    """An hour: one slow worker, 1 USD against 3 on demand. A quarter of it: four slow ones, or a fast one."""
    hour, quarter = _told(run, "--within", "61m"), _told(run, "--within", "16m", "--most", 3)
    best = hour["clusters"][0]
    assert (best["usd"], best["saved"]) == (pytest.approx(1, rel=1e-3), pytest.approx(2 / 3, rel=1e-3))
    assert {name for name, _ in best["workers"]} == {"slow"}
    assert "fast" in dict(quarter["clusters"][0]["workers"])
    # Three slow workers on demand are not in time, and nobody knows what a fast one costs there.
    assert quarter["clusters"][0]["saved"] is None


def test_workers_that_die_young_take_longer(run: Path) -> None:
    """Lives from a file beside the other: half of the workers are lost within the hour, and replaced."""
    (run.parent / "lives.csv").write_text("lifetime_s,taken\n600,1\n36000,0\n")
    run.write_text(RUN.replace("mean_life: 100w", "lives: lives.csv, replacement: 10m"))
    told = _told(run, "--most", 1)
    best = told["clusters"][0]
    assert best["workers"] == [["slow", 1]]
    assert (best["losses"], best["took_s"]) == (pytest.approx(0.5), pytest.approx(3600 + 300))
    assert told["bound_usd"] == pytest.approx(1)


def test_people_are_told_the_clusters_and_the_bound(run: Path) -> None:
    """A line per cluster, the best marked."""
    shown = _run(run).stdout
    for told in (">  cheapest", "fastest", "cheapest, on demand", "bound: no worker is taken", "The best of all 44"):
        assert told in shown


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--within", "1m"), "the fastest takes"),
        (("--within", "0s"), "above 0"),
        (("--cluster", "slw=1"), "of slow, fast"),
        (("--cluster", "slow=0"), "no part of a cluster"),
        (("--cluster", "slow"), "no part of a cluster"),
    ],
)
def test_what_cannot_be_planned_is_told_with_a_fix(run: Path, args: tuple[object, ...], told: str) -> None:
    """Exit code 2, and words that name the option."""
    result = _run(run, *args)
    assert result.exit_code == 2, result.output
    assert told in result.stderr
    assert "fix:" in result.stderr


SATURATED = RUN + "servers: {usd_per_h: 1, saturation: [{alone: 2, through: 2}, {alone: 1, through: 1}]}\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (RUN.replace("name: fast", "name: slow"), "workers[1].name"),
        (RUN.replace("steps_per_s: 4", "steps_per_s: 0"), "workers[1].steps_per_s"),
        (RUN.replace(", mean_life: 100w", ""), "mean_life"),
        (RUN.replace("mean_life: 100w", "lives: none.csv"), "none.csv"),
        (SATURATED, "saturation[1]"),
        (RUN.replace("steps: 3600", "steps: many"), "steps"),
        ("steps: 1\nworkers: []\n", "workers"),
    ],
)
def test_a_file_that_will_not_do_is_named_with_its_field(tmp_path: Path, text: str, told: str) -> None:
    """File, path of the field, exit code 2."""
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    result = _run(path)
    assert result.exit_code == 2, result.output
    assert told in result.stderr


def test_too_many_clusters_are_not_tried(run: Path) -> None:
    """Five kinds of up to sixty-four workers are millions."""
    more = ", ".join(SLOW.replace("slow", f"slow{number}") for number in range(5))
    run.write_text(f"steps: 3600\nworkers: [{more}]\n")
    result = _run(run, "--most", 64)
    assert (result.exit_code, "too many to try" in result.stderr) == (2, True)
