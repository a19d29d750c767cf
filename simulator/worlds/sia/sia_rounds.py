"""Sia's implementation of Gavel as a round mechanism: at the end of every step a solve, a ranking, and new places.

The policy maximises the sum of throughputs as Sia's simulator does: rows sorted by name, shares rounded to five
decimals. Jobs are ranked by share over received time, and the accelerators of each type are numbered, machine by
machine. A job that keeps its accelerators continues to run.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.decision import Memory
from optimizer.problem import FloatArray
from scheduler.core.rules import RoundRules
from scheduler.core.state.fleet import Place
from scheduler.core.state.working_set import Cycle
from simulator.worlds.gavel.gavel_policy import GavelAllocation, GavelPolicy, GavelProblem, gavel_problem
from simulator.worlds.gavel.program_policies import no_shares
from simulator.worlds.gavel.share_polytope import ConeSolver, SharePolytope, ShareUnits, solve_cone_program
from simulator.worlds.stepped_mechanism import SteppedMechanism
from walras.job_request import JobId


class ReceivedService:
    """Seconds received by every job on every type, and by all jobs: never reset, ended jobs included."""

    def __init__(self, types: int, prior_s: float) -> None:
        self._prior_s = prior_s
        self._received_s: dict[JobId, FloatArray] = {}
        self._all_s: FloatArray = np.zeros(types)

    def admit(self, job_id: JobId) -> None:
        """Adds a job as if it had run for half a round on every type."""
        self._received_s[job_id] = np.full(len(self._all_s), self._prior_s)
        self._all_s += self._prior_s

    def forget(self, job_id: JobId) -> None:
        """Removes an ended job; the time received by all jobs together stays."""
        del self._received_s[job_id]

    def credit(self, job_id: JobId, type_: int, time_s: float) -> None:
        """Credits a job with seconds of run time on a type."""
        self._received_s[job_id][type_] += time_s
        self._all_s[type_] += time_s

    def ranked(self, shares: Mapping[JobId, FloatArray]) -> list[tuple[JobId, int]]:
        """Returns (job, type) pairs: largest share over received time first, then largest share, then type and job."""
        priority = {
            job_id: np.where(share > 0, share / (self._received_s[job_id] / self._all_s), 0.0)
            for job_id, share in shares.items()
        }
        cells = [(job_id, type_) for type_ in range(len(self._all_s)) for job_id in shares]
        return sorted(cells, key=lambda cell: (-priority[cell[0]][cell[1]], -shares[cell[0]][cell[1]]))


def pick_by_priority(
    ranked: Sequence[tuple[JobId, int]], count: Mapping[JobId, int], free: Sequence[int]
) -> dict[JobId, int]:
    """Returns the type of each job that runs, in order of choice; jobs that do not fit are skipped."""
    left, chosen = list(free), {}
    for job_id, type_ in ranked:
        if job_id not in chosen and count[job_id] <= left[type_]:
            left[type_] -= count[job_id]
            chosen[job_id] = type_
    return chosen


def number_accelerators(
    picked: Sequence[JobId], count: Mapping[JobId, int], before: Mapping[JobId, tuple[int, ...]]
) -> dict[JobId, tuple[int, ...]]:
    """Returns the numbers of the accelerators of one type that each picked job gets, ascending; larger gangs first.

    Among gangs of equal size, those that ran on the type keep their accelerators (`before`) if all of them are still
    free. The others take the lowest free numbers above all that such gangs have taken or skipped before.
    """
    used: set[int] = set()
    numbers: dict[JobId, tuple[int, ...]] = {}
    lowest = 0
    for size in sorted({count[job_id] for job_id in picked}, reverse=True):
        group = [job_id for job_id in picked if count[job_id] == size]
        for job_id in group:
            if job_id in before and used.isdisjoint(before[job_id]):
                numbers[job_id] = before[job_id]
                used.update(before[job_id])
        for job_id in group:
            if job_id in numbers:
                continue
            taken: list[int] = []
            while len(taken) < size:
                if lowest not in used:
                    taken.append(lowest)
                lowest += 1
            numbers[job_id] = tuple(taken)
            used.update(taken)
    return numbers


#: Decimals to which shares are rounded, so that a solver's noise of 1e-9 counts as 0.
_DECIMALS = 5


@dataclass(frozen=True, slots=True)
class SiaGavel(GavelPolicy):
    """Maximises the sum of updates per second."""

    names: Mapping[JobId, str]
    solver: ConeSolver = solve_cone_program

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[GavelAllocation, Memory]:
        names = [self.names[JobId(job_id)] for job_id in problem.jobs.job_id.tolist()]
        order = np.array(sorted(range(len(names)), key=names.__getitem__))
        rows, speed = np.arange(len(order)), problem.speed[order]
        no_second = np.full(len(rows), -1)
        units = ShareUnits(rows, no_second, problem.count[order], speed, np.zeros_like(speed), len(rows), problem.total)
        polytope = SharePolytope(units)
        polytope.add_base()
        found = polytope.solve(self.solver, polytope.rate_cost(np.ones(len(problem.total))))
        if found is None:
            return no_shares(problem), None
        shares = np.zeros_like(problem.speed)
        shares[order] = np.round(found.x, _DECIMALS)
        return GavelAllocation(shares), None


class SiaRounds(SteppedMechanism):
    """A `RoundMechanism` that solves, ranks, reallocates, and begins the next step."""

    def __init__(self, rules: RoundRules) -> None:
        super().__init__(rules.round_s)
        self._rules = rules
        self._service: ReceivedService | None = None
        #: Instant of admission of each job that has not ended.
        self._known: dict[JobId, float] = {}
        #: Type and accelerators (numbered within the type) of each running job.
        self._now_on: dict[JobId, tuple[int, tuple[int, ...]]] = {}

    def step_ended(self, cycle: Cycle) -> None:
        ledger, (arrived, cycle.backlog.arrived) = cycle.ledger, (cycle.backlog.arrived, [])
        if self._service is None:
            self._service = ReceivedService(len(ledger.fleet.pools), self._rules.round_s / 2)
        for job_id in [job_id for job_id in self._known if job_id not in ledger.jobs]:
            del self._known[job_id]
            self._now_on.pop(job_id, None)
            self._service.forget(job_id)
        for job_id in sorted(arrived):
            if job_id in ledger.jobs and job_id not in self._known:
                ledger.set_eligible(ledger.jobs[job_id])
                self._known[job_id] = cycle.now
                self._service.admit(job_id)
        self.request_solve(cycle, lambda: gavel_problem(ledger, self._known))

    def decide(self, cycle: Cycle) -> None:
        """Ranks by the shares of the last successful solve, and numbers the accelerators."""
        assert self._service is not None
        ledger, proposal, pools = cycle.ledger, cycle.policy.proposal, cycle.ledger.fleet.pools
        shares = {job_id: np.zeros(len(pools)) for job_id in self._known if job_id in ledger.jobs}
        if proposal is not None:
            for job_id, pool, share in zip(proposal.job_ids, proposal.pool_rows, proposal.shares, strict=True):
                if job_id in shares:
                    shares[job_id][pool] = share
        count = {job_id: ledger.jobs[job_id].request.demands[0].count for job_id in shares}
        picked = pick_by_priority(self._service.ranked(shares), count, [state.capacity for state in pools])
        chosen: dict[JobId, tuple[int, tuple[int, ...]]] = {}
        for row in range(len(pools)):
            before = {job_id: numbers for job_id, (pool, numbers) in self._now_on.items() if pool == row}
            group = [job_id for job_id, pool in picked.items() if pool == row]
            for job_id, numbers in number_accelerators(group, count, before).items():
                chosen[job_id] = row, numbers
                self._service.credit(job_id, row, self._rules.round_s)
        self._now_on = chosen
        self._plan(cycle)

    def _plan(self, cycle: Cycle) -> None:
        jobs = cycle.ledger.jobs
        places = {
            job_id: (pool, _place_of_numbers(cycle, pool, numbers)) for job_id, (pool, numbers) in self._now_on.items()
        }
        staying = {job_id for job_id, (_, place) in places.items() if jobs[job_id].place == place}
        stopping = [job for job in cycle.ledger if job.holds and job.job_id not in staying]
        moves = [(jobs[job_id], *where) for job_id, where in places.items() if job_id not in staying]
        self.reallocation.begin(cycle, stopping, moves)


def _place_of_numbers(cycle: Cycle, pool: int, numbers: tuple[int, ...]) -> Place:
    """Returns the machines, in the order in which they joined, and the count of these accelerator numbers on each."""
    fleet = cycle.ledger.fleet
    rows = [machine.row for machine in fleet.machines if machine is not None and machine.pool == pool]
    size = fleet.pools[pool].pool.shape.accelerators
    return tuple((rows[machine], wanted) for machine, wanted in sorted(Counter(n // size for n in numbers).items()))
