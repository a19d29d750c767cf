"""`walras plan moves`: where one job is cheapest as prices change, judged on recorded prices beside a bound.

Choose once and stay, or move when that pays (DISPA workshop, 2020). The ladder of their study is a ladder of what may
be chosen from: one shape in one place, other accelerators, larger machines, other places, and at last another choice
whenever prices change. Prices are step functions of time as markets publish them; those of the instant are known,
nobody knows the next ones. A move pays if it saves its cost on the work that is left.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from walras.contract import SECONDS_PER_HOUR
from walras.errors import UserError
from walras.units import format_length


@dataclass(frozen=True, slots=True)
class StepFunction:
    """Values that hold from an instant until the next one; before the first the first holds.

    Used for a price (USD per hour of one machine) and for a capacity (machines that the market has).
    """

    #: Ascending, without repeats.
    starts_at: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.starts_at or len(self.starts_at) != len(self.values):
            raise ValueError("a step function needs as many values as instants, and at least one")
        if any(later <= earlier for earlier, later in pairwise(self.starts_at)):
            raise ValueError("the instants of a step function must ascend")

    @classmethod
    def of(cls, changes: Iterable[tuple[float, float]]) -> "StepFunction":
        """From (instant, value) in any order; of several values at one instant the last one counts."""
        last = dict(sorted(changes, key=lambda change: change[0]))
        return cls(tuple(last), tuple(last.values()))

    def at(self, at: float) -> float:
        """The value that holds at an instant."""
        return self.values[max(bisect_right(self.starts_at, at) - 1, 0)]

    def next_change_at(self, at: float) -> float | None:
        """The next instant after `at` at which another value begins; None: never."""
        position = bisect_right(self.starts_at, at)
        held = self.values[max(position - 1, 0)]
        for later in range(position, len(self.values)):
            if self.values[later] != held:
                return self.starts_at[later]
        return None

    def integral(self, since_at: float, until_at: float) -> float:
        """Value times seconds over a span; what an hour costs, times 3600, over what was used."""
        edges = [since_at, *(at for at in self.starts_at if since_at < at < until_at), until_at]
        return sum((end - start) * self.at(start) for start, end in pairwise(edges))


#: A move must save this part of what staying would cost, or a flapping price moves the job for nothing.
_HYSTERESIS = 0.02


@dataclass(frozen=True, slots=True)
class PricedPlace:
    """A machine of one shape somewhere, as one job sees it."""

    name: str
    #: USD per hour of the whole machine.
    price: StepFunction
    #: Of this job on the whole machine.
    steps_per_s: float

    def usd_per_step(self, at: float) -> float:
        """At the price of an instant."""
        return self.price.at(at) / SECONDS_PER_HOUR / self.steps_per_s


@dataclass(frozen=True, slots=True)
class MoveCost:
    """What going to another place costs: data sent, and time on the new machine without progress."""

    usd: float
    pause_s: float


@dataclass(frozen=True, slots=True)
class RunBill:
    """What a run cost, how long it took, where it ran, in order."""

    usd: float
    took_s: float
    places: tuple[str, ...]


def cheapest_place(places: Sequence[PricedPlace], at: float) -> PricedPlace:
    """The least money per step at the prices of an instant; of equals the first."""
    return min(places, key=lambda place: place.usd_per_step(at))


def bill_of_staying(places: Sequence[PricedPlace], steps: float, at: float) -> RunBill:
    """Choose the cheapest place at the start and stay, whatever prices do."""
    place = cheapest_place(places, at)
    took_s = steps / place.steps_per_s
    return RunBill(place.price.integral(at, at + took_s) / SECONDS_PER_HOUR, took_s, (place.name,))


def move_pays(here: PricedPlace, there: PricedPlace, steps: float, at: float, moving: MoveCost) -> bool:
    """Whether going there saves more on the steps that are left than it costs, at the prices of an instant."""
    going = there.usd_per_step(at) * steps + _moving_usd(there, at, moving)
    return going < here.usd_per_step(at) * steps * (1 - _HYSTERESIS)


def _moving_usd(there: PricedPlace, at: float, moving: MoveCost) -> float:
    return there.price.at(at) * moving.pause_s / SECONDS_PER_HOUR + moving.usd


def bill_of_following(places: Sequence[PricedPlace], steps: float, at: float, moving: MoveCost) -> RunBill:
    """Choose again whenever a price changes, and move where that pays for itself on the steps that are left."""
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
    """What one way of choosing places came to, in the mean over all starts."""

    name: str
    usd: float
    took_s: float
    moves: float
    #: Its cost over that of the bound, less 1.
    above_bound: float


@dataclass(frozen=True, slots=True)
class MoveAdvice:
    """What to do at the last prices that are known, with all steps to go."""

    place: str
    usd: float
    #: What the job would cost where it is, and whether going is worth it; None: it is nowhere yet.
    stay_usd: float | None
    move: bool | None


@dataclass(frozen=True, slots=True)
class MovePlan:
    """Ways to choose, the cheapest first, the bound, and the present."""

    starts: int
    ways: tuple[MovePolicyResult, ...]
    #: Prices known beforehand, moves and waiting free, done no later than the slowest of these ways.
    bound_usd: float
    now: MoveAdvice


def make_move_plan(
    places: Sequence[PricedPlace], steps: float, moving: MoveCost, starts: int, at: str | None
) -> MovePlan:
    """Replay each way from evenly spread starts. `at`: where the job is now.

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
    """Below what any plan costs that runs between two instants, long enough for the steps on the fastest place.

    Between two changes no plan does more steps than the fastest place, nor any for less than the lowest price of a
    step; the cheapest spans are filled first.
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
