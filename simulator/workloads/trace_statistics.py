"""Statistics of a trace: job counts, arrival rate, gangs, lengths, the load on a cluster; also as four plots.

Matplotlib is imported only when something is plotted.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.goodput.laws import GoodputLaws
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.workloads.trace_binding import TraceBinding, machine_sizes, nominal_speeds
from simulator.workloads.trace_source import Trace, TraceJob
from walras.cluster import Market
from walras.contract import SECONDS_PER_HOUR
from walras.errors import ConfigError, system_refusals
from walras.spec.cluster_file import ClusterConfig

if TYPE_CHECKING:
    from matplotlib.axes import Axes


QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
_MOST_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution: how many values there are, their mean, and the quantiles of `QUANTILES`."""

    count: int
    mean: float
    quantiles: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ClusterLoad:
    """The load of a trace on a cluster, if each job ran alone on the fastest type that it accepts there."""

    #: Owned accelerators, and rented ones at the full quota.
    accelerators: int
    accelerator_h: float
    #: Run time of a job, seconds.
    duration_s: Distribution
    #: Accelerators requested ÷ accelerators of the cluster, over the span of arrivals. None: all jobs arrive at once.
    offered_load: float | None
    #: Least seconds in which the cluster could do the work if it were perfectly divisible.
    drained_after_h: float
    #: Jobs larger than every pool: they could never start.
    too_large: int


@dataclass(frozen=True, slots=True)
class TraceDescription:
    """The contents of `walras simulate workload describe`."""

    source: str
    format: str
    jobs: int
    skipped: int
    first_at: float
    last_at: float
    #: Seconds between the first and the last arrival. None: all arrive at once.
    jobs_per_h: float | None
    gangs: Mapping[int, int]
    #: Of jobs that state it; None: no job does.
    duration_s: Distribution | None
    steps: Distribution | None
    #: Over jobs that state a duration.
    accelerator_h: float
    kinds: Mapping[str, int]
    types: Mapping[str, int]
    users: Mapping[str, int]
    projects: Mapping[str, int]
    weights: Mapping[float, int]
    with_deadline: int
    elastic: int
    #: Number of jobs with dependencies, of jobs that users cancel, and of jobs that fail.
    dependent: int
    cancelled: int
    failing: int
    load: ClusterLoad | None = None


def describe_trace(
    trace: Trace,
    cluster: ClusterConfig | None = None,
    table: Mapping[SpeedKey, float] | None = None,
    laws: GoodputLaws | None = None,
) -> TraceDescription:
    """Describes a trace in numbers. With a cluster, raises ConfigError for a job that cannot run there."""
    jobs = trace.jobs
    first_at, last_at = jobs[0].at, jobs[-1].at
    durations = [job.duration_s for job in jobs if job.duration_s is not None]
    steps = [job.steps for job in jobs if job.steps is not None]
    return TraceDescription(
        source=trace.source,
        format=trace.format,
        jobs=len(jobs),
        skipped=trace.skipped.count,
        first_at=first_at,
        last_at=last_at,
        jobs_per_h=(len(jobs) - 1) * SECONDS_PER_HOUR / (last_at - first_at) if last_at > first_at else None,
        gangs=dict(sorted(Counter(job.gang for job in jobs).items())),
        duration_s=_distribution(durations),
        steps=_distribution(steps),
        accelerator_h=sum(job.gang * job.duration_s for job in jobs if job.duration_s is not None) / SECONDS_PER_HOUR,
        kinds=_counts_by_value(job.kind for job in jobs),
        types=_counts_by_value("|".join(job.types) or "any" for job in jobs),
        users=_counts_by_value(job.user for job in jobs if job.user),
        projects=_counts_by_value(job.project for job in jobs),
        weights=dict(sorted(Counter(job.weight for job in jobs).items())),
        with_deadline=sum(job.slo is not None or isfinite(job.deadline_at) for job in jobs),
        elastic=sum(bool(job.sizes) for job in jobs),
        dependent=sum(bool(job.depends_on) for job in jobs),
        cancelled=sum(isfinite(job.cancel_at) for job in jobs),
        failing=sum(bool(job.failures) for job in jobs),
        load=None if cluster is None else _cluster_load(trace, cluster, table, laws),
    )


def _cluster_load(
    trace: Trace, cluster: ClusterConfig, table: Mapping[SpeedKey, float] | None, laws: GoodputLaws | None
) -> ClusterLoad:
    placing = TraceBinding(
        nominal_speeds(cluster),
        declared=cluster.speeds,
        table=table,
        laws=laws,
        machines=machine_sizes(cluster),
        source=trace.source,
    )
    truth = GroundTruth(placing.speeds, laws={} if laws is None else laws.of)
    largest: dict[str, int] = {}
    accelerators = 0
    for entry in cluster.pools:
        capacity = (entry.machines if entry.market is Market.OWNED else entry.quota) * entry.accelerators
        largest[entry.accelerator] = max(capacity, largest.get(entry.accelerator, 0))
        accelerators += capacity
    durations: list[float] = []
    accelerator_s, too_large = 0.0, 0
    for job in placing.jobs(trace.jobs):
        kind, demands = job.request.kind, job.request.demands
        durations.append(
            min(
                truth.run_time_s(kind, each.accelerator, placing.parts(each.accelerator, each.count), job.steps)
                for each in demands
            )
        )
        accelerator_s += durations[-1] * demands[0].count
        too_large += all(each.count > largest[each.accelerator] for each in demands)
    span_s, there = trace.jobs[-1].at - trace.jobs[0].at, max(1, accelerators)
    spread = _distribution(durations)
    assert spread is not None, "a trace has at least one job"
    return ClusterLoad(
        accelerators=accelerators,
        accelerator_h=accelerator_s / SECONDS_PER_HOUR,
        duration_s=spread,
        offered_load=accelerator_s / (there * span_s) if span_s > 0 else None,
        drained_after_h=accelerator_s / there / SECONDS_PER_HOUR,
        too_large=too_large,
    )


def _distribution(values: Sequence[float]) -> Distribution | None:
    if not values:
        return None
    ordered = sorted(values)
    last = len(ordered) - 1
    # The nearest rank, so that it is a value of some job.
    return Distribution(
        len(ordered), sum(ordered) / len(ordered), tuple(ordered[round(quantile * last)] for quantile in QUANTILES)
    )


def _counts_by_value(values: Any) -> dict[str, int]:
    """Counts each value, most frequent first, ties by name."""
    return dict(sorted(Counter(values).items(), key=lambda pair: (-pair[1], pair[0])))


def trace_description_json(description: TraceDescription) -> dict[str, Any]:
    """Returns the description as JSON data; keys of counts are text."""
    data = asdict(description)
    data["quantiles"] = list(QUANTILES)
    for name in ("gangs", "weights"):
        data[name] = {f"{key:g}": count for key, count in data[name].items()}
    return data


def count_shares(counts: Mapping[Any, int], total: int) -> list[tuple[str, int, float]]:
    """Returns (value, jobs, part of all) of the most frequent values, and the rest together."""
    shown = [(str(key), count, count / total) for key, count in list(counts.items())[:_MOST_SHOWN]]
    rest = sum(list(counts.values())[_MOST_SHOWN:])
    more = len(counts) - _MOST_SHOWN
    return [*shown, (f"({more} more)", rest, rest / total)] if more > 0 else shown


def accelerator_demand(jobs: Sequence[TraceJob]) -> list[tuple[float, int]]:
    """Returns accelerators that would be busy from each instant on, if every job with a duration started at its
    arrival.
    """
    changes = [(job.at, job.gang) for job in jobs if job.duration_s is not None]
    changes += [(job.at + job.duration_s, -job.gang) for job in jobs if job.duration_s is not None]
    busy, curve = 0, []
    for at, change in sorted(changes):
        busy += change
        curve.append((at, busy))
    return curve


_ENDINGS = (".png", ".svg")
_BINS = 60


def plot_trace(trace: Trace, path: str | Path) -> None:
    """Writes the plots as PNG or SVG. Equal traces give equal files. Raises ConfigError for another ending."""
    if Path(path).suffix.lower() not in _ENDINGS:
        raise ConfigError(f"{path}: plots are written as {' or '.join(_ENDINGS)}", field="plot", fix="change the name")
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "walras", "font.size": 9}):
        figure = Figure(figsize=(10, 6.5), layout="constrained")
        arrivals, gangs, durations, wanted = figure.subplots(2, 2).flat
        _plot_arrivals(arrivals, trace)
        _plot_gangs(gangs, trace)
        _plot_durations(durations, trace)
        _plot_demand(wanted, trace)
        figure.suptitle(f"{Path(trace.source).name}: {len(trace.jobs):,} jobs", parse_math=False)
        # Neither date nor program version is in the file.
        metadata = {"Date": None} if Path(path).suffix.lower() == ".svg" else {"Software": None}
        with system_refusals(path, fix="check the path", field="plot"):
            figure.savefig(path, metadata=metadata)


def _plot_arrivals(axes: "Axes", trace: Trace) -> None:
    hours = [job.at / SECONDS_PER_HOUR for job in trace.jobs]
    width_h = (hours[-1] - hours[0]) / _BINS
    axes.hist(hours, bins=_BINS, color="tab:blue")
    axes.set(title="Arrivals", xlabel="time (h)", ylabel=f"jobs per {width_h:.3g} h" if width_h else "jobs")


def _plot_gangs(axes: "Axes", trace: Trace) -> None:
    sizes = sorted({job.gang for job in trace.jobs})
    counts = [sum(job.gang == size for job in trace.jobs) for size in sizes]
    axes.bar([str(size) for size in sizes], counts, color="tab:green")
    axes.set(title="Gangs", xlabel="accelerators", ylabel="jobs")


def _plot_durations(axes: "Axes", trace: Trace) -> None:
    seconds = sorted(job.duration_s for job in trace.jobs if job.duration_s is not None)
    label = "run time (h)"
    values = [value / SECONDS_PER_HOUR for value in seconds]
    if not values:
        label, values = "steps", sorted(job.steps for job in trace.jobs if job.steps is not None)
    if values:
        axes.plot(values, [rank / len(values) for rank in range(1, len(values) + 1)], color="tab:red")
        axes.set_xscale("log")
    axes.set(title="Length", xlabel=label, ylabel="part of the jobs", ylim=(0, 1))


def _plot_demand(axes: "Axes", trace: Trace) -> None:
    curve = accelerator_demand(trace.jobs)
    if curve:
        axes.step(
            [at / SECONDS_PER_HOUR for at, _ in curve], [busy for _, busy in curve], where="post", color="tab:purple"
        )
    axes.set(title="Accelerators, if no job waited", xlabel="time (h)", ylabel="accelerators")
