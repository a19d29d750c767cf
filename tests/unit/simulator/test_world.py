"""What simulated jobs do when they are told to."""

from collections.abc import Callable
from math import inf
from typing import Any

import pytest

from scheduler.core.commands import Rent
from scheduler.core.events import (
    AttemptEnded,
    AttemptProgressed,
    AttemptStarted,
    CheckpointRecorded,
    JobCancelled,
    JobSubmitted,
    Prepared,
    StartRefused,
)
from scheduler.world.attempts import AttemptCosts, PlannedFailure, WorldParameters
from scheduler.world.engine import RunOutcome
from walras.cluster import PoolId
from walras.states import JobState, Reason

Make = Callable[..., Any]


def test_an_attempt_starts_makes_its_steps_and_ends_to_the_instant(bench: Make, job: Make) -> None:
    """Start cost, then steps / speed seconds, then exit code 0 with every step credited."""
    b = bench(AttemptCosts(start_s=3.0))
    b.submit(job(steps=100.0))
    b.start(1.0, 1, 1, {"own-1": (0,)})
    b.transition(60.0, 1, JobState.SUCCEEDED)
    assert b.run() is RunOutcome.COMPLETE
    assert b.told(AttemptStarted) == [AttemptStarted(4.0, 1, 1)]
    (end,) = b.told(AttemptEnded)
    assert (end.at, end.exit_code, end.steps) == (54.0, 0, 100.0)


def test_a_speed_depends_on_the_accelerator(bench: Make, job: Make) -> None:
    """The same job takes twice as long where the table says half the speed."""
    b = bench()
    b.submit(job(steps=100.0))
    b.at(0.0, Rent("spot", PoolId("spot"), 1))
    b.start(10.0, 1, 1, {"spot-0": (0,)})
    b.run()
    assert b.told(AttemptEnded)[0].at == 110.0


def test_reports_come_at_their_interval_and_the_first_one_tells_the_start_cost(bench: Make, job: Make) -> None:
    """Progress carries steps over all attempts, speed and samples; the last report comes before the end."""
    b = bench(AttemptCosts(start_s=3.0), WorldParameters(report_s=20.0, window_s=5.0)).started(job(steps=100.0))
    b.run()
    reports = b.told(AttemptProgressed)
    assert [(r.at, r.steps, r.steps_per_s, r.samples, r.start_s) for r in reports] == [
        (23.0, 40.0, 2.0, 4, 3.0), (43.0, 80.0, 2.0, 8, None), (53.0, 100.0, 2.0, 10, None),
    ]  # fmt: skip
    assert b.heard[-1] == b.told(AttemptEnded)[0]


@pytest.mark.parametrize(
    ("first_s", "at"), [(None, (23.0, 43.0)), (9.0, (12.0, 32.0, 52.0)), (1.0, (24.0, 44.0)), (25.0, (8.0, 28.0, 48.0))]
)
def test_the_first_report_comes_with_the_machines_next_beat(
    bench: Make, job: Make, first_s: float | None, at: tuple[float, ...]
) -> None:
    """Beats are the machine's: the first after the first step brings a report, the others follow at their interval."""
    costs = AttemptCosts(start_s=3.0, warm_up_s=2.0, first_report_s=first_s)
    b = bench(costs, WorldParameters(report_s=20.0)).started(job(steps=100.0))
    b.run()
    assert tuple(r.at for r in b.told(AttemptProgressed)) == (*at, 55.0)


def test_reported_speeds_carry_noise_from_a_stream_of_their_own(bench: Make, job: Make) -> None:
    """With noise the reports differ from the truth and from each other; the steps do not."""
    b = bench(AttemptCosts(), WorldParameters(report_s=10.0, report_noise=0.05)).started(job(steps=100.0))
    b.run()
    reports = b.told(AttemptProgressed)
    assert len({r.steps_per_s for r in reports}) == len(reports)
    assert all(r.steps_per_s == pytest.approx(2.0, rel=0.3) for r in reports)
    assert b.told(AttemptEnded)[0].at == 50.0


def test_a_revoked_attempt_saves_and_asks_to_be_requeued(bench: Make, job: Make) -> None:
    """After the checkpoint's time: the checkpoint is recorded, then exit code 85; no steps are made meanwhile."""
    b = bench(AttemptCosts(checkpoint_s=4.0)).started(job(steps=100.0))
    b.revoke(10.0, 1, 1, Reason.POLICY_PREEMPTED)
    b.start(20.0, 1, 2, {"own-2": (1,)}, steps=20.0)
    b.run()
    saved, *ends = b.told(CheckpointRecorded, AttemptEnded)
    assert (saved.at, saved.steps, saved.took_s) == (14.0, 20.0, 4.0)
    assert [(e.at, e.exit_code, e.steps) for e in ends] == [(14.0, 85, 20.0), (60.0, 0, 100.0)]


def test_a_checkpoint_that_takes_longer_than_the_grace_is_lost(bench: Make, job: Make) -> None:
    """At the end of the grace the ranks are killed, and the work since the last checkpoint is lost."""
    b = bench(AttemptCosts(checkpoint_s=40.0)).started(job(steps=100.0))
    b.revoke(10.0, 1, 1, Reason.POLICY_PREEMPTED, grace_s=5.0)
    b.start(20.0, 1, 2, {"own-1": (0,)}, steps=0.0)
    b.run()
    assert not b.told(CheckpointRecorded)
    assert [(e.at, e.signal) for e in b.told(AttemptEnded)] == [(15.0, 9), (70.0, None)]
    assert b.world.jobs[1].lost_steps == 20.0


def test_a_kind_that_cannot_checkpoint_loses_all_its_work(bench: Make, job: Make) -> None:
    """A script without checkpoints is ended by the signal, at once."""
    b = bench(AttemptCosts(checkpoint_s=None)).started(job(steps=100.0))
    b.revoke(10.0, 1, 1, Reason.POLICY_PREEMPTED)
    b.run()
    assert [(e.at, e.signal, e.steps) for e in b.told(AttemptEnded)] == [(10.0, 15, 20.0)]


def test_an_attempt_revoked_while_it_starts_has_nothing_to_save(bench: Make, job: Make) -> None:
    """No checkpoint, no step, no AttemptStarted."""
    b = bench(AttemptCosts(start_s=30.0, checkpoint_s=4.0)).started(job())
    b.revoke(10.0, 1, 1, Reason.POLICY_PREEMPTED)
    b.run()
    assert not b.told(AttemptStarted, CheckpointRecorded)
    assert [(e.at, e.steps) for e in b.told(AttemptEnded)] == [(10.0, 0.0)]


def test_a_job_saves_by_itself_at_its_interval(bench: Make, job: Make) -> None:
    """Every checkpoint costs its time and is recorded; a revocation during one waits for it and needs no second."""
    b = bench(AttemptCosts(checkpoint_s=2.0, checkpoint_every_s=10.0)).started(job(steps=100.0))
    b.revoke(23.0, 1, 1, Reason.POLICY_PREEMPTED)
    b.run()
    assert [(c.at, c.steps) for c in b.told(CheckpointRecorded)] == [(12.0, 20.0), (24.0, 40.0)]
    assert [(e.at, e.exit_code) for e in b.told(AttemptEnded)] == [(24.0, 85)]


def test_a_planned_failure_exits_with_its_code_at_its_step(bench: Make, job: Make) -> None:
    b = bench().started(job(steps=100.0, failures=(PlannedFailure(at_steps=40.0, exit_code=3, times=1),)))
    b.start(30.0, 1, 2, {"own-1": (0,)})
    b.run()
    assert [(e.at, e.exit_code, e.steps) for e in b.told(AttemptEnded)] == [(20.0, 3, 40.0), (80.0, 0, 100.0)]
    assert b.world.jobs[1].worked_steps - b.world.jobs[1].lost_steps == pytest.approx(100.0)


def test_a_gang_is_prepared_on_every_machine_and_the_first_tells_where_to_meet(bench: Make, job: Make) -> None:
    b = bench(model=WorldParameters(prepare_s=0.5))
    b.submit(job())
    b.prepare(1.0, 1, 1, {"own-1": (0, 1), "own-2": (0, 1)})
    b.run()
    answers = b.told(Prepared)
    assert [(a.at, a.node_id, bool(a.address)) for a in answers] == [(1.5, "own-1", True), (1.5, "own-2", False)]


def test_a_gang_that_is_revoked_while_machines_are_held_for_it_is_told_to_be_over(bench: Make, job: Make) -> None:
    """Nobody waits until the time limit of preparing for what never starts; told once, of that attempt alone."""
    b = bench(model=WorldParameters(prepare_s=0.5))
    b.submit(job())
    b.prepare(1.0, 1, 1, {"own-1": (0, 1), "own-2": (0, 1)})
    b.revoke(1.2, 1, 0, Reason.POLICY_PREEMPTED)
    b.revoke(1.5, 1, 1, Reason.POLICY_PREEMPTED)
    b.revoke(1.6, 1, 1, Reason.POLICY_PREEMPTED)
    b.run()
    (end,) = b.told(AttemptEnded)
    assert (end.at, end.job_id, end.attempt, end.exit_code) == (1.5, 1, 1, None)


def test_machines_may_refuse(bench: Make, job: Make) -> None:
    b = bench(model=WorldParameters(refused=1.0))
    b.submit(job())
    b.start(0.0, 1, 1, {"own-2": (0,)})
    b.run()
    assert [r.node_id for r in b.told(StartRefused)] == ["own-2"]
    assert not b.told(AttemptStarted)


def test_granting_an_accelerator_twice_stops_the_simulation(bench: Make, job: Make) -> None:
    """A scheduler that does this has a mistake, and the message names machine and jobs."""
    b = bench()
    b.submit(job(1), job(2))
    b.start(1.0, 1, 1, {"own-1": (0,)})
    b.start(2.0, 2, 1, {"own-1": (0,)})
    with pytest.raises(AssertionError, match=r"own-1\[0\] is granted to job 2; job 1 holds it"):
        b.run()


def test_resuming_from_steps_that_no_checkpoint_has_stops_the_simulation(bench: Make, job: Make) -> None:
    """Work that was never saved cannot be credited."""
    b = bench()
    b.submit(job())
    b.start(1.0, 1, 1, {"own-1": (0,)}, steps=10.0)
    with pytest.raises(AssertionError, match=r"resume from 10\.0"):
        b.run()


def test_jobs_are_submitted_when_their_time_comes_and_read_one_ahead(bench: Make, job: Make) -> None:
    """A workload of any length is never held in memory."""
    b = bench()
    read: list[int] = []

    def rows() -> Any:
        for number in (1, 2, 3):
            read.append(number)
            yield job(number, at=10.0 * number)

    b.world.feed(rows(), lambda at, request: ())
    assert read == [1]
    b.run()
    assert [e.at for e in b.told(JobSubmitted)] == [10.0, 20.0, 30.0]


def test_a_user_cancels_only_what_is_still_there(bench: Make, job: Make) -> None:
    b = bench()
    b.submit(job(1, cancel_at=50.0), job(2, cancel_at=50.0), job(3, at=60.0))
    b.transition(10.0, 1, JobState.SUCCEEDED)
    b.run()
    assert [e.job_id for e in b.told(JobCancelled)] == [2]


def test_a_run_ends_with_its_last_job(bench: Make, job: Make) -> None:
    b = bench()
    b.submit(job(1, cancel_at=inf), job(2, at=5.0))
    b.transition(10.0, 1, JobState.CANCELLED)
    b.transition(20.0, 2, JobState.CANCELLED)
    b.transition(10_000.0, 3, JobState.CANCELLED)
    assert b.run() is RunOutcome.COMPLETE
    assert b.engine.now == 20.0
