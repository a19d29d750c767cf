"""`walras plan spot`: what one job with a deadline should do on spot machines, judged on recorded markets.

Puts the answer together; replays, choices and the optimum are elsewhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean

from scheduler.cloud.deadline_job import DeadlineJob, Going, Held, SpotPolicy, Standing
from scheduler.cloud.slack_plan import SlackPlan
from scheduler.cloud.spot_program import zones_optimum
from scheduler.cloud.spot_replay import Replayed, Start, Zones, draw_starts, least, replay, teach
from scheduler.cloud.spot_terms import MOST_HYPOTHESES, Present, SpotTerms, standing_of
from scheduler.cloud.uniform_progress import Greedy, OnDemandAlone, UniformProgress
from walras.errors import UserError

#: Starts that are solved once more as an integer program, and where that stops.
_CHECKED, _GAP, _CHECK_S = 4, 1e-3, 30.0
_ROUNDING = 1e-9
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """What a policy came to, in the mean over all starts."""

    name: str
    spot_h: float
    on_demand_h: float
    usd: float
    #: Its cost over that of the bound, less 1.
    above_bound: float
    machine_starts: float
    #: Starts from which it was late.
    late: int
    #: What it does now where a spot machine can be had, and where none can.
    with_spot: str
    without_spot: str
    #: Hours for which it would then wait for one before it goes on demand.
    waits_h: float


@dataclass(frozen=True, slots=True)
class SpotBound:
    """What nobody can go below from these starts."""

    name: str
    usd: float
    spot_h: float
    on_demand_h: float


@dataclass(frozen=True, slots=True)
class Choice:
    """What ours expects to pay until the end, by what it does now; None: that might miss the deadline."""

    spot: bool
    does: str
    usd: float | None


@dataclass(frozen=True, slots=True)
class Checked:
    """The bound beside an integer program on some of the starts, mean USD: for which it has a plan, and proves."""

    starts: int
    bound_usd: float
    program_usd: float
    at_least_usd: float


@dataclass(frozen=True, slots=True)
class SpotPlan:
    """The answer: policies by their cost, the best first."""

    starts: int
    zones: int
    policies: tuple[PolicyResult, ...]
    bound: SpotBound
    why: str
    choices: tuple[Choice, ...]
    checked: Checked | None = None


def plan_spot(
    terms: SpotTerms,
    traces: Zones,
    history: Sequence[tuple[bool, ...]],
    starts: int,
    random: Random,
    now: Present,
    check: bool = False,
) -> SpotPlan:
    """Replay every policy from many starts.

    Args:
        traces: of the zones that the job may use, over one time.
        history: traces of single zones from earlier, for our policy to learn from; none: the first halves of `traces`
            are taken, and the starts are on the second.
        check: solve some starts once more as an integer program.

    Raises:
        UserError: what was asked for cannot be done with these traces.
    """
    job = terms.job()
    standing = standing_of(terms, job, now)
    if not history:
        middle = min(map(len, traces)) // 2
        history, traces = [zone[:middle] for zone in traces], tuple(zone[middle:] for zone in traces)
    try:
        begun = draw_starts(traces, job.slots, starts, random)
        taught = teach(job, history[:MOST_HYPOTHESES], len(traces), random)
    except ValueError as error:
        raise UserError(str(error), field="TRACE", fix="give longer traces, or earlier ones with --history") from None
    makers: dict[str, Callable[[], SpotPolicy]] = {
        "ours": taught.plan.policy,
        "Uniform Progress": UniformProgress,
        "greedy": Greedy,
        "on demand alone": OnDemandAlone,
    }
    optimum, found = least(job, begun), dict[str, Replayed]()
    results = []
    for name, make in makers.items():
        found[name] = replay(job, begun, _each(make), taught.markets)
        results.append(_result(terms, job, name, found[name], optimum, _advice(job, make, standing)))
    results.sort(key=lambda result: (result.late > 0, result.usd))
    return SpotPlan(
        len(begun),
        len(traces),
        tuple(results),
        _bound(terms, job, optimum, len(traces)),
        _why(results, found),
        tuple(_choices(terms, taught.plan, standing)),
        _checked(terms, job, begun, optimum) if check else None,
    )


def _each(make: Callable[[], SpotPolicy]) -> Callable[[Start], SpotPolicy]:
    """The policy is the same from every start."""
    return lambda _: make()


@dataclass(frozen=True, slots=True)
class _Advice:
    """What a policy does now, and for how many slots it would wait."""

    with_spot: Held
    without_spot: Held
    waits: int


def _advice(job: DeadlineJob, make: Callable[[], SpotPolicy], now: Standing) -> _Advice:
    with_spot = make().hold(job, now)
    going, policy, chosen = Going(job, now.work_left, now.held), make(), list[Held]()
    if going.held is Held.SPOT:
        going.lose()
    for index in range((job.deadline - now.time_left) // job.slot, job.slots):
        chosen.append(policy.hold(job, going.standing(index, spot=False)))
        if chosen[-1] is Held.ON_DEMAND:
            break
        going.spend(chosen[-1])
    return _Advice(with_spot, chosen[0], sum(held is Held.NOTHING for held in chosen))


def _result(
    terms: SpotTerms, job: DeadlineJob, name: str, found: Replayed, optimum: Replayed, advice: _Advice
) -> PolicyResult:
    return PolicyResult(
        name,
        terms.hours(job, found.spot_work),
        terms.hours(job, found.on_demand_work),
        found.cost * terms.usd,
        found.cost / optimum.cost - 1,
        found.starts,
        found.late,
        does(advice.with_spot),
        does(advice.without_spot),
        advice.waits * terms.slot_s / _HOUR_S,
    )


def does(held: Held) -> str:
    """What holding something is called."""
    return {Held.NOTHING: "wait", Held.SPOT: "spot", Held.ON_DEMAND: "on demand"}[held]


def _bound(terms: SpotTerms, job: DeadlineJob, optimum: Replayed, zones: int) -> SpotBound:
    return SpotBound(
        f"the optimum, the {'trace' if zones == 1 else 'traces'} known beforehand",
        optimum.cost * terms.usd,
        terms.hours(job, optimum.spot_work),
        terms.hours(job, optimum.on_demand_work),
    )


def _why(results: Sequence[PolicyResult], found: dict[str, Replayed]) -> str:
    """Why the first is the best: against the next that is not late either."""
    best, second = results[0], results[1]
    pairs = zip(found[best.name].outcomes, found[second.name].outcomes, strict=True)
    won = sum(ours.cost < theirs.cost - _ROUNDING for ours, theirs in pairs)
    many = len(found[best.name].outcomes)
    late = "never late" if not best.late else f"late from {best.late} starts"
    part = 1 - best.usd / second.usd
    return f"{late}, and {part:.1%} cheaper than {second.name} in the mean (cheaper from {won} of {many} starts)"


def _choices(terms: SpotTerms, plan: SlackPlan, now: Standing) -> list[Choice]:
    found = []
    # No plan that is in time pays more than on demand from now until the deadline.
    most = plan.job.on_demand_price * now.time_left / plan.job.slot + _ROUNDING
    for spot in (True, False):
        policy = plan.policy()
        held = Held.NOTHING if now.held is Held.SPOT and not spot else now.held
        policy.watch([spot])
        worth = policy.worth(plan.job, Standing(now.time_left, now.work_left, held, 0, spot))
        found += [Choice(spot, does(held), None if usd > most else usd * terms.usd) for held, usd in worth.items()]
    return found


def _checked(terms: SpotTerms, job: DeadlineJob, starts: Sequence[Start], optimum: Replayed) -> Checked | None:
    """Some starts spread over all. The program pays for whole slots: what it proves is lowered by one on demand."""
    places = sorted({len(starts) * number // _CHECKED for number in range(_CHECKED)})
    solved = [(place, zones_optimum(job, starts[place].ahead, _GAP, _CHECK_S)) for place in places]
    pairs = [(optimum.outcomes[place].cost, program) for place, program in solved if program is not None]
    if not pairs:
        return None
    return Checked(
        len(pairs),
        terms.usd * fmean(cost for cost, _ in pairs),
        terms.usd * fmean(program.usd for _, program in pairs),
        terms.usd * fmean(max(program.at_least - job.on_demand_price, 0.0) for _, program in pairs),
    )
