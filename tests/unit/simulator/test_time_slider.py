"""What the slider of a comparison's page shows: the attempts that hold the accelerators, and nothing that is markup."""

import json
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest

from simulator.reports import run_detail
from simulator.reports.baselines import BoundsChoice
from simulator.reports.comparison_page import comparison_html, slider_data, slider_html, slider_script
from simulator.reports.figure_book import (
    FIGURES_FILE,
    FigureBook,
    comparison_book,
    read_figures,
    sweep_book,
    write_figures,
)
from simulator.reports.policy_comparison import compare_policies
from simulator.reports.repeated_runs import ParallelWorkers
from simulator.reports.run_detail import LevelCurve, RunLevels
from simulator.reports.run_spec import RunSpec, WorkloadSource
from simulator.reports.sweep import SETTINGS_WITH_LEVELS, SweepGrid, SweepResult, run_sweep

RUN = RunSpec(WorkloadSource("three-types"), "gavel-12-12-12", "fifo", bounds=BoundsChoice.NONE)
EVIL = "</script><script>alert(1)</script><!--"


def book_of(policies: list[str]) -> FigureBook:
    return comparison_book(compare_policies(RUN, policies, (0,), ParallelWorkers(), with_levels=True), RUN)


@pytest.fixture(scope="module")
def book() -> FigureBook:
    return book_of(["fifo", "max_min_fairness"])


def value_at(curve: LevelCurve, at: float) -> float:
    return [value for begin, value in zip(curve.at, curve.value, strict=True) if begin <= at][-1]


def test_the_attempts_at_a_time_hold_what_is_held_then(book: FigureBook) -> None:
    """In every pool and at every instant, under every policy."""
    checked = 0
    for policy in book.settings[0].policies:
        levels = policy.levels
        assert levels is not None
        assert levels.attempts_until == levels.ended_at
        for pool, held in levels.held.items():
            for at in held.at[:-1]:
                rows = levels.attempts[pool]
                assert sum(count for _, count, start, end in rows if start <= at < end) == value_at(held, at)
                checked += 1
    assert checked > 60


def test_of_many_attempts_the_first_are_kept_and_it_is_said_until_when(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_detail, "ATTEMPTS_KEPT", 5)
    levels = book_of(["fifo"]).settings[0].policies[0].levels
    assert levels is not None
    kept = [row for rows in levels.attempts.values() for row in rows]
    assert len(kept) == 5
    assert max(start for _, _, start, _ in kept) <= levels.attempts_until < levels.ended_at


def test_a_name_ends_no_script(book: FigureBook) -> None:
    """Policies and pools with names that are markup; the JSON says them whole."""
    setting = book.settings[0]
    first = setting.policies[0]
    assert first.levels is not None
    levels = replace(first.levels, there={EVIL: next(iter(first.levels.there.values()))}, price_unit=EVIL)
    evil = replace(setting, policies=(replace(first, policy=EVIL, levels=levels),))
    html = slider_html(evil)
    inside = html.split('<script type="application/json">', 1)[1].rsplit("</script>", 1)[0]
    assert "<" not in inside
    data = json.loads(inside)
    assert data["policies"][0]["name"] == data["policies"][0]["unit"] == EVIL
    assert EVIL in data["policies"][0]["pools"]
    whole = comparison_html(replace(book, title=EVIL, settings=(evil,)))
    assert whole.count("<script") == 2
    assert EVIL not in whole


def test_without_levels_there_is_no_slider_and_no_script(book: FigureBook) -> None:
    """As of the later settings of a sweep, and for a run that took no time."""
    setting = book.settings[0]
    bare = replace(setting, policies=tuple(replace(each, levels=None) for each in setting.policies))
    assert slider_data(bare) is None
    assert "<script" not in comparison_html(replace(book, settings=(bare,)))
    nothing = RunLevels(0.0, LevelCurve((), ()), {}, {}, {}, {}, "", {})
    assert slider_data(replace(setting, policies=(replace(setting.policies[0], levels=nothing),))) is None


def test_figures_of_a_release_without_attempts_are_read(book: FigureBook, tmp_path: Path) -> None:
    write_figures(tmp_path, book)
    body = json.loads((tmp_path / FIGURES_FILE).read_text())
    for policy in body["settings"][0]["policies"]:
        del policy["levels"]["attempts"], policy["levels"]["attempts_until"]
    (tmp_path / FIGURES_FILE).write_text(json.dumps(body))
    data = slider_data(read_figures(tmp_path).settings[0])
    assert data is not None
    assert [policy["named_until"] for policy in data["policies"]] == [0.0, 0.0]


def _sweep(folder: Path) -> SweepResult:
    grid = SweepGrid(
        workloads=("generate:poisson",),
        clusters=("gavel-12-12-12",),
        policies=("fifo", "las"),
        seeds=(3,),
        rates=(10.0, 20.0, 30.0, 40.0, 50.0),
        trace_jobs=4,
        bounds=BoundsChoice.NONE,
    )
    return run_sweep(grid, folder, ParallelWorkers())


def _sliders(swept: SweepResult) -> list[str]:
    return [slider_html(setting) for setting in sweep_book(swept, "grid").settings]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of a sweep, and the slider of every setting."""
    folder = tmp_path_factory.mktemp("swept")
    return folder, _sliders(_sweep(folder))


def test_a_sweep_has_a_slider_for_each_of_its_first_settings(swept: tuple[Path, list[str]]) -> None:
    """Every policy of the first seed, in four settings of five; the same when nothing is run again."""
    folder, sliders = swept
    assert [bool(slider) for slider in sliders] == [True] * SETTINGS_WITH_LEVELS + [False]
    inside = sliders[0].split('<script type="application/json">', 1)[1].split("</script>", 1)[0]
    assert [policy["name"] for policy in json.loads(inside)["policies"]] == ["fifo", "las"]
    again = _sweep(folder)
    assert again.ran == 0
    assert _sliders(again) == sliders


@pytest.mark.parametrize("damage", ["gone", "cut off", "of another run"])
def test_levels_that_are_not_believed_are_made_again(swept: tuple[Path, list[str]], damage: str) -> None:
    """With their run alone; a file that is there and wrong is named."""
    folder, sliders = swept
    files = sorted((folder / "cells").glob("*.levels.json"))
    assert len(files) == 8
    if damage == "gone":
        files[0].unlink()
    else:
        files[0].write_bytes(files[0].read_bytes()[:100] if damage == "cut off" else files[1].read_bytes())
    again = _sweep(folder)
    assert (again.ran, again.rejected) == (1, [] if damage == "gone" else [str(files[0])])
    assert _sliders(again) == sliders


@pytest.mark.parametrize("value", [nan, inf])
def test_what_is_no_number_is_refused_rather_than_written(book: FigureBook, value: float) -> None:
    """A page that a browser cannot read would show nothing and say nothing."""
    setting = book.settings[0]
    first = setting.policies[0]
    assert first.levels is not None
    levels = replace(first.levels, waiting=LevelCurve((0.0,), (value,)))
    with pytest.raises(ValueError, match="JSON"):
        slider_html(replace(setting, policies=(replace(first, levels=levels),)))


def test_the_script_makes_no_markup_and_calls_nobody() -> None:
    """Text is set as text; there is no way to write markup, to run text or to fetch."""
    script = slider_script()
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "eval(",
        "Function(",
        "fetch(",
        "</script",
    ):
        assert word not in script
    assert not any(word in script for word in ("XMLHttpRequest", "import(", "WebSocket", "http:", "https:"))
