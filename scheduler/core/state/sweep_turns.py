"""Turns of sweeps: at most a given number of a limited sweep's jobs run at once, in the order of their numbers.

A job without a turn takes no part in solves, queues and reservations, like one that waits for another job. It keeps its
turn until it has ended or is held: through preemption, moves and retry delays. So the jobs that hold accelerators never
exceed the limit, and an event costs only the jobs whose turn it changes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from scheduler.core.state.ledger import JobRecord
from walras.job_request import JobId


@dataclass(slots=True)
class _Sweep:
    at_most: int
    #: Jobs that have their turn.
    running: set[JobId] = field(default_factory=set)
    #: Heap of job ids that wait for a turn; it may contain jobs that no longer wait.
    waiting: list[JobId] = field(default_factory=list)


@dataclass(slots=True)
class SweepTurns:
    """Which jobs have a turn in each limited sweep; `JobRecord.awaits_turn` states it for a job."""

    jobs: dict[JobId, JobRecord]
    _sweeps: dict[JobId, _Sweep] = field(default_factory=dict)

    def ask(self, job: JobRecord) -> None:
        """Gives a job of a sweep that wants to run its turn now, or lets it wait for one.

        A job that is restored with accelerators has its turn in any case; such jobs are restored before all others.
        """
        request = job.request
        if request.sweep is None or not request.sweep_limit:
            return
        sweep = self._sweeps.setdefault(request.sweep, _Sweep(request.sweep_limit))
        if job.job_id in sweep.running:
            return
        job.awaits_turn = not job.holds and len(sweep.running) >= sweep.at_most
        if job.awaits_turn:
            heappush(sweep.waiting, job.job_id)
        else:
            sweep.running.add(job.job_id)

    def give_up(self, job: JobRecord) -> Iterable[JobRecord]:
        """Ends the turn of a job that has ended or is held. Returns the jobs that get a turn by it."""
        request = job.request
        sweep = None if request.sweep is None else self._sweeps.get(request.sweep)
        if sweep is None:
            return ()
        job.awaits_turn = False
        sweep.running.discard(job.job_id)
        next_ones = []
        while len(sweep.running) < sweep.at_most and sweep.waiting:
            known = self.jobs.get(heappop(sweep.waiting))
            if known is not None and known.awaits_turn:
                known.awaits_turn = False
                sweep.running.add(known.job_id)
                next_ones.append(known)
        if not sweep.running and not sweep.waiting and request.sweep is not None:
            del self._sweeps[request.sweep]
        return next_ones
