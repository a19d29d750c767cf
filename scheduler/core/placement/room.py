"""How large a gang a pool could take now, so that a fill looks at no line in vain.

Bounds only: whether a gang really fits is for the fleet to say, and whether it may borrow for `rounds.py`.
"""

from math import inf
from typing import NamedTuple

from scheduler.core.cycle import Cycle
from scheduler.core.ledger.lines import Line
from scheduler.core.placement.claims import waits_for_others


class Room(NamedTuple):
    """What is free at most: on one machine of a pool, on all of them, and to be borrowed from the reservation."""

    one: float
    several: float
    lent: float

    def may_hold(self, line: Line) -> bool:
        """False: there is certainly no place for gangs of this line."""
        count = line.count
        return (line.part <= self.one and count <= self.several) or count <= self.lent


#: Everybody may have to be looked at; nobody needs to be.
ANY_ROOM = Room(inf, inf, inf)
NO_ROOM = Room(0, 0, 0)


def room_on(cycle: Cycle, pool: int) -> Room:
    """What may start on the pool. Everybody, as long as the first who finds no place would get a reservation."""
    fleet = cycle.ledger.fleet
    free, held = fleet.pools[pool].free, 0
    reserved = cycle.reservations[pool].values() if pool in cycle.reservations else ()
    for claim in reserved:
        needs = claim.needs
        for row, wanted in claim.wanted.items():
            if wanted - needs[row] > held:
                held = wanted - needs[row]
    if not (free or held):
        return NO_ROOM
    if len(reserved) < cycle.standing.rules.max_reservations:
        return ANY_ROOM
    lends = held and any(waits_for_others(cycle, claim) for claim in reserved)
    return Room(fleet.most_free(pool) if free else 0, free, held if lends else 0)
