"""How fairly users were served: what each received over what an equal split would have entitled them to.

Decides nothing: it looks back at attempts that are over.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Wish:
    """A job wanted `accelerators` from `from_s` (submitted) until `to_s` (ended)."""

    user: str
    accelerators: int
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class Held:
    """A user held `accelerators` from `from_s` until `to_s`."""

    user: str
    accelerators: int
    from_s: float
    to_s: float


def equal_split(wanted: Mapping[str, float], capacity: float) -> dict[str, float]:
    """Divide capacity equally among users; what one does not want goes to the others (water filling)."""
    shares = dict.fromkeys(wanted, 0.0)
    open_users = {user for user, amount in wanted.items() if amount > 0}
    while open_users and capacity > 1e-9:
        each = capacity / len(open_users)
        for user in sorted(open_users):
            given = min(each, wanted[user] - shares[user])
            shares[user] += given
            capacity -= given
        open_users = {user for user in open_users if wanted[user] - shares[user] > 1e-9}
    return shares


def entitlements(wishes: Sequence[Wish], machines: Sequence[Held]) -> dict[str, float]:
    """Accelerator-seconds per user, had every instant's capacity been split equally among those who wanted some.

    `machines` are the spans in which accelerators were there (the user name is ignored).
    """
    spans: list[Wish | Held] = [*wishes, *machines]
    instants = sorted({instant for span in spans for instant in (span.from_s, span.to_s)})
    users = sorted({wish.user for wish in wishes})
    total = dict.fromkeys(users, 0.0)
    for start_s, end_s in pairwise(instants):
        wanted = dict.fromkeys(users, 0.0)
        for wish in wishes:
            if wish.from_s <= start_s and end_s <= wish.to_s:
                wanted[wish.user] += wish.accelerators
        capacity = sum(span.accelerators for span in machines if span.from_s <= start_s and end_s <= span.to_s)
        for user, share in equal_split(wanted, capacity).items():
            total[user] += share * (end_s - start_s)
    return total


def received(held: Sequence[Held]) -> dict[str, float]:
    """Accelerator-seconds each user held."""
    total: dict[str, float] = {}
    for span in held:
        total[span.user] = total.get(span.user, 0.0) + span.accelerators * (span.to_s - span.from_s)
    return total


def jain(values: Sequence[float]) -> float:
    """Jain's index: 1 when all values are equal, 1/n when one has everything; 1 for no values."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares > 0 else 1.0
