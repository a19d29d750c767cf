"""Changing who runs where between two steps: first all who must go, then everybody who is to start, then the step."""

from collections.abc import Iterable, Iterator

from scheduler.core.commands import BeginRound
from scheduler.core.cycle import Cycle
from scheduler.core.ledger.fleet import Place
from scheduler.core.ledger.ledger import JobRecord
from scheduler.core.placement.attempts import is_prepared, revoke, start
from walras.reasons import Reason

#: A job, the row of a pool, and its place there.
Move = tuple[JobRecord, int, Place]


class Moving:
    """One change at a time; it takes as many events as it takes the attempts to stop and the gangs to be prepared."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._stopping: list[JobRecord] = []
        self._starting: list[JobRecord] = []
        #: Who is to start once those are gone; None: nothing is being changed.
        self._moves: Iterator[Move] | None = None

    def begin(self, cycle: Cycle, stopping: list[JobRecord], moves: Iterable[Move]) -> None:
        """Stop these jobs. `moves` are asked for when all are gone, each when those before it have their places."""
        self._stopping, self._starting, self._moves = stopping, [], iter(moves)
        for job in stopping:
            revoke(cycle, job, Reason.POLICY_PREEMPTED)

    def go_on(self, cycle: Cycle) -> None:
        """Do what can be done by now; with the last of it the next step begins."""
        if self._moves is None or any(job.holds for job in self._stopping):
            return
        self._stopping = []
        for job, pool, place in self._moves:
            start(cycle, job, pool, place)
            self._starting.append(job)
        if all(is_prepared(job) for job in self._starting if job.holds):
            self._moves = None
            self._starting = []
            cycle.commands.append(BeginRound(self._step_s))
