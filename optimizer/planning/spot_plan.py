"""`walras plan spot`: advice for one job with a deadline on spot machines, replayed on recorded markets.

This module converts the job as users state it into the units of `deadline_job`, and assembles the answer. Replays,
choices and the optimum are computed in `spot_replay` and `slack_policy`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean

from optimizer.planning.deadline_job import (
    DeadlineJob,
    DeadlineRun,
    DeadlineState,
    GreedySpotPolicy,
    HeldMachine,
    OnDemandPolicy,
    SpotPolicy,
    UniformProgress,
)
from optimizer.planning.slack_policy import MARKET_STATES, SlackPlan, held_modes
from optimizer.planning.spot_replay import (
    MOST_HYPOTHESES,
    RandomSource,
    ReplayedPolicy,
    ReplayStart,
    Zones,
    draw_starts,
    replay_optimum,
    replay_policy,
    teach_policy,
    zones_optimum,
)
from walras.contract import SECONDS_PER_HOUR
from walras.errors import UserError
from walras.units import format_length

#: Largest number of units per slot; units make a restart a whole number of them.
_FINEST = 10
#: Largest number of entries of the plan's table for each market.
_MOST_ENTRIES = 8_000_000
_ROUNDING = 1e-9
_DEAREST_USD = 1e6


@dataclass(frozen=True, slots=True)
class SpotTerms:
    """The job and its market, in seconds and USD per hour."""

    work_s: float
    deadline_s: float
    #: Seconds without progress that each start of a machine costs.
    restart_s: float
    slot_s: float
    #: Prices of one machine while it is held.
    spot_usd_per_h: float
    on_demand_usd_per_h: float

    @property
    def usd(self) -> float:
        """Price of one spot slot in USD: the unit of money of `deadline_job`."""
        return self.spot_usd_per_h * self.slot_s / SECONDS_PER_HOUR

    def job(self) -> DeadlineJob:
        """Converts to whole units: work and restart are rounded up, the deadline down to whole slots.

        Raises:
            UserError: an on-demand machine from the start would miss the deadline; or spot is no cheaper.
        """
        if not 0 < self.spot_usd_per_h < self.on_demand_usd_per_h <= _DEAREST_USD:
            raise UserError(
                f"spot at {self.spot_usd_per_h:g} and on demand at {self.on_demand_usd_per_h:g} USD/h leave no choice",
                field="--spot",
                fix="give a price above 0 and below --on-demand",
            )
        per_slot = next((k for k in range(1, _FINEST) if _is_whole(self.restart_s / self.slot_s * k)), _FINEST)
        unit_s = self.slot_s / per_slot
        job = DeadlineJob(
            slot=per_slot,
            work=_up(self.work_s / unit_s),
            deadline=int(self.deadline_s / self.slot_s + _ROUNDING) * per_slot,
            changeover=_up(self.restart_s / unit_s),
            on_demand_price=self.on_demand_usd_per_h / self.spot_usd_per_h,
        )
        if job.work + job.changeover > job.deadline:
            raise UserError(
                f"{format_length(self.work_s)} of work and a restart are not done in "
                f"{format_length(job.slots * self.slot_s)}, even on demand",
                field="--deadline",
                fix=f"at least {format_length(ceil((job.work + job.changeover) / job.slot) * self.slot_s)}",
            )
        if job.slots * (job.deadline - job.work + 1) * len(held_modes(job)) * MARKET_STATES > _MOST_ENTRIES:
            raise UserError(
                f"{job.slots} slots of {format_length(self.slot_s)} are too many to plan for",
                field="--slot",
                fix=f"give longer slots, such as {format_length(2 * self.slot_s)}",
            )
        return job

    def hours(self, job: DeadlineJob, units: float) -> float:
        """Converts a job's units to hours."""
        return units / job.slot * self.slot_s / SECONDS_PER_HOUR


def _is_whole(number: float) -> bool:
    return abs(number - round(number)) < _ROUNDING


def _up(number: float) -> int:
    return ceil(number - _ROUNDING)


@dataclass(frozen=True, slots=True)
class SpotPresent:
    """State of the job now."""

    work_left_s: float
    time_left_s: float
    held: HeldMachine = HeldMachine.NOTHING


def deadline_state_of(terms: SpotTerms, job: DeadlineJob, now: SpotPresent) -> DeadlineState:
    """Converts the present state to units. Raises UserError where the deadline is lost or the state is impossible."""
    unit_s = terms.slot_s / job.slot
    for left_s, whole_s, what in (
        (now.work_left_s, terms.work_s, "work"),
        (now.time_left_s, terms.deadline_s, "time"),
    ):
        if left_s > whole_s:
            text = f"{format_length(left_s)} are left of {format_length(whole_s)}"
            raise UserError(text, field=f"--{what}-left", fix=f"at most the whole {what}")
    time_left = int(now.time_left_s / terms.slot_s + _ROUNDING) * job.slot
    work_left = _up(now.work_left_s / unit_s)
    needed = work_left + (0 if now.held is HeldMachine.ON_DEMAND else job.changeover)
    if needed > time_left:
        raise UserError(
            f"{format_length(now.work_left_s)} of work take more than {format_length(now.time_left_s)} even on demand",
            field="--time-left",
            fix=f"at least {format_length(ceil(needed / job.slot) * terms.slot_s)}",
        )
    if time_left - work_left > job.deadline - job.work:
        done = format_length((job.work - work_left) * unit_s)
        raise UserError(
            f"{done} of work cannot be done by now",
            field="--work-left",
            fix="give the work left of --work, and with --time-left the time left of --deadline",
        )
    return DeadlineState(time_left, work_left, now.held, 0, spot=True)


#: Starts that are also solved as an integer program, its relative gap, and its time limit in seconds.
_CHECKED, _GAP, _CHECK_S = 4, 1e-3, 30.0


@dataclass(frozen=True, slots=True)
class SpotPolicyResult:
    """Mean result of a policy over all starts."""

    name: str
    spot_h: float
    on_demand_h: float
    usd: float
    #: The policy's cost over the bound, less 1.
    above_bound: float
    machine_starts: float
    #: Number of starts from which the job missed its deadline.
    late: int
    #: The policy's choice now if a spot machine is available, and if none is.
    with_spot: str
    without_spot: str
    #: Hours for which it would then wait for a spot machine before it takes an on-demand machine.
    waits_h: float


@dataclass(frozen=True, slots=True)
class SpotBound:
    """A lower bound on the cost of every policy from these starts, in the mean."""

    name: str
    usd: float
    spot_h: float
    on_demand_h: float


@dataclass(frozen=True, slots=True)
class SlotAdvice:
    """Expected cost to the end (USD) of one choice now, under Walras's policy; None: it might miss the deadline."""

    spot: bool
    does: str
    usd: float | None


@dataclass(frozen=True, slots=True)
class CheckedBound:
    """The bound, and an integer program's best plan and proven lower bound on some of the starts, mean USD."""

    starts: int
    bound_usd: float
    program_usd: float
    at_least_usd: float


@dataclass(frozen=True, slots=True)
class SpotPlan:
    """The answer of `walras plan spot`: policies by their cost, the best first."""

    starts: int
    zones: int
    policies: tuple[SpotPolicyResult, ...]
    bound: SpotBound
    why: str
    choices: tuple[SlotAdvice, ...]
    checked: CheckedBound | None = None


def make_spot_plan(
    terms: SpotTerms,
    traces: Zones,
    history: Sequence[tuple[bool, ...]],
    starts: int,
    random: RandomSource,
    now: SpotPresent,
    check: bool = False,
) -> SpotPlan:
    """Replays every policy from many starts.

    Args:
        traces: availability in the zones that the job may use, over one period.
        history: earlier traces of single zones, to which our policy is fitted; if empty, it is fitted to the first
            halves of `traces`, and the starts lie in the second halves.
        check: whether to solve some starts as an integer program too.

    Raises:
        UserError: the traces are too short or otherwise unfit for the request.
    """
    job = terms.job()
    state = deadline_state_of(terms, job, now)
    if not history:
        middle = min(map(len, traces)) // 2
        history, traces = [zone[:middle] for zone in traces], tuple(zone[middle:] for zone in traces)
    try:
        begun = draw_starts(traces, job.slots, starts, random)
        taught = teach_policy(job, history[:MOST_HYPOTHESES], len(traces), random)
    except ValueError as error:
        raise UserError(str(error), field="TRACE", fix="give longer traces, or earlier ones with --history") from None
    makers: dict[str, Callable[[], SpotPolicy]] = {
        "ours": taught.plan.policy,
        "Uniform Progress": UniformProgress,
        "greedy": GreedySpotPolicy,
        "on demand alone": OnDemandPolicy,
    }
    optimum, found = replay_optimum(job, begun), dict[str, ReplayedPolicy]()
    results = []
    for name, make in makers.items():
        found[name] = replay_policy(job, begun, _each(make), taught.markets)
        results.append(_result(terms, job, name, found[name], optimum, _advice(job, make, state)))
    results.sort(key=lambda result: (result.late > 0, result.usd))
    return SpotPlan(
        len(begun),
        len(traces),
        tuple(results),
        _bound(terms, job, optimum, len(traces)),
        _why(results, found),
        tuple(_choices(terms, taught.plan, state)),
        _check_bound(terms, job, begun, optimum) if check else None,
    )


def _each(make: Callable[[], SpotPolicy]) -> Callable[[ReplayStart], SpotPolicy]:
    """Wraps a policy that does not depend on the start."""
    return lambda _: make()


@dataclass(frozen=True, slots=True)
class _PolicyAdvice:
    """A policy's choices now, and the number of slots for which it would wait."""

    with_spot: HeldMachine
    without_spot: HeldMachine
    waits: int


def _advice(job: DeadlineJob, make: Callable[[], SpotPolicy], now: DeadlineState) -> _PolicyAdvice:
    with_spot = make().hold(job, now)
    going, policy, chosen = DeadlineRun(job, now.work_left, now.held), make(), list[HeldMachine]()
    if going.held is HeldMachine.SPOT:
        going.lose()
    for index in range((job.deadline - now.time_left) // job.slot, job.slots):
        chosen.append(policy.hold(job, going.state_at(index, spot=False)))
        if chosen[-1] is HeldMachine.ON_DEMAND:
            break
        going.spend(chosen[-1])
    return _PolicyAdvice(with_spot, chosen[0], sum(held is HeldMachine.NOTHING for held in chosen))


def _result(
    terms: SpotTerms, job: DeadlineJob, name: str, found: ReplayedPolicy, optimum: ReplayedPolicy, advice: _PolicyAdvice
) -> SpotPolicyResult:
    return SpotPolicyResult(
        name,
        terms.hours(job, found.spot_work),
        terms.hours(job, found.on_demand_work),
        found.cost * terms.usd,
        found.cost / optimum.cost - 1,
        found.starts,
        found.late,
        holding_word(advice.with_spot),
        holding_word(advice.without_spot),
        advice.waits * terms.slot_s / SECONDS_PER_HOUR,
    )


def holding_word(held: HeldMachine) -> str:
    """Returns the word that output uses for a choice."""
    return {HeldMachine.NOTHING: "wait", HeldMachine.SPOT: "spot", HeldMachine.ON_DEMAND: "on demand"}[held]


def _bound(terms: SpotTerms, job: DeadlineJob, optimum: ReplayedPolicy, zones: int) -> SpotBound:
    return SpotBound(
        f"the optimum, the {'trace' if zones == 1 else 'traces'} known beforehand",
        optimum.cost * terms.usd,
        terms.hours(job, optimum.spot_work),
        terms.hours(job, optimum.on_demand_work),
    )


def _why(results: Sequence[SpotPolicyResult], found: dict[str, ReplayedPolicy]) -> str:
    """Explains why the first policy is the best, compared with the second."""
    best, second = results[0], results[1]
    pairs = zip(found[best.name].outcomes, found[second.name].outcomes, strict=True)
    won = sum(ours.cost < theirs.cost - _ROUNDING for ours, theirs in pairs)
    many = len(found[best.name].outcomes)
    late = "never late" if not best.late else f"late from {best.late} starts"
    part = 1 - best.usd / second.usd
    return f"{late}, and {part:.1%} cheaper than {second.name} in the mean (cheaper from {won} of {many} starts)"


def _choices(terms: SpotTerms, plan: SlackPlan, now: DeadlineState) -> list[SlotAdvice]:
    found = []
    # A plan that is in time costs at most as much as on demand from now until the deadline.
    most = plan.job.on_demand_price * now.time_left / plan.job.slot + _ROUNDING
    for spot in (True, False):
        policy = plan.policy()
        held = HeldMachine.NOTHING if now.held is HeldMachine.SPOT and not spot else now.held
        policy.watch([spot])
        worth = policy.worth(plan.job, DeadlineState(now.time_left, now.work_left, held, 0, spot))
        found += [
            SlotAdvice(spot, holding_word(held), None if usd > most else usd * terms.usd) for held, usd in worth.items()
        ]
    return found


def _check_bound(
    terms: SpotTerms, job: DeadlineJob, starts: Sequence[ReplayStart], optimum: ReplayedPolicy
) -> CheckedBound | None:
    """Solves evenly spaced starts as an integer program.

    The program pays for whole slots, so its proven bound is lowered by the price of one on-demand slot. Returns None if
    no start was solved in time.
    """
    places = sorted({len(starts) * number // _CHECKED for number in range(_CHECKED)})
    solved = [(place, zones_optimum(job, starts[place].ahead, _GAP, _CHECK_S)) for place in places]
    pairs = [(optimum.outcomes[place].cost, program) for place, program in solved if program is not None]
    if not pairs:
        return None
    return CheckedBound(
        len(pairs),
        terms.usd * fmean(cost for cost, _ in pairs),
        terms.usd * fmean(program.usd for _, program in pairs),
        terms.usd * fmean(max(program.at_least - job.on_demand_price, 0.0) for _, program in pairs),
    )
