"""Policies that choose one pool and one number of accelerators for each job at every round, by goodput.

The goodput of a configuration is its rate: for a job with an adaptive batch size, useful samples per second. Prices and
an integer program over the contested jobs find the choice (`optimizer.assignment.multiple_choice_knapsack`).
"""

from abc import ABC, abstractmethod
from functools import partial
from typing import Annotated, ClassVar

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from optimizer.assignment import plan_draft as drafts
from optimizer.assignment.column_assignment import assign_jobs
from optimizer.assignment.multiple_choice_knapsack import KNAPSACK_TOLERANCE, solve_knapsack
from optimizer.assignment.plan_draft import (
    ElasticHistory,
    ElasticJobs,
    elastic_jobs_of,
    growth_allowed,
    recall_history,
    restart_factor,
)
from optimizer.decision import Memory, Plan, Quote
from optimizer.policy import GrowthLimit, MovesJobs, Newcomer
from optimizer.problem import FloatArray, IntArray, Problem


class _ChoosesByGoodput(ABC):
    """One configuration for each job at every round, by what each adds at its goodput."""

    _measure: ClassVar[drafts.PlanMeasure]
    #: Relative gap to the bound at which the choice ends.
    _tolerance: ClassVar[float]

    def decide(self, problem: Problem, memory: Memory) -> tuple[Plan, Memory]:
        """Returns the plan, and the memory: each job's largest gang so far, its number of starts, and its last
        configuration.
        """
        facts = elastic_jobs_of(problem)
        history, memory = recall_history(problem, facts, memory)
        value = self._values(problem, facts, history)
        draft = drafts.begin_plan(problem)
        drafts.count_fixed(draft, value)
        assign_jobs(problem, value, draft, partial(solve_knapsack, tolerance=self._tolerance))
        return drafts.finish_plan(problem, value, draft, self._measure), memory

    @abstractmethod
    def _values(self, problem: Problem, facts: ElasticJobs, history: ElasticHistory) -> FloatArray:
        """Returns what every column adds (c,); 0 where it may not be chosen."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Pollux(_ChoosesByGoodput):
    """Maximises a power mean of the jobs' goodputs, each relative to that on a fair share of the fleet.

        maximise  sum_j w_j sum_c (waiting^p - (waiting + f_c s_c)^p) y_c   one configuration c = (pool, count) a job

        s_c   goodput of c over that of a fair share: accelerators / jobs of each pool, averaged by the pools' sizes
        f_c   max(age - restarts q, 0) / (age + q) for a running job's change of configuration, else 1; q: a restart, s
        p     the exponent of the mean, below 0

    The published artifact maximises this fitness by an unseeded genetic algorithm over machines, for one accelerator
    type. This policy maximises the same fitness by prices and an integer program over the contested jobs: it is
    deterministic, supports several types, and proves a gap to the optimum. The scheduler chooses the machines.

    Source: Qiao et al., Pollux, OSDI 2021, the fitness; the search is ours.
    """

    _measure: ClassVar[drafts.PlanMeasure] = drafts.PlanMeasure(
        "Pollux's fitness, by choice at prices", "Pollux's fitness"
    )
    #: Serving any job at all is most of the fitness: to tell the rest apart takes more digits.
    _tolerance: ClassVar[float] = 1e-6

    power: Annotated[float, Field(ge=-4, lt=0, description="Exponent of the power mean; lower is fairer.")] = -1.0
    waiting: Annotated[float, Field(gt=0, le=1, description="Speedup credited to a job without accelerators.")] = 0.004
    growth: GrowthLimit = 2.0
    #: Every round is decided from scratch, so running jobs may be resized.
    moves: MovesJobs = True

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Returns what each smallest gang would add (c,), with its own speed as the fair one; 0 for larger gangs, as a
        job begins small.
        """
        least = newcomer.smallest
        if not least.any():
            return np.zeros(len(least))
        speedup = newcomer.steps_per_s / newcomer.steps_per_s[least].mean()
        return np.where(least, newcomer.weight * self._gain(speedup), 0.0)

    def _values(self, problem: Problem, facts: ElasticJobs, history: ElasticHistory) -> FloatArray:
        columns = problem.columns
        fair = _fair_rates(problem, facts)
        speedup = columns.steps_per_s / fair[columns.job] * restart_factor(problem, facts, history)
        allowed = growth_allowed(problem, facts, history, self.growth)
        return np.where(allowed, problem.jobs.weight[columns.job] * self._gain(speedup), 0.0)

    def _gain(self, speedup: FloatArray) -> FloatArray:
        gain: FloatArray = self.waiting**self.power - (self.waiting + speedup) ** self.power
        return gain


def _fair_rates(problem: Problem, facts: ElasticJobs) -> FloatArray:
    """Returns the goodput of each job with its fair part of every pool (accelerators / jobs, at least its smallest
    gang), averaged by pool size (n,).
    """
    columns, pools, n = problem.columns, problem.pools, len(problem.jobs)
    usable = np.flatnonzero(facts.usable)
    part = np.ceil(pools.capacity.sum() / max(n, 1))
    place = columns.job[usable] * max(len(pools), 1) + facts.pool[usable]
    chosen = usable[_largest_within(place, facts.size[usable], float(part))]
    rate, weight = np.zeros(n), np.zeros(n)
    np.add.at(rate, columns.job[chosen], columns.steps_per_s[chosen] * pools.capacity[facts.pool[chosen]])
    np.add.at(weight, columns.job[chosen], pools.capacity[facts.pool[chosen]])
    return np.divide(rate, weight, out=np.ones(n), where=weight > 0)


def _largest_within(place: IntArray, size: FloatArray, most: float) -> IntArray:
    """Returns, for each place, the entry with the largest size up to `most`, else the one with the smallest size."""
    rank = np.where(size <= most, -size, size + most)
    order = np.lexsort((rank, place))
    return order[np.unique(place[order], return_index=True)[1]]


def _not_zero(power: float) -> float:
    if power == 0:
        raise ValueError("a power of 0 tells no configuration from another")
    return power


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Sia(_ChoosesByGoodput):
    """Maximises total goodput, each job's normalised by its smallest configuration, with a penalty for restarts.

        maximise  sum_j w_j sum_c (waiting - A_c) y_c     one configuration c = (pool, count) per job, within the pools

        A_c = (f_c g_c)^power       g_c  goodput of c over that of the job's smallest configuration (>= 1)
        f_c = max(age - restarts q, 0) / (age + q)    for a change of configuration; 1 for none, and while age < q
        q     duration of a restart of the job, seconds

    (for a power above 0 the term is waiting - 2 + A_c). A job may grow to `growth` times the most accelerators that it
    has run on, so it begins with its smallest gang. Lengths of jobs are ignored. Prices and an integer program over the
    contested jobs find the choice, within 1e-4 of the optimum.

    Source: Jayaram Subramanya et al., Sia, SOSP 2023.
    """

    _measure: ClassVar[drafts.PlanMeasure] = drafts.PlanMeasure("configuration choice at prices", "Sia's objective")
    _tolerance: ClassVar[float] = KNAPSACK_TOLERANCE

    power: Annotated[
        float,
        Field(ge=-4, le=1, description="Exponent of the power mean, not 0; lower is fairer."),
        AfterValidator(_not_zero),
    ] = -0.5
    waiting: Annotated[
        float,
        Field(gt=1, le=1000, description="Penalty for a job without accelerators, relative to its smallest gang."),
    ] = 1.1
    growth: GrowthLimit = 2.0
    restarts: Annotated[
        bool,
        Field(
            description="True: discount a change of configuration by the restarts that a job has had. False: "
            "changes are free."
        ),
    ] = True
    #: Every round is decided from scratch, so running jobs may be resized.
    moves: MovesJobs = True

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Returns what each configuration would add (c,); 0 for all but the smallest gangs, because a job begins with
        one.
        """
        speed, least = newcomer.steps_per_s, newcomer.smallest
        gain = np.zeros(len(speed))
        gain[least] = self._gain(speed[least] / speed[newcomer.usable].min(initial=np.inf))
        return newcomer.weight * np.maximum(gain, 0.0)

    def _values(self, problem: Problem, facts: ElasticJobs, history: ElasticHistory) -> FloatArray:
        columns, jobs = problem.columns, problem.jobs
        allowed = growth_allowed(problem, facts, history, self.growth)
        smallest = np.full(len(jobs), np.inf)
        np.minimum.at(smallest, columns.job[facts.usable], columns.steps_per_s[facts.usable])
        goodput = columns.steps_per_s[allowed] / smallest[columns.job[allowed]]
        if self.restarts:
            goodput = goodput * restart_factor(problem, facts, history)[allowed]
        value = np.zeros(len(columns))
        value[allowed] = np.maximum(jobs.weight[columns.job[allowed]] * self._gain(goodput), 0.0)
        return value

    def _gain(self, goodput: FloatArray) -> FloatArray:
        """Returns the value of a goodput: waiting - A, at least -1000 where a restart leaves a goodput of 0."""
        powered = np.maximum(goodput, 1e-6) ** self.power
        gain: FloatArray = np.maximum(self.waiting - 1.0 + np.sign(self.power) * (powered - 1.0), -1000.0)
        return gain
