"""Who states too little, or ten for all of his jobs, is planned by what they needed, and as if he stated none."""

from dataclasses import replace

import numpy as np
import pytest
from fake_fleet import FakeFleet, cluster, job, remembered_state
from planned_fleet import QUICK, carried_out, measured, planning, submit

from optimizer.policy import PolicySpec
from scheduler.core import events as ev
from scheduler.core.cycle.problem_snapshot import build_problem
from scheduler.core.explain.job_conditions import LENGTH_CORRECTED, job_conditions
from scheduler.core.rules import RoundRules
from scheduler.core.state.remaining_work import remaining_here_s
from scheduler.core.state.statement_records import KEPT, LengthRecords, WeightRecords
from walras.job_request import Demand, JobId

RULES = replace(QUICK, restart_default_s=0)
ADA, BOB = "p/ada", "p/bob"


def ran(fleet: FakeFleet, number: int, user: str, stated: float, true: float) -> None:
    """A job that states so many steps makes so many, alone on its accelerators, and ends."""
    job_id = JobId(number)
    submit(fleet, fleet.at, job(number, "a", 1, steps=stated, user=user, project="p"))
    fleet.tell(ev.AttemptStarted(fleet.at, job_id, 1))
    fleet.at += true / 4.0
    fleet.tell(ev.AttemptEnded(fleet.at, job_id, 1, ev.EndCause.EXITED, 0, steps=true))
    carried_out(fleet)


def planned_steps(fleet: FakeFleet) -> dict[int, float]:
    jobs = build_problem(fleet.core.ledger).jobs
    return dict(zip(jobs.job_id.tolist(), jobs.remaining_steps.tolist(), strict=True))


def test_what_a_user_states_is_corrected_by_what_his_jobs_needed() -> None:
    """Jobs that needed twice what they stated make the next count twice as long; those of others do not."""
    fleet = planning(rules=RULES)
    for number in range(1, 5):
        ran(fleet, number, "ada", 100.0, 200.0)
        ran(fleet, 10 + number, "bob", 100.0, 100.0 * KEPT)
    fleet.submit(job(20, steps=1000.0, user="ada", project="p"), job(21, steps=1000.0, user="bob", project="p"))
    planned = planned_steps(fleet)
    assert 1900.0 < planned[20] < 2400.0
    assert planned[21] == 1000.0
    told = {each.type: each.detail for each in job_conditions(fleet.core, JobId(20))}[LENGTH_CORRECTED]
    assert "states 1000 steps" in told
    assert "2.4 times" in told
    assert LENGTH_CORRECTED not in {each.type for each in job_conditions(fleet.core, JobId(21))}


@pytest.mark.parametrize("stopped_at", [None, 1000.0])
def test_a_guess_came_true_on_a_slow_type_that_took_as_much_longer(stopped_at: float | None) -> None:
    """A job guessed at 1,000 s on the fast type ends after 2,000 s at half the speed, in one run or in two."""
    fleet = measured(cluster("fifo", rules=RoundRules(restart_default_s=0), machines="ab"))
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", 4, steps=1e9)))
    either = (Demand("a", 1), Demand("b", 1))
    fleet.tell(ev.JobSubmitted(0.0, replace(job(2, user="ada", project="p", duration_s=1000.0), demands=either)))
    if stopped_at is not None:
        fleet.tell(ev.AttemptStarted(0.0, JobId(2), 1))
        fleet.at = stopped_at
        fleet.end(JobId(2), 85)
    fleet.tell(ev.Woke(1500.0))
    fleet.at, ledger = 2000.0, fleet.core.ledger
    assert remaining_here_s(ledger, ledger.jobs[JobId(2)]) == pytest.approx(500.0)
    fleet.tell(ev.AttemptStarted(1500.0, JobId(2), 1 + (stopped_at is not None)))
    fleet.end(JobId(2))
    assert ledger.lengths.factor(ADA) == 1.0


def test_a_job_that_outlives_its_statement_is_noticed_while_it_runs() -> None:
    """What it has left grows with what it has made, and what its user states elsewhere is believed less at once."""
    fleet = planning(rules=RULES)
    for number in (1, 2):
        submit(fleet, 0.0, job(number, steps=400.0, user="ada", project="p"))
    fleet.tell(ev.AttemptStarted(0.0, JobId(1), 1))
    found = []
    for steps in (400.0, 800.0, 1600.0):
        fleet.at += 100.0
        fleet.tell(ev.AttemptProgressed(fleet.at, JobId(1), 1, steps=steps))
        fleet.tell(ev.JobSubmitted(fleet.at, job(int(steps), steps=10.0, user="bob", project="p")))
        planned = planned_steps(fleet)
        jobs = build_problem(fleet.core.ledger).jobs
        found.append((float(jobs.done_steps[0]), planned[2]))
        carried_out(fleet)
    assert [done for done, _ in found] == [400.0, 800.0, 1600.0]
    assert found[0][1] == 400.0 < found[1][1] < found[2][1]


def test_records_survive_a_restart() -> None:
    """A fresh core corrects what is stated as the one before it did."""
    fleet = planning(rules=RULES)
    for number in range(1, 4):
        ran(fleet, number, "ada", 100.0, 300.0)
    before = fleet.core.ledger.lengths.factor(ADA)
    fleet.restart(remembered_state(fleet.core.ledger))
    assert fleet.core.ledger.lengths.factor(ADA) == before > 2.5


def test_the_first_jobs_are_paid_back_and_trivial_ones_whiten_nothing() -> None:
    """Who stated a quarter is planned by more than four times that at first; exact jobs of a second change little."""
    records, found = LengthRecords(), []
    for _ in range(200):
        records.ended(ADA, 3600.0, 4.0, 0.0)
        found.append(records.factor(ADA))
    assert all(5.0 < factor < 6.0 for factor in found[:10])
    assert 4.0 < found[-1] < 4.5
    for _ in range(100):
        records.ended(ADA, 1.0, 1.0, 0.0)
    assert records.factor(ADA) > 3.5
    assert records.factor(BOB) == 1.0
    records.ended(BOB, 3600.0, 1.2, 0.0)
    assert 1.2 < records.factor(BOB) < 1.3


def test_nobody_is_shortened_and_errors_both_ways_cancel() -> None:
    """Who states too much is planned by what he says; what was false long ago is forgotten."""
    records = LengthRecords()
    for ratio in (0.5, 0.25, 0.5):
        records.ended(ADA, 100.0, ratio, 0.0)
    assert records.factor(ADA) == 1.0
    for ratio in (0.5, 2.0) * 5:
        records.ended(BOB, 100.0, ratio, 0.0)
    assert records.factor(BOB) == 1.0
    records = LengthRecords(half_life_s=100.0)
    records.ended(ADA, 100.0, 4.0, 0.0)
    records.ended(ADA, 100.0, 1.0, 2000.0)
    assert records.factor(ADA) == 1.0


def test_a_policy_file_may_believe_everybody() -> None:
    """With `use_records: false` neither lengths nor weights are corrected."""
    fleet = planning(rules=RULES)
    ran(fleet, 1, "ada", 100.0, 400.0)
    assert fleet.core.ledger.lengths.factor(ADA) > 2.0
    rules = RoundRules(round_s=100, resolve_min_s=0, use_records=False)
    fleet.tell(ev.PolicyChanged(fleet.at, PolicySpec("walras"), rules))
    for number, user in ((20, "ada"), (21, "bob")):
        fleet.tell(ev.JobSubmitted(fleet.at, job(number, steps=1000.0, user=user, project="p", weight=9.0)))
    assert planned_steps(fleet) == {20: 1000.0, 21: 1000.0}
    assert not len(fleet.solves[-1].problem.jobs.usual_weight)


def test_weights_count_against_those_of_the_same_user() -> None:
    """Equal weights count as none, unequal ones against each other, and against the mean of what waits."""
    records = WeightRecords()
    assert not len(records.ask((ADA,), np.zeros(2, dtype=np.int64), np.array([3.0, 1.0]), np.ones(2), 0.0))
    assert not len(records.ask((ADA, BOB), np.array([0, 1]), np.ones(2), np.ones(2), 0.0))
    fleet = planning("a", rules=RULES)
    asked = np.array([0, 0, 1, 1])
    weight, needs_s = np.array([10.0, 10.0, 10.0, 1.0]), np.full(4, 100.0)
    usual = fleet.core.ledger.weights.ask((ADA, BOB), asked, weight, needs_s, 0.0)
    np.testing.assert_allclose(weight / usual, [1.0, 1.0, 10**0.5, 10**-0.5])
    weight = np.array([4.0, 1.0, 1.0])
    usual = WeightRecords().ask((ADA, BOB), np.array([0, 0, 1]), weight, np.array([0.0, 0.0, 50.0]), 0.0)
    np.testing.assert_allclose(weight / usual, [2.0, 0.5, 1.0])


def test_a_weightless_job_moves_up_no_other_while_it_waits_and_at_most_tenfold_while_it_runs() -> None:
    """A job of years with hardly a weight would make the usual weight of its user nothing."""
    records = WeightRecords()
    weight, asked = np.array([1e-6, 4.0, 4.0, 1.0]), np.array([0, 0, 0, 1])
    waits = records.ask((ADA, BOB), asked, weight, np.array([0.0, 100.0, 100.0, 100.0]), 0.0)
    np.testing.assert_allclose(weight / waits, [2.5e-7, 1.0, 1.0, 1.0])
    assert records.usual(ADA, 4.0) == pytest.approx(4.0)
    runs = records.ask((ADA, BOB), asked, weight, np.array([1e12, 100.0, 100.0, 100.0]), 0.0)
    np.testing.assert_allclose(weight[1:] / runs[1:], [10.0, 10.0, 1.0])


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
    fleet = planning("a", rules=RULES)
    submit(fleet, fleet.at, job(1, steps=400.0, user="ada", project="p", weight=10.0))
    fleet.tell(ev.JobSubmitted(fleet.at, job(2, steps=400.0, user="bob", project="p", weight=1.0)))
    np.testing.assert_allclose(fleet.solves[-1].problem.jobs.relative_weight, [1.0, 1.0])
    carried_out(fleet)
    fleet.tell(ev.AttemptStarted(0.0, JobId(1), 1))
    fleet.at = 100.0
    fleet.tell(ev.AttemptEnded(100.0, JobId(1), 1, ev.EndCause.EXITED, 0, steps=400.0))
    before = fleet.core.ledger.weights.remembered(10)
    fleet.restart(remembered_state(fleet.core.ledger))
    assert fleet.core.ledger.weights.remembered(10) == before != ()
