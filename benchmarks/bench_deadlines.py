"""One job with a deadline on recorded spot markets: the scheduler beside the calculator (needs `WALRAS_DATA`).

    WALRAS_DATA=... python -m benchmarks deadlines

Both play the same starts. The calculator sees at the start of each slot whether there is a spot machine; the scheduler
learns it by asking for one. The calculator's plan is fitted on traces of dates on which nothing is judged.
"""

from collections.abc import Sequence
from pathlib import Path

from benchmarks import zone_runs
from benchmarks.needs import reference_data
from benchmarks.scheduled_deadlines import ScheduledTotal, scheduled_total
from benchmarks.spot_runs import JOB, Total, fitted_elsewhere, judged, starts, total, totalled
from benchmarks.tables import Measured
from optimizer.planning.deadline_job import UniformProgress
from optimizer.planning.slack_policy import fit_spot_markets, plan_slack
from optimizer.planning.spot_plan import ReplayStart, replay_optimum

_STARTS_EACH = 60
#: Between the price of spot and that on demand, USD/h.
_WORTH = 2.0
#: The scheduler may be this far behind the calculator, points of the cost of on-demand alone.
_BEHIND = 2.0
ROWS = ("no-value", "value", *zone_runs.REGIONS)


def measure(scale: float, row: str) -> list[Measured]:
    """The job alone on its market; `row`: whether an hour of it is said to be worth something, or a region."""
    data, each = reference_data(), max(1, round(_STARTS_EACH * scale))
    if row in zone_runs.REGIONS:
        return [_zones(data, row, max(1, each // 2))]
    begun = starts(judged(data), each)
    plan = plan_slack(JOB, fit_spot_markets(fitted_elsewhere(data)))
    ours = total(begun, lambda _: plan.policy())
    worth = 0.0 if row == "no-value" else _WORTH
    title = "a job with a deadline through the scheduler" + (f", an hour worth {worth:g} USD" if worth else "")
    measured = Measured(title, f"8 traces, {each} random starts on each")
    _scheduled(measured, scheduled_total(begun, worth), ours, is_judged=not worth)
    _calculated(measured, begun, ours)
    return [measured]


def _zones(data: Path, region: str, many: int) -> Measured:
    begun, fitted = zone_runs.begun(zone_runs.region(data, region), many), zone_runs.fitted(data)
    ours = totalled(zone_runs.across(begun, fitted.two, fitted.markets))
    measured = Measured(f"the same over the zones of {region}", f"{many} random starts")
    _scheduled(measured, scheduled_total(begun, 0.0), ours, is_judged=True)
    for name, found in (("ours over zones", ours), ("optimum over zones", totalled(replay_optimum(JOB, begun)))):
        measured.add(f"calculator, {name}, cost of on-demand alone", 100 * found.cost, "%")
    return measured


def _scheduled(measured: Measured, found: ScheduledTotal, ours: Total, *, is_judged: bool) -> None:
    measured.add("scheduler, cost of on-demand alone", 100 * found.cost, "%")
    measured.add("scheduler, of this on spot", 100 * found.spot, "%")
    measured.add("scheduler, dearest start", 100 * found.dearest, "%")
    measured.add("scheduler, starts of the job", found.starts, "")
    measured.add("scheduler, late", found.late, "jobs", at_most=0)
    behind = 100 * (found.cost - ours.cost)
    measured.add("scheduler above the calculator", behind, "points", at_most=_BEHIND if is_judged else None)


def _calculated(measured: Measured, begun: Sequence[ReplayStart], ours: Total) -> None:
    uniform, optimum = total(begun, lambda _: UniformProgress()), totalled(replay_optimum(JOB, begun))
    for name, found in (("ours", ours), ("Uniform Progress", uniform), ("optimum", optimum)):
        measured.add(f"calculator, {name}, cost of on-demand alone", 100 * found.cost, "%")
        measured.add(f"calculator, {name}, late", found.late, "jobs", at_most=0)
