"""`walras` on Gavel's traces, lengths known: in Gavel's own rounds, and at events (needs `WALRAS_DATA`).

    WALRAS_DATA=... python -m benchmarks grounds_traces

x is taken over the jobs that the reference measured; slowdowns are over all. Targets are for the mean over the traces
of one accelerator a job, and over those with gangs. Below a scale of 1 only the traces of one fleet of 36 are run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from benchmarks.grounds import Served, as_shipped, excess, priced_bound_s, reference_b, serve, traces
from benchmarks.grounds_rounds import in_gavel_rounds
from benchmarks.tables import Measured
from simulator.simulate import Scenario
from simulator.study.cell import Source

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


def measure(scale: float) -> list[Measured]:
    """Rounds, then events with both references."""
    chosen = [trace for trace in TRACES if scale >= 1 or trace.cluster == "gavel-12-12-12"]
    return [_rounds(chosen), _events(chosen)]


def source_of(trace: Recorded) -> Source:
    """Where its jobs are."""
    return Source(str(traces() / f"{trace.name}.tsv"))


def measured_by(trace: Recorded, served: Served) -> Served:
    """The run over the jobs that the record is about."""
    if trace.window is None:
        return served
    first = min(served.job_ids)
    return served.over(range(first + trace.window[0], first + trace.window[1]))


def _rounds(chosen: list[Recorded]) -> Measured:
    measured = Measured("Gavel's traces in Gavel's rounds", "360 s, exact speeds, free restarts, x against its record")
    runs = _against_a(measured, chosen, in_gavel_rounds)
    _means(measured, chosen, runs, 0.47, 0.20)
    return measured


def _events(chosen: list[Recorded]) -> Measured:
    measured = Measured("Gavel's traces at events", "exact speeds, free restarts, x against its record and at events")
    runs = _against_a(measured, chosen, as_shipped)
    _means(measured, chosen, runs, 0.40, 0.16)
    for trace in chosen:
        if not trace.gangs and not trace.weighted:  # it divides gangs, and knows no weights
            bound_s = priced_bound_s(source_of(trace), trace.cluster)
            gap = 100.0 * (runs[trace.name].mean_s / bound_s - 1.0)
            measured.add(f"{trace.name}: above the priced bound", gap, "%", at_most=_ABOVE_BOUND)
    against_b = []
    for trace in chosen:
        if trace.cluster != "gavel-12-12-12":
            continue  # the reference takes hours there
        b = serve(source_of(trace), trace.cluster, AWARE, change=reference_b)
        against_b.append(excess(runs[trace.name], b.mean_s))
        measured.add(f"{trace.name}: x against max-min at events", against_b[-1], "", at_most=1.0)
    measured.add("mean x against max-min at events", fmean(against_b), "", at_most=0.75)
    return measured


def _against_a(measured: Measured, chosen: list[Recorded], change: Callable[[Scenario], Scenario]) -> dict[str, Served]:
    runs: dict[str, Served] = {}
    for trace in chosen:
        served = runs[trace.name] = serve(source_of(trace), trace.cluster, "walras", change=change)
        x = excess(measured_by(trace, served), trace.jct_s)
        measured.add(f"{trace.name}: JCT of all jobs", served.mean_s, "s")
        measured.add(f"{trace.name}: x against Gavel's record", x, "", at_most=_LARGEST_X)
        measured.add(f"{trace.name}: worst slowdown", max(served.slowdowns), "", at_most=_SLOWDOWN)
        measured.add(f"{trace.name}: preemptions per job", served.moves, "")
    return runs


def _means(measured: Measured, chosen: list[Recorded], runs: dict[str, Served], single: float, gangs: float) -> None:
    for title, has_gangs, most in (("one accelerator a job", False, single), ("gangs", True, gangs)):
        xs = [
            excess(measured_by(trace, runs[trace.name]), trace.jct_s)
            for trace in chosen
            if trace.gangs == has_gangs and not trace.weighted
        ]
        measured.add(f"{title}: mean x against Gavel's record", fmean(xs), "", at_most=most)
