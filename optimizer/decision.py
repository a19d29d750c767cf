"""What a policy answers: shares of time with prices and a certificate, an order, or a plan.

A policy may add configurations to those of the problem, gangs over several pools and forks (`Shares.added`,
`Plan.added`). It counts them after the problem's own. Documents, the checker and the scheduler first put them into the
problem, with `with_added`: from there on they are configurations like all others.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from optimizer.problem import BoolArray, Columns, FloatArray, IntArray, Problem

if TYPE_CHECKING:
    from optimizer.assignment.assignment_problem import Contest

#: A policy's memory between decisions: a small JSON value, owned and journaled by the scheduler. None starts afresh.
Memory = Any


class Status(StrEnum):
    """How a solve ended. Running out of work is an outcome, not an error."""

    OPTIMAL = "optimal"
    WORK_LIMIT = "work_limit"
    INFEASIBLE = "infeasible"
    FAILED = "failed"
    #: Nothing to decide: no job has a configuration that fits the fleet.
    EMPTY = "empty"
    #: Shares by a formula that seeks no optimum; the gap is the distance to the yardstick named in `path`.
    DEFINED = "defined"


@dataclass(frozen=True, slots=True, eq=False)
class Certificate:
    """Proof of quality: how good the shares are, and how good any shares could be."""

    status: Status
    objective: float
    #: A valid bound on the best possible objective (from below for a minimum, from above for a maximum).
    bound: float
    #: |bound - objective| / max(1e-12, |bound|).
    gap: float
    #: Largest violation of any constraint, in that constraint's own unit divided by its right-hand side (or 1).
    violation: float
    #: Which path produced it: "highs", "classes+cvxpy/clarabel", "price/numba", ...; "cvxpy" is said only where cvxpy
    #: stated the program.
    path: str
    maximise: bool = True


@dataclass(frozen=True, slots=True)
class EntityPrice:
    """What the rights of a project or user are worth at a solve, in the unit of the prices of pools."""

    name: str
    #: What an accelerator costs its jobs besides the pool's price, since its limits bind (their sum), >= 0.
    limit: float = 0.0
    #: What an accelerator costs its jobs less, since its guarantee binds: what others would pay for it, >= 0.
    guarantee: float = 0.0


#: The unit of a quote without prices.
NO_PRICES = "nothing has a price"


@dataclass(frozen=True, slots=True, eq=False)
class Quote:
    """Prices by which arriving jobs are admitted until the next solve."""

    #: Price of one accelerator of each pool (p,), >= 0, in `unit` per accelerator held all the time.
    prices: FloatArray
    unit: str
    #: Worth, in `unit`, of one unit of a newcomer's utility gradient: the mean dual of the jobs that compete.
    exchange: float
    #: Those whose limit or guarantee binds, by name.
    entities: tuple[EntityPrice, ...] = ()

    @classmethod
    def without_prices(cls, pools: int) -> "Quote":
        """Returns the quote of a policy that prices nothing, for this number of pools."""
        return cls(np.zeros(pools), NO_PRICES, 1.0)


class StageKind(StrEnum):
    """What a stage maximises."""

    #: The level z with u >= min(target(z), cap) for the active jobs, while the others keep their floors.
    LEVEL = "level"
    #: A sum over jobs of what their shares are worth, while every job keeps its floor.
    SUM = "sum"
    #: The weighted sum of the logarithms of the utilities.
    LOG = "log"


@dataclass(frozen=True, slots=True, eq=False)
class SolveStage:
    """One program of a solve in stages, with the prices that prove its optimum.

    Any non-negative prices give a valid bound (each job's best response to them is a small program of its own), so a
    checker need not trust them. Nor need it where jobs are co-located: any prices do that leave no column and no pair
    worth more than it costs (`optimizer.lp.pair_program`). Utilities are those in which the policy
    states its targets.
    """

    kind: StageKind
    #: Jobs that the stage raises (n,).
    active: BoolArray
    #: Utility that a job keeps; of a level, 0 for its active jobs (n,).
    floor: FloatArray
    #: Utility at which a level leaves a job alone: its best column without the pools that earlier levels used up (n,).
    cap: FloatArray
    #: Dual values of the pools in units of the stage's objective, per accelerator (p,).
    prices: FloatArray
    objective: float
    bound: float
    #: Where jobs may be packed, and only there, because the pools' prices do not tell which of its two jobs pays for a
    #: pair: what one more unit of utility, and of time, is worth to each job, in the objective's unit, >= 0 (n,), (n,).
    multiplier: FloatArray = field(default_factory=partial(np.zeros, 0))
    time: FloatArray = field(default_factory=partial(np.zeros, 0))


@dataclass(frozen=True, slots=True, eq=False)
class ColocatedJobs:
    """Two jobs on the same accelerators: parallel arrays of their rows, pair (row of `Pairs`) and share of time."""

    #: The job that runs as the pair's first kind, and the one that runs as its second.
    first: IntArray
    second: IntArray
    pair: IntArray
    share: FloatArray

    def __len__(self) -> int:
        return len(self.share)


_NO_ROWS: IntArray = np.zeros(0, dtype=np.int64)
NO_COLOCATED_JOBS = ColocatedJobs(_NO_ROWS, _NO_ROWS, _NO_ROWS, np.zeros(0))


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Fractions of time per column (c,), and why they are good."""

    x: FloatArray
    #: Accelerators that the shares count as rented (p,). What a pool has is capacity - rented now + this.
    rent: FloatArray
    quote: Quote
    #: What each job gains at the quoted prices: value minus price of its best configuration, >= 0 (n,).
    surplus: FloatArray
    certificate: Certificate
    #: The programs solved, in order; empty where shares come from a formula.
    stages: tuple[SolveStage, ...] = ()
    #: Rows of jobs without any configuration that fits the fleet: they get nothing (ascending).
    unplaceable: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    #: Shares of jobs that run two by two, beside those in `x`.
    packed: ColocatedJobs = NO_COLOCATED_JOBS
    #: Rows of jobs whose deadline asks for more than they can be given, or for something that nobody can tell: they
    #: were asked for less (ascending).
    relaxed: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    #: Configurations besides the problem's, as in a plan; `x` counts them after the problem's.
    added: Columns | None = None


@dataclass(frozen=True, slots=True)
class BoundReport:
    """Objective of a decision against a bound that no decision can exceed, in a named measure."""

    name: str
    unit: str
    #: What the decision reaches on this problem, and what none can go below (or, if it is to be large, above).
    objective: float
    bound: float
    #: |objective - bound| / max(1e-12, bound).
    gap: float
    maximise: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """Jobs in the order in which they are to be placed: rows of `Jobs`, most urgent first.

    `preference` ranks the columns of a job against each other (c,): higher first.
    """

    rows: tuple[int, ...]
    preference: FloatArray
    #: None where there is none; then `no_yardstick` says why.
    yardstick: BoundReport | None = None
    no_yardstick: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The configuration of every job from now on, until the next plan."""

    #: Row of `Columns` in which each job is to run, -1: it waits (n,).
    column: IntArray
    #: Rows of `Jobs`, most important first (n,): whoever comes first gets its place first, and of those who wait is
    #: the next to be served.
    rows: IntArray
    #: Prices that explain the plan: a job gets what it would choose at them, as far as whole places allow.
    quote: Quote
    #: What each job gains at the quoted prices: value minus price of its best configuration, >= 0 (n,).
    surplus: FloatArray
    #: None where there is none; then `no_yardstick` says why.
    yardstick: BoundReport | None = None
    no_yardstick: str = ""
    #: Configurations besides the problem's, which the policy made for jobs that take them (`Jobs.mixes`,
    #: `Jobs.fork_max`), with rows of their own; `column` counts them after the problem's (`optimizer.decision`).
    added: Columns | None = None
    #: Rows of jobs on paid machines that they are no reason to keep: whoever pays for these displaces them.
    riders: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    #: The assignments that were decided by prices, one of each priority class, for `usd_certificate`; nobody else reads
    #: them, and they are in no document.
    contests: "tuple[Contest, ...]" = ()
    #: Until when the next plan would differ in no more than `rows` and the yardstick if nothing happened but that time
    #: passed; None: it may differ at once. It is in no document.
    holds_until_at: float | None = None


Decision = Shares | Order | Plan


@dataclass(frozen=True, slots=True, eq=False)
class MultiPoolGangs:
    """m configurations over several pools."""

    #: Row of the job (m,).
    job: IntArray
    steps_per_s: FloatArray
    #: Accelerators of each pool, whole (m, p).
    use: FloatArray

    def __len__(self) -> int:
        return len(self.job)

    @property
    def columns(self) -> Columns:
        """The same as columns in which no job runs yet."""
        column, pool = np.nonzero(self.use > 0)
        running = np.zeros(len(self), dtype=np.bool_)
        return Columns(self.job, self.steps_per_s, column, pool, self.use[column, pool], running)


def with_added(problem: Problem, decision: Decision) -> tuple[Problem, Decision]:
    """The problem with the configurations that the answer added, and the answer in its terms."""
    if isinstance(decision, Order) or decision.added is None:
        return problem, decision
    whole, place = append_columns(problem, decision.added)
    if isinstance(decision, Plan):
        column = np.where(decision.column >= 0, place[decision.column], -1)
        return whole, replace(decision, column=column, added=None)
    x = np.empty(len(place))
    x[place] = decision.x
    return whole, replace(decision, x=x, added=None)


def append_columns(problem: Problem, added: Columns) -> tuple[Problem, IntArray]:
    """The problem with these configurations besides, each behind its job's own.

    And the row there of every configuration, the problem's first, then the added ones.
    """
    known, c = problem.columns, len(problem.columns)
    order = np.argsort(np.concatenate((known.job, added.job)), kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    use_column = place[np.concatenate((known.use_column, c + added.use_column))]
    by_column = np.argsort(use_column, kind="stable")
    columns = Columns(
        job=np.concatenate((known.job, added.job))[order],
        steps_per_s=np.concatenate((known.steps_per_s, added.steps_per_s))[order],
        use_column=use_column[by_column],
        use_pool=np.concatenate((known.use_pool, added.use_pool))[by_column],
        use_count=np.concatenate((known.use_count, added.use_count))[by_column],
        running=np.concatenate((known.running, added.running))[order],
    )
    return replace(problem, columns=columns), place
