"""`walras` on Gavel's traces, lengths known: in Gavel's own rounds, and at events (needs `WALRAS_DATA`).

    WALRAS_DATA=... python -m benchmarks grounds_traces [--row static-rounds static-events ... means]

x is taken over the jobs that the reference measured; slowdowns are over all. Targets are for the mean over the traces
of one accelerator a job, and over those with gangs. Below a scale of 1 only the traces of one fleet of 36 are run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import fmean

from benchmarks.grounds import Served, as_shipped, excess, priced_bound_s, reference_b, serve, traces
from benchmarks.grounds_rounds import in_gavel_rounds
from benchmarks.tables import Measured
from simulator.reports.run_spec import WorkloadSource
from simulator.simulation import Scenario

AWARE = "max_min_fairness"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A trace, and what Gavel's simulator recorded on it under max-min with speeds."""

    name: str
    cluster: str
    jct_s: float
    #: Jobs that it measured, from 0; None: all.
    window: tuple[int, int] | None = None
    gangs: bool = False
    #: The record is of a run with weights; the mean over traces leaves it out.
    weighted: bool = False


TRACES = (
    Recorded("static_single_seed0_n60", "gavel-12-12-12", 59_362.72),
    Recorded("single_small_seed0_rate1.67", "gavel-12-12-12", 53_607.42, (300, 500)),
    Recorded("single_small_prio_seed0_rate1.67", "gavel-12-12-12", 89_162.03, (300, 500), weighted=True),
    Recorded("multi_small_seed0_rate0.5", "gavel-12-12-12", 50_826.93, (200, 400), gangs=True),
    Recorded("single_big_seed0_rate3.0", "gavel-36-36-36", 50_636.17, (1000, 1500)),
)
_LARGEST_X, _SLOWDOWN, _ABOVE_BOUND = 0.70, 3.0, 2.5
_SHORT = dict(zip(("static", "small", "weighted", "gangs", "big"), TRACES, strict=True))
_WAYS: dict[str, Callable[[Scenario], Scenario]] = {"rounds": in_gavel_rounds, "events": as_shipped}
#: The reference at events takes hours where there are more than 36 accelerators.
_FLEET = "gavel-12-12-12"
#: Rows that can be measured alone; the means run whatever of theirs has not been run.
ROWS = (*(f"{short}-{way}" for way in _WAYS for short in _SHORT), "means")


def measure(scale: float, row: str | None = None) -> list[Measured]:
    """A table for each trace and way of deciding, then the means; or one of them."""
    chosen = [trace for trace in TRACES if scale >= 1 or trace.cluster == _FLEET]
    found = []
    for name in [row] if row else ROWS:
        if name == "means":
            found.append(_means(chosen))
            continue
        short, way = name.split("-")
        if _SHORT[short] in chosen:
            found.append(_alone(_SHORT[short], way))
    return found


def source_of(trace: Recorded) -> WorkloadSource:
    """Where its jobs are."""
    return WorkloadSource(str(traces() / f"{trace.name}.tsv"))


def measured_by(trace: Recorded, served: Served) -> Served:
    """The run over the jobs that the record is about."""
    if trace.window is None:
        return served
    first = min(served.job_ids)
    return served.over(range(first + trace.window[0], first + trace.window[1]))


@cache
def _run(trace: Recorded, way: str) -> Served:
    return serve(source_of(trace), trace.cluster, "walras", change=_WAYS[way])


@cache
def _x_at_events(trace: Recorded) -> float:
    """x against max-min at events."""
    b = serve(source_of(trace), trace.cluster, AWARE, change=reference_b)
    return excess(_run(trace, "events"), b.mean_s)


def _x(trace: Recorded, way: str) -> float:
    return excess(measured_by(trace, _run(trace, way)), trace.jct_s)


def _alone(trace: Recorded, way: str) -> Measured:
    measured = Measured(f"{trace.name}, {way}", "rounds of 360 s or events, exact speeds, free restarts")
    served = _run(trace, way)
    measured.add("JCT of all jobs", served.mean_s, "s")
    measured.add("x against Gavel's record", _x(trace, way), "", at_most=_LARGEST_X)
    measured.add("worst slowdown", max(served.slowdowns), "", at_most=_SLOWDOWN)
    measured.add("preemptions per job", served.moves, "")
    if way == "rounds":
        return measured
    if not trace.gangs and not trace.weighted:  # it divides gangs, and knows no weights
        bound_s = priced_bound_s(source_of(trace), trace.cluster)
        measured.add("above the priced bound", 100.0 * (served.mean_s / bound_s - 1.0), "%", at_most=_ABOVE_BOUND)
    if trace.cluster == _FLEET:
        measured.add("x against max-min at events", _x_at_events(trace), "", at_most=1.0)
    return measured


def _means(chosen: list[Recorded]) -> Measured:
    measured = Measured("Gavel's traces, means", "x over the traces of one accelerator a job, and of gangs")
    for way, single, gangs in (("rounds", 0.47, 0.20), ("events", 0.40, 0.16)):
        for title, has_gangs, most in (("one accelerator a job", False, single), ("gangs", True, gangs)):
            xs = [_x(trace, way) for trace in chosen if trace.gangs == has_gangs and not trace.weighted]
            measured.add(f"{way}, {title}: mean x against Gavel's record", fmean(xs), "", at_most=most)
    against_b = [_x_at_events(trace) for trace in chosen if trace.cluster == _FLEET]
    measured.add("mean x against max-min at events", fmean(against_b), "", at_most=0.75)
    return measured
