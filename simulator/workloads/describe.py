"""What a trace is like, in numbers: how many jobs, how often, how large, how long, and the load on a cluster."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from simulator.goodput.laws import Laws
from simulator.truth import SpeedKey, Truth
from simulator.workloads.job import Trace, TraceJob
from simulator.workloads.placing import Placing, machine_sizes, nominal_speeds
from walras.cluster import Market
from walras.config import ClusterConfig

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
_MOST_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution: how many values there are, their mean, and the quantiles of `QUANTILES`."""

    count: int
    mean: float
    quantiles: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """What the trace asks of a cluster, if each job ran alone on the fastest type it accepts there."""

    #: Owned accelerators, and rented ones at the full quota.
    accelerators: int
    accelerator_h: float
    #: Run time of a job, seconds.
    duration_s: Spread
    #: Accelerators asked for ÷ accelerators there, over the span of arrivals. None: all jobs arrive at once.
    offered_load: float | None
    #: Least time in which the cluster could do the work, were it perfectly divisible.
    drained_after_h: float
    #: Jobs larger than every pool: they could never start.
    too_large: int


@dataclass(frozen=True, slots=True)
class Description:
    """Everything that `walras workload describe` tells."""

    source: str
    format: str
    jobs: int
    skipped: int
    first_at: float
    last_at: float
    #: Between the first and the last arrival. None: all at once.
    jobs_per_h: float | None
    gangs: Mapping[int, int]
    #: Of jobs that state it; None: no job does.
    duration_s: Spread | None
    steps: Spread | None
    #: Over jobs that state a duration.
    accelerator_h: float
    kinds: Mapping[str, int]
    types: Mapping[str, int]
    users: Mapping[str, int]
    projects: Mapping[str, int]
    weights: Mapping[float, int]
    with_deadline: int
    elastic: int
    #: Jobs that wait for others, that their users cancel, and that fail somewhere.
    dependent: int
    cancelled: int
    failing: int
    load: Load | None = None


def described(
    trace: Trace,
    cluster: ClusterConfig | None = None,
    table: Mapping[SpeedKey, float] | None = None,
    laws: Laws | None = None,
) -> Description:
    """The trace in numbers. With a cluster, raises ConfigError for a job that cannot run there at all."""
    jobs = trace.jobs
    first_at, last_at = jobs[0].at, jobs[-1].at
    durations = [job.duration_s for job in jobs if job.duration_s is not None]
    steps = [job.steps for job in jobs if job.steps is not None]
    return Description(
        source=trace.source,
        format=trace.format,
        jobs=len(jobs),
        skipped=trace.skipped.count,
        first_at=first_at,
        last_at=last_at,
        jobs_per_h=(len(jobs) - 1) * 3600.0 / (last_at - first_at) if last_at > first_at else None,
        gangs=dict(sorted(Counter(job.gang for job in jobs).items())),
        duration_s=_spread(durations),
        steps=_spread(steps),
        accelerator_h=sum(job.gang * job.duration_s for job in jobs if job.duration_s is not None) / 3600.0,
        kinds=_common(job.kind for job in jobs),
        types=_common("|".join(job.types) or "any" for job in jobs),
        users=_common(job.user for job in jobs if job.user),
        projects=_common(job.project for job in jobs),
        weights=dict(sorted(Counter(job.weight for job in jobs).items())),
        with_deadline=sum(job.slo is not None or isfinite(job.deadline_at) for job in jobs),
        elastic=sum(bool(job.sizes) for job in jobs),
        dependent=sum(bool(job.depends_on) for job in jobs),
        cancelled=sum(isfinite(job.cancel_at) for job in jobs),
        failing=sum(bool(job.failures) for job in jobs),
        load=None if cluster is None else _load(trace, cluster, table, laws),
    )


def _load(trace: Trace, cluster: ClusterConfig, table: Mapping[SpeedKey, float] | None, laws: Laws | None) -> Load:
    placing = Placing(
        nominal_speeds(cluster),
        declared=cluster.speeds,
        table=table,
        laws=laws,
        machines=machine_sizes(cluster),
        source=trace.source,
    )
    truth = Truth(placing.speeds, laws={} if laws is None else laws.of)
    largest: dict[str, int] = {}
    accelerators = 0
    for entry in cluster.pools:
        room = (entry.machines if entry.market is Market.OWNED else entry.quota) * entry.accelerators
        largest[entry.accelerator] = max(room, largest.get(entry.accelerator, 0))
        accelerators += room
    durations: list[float] = []
    accelerator_s, too_large = 0.0, 0
    for job in placing.jobs(trace.jobs):
        kind, demands = job.request.kind, job.request.demands
        durations.append(
            min(
                truth.takes_s(kind, each.accelerator, placing.parts(each.accelerator, each.count), job.steps)
                for each in demands
            )
        )
        accelerator_s += durations[-1] * demands[0].count
        too_large += all(each.count > largest[each.accelerator] for each in demands)
    span_s, there = trace.jobs[-1].at - trace.jobs[0].at, max(1, accelerators)
    spread = _spread(durations)
    assert spread is not None, "a trace has at least one job"
    return Load(
        accelerators=accelerators,
        accelerator_h=accelerator_s / 3600.0,
        duration_s=spread,
        offered_load=accelerator_s / (there * span_s) if span_s > 0 else None,
        drained_after_h=accelerator_s / there / 3600.0,
        too_large=too_large,
    )


def _spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    ordered = sorted(values)
    last = len(ordered) - 1
    # The nearest rank: a value that some job has.
    return Spread(
        len(ordered), sum(ordered) / len(ordered), tuple(ordered[round(quantile * last)] for quantile in QUANTILES)
    )


def _common(values: Any) -> dict[str, int]:
    """How often each occurs, most frequent first, ties by name."""
    return dict(sorted(Counter(values).items(), key=lambda pair: (-pair[1], pair[0])))


def as_json(description: Description) -> dict[str, Any]:
    """For programs. Keys of counts are text."""
    data = asdict(description)
    data["quantiles"] = list(QUANTILES)
    for name in ("gangs", "weights"):
        data[name] = {f"{key:g}": count for key, count in data[name].items()}
    return data


def shares(counts: Mapping[Any, int], total: int) -> list[tuple[str, int, float]]:
    """(value, jobs, part of all) of the most frequent; the rest together."""
    shown = [(str(key), count, count / total) for key, count in list(counts.items())[:_MOST_SHOWN]]
    rest = sum(list(counts.values())[_MOST_SHOWN:])
    more = len(counts) - _MOST_SHOWN
    return [*shown, (f"({more} more)", rest, rest / total)] if more > 0 else shown


def accelerators_wanted(jobs: Sequence[TraceJob]) -> list[tuple[float, int]]:
    """Accelerators that would be busy from each instant on, if every job with a duration began when it arrives."""
    changes = [(job.at, job.gang) for job in jobs if job.duration_s is not None]
    changes += [(job.at + job.duration_s, -job.gang) for job in jobs if job.duration_s is not None]
    busy, curve = 0, []
    for at, change in sorted(changes):
        busy += change
        curve.append((at, busy))
    return curve
