"""Shockwave: maximises the Nash welfare over the next rounds, with weights that grow with predicted lateness.

    maximise  sum_j w_j rho_j^k log(1 + g_j / left_j)        g_j  progress in the window, seconds at its best speed
    s.t.      each job one configuration and n_j of T rounds,  within the accelerators x rounds of every pool

    g_j   = min(left, n_j L r_c - [restart if c is a change])    L  length of a round, s,  r_c  rate of c over the best
    rho_j = (age + left D) / (total D)                           predicted finish-time fairness
    D     = max(1, accelerators requested by all jobs / accelerators)    contention

The welfare is a product over the relative progress of the jobs, so jobs that are nearly finished come first, unless
others become late. All rounds of the window are alike, so the decision is the number of rounds of each job. Prices and
an integer program over the contested jobs decide it (`optimizer.assignment.multiple_choice_knapsack`), without a
commercial solver. The jobs with the largest gain per accelerator run in the current round; accelerators that are left
go to the jobs with the largest gain.

The makespan takes precedence over the welfare for critical jobs:

    critical = {j: left_j >= makespan H},    H = max(max_j left_j, accelerator-seconds left of all / accelerators)

H is a lower bound on the time until all jobs end. If a critical job waits for a round, that time grows by a round now
or soon; so critical jobs run first, the longest one before the others.

The policy assumes that batch sizes do not change: it implements the market of Shockwave, without its predictor of
regimes. It estimates unknown lengths by the Gittins rank; such jobs are never critical.
"""

import dataclasses
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from optimizer.assignment import plan_draft as drafts
from optimizer.assignment.column_assignment import (
    gain_by_value,
    grow_greedily,
    place_jobs_first,
    place_window_round,
    share_window,
)
from optimizer.assignment.plan_draft import ElasticJobs, elastic_jobs_of
from optimizer.classes.segments import sum_by
from optimizer.decision import Memory, Plan, Quote
from optimizer.policy import HidesLengths, MovesJobs, Newcomer
from optimizer.problem import FloatArray, IntArray, Problem

if TYPE_CHECKING:
    from optimizer.assignment.remaining_time import JobLengths


MEASURE = drafts.PlanMeasure(
    "Nash welfare of the window, accelerators times rounds", "weighted logarithm of progress", "logarithm a round"
)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Forecast:
    """The best speed of each job, and the seconds of work that it has left (n,)."""

    best_rate: FloatArray
    known: "JobLengths"


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Shockwave:
    """Maximises the product of the jobs' progress over the next rounds, weighted by how late each is predicted to be.

    Source: the market of Zheng et al., Shockwave, NSDI 2023, with an open solver and without its regime predictor.
    """

    round_s: Annotated[float, Field(gt=0, allow_inf_nan=False, description="Length of a round in seconds.")] = 120.0
    rounds: Annotated[int, Field(ge=1, le=200, description="Number of rounds in the planning window.")] = 20
    lateness: Annotated[
        float, Field(ge=0, le=10, description="Exponent of the predicted finish-time fairness in a job's weight.")
    ] = 3.0
    makespan: Annotated[
        float,
        Field(
            ge=0.5,
            allow_inf_nan=False,
            description="Jobs whose remaining time is at least this fraction of the makespan's lower bound "
            "run first; above 1: no job does.",
        ),
    ] = 0.9
    hide_lengths: HidesLengths = False
    #: Every round is decided from scratch, so running jobs may be resized.
    moves: MovesJobs = True

    def decide(self, problem: Problem, memory: Memory) -> tuple[Plan, Memory]:
        """Returns the plan. The memory is empty: the window moves on with each round."""
        facts = elastic_jobs_of(problem)
        forecast = _forecast(problem, self.hide_lengths)
        value, once = self._values(problem, facts, forecast)
        critical = _critical(problem, facts, forecast, self.makespan)
        draft = drafts.begin_plan(problem)
        classes = problem.jobs.priority_class
        for priority_class in np.unique(classes)[::-1].tolist():
            competing = (classes == priority_class) & ~facts.pinned
            place_jobs_first(problem, draft, critical[competing[critical]], once)
            shares = share_window(problem, value, draft, competing & (draft.column < 0))
            place_window_round(problem, facts, draft, shares, value)
            prices = draft.prices.copy()
            grow_greedily(problem, facts, draft, gain_by_value(problem, once), competing)
            draft.prices = prices  # The quoted prices are those of the window.
        return drafts.finish_plan(problem, value[:, -1] / self.rounds, draft, MEASURE), None

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Returns what one round of a window in each configuration would add (c,), at the weight of a job that is not
        late.
        """
        speed = newcomer.steps_per_s
        usable = newcomer.usable
        if not usable.any():
            return np.zeros(len(speed))
        window_s, best = self.rounds * self.round_s, float(speed[usable].max())
        left_s = min(newcomer.remaining_steps / best, newcomer.length_s)
        left_s = max(left_s, 1.0) if np.isfinite(left_s) else window_s
        gained_s = np.where(usable, speed, 0.0) / best * window_s
        value: FloatArray = newcomer.weight * np.log1p(np.minimum(gained_s / left_s, 1.0)) / self.rounds
        return value

    def _values(self, problem: Problem, facts: ElasticJobs, forecast: _Forecast) -> tuple[FloatArray, FloatArray]:
        """Returns what 1, 2, ... rounds of every column add (c, T), and what one round adds if the job does not end in
        it (c,).

        Both are 0 where a column cannot be used.
        """
        columns, jobs, known = problem.columns, problem.jobs, forecast.known
        usable, job = facts.usable, columns.job[facts.usable]
        request = sum_by(np.zeros(len(jobs), dtype=np.int64), jobs.gang, 1)[0]
        contention = max(1.0, float(request) / max(float(problem.pools.capacity.sum()), 1.0))
        late = (facts.age_s + known.left_s * contention) / (known.total_s * contention)
        weight = jobs.weight * np.clip(late, 0.01, 100.0) ** self.lateness
        time_s = self.round_s * np.arange(1, self.rounds + 1)
        start_s = np.where(columns.running[usable], 0.0, facts.restart_s[job])
        running_s = np.maximum(time_s[None, :] - start_s[:, None], 0.0)
        gained_s = running_s * (columns.steps_per_s[usable] / forecast.best_rate[job])[:, None]
        left_s = np.maximum(known.left_s, 1.0)[job, None]
        value, once = np.zeros((len(columns), self.rounds)), np.zeros(len(columns))
        value[usable] = weight[job, None] * np.log1p(np.minimum(gained_s / left_s, 1.0))
        once[usable] = weight[job] * np.log1p(gained_s[:, 0] / left_s[:, 0])
        return value, once


def _forecast(problem: Problem, hide_lengths: bool) -> _Forecast:
    from optimizer.assignment.remaining_time import (
        best_rates_of,
        job_lengths_of,  # compiled code: loaded only where something is decided
    )

    best_rate = best_rates_of(problem)
    return _Forecast(best_rate, job_lengths_of(problem, best_rate, hide_lengths))


def _critical(problem: Problem, facts: ElasticJobs, forecast: _Forecast, part: float) -> IntArray:
    """Returns the rows of the jobs on which the makespan depends, the longest first."""
    columns, known = problem.columns, forecast.known
    left_s = np.where(known.known & (forecast.best_rate > 0) & ~facts.pinned, known.left_s, 0.0)
    least = np.full(len(left_s), np.inf)  # Accelerator-seconds in the most efficient configuration.
    usable, job = facts.usable, columns.job[facts.usable]
    np.minimum.at(least, job, left_s[job] * forecast.best_rate[job] / columns.steps_per_s[usable] * facts.size[usable])
    work = float(least[np.isfinite(least)].sum())
    horizon_s = max(float(left_s.max(initial=0.0)), work / max(float(problem.pools.capacity.sum()), 1.0))
    rows = np.flatnonzero((left_s > 0) & (left_s >= part * horizon_s))
    return rows[np.lexsort((problem.jobs.job_id[rows], -left_s[rows]))]
