"""Frontier-CS `cant_be_late`, the four variants with recorded scores (needs `WALRAS_DATA`).

    WALRAS_DATA=... python -m benchmarks cant_be_late

Greedy and Uniform Progress are to come out as recorded, the optimum is exact for each window, and ours is the plan by
which the scheduler holds machines for jobs with deadlines. Its goal: 70 % of the way from Uniform Progress to the
optimum in the mean over the variants, half of it where restarts are long, and never late.

What bounds that: the best plans for one law of spells by age (`spot_laws`), fitted on the dates that ours is fitted on,
on all judged windows, and on those of each judged zone by themselves. The last is told what no policy here may know.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from benchmarks.needs import reference_data
from benchmarks.spot_laws import FloatArray, LawPolicy, plan_for_law, spell_law
from benchmarks.spot_runs import fitted_elsewhere
from benchmarks.tables import Measured
from optimizer.planning.deadline_job import DeadlineJob, GreedySpotPolicy, SpotPolicy, UniformProgress
from optimizer.planning.slack_policy import SlackPlans
from simulator.workloads.spot_markets import (
    SPOT_USD,
    TICKS_PER_H,
    VARIANTS,
    Judged,
    ScheduledSlack,
    Window,
    cheapest_bills,
    judge,
    recorded,
    score,
    window_job,
    windows,
)

#: Of the way from Uniform Progress to the optimum, percent: in the mean, and where a restart takes .2 h.
_MEAN, _LARGE = 70.0, 50.0
#: Points between a score of ours and the recorded one, for the same policy.
_EXACT = 0.1


def measure(scale: float) -> list[Measured]:
    """All windows of every variant, or a part of them spread over all zones."""
    data = reference_data()
    judged, scores = windows(data)[:: max(1, round(1 / scale))], recorded(data)
    measured = Measured("Frontier-CS cant_be_late, high availability", f"{len(judged)} windows of four zones")
    laws = _laws(data, judged)
    closed: list[float] = []
    bounds: dict[str, list[float]] = {name: [] for name in laws}
    for variant in VARIANTS:
        job, plans = window_job(variant), SlackPlans()
        name = variant.removeprefix("high_availability_").replace("_", " ")
        policies: dict[str, Callable[[], SpotPolicy]] = {
            "greedy": GreedySpotPolicy,
            "uniform_progress": UniformProgress,
        }
        found = {known: judge(job, judged, make) for known, make in policies.items()}
        ours = judge(job, judged, partial(ScheduledSlack, plans))
        optimum = score(cheapest_bills(job, judged))
        theirs = {**{known: each.score for known, each in found.items()}, "exact_optimum": optimum}
        for known, value in theirs.items():
            exact = _EXACT if scale >= 1 else None
            measured.add(f"{name}: {known.replace('_', ' ')}", value, "")
            measured.add("   beside the recorded score", abs(value - scores[variant, known]), "points", at_most=exact)
        line = found["uniform_progress"].score
        closed.append(100 * (ours.score - line) / (optimum - line))
        measured.add(f"{name}: ours", ours.score, "")
        goal = _LARGE if "large" in variant else None
        measured.add("   of the way from Uniform Progress to the optimum", closed[-1], "%", at_least=goal)
        measured.add("   late", ours.late, "windows", at_most=0)
        for known, by_zone in laws.items():
            best = _judge_laws(job, judged, by_zone)
            bounds[known].append(100 * (best.score - line) / (optimum - line))
            measured.add(f"   the best plan for {known}, of the way", bounds[known][-1], "%")
            measured.add("      late", best.late, "windows", at_most=0)
    measured.add("of the way, mean over the variants", fmean(closed), "%", at_least=_MEAN)
    for known, parts in bounds.items():
        measured.add(f"   the best plan for {known}", fmean(parts), "%")
    return [measured]


def _laws(data: Path, judged: Sequence[Window]) -> dict[str, dict[str, FloatArray]]:
    """Laws of spells by what they are fitted on, and by zone."""
    elsewhere, here = spell_law(fitted_elsewhere(data)), spell_law(window.available for window in judged)
    zones = sorted({window.zone for window in judged})
    return {
        "the law of other dates": dict.fromkeys(zones, elsewhere),
        "the law of all judged windows": dict.fromkeys(zones, here),
        "each judged zone's own law": {
            zone: spell_law(window.available for window in judged if window.zone == zone) for zone in zones
        },
    }


def _judge_laws(job: DeadlineJob, judged: Sequence[Window], by_zone: dict[str, FloatArray]) -> Judged:
    """The best plan for the law of its zone, on each window."""
    plans = {law.tobytes(): plan_for_law(job, law, SPOT_USD / TICKS_PER_H) for law in by_zone.values()}
    costs: list[float] = []
    late = 0
    for zone, law in by_zone.items():
        found = judge(job, [w for w in judged if w.zone == zone], partial(LawPolicy, plans[law.tobytes()]))
        costs += found.costs
        late += found.late
    return Judged(tuple(costs), late)
