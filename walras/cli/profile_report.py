"""Predictions of speed against measurements: reading them from a server's folder or a file, and the tables of them."""

import json
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from walras.cli.output import Column, Listing, OutputFormat, show_json, show_line, show_listing
from walras.errors import UserError

if TYPE_CHECKING:
    from optimizer.performance.predicting.scoring import Judged, Line

#: In the folder that `walras simulate run --out` left.
SCORED = "scored.json"
_MAX_BYTES = 64 * 1024**2


def read_judged(source: Path) -> "list[Judged]":
    """Raises UserError for something that is neither, or holds nothing."""
    run = source / SCORED
    judged = _of_file(run if run.is_file() else source) if run.is_file() or not source.is_dir() else _of_folder(source)
    if not judged:
        raise UserError(
            f"{source}: no predicted speed was measured yet",
            field="SOURCE",
            fix="let jobs run on accelerators; a simulation measures under the condition `speeds_told: false`",
        )
    return judged


def _of_folder(folder: Path) -> "list[Judged]":
    from optimizer.performance.predicting.scoring import Judged
    from scheduler.live.records.scoring import scored_folder

    return [
        Judged(
            each.source,
            each.kind,
            f"{each.count} x {each.accelerator}",
            each.predicted,
            each.measured,
            each.low,
            each.high,
        )
        for each in scored_folder(folder)
        if each.predicted > 0 and each.measured > 0
    ]


def _of_file(file: Path) -> "list[Judged]":
    """A list of objects with source, kind, accelerator, predicted, measured and maybe low and high; or our own JSON."""
    from optimizer.performance.predicting.scoring import Judged

    try:
        if file.stat().st_size > _MAX_BYTES:
            raise UserError(f"{file}: more than {_MAX_BYTES:,} bytes", field="SOURCE", fix="split it")
        data = json.loads(file.read_bytes())
        rows = data["predictions"] if isinstance(data, dict) else data
        found = []
        for row in rows:
            low, high = (None if row.get(name) is None else float(row[name]) for name in ("low", "high"))
            source, kind, accelerator = (str(row[name]) for name in ("source", "kind", "accelerator"))
            if "count" in row:
                accelerator = f"{row['count']} x {accelerator}"
            found.append(Judged(source, kind, accelerator, float(row["predicted"]), float(row["measured"]), low, high))
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}", field="SOURCE", fix="a folder or a file that exists") from None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{file}: no list of scored predictions ({error})",
            field="SOURCE",
            fix="a list of objects with source, kind, accelerator, predicted and measured (steps per second)",
        ) from None
    return found


def show_report(judged: "list[Judged]", output: OutputFormat) -> None:
    """By source with weights, then by accelerator, then by kind."""
    from optimizer.performance.predicting.scoring import lines as lines_by
    from optimizer.performance.predicting.scoring import weights as weights_of

    weights = weights_of(judged)
    groups = {
        "source": lines_by(judged, lambda each: each.source),
        "accelerator": lines_by(judged, lambda each: each.accelerator),
        "kind": lines_by(judged, lambda each: each.kind),
    }
    if output is OutputFormat.JSON:
        tables = {name: [asdict(line) for line in lines] for name, lines in groups.items()}
        show_json({"predictions": [asdict(each) for each in judged], "weights": weights} | {"by": tables})
        return
    for name, lines in groups.items():
        titles = (name.upper(), "PREDICTIONS", "MEDIAN %", "MEAN %", "IN INTERVAL %", "WEIGHT")
        columns = [Column(title, right=place > 0) for place, title in enumerate(titles)]
        rows = [_cells(line, weights.get(line.name) if name == "source" else None) for line in lines]
        show_listing(Listing(columns if name == "source" else columns[:-1], rows, None), output)
        show_line("")


def _cells(line: "Line", weight: float | None) -> list[str]:
    coverage = "-" if line.coverage is None or not isfinite(line.coverage) else f"{100 * line.coverage:.0f}"
    errors = [f"{100 * line.median_error:.1f}", f"{100 * line.mean_error:.1f}"]
    return [line.name, str(line.predictions), *errors, coverage, *([] if weight is None else [f"{weight:.2f}"])]
