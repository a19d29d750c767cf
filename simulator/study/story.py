"""What a report is made of, from a run that has just ended or from the folder that an earlier one left."""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import nan
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from simulator.compat.worlds import WALRAS
from simulator.metrics import JobMeasure
from simulator.report import Summary, finite
from simulator.study.cell import Ran, description
from simulator.study.timeline import Level, PoolTrack, Span, Timeline
from walras.cluster import Pool
from walras.errors import ConfigError
from walras.ids import PoolId

SUMMARY, JOBS, EVENTS, TIMELINE, REPORT = "summary.json", "jobs.csv", "events.csv.gz", "timeline.json", "report.html"
#: What was believed of speeds before they were measured, for `walras profile report`.
SCORED = "scored.json"
_BYTES_MAX = 1024 * 1024 * 1024
#: Columns of a job that are no numbers.
_WORDS = frozenset({"name", "project", "state"})


@dataclass(frozen=True, slots=True)
class JobLine:
    """One job as the report tells it. nan for what does not exist."""

    job_id: int
    name: str
    project: str
    state: str
    submitted_at: float
    jct_s: float
    alone_s: float
    queueing_s: float
    attempts: int
    usd: float


@dataclass(frozen=True, slots=True)
class Story:
    """One run, ready to be told."""

    workload: str
    cluster: str
    policy: str
    seed: int
    summary: Summary
    jobs: tuple[JobLine, ...]
    timeline: Timeline
    #: The file of conditions; "": none.
    conditions: str = ""
    #: Another simulator's; "": Walras's own.
    world: str = ""
    #: Everything that decides the figures, by name (`simulator.study.cell.description`).
    decided_by: tuple[tuple[str, str], ...] = ()


def words_of(ran: Ran) -> dict[str, Any]:
    """What the run is called by: the names that were given, without folders."""
    cell = ran.cell
    policy = Path(cell.policy)
    return {
        "workload": Path(cell.source.name).name,
        "cluster": Path(cell.cluster).name,
        "policy": policy.stem if policy.suffix else cell.policy,
        "seed": cell.seed,
        **({} if cell.world == WALRAS else {"world": cell.world}),
        **({} if cell.conditions is None else {"conditions": Path(cell.conditions).name}),
    }


def story_of(ran: Ran, timeline: Timeline) -> Story:
    """Of a run that has just ended."""
    jobs = (*ran.result.jobs, *ran.result.unfinished)
    lines = tuple(_line(ran, job) for job in jobs)
    decided_by = flat(json.loads(json.dumps(finite(description(ran.cell)))))
    return Story(**words_of(ran), summary=ran.summary, jobs=lines, timeline=timeline, decided_by=decided_by)


def flat(run: Mapping[str, Any], before: str = "") -> tuple[tuple[str, str], ...]:
    """A description by dotted names; without what was not asked for."""
    lines: list[tuple[str, str]] = []
    for name, value in run.items():
        if isinstance(value, Mapping):
            lines += flat(value, f"{before}{name}.")
        elif value not in (None, "", []):
            lines.append((before + name, value if isinstance(value, str) else json.dumps(value)))
    return tuple(lines)


def _line(ran: Ran, job: JobMeasure) -> JobLine:
    return JobLine(
        job.job_id,
        ran.roster.name(job.job_id),
        job.project,
        job.state.value,
        job.submitted_at,
        job.jct_s,
        ran.roster.alone_s(job.job_id),
        job.queueing_s,
        job.attempts,
        job.usd,
    )


# ------------------------------------------------------------------------------------------------- from a folder

_SUMMARY, _POOL = TypeAdapter(Summary), TypeAdapter(Pool)
_SPANS, _LINES = TypeAdapter(list[Span]), TypeAdapter(tuple[JobLine, ...])
_LEVEL = TypeAdapter(Level)


def read_story(folder: Path) -> Story:
    """Of the folder that `walras simulate run --out` left. Raises ConfigError naming the file that is not as it was."""
    summary = _read(folder / SUMMARY)
    try:
        words = {name: str(summary["words"][name]) for name in ("workload", "cluster", "policy")}
        figures = _with_nan(summary["summary"])
        figures.pop("usd_by_market")
        known = _SUMMARY.validate_python(figures)
        seed = int(summary["words"]["seed"])
        for name in ("conditions", "world"):
            words[name] = str(summary["words"].get(name, ""))
        decided_by = flat(summary["run"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unlike(folder / SUMMARY, error) from None
    jobs, timeline = _jobs(folder / JOBS), _timeline(folder / TIMELINE)
    return Story(**words, seed=seed, summary=known, jobs=jobs, timeline=timeline, decided_by=decided_by)


def _jobs(path: Path) -> tuple[JobLine, ...]:
    titles = [each.name for each in fields(JobLine)]
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if not set(titles) <= set(rows.fieldnames or ()):
                raise _unlike(path, "columns are missing")
            # Words may be empty; a number that is not there does not exist.
            cells = [{name: row[name] or ("" if name in _WORDS else nan) for name in titles} for row in rows]
        return _LINES.validate_python(cells)
    except OSError as error:
        raise _missing(path, error) from None
    except (ValueError, csv.Error) as error:
        raise _unlike(path, error) from None


def _timeline(path: Path) -> Timeline:
    data = _read(path)
    timeline = Timeline()
    try:
        for name, track in data["pools"].items():
            levels = {key: _LEVEL.validate_python(track[key]) for key in LEVELS}
            timeline.pools[PoolId(name)] = PoolTrack(_POOL.validate_python(track["pool"]), **levels)
        timeline.spans = _SPANS.validate_python(_with_nan(data["attempts"]))
        timeline.spans_left_out = int(data["attempts_left_out"])
        timeline.waiting = _LEVEL.validate_python(data["waiting"])
        timeline.price_unit, timeline.ended_at = str(data["price_unit"]), float(data["ended_at"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unlike(path, error) from None
    return timeline


#: What is kept of a pool over time.
LEVELS = ("there", "held", "running", "price", "usd_per_h")


def pool_data(track: PoolTrack) -> dict[str, Any]:
    """One pool over time as plain data."""
    levels = {name: _LEVEL.dump_python(getattr(track, name)) for name in LEVELS}
    return {"pool": _POOL.dump_python(track.pool, mode="json"), **levels}


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _BYTES_MAX:
            raise ConfigError(f"{path}: more than {_BYTES_MAX:,} bytes", fix="is it the folder of a run?")
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise _missing(path, error) from None
    except (ValueError, RecursionError) as error:
        raise _unlike(path, error) from None
    if not isinstance(data, dict):
        raise _unlike(path, "fields are expected")
    return data


def _with_nan(value: Any) -> Any:
    """The same data with nan where JSON had to say null."""
    if value is None:
        return nan
    if isinstance(value, Mapping):
        return {key: _with_nan(item) for key, item in value.items()}
    return [_with_nan(item) for item in value] if isinstance(value, list) else value


def _missing(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path}: {error.strerror or error}", fix="give a folder that `simulate run --out` made")


def _unlike(path: Path, error: object) -> ConfigError:
    told = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else error
    return ConfigError(f"{path} is not what a run left: {told}", fix="run it again with --out")
