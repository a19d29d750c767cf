"""Base classes for a policy of one's own in a file: an order, shares, or a plan, with little to write.

    from walras.lab import Order

    class ShortestGang(Order):
        def key(self, jobs):
            return jobs.gang

A subclass states its parameters as annotated fields with defaults, as a dataclass does. The base class fills in the
rest of the protocols of `optimizer.policy`, checks every answer, and says how far shares are from a bound.
"""

import inspect
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field
from functools import partial
from pathlib import PurePath
from typing import Any, ClassVar

import numpy as np
from pydantic.dataclasses import dataclass as checked_dataclass

from optimizer.decision import Memory, Plan, Quote, Shares
from optimizer.policy import Newcomer, OrderFacts
from optimizer.problem import BoolArray, FloatArray, IntArray, Jobs, Problem
from walras.errors import ConfigError

#: The part by which shares may exceed a pool, or a job's time: sums of rounded numbers do.
_ROUNDING = 1e-6


def _fill(kind: type[Any]) -> None:
    """Makes the class a dataclass whose fields are checked, unless it is one already."""
    if "__dataclass_fields__" not in vars(kind):
        checked_dataclass(frozen=True, config={"extra": "forbid", "arbitrary_types_allowed": True})(kind)
        # Those of `_Own` serve; a class that its author makes a frozen dataclass once more may not have any yet.
        del kind.__setattr__, kind.__delattr__


class _Own:
    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if not vars(cls).get("_is_base", False):
            _fill(cls)


@dataclass(frozen=True)
class OwnOrder(_Own, ABC):
    """Jobs are served one after another by a rank. Write `key`."""

    _is_base: ClassVar[bool] = True
    #: Whether a running job may be stopped for one that ranks before it.
    preemptive: bool = True
    #: Whether configurations are tried fastest first; if not, in the order of the pools.
    aware: bool = True
    #: Whether the first job that does not fit holds up all behind it.
    strict: bool = False

    @abstractmethod
    def key(self, jobs: OrderFacts) -> Any:
        """Returns what jobs are sorted by, smallest first: an array (n,), or a tuple of them, the first deciding.

        `jobs` has arrays (n,): submitted_at, priority_class, gang, attained_s, served_s, waited_s, remaining_s (inf:
        unknown), deadline_at (inf: none); times in seconds.
        """

    def __init_subclass__(cls, **more: Any) -> None:
        written = vars(cls).get("key")
        if written is not None:

            def key(self: Any, jobs: OrderFacts) -> tuple[FloatArray, ...]:
                found = asked(self, partial(written, self), jobs)
                return tuple(found) if isinstance(found, tuple | list) else (found,)

            key.__doc__ = written.__doc__
            cls.key = key  # type: ignore[method-assign]
        super().__init_subclass__(**more)


@dataclass(frozen=True, slots=True, eq=False)
class ShareMarket:
    """The input of a share decision: n jobs, p pools. Each job's fastest configuration on each single pool counts."""

    jobs: Jobs
    pool: tuple[str, ...]
    accelerator: tuple[str, ...]
    #: Accelerators of each pool (p,), and the price of one in USD per hour (p,).
    capacity: FloatArray
    usd_per_h: FloatArray
    #: Steps per second of the whole gang; 0 where the job cannot run (n, p).
    steps_per_s: FloatArray
    #: Accelerators that the job takes there (n, p); 0 where it cannot run.
    accelerators: FloatArray
    #: The row of each cell in the problem's columns (n, p); -1 where there is none.
    column: IntArray = field(repr=False)


def share_market(problem: Problem) -> ShareMarket:
    """Returns the problem as a table of jobs and pools. Configurations over several pools have no cell."""
    columns, pools = problem.columns, problem.pools
    n, p = len(problem.jobs), len(pools)
    uses = np.bincount(columns.use_column, minlength=len(columns))
    speed, taken = np.zeros((n, p)), np.zeros((n, p))
    column = np.full((n, p), -1, dtype=np.int64)
    for c, pool, count in zip(columns.use_column, columns.use_pool, columns.use_count, strict=True):
        job, pace = columns.job[c], columns.steps_per_s[c]
        if uses[c] == 1 and count <= pools.capacity[pool] and pace > speed[job, pool]:
            speed[job, pool], taken[job, pool], column[job, pool] = pace, count, c
    return ShareMarket(
        problem.jobs, pools.pool_id, pools.accelerator, pools.capacity, pools.usd_per_h, speed, taken, column
    )


@dataclass(frozen=True)
class OwnShares(_Own, ABC):
    """Every job gets a part of the time on each pool. Write `shares`."""

    _is_base: ClassVar[bool] = True

    @abstractmethod
    def shares(self, market: ShareMarket) -> FloatArray:
        """Returns the fractions of time (n, p): at least 0, at most 1 for each job, and no pool beyond its capacity."""

    def decide(self, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
        """Returns the shares, with the level of max-min fairness as what they are set against.

        Raises ConfigError for an answer that is no shares, and for a method that fails.
        """
        from optimizer.policies.fairness import unpriced_answer

        def columns(utility: object) -> FloatArray:
            market = share_market(problem)
            return _as_columns(problem, market, asked(self, self.shares, market))

        return unpriced_answer(problem, "own shares", columns), None

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Returns the speed of each configuration, relative to the fastest: a newcomer takes the best free one (c,)."""
        return newcomer.relative_speeds


def _as_columns(problem: Problem, market: ShareMarket, answer: Any) -> FloatArray:
    """Returns the answer per column (c,). Raises ConfigError saying what is wrong with it."""
    try:
        return _checked_shares(problem, market, np.asarray(answer, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"shares() is no answer: {error}", field="policy") from None


def _checked_shares(problem: Problem, market: ShareMarket, answer: FloatArray) -> FloatArray:
    wanted = market.steps_per_s.shape
    if answer.shape != wanted:
        raise ValueError(f"shares() answers an array of shape {wanted} (jobs, pools), not {answer.shape}")
    if not np.isfinite(answer).all() or (answer < 0).any():
        raise ValueError("shares() answers fractions of time: finite and not negative")
    stray = (answer > 0) & (market.column < 0)
    if stray.any():
        job, pool = np.argwhere(stray)[0]
        raise ValueError(f"job {market.jobs.job_id[job]} cannot run on {market.pool[pool]}: its steps_per_s there is 0")
    time = answer.sum(axis=1)
    if (time > 1 + _ROUNDING).any():
        row = int(time.argmax())
        raise ValueError(f"job {market.jobs.job_id[row]} gets {time[row]:.4g} of its time; at most 1")
    used = (answer * market.accelerators).sum(axis=0)
    over = used > market.capacity * (1 + _ROUNDING) + _ROUNDING
    if over.any():
        pool = int(np.argmax(used - market.capacity))
        raise ValueError(f"{market.pool[pool]} has {market.capacity[pool]:g} accelerators; {used[pool]:.4g} are given")
    x = np.zeros(len(problem.columns))
    cells = market.column >= 0
    x[market.column[cells]] = np.minimum(answer[cells], 1.0)
    return x


@dataclass(frozen=True, slots=True, eq=False)
class PlanState:
    """The input of a plan: n jobs, c configurations, p pools."""

    problem: Problem
    jobs: Jobs
    pool: tuple[str, ...]
    #: Accelerators of each pool that are not held by jobs that must stay (p,).
    free: FloatArray
    #: Row of the job of each configuration, its speed in steps per second, and whether the job runs in it now (c,).
    job: IntArray
    steps_per_s: FloatArray
    running: BoolArray
    #: Accelerators that each configuration takes of each pool (c, p).
    use: FloatArray
    #: The row of the configuration of each job that cannot be stopped (n,); -1 for a job that is to be planned.
    fixed: IntArray


@dataclass(frozen=True)
class OwnPlan(_Own, ABC):
    """Says at every event which configuration each job has from now on. Write `plan`."""

    _is_base: ClassVar[bool] = True
    #: Whether running jobs may be moved; if not, a job stays where it is until its end.
    moves: bool = True

    @abstractmethod
    def plan(self, state: PlanState) -> IntArray:
        """Returns the row of the configuration of each job, -1: it waits (n,). Places are given, and waits end, in the
        order of submission.
        """

    def decide(self, problem: Problem, memory: Memory) -> tuple[Plan, Memory]:
        """Returns the plan. Raises ConfigError for one that does not fit, and for a method that fails."""
        from optimizer.assignment.plan_draft import begin_plan

        draft = begin_plan(problem)
        columns, n, p = problem.columns, len(problem.jobs), len(problem.pools)
        use = np.zeros((len(columns), p))
        np.add.at(use, (columns.use_column, columns.use_pool), columns.use_count)
        fixed = draft.column.copy()
        state = PlanState(
            problem, problem.jobs, problem.pools.pool_id, draft.free.copy(), columns.job, columns.steps_per_s,
            columns.running, use, fixed.copy(),
        )  # fmt: skip
        chosen = np.asarray(asked(self, self.plan, state))
        if chosen.shape != (n,) or chosen.dtype.kind not in "iu":
            raise ConfigError(f"plan() answers {n} whole numbers, not {chosen.dtype} of shape {chosen.shape}")
        chosen = np.where(fixed >= 0, fixed, chosen).astype(np.int64)
        placed = np.flatnonzero((chosen >= 0) & (fixed < 0))
        if ((chosen < -1) | (chosen >= len(columns))).any() or (columns.job[chosen[placed]] != placed).any():
            raise ConfigError("plan() answers rows of configurations, each of its own job, or -1")
        over = use[chosen[placed]].sum(axis=0) - draft.free
        if (over > _ROUNDING).any():
            pool = int(over.argmax())
            raise ConfigError(f"the plan takes {over[pool]:g} accelerators of {problem.pools.pool_id[pool]} too many")
        rows = np.lexsort((problem.jobs.job_id, problem.jobs.submitted_at, chosen < 0))
        return Plan(chosen, rows, Quote.without_prices(p), np.zeros(n), no_yardstick="the policy is one's own"), None

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Returns the speed of each configuration, relative to the fastest one (c,)."""
        return newcomer.relative_speeds


def asked(policy: object, method: Callable[..., Any], facts: object) -> Any:
    """Returns what a method answers. Raises ConfigError naming it, and the line in its own file, for whatever it
    raises.
    """
    try:
        return method(facts)
    except Exception as error:  # code of others: it may raise anything
        file = inspect.getfile(type(policy))
        lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == file]
        where = f" at {PurePath(file).name}:{lines[-1]}" if lines else ""
        name = getattr(method, "func", method).__name__
        told = f"{type(policy).__name__}.{name}() failed{where}: {type(error).__name__}: {error}"
        raise ConfigError(told, field="policy") from error
