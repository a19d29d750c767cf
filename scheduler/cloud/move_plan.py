"""`walras plan moves`: where a job is cheapest as prices change, judged on recorded prices beside what nobody can beat.

Puts the answer together; how a job sticks or follows is decided in `price_ladder`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from scheduler.cloud.price_ladder import Bill, Moving, Place, cheapest, follow, pays, stick
from walras.errors import UserError
from walras.units import format_length


@dataclass(frozen=True, slots=True)
class Way:
    """What one way of choosing places came to, in the mean over all starts."""

    name: str
    usd: float
    took_s: float
    moves: float
    #: Its cost over that of the bound, less 1.
    above_bound: float


@dataclass(frozen=True, slots=True)
class Now:
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
    ways: tuple[Way, ...]
    #: Prices known beforehand, moves and waiting free, done no later than the slowest of these ways.
    bound_usd: float
    now: Now


def plan_moves(places: Sequence[Place], steps: float, moving: Moving, starts: int, at: str | None) -> MovePlan:
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
    bills: dict[str, list[Bill]] = {
        f"stay at {places[0].name}": [stick(places[:1], steps, at_) for at_ in begun],
        "cheapest at the start": [stick(places, steps, at_) for at_ in begun],
        "follow prices": [follow(places, steps, at_, moving) for at_ in begun],
    }
    slowest = [max(bill.took_s for bill in ways) for ways in zip(*bills.values(), strict=True)]
    bound = fmean(least_usd(places, steps, at_, at_ + took_s) for at_, took_s in zip(begun, slowest, strict=True))
    ways = [_way(name, paid, bound) for name, paid in bills.items()]
    return MovePlan(
        starts, tuple(sorted(ways, key=lambda way: way.usd)), bound, _now(places, steps, moving, last_at, at)
    )


def least_usd(places: Sequence[Place], steps: float, since_at: float, until_at: float) -> float:
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


def _way(name: str, paid: Sequence[Bill], bound: float) -> Way:
    usd = fmean(bill.usd for bill in paid)
    moves = fmean(len(bill.places) - 1 for bill in paid)
    return Way(name, usd, fmean(bill.took_s for bill in paid), moves, usd / bound - 1 if bound else 0.0)


def _now(places: Sequence[Place], steps: float, moving: Moving, last_at: float, at: str | None) -> Now:
    best = cheapest(places, last_at)
    usd = best.usd_per_step(last_at) * steps
    if at is None:
        return Now(best.name, usd, None, None)
    here = next(place for place in places if place.name == at)
    return Now(best.name, usd, here.usd_per_step(last_at) * steps, pays(here, best, steps, last_at, moving))
