"""Gavel's generated jobs, draw for draw: with its throughput table, the same seed gives the same trace.

One stream for the jobs (seed + 2), one for the times between them (seed + 3), one for SLOs (seed + 6). A job draws its
gang, then its length, then its kind (again while the gang is above 1 and the kind cannot be spread), then its weight
where weights were asked for. The gang is drawn even where every job then gets one accelerator.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from random import Random

from simulator.truth import SpeedKey
from simulator.workloads.arrivals import poisson_at
from simulator.workloads.job import TraceJob
from simulator.workloads.mix import (
    KINDS,
    REFERENCE,
    SPREADABLE,
    Asked,
    draw_duration_s,
    draw_gang,
    draw_slo,
    draw_weight,
)
from simulator.workloads.source import batch_of
from walras.errors import ConfigError
from walras.ids import Kind


def gavel(asked: Asked, table: Mapping[SpeedKey, float] | None = None) -> Iterator[TraceJob]:
    """The jobs, named by their line from 0. Without a table they have durations on a V100 instead of steps."""
    jobs, slos = Random(asked.seed + 2), Random(asked.seed + 6)
    instants = islice(poisson_at(asked.rate_per_h, Random(asked.seed + 3)), asked.jobs)
    for number, at in enumerate(instants):
        gang, duration_s = draw_gang(jobs), draw_duration_s(jobs) * asked.stretch
        gang = gang if asked.gangs else 1
        kind = jobs.choice(KINDS)
        while gang > 1 and kind not in SPREADABLE:
            kind = jobs.choice(KINDS)
        yield TraceJob(
            # A trace file has six digits.
            at=round(at, 6),
            name=str(number),
            kind=kind,
            gang=gang,
            steps=None if table is None else _steps(duration_s, kind, gang, table),
            duration_s=duration_s if table is None else None,
            duration_on=REFERENCE,
            weight=draw_weight(jobs) if asked.priorities else 1.0,
            slo=draw_slo(slos) if asked.slos else None,
            batch=batch_of(kind),
        )


def _steps(duration_s: float, kind: str, gang: int, table: Mapping[SpeedKey, float]) -> float:
    speed = table.get(SpeedKey(Kind(kind), REFERENCE, gang))
    if not speed:
        raise ConfigError(
            f"the throughput table has no speed of {kind!r} x {gang} on {REFERENCE}",
            field="speeds",
            fix="give Gavel's table, or none",
        )
    return float(int(duration_s * speed))
