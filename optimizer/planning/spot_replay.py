"""Replays of policies for one job on recorded spot markets, from many starts, and the optimum with known traces.

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
from math import comb, inf
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
    HeldMachine,
    SpotPolicy,
    run_deadline_job,
)
from optimizer.planning.slack_policy import (
    FloatArray,
    HeldMode,
    MarketBelief,
    SlackPlan,
    SpotMarket,
    deadline_values,
    fit_spot_markets,
    modes_after_revocation,
    plan_slack,
    slot_choices,
    slot_values,
)

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
    values, going, at = _costs_to_go(job, zones), DeadlineRun(job, job.work), 0
    for index in range(job.slots):
        if going.left == 0:
            break
        there = [zone[index] for zone in zones]
        if going.held is HeldMachine.SPOT and not there[at]:
            going.lose()
        held, zone = _cheapest_choice(job, values[job.slots - index - 1], going.state_at(index, any(there)), at, there)
        if held is HeldMachine.SPOT and going.held is HeldMachine.SPOT and zone != at:
            going.lose()
        at = zone if held is HeldMachine.SPOT else at
        going.spend(held)
    return going.outcome()


def _costs_to_go(job: DeadlineJob, zones: Sequence[Sequence[bool]]) -> list[FloatArray]:
    """Returns the costs to go for each number of slots left, by slack, mode, and zone of the held spot machine."""
    value, lost = deadline_values(job, len(zones)), modes_after_revocation(job)
    values = [value]
    for slots_left in range(1, job.slots + 1):
        there = np.array([zone[job.slots - slots_left] for zone in zones])
        value = slot_values(job, slots_left, value, there)
        value = np.where(there, value, value[:, lost])
        value = np.minimum(value, value[:, 0].min(axis=1)[:, None, None])
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
    going, at = DeadlineRun(job, job.work), 0
    for index in range(job.slots):
        if going.left == 0:
            break
        available = [zone[index] for zone in zones]
        choice.see(available)
        if going.held is HeldMachine.SPOT and not available[at]:
            going.lose()
        chosen = policy.hold(job, going.state_at(index, any(available)))
        if chosen is HeldMachine.SPOT and going.held is not HeldMachine.SPOT:
            at = choice.best(available)
        going.spend(chosen)
    return going.outcome()


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
    """Returns the optimal run from each start, with the traces known: exact."""
    return ReplayedPolicy(tuple(run_omniscient(job, start.ahead) for start in starts))


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
