"""Shockwave-style: Nash welfare over the rounds to come, weighted by how late each job is predicted to be.

    maximise  sum_j w_j rho_j^k log(1 + g_j / (d_j + L))      g_j  progress in the window, seconds at its best speed
    s.t.      one configuration and n_j of T rounds a job,  accelerators x rounds of every pool not exceeded

    g_j   = min(left, n_j L r_c - [restart if c is a change])    L  a round,  r_c  rate of c over the best
    rho_j = (age + left D) / (total D)                           predicted finish-time fairness
    D     = max(1, accelerators that all jobs ask for / accelerators)    contention

d_j is what is done. The window's rounds are alike, so how many each job gets is all there is to decide; it is decided
by prices and an integer program over the contested jobs (`optimizer.elastic.choice`), not by a commercial solver. This
round goes to those who are to have most rounds, among equals to whoever runs; what is left goes to whoever gains most.

There is no term for the makespan, and batch sizes are taken to stay: of Shockwave this is the market, not the predictor
of regimes. Lengths that nobody told are guessed by the Gittins rank.
"""

from typing import Annotated

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from optimizer.arrays.owners import sum_by
from optimizer.decision import Memory, Plan, Quote
from optimizer.elastic.facts import Facts, facts_of
from optimizer.elastic.growing import gain_in, grow
from optimizer.elastic.window import place_round, share_out
from optimizer.plans import draft as drafts
from optimizer.policy import Newcomer
from optimizer.problem import FloatArray, Problem

MEASURE = drafts.Measure(
    "Nash welfare of the window, accelerators times rounds", "weighted logarithm of progress", "logarithm a round"
)


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Shockwave:
    """The largest product of the jobs' progress over the next rounds, jobs that are predicted to be late first.

    Source: the market of Zheng et al., Shockwave, NSDI 2023, with an open solver and without its regime predictor.
    """

    round_s: Annotated[float, Field(gt=0, allow_inf_nan=False, description="Length of a round.")] = 120.0
    rounds: Annotated[int, Field(ge=1, le=200, description="Rounds in the window.")] = 20
    lateness: Annotated[
        float, Field(ge=0, le=10, description="Exponent of the predicted finish-time fairness in a job's weight.")
    ] = 3.0
    hide_lengths: Annotated[
        bool, Field(description="True: what jobs say of their length is not believed; only what they have had counts.")
    ] = False
    #: Every round is decided anew.
    moves: Annotated[bool, Field(description="False: whoever runs stays as it is to its end.")] = True

    def decide(self, problem: Problem, memory: Memory) -> tuple[Plan, Memory]:
        """The plan. Remembers nothing: the window moves on."""
        facts = facts_of(problem)
        value, once = self._values(problem, facts)
        draft = drafts.begin(problem)
        classes = problem.jobs.priority_class
        for priority_class in np.unique(classes)[::-1].tolist():
            competing = (classes == priority_class) & ~facts.pinned
            shares = share_out(problem, value, draft, competing)
            place_round(problem, facts, draft, shares)
            prices = draft.prices.copy()
            grow(problem, facts, draft, gain_in(problem, once), competing)
            draft.prices = prices  # those of the window
        return drafts.finish(problem, value[:, -1] / self.rounds, facts.size, draft, MEASURE), None

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """What a round in each configuration would add, at the weight of a job that is not late (c,)."""
        speed = newcomer.steps_per_s
        usable = (speed > 0) & (newcomer.count <= newcomer.capacity[newcomer.pool])
        if not usable.any():
            return np.zeros(len(speed))
        gained_s = np.where(usable, speed, 0.0) / speed[usable].max() * self.rounds * self.round_s
        value: FloatArray = newcomer.weight * np.log1p(gained_s / self.round_s) / self.rounds
        return value

    def _values(self, problem: Problem, facts: Facts) -> tuple[FloatArray, FloatArray]:
        """What 1, 2, ... rounds of every column add (c, T), and one round of a job that does not end in it (c,).

        0 where a column cannot be used.
        """
        from optimizer.plans.lengths import lengths_of  # compiled code: only where something is decided
        from optimizer.plans.worth import best_rates_of

        columns, jobs = problem.columns, problem.jobs
        best_rate = best_rates_of(problem)
        known = lengths_of(problem, best_rate, self.hide_lengths)
        usable, job = facts.usable, columns.job[facts.usable]
        asked = sum_by(np.zeros(len(jobs), dtype=np.int64), jobs.gang, 1)[0]
        contention = max(1.0, float(asked) / max(float(problem.pools.capacity.sum()), 1.0))
        late = (facts.age_s + known.left_s * contention) / (known.total_s * contention)
        weight = jobs.weight * np.clip(late, 0.01, 100.0) ** self.lateness
        time_s = self.round_s * np.arange(1, self.rounds + 1)
        start_s = np.where(columns.running[usable], 0.0, facts.restart_s[job])
        running_s = np.maximum(time_s[None, :] - start_s[:, None], 0.0)
        gained_s = running_s * (columns.steps_per_s[usable] / best_rate[job])[:, None]
        done_s = np.maximum(known.total_s - known.left_s, 0.0)
        base_s = done_s[job, None] + self.round_s
        value, once = np.zeros((len(columns), self.rounds)), np.zeros(len(columns))
        value[usable] = weight[job, None] * np.log1p(np.minimum(gained_s, known.left_s[job, None]) / base_s)
        once[usable] = weight[job] * np.log1p(gained_s[:, 0] / base_s[:, 0])
        return value, once
