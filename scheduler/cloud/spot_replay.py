"""Policies for one job on spot machines, replayed on recorded markets: from many starts, beside the least possible.

Decides where the job starts and what our policy learns from; a policy's choices are its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from random import Random
from statistics import fmean

from scheduler.cloud.deadline_job import DeadlineJob, Outcome, SpotPolicy, run
from scheduler.cloud.omniscient import run_knowing
from scheduler.cloud.slack_plan import SlackPlan, plan_slack
from scheduler.cloud.spot_market import SpotMarket, fit_markets
from scheduler.cloud.spot_terms import MOST_HYPOTHESES
from scheduler.cloud.zones import ZoneChoice, run_in_zones, together

#: Whether there is a machine: zone by zone, slot by slot.
Zones = tuple[tuple[bool, ...], ...]


@dataclass(frozen=True, slots=True)
class Start:
    """Traces, and the slot at which a job begins on them."""

    zones: Zones
    first: int
    #: Until the job's deadline.
    slots: int

    @property
    def ahead(self) -> Zones:
        """The slots until the deadline, zone by zone."""
        return tuple(zone[self.first : self.first + self.slots] for zone in self.zones)


def draw_starts(zones: Zones, slots: int, many: int, random: Random) -> list[Start]:
    """Random starts, one in each of so many equal parts of the traces, so that none of their weather is left out.

    Raises:
        ValueError: the traces are shorter than the job's deadline.
    """
    length = min(map(len, zones))
    if length < slots:
        raise ValueError(f"the traces have {length} slots in common, the job needs {slots}")
    width = (length - slots + 1) / many
    return [Start(zones, int((part + random.random()) * width), slots) for part in range(many)]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a policy came to, start by start."""

    outcomes: tuple[Outcome, ...]

    @property
    def spot_work(self) -> float:
        """Mean units of work on spot machines."""
        return fmean(outcome.spot_work for outcome in self.outcomes)

    @property
    def on_demand_work(self) -> float:
        """Mean units of work on on-demand machines."""
        return fmean(outcome.on_demand_work for outcome in self.outcomes)

    @property
    def cost(self) -> float:
        """Mean money, in slots of spot."""
        return fmean(outcome.cost for outcome in self.outcomes)

    @property
    def starts(self) -> float:
        """Mean starts of machines."""
        return fmean(outcome.starts for outcome in self.outcomes)

    @property
    def late(self) -> int:
        """Starts from which the work was not done by the deadline."""
        return sum(outcome.late > 0 for outcome in self.outcomes)


def replay(
    job: DeadlineJob, starts: Sequence[Start], make: Callable[[Start], SpotPolicy], markets: Sequence[SpotMarket] = ()
) -> Replayed:
    """A policy, made anew for each start, over all zones; `markets`: for choosing among several zones."""
    return Replayed(tuple(_one(job, start, make(start), markets) for start in starts))


def _one(job: DeadlineJob, start: Start, policy: SpotPolicy, markets: Sequence[SpotMarket]) -> Outcome:
    ahead = start.ahead
    if len(ahead) == 1:
        return run(job, policy, ahead[0])
    return run_in_zones(job, policy, ZoneChoice(markets, len(ahead)), ahead)


def least(job: DeadlineJob, starts: Sequence[Start]) -> Replayed:
    """The least that the job could have cost from each start, had the traces been known: exact."""
    return Replayed(tuple(run_knowing(job, start.ahead) for start in starts))


@dataclass(frozen=True, slots=True)
class Taught:
    """Our policy, from traces of an earlier time."""

    #: Of single zones, for choosing among them.
    markets: tuple[SpotMarket, ...]
    plan: SlackPlan


def teach(job: DeadlineJob, history: Sequence[tuple[bool, ...]], zones: int, random: Random) -> Taught:
    """Ours for a job that may use so many zones, from the traces of single zones.

    Several zones are a market whose machine is there where any has one: groups of the earlier traces, laid over each
    other, stand for it: all groups, or a random choice where they are many.

    Raises:
        ValueError: fewer earlier traces than zones.
    """
    if len(history) < zones:
        raise ValueError(f"{len(history)} earlier traces say nothing of {zones} zones at once")
    markets = fit_markets(history)
    if zones == 1:
        return Taught(markets, plan_slack(job, markets))
    if comb(len(history), zones) > MOST_HYPOTHESES:
        groups = [random.sample(history, zones) for _ in range(MOST_HYPOTHESES)]
    else:
        groups = [list(group) for group in combinations(history, zones)]
    laid = [together(group) for group in groups]
    return Taught(markets, plan_slack(job, fit_markets([each.any for each in laid]), [each.taken for each in laid]))
