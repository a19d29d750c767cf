"""The interface of Gavel's policies: matrices of jobs by types in, time shares of jobs and of pairs out.

The core runs them as share policies. Their shares are not rounded, because noise of 1e-9 decides which jobs get
leftover accelerators.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Protocol

import numpy as np

from optimizer.decision import Certificate, Memory, Quote, Shares, Status
from optimizer.policy import Newcomer, PolicySpec
from optimizer.problem import FloatArray, IntArray, Problem
from scheduler.core.commands import Solve
from scheduler.core.cycle.problem_snapshot import build_problem
from scheduler.core.events import Proposal
from scheduler.core.state.ledger import Ledger
from walras.cluster import PoolId
from walras.job_request import JobId, Kind


@dataclass(frozen=True, slots=True, eq=False)
class GavelProblem(Problem):
    """A problem as Gavel's policies see it. Types are in alphabetical order, jobs in order of id."""

    kind: tuple[Kind, ...] = ()
    #: Instant by which each job should end, counted from its admission; inf without a deadline (n,).
    deadline_at: FloatArray = field(default_factory=lambda: np.zeros(0))
    #: Accelerators of each job's gang (n,).
    count: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    #: Rows of the problem's pools, in alphabetical order of their types (p,).
    pool_row: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    #: Steps per second, jobs by types (n, p), and accelerators by type (p,).
    speed: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    total: FloatArray = field(default_factory=lambda: np.zeros(0))


def gavel_problem(ledger: Ledger, admitted_at: Mapping[JobId, float]) -> GavelProblem:
    """Converts the ledger to a problem; a deadline is delayed by the time that the job waited for admission."""
    problem = build_problem(ledger)
    order = np.argsort(problem.pools.accelerator, kind="stable")
    records = [ledger.jobs[job_id] for job_id in problem.jobs.job_id.tolist()]
    speed = ledger.classes.rates[[job.class_row for job in records]].reshape(len(records), len(order))
    waited_s = np.array([admitted_at[job.job_id] for job in records]) - problem.jobs.submitted_at
    return GavelProblem(
        **{field.name: getattr(problem, field.name) for field in fields(Problem)},
        kind=tuple(job.request.kind for job in records),
        deadline_at=problem.jobs.deadline_at + waited_s,
        count=problem.jobs.gang.astype(np.int64),
        pool_row=order,
        speed=speed[:, order],
        total=problem.pools.capacity[order],
    )


_NO_PROOF = Certificate(Status.DEFINED, 0.0, 0.0, 0.0, 0.0, "gavel")


@dataclass(frozen=True, slots=True, eq=False)
class GavelAllocation:
    """Time shares of jobs on types (n, p), and of pairs of jobs (two rows) on a type."""

    x: FloatArray
    pairs: tuple[tuple[int, int, int, float], ...] = ()


class GavelPolicy(ABC):
    """Adapts `allocate` to the interface of a `SharePolicy`, without a certificate."""

    @abstractmethod
    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[GavelAllocation, Memory]:
        """Returns the shares, and the memory for the next solve."""

    def decide(self, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
        """Returns the shares of single jobs, by column."""
        assert isinstance(problem, GavelProblem), "Gavel's policies are asked by Gavel's mechanism"
        allocation, memory = self.allocate(problem, memory)
        type_of = np.argsort(problem.pool_row)
        x = allocation.x[problem.columns.job, type_of[problem.columns.use_pool]]
        free = Quote(np.zeros(len(problem.pools)), "nothing has a price", 1.0)
        return Shares(x, problem.pools.held, free, np.zeros(len(problem.jobs)), _NO_PROOF), memory

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Returns zero for every configuration: newcomers wait for the next solve."""
        return np.zeros(len(newcomer.steps_per_s))


def gavel_solver(make: Callable[[PolicySpec], GavelPolicy]) -> Callable[[Solve], Proposal]:
    """Returns a function that answers `Solve` with these policies."""

    def solve(command: Solve) -> Proposal:
        problem = command.problem
        assert isinstance(problem, GavelProblem), "Gavel's policies are asked by Gavel's mechanism"
        allocation, memory = make(command.policy).allocate(problem, command.memory)
        return _gavel_proposal(problem, allocation, memory)

    return solve


def _gavel_proposal(problem: GavelProblem, allocation: GavelAllocation, memory: Memory) -> Proposal:
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


class PairSpeeds(Protocol):
    """Speeds of two jobs on the same accelerators (`simulator.ground_truth.GroundTruth`)."""

    def colocated_speed(self, kind: Kind, other: Kind, accelerator: str, count: int) -> float:
        """Returns the speed of the first kind co-located with the second; 0 where they cannot share accelerators."""
        ...
