"""The page of a comparison and of a sweep, its slider and figures, and the LaTeX table: whole, alone, and harmless."""

import json
import re
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest
from page_tags import assert_page_stands_alone
from typer.testing import CliRunner

from simulator.reports import timeline
from simulator.reports.baselines import BoundsChoice
from simulator.reports.comparison_charts import (
    COMPARISON_FIGURES,
    COMPARISON_PAGE,
    FIGURES_FILE,
    FigureBook,
    comparison_book,
    comparison_html,
    latex_caption,
    latex_table,
    latex_text,
    plot_figure,
    policy_labels,
    read_figures,
    slider_data,
    slider_html,
    slider_script,
    sweep_book,
    write_figures,
)
from simulator.reports.policy_comparison import PolicyComparison, compare_policies
from simulator.reports.repeated_runs import ParallelWorkers
from simulator.reports.report_page import RUN_FIGURES
from simulator.reports.run_spec import RunSpec, WorkloadSource
from simulator.reports.sweep import SETTINGS_WITH_LEVELS, SweepGrid, SweepResult, run_sweep
from simulator.reports.timeline import LevelCurve, RunLevels, spread_of
from simulator.simulate_actions import simulate_compare, simulate_run
from walras.cli.main import app
from walras.errors import ConfigError

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
    monkeypatch.setattr(timeline, "ATTEMPTS_KEPT", 5)
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
        workloads=("generate:poisson",), clusters=("gavel-12-12-12",), policies=("fifo", "las"), seeds=(3,),
        rates=(10.0, 20.0, 30.0, 40.0, 50.0), trace_jobs=4, bounds=BoundsChoice.NONE,
    )  # fmt: skip
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


EVIL_NAME = '<img src=x onerror=alert(1)>$\\frac{1}{$"&_#%'
SPOT = RunSpec(WorkloadSource("deadlines"), "mixed-cloud", "edf", bounds=BoundsChoice.NONE, conditions="spot-market")
GRID = SweepGrid(
    workloads=("generate:gavel",), clusters=("gavel-12-12-12",), policies=("fifo", "las"), rates=(3.0, 400.0),
    seeds=(0, 1), trace_jobs=12, gangs=True, bounds=BoundsChoice.NONE,
)  # fmt: skip
ALONE = ParallelWorkers()


@pytest.fixture(scope="module")
def compared() -> PolicyComparison:
    return compare_policies(SPOT, ["edf", "max_min_fairness"], (0, 1), ALONE, with_levels=True)


@pytest.fixture(scope="module")
def page(compared: PolicyComparison) -> str:
    return comparison_html(comparison_book(compared, SPOT))


@pytest.fixture(scope="module")
def folder(compared: PolicyComparison, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    write_figures(folder, comparison_book(compared, SPOT))
    return folder


@pytest.fixture(scope="module")
def swept_book(tmp_path_factory: pytest.TempPathFactory) -> FigureBook:
    return sweep_book(run_sweep(GRID, tmp_path_factory.mktemp("swept"), ALONE), "grid")


def test_the_page_shows_the_policies_side_by_side(page: str) -> None:
    """Distributions, a timeline, prices, fairness and money, each with both policies."""
    tags = assert_page_stands_alone(page, script=slider_script())
    assert re.findall(r"<h2>([^<]+)</h2>", page) == [
        "Figures", "At one time", "Mean completion times", "Completion times", "Slowdowns", "Fairness",
        "Jobs that wait", "Utilisation", "Prices", "Market prices", "Money",
    ]  # fmt: skip
    assert "".join(tags.text).count("edf") >= 8
    assert "Means over 2 seeds with 95 % intervals" in page
    assert "Conditions: spot-market." in page


def test_the_page_is_readable_in_the_dark_and_on_a_phone(page: str) -> None:
    """Letters and lines have the page's colour, nothing paints a white ground, and the width is the device's."""
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport" content="width=device-width' in page
    drawings = "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))
    assert "#000000" not in drawings
    assert "#ffffff" not in drawings
    assert "currentColor" in drawings


def test_names_from_files_are_text_and_nothing_else(tmp_path: Path) -> None:
    """A workload and a policy with names to be afraid of, through the command, onto the page and into LaTeX."""
    trace = tmp_path / f"{EVIL_NAME.replace('/', '')}.csv"
    trace.write_text("at,name,kind,gang,duration_s\n0,a,k,1,60\n5,b,k,1,90\n")
    policy = tmp_path / f"{EVIL_NAME.replace('/', '')}.yaml"
    policy.write_text("policy: fifo\n")
    run = RunSpec(WorkloadSource(str(trace)), "sia-64", "las", bounds=BoundsChoice.NONE)
    assert simulate_compare(run, ["las", str(policy)], "0", ALONE, "json", tmp_path / "out") == 0
    tags = assert_page_stands_alone((tmp_path / "out" / COMPARISON_PAGE).read_text(), script=slider_script())
    assert "".join(tags.text).count(EVIL_NAME) >= 3
    latex = (tmp_path / "out" / "table.tex").read_text()
    assert r"\textless{}img src=x onerror=alert(1)\textgreater{}\$\textbackslash{}frac\{1\}\{\$" in latex
    assert r"''\&\_\#\%" in latex


@pytest.mark.slow
def test_figures_read_back_as_they_were_written(
    compared: PolicyComparison, swept_book: FigureBook, tmp_path: Path
) -> None:
    """So a figure can be drawn long after the runs: to the last letter of the page."""
    for number, book in enumerate((comparison_book(compared, SPOT), swept_book)):
        write_figures(tmp_path / str(number), book)
        assert comparison_html(read_figures(tmp_path / str(number))) == comparison_html(book)


def test_a_sweep_shows_completion_times_by_load_and_every_setting(swept_book: FigureBook) -> None:
    html = comparison_html(swept_book)
    assert_page_stands_alone(html, script=slider_script())
    headings = re.findall(r"<h2>([^<]+)</h2>", html)
    assert headings[0] == "Completion time by load: generate:gavel on gavel-12-12-12"
    for rate in (3, 400):
        name = f"generate:gavel on gavel-12-12-12, {rate} jobs/h"
        assert {f"{name}: Figures", f"{name}: Completion times", f"{name}: Fairness"} <= set(headings)


@pytest.mark.slow
def test_a_sweep_that_goes_on_shows_the_distributions_of_runs_that_were_kept(tmp_path: Path) -> None:
    first = sweep_book(run_sweep(GRID, tmp_path, ALONE), "grid")
    again = run_sweep(GRID, tmp_path, ALONE)
    assert again.ran == 0
    assert comparison_html(sweep_book(again, "grid")).split("<h2>", 1)[1] == comparison_html(first).split("<h2>", 1)[1]


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
def test_a_figure_as_a_file_is_the_same_twice(folder: Path, tmp_path: Path, ending: str) -> None:
    paths = [tmp_path / f"{name}{ending}" for name in "ab"]
    for path in paths:
        plot_figure("jct", folder, path)
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    magic = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[ending]
    assert first.startswith(magic)


@pytest.mark.slow
def test_every_figure_of_the_page_can_be_drawn_alone(folder: Path, swept_book: FigureBook, tmp_path: Path) -> None:
    """Of a comparison all but the one by load, which a sweep has."""
    write_figures(tmp_path / "swept", swept_book)
    for name in COMPARISON_FIGURES:
        source = tmp_path / "swept" if name == "loads" else folder
        plot_figure(name, source, tmp_path / f"{name}.svg")
        assert "<svg" in (tmp_path / f"{name}.svg").read_text()
    with pytest.raises(ConfigError, match="nothing to show as 'loads'"):
        plot_figure("loads", folder, tmp_path / "loads.svg")
    setting = "generate:gavel on gavel-12-12-12, 400 jobs/h"
    plot_figure("jct", tmp_path / "swept", tmp_path / "one.svg", setting)
    plot_figure("jct", tmp_path / "swept", tmp_path / "first.svg")
    assert (tmp_path / "one.svg").read_bytes() != (tmp_path / "first.svg").read_bytes()
    with pytest.raises(ConfigError, match="no setting 'x'") as told:
        plot_figure("jct", tmp_path / "swept", tmp_path / "one.svg", "x")
    assert setting in (told.value.fix or "")


@pytest.mark.slow
def test_the_folder_of_one_run_has_figures_too(tmp_path: Path) -> None:
    cell = replace(SPOT, policy="max_min_fairness", bounds=BoundsChoice.NONE)
    assert simulate_run(cell, "json", tmp_path / "run") == 0
    for name in RUN_FIGURES:
        out = tmp_path / f"{name}.svg"
        done = CliRunner().invoke(app, ["simulate", "plot", name, "--from", str(tmp_path / "run"), "--out", str(out)])
        assert done.exit_code == 0, done.output
        assert "<svg" in out.read_text()
    with pytest.raises(ConfigError, match="a run has no figure 'jet'") as told:
        plot_figure("jet", tmp_path / "run", tmp_path / "x.svg")
    assert told.value.fix == "did you mean 'jct'?"


def test_other_endings_and_other_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"written as \.png, \.svg, \.pdf"):
        plot_figure("jct", folder, tmp_path / "x.gif")
    with pytest.raises(ConfigError, match=FIGURES_FILE):
        plot_figure("jct", tmp_path, tmp_path / "x.svg")


@pytest.mark.parametrize(
    "content", [b"", b"[1]", b"{}", b'{"schema": 1, "settings": 3}', b"\xff", b'{"schema": 2}', b"[" * 100_000]
)
def test_a_damaged_file_of_figures_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FIGURES_FILE).write_bytes(content)
    with pytest.raises(ConfigError, match=FIGURES_FILE):
        read_figures(tmp_path)


def test_figures_are_json_without_numbers_that_json_does_not_know(folder: Path) -> None:
    json.loads((folder / FIGURES_FILE).read_text(), parse_constant=lambda constant: pytest.fail(constant))


def test_the_latex_table_has_intervals_and_marks_the_best(compared: PolicyComparison) -> None:
    text = latex_table(compared, latex_caption(compared, "deadlines", "mixed-cloud"))
    assert text.startswith("\\begin{table}\n")
    assert "Means over 2 seeds with 95 \\% intervals." in text
    rows = [line for line in text.splitlines() if line.startswith(("edf &", "max\\_min\\_fairness &"))]
    assert len(rows) == 2
    columns = text.split("\\toprule\n")[1].split("\n")[0].count("&")
    assert all(row.count("&") == columns and "$\\pm$" in row for row in rows)
    assert "\\textbf{" in text
    assert text.count("{") == text.count("}")


def test_text_for_latex_holds_no_command() -> None:
    assert latex_text("a\\b{c}\n") == r"a\textbackslash{}b\{c\}?"


def test_policies_of_one_name_keep_their_paths() -> None:
    assert policy_labels(("fifo", "mine/fifo.yaml", "other/las.yaml")) == {
        "fifo": "fifo", "mine/fifo.yaml": "mine/fifo.yaml", "other/las.yaml": "las",
    }  # fmt: skip


def test_a_distribution_of_many_jobs_keeps_its_ends_and_its_middle() -> None:
    kept = spread_of([float(value) for value in range(10_001)])
    assert (len(kept), kept[0], kept[100], kept[-1]) == (201, 0.0, 5000.0, 10000.0)
    assert spread_of([3.0, float("nan"), 1.0]) == (1.0, 3.0)
