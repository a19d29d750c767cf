"""`benchmarks.spot_laws`: laws of spells by age, and the best plan for one of them."""

from random import Random

import numpy as np
import pytest

from benchmarks.spot_laws import FloatArray, LawPolicy, plan_for_law, spell_law
from optimizer.planning.deadline_job import DeadlineJob, UniformProgress, run_deadline_job
from optimizer.planning.slack_policy import held_modes

#: Six hours of work in ten, slots of ten minutes in units of two, restarts of twelve minutes.
_JOB = DeadlineJob(slot=10, work=360, deadline=600, changeover=12, on_demand_price=3.0)


def _trace(law: FloatArray, random: Random, slots: int) -> list[bool]:
    found, age = [True], 1
    for _ in range(slots - 1):
        changes = random.random() < law[int(found[-1]), min(age, law.shape[1]) - 1]
        age = 1 if changes else age + 1
        found.append(found[-1] != changes)
    return found


def test_a_law_counts_changes_by_age_and_leaves_out_the_spell_that_nobody_saw_begin() -> None:
    """Spells of two slots with and three without a machine, over and over: the law knows when they end."""
    law = spell_law([([True] * 2 + [False] * 3) * 200])
    assert law[1, 0] < 0.05 < 0.9 < law[1, 1]
    assert law[0, 1] < 0.05 < 0.9 < law[0, 2]
    # Where nothing was seen the usual chance stands.
    assert law[1, 30] == pytest.approx(0.5, abs=0.01)
    only = spell_law([[True] * 9])
    assert np.allclose(only, 0.5)


def test_the_plan_for_a_law_is_never_late_and_cheaper_than_uniform_progress_on_that_law() -> None:
    """In the mean over 200 markets drawn from the law, and on each of 50 that follow another."""
    random = Random(5)
    ages = np.arange(40)
    law = np.stack((0.05 + 0.3 / (1 + ages), 0.02 + 0.2 / (1 + ages)))
    plan = plan_for_law(_JOB, law, 1.0)
    ours, line = [], []
    for _ in range(200):
        trace = _trace(law, random, _JOB.slots)
        run = run_deadline_job(_JOB, LawPolicy(plan), trace)
        assert run.late == 0
        ours.append(run.cost)
        line.append(run_deadline_job(_JOB, UniformProgress(), trace).cost)
    assert np.mean(ours) < 0.98 * np.mean(line)
    for _ in range(50):
        trace = [random.random() < 0.5 for _ in range(_JOB.slots)]
        assert run_deadline_job(_JOB, LawPolicy(plan), trace).late == 0


def test_what_the_plan_holds_never_takes_the_slack_that_a_start_on_demand_needs() -> None:
    """With no slack beyond a restart, a job with work left that holds nothing starts on demand, whatever the market."""
    plan = plan_for_law(_JOB, np.full((2, 40), 0.1), 1.0)
    nothing = next(place for place, mode in enumerate(held_modes(plan.job)) if mode.pending == 0 and not mode.held)
    slack = plan.job.changeover
    for ticks_left in range(4, plan.job.slots + 1):
        assert set(plan.choices[ticks_left - 1, slack, nothing, 0].flat) == {2}
