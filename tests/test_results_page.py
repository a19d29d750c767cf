"""docs/results.md is made of the result files, short, and each of its commands can be given."""

import importlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import main, names
from benchmarks.needs import NotHereError
from benchmarks.result_files import FOLDER, RecordedRun, read_runs, record_run
from benchmarks.results_page import MOST_ROWS, MOST_WORDS, PAGE, cells, page
from benchmarks.results_rows import SECTIONS, Row
from benchmarks.tables import Measured

ROWS = [row for rows in SECTIONS.values() for row in rows]


def measured(value: float) -> Measured:
    table = Measured("speeds", "two cores")
    table.add("a run", value, "s", at_most=2.0)
    table.add("   worst", value + 0.5, "s")
    table.add("   worst", value + 1.0, "h")
    return table


def test_the_page_is_made_of_the_result_files() -> None:
    """`python -m benchmarks.results_page` changes nothing: a row that is edited by hand is found here."""
    assert PAGE.read_text() == page()


def test_the_readme_says_what_was_measured() -> None:
    """How far the simulator was off, in the last recorded demo."""
    (table,) = read_runs(FOLDER / "commands.json")["demo"].tables
    off = table.figures["completion times simulated again: median error"].value
    assert f"[{off:.0f} % off](docs/results.md)" in (PAGE.parents[1] / "README.md").read_text()


def test_the_page_is_short() -> None:
    assert 40 < len(ROWS) <= MOST_ROWS
    assert [row.what for row in ROWS if len(" ".join(cells(row)).split()) > MOST_WORDS] == []
    assert len({(row.name, row.row, row.table, row.figures) for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_each_command_of_a_result_file_names_a_benchmark_and_its_row(path: Path) -> None:
    for row, run in read_runs(path).items():
        words = shlex.split(run.command)
        assert words[:4] == ["python", "-m", "benchmarks", path.stem]
        assert path.stem in names()
        rows = getattr(importlib.import_module(f"benchmarks.bench_{path.stem}"), "ROWS", ())
        assert row in rows if rows else row == "all"
        assert words[5:6] == ([row] if rows else [])
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", run.date)


def test_a_run_replaces_its_own_row_alone(tmp_path: Path) -> None:
    """Rows of other runs stay, and what was read is what was written."""
    record_run("regret", "0.5", 1.0, [measured(1.0)], 0.0, tmp_path)
    record_run("regret", "0.8", 0.2, [measured(1.0)], 99.0, tmp_path)
    path = record_run("regret", "0.5", 1.0, [measured(3.0)], 0.0, tmp_path)
    runs = read_runs(path)
    assert runs["0.8"].command == "python -m benchmarks regret --row 0.8 --scale 0.2"
    assert runs["0.8"].conditions.endswith(", busy")
    figures = runs["0.5"].tables[0].figures
    assert {name: figure.value for name, figure in figures.items()} == {
        "a run": 3.0,
        "a run / worst": 3.5,
        "a run / worst #2": 4.0,
    }
    assert isinstance(runs["0.5"], RecordedRun)
    assert json.loads(path.read_text()).keys() == {"0.5", "0.8"}


def test_a_row_says_what_it_missed_and_what_it_needs(tmp_path: Path) -> None:
    record_run("regret", "0.5", 1.0, [measured(3.0)], 0.0, tmp_path)
    what, shown, command, conditions, _ = cells(
        Row("A run", "regret", ("a run", "a run / worst|worst"), "0.5", needs="data"), tmp_path
    )
    assert (what, shown) == ("A run", "3 s (≤ 2, missed); worst 3.5 s")
    assert command == "`python -m benchmarks regret --row 0.5`"
    assert conditions.endswith("data")
    with pytest.raises(LookupError, match="no figure 'another'"):
        cells(Row("A run", "regret", ("another",), "0.5"), tmp_path)


def test_what_could_not_be_measured_changes_no_file(tmp_path: Path) -> None:
    """A table without figures leaves the former ones."""
    path = record_run("regret", "0.5", 1.0, [measured(3.0)], 0.0, tmp_path)
    before = path.read_bytes()
    record_run("regret", "0.5", 1.0, [Measured("speeds", "not measured")], 0.0, tmp_path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NotHereError("WALRAS_DATA names no folder"), "core: not measured: WALRAS_DATA names no folder"),
        (ModuleNotFoundError("No module named 'selenium'", name="selenium"), "the package selenium is missing; pip"),
        (ModuleNotFoundError("No module named 'pytest.x'", name="numpy"), "the package numpy is missing"),
    ],
)
def test_a_benchmark_says_in_one_line_what_it_lacks(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(scale: float) -> list[Measured]:
        raise error

    monkeypatch.setattr("benchmarks.bench_core.measure", refuse)
    assert main(["core"]) == 1
    told = capsys.readouterr().err
    assert words in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize("name", ["lag", "grounds_makespan", "market", "cant_be_late", "deadlines"])
def test_without_the_reference_data_one_line_says_so(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WALRAS_DATA", raising=False)
    row = getattr(importlib.import_module(f"benchmarks.bench_{name}"), "ROWS", ())[:1]
    assert main([name, *(["--row", *row] if row else [])]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"{name}: not measured: WALRAS_DATA names no folder: the reference data (recorded traces, markets, speeds)"
    ]


#: Packages of the extras `dev`, `docs` and `golden` that `pip install '.[all]'` does not bring.
OF_DEVELOPERS = ("pytest", "_pytest", "hypothesis", "selenium", "moto", "jsonschema", "dask_jobqueue", "ecos", "mypy")
WITHOUT_THEM = """
import importlib, importlib.abc, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
for name in sys.argv[2].split(","):
    importlib.import_module(f"benchmarks.bench_{name}")
"""


@pytest.mark.slow
def test_every_benchmark_is_imported_without_the_packages_of_developers() -> None:
    """`pip install '.[all]'` is enough to begin each of them; `lab` alone needs an extra of its own."""
    chosen = ",".join(name for name in names() if name != "lab")
    words = [sys.executable, "-c", WITHOUT_THEM, ",".join(OF_DEVELOPERS), chosen]
    done = subprocess.run(words, cwd=PAGE.parents[1], capture_output=True, text=True, timeout=110)
    assert (done.returncode, done.stderr) == (0, "")
