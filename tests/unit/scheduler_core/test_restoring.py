"""A fresh core takes over from a predecessor by what the tables know."""

from fake_fleet import FakeFleet, cluster, job

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from walras.cluster import NodeId, NodeShare, Placement, PoolId
from walras.job_request import JobId
from walras.states import JobState, Reason

J1, J2 = JobId(1), JobId(2)
ON_B1 = Placement(PoolId("b"), (NodeShare(NodeId("b1"), (1,)),))


def restored(fleet: FakeFleet, state: JobState, **more: object) -> list[cmd.Command]:
    event = ev.JobRestored(100.0, job(1, "b", max_runtime_s=500.0), 40.0, state, **more)  # type: ignore[arg-type]
    return fleet.core.handle(event)


def test_running_attempt_goes_on_undisturbed() -> None:
    """Nothing is commanded for a job that runs; its accelerators are the ones it had."""
    fleet = cluster(machines="b")
    commands = restored(fleet, JobState.RUNNING, attempt=3, placement=ON_B1, leased_at=50.0, running_at=52.0)
    assert not [c for c in commands if isinstance(c, cmd.Start | cmd.Prepare | cmd.Revoke)]
    machine = fleet.core.ledger.fleet.machine(NodeId("b1"))
    assert machine is not None
    assert (machine.free, machine.holders) == ([0], {J1: (1,)})
    fleet.tell(ev.CheckpointRecorded(101.0, J1, 3, 70.0))
    fleet.tell(ev.AttemptEnded(102.0, J1, 3, ev.EndCause.EXITED, 0))
    assert fleet.states[J1] == ["SUCCEEDED"]


def test_limits_go_on_counting_from_where_they_were() -> None:
    """`max_runtime` counts from the lease, not from the restart of the server."""
    fleet = cluster(machines="b")
    restored(fleet, JobState.RUNNING, attempt=1, placement=ON_B1, leased_at=50.0, running_at=52.0)
    commands = fleet.core.handle(ev.Woke(550.0))
    assert [c.reason for c in commands if isinstance(c, cmd.Revoke)] == [Reason.POLICY_MAX_RUNTIME]


def test_waiting_job_starts_from_its_recorded_checkpoint() -> None:
    """A job that waited is in line at once, with the next attempt number."""
    fleet = cluster(machines="b")
    commands = restored(fleet, JobState.PENDING, attempt=2, steps=30.0, safe_steps=30.0)
    (start,) = [c for c in commands if isinstance(c, cmd.Start)]
    assert (start.attempt, start.resume_steps) == (3, 30.0)


def test_stopping_and_held_jobs_stay_what_they_were() -> None:
    """A job that was asked to stop is waited for; one that was held stays held."""
    fleet = cluster(machines="b")
    restored(fleet, JobState.CANCELLING, attempt=1, placement=ON_B1, running_at=52.0, revoked=Reason.USER_CANCELLED)
    fleet.tell(ev.JobRestored(100.0, job(2), 0.0, JobState.HELD))
    assert J2 not in fleet.attempts
    fleet.tell(ev.AttemptEnded(101.0, J1, 1, ev.EndCause.EXITED, 143))
    assert fleet.states[J1] == ["CANCELLED"]
    fleet.tell(ev.JobReleased(102.0, J2))
    assert J2 in fleet.attempts


def test_machines_under_way_are_not_rented_twice() -> None:
    """What was asked for before is still awaited; a quarantined machine still takes nobody."""
    fleet = cluster(machines="b")
    fleet.tell(ev.RentRestored(1.0, "t", PoolId("c"), 2))
    fleet.tell(ev.NodeQuarantined(1.0, NodeId("b1"), "failures"))
    assert fleet.core.ledger.fleet.pools[2].awaited == {"t": 2}
    assert fleet.core.ledger.fleet.pools[1].capacity == 0
