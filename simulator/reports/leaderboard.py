"""A static page from result files of benches: for every ground the policies beside published results, best first.

Result files may be untrusted: their size is limited, they are validated, and all of their text is shown as plain text.
Two rows are in one table if ground and inputs have the same names; rows with equal hashes are the same run.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from simulator.reports.policy_bench import BENCH_SCHEMA
from simulator.reports.policy_comparison import format_number, metric_title
from simulator.reports.run_summary import RUN_METRICS
from simulator.reports.spot_scores import SCORE_METRICS
from walras.errors import ConfigError
from walras.html_page import html_document, html_section, html_table, html_text, write_page

_BYTES_MAX = 64 * 1024 * 1024
_Name = Annotated[str, Field(min_length=1, max_length=4096)]
_Number = Annotated[float, Field(allow_inf_nan=False)]
#: Columns of the page, where a ground has them.
_SHOWN = (
    "score", "mean_bill_usd", "late", "score_gap", "finished",
    "avg_jct_s", "p95_jct_s", "p99_jct_s", "makespan_s", "slowdown_mean", "rho_mean", "unfair", "jct_gap",
    "preemptions", "usd",
)  # fmt: skip
_LARGEST_FIRST = {metric.name for metric in (*RUN_METRICS, *SCORE_METRICS) if metric.lower_is_better is False}
_HASH_SHOWN = 8


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Estimate(_Model):
    mean: _Number | None = None
    low: _Number | None = None
    high: _Number | None = None


class _PolicyResult(_Model):
    inputs: Annotated[list[Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]], Field(min_length=1, max_length=10_000)]
    outcomes: Annotated[list[_Name], Field(max_length=10_000)]
    metrics: dict[str, _Estimate]


class _Published(_Model):
    policy: _Name
    source: Annotated[str, Field(max_length=4096)]
    metrics: dict[str, _Number]


class _Ground(_Model):
    name: _Name
    about: Annotated[str, Field(max_length=4096)]
    seeds: list[int]
    policies: dict[_Name, _PolicyResult]
    published: Annotated[list[_Published], Field(max_length=1000)]
    sorted_by: _Name = "avg_jct_s"
    #: The outcome of a run that ended as the ground says.
    ends: _Name = "complete"
    no_bound: Annotated[str, Field(max_length=4096)] = ""


class _BenchFile(_Model):
    grounds: Annotated[list[_Ground], Field(min_length=1, max_length=1000)]


@dataclass(frozen=True, slots=True)
class BenchFile:
    """A result file that was read, and its name."""

    name: str
    grounds: tuple[_Ground, ...]


def read_bench_file(path: Path) -> BenchFile:
    """Reads a result file of `walras simulate bench --out`. Raises ConfigError that says what is wrong with it."""
    try:
        if path.stat().st_size > _BYTES_MAX:
            raise ConfigError(
                f"{path}: more than {_BYTES_MAX:,} bytes", field="file", fix="give the result file of a bench"
            )
        body = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", field="file", fix="check the path") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no JSON: {error}", field="file", fix="run the bench again") from None
    schema = body.get("schema") if isinstance(body, dict) else None
    if schema != BENCH_SCHEMA:
        raise ConfigError(
            f"{path} is not a bench's result of schema {BENCH_SCHEMA}", field="file", fix="run the bench again"
        )
    try:
        return BenchFile(path.name, tuple(_BenchFile.model_validate(body).grounds))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: {where}: {first['msg']}"[:1000], field="file", fix="run the bench again") from None


def write_leaderboard(path: Path, files: Sequence[BenchFile]) -> None:
    """Writes the page. Raises UserError where the file cannot be written."""
    write_page(path, leaderboard_html(files), "out")


def leaderboard_html(files: Sequence[BenchFile]) -> str:
    """Returns the page; the same files give the same text."""
    grounds: dict[str, list[tuple[str, _Ground]]] = {}
    for file in files:
        for ground in file.grounds:
            grounds.setdefault(ground.name, []).append((file.name, ground))
    names = ", ".join(file.name for file in files)
    parts = [
        "<h1>Policies on the bench</h1>",
        f"<p>From {html_text(names)}. Best first, by mean completion time, by jobs finished or by score;"
        " intervals of 95 % over seeds. A row of others is as they published it, and has no hash.</p>",
        *(_ground_html(name, found) for name, found in grounds.items()),
    ]
    return html_document("Policies on the bench", parts)


def _ground_html(name: str, found: Sequence[tuple[str, _Ground]]) -> str:
    measures = {measure.name: measure for measure in (*RUN_METRICS, *SCORE_METRICS)}
    ours = _our_rows(found)
    theirs = _published_rows(found)
    shown = [metric for metric in _SHOWN if any(metric in row.cells for row in (*ours, *theirs))]
    rows = [
        (row.policy, *(row.cells.get(metric, "") for metric in shown), row.where, row.inputs)
        for row in sorted((*ours, *theirs), key=lambda row: (row.order if isfinite(row.order) else inf, row.policy))
    ]
    titles = ("policy", *(metric_title(measures[metric]) for metric in shown), "from", "inputs")
    no_bound = found[0][1].no_bound
    about = found[0][1].about + (f". No bound: {no_bound}" if no_bound else "")
    return html_section(name, about, html_table(titles, rows))


@dataclass(frozen=True, slots=True)
class _Row:
    policy: str
    #: Least for the best: the metric by which the ground is sorted, or its negative.
    order: float
    cells: dict[str, str]
    where: str
    inputs: str


def _order(ground: _Ground, means: Mapping[str, float]) -> float:
    value = means.get(ground.sorted_by, nan)
    return -value if ground.sorted_by in _LARGEST_FIRST else value


def _our_rows(found: Sequence[tuple[str, _Ground]]) -> list[_Row]:
    """Returns every run once, however many files contain it."""
    rows: dict[tuple[str, tuple[str, ...]], _Row] = {}
    for file, ground in found:
        for policy, result in ground.policies.items():
            key = (policy, tuple(result.inputs))
            if key in rows:
                continue
            means = {name: value for name, value in result.metrics.items() if value.mean is not None}
            ended = "" if all(outcome == ground.ends for outcome in result.outcomes) else " (not all runs ended)"
            cells = {name: _cell(means[name]) for name in _SHOWN if name in means}
            order = _order(ground, {name: value.mean for name, value in means.items() if value.mean is not None})
            rows[key] = _Row(policy + ended, order, cells, file, result.inputs[0][:_HASH_SHOWN])
    return list(rows.values())


def _published_rows(found: Sequence[tuple[str, _Ground]]) -> list[_Row]:
    rows: dict[tuple[str, str], _Row] = {}
    for _, ground in found:
        for each in ground.published:
            cells = {name: format_number(each.metrics[name]) for name in _SHOWN if name in each.metrics}
            row = _Row(f"{each.policy}, published", _order(ground, each.metrics), cells, each.source, "")
            rows.setdefault((each.policy, each.source), row)
    return list(rows.values())


def _cell(value: _Estimate) -> str:
    mean: Any = value.mean
    half = None if value.low is None or value.high is None else (value.high - value.low) / 2
    return format_number(mean) + (f" ± {format_number(half)}" if half is not None else "")
