"""A part of a trace: a range of arrivals, a random sample of its jobs, the first of them.

The parts are applied in this order, whatever the order of the options: the range, the sample, the number. The clock of
the slice begins where the range does. Dependencies on jobs outside of the slice count as fulfilled.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from random import Random

from simulator.workloads.trace import TraceJob
from simulator.workloads.trace_source import ReadOptions, epoch_seconds
from walras.errors import ConfigError
from walras.units import parse_length

#: Seed of the sample: the same file and part give the same jobs, for every policy and seed of a run.
_SAMPLE_SEED = "sample"


def slice_jobs(
    jobs: Sequence[TraceJob], reading: ReadOptions, path: str, began_at: float | None = None
) -> list[TraceJob]:
    """Returns the requested jobs, on a clock that begins with the range.

    `began_at`: start of the trace, seconds since 1970; None if it has no dates. Raises ConfigError for an invalid
    range, and for a slice without a job.
    """
    since_s = _instant(reading.since, "since", began_at) if reading.since else 0.0
    until_s = _instant(reading.until, "until", began_at) if reading.until else inf
    if not since_s < until_s:
        raise ConfigError(f"since {reading.since or 0}, until {reading.until}", field="until", fix="give a later one")
    if reading.sample is not None and not 0 < reading.sample <= 1:
        raise ConfigError(f"sample {reading.sample:g}", field="sample", fix="give a part, above 0 and at most 1")
    if reading.first is not None and reading.first < 1:
        raise ConfigError(f"first {reading.first}", field="first", fix="give a number of jobs, at least 1")
    found = [job for job in jobs if since_s <= job.at < until_s]
    if reading.sample is not None and found:
        kept = max(1, round(reading.sample * len(found)))
        places = sorted(Random(_SAMPLE_SEED).sample(range(len(found)), kept))
        found = [found[place] for place in places]
    found = found[: reading.first]
    if not found:
        last = f"{jobs[-1].at:g} s"
        raise ConfigError(f"{path}: no job arrives in that range; the last arrives at {last}", field="since",
                          fix="choose another range")  # fmt: skip
    names = {job.name for job in found}
    whole = [
        job
        if all(name in names for name in job.depends_on)
        else replace(job, depends_on=tuple(name for name in job.depends_on if name in names))
        for job in found
    ]
    return [later_by(job, -since_s) for job in whole] if since_s else whole


def later_by(job: TraceJob, seconds: float) -> TraceJob:
    """Returns the job with all its instants moved."""
    return replace(
        job,
        at=job.at + seconds,
        deadline_at=job.deadline_at + seconds,
        cancel_at=job.cancel_at + seconds,
        not_before_at=job.not_before_at + seconds,
    )


def _instant(text: str, option: str, began_at: float | None) -> float:
    """Returns seconds since the trace began, from a length (`2d`) or a date."""
    try:
        return parse_length(text)
    except ValueError:
        pass
    try:
        at = epoch_seconds(text)
    except ValueError:
        fix = "write a length since the trace began, such as 2d, or a date such as 2026-11-05T18:00:00Z"
        raise ConfigError(f"{option} {text[:60]!r}", field=option, fix=fix) from None
    if began_at is None:
        raise ConfigError(
            f"{option} is a date, and this trace counts seconds from its beginning",
            field=option,
            fix="write a length since the trace began, such as 2d",
        )
    return at - began_at
