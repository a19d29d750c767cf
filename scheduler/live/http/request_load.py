"""Bounds the requests that the server has under way: those that it works on, and those whose bodies still come.

Nobody can make a body come faster, so a coming body does not count among the requests that are worked on. Of the
bodies, each holder has at most half of the places that the others leave: however many come slowly from one holder, the
next one finds room.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from scheduler.live.auth.access_control import AgentCaller, Caller, JobCaller, JoinCaller, UserCaller
from walras.errors import WalrasError


class TooManyBodies(WalrasError):
    """The bodies that a holder has not finished sending take up its share."""


class RequestLoad:
    """Counts requests under way. `most`: of those that are worked on, and again of bodies that still come."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._worked_on = 0
        #: Bodies that still come, by holder.
        self._coming: Counter[str] = Counter()

    @property
    def is_full(self) -> bool:
        return self._worked_on >= self._most

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count a request for as long as the context is open."""
        self._worked_on += 1
        try:
            yield
        finally:
            self._worked_on -= 1

    @contextmanager
    def receiving(self, holder: str) -> Iterator[None]:
        """Count a request as a coming body, not as worked on. Raises TooManyBodies beyond the holder's share."""
        own, whole = self._coming[holder], self._coming.total()  # a Counter keeps no key that is only asked for
        share = (self._most - (whole - own) + 1) // 2
        if own >= share:
            raise TooManyBodies(f"{own} requests of yours have not sent their bodies; finish or close these first")
        self._coming[holder] += 1
        self._worked_on -= 1
        try:
            yield
        finally:
            self._worked_on += 1
            self._coming[holder] -= 1
            if not self._coming[holder]:
                del self._coming[holder]


def holder_of(caller: Caller, address: str) -> str:
    """Returns whose share a request takes: that of the user, the machine or the job; of newcomers, the address's."""
    match caller:
        case UserCaller(name=name):
            return f"user {name}"
        case AgentCaller(node_id=node_id):
            return f"machine {node_id}"
        case JobCaller(job_id=job_id):
            return f"job {job_id}"
        case JoinCaller():
            return f"address {address}"
