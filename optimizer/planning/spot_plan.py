"""`walras cloud spot`: advice for one job with a deadline, by replays of policies on recorded spot markets.

This module converts the job as users state it into the units of `deadline_job`, replays every policy from many starts,
and computes the optimum with known traces; `slack_policy` is Walras's own policy.

The optimum is exact under the rules of `deadline_job`: a dynamic program over slots, slack, what is held, and in which
zone. An integer program in whole slots checks it independently (Wu and others, 2024). It pays the unused rest of the
last slot, so its value exceeds the exact optimum by at most the price of one slot:

    min sum_t s_t + k v_t   s.t.  s_t + v_t <= 1,  s_t <= a_t,  starts counted from s and v,
                                  slot sum_t (s_t + v_t) >= work + changeover * starts

A spot machine may be in any of several zones; a change of zone is a start like any other. A policy for one market sees
the zones as one, and decides only between spot, on demand and nothing. This module chooses the zone: the one whose
machine is likely to stay longest, by the observations of each zone since the job began (and before, where available),
under markets fitted to other traces. A machine that is available is kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil, comb, inf
from statistics import fmean
from typing import Protocol, TypeVar

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from optimizer.planning.deadline_job import (
    DeadlineJob,
    DeadlineOutcome,
    DeadlineRun,
    DeadlineState,
    GreedySpotPolicy,
    HeldMachine,
    OnDemandPolicy,
    SpotPolicy,
    UniformProgress,
    run_deadline_job,
    run_slots,
)
from optimizer.planning.slack_policy import (
    MARKET_STATES,
    FloatArray,
    HeldMode,
    MarketBelief,
    SlackPlan,
    SpotMarket,
    deadline_values,
    fit_spot_markets,
    held_modes,
    modes_after_revocation,
    plan_slack,
    slot_choices,
    slot_values,
)
from walras.contract import SECONDS_PER_HOUR
from walras.errors import UserError
from walras.units import format_length

T = TypeVar("T")


class RandomSource(Protocol):
    """Source of random numbers, passed by the caller: `random.Random` is one."""

    def random(self) -> float:
        """Returns a number in [0, 1)."""
        ...

    def sample(self, population: Sequence[T], k: int) -> list[T]:
        """Returns `k` different members."""
        ...


def run_omniscient(job: DeadlineJob, zones: Sequence[Sequence[bool]]) -> DeadlineOutcome:
    """Returns the optimal run over zones whose traces are known."""
    return _follow(job, zones, _costs_to_go(job, [zones]))


def _follow(job: DeadlineJob, zones: Sequence[Sequence[bool]], values: Sequence[FloatArray]) -> DeadlineOutcome:
    """Returns the run that takes the cheapest choice in each slot, by the costs to go for each number of slots left."""
    return run_slots(
        job, zones, lambda now, at, there: _cheapest_choice(job, values[now.time_left // job.slot - 1], now, at, there)
    )


def _costs_to_go(job: DeadlineJob, runs: Sequence[Sequence[Sequence[bool]]]) -> list[FloatArray]:
    """Returns the costs to go of several runs for each number of slots left, by slack, mode, and zone of the held spot
    machine: the zones of the first run, those of the second, and so on. Each run has as many zones.
    """
    traces, zones = [zone for run in runs for zone in run], len(runs[0])
    value, lost = deadline_values(job, len(traces)), modes_after_revocation(job)
    values = [value]
    for slots_left in range(1, job.slots + 1):
        there = np.array([zone[job.slots - slots_left] for zone in traces])
        value = slot_values(job, slots_left, value, there)
        value = np.where(there, value, value[:, lost])
        idle = value[:, 0].reshape(len(value), len(runs), zones).min(axis=2)
        value = np.minimum(value, np.repeat(idle, zones, axis=1)[:, None])
        values.append(value)
    return values


def _cheapest_choice(
    job: DeadlineJob, ahead: FloatArray, now: DeadlineState, at: int, there: Sequence[bool]
) -> tuple[HeldMachine, int]:
    """Returns what to hold and where, given the machine held in zone `at` and the costs to go after the slot."""
    worth: dict[tuple[HeldMachine, int], float] = {}
    for zone, has in enumerate(there):
        elsewhere = now.held is HeldMachine.SPOT and zone != at
        mode = HeldMode(HeldMachine.NOTHING, 0) if elsewhere else HeldMode(now.held, now.pending)
        for move in slot_choices(job, mode):
            if move.held is HeldMachine.SPOT and not has:
                continue
            paid = float(move.usd(job, np.array([float(now.work_left)]))[0])
            done = move.held is not HeldMachine.NOTHING and now.work_left <= move.work
            if done:
                worth[move.held, zone] = paid
            elif now.slack >= move.slack:
                worth[move.held, zone] = paid + float(ahead[now.slack - move.slack, move.mode, zone])
    return min(worth, key=lambda choice: worth[choice])


#: Largest number of hypotheses in a plan.
MOST_HYPOTHESES = 24


@dataclass(frozen=True, slots=True)
class SpotOptimum:
    """The least cost in prices of one spot slot: `usd` is reached by a plan, and `at_least` is proven."""

    usd: float
    at_least: float


def zones_optimum(
    job: DeadlineJob, zones: Sequence[Sequence[bool]], gap: float = 0.0, limit_s: float = inf
) -> SpotOptimum | None:
    """Solves the integer program of the module; None if no plan exists or the time limit is reached.

    Each zone is a market of its own, so a change of zone is a start.

    Args:
        gap: relative gap at which to stop.
        limit_s: time limit in seconds.
    """
    many, kinds = job.slots, len(zones) + 1
    columns = kinds * many
    held = sparse.identity(columns)
    before = sparse.block_diag([sparse.eye(many, k=-1)] * kinds)
    matrix = sparse.bmat(
        [
            [sparse.hstack([sparse.identity(many)] * kinds), None],  # one machine at a time
            [held - before, -held],  # started >= held now - held before
            [np.full((1, columns), -float(job.slot)), np.full((1, columns), float(job.changeover))],
        ]
    )
    upper = np.concatenate([np.ones(many), np.zeros(columns), [-float(job.work)]])
    can = np.concatenate([*(np.array(zone[:many], dtype=float) for zone in zones), np.ones(many)])
    price = np.concatenate([np.ones(columns - many), np.full(many, job.on_demand_price)])
    found = milp(
        np.concatenate([price, np.zeros(columns)]),
        integrality=np.concatenate([np.ones(columns), np.zeros(columns)]),
        bounds=Bounds(np.zeros(2 * columns), np.concatenate([can, np.ones(columns)])),
        constraints=LinearConstraint(matrix.tocsr(), -np.inf, upper),
        options={"mip_rel_gap": gap, "time_limit": limit_s},
    )
    return SpotOptimum(float(found.fun), float(found.mip_dual_bound)) if found.status == 0 else None


class ZoneChoice:
    """Chooses the zone whose machine is likely to stay longest. One object serves one run."""

    def __init__(self, markets: Sequence[SpotMarket], zones: int) -> None:
        self._beliefs = [MarketBelief(markets) for _ in range(zones)]

    def see(self, available: Sequence[bool]) -> None:
        """Updates the belief of each zone with the slot that begins."""
        for belief, there in zip(self._beliefs, available, strict=True):
            belief.see(there)

    def best(self, available: Sequence[bool]) -> int:
        """Returns the best zone that has a machine; the first of equals.

        Raises:
            ValueError: no zone has one.
        """
        there = [zone for zone, has in enumerate(available) if has]
        return max(there, key=lambda zone: self._beliefs[zone].remaining)


def run_in_zones(
    job: DeadlineJob, policy: SpotPolicy, choice: ZoneChoice, zones: Sequence[Sequence[bool]]
) -> DeadlineOutcome:
    """Runs a job under a policy that sees the zones as one market; with one zone equal to `run_deadline_job`."""

    def choose(now: DeadlineState, at: int, there: Sequence[bool]) -> tuple[HeldMachine, int]:
        choice.see(there)
        held = policy.hold(job, now)
        begins = held is HeldMachine.SPOT and now.held is not HeldMachine.SPOT
        return held, choice.best(there) if begins else at

    return run_slots(job, zones, choose)


@dataclass(frozen=True, slots=True)
class MergedZones:
    """Traces of several zones, merged into one market."""

    #: For each slot, whether any zone has a machine.
    any: tuple[bool, ...]
    #: Probability per slot that the held machine is revoked while another zone has one.
    taken: float


def merge_zones(zones: Sequence[Sequence[bool]]) -> MergedZones:
    """Merges the zones into one market over the slots that all of them have; a machine that stays available is kept."""
    many = min(len(zone) for zone in zones)
    union = tuple(any(zone[index] for zone in zones) for index in range(many))
    held: int | None = None
    slots = lost = 0
    for index, there in enumerate(union):
        if held is not None and there:
            slots += 1
            lost += not zones[held][index]
        if held is None or not zones[held][index]:
            held = next((place for place, zone in enumerate(zones) if zone[index]), None)
    return MergedZones(union, (lost + 0.5) / (slots + 1.0) if len(zones) > 1 else 0.0)


#: Availability by zone and slot.
Zones = tuple[tuple[bool, ...], ...]


@dataclass(frozen=True, slots=True)
class ReplayStart:
    """Traces of zones, and the slot at which a job begins on them."""

    zones: Zones
    first: int
    #: Number of slots until the job's deadline.
    slots: int

    @property
    def ahead(self) -> Zones:
        """Returns availability until the deadline, by zone."""
        return tuple(zone[self.first : self.first + self.slots] for zone in self.zones)


def draw_starts(zones: Zones, slots: int, many: int, random: RandomSource) -> list[ReplayStart]:
    """Draws one random start in each of `many` equal parts of the traces, so that the starts cover the whole period.

    Raises:
        ValueError: the traces are shorter than the job's deadline.
    """
    length = min(map(len, zones))
    if length < slots:
        raise ValueError(f"the traces have {length} slots in common, the job needs {slots}")
    width = (length - slots + 1) / many
    return [ReplayStart(zones, int((part + random.random()) * width), slots) for part in range(many)]


@dataclass(frozen=True, slots=True)
class ReplayedPolicy:
    """Results of a policy, one per start."""

    outcomes: tuple[DeadlineOutcome, ...]

    @property
    def spot_work(self) -> float:
        """Mean units of work done on spot machines."""
        return fmean(outcome.spot_work for outcome in self.outcomes)

    @property
    def on_demand_work(self) -> float:
        """Mean units of work done on on-demand machines."""
        return fmean(outcome.on_demand_work for outcome in self.outcomes)

    @property
    def cost(self) -> float:
        """Mean cost in prices of one spot slot."""
        return fmean(outcome.cost for outcome in self.outcomes)

    @property
    def starts(self) -> float:
        """Mean starts of machines."""
        return fmean(outcome.starts for outcome in self.outcomes)

    @property
    def late(self) -> int:
        """Number of starts from which the work was not done by the deadline."""
        return sum(outcome.late > 0 for outcome in self.outcomes)


def replay_policy(
    job: DeadlineJob,
    starts: Sequence[ReplayStart],
    make: Callable[[ReplayStart], SpotPolicy],
    markets: Sequence[SpotMarket] = (),
) -> ReplayedPolicy:
    """Replays a policy, made anew for each start, over all zones; `markets` serve the choice among several zones."""
    return ReplayedPolicy(tuple(_replay_one(job, start, make(start), markets) for start in starts))


def _replay_one(
    job: DeadlineJob, start: ReplayStart, policy: SpotPolicy, markets: Sequence[SpotMarket]
) -> DeadlineOutcome:
    ahead = start.ahead
    if len(ahead) == 1:
        return run_deadline_job(job, policy, ahead[0])
    return run_in_zones(job, policy, ZoneChoice(markets, len(ahead)), ahead)


def replay_optimum(job: DeadlineJob, starts: Sequence[ReplayStart]) -> ReplayedPolicy:
    """Returns the optimal run from each start, with the traces known: exact. Each start has as many zones."""
    zones = len(starts[0].zones)
    levels, modes = job.deadline - job.work + 1, len(held_modes(job))
    together = max(_MOST_ENTRIES // ((job.slots + 1) * levels * modes * zones), 1)
    outcomes: list[DeadlineOutcome] = []
    for first in range(0, len(starts), together):
        runs = [start.ahead for start in starts[first : first + together]]
        values = _costs_to_go(job, runs)
        for place, run in enumerate(runs):
            own = slice(place * zones, (place + 1) * zones)
            outcomes.append(_follow(job, run, [value[:, :, own] for value in values]))
    return ReplayedPolicy(tuple(outcomes))


@dataclass(frozen=True, slots=True)
class TaughtPolicy:
    """Our policy, fitted to earlier traces."""

    #: Markets of single zones, which serve the choice among zones.
    markets: tuple[SpotMarket, ...]
    plan: SlackPlan


def teach_policy(
    job: DeadlineJob, history: Sequence[tuple[bool, ...]], zones: int, random: RandomSource
) -> TaughtPolicy:
    """Fits our policy, for a job that may use `zones` zones, to earlier traces of single zones.

    Several zones together are a market that has a machine where any of them has one. Merged groups of the earlier
    traces represent it: all groups, or a random choice if there are many.

    Raises:
        ValueError: there are fewer earlier traces than zones.
    """
    if len(history) < zones:
        raise ValueError(f"{len(history)} earlier traces are too few to represent {zones} zones at once")
    markets = fit_spot_markets(history)
    if zones == 1:
        return TaughtPolicy(markets, plan_slack(job, markets))
    if comb(len(history), zones) > MOST_HYPOTHESES:
        groups = [random.sample(history, zones) for _ in range(MOST_HYPOTHESES)]
    else:
        groups = [list(group) for group in combinations(history, zones)]
    laid = [merge_zones(group) for group in groups]
    return TaughtPolicy(
        markets, plan_slack(job, fit_spot_markets([each.any for each in laid]), [each.taken for each in laid])
    )


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
                field="slot",
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
            raise UserError(text, field=f"{what}_left", fix=f"at most the whole {what}")
    time_left = int(now.time_left_s / terms.slot_s + _ROUNDING) * job.slot
    work_left = _up(now.work_left_s / unit_s)
    needed = work_left + (0 if now.held is HeldMachine.ON_DEMAND else job.changeover)
    if needed > time_left:
        raise UserError(
            f"{format_length(now.work_left_s)} of work take more than {format_length(now.time_left_s)} even on demand",
            field="time_left",
            fix=f"at least {format_length(ceil(needed / job.slot) * terms.slot_s)}",
        )
    if time_left - work_left > job.deadline - job.work:
        done = format_length((job.work - work_left) * unit_s)
        raise UserError(
            f"{done} of work cannot be done by now",
            field="work_left",
            fix="give the work left of --work, and with time_left the time left of --deadline",
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
    """The answer of `walras cloud spot`: policies by their cost, the best first."""

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
