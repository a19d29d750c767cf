"""Sia's Gavel as a mechanism for the scheduler core: at the end of every step a solve, a ranking, and new places.

Who stays where he is runs on.
"""

from collections import Counter

import numpy as np

from scheduler.core.cycle import Cycle
from scheduler.core.ledger.fleet import Place
from scheduler.core.rules import RoundRules
from simulator.compat.asking import AskedSteps
from simulator.compat.gavel.problem import gavel_problem
from simulator.compat.sia.ranking import Service, number, pick
from walras.ids import JobId


class SiaRounds(AskedSteps):
    """Ask, rank, move who must move, begin the next step."""

    def __init__(self, rules: RoundRules) -> None:
        super().__init__(rules.round_s)
        self._rules = rules
        self._service: Service | None = None
        #: Jobs that were admitted and have not ended, with the instant.
        self._known: dict[JobId, float] = {}
        #: Type and accelerators (numbered within it) of the jobs that run.
        self._now_on: dict[JobId, tuple[int, tuple[int, ...]]] = {}

    def step_ended(self, cycle: Cycle) -> None:
        ledger, (arrived, cycle.arrived) = cycle.ledger, (cycle.arrived, [])
        if self._service is None:
            self._service = Service(len(ledger.fleet.pools), self._rules.round_s / 2)
        for job_id in [job_id for job_id in self._known if job_id not in ledger.jobs]:
            del self._known[job_id]
            self._now_on.pop(job_id, None)
            self._service.forget(job_id)
        for job_id in sorted(arrived):
            if job_id in ledger.jobs and job_id not in self._known:
                ledger.set_eligible(ledger.jobs[job_id])
                self._known[job_id] = cycle.now
                self._service.admit(job_id)
        self.ask(cycle, lambda: gavel_problem(ledger, self._known))

    def decide(self, cycle: Cycle) -> None:
        """Rank by the shares that the solve answered (the last ones if it failed), and number the accelerators."""
        assert self._service is not None
        ledger, proposal, pools = cycle.ledger, cycle.standing.proposal, cycle.ledger.fleet.pools
        shares = {job_id: np.zeros(len(pools)) for job_id in self._known if job_id in ledger.jobs}
        if proposal is not None:
            for job_id, pool, share in zip(proposal.job_ids, proposal.pool_rows, proposal.shares, strict=True):
                if job_id in shares:
                    shares[job_id][pool] = share
        count = {job_id: ledger.jobs[job_id].request.demands[0].count for job_id in shares}
        picked = pick(self._service.ranked(shares), count, [state.capacity for state in pools])
        chosen: dict[JobId, tuple[int, tuple[int, ...]]] = {}
        for row in range(len(pools)):
            before = {job_id: numbers for job_id, (pool, numbers) in self._now_on.items() if pool == row}
            group = [job_id for job_id, pool in picked.items() if pool == row]
            for job_id, numbers in number(group, count, before).items():
                chosen[job_id] = row, numbers
                self._service.credit(job_id, row, self._rules.round_s)
        self._now_on = chosen
        self._plan(cycle)

    def _plan(self, cycle: Cycle) -> None:
        jobs = cycle.ledger.jobs
        places = {job_id: (pool, _place(cycle, pool, numbers)) for job_id, (pool, numbers) in self._now_on.items()}
        staying = {job_id for job_id, (_, place) in places.items() if jobs[job_id].place == place}
        stopping = [job for job in cycle.ledger if job.holds and job.job_id not in staying]
        moves = [(jobs[job_id], *where) for job_id, where in places.items() if job_id not in staying]
        self.moving.begin(cycle, stopping, moves)


def _place(cycle: Cycle, pool: int, numbers: tuple[int, ...]) -> Place:
    """Machines (in the order in which they joined) and how many of their accelerators have these numbers."""
    fleet = cycle.ledger.fleet
    rows = [machine.row for machine in fleet.machines if machine is not None and machine.pool == pool]
    size = fleet.pools[pool].pool.shape.accelerators
    return tuple((rows[machine], wanted) for machine, wanted in sorted(Counter(n // size for n in numbers).items()))
