"""The result files `benchmarks/results/NAME.json`: what a benchmark measured, when, on what, by which command.

`python -m benchmarks NAME --record` writes one: an entry for each of its rows that was run, the others stay. The page
docs/results.md is made of them (`results_page.py`).
"""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.tables import Figure, Measured

FOLDER = Path(__file__).parent / "results"
#: What a measurement depends on: changed files there mark the commit.
_MEASURED = ("../walras", "../optimizer", "../scheduler", "../workers", "../simulator", "bench_*.py")
#: The row of a benchmark that has none.
WHOLE = "all"


@dataclass(frozen=True, slots=True)
class RecordedTable:
    """One table of a benchmark: its figures by full name (`Measured.named`)."""

    title: str
    setting: str
    figures: dict[str, Figure]


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What one command measured."""

    command: str
    #: Processors, and whether other work kept them busy.
    conditions: str
    #: YYYY-MM-DD, UTC.
    date: str
    #: Of the repository; ends with `+` where files differed from it; empty where it is not known.
    commit: str
    tables: tuple[RecordedTable, ...]


def conditions_here(load: float) -> str:
    """This machine in words, with the load average (processes) before the measurement."""
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores{', busy' if load > cores else ''}"


def record_run(
    name: str,
    row: str | None,
    scale: float,
    measured: Sequence[Measured],
    load: float,
    folder: Path = FOLDER,
    seeds: Sequence[int] = (),
) -> Path:
    """Write what a benchmark measured into its file, in place of what the same row measured before; returns the file.

    Tables without a figure (a benchmark that could not measure) change nothing.
    """
    words = ["python -m benchmarks", name, *(["--row", row] if row else []), *([f"--scale {scale:g}"] * (scale != 1))]
    words += ["--seeds", *map(str, seeds)] if seeds else []
    tables = tuple(RecordedTable(table.title, table.setting, table.named()) for table in measured if table.rows)
    path = folder / f"{name}.json"
    if tables:
        run = RecordedRun(" ".join(words), conditions_here(load), f"{datetime.now(UTC):%Y-%m-%d}", _commit(), tables)
        write_runs(path, read_runs(path) | {row or WHOLE: run})
    return path


def write_runs(path: Path, runs: dict[str, RecordedRun]) -> None:
    """Write a result file."""
    path.parent.mkdir(exist_ok=True)
    told = {row: _plain(asdict(run)) for row, run in sorted(runs.items())}
    path.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")


def read_runs(path: Path) -> dict[str, RecordedRun]:
    """The runs of a result file by row; none where there is no file."""
    if not path.exists():
        return {}
    return {row: _run(told) for row, told in json.loads(path.read_text()).items()}


def _plain(run: dict[str, Any]) -> dict[str, Any]:
    for table in run["tables"]:
        for figure in table["figures"].values():
            del figure["what"]
            figure["value"] = float(f"{figure['value']:.6g}")
            for bound in ("at_most", "at_least"):
                if figure[bound] is None:
                    del figure[bound]
    return run


def _run(told: dict[str, Any]) -> RecordedRun:
    tables = tuple(
        RecordedTable(
            table["title"],
            table["setting"],
            {name: Figure(what=name, **figure) for name, figure in table["figures"].items()},
        )
        for table in told["tables"]
    )
    return RecordedRun(**{**told, "tables": tables})


def _commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=FOLDER.parent, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    head = git("rev-parse", "--short=8", "HEAD")
    return f"{head}+" if head and git("status", "--porcelain", "--", *_MEASURED) else head
