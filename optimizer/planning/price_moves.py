"""`walras plan moves`: where one job is cheapest as prices change, replayed on recorded prices and compared to a bound.

Ways to choose are: choose once and stay, or move when a move pays for itself (DISPA workshop, 2020). As in that study
the set of places to choose from grows in steps: one shape in one place, other accelerators, larger machines, other
places, and finally a new choice whenever prices change. Prices are step functions of time, as markets publish them; the
current price is known, later ones are not. A move pays if it saves more than it costs on the work that is left.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from walras.contract import SECONDS_PER_HOUR
from walras.errors import UserError
from walras.units import format_length


@dataclass(frozen=True, slots=True)
class StepFunction:
    """A step function of time: each value holds until the next instant, and the first value also before its instant."""

    #: Seconds, strictly ascending.
    starts_at: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.starts_at or len(self.starts_at) != len(self.values):
            raise ValueError("a step function needs as many values as instants, and at least one")
        if any(later <= earlier for earlier, later in pairwise(self.starts_at)):
            raise ValueError("the instants of a step function must ascend")

    @classmethod
    def of(cls, changes: Iterable[tuple[float, float]]) -> "StepFunction":
        """Builds the function from (instant, value) in any order; the last of several values at one instant counts."""
        last = dict(sorted(changes, key=lambda change: change[0]))
        return cls(tuple(last), tuple(last.values()))

    def at(self, at: float) -> float:
        """Returns the value at an instant."""
        return self.values[max(bisect_right(self.starts_at, at) - 1, 0)]

    def next_change_at(self, at: float) -> float | None:
        """Returns the first instant after `at` at which the value changes; None if there is none."""
        position = bisect_right(self.starts_at, at)
        held = self.values[max(position - 1, 0)]
        for later in range(position, len(self.values)):
            if self.values[later] != held:
                return self.starts_at[later]
        return None

    def integral(self, since_at: float, until_at: float) -> float:
        """Integrates over a span in seconds: 3600 times the cost if the value is a price per hour."""
        inner = self.starts_at[bisect_right(self.starts_at, since_at) : bisect_left(self.starts_at, until_at)]
        edges = [since_at, *inner, until_at]
        return sum((end - start) * self.at(start) for start, end in pairwise(edges))


#: A move must save this part of the cost of staying, so that a fluctuating price does not move the job for nothing.
_HYSTERESIS = 0.02


@dataclass(frozen=True, slots=True)
class PricedPlace:
    """A machine shape at a place, with the job's speed on it."""

    name: str
    #: USD per hour of the whole machine.
    price: StepFunction
    #: Steps per second of this job on the whole machine.
    steps_per_s: float

    def usd_per_step(self, at: float) -> float:
        """Returns USD per step at the price of an instant."""
        return self.price.at(at) / SECONDS_PER_HOUR / self.steps_per_s


@dataclass(frozen=True, slots=True)
class MoveCost:
    """The cost of a move: the data transfer, and seconds on the new machine without progress."""

    usd: float
    pause_s: float


@dataclass(frozen=True, slots=True)
class RunBill:
    """The cost of a run (USD), its duration (s), and the places where it ran, in order."""

    usd: float
    took_s: float
    places: tuple[str, ...]


def cheapest_place(places: Sequence[PricedPlace], at: float) -> PricedPlace:
    """Returns the place with the least USD per step at an instant; the first of equals."""
    return min(places, key=lambda place: place.usd_per_step(at))


def bill_of_staying(places: Sequence[PricedPlace], steps: float, at: float) -> RunBill:
    """Bills the run that chooses the cheapest place at the start and stays, whatever prices do."""
    place = cheapest_place(places, at)
    took_s = steps / place.steps_per_s
    return RunBill(place.price.integral(at, at + took_s) / SECONDS_PER_HOUR, took_s, (place.name,))


def move_pays(here: PricedPlace, there: PricedPlace, steps: float, at: float, moving: MoveCost) -> bool:
    """Returns whether a move saves more on the remaining steps than it costs, at the prices of an instant."""
    going = there.usd_per_step(at) * steps + _moving_usd(there, at, moving)
    return going < here.usd_per_step(at) * steps * (1 - _HYSTERESIS)


def _moving_usd(there: PricedPlace, at: float, moving: MoveCost) -> float:
    return there.price.at(at) * moving.pause_s / SECONDS_PER_HOUR + moving.usd


def bill_of_following(places: Sequence[PricedPlace], steps: float, at: float, moving: MoveCost) -> RunBill:
    """Bills the run that chooses again whenever a price changes, and moves where that pays on the remaining steps."""
    place, started_at, usd, chosen = cheapest_place(places, at), at, 0.0, []
    chosen.append(place.name)
    while steps > 0:
        changes = (other.price.next_change_at(at) for other in places)
        until = min((change for change in changes if change is not None), default=float("inf"))
        ends_at = at + steps / place.steps_per_s
        if ends_at <= until:
            usd += place.price.integral(at, ends_at) / SECONDS_PER_HOUR
            at, steps = ends_at, 0.0
            break
        usd += place.price.integral(at, until) / SECONDS_PER_HOUR
        steps -= (until - at) * place.steps_per_s
        at = until
        better = cheapest_place(places, at)
        if move_pays(place, better, steps, at, moving):
            place = better
            chosen.append(place.name)
            usd += _moving_usd(better, at, moving)
            at += moving.pause_s
    return RunBill(usd, at - started_at, tuple(chosen))


@dataclass(frozen=True, slots=True)
class MovePolicyResult:
    """Mean result of one way of choosing places over all starts."""

    name: str
    usd: float
    took_s: float
    moves: float
    #: Its cost over that of the bound, less 1.
    above_bound: float


@dataclass(frozen=True, slots=True)
class MoveAdvice:
    """The advice at the last known prices, with all steps still to do."""

    place: str
    usd: float
    #: The job's cost where it is, and whether a move pays; None if the job runs nowhere yet.
    stay_usd: float | None
    move: bool | None


@dataclass(frozen=True, slots=True)
class MovePlan:
    """The ways to choose, cheapest first, a lower bound, and advice for now."""

    starts: int
    ways: tuple[MovePolicyResult, ...]
    #: The bound: prices are known in advance, moves and waiting are free, and the run ends no later than the slowest
    #: way.
    bound_usd: float
    now: MoveAdvice


def make_move_plan(
    places: Sequence[PricedPlace], steps: float, moving: MoveCost, starts: int, at: str | None
) -> MovePlan:
    """Replays each way from evenly spaced starts. `at` names the place where the job is now.

    Raises:
        UserError: the record is too short for the job.
    """
    first_at = max(place.price.starts_at[0] for place in places)
    last_at = max(place.price.starts_at[-1] for place in places)
    longest_s = steps / min(place.steps_per_s for place in places)
    if last_at - longest_s < first_at:
        raise UserError(
            f"prices are known of all places for {format_length(max(last_at - first_at, 0.0))}, the job takes up to "
            f"{format_length(longest_s)}",
            field="PRICES",
            fix="give a longer record, or a shorter job",
        )
    begun = [first_at + (last_at - longest_s - first_at) * (part + 0.5) / starts for part in range(starts)]
    bills: dict[str, list[RunBill]] = {
        f"stay at {places[0].name}": [bill_of_staying(places[:1], steps, at_) for at_ in begun],
        "cheapest at the start": [bill_of_staying(places, steps, at_) for at_ in begun],
        "follow prices": [bill_of_following(places, steps, at_, moving) for at_ in begun],
    }
    slowest = [max(bill.took_s for bill in ways) for ways in zip(*bills.values(), strict=True)]
    bound = fmean(least_usd(places, steps, at_, at_ + took_s) for at_, took_s in zip(begun, slowest, strict=True))
    ways = [_policy_result(name, paid, bound) for name, paid in bills.items()]
    return MovePlan(
        starts, tuple(sorted(ways, key=lambda way: way.usd)), bound, _advice(places, steps, moving, last_at, at)
    )


def least_usd(places: Sequence[PricedPlace], steps: float, since_at: float, until_at: float) -> float:
    """Returns a lower bound (USD) for every plan that runs between two instants.

    Between two price changes no plan does more steps than the fastest place, and none pays less per step than the
    cheapest place. The bound fills the cheapest spans first. The span must be long enough for the steps on the fastest
    place.
    """
    fastest = max(place.steps_per_s for place in places)
    changes = {at for place in places for at in place.price.starts_at if since_at < at < until_at}
    spans = [
        (min(place.usd_per_step(start) for place in places), (end - start) * fastest)
        for start, end in pairwise(sorted({since_at, until_at} | changes))
    ]
    usd, left = 0.0, steps
    for usd_per_step, most in sorted(spans):
        usd += usd_per_step * min(most, left)
        left -= min(most, left)
    return usd


def _policy_result(name: str, paid: Sequence[RunBill], bound: float) -> MovePolicyResult:
    usd = fmean(bill.usd for bill in paid)
    moves = fmean(len(bill.places) - 1 for bill in paid)
    return MovePolicyResult(name, usd, fmean(bill.took_s for bill in paid), moves, usd / bound - 1 if bound else 0.0)


def _advice(
    places: Sequence[PricedPlace], steps: float, moving: MoveCost, last_at: float, at: str | None
) -> MoveAdvice:
    best = cheapest_place(places, last_at)
    usd = best.usd_per_step(last_at) * steps
    if at is None:
        return MoveAdvice(best.name, usd, None, None)
    here = next(place for place in places if place.name == at)
    return MoveAdvice(best.name, usd, here.usd_per_step(last_at) * steps, move_pays(here, best, steps, last_at, moving))
