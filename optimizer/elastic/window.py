"""Rounds to come, shared out: how many of T alike rounds each job gets, and in which configuration.

A round in a window is worth what it adds for a job that has had the rounds before: values rise with the number of
rounds, ever less. Which rounds they are does not matter to anybody, so the window is one choice of (column, rounds) for
each job, with T times the accelerators of every pool.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.elastic.choice import Choice, Chosen, choose
from optimizer.elastic.facts import Facts
from optimizer.elastic.growing import place
from optimizer.elastic.planning import choice_of, fitting
from optimizer.plans.draft import Draft
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem

#: Values of rounds are predictions: the choice among them is good enough at this distance from its bound.
_TOLERANCE = 1e-3
#: Jobs that compete at first: each has many columns.
_CORE = 12


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """What each job gets of the window (n,)."""

    #: Row of `Columns`, -1: none, and in how many rounds.
    column: IntArray
    rounds: IntArray


def share_out(problem: Problem, value: FloatArray, draft: Draft, competing: BoolArray) -> Shares:
    """Share what is free in every round among the competing jobs.

    Args:
        problem: the jobs and their columns.
        value: of 1, 2, ... T rounds in every column; <= 0: not that (c, T).
        draft: what is free; receives prices per accelerator and round, what was reached, and its bound.
        competing: who takes part (n,).
    """
    n, rounds = len(problem.jobs), value.shape[1]
    base, kept = choice_of(problem, value.max(axis=1, initial=0.0), competing, draft.free)
    found, cell = _choose(base, value[kept], draft.free * rounds)
    column, count = np.full(n, -1, dtype=np.int64), np.zeros(n, dtype=np.int64)
    chosen = cell[found.column[found.column >= 0]]
    columns = kept[chosen // rounds]
    column[problem.columns.job[columns]], count[problem.columns.job[columns]] = columns, chosen % rounds + 1
    draft.reached += found.value
    draft.bound += found.bound
    draft.prices = np.maximum(draft.prices, found.prices)
    return Shares(column, count)


def _choose(base: Choice, value: FloatArray, capacity: FloatArray) -> tuple[Chosen, IntArray]:
    """The choice among (column, rounds), and the cells column x T + rounds - 1 that it is among."""
    rounds = value.shape[1]
    cell = np.flatnonzero(value.ravel() > 0)
    number = np.full(value.size, -1, dtype=np.int64)
    number[cell] = np.arange(len(cell))
    uses = (base.use_column[:, None] * rounds + np.arange(rounds)).ravel()
    count = (base.use_count[:, None] * np.arange(1, rounds + 1)).ravel()
    there = number[uses] >= 0
    expanded = Choice(
        job=base.job[cell // rounds],
        value=value.ravel()[cell],
        use_column=number[uses[there]],
        use_pool=np.repeat(base.use_pool, rounds)[there],
        use_count=count[there],
        capacity=capacity,
    )
    return choose(expanded, _TOLERANCE, _CORE), cell


def place_first(problem: Problem, draft: Draft, rows: IntArray, once: FloatArray) -> None:
    """Give these jobs places before all others, in their order, each where a round adds most (`once`, (c,))."""
    job = problem.columns.job
    for row in rows.tolist():
        able = np.where((job == row) & (once > 0) & fitting(problem, draft.free), once, 0.0)
        if able.max(initial=0.0) > 0:
            place(problem, draft, int(np.argmax(able)))


def place_round(problem: Problem, facts: Facts, draft: Draft, shares: Shares, value: FloatArray) -> None:
    """Who runs now: those whose rounds are worth most per accelerator, among equals whoever runs.

    Args:
        problem: the jobs and their columns.
        facts: where they are.
        draft: receives the places.
        shares: what each job gets of the window.
        value: of 1, 2, ... T rounds in every column (c, T).
    """
    rows = np.flatnonzero(shares.rounds > 0)
    column, rounds = shares.column[rows], shares.rounds[rows]
    density = value[column, rounds - 1] / (rounds * facts.size[column])
    jobs, stays = problem.jobs, column == facts.running[rows]
    order = np.lexsort((jobs.job_id[rows], jobs.submitted_at[rows], ~stays, -density))
    for at in order.tolist():
        if fitting(problem, draft.free)[column[at]]:
            place(problem, draft, int(column[at]))
