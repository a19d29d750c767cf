"""What a policy of Gavel's is: a matrix of shares, jobs by types, and shares of pairs; and how the core is told.

The core takes them for share policies. Their answers are not rounded: noise of 1e-9 decides who fills what is left.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from optimizer.decision import Certificate, Memory, Quote, Shares, Status
from optimizer.policy import Newcomer, PolicySpec
from optimizer.problem import FloatArray, Problem
from scheduler.core.commands import Solve
from scheduler.core.events import Proposal
from simulator.compat.gavel.problem import GavelProblem
from walras.ids import JobId, PoolId

_NO_PROOF = Certificate(Status.DEFINED, 0.0, 0.0, 0.0, 0.0, "gavel")


@dataclass(frozen=True, slots=True, eq=False)
class Allocation:
    """Shares of time: of jobs on types (n, p), and of two rows of jobs together on a type."""

    x: FloatArray
    pairs: tuple[tuple[int, int, int, float], ...] = ()


class GavelPolicy(ABC):
    """Answers as a `SharePolicy` does, without a proof; what counts is `allocate`."""

    @abstractmethod
    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[Allocation, Memory]:
        """The shares, and what to remember."""

    def decide(self, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
        """The shares of single jobs, by column."""
        assert isinstance(problem, GavelProblem), "Gavel's policies are asked by Gavel's mechanism"
        allocation, memory = self.allocate(problem, memory)
        type_of = np.argsort(problem.pool_row)
        x = allocation.x[problem.columns.job, type_of[problem.columns.use_pool]]
        free = Quote(np.zeros(len(problem.pools)), "nothing has a price", 1.0)
        return Shares(x, problem.pools.held, free, np.zeros(len(problem.jobs)), _NO_PROOF), memory

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Newcomers wait for a solve: nothing is worth anything before."""
        return np.zeros(len(newcomer.steps_per_s))


def answers(make: Callable[[PolicySpec], GavelPolicy]) -> Callable[[Solve], Proposal]:
    """Answers `Solve` by these policies."""

    def solve(command: Solve) -> Proposal:
        problem = command.problem
        assert isinstance(problem, GavelProblem), "Gavel's policies are asked by Gavel's mechanism"
        allocation, memory = make(command.policy).allocate(problem, command.memory)
        return _proposal(problem, allocation, memory)

    return solve


def _proposal(problem: GavelProblem, allocation: Allocation, memory: Memory) -> Proposal:
    job, kind = np.nonzero(allocation.x)
    job_ids = problem.jobs.job_id.tolist()
    pools = problem.pool_row.tolist()
    return Proposal(
        pools=tuple(PoolId(pool_id) for pool_id in problem.pools.pool_id),
        job_ids=tuple(JobId(job_ids[row]) for row in job.tolist()),
        pool_rows=tuple(problem.pool_row[kind].tolist()),
        counts=tuple(problem.count[job].tolist()),
        shares=tuple(allocation.x[job, kind].tolist()),
        asked=tuple(JobId(job_id) for job_id in job_ids),
        prices=tuple(0.0 for _ in pools),
        price_unit="nothing has a price",
        exchange=1.0,
        rent_machines=tuple(0 for _ in pools),
        status=str(Status.DEFINED),
        objective=0.0,
        bound=0.0,
        gap=0.0,
        path="gavel",
        memory=memory,
        packed=tuple((JobId(job_ids[a]), JobId(job_ids[b]), pools[on], share) for a, b, on, share in allocation.pairs),
    )
