"""Where one job is cheapest as prices change: choose once and stick, or move when that pays (DISPA workshop, 2020).

The ladder of their study is a ladder of what may be chosen from: one shape in one place, other accelerators, larger
machines, other places, and at last another choice whenever prices change. Prices are those of the instant; nobody
knows the next ones. A move pays if it saves its cost on the work that is left.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.cloud.steps import Steps

_HOUR_S = 3600.0
#: A move must save this part of what staying would cost, or a flapping price moves the job for nothing.
_HYSTERESIS = 0.02


@dataclass(frozen=True, slots=True)
class Place:
    """A machine of one shape somewhere, as one job sees it."""

    name: str
    #: USD per hour of the whole machine.
    price: Steps
    #: Of this job on the whole machine.
    steps_per_s: float

    def usd_per_step(self, at: float) -> float:
        """At the price of an instant."""
        return self.price.at(at) / _HOUR_S / self.steps_per_s


@dataclass(frozen=True, slots=True)
class Moving:
    """What going to another place costs: data sent, and time on the new machine without progress."""

    usd: float
    pause_s: float


@dataclass(frozen=True, slots=True)
class Bill:
    """What a run cost, how long it took, where it ran, in order."""

    usd: float
    took_s: float
    places: tuple[str, ...]


def cheapest(places: Sequence[Place], at: float) -> Place:
    """The least money per step at the prices of an instant; of equals the first."""
    return min(places, key=lambda place: place.usd_per_step(at))


def stick(places: Sequence[Place], steps: float, at: float) -> Bill:
    """Choose the cheapest place at the start and stay, whatever prices do."""
    place = cheapest(places, at)
    took_s = steps / place.steps_per_s
    return Bill(place.price.integral(at, at + took_s) / _HOUR_S, took_s, (place.name,))


def pays(here: Place, there: Place, steps: float, at: float, moving: Moving) -> bool:
    """Whether going there saves more on the steps that are left than it costs, at the prices of an instant."""
    going = there.usd_per_step(at) * steps + _moving_usd(there, at, moving)
    return going < here.usd_per_step(at) * steps * (1 - _HYSTERESIS)


def _moving_usd(there: Place, at: float, moving: Moving) -> float:
    return there.price.at(at) * moving.pause_s / _HOUR_S + moving.usd


def follow(places: Sequence[Place], steps: float, at: float, moving: Moving) -> Bill:
    """Choose again whenever a price changes, and move where that pays for itself on the steps that are left."""
    place, started_at, usd, chosen = cheapest(places, at), at, 0.0, []
    chosen.append(place.name)
    while steps > 0:
        changes = (other.price.next_change_at(at) for other in places)
        until = min((change for change in changes if change is not None), default=float("inf"))
        ends_at = at + steps / place.steps_per_s
        if ends_at <= until:
            usd += place.price.integral(at, ends_at) / _HOUR_S
            at, steps = ends_at, 0.0
            break
        usd += place.price.integral(at, until) / _HOUR_S
        steps -= (until - at) * place.steps_per_s
        at = until
        better = cheapest(places, at)
        if pays(place, better, steps, at, moving):
            place = better
            chosen.append(place.name)
            usd += _moving_usd(better, at, moving)
            at += moving.pause_s
    return Bill(usd, at - started_at, tuple(chosen))
