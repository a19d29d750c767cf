"""What Gavel's policies are told: the common problem, and beside it matrices of jobs by type."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np

from optimizer.problem import FloatArray, IntArray, Problem
from scheduler.core.ledger.ledger import Ledger
from scheduler.core.resolve import build_problem
from walras.ids import JobId, Kind


@dataclass(frozen=True, slots=True, eq=False)
class GavelProblem(Problem):
    """Types are in alphabetical order, jobs in order of id."""

    kind: tuple[Kind, ...] = ()
    #: Instant by which each job should end, counted from its admission; inf without a deadline (n,).
    deadline_at: FloatArray = field(default_factory=lambda: np.zeros(0))
    #: Accelerators of each job's gang (n,).
    count: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    #: Rows of the problem's pools in alphabetical order of their type (p,).
    pool_row: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    #: Steps per second, jobs by types (n, p), and accelerators by type (p,).
    speed: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    total: FloatArray = field(default_factory=lambda: np.zeros(0))


def gavel_problem(ledger: Ledger, admitted_at: Mapping[JobId, float]) -> GavelProblem:
    """The ledger as Gavel's policies see it; a deadline moves by what the job waited for its admission."""
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
