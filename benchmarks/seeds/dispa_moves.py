"""Where one job is cheapest as prices change: chosen once, or moved whenever a move pays for itself (DISPA, 2020).

Prices are step functions of time, as markets publish them; the current price is known, later ones are not. A move pays
if it saves more than it costs on the work that is left.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from walras.contract import SECONDS_PER_HOUR


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
