"""The page of a comparison and of a sweep, its figures as files, and the LaTeX table: whole, alone, and harmless."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from page_tags import assert_page_stands_alone
from typer.testing import CliRunner

from simulator.reports.baselines import BoundsChoice
from simulator.reports.comparison_charts import COMPARISON_FIGURES
from simulator.reports.comparison_page import (
    COMPARISON_PAGE,
    comparison_html,
    latex_caption,
    latex_table,
    latex_text,
    slider_script,
)
from simulator.reports.figure_book import (
    FIGURES_FILE,
    FigureBook,
    comparison_book,
    policy_labels,
    read_figures,
    sweep_book,
    write_figures,
)
from simulator.reports.figure_plots import RUN_FIGURES, plot_figure
from simulator.reports.policy_comparison import PolicyComparison, compare_policies
from simulator.reports.repeated_runs import ParallelWorkers
from simulator.reports.run_detail import spread_of
from simulator.reports.run_spec import RunSpec, WorkloadSource
from simulator.reports.sweep import SweepGrid, run_sweep
from simulator.simulate_actions import ComparedFiles, simulate_compare, simulate_run
from walras.cli.main import app
from walras.errors import ConfigError

EVIL = '<img src=x onerror=alert(1)>$\\frac{1}{$"&_#%'
SPOT = RunSpec(WorkloadSource("deadlines"), "mixed-cloud", "edf", bounds=BoundsChoice.NONE, conditions="spot-market")
GRID = SweepGrid(
    workloads=("generate:gavel",),
    clusters=("gavel-12-12-12",),
    policies=("fifo", "las"),
    rates=(3.0, 400.0),
    seeds=(0, 1),
    trace_jobs=40,
    gangs=True,
    bounds=BoundsChoice.NONE,
)
ALONE = ParallelWorkers()


@pytest.fixture(scope="module")
def compared() -> PolicyComparison:
    return compare_policies(SPOT, ["edf", "max_min_fairness"], (0, 1), ALONE, with_levels=True)


@pytest.fixture(scope="module")
def folder(compared: PolicyComparison, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    write_figures(folder, comparison_book(compared, SPOT))
    return folder


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> FigureBook:
    return sweep_book(run_sweep(GRID, tmp_path_factory.mktemp("swept"), ALONE), "grid")


def test_the_page_shows_the_policies_side_by_side(compared: PolicyComparison) -> None:
    """Distributions, a timeline, prices, fairness and money, each with both policies."""
    html = comparison_html(comparison_book(compared, SPOT))
    tags = assert_page_stands_alone(html, script=slider_script())
    assert re.findall(r"<h2>([^<]+)</h2>", html) == [
        "Figures", "At one time", "Mean completion times", "Completion times", "Slowdowns", "Fairness",
        "Jobs that wait", "Utilisation", "Prices", "Market prices", "Money",
    ]  # fmt: skip
    assert "".join(tags.text).count("edf") >= 8
    assert "Means over 2 seeds with 95 % intervals" in html
    assert "Conditions: spot-market." in html


def test_the_page_is_readable_in_the_dark_and_on_a_phone(compared: PolicyComparison) -> None:
    """Letters and lines have the page's colour, nothing paints a white ground, and the width is the device's."""
    html = comparison_html(comparison_book(compared, SPOT))
    assert "prefers-color-scheme: dark" in html
    assert 'name="viewport" content="width=device-width' in html
    drawings = "".join(re.findall(r"<svg.*?</svg>", html, re.DOTALL))
    assert "#000000" not in drawings
    assert "#ffffff" not in drawings
    assert "currentColor" in drawings


def test_names_from_files_are_text_and_nothing_else(tmp_path: Path) -> None:
    """A workload and a policy with names to be afraid of, through the command, onto the page and into LaTeX."""
    trace = tmp_path / f"{EVIL.replace('/', '')}.csv"
    trace.write_text("at,name,kind,gang,duration_s\n0,a,k,1,60\n5,b,k,1,90\n")
    policy = tmp_path / f"{EVIL.replace('/', '')}.yaml"
    policy.write_text("policy: fifo\n")
    run = RunSpec(WorkloadSource(str(trace)), "sia-64", "las", bounds=BoundsChoice.NONE)
    files = ComparedFiles(tmp_path / "out", tmp_path / "table.tex")
    assert simulate_compare(run, ["las", str(policy)], "0", ALONE, "json", files) == 0
    tags = assert_page_stands_alone((tmp_path / "out" / COMPARISON_PAGE).read_text(), script=slider_script())
    assert "".join(tags.text).count(EVIL) >= 3
    latex = (tmp_path / "table.tex").read_text()
    assert r"\textless{}img src=x onerror=alert(1)\textgreater{}\$\textbackslash{}frac\{1\}\{\$" in latex
    assert r"''\&\_\#\%" in latex


@pytest.mark.slow
def test_figures_read_back_as_they_were_written(compared: PolicyComparison, swept: FigureBook, tmp_path: Path) -> None:
    """So a figure can be drawn long after the runs: to the last letter of the page."""
    for number, book in enumerate((comparison_book(compared, SPOT), swept)):
        write_figures(tmp_path / str(number), book)
        assert comparison_html(read_figures(tmp_path / str(number))) == comparison_html(book)


def test_a_sweep_shows_completion_times_by_load_and_every_setting(swept: FigureBook) -> None:
    html = comparison_html(swept)
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
def test_every_figure_of_the_page_can_be_drawn_alone(folder: Path, swept: FigureBook, tmp_path: Path) -> None:
    """Of a comparison all but the one by load, which a sweep has."""
    write_figures(tmp_path / "swept", swept)
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
    """Through the command, every figure that a run has."""
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
        "fifo": "fifo",
        "mine/fifo.yaml": "mine/fifo.yaml",
        "other/las.yaml": "las",
    }


def test_a_distribution_of_many_jobs_keeps_its_ends_and_its_middle() -> None:
    kept = spread_of([float(value) for value in range(10_001)])
    assert (len(kept), kept[0], kept[100], kept[-1]) == (201, 0.0, 5000.0, 10000.0)
    assert spread_of([3.0, float("nan"), 1.0]) == (1.0, 3.0)
