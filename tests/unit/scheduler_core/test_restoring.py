"""A fresh core takes over from a predecessor by what the tables know."""

from fake_fleet import FakeFleet, cluster, job, pool, remembered_state

from optimizer.policy import PolicySpec
from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.core import SchedulerCore
from scheduler.core.restore_events import JobRestored, RentRestored
from scheduler.core.rules import RoundRules
from scheduler.live.store.event_journal import as_journaled, encode_command
from walras.cluster import Market, NodeId, NodeShare, Placement, PoolId
from walras.job_request import JobId, Kind, RetryRule
from walras.states import JobState, Reason

J1, J2 = JobId(1), JobId(2)
ON_B1 = Placement(PoolId("b"), (NodeShare(NodeId("b1"), (1,)),))


def restored(fleet: FakeFleet, state: JobState, **more: object) -> list[cmd.Command]:
    event = JobRestored(100.0, job(1, "b", max_runtime_s=500.0), 40.0, state, **more)  # type: ignore[arg-type]
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
    fleet.tell(JobRestored(100.0, job(2), 0.0, JobState.HELD))
    assert J2 not in fleet.attempts
    fleet.tell(ev.AttemptEnded(101.0, J1, 1, ev.EndCause.EXITED, 143))
    assert fleet.states[J1] == ["CANCELLED"]
    fleet.tell(ev.JobReleased(102.0, J2))
    assert J2 in fleet.attempts


def test_machines_under_way_are_not_rented_twice() -> None:
    """What was asked for before is still awaited; a quarantined machine still takes nobody."""
    fleet = cluster(machines="b")
    fleet.tell(RentRestored(1.0, "t", PoolId("c"), 2))
    fleet.tell(ev.NodeQuarantined(1.0, NodeId("b1"), "failures"))
    assert fleet.core.ledger.fleet.pools[2].awaited == {"t": 2}
    assert fleet.core.ledger.fleet.pools[1].capacity == 0


def test_arrears_waits_prices_and_evidence_survive_a_restart() -> None:
    """What the successor is told is what the core knew; asking for it changes nothing."""
    rules = RoundRules(round_s=10, resolve_min_s=0, backoff_s=100, rent_backoff_s=500, profiling_share=0)
    fleet = cluster("max_min_fairness", rules=rules, machines="a")
    fleet.tell(ev.PoolDeclared(0.0, pool("s", 1, market=Market.SPOT, quota=2)))
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", 4, retry=RetryRule(3))))
    fleet.tell(ev.JobSubmitted(0.0, job(2, "a", 4)))
    while fleet.solves:  # the second one knows of both jobs
        fleet.answer({1: {"a": 0.5}, 2: {"a": 0.5}}, rent={"s": 1})
    fleet.tell(ev.AttemptStarted(1.0, JobId(1), 1))
    fleet.tell(ev.CheckpointRecorded(1.5, JobId(1), 1, 1.0, 0.1))
    fleet.tell(ev.RentFailed(2.0, fleet.rents[0].token, "no capacity"))
    fleet.at = 20.0
    while fleet.wake_at <= 20.0:
        fleet.wake()
    fleet.end(JobId(1), 1)
    told = remembered_state(fleet.core.ledger)
    assert told == remembered_state(fleet.core.ledger)
    old = fleet.core.ledger
    assert old.jobs[JobId(1)].ready_at == 120.0
    owed = {each[0]: dict(each[-1]) for each in told.jobs}
    assert owed[JobId(2)]["a"] == 40.0  # half of four accelerators, for 20 s
    fleet.restart(told)
    new = fleet.core.ledger
    assert new.jobs[JobId(1)].ready_at == 120.0
    assert JobId(1) not in fleet.attempts  # its wait is not over
    for number in (1, 2):
        assert new.columns.owed[new.jobs[JobId(number)].slot, 0] == owed[JobId(number)].get("a", 0.0)
    assert (new.fleet.pools[3].rent_failures, new.fleet.pools[3].rent_not_before) == (1, 502.0)
    assert new.policy.quote is not None
    assert old.policy.quote is not None
    assert new.policy.quote.prices.tolist() == old.policy.quote.prices.tolist()
    machines = [next(each for each in ledger.fleet.machines if each) for ledger in (old, new)]
    assert list(machines[1].failures) == list(machines[0].failures)
    assert len(machines[1].failures) == 1
    assert new.saving_kinds == {Kind("k")}
    fresh = SchedulerCore()
    for event, commands in fleet.log:
        again, at = fresh.handle(as_journaled(event)), event.at
        assert [encode_command(at, each) for each in again] == [encode_command(at, each) for each in commands]


def test_a_quarantined_rented_machine_keeps_its_job_over_a_restart() -> None:
    """The core hears of the machine before it hears of the job there: it waits for that before it gives it back."""
    fleet = FakeFleet()
    fleet.tell(ev.PolicyChanged(100.0, PolicySpec("fifo"), RoundRules()))
    fleet.tell(ev.PoolDeclared(100.0, pool("b", 2, market=Market.SPOT, quota=2)))
    for name in ("b1", "b2"):
        fleet.tell(ev.NodeJoined(100.0, NodeId(name), PoolId("b"), "token"))
        fleet.tell(ev.NodeQuarantined(100.0, NodeId(name), "failures"))
    fleet.tell(JobRestored(100.0, job(1, "b"), 40.0, JobState.RUNNING, attempt=1, placement=ON_B1, running_at=52.0))
    assert given_back(fleet) == []
    fleet.wake()
    assert given_back(fleet) == ["b2"]
    fleet.tell(ev.AttemptEnded(200.0, J1, 1, ev.EndCause.EXITED, 0))
    assert given_back(fleet) == ["b2", "b1"]


def given_back(fleet: FakeFleet) -> list[str]:
    """Machines that the core gave back so far."""
    return [each.node_id for _, commands in fleet.log for each in commands if isinstance(each, cmd.ReleaseNode)]


def test_who_is_behind_its_share_is_not_forgotten() -> None:
    """Use and the deficits of `walras` go on in a fresh core; under another policy the deficits are nobody's."""
    fleet = cluster("walras", machines="b")
    restored(fleet, JobState.RUNNING, attempt=3, placement=ON_B1, leased_at=50.0, running_at=52.0)
    fair = {"at": 3.0, "deficit": {"vision": 50.0}, "rate": {"vision": 1.5, "speech": -1.0}}
    fleet.core.cycle.policy.memory = {"overdue": [], "fair": fair}
    state = as_journaled(remembered_state(fleet.core.ledger))
    state.at = 210.0
    for policy, deficit in (("walras", {"vision": 50.0, "speech": 0.0}), ("fifo", None)):
        fresh = cluster(policy, machines="b")
        fresh.tell(state)
        used_s, _ = fresh.core.ledger.usage.used("default", 210.0)
        assert 109.9 < used_s < 110.0  # one accelerator until now, hardly halved
        memory = fresh.core.cycle.policy.memory
        assert (memory["fair"]["deficit"] if memory else None) == deficit
