"""Optimus: gives accelerators one by one to the job whose remaining time each shortens most.

    t_c    seconds until the job would end in configuration c = (pool, count), plus a restart if c is a change
    first  every job, in the order of submission, gets its smallest gang in the pool where it ends earliest, if it fits
    then   repeatedly the job with the largest  w (t_c - t_c') / (added accelerators)  in its pool, while one gains

The objective is the number of seconds saved compared with waiting, which counts as twice the time in the slowest
configuration. The bound comes from prices of the pools (weak duality). The policy estimates unknown lengths by the
Gittins rank.
"""

import numpy as np
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from optimizer.assignment import plan_draft as drafts
from optimizer.assignment.column_assignment import (
    assignment_problem_of,
    fitting_columns,
    gain_by_value,
    grow_greedily,
    place_in_column,
)
from optimizer.assignment.multiple_choice_knapsack import search_prices
from optimizer.assignment.plan_draft import ElasticJobs, elastic_jobs_of
from optimizer.decision import Memory, Plan, Quote
from optimizer.policy import HidesLengths, MovesJobs, Newcomer
from optimizer.problem import FloatArray, Problem

MEASURE = drafts.PlanMeasure("seconds saved against waiting, at prices", "s")


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Optimus:
    """Gives accelerators one by one to the job whose remaining time they shorten most.

    Source: Peng et al., Optimus, EuroSys 2018.
    """

    hide_lengths: HidesLengths = False
    #: Every round is decided from scratch, so running jobs may be resized.
    moves: MovesJobs = True

    def decide(self, problem: Problem, memory: Memory) -> tuple[Plan, Memory]:
        """Returns the plan. The memory is empty."""
        facts = elastic_jobs_of(problem)
        value = self._saved_s(problem, facts)
        draft = drafts.begin_plan(problem)
        free, competing = draft.free.copy(), ~facts.pinned
        classes = problem.jobs.priority_class
        for priority_class in np.unique(classes)[::-1].tolist():
            ours = classes == priority_class
            for row in np.lexsort((problem.jobs.job_id, problem.jobs.submitted_at)).tolist():
                if ours[row] and competing[row]:
                    _begin(problem, facts, value, draft, row)
            grow_greedily(problem, facts, draft, gain_by_value(problem, value), ours)
        chosen = draft.column[competing & (draft.column >= 0)]
        draft.reached = float(value[chosen].sum())
        choice, _ = assignment_problem_of(problem, value, competing, free)
        draft.prices, draft.bound = search_prices(choice)
        fixed = float(value[facts.running[facts.pinned]].sum())
        draft.reached, draft.bound = draft.reached + fixed, draft.bound + fixed
        return drafts.finish_plan(problem, value, draft, MEASURE), None

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Returns the seconds that each configuration saves against waiting (c,); 0 for a job of unknown length."""
        speed = newcomer.steps_per_s
        usable = newcomer.usable
        steps = newcomer.remaining_steps
        if not usable.any() or not np.isfinite(steps):
            return np.zeros(len(speed))
        ends_s = steps / np.where(usable, speed, 1.0) + newcomer.restart_s
        return np.where(usable, newcomer.weight * (2.0 * ends_s[usable].max() - ends_s), 0.0)

    def _saved_s(self, problem: Problem, facts: ElasticJobs) -> FloatArray:
        """Returns the seconds that each column saves, times the job's weight (c,); 0 where it cannot be used."""
        from optimizer.assignment.remaining_time import (
            best_rates_of,
            job_lengths_of,  # compiled code: loaded only where something is decided
        )

        columns, jobs = problem.columns, problem.jobs
        best_rate = best_rates_of(problem)
        left_s = job_lengths_of(problem, best_rate, self.hide_lengths).left_s
        usable, job = facts.usable, columns.job[facts.usable]
        ends_s = np.maximum(left_s[job] * best_rate[job] / columns.steps_per_s[usable], 1e-3)
        ends_s += np.where(columns.running[usable], 0.0, facts.restart_s[job])
        slowest = np.zeros(len(jobs))
        np.maximum.at(slowest, job, ends_s)
        saved = np.zeros(len(columns))
        saved[usable] = jobs.weight[job] * (2.0 * slowest[job] - ends_s)
        return saved


def _begin(problem: Problem, facts: ElasticJobs, value: FloatArray, draft: drafts.PlanDraft, row: int) -> None:
    """Gives the job its smallest gang, in the pool with room in which it ends soonest."""
    ours = np.flatnonzero((problem.columns.job == row) & facts.usable)
    ours = ours[fitting_columns(problem, draft.free)[ours]]
    if len(ours):
        least = ours[facts.size[ours] <= facts.size[ours].min()]
        place_in_column(problem, draft, int(least[np.argmax(value[least])]))
