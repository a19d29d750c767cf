"""What spot machines save under published and own policies, on recorded markets (needs `WALRAS_DATA`).

    WALRAS_DATA=... python -m benchmarks cloud

The optimum is exact for each start; a sample of the starts is solved once more as an integer program in whole slots.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from benchmarks import zone_runs
from benchmarks.revocation_runs import Weather, losses
from benchmarks.spot_runs import JOB, ON_DEMAND_ALONE, Total, fitted, judged, starts, total, totalled
from benchmarks.tables import Measured
from optimizer.planning.deadline_job import GreedySpotPolicy, UniformProgress
from optimizer.planning.reserved_capacity import QueueLoad, reserve_without_waiting
from optimizer.planning.slack_policy import SlackPlan, SlackPolicy, fit_spot_markets, plan_slack
from optimizer.planning.spot_plan import ReplayStart, replay_optimum, run_omniscient, zones_optimum
from scheduler.world.attempts import AttemptCosts

_STARTS_EACH = 60
#: One week of slots.
_WEEK = 7 * 24 * 6


def measure(scale: float) -> list[Measured]:
    """A table for each question; without the reference data only those that need no recorded market."""
    always = [_lost(scale), _reserved()]
    given = os.environ.get("WALRAS_DATA")
    if not given:
        return always
    data = Path(given)
    each = max(1, round(_STARTS_EACH * scale))
    fitted_before = zone_runs.fitted(data)
    zones = [zone_runs.measure_zones(data, name, max(1, each // 2), fitted_before) for name in zone_runs.REGIONS]
    return [_spot(data, each), *zones, *always]


def _spot(data: Path, each: int) -> Measured:
    begun = starts(judged(data), each)
    plans = _plans(data)
    greedy = total(begun, lambda _: GreedySpotPolicy())
    uniform = total(begun, lambda _: UniformProgress())
    ours = total(begun, lambda start: plans[start.zones[0]].policy())
    told = total(begun, lambda start: informed(plans[start.zones[0]], start))
    own = [_of_its_own(begun[first : first + each]) for first in range(0, len(begun), each)]
    optimum = totalled(replay_optimum(JOB, begun))
    measured = Measured("one job with a deadline on spot machines", f"8 traces, {each} random starts on each")
    for name, found in (("greedy", greedy), ("Uniform Progress", uniform), ("ours", ours), ("optimum", optimum)):
        target = 22.9 if found is uniform else None
        low, high = (None, None) if target is None else (target - 1, target + 1)
        measured.add(f"{name}, spot", found.spot_h, "h", at_most=high, at_least=low)
        measured.add(f"{name}, on demand", found.on_demand_h, "h")
        measured.add(f"{name}, cost of on-demand alone", 100 * found.cost, "%")
        measured.add(f"{name}, late", found.late, "jobs", at_most=0)
    measured.add(
        "closed by ours of what Uniform Progress leaves", 100 * closed(uniform, ours, optimum), "%", at_least=50
    )
    measured.add("the same, told of the week before the start", 100 * closed(uniform, told, optimum), "%")
    known = sum(found.cost for found in own) / len(own)
    measured.add(
        "the same, fitted on the very trace", 100 * (uniform.cost - known) / (uniform.cost - optimum.cost), "%"
    )
    sample = begun[:: max(1, len(begun) // 16)]
    measured.add(
        "optimum against the integer program, largest gap", max(map(_against_program, sample)), "slots of spot"
    )
    return measured


def _plans(data: Path) -> dict[tuple[bool, ...], SlackPlan]:
    """Our plan for each judged trace; traces of one time share theirs."""
    found: dict[tuple[bool, ...], SlackPlan] = {}
    made: dict[int, SlackPlan] = {}
    for trace, others in zip(judged(data), fitted(data), strict=True):
        if id(others) not in made:
            made[id(others)] = plan_slack(JOB, fit_spot_markets(others))
        found[trace] = made[id(others)]
    return found


def _of_its_own(begun: Sequence[ReplayStart]) -> Total:
    """Starts on one trace under a plan that was fitted on that very trace: what knowing its chances is worth."""
    plan = plan_slack(JOB, fit_spot_markets([begun[0].zones[0]]))
    return total(begun, lambda _: plan.policy())


def closed(before: Total, found: Total, optimum: Total) -> float:
    """Part of the cost above the optimum that is gone."""
    return (before.cost - found.cost) / (before.cost - optimum.cost)


def informed(plan: SlackPlan, start: ReplayStart) -> SlackPolicy:
    """Our policy where the zone was watched before the job came."""
    policy = plan.policy()
    policy.watch(start.zones[0][max(0, start.first - _WEEK) : start.first])
    return policy


def _against_program(start: ReplayStart) -> float:
    """How far the integer program, in whole slots, lies above the exact optimum."""
    exact = run_omniscient(JOB, start.ahead).cost
    program = zones_optimum(JOB, [start.ahead[0]], gap=1e-3)
    return ON_DEMAND_ALONE if program is None else abs(program.usd - exact)


def _lost(scale: float) -> Measured:
    every_s = 600.0
    costs = AttemptCosts(start_s=30, warm_up_s=20, checkpoint_s=15, checkpoint_every_s=every_s, exit_s=1)
    weather = Weather(max(5, round(40 * scale)), 24 * 3600.0, 3600.0, costs)
    lost_s = losses(weather)
    measured = Measured(
        "work lost per revocation without notice",
        f"{weather.jobs} simulated jobs of a day, machines live an hour in the mean, {every_s:g} s between checkpoints",
    )
    measured.add("revocations", len(lost_s), "")
    # A rounding of the simulator's clock is no loss.
    measured.add("most", round(max(lost_s), 6), "s of work", at_most=every_s)
    measured.add("mean", fmean(lost_s), "s of work", at_most=every_s / 2)
    return measured


def _reserved() -> Measured:
    best = reserve_without_waiting(QueueLoad(0.2, 0.002), 0.4)
    measured = Measured("servers to reserve, none waits", "arrivals .2, service .002, reserved at .4")
    measured.add("servers", best.servers, "servers", at_most=108, at_least=108)
    measured.add("price", best.price, "of on demand", at_most=0.4675, at_least=0.4665)
    measured.add("on demand", best.on_demand, "of all jobs", at_most=0.0355, at_least=0.0345)
    return measured
