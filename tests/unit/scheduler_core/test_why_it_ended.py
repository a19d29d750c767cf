"""Why a job ended: what the scheduler asked for first, then the exit code."""

from collections.abc import Callable

import pytest
from fake_fleet import FakeFleet, cluster, job

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from walras.cluster import NodeId
from walras.job_request import JobId
from walras.states import JobState, Reason

JOB, DEPENDENT = JobId(1), JobId(2)

Stop = Callable[[FakeFleet], object]
#: By what an attempt is stopped; what becomes of its job, and for which reason.
STOPS: dict[str, tuple[Stop, JobState, Reason]] = {
    "cancel": (lambda f: f.tell(ev.JobCancelled(1.0, JOB, "ada")), JobState.CANCELLED, Reason.USER_CANCELLED),
    "time limit": (lambda f: f.tell(ev.Woke(100.0)), JobState.TIMEOUT, Reason.POLICY_MAX_RUNTIME),
    "hold": (lambda f: f.tell(ev.JobHeld(1.0, JOB)), JobState.HELD, Reason.HOLD_USER),
    "spot notice": (
        lambda f: f.tell(ev.NodeLeaving(1.0, NodeId("a1"), 60.0)),
        JobState.PENDING,
        Reason.INFRA_SPOT_RECLAIM,
    ),
    "drain": (
        lambda f: f.tell(ev.NodeLeaving(1.0, NodeId("a1"), 60.0, Reason.HOLD_ADMIN)),
        JobState.PENDING,
        Reason.HOLD_ADMIN,
    ),
    "policy": (
        lambda f: f.tell(ev.JobSubmitted(1.0, job(9, "a", 4, priority=100))),
        JobState.PENDING,
        Reason.POLICY_PREEMPTED,
    ),
}
CODES = [0, 1, 85, 143, None]


def running() -> FakeFleet:
    """A job on the one machine, and another that waits for its success."""
    fleet = cluster(machines="a")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", 4, max_runtime_s=100.0, steps=50.0)))
    fleet.tell(ev.JobSubmitted(0.0, job(2, "a", 1, depends_on=(JOB,))))
    fleet.tell(ev.AttemptStarted(0.0, JOB, 1))
    fleet.tell(ev.CheckpointRecorded(0.5, JOB, 1, 10.0, 0.1))
    return fleet


def last_state(fleet: FakeFleet, commands: list[cmd.Command]) -> tuple[JobState, Reason | None]:
    told = [c for c in commands if isinstance(c, cmd.JobTransitioned) and c.job_id == JOB]
    return told[0].state, told[0].reason


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("kind", STOPS)
def test_what_the_scheduler_asked_for_comes_before_the_exit_code(kind: str, code: int | None) -> None:
    """A stopped job that saves and ends with 0 has not done its work, and its dependent does not run."""
    stop, state, reason = STOPS[kind]
    fleet = running()
    stop(fleet)
    assert fleet.attempts[JOB].stopping
    commands = fleet.end(JOB, exit_code=code, steps=20.0, unfinished=True)
    assert last_state(fleet, commands) == (state, reason)
    assert fleet.states.get(DEPENDENT, []) == (["CANCELLED"] if state.is_final else [])


@pytest.mark.parametrize(("steps", "unfinished"), [(50.0, True), (20.0, False)])
@pytest.mark.parametrize("kind", STOPS)
def test_work_that_is_known_to_be_done_is_a_success(kind: str, steps: float, unfinished: bool) -> None:
    """All steps were made, or the ranks had ended before they were told to stop."""
    fleet = running()
    STOPS[kind][0](fleet)
    commands = fleet.end(JOB, exit_code=0, steps=steps, unfinished=unfinished)
    assert last_state(fleet, commands) == (JobState.SUCCEEDED, None)


@pytest.mark.parametrize("kind", ["cancel", "time limit"])
def test_a_job_that_is_to_end_does_so_whatever_happens_to_its_machine(kind: str) -> None:
    """A notice, a hold or the loss of the machine between the stop and the end queues it no more."""
    stop, state, reason = STOPS[kind]
    fleet = running()
    stop(fleet)
    fleet.tell(ev.NodeLeaving(101.0, NodeId("a1"), 160.0))
    fleet.tell(ev.JobHeld(102.0, JOB))
    assert last_state(fleet, fleet.lose(NodeId("a1"))) == (state, reason)


def test_who_was_stopped_by_its_machine_and_ends_with_0_is_queued_again() -> None:
    """No part of the scheduler asked, but its ranks were told to stop: their work was not done."""
    fleet = running()
    commands = fleet.end(JOB, exit_code=0, steps=20.0, unfinished=True)
    assert last_state(fleet, commands)[0] is JobState.PENDING
