"""Renting by price: against on-demand machines alone, and against every fixed cluster of a sweep."""

from itertools import product
from math import inf

from benchmarks.market_runs import Jobs, fixed, rented, run, trace, with_deadlines
from benchmarks.tables import Measured
from simulator.reports.run_summary import RunSummary

_JOBS = 60
#: What an hour of a job is worth, USD.
_DELAY = 5.0
#: And other worths, to see what ours costs where it is as quick as another.
_OTHER_DELAYS = (10.0, 20.0, 40.0)
#: Machines of each type that a fixed cluster may have. All hold the largest gang.
_SWEEP: dict[str, tuple[int, ...]] = {
    "g4dn.12xlarge": (0, 2),
    "g5.xlarge": (0, 8, 16),
    "g5.48xlarge": (1, 2, 4),
    "p4d.24xlarge": (0, 1, 2),
}


def measure(scale: float) -> list[Measured]:
    """All comparisons are of the same jobs."""
    work = trace(max(20, round(_JOBS * scale)))
    on_demand = run(work, rented(spot=False), _DELAY)
    wanted = with_deadlines(work)
    return [
        _spot("spot beside on-demand machines", work, on_demand),
        _spot("the same, every job with a deadline", wanted, run(wanted, rented(spot=False), _DELAY)),
        _sweep(work, on_demand),
    ]


def _spot(title: str, work: Jobs, on_demand: RunSummary) -> Measured:
    mixed = run(work, rented(spot=True), _DELAY)
    measured = Measured(title, f"{len(work.jobs)} jobs of Philly, {_DELAY:g} USD/h each")
    measured.add("on demand alone: cost", on_demand.usd, "USD")
    measured.add("on demand alone: average completion time", on_demand.avg_jct_s / 3600, "h")
    measured.add("with spot: cost", mixed.usd, "USD")
    measured.add("with spot: saved", 1 - mixed.usd / on_demand.usd, "of 1", at_least=0.5)
    measured.add("with spot: completion time", mixed.avg_jct_s / on_demand.avg_jct_s, "x", at_most=1.1)
    measured.add("attempts that revocations ended", mixed.losses, "")
    measured.add("steps lost with them", mixed.lost_steps / mixed.worked_steps, "of 1")
    measured.add("jobs that did not end", mixed.unfinished, "", at_most=0)
    if mixed.deadlines:
        measured.add("deadlines missed, on demand alone", on_demand.deadline_misses, f"of {mixed.deadlines}", at_most=0)
        measured.add("deadlines missed, with spot", mixed.deadline_misses, f"of {mixed.deadlines}", at_most=0)
    return measured


def _sweep(work: Jobs, ours: RunSummary) -> Measured:
    """The best fixed cluster is the one whose machines and waiting together cost least."""
    found = []
    for counts in product(*_SWEEP.values()):
        cluster = dict(zip(_SWEEP, counts, strict=True))
        found.append((run(work, fixed({name: n for name, n in cluster.items() if n}), _DELAY), cluster))
    best, cluster = min(found, key=lambda one: _whole_usd(work, one[0]))
    named = ", ".join(f"{count} x {name}" for name, count in cluster.items() if count)
    measured = Measured("renting by price against fixed clusters", f"{len(found)} clusters; the best is {named}")
    measured.add("best fixed cluster: cost", best.usd, "USD")
    measured.add("best fixed cluster: average completion time", best.avg_jct_s / 3600, "h")
    curve = [(_DELAY, ours), *((delay, run(work, rented(spot=False), delay)) for delay in _OTHER_DELAYS)]
    for delay, summary in sorted(curve, key=lambda point: point[0]):
        measured.add(f"rented, an hour worth {delay:g} USD: cost", summary.usd / best.usd, "x")
        measured.add(f"rented, an hour worth {delay:g} USD: completion time", summary.avg_jct_s / best.avg_jct_s, "x")
        measured.add(f"rented, an hour worth {delay:g} USD: jobs never worth a machine", summary.unfinished, "")
    done = [summary for _, summary in curve if not summary.unfinished]
    quick = [summary.usd for summary in done if summary.avg_jct_s <= best.avg_jct_s]
    measured.add("cheapest of them that is as quick: cost", min(quick, default=inf) / best.usd, "x", at_most=1.0)
    return measured


def _whole_usd(work: Jobs, summary: RunSummary) -> float:
    return summary.usd + _DELAY * len(work.jobs) * summary.avg_jct_s / 3600
