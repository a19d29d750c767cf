"""A weight says which of a user's own jobs he means: who states ten for all of them is served as if he stated none."""

import numpy as np
import pytest
from fake_fleet import FakeFleet, cluster, job, remembered_state
from planned_fleet import carried_out, measured

from scheduler.core import events as ev
from scheduler.core.rules import RoundRules
from scheduler.core.state.statement_records import WeightRecords
from walras.job_request import JobId

ADA, BOB = "p/ada", "p/bob"


def planning() -> FakeFleet:
    rules = RoundRules(round_s=100, resolve_min_s=0, restart_default_s=0, profiling_share=0)
    return measured(cluster("walras", rules=rules, machines="a"))


def submitted(fleet: FakeFleet, number: int, user: str, weight: float) -> None:
    fleet.tell(ev.JobSubmitted(fleet.at, job(number, steps=400.0, user=user, project="p", weight=weight)))


def test_equal_weights_count_as_none_and_unequal_ones_against_each_other() -> None:
    """Ada says ten of all her jobs, Bob of one of two that are as long."""
    fleet = planning()
    asked = np.array([0, 0, 1, 1])
    weight, needs_s = np.array([10.0, 10.0, 10.0, 1.0]), np.full(4, 100.0)
    usual = fleet.core.ledger.weights.ask((ADA, BOB), asked, weight, needs_s, 0.0)
    np.testing.assert_allclose(weight / usual, [1.0, 1.0, 10**0.5, 10**-0.5])


def test_one_user_or_no_weights_change_nothing() -> None:
    """What is asked is then the same to the bit as before."""
    records = WeightRecords()
    assert not len(records.ask((ADA,), np.zeros(2, dtype=np.int64), np.array([3.0, 1.0]), np.ones(2), 0.0))
    assert not len(records.ask((ADA, BOB), np.array([0, 1]), np.ones(2), np.ones(2), 0.0))


def test_a_weightless_job_moves_up_no_other_while_it_waits_and_at_most_tenfold_while_it_runs() -> None:
    """A job of years with hardly a weight would make the usual weight of its user nothing."""
    records = WeightRecords()
    weight, asked = np.array([1e-6, 4.0, 4.0, 1.0]), np.array([0, 0, 0, 1])
    waits = records.ask((ADA, BOB), asked, weight, np.array([0.0, 100.0, 100.0, 100.0]), 0.0)
    np.testing.assert_allclose(weight / waits, [2.5e-7, 1.0, 1.0, 1.0])
    assert records.usual(ADA, 4.0) == pytest.approx(4.0)
    runs = records.ask((ADA, BOB), asked, weight, np.array([1e12, 100.0, 100.0, 100.0]), 0.0)
    np.testing.assert_allclose(weight[1:] / runs[1:], [10.0, 10.0, 1.0])


def test_of_who_has_run_nothing_yet_the_mean_of_what_waits_is_usual() -> None:
    """Two jobs that wait, one of them heavier: against each other they weigh as stated, against others' as one."""
    weight = np.array([4.0, 1.0, 1.0])
    usual = WeightRecords().ask((ADA, BOB), np.array([0, 0, 1]), weight, np.array([0.0, 0.0, 50.0]), 0.0)
    np.testing.assert_allclose(weight / usual, [2.0, 0.5, 1.0])


def test_what_ended_jobs_stated_counts_by_the_time_they_had() -> None:
    """After long jobs of weight ten one more of ten is usual; trivial ones of weight a tenth change little."""
    records = WeightRecords()
    records.ended(ADA, 3600.0, 10.0, 0.0)
    for _ in range(10):
        records.ended(ADA, 1.0, 0.1, 0.0)
    usual = records.ask((ADA, BOB), np.array([0, 1]), np.array([10.0, 1.0]), np.array([3600.0, 1.0]), 0.0)
    assert 9.8 < usual[0] < 10.0
    assert usual[1] == 1.0


def test_the_policy_is_asked_with_usual_weights_and_they_survive_a_restart() -> None:
    """Two users, one of whom says ten of his only job: it weighs what the other's does."""
    fleet = planning()
    submitted(fleet, 1, "ada", 10.0)
    carried_out(fleet)
    submitted(fleet, 2, "bob", 1.0)
    np.testing.assert_allclose(fleet.solves[-1].problem.jobs.relative_weight, [1.0, 1.0])
    carried_out(fleet)
    fleet.tell(ev.AttemptStarted(0.0, JobId(1), 1))
    fleet.at = 100.0
    fleet.tell(ev.AttemptEnded(100.0, JobId(1), 1, ev.EndCause.EXITED, 0, steps=400.0))
    before = fleet.core.ledger.weights.remembered(10)
    fleet.restart(remembered_state(fleet.core.ledger))
    assert fleet.core.ledger.weights.remembered(10) == before != ()
