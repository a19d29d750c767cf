"""`walras plan spot`: what one job with a deadline should do on spot machines, judged on recorded markets.

Takes the job as people state it, turns it into the units of `deadline_job`, and puts the answer together; replays,
choices and the optimum are elsewhere.
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

#: Units that a slot is cut into at most, so that a restart is a whole number of them.
_FINEST = 10
#: Entries of our plan's table for each market.
_MOST_ENTRIES = 8_000_000
_ROUNDING = 1e-9
_DEAREST_USD = 1e6


@dataclass(frozen=True, slots=True)
class SpotTerms:
    """The job and its market."""

    work_s: float
    deadline_s: float
    #: Paid time without progress at each start of a machine.
    restart_s: float
    slot_s: float
    #: Of the machine, while it is held.
    spot_usd_per_h: float
    on_demand_usd_per_h: float

    @property
    def usd(self) -> float:
        """What a slot of spot costs: the unit of money of `deadline_job`."""
        return self.spot_usd_per_h * self.slot_s / SECONDS_PER_HOUR

    def job(self) -> DeadlineJob:
        """In whole units: work and restart rounded up, the deadline down to whole slots.

        Raises:
            UserError: not even an on-demand machine from the first moment on is in time; or spot is no cheaper.
        """
        if not 0 < self.spot_usd_per_h < self.on_demand_usd_per_h <= _DEAREST_USD:
            raise UserError(
                f"spot at {self.spot_usd_per_h:g} and on demand at {self.on_demand_usd_per_h:g} USD/h leave no choice",
                field="--spot",
                fix="above 0, and below --on-demand",
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
                fix=f"a longer one, such as {format_length(2 * self.slot_s)}",
            )
        return job

    def hours(self, job: DeadlineJob, units: float) -> float:
        """Units of a job in hours."""
        return units / job.slot * self.slot_s / SECONDS_PER_HOUR


def _is_whole(number: float) -> bool:
    return abs(number - round(number)) < _ROUNDING


def _up(number: float) -> int:
    return ceil(number - _ROUNDING)


@dataclass(frozen=True, slots=True)
class SpotPresent:
    """Where the job stands now."""

    work_left_s: float
    time_left_s: float
    held: HeldMachine = HeldMachine.NOTHING


def deadline_state_of(terms: SpotTerms, job: DeadlineJob, now: SpotPresent) -> DeadlineState:
    """Now, in units. Raises UserError where the deadline is lost, or the job cannot have come there."""
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
            fix="say what is left of --work, and of --deadline with --time-left",
        )
    return DeadlineState(time_left, work_left, now.held, 0, spot=True)


#: Starts that are solved once more as an integer program, and where that stops.
_CHECKED, _GAP, _CHECK_S = 4, 1e-3, 30.0


@dataclass(frozen=True, slots=True)
class SpotPolicyResult:
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
class SlotAdvice:
    """What ours expects to pay until the end, by what it does now; None: that might miss the deadline."""

    spot: bool
    does: str
    usd: float | None


@dataclass(frozen=True, slots=True)
class CheckedBound:
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
    """The policy is the same from every start."""
    return lambda _: make()


@dataclass(frozen=True, slots=True)
class _PolicyAdvice:
    """What a policy does now, and for how many slots it would wait."""

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
    """What holding something is called."""
    return {HeldMachine.NOTHING: "wait", HeldMachine.SPOT: "spot", HeldMachine.ON_DEMAND: "on demand"}[held]


def _bound(terms: SpotTerms, job: DeadlineJob, optimum: ReplayedPolicy, zones: int) -> SpotBound:
    return SpotBound(
        f"the optimum, the {'trace' if zones == 1 else 'traces'} known beforehand",
        optimum.cost * terms.usd,
        terms.hours(job, optimum.spot_work),
        terms.hours(job, optimum.on_demand_work),
    )


def _why(results: Sequence[SpotPolicyResult], found: dict[str, ReplayedPolicy]) -> str:
    """Why the first is the best: against the next that is not late either."""
    best, second = results[0], results[1]
    pairs = zip(found[best.name].outcomes, found[second.name].outcomes, strict=True)
    won = sum(ours.cost < theirs.cost - _ROUNDING for ours, theirs in pairs)
    many = len(found[best.name].outcomes)
    late = "never late" if not best.late else f"late from {best.late} starts"
    part = 1 - best.usd / second.usd
    return f"{late}, and {part:.1%} cheaper than {second.name} in the mean (cheaper from {won} of {many} starts)"


def _choices(terms: SpotTerms, plan: SlackPlan, now: DeadlineState) -> list[SlotAdvice]:
    found = []
    # No plan that is in time pays more than on demand from now until the deadline.
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
    """Some starts spread over all. The program pays for whole slots: what it proves is lowered by one on demand."""
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
