"""Sia: chooses one pool and one number of accelerators for each job at every round, by goodput. It ignores job lengths.

    maximise  sum_j w_j sum_c (waiting - A_c) y_c     one configuration c = (pool, count) per job, within the pools

    A_c = (f_c g_c)^power       g_c  goodput of c over that of the job's smallest configuration (>= 1)
    f_c = max(age - restarts q, 0) / (age + q)    for a change of configuration; 1 for none, and while age < q
    q     duration of a restart of the job, seconds

(for a power above 0 the term is waiting - 2 + A_c). A job may grow to `growth` times the most accelerators that it has
run on, so it begins with its smallest gang. The goodput is the rate of the configuration: for a job with an adaptive
batch size, useful samples per second.
"""

from typing import Annotated

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from optimizer.assignment import plan_draft as drafts
from optimizer.assignment.column_assignment import assign_jobs
from optimizer.assignment.multiple_choice_knapsack import solve_knapsack
from optimizer.assignment.plan_draft import (
    ElasticHistory,
    ElasticJobs,
    elastic_jobs_of,
    growth_allowed,
    recall_history,
    restart_factor,
)
from optimizer.decision import Memory, Plan, Quote
from optimizer.policy import Newcomer
from optimizer.problem import BoolArray, FloatArray, Problem

UNIT = "Sia's objective"
MEASURE = drafts.PlanMeasure("configuration choice at prices", UNIT)


def _not_zero(power: float) -> float:
    if power == 0:
        raise ValueError("a power of 0 tells no configuration from another")
    return power


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Sia:
    """Maximises total goodput, each job's normalised by its smallest configuration, with a penalty for restarts.

    Prices and an integer program over the contested jobs find it, within 1e-4 of the optimum. Source: Jayaram
    Subramanya et al., Sia, SOSP 2023.
    """

    power: Annotated[
        float,
        Field(ge=-4, le=1, description="Exponent of the power mean, not 0; lower is fairer."),
        AfterValidator(_not_zero),
    ] = -0.5
    waiting: Annotated[
        float,
        Field(gt=1, le=1000, description="Penalty for a job without accelerators, relative to its smallest gang."),
    ] = 1.1
    growth: Annotated[
        float,
        Field(
            ge=1,
            description="Limit of growth: a job gets at most this multiple of the most accelerators it has run on.",
        ),
    ] = 2.0
    restarts: Annotated[
        bool,
        Field(
            description="True: discount a change of configuration by the restarts that a job has had. False: "
            "changes are free."
        ),
    ] = True
    #: Every round is decided from scratch, so running jobs may be resized.
    moves: Annotated[bool, Field(description="False: a running job is never moved or resized.")] = True

    def decide(self, problem: Problem, memory: Memory) -> tuple[Plan, Memory]:
        """Returns the plan, and the memory: each job's largest gang so far, its number of starts, and its last
        configuration.
        """
        facts = elastic_jobs_of(problem)
        history, memory = recall_history(problem, facts, memory)
        allowed = growth_allowed(problem, facts, history, self.growth)
        value = self._values(problem, facts, history, allowed)
        draft = drafts.begin_plan(problem)
        drafts.count_fixed(draft, value)
        assign_jobs(problem, value, draft, solve_knapsack)
        return drafts.finish_plan(problem, value, facts.size, draft, MEASURE), memory

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Returns what each configuration would add (c,); 0 for all but the smallest gangs, because a job begins with
        one.
        """
        speed = newcomer.steps_per_s
        usable = (speed > 0) & (newcomer.count <= newcomer.capacity[newcomer.pool])
        if not usable.any():
            return np.zeros(len(speed))
        least = usable & (newcomer.count <= newcomer.count[usable].min())
        gain = np.zeros(len(speed))
        gain[least] = self._gain(speed[least] / speed[usable].min())
        return newcomer.weight * np.maximum(gain, 0.0)

    def _values(self, problem: Problem, facts: ElasticJobs, history: ElasticHistory, allowed: BoolArray) -> FloatArray:
        """Returns what every column adds (c,); 0 where it may not be chosen."""
        columns, jobs = problem.columns, problem.jobs
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
