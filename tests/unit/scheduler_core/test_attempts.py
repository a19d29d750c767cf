"""The life of attempts: gangs, failures, retries, lost machines, cancellation, and a core that takes over."""

import pytest
from fake_fleet import FakeFleet, cluster, fleet_of, job, pool, remembered_state, revoked

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.core import SchedulerCore
from scheduler.core.events import JobRedirected, JobRestored, RentRestored
from scheduler.core.explain.pending_reasons import pending_reasons
from scheduler.core.rules import RoundRules
from scheduler.core.speed_events import ThroughputMeasured, WorkRestated
from scheduler.core.state.remaining_work import remaining_here_s
from scheduler.live.store.event_journal import as_journaled, encode_command
from walras.cluster import Market, NodeId, NodeShare, Placement, PoolId
from walras.contract import EXIT_NOT_PREPARED
from walras.job_request import Demand, GangRequest, JobId, Kind, RetryRule
from walras.states import JobState, Reason

J1, J2, J3 = JobId(1), JobId(2), JobId(3)
A1 = NodeId("a1")


def starts(commands: list[cmd.Command]) -> list[tuple[int, int]]:
    return [(c.job_id, c.attempt) for c in commands if isinstance(c, cmd.Start)]


def test_a_gang_starts_at_once_on_one_machine_and_in_two_phases_on_several() -> None:
    """Over several machines each holds its part before any rank starts; they meet where rank 0 is."""
    fleet = cluster(machines="a")
    commands = fleet.tell(ev.JobSubmitted(1.0, job(1, "a", 4)))
    assert starts(commands) == [(1, 1)]
    fleet = cluster(machines="bb")
    commands = fleet.tell(ev.JobSubmitted(1.0, job(1, "b", 4)))
    assert [type(c).__name__ for c in commands if isinstance(c, cmd.Prepare | cmd.Start)] == ["Prepare"]
    assert starts(fleet.tell(ev.Prepared(2.0, J1, 1, NodeId("b1"), "10.0.0.1", 4000))) == []
    commands = fleet.tell(ev.Prepared(2.0, J1, 1, NodeId("b2")))
    assert starts(commands) == [(1, 1)]
    start = next(c for c in commands if isinstance(c, cmd.Start))
    assert (start.rendezvous.address, start.rendezvous.port) == ("10.0.0.1", 4000)


def test_unprepared_gang_lets_go_of_everything() -> None:
    """A machine that does not answer in time costs the gang nothing but time."""
    fleet = cluster(machines="bb", rules=RoundRules(prepare_timeout_s=10, backoff_s=100))
    fleet.tell(ev.JobSubmitted(1.0, job(1, "b", 4)))
    fleet.tell(ev.Prepared(2.0, J1, 1, NodeId("b1"), "10.0.0.1", 4000))
    commands = fleet.tell(ev.Woke(11.0))
    assert list(revoked(commands)) == [1]
    assert fleet.core.ledger.fleet.pools[1].free == 4
    assert fleet.states[J1][-1] == "PENDING"


def test_failure_retries_and_then_fails() -> None:
    """Own failures use up the retries, with growing waits; `on_exit_codes` limits what is tried again."""
    fleet = cluster(rules=RoundRules(backoff_s=5))
    fleet.tell(ev.JobSubmitted(0.0, job(1, retry=RetryRule(1))))
    fleet.end(J1, exit_code=3)
    assert fleet.states[J1][-1] == "PENDING"
    assert starts(fleet.tell(ev.Woke(4.0))) == []
    assert starts(fleet.tell(ev.Woke(5.0))) == [(1, 2)]
    commands = fleet.end(J1, exit_code=3)
    ended = next(c for c in commands if isinstance(c, cmd.JobTransitioned))
    assert (ended.state, ended.reason, ended.detail) == ("FAILED", Reason.USER_EXIT_CODE, "exit code 3")
    fleet = cluster()
    fleet.tell(ev.JobSubmitted(0.0, job(1, retry=RetryRule(5, (7, 137)))))
    fleet.end(J1, exit_code=None, exceeded="memory")  # signal 9, as shells say it
    assert fleet.states[J1][-1] == "PENDING"
    fleet.tell(ev.Woke(60.0))
    fleet.end(J1, exit_code=3)
    assert fleet.states[J1][-1] == "FAILED"


def test_lost_machine_costs_no_retry_and_resumes_from_the_recorded_checkpoint() -> None:
    """Infrastructure loss never ends a job; it resumes where the server has a manifest for it, not further."""
    fleet = cluster(machines="ac")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a")))
    fleet.tell(ev.CheckpointRecorded(5.0, J1, 1, 40.0, 0.1))
    fleet.tell(ev.AttemptProgressed(6.0, J1, 1, 55.0))
    fleet.tell(ev.NodeJoined(7.0, NodeId("a9"), fleet.core.ledger.fleet.pools[0].pool.pool_id))
    commands = fleet.lose(NodeId("a1"))
    start = next(c for c in commands if isinstance(c, cmd.Start))
    assert (start.attempt, start.resume_steps, start.placement.parts[0].node_id) == (2, 40.0, "a9")
    assert fleet.core.ledger.jobs[J1].restarts == 0
    fleet.tell(ev.AttemptProgressed(8.0, J1, 2, 70.0))
    fleet.lose(NodeId("a9"))  # where it waits, too, what is lost counts as undone
    assert fleet.core.ledger.jobs[J1].steps == 40.0


def test_what_is_left_of_a_job_is_counted_from_its_newest_report() -> None:
    """A checkpoint's too, once; after a change of batch in the steps of its new kind, at its speed."""
    fleet = cluster()
    fleet.begin(job(1, steps=1000.0))
    record = fleet.core.ledger.jobs[J1]
    rate = fleet.core.ledger.rate_of(record)
    assert rate > 0
    fleet.tell(ev.CheckpointRecorded(100.0, J1, 1, 100.0 * rate, 0.1))
    assert remaining_here_s(fleet.core.ledger, record) == pytest.approx(1000.0 / rate - 100.0)
    fleet = cluster(machines="a")
    for kind, steps_per_s in (("k", 10.0), ("large", 6.0)):
        fleet.tell(ThroughputMeasured(0.0, Kind(kind), "a", 1, steps_per_s))
    fleet.begin(job(1, "a", steps=1000.0))
    fleet.tell(ev.AttemptProgressed(40.0, J1, 1, 400.0))
    fleet.tell(WorkRestated(40.0, J1, Kind("large"), 500.0, 200.0))
    ledger = fleet.core.ledger
    record = ledger.jobs[J1]
    assert record.holds
    assert remaining_here_s(ledger, record) == 300.0 / 6.0
    assert fleet.tell(WorkRestated(41.0, JobId(9), Kind("large"), 1.0, 0.0)) == []


@pytest.mark.parametrize(("codes", "state"), [((), "FAILED"), ((EXIT_NOT_PREPARED,), "PENDING")])
def test_what_cannot_be_prepared_is_tried_again_only_if_its_code_is_named(codes: tuple[int, ...], state: str) -> None:
    """A setup that fails would fail again."""
    fleet = cluster(rules=RoundRules(backoff_s=5))
    fleet.tell(ev.JobSubmitted(0.0, job(1, retry=RetryRule(5, codes))))
    fleet.end(J1, exit_code=EXIT_NOT_PREPARED)
    assert fleet.states[J1][-1] == state


def test_stale_attempt_changes_nothing() -> None:
    """Reports of an attempt that is not current any more are ignored: its number is the fence."""
    fleet = cluster(machines="aa")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a")))
    fleet.lose(NodeId("a1"))
    fleet.tell(ev.CheckpointRecorded(1.0, J1, 1, 99.0, 0.1))
    fleet.tell(ev.AttemptEnded(1.0, J1, 1, ev.EndCause.EXITED, 0))
    record = fleet.core.ledger.jobs[J1]
    assert (record.attempt, record.safe_steps, record.state) == (2, 0.0, "STARTING")


def test_silence_is_not_death() -> None:
    """No heartbeat: the job is unreachable, nothing is restarted, and contact makes it whole again."""
    fleet = cluster(machines="aa")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a")))
    fleet.tell(ev.AttemptStarted(1.0, J1, 1))
    commands = fleet.tell(ev.NodeUnreachable(2.0, NodeId("a1")))
    assert not starts(commands)
    assert fleet.states[J1][-1] == "UNREACHABLE"
    fleet.tell(ev.NodeBack(3.0, NodeId("a1")))
    assert fleet.states[J1][-1] == "RUNNING"
    assert fleet.core.ledger.jobs[J1].attempt == 1


def test_leaving_machine_asks_for_a_checkpoint_in_time() -> None:
    """A spot notice gives the job no more grace than the machine has."""
    fleet = cluster(machines="aa")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", grace_s=30)))
    commands = fleet.tell(ev.NodeLeaving(10.0, NodeId("a1"), 22.0))
    revoke = next(c for c in commands if isinstance(c, cmd.Revoke))
    assert (revoke.reason, revoke.grace_s) == (Reason.INFRA_SPOT_RECLAIM, 12.0)
    commands = fleet.end(J1, exit_code=85)
    assert starts(commands) == [(1, 2)]
    assert fleet.attempts[J1].placement.parts[0].node_id == "a2"


def test_cancel_waits_for_the_processes() -> None:
    """A job is CANCELLED once no process of it is left, also where its machine is lost."""
    fleet = cluster()
    fleet.tell(ev.JobSubmitted(0.0, job(1)))
    fleet.tell(ev.JobCancelled(1.0, J1, "ada"))
    assert fleet.states[J1][-1] == "CANCELLING"
    assert fleet.core.ledger.fleet.pools[0].free == 3
    fleet.end(J1, exit_code=143)
    assert fleet.states[J1][-1] == "CANCELLED"
    assert fleet.core.ledger.fleet.pools[0].free == 4
    fleet = cluster(machines="aa")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a")))
    fleet.tell(ev.JobCancelled(1.0, J1))
    fleet.tell(ev.NodeUnreachable(2.0, NodeId("a1")))
    fleet.lose(NodeId("a1"))
    assert fleet.states[J1][-1] == "CANCELLED"


def one_fails(fleet: FakeFleet, number: int) -> list[cmd.Command]:
    """A job of pool a fails, on the first of its machines that takes jobs."""
    fleet.tell(ev.JobSubmitted(1.0, job(number, "a", 4)))
    return fleet.end(JobId(number), exit_code=1)


def test_machine_on_which_distinct_jobs_fail_is_quarantined() -> None:
    """Three jobs, not three attempts of one, put a machine aside; a success clears it of earlier failures."""
    fleet = cluster(machines="aa", rules=RoundRules(quarantine_jobs=3, backoff_s=0))
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", retry=RetryRule(3))))
    for _ in range(4):
        fleet.end(J1, exit_code=1)
    assert fleet.core.ledger.fleet.pools[0].capacity == 8
    for number in (2, 3):
        commands = one_fails(fleet, number)
    assert any(isinstance(c, cmd.NodeCordoned) for c in commands)
    assert fleet.core.ledger.fleet.pools[0].capacity == 4
    fleet.tell(ev.NodeUncordoned(2.0, NodeId("a1")))
    assert fleet.core.ledger.fleet.pools[0].capacity == 8
    fleet = cluster(machines="aa", rules=RoundRules(quarantine_jobs=3))
    one_fails(fleet, 1)
    one_fails(fleet, 2)
    fleet.tell(ev.JobSubmitted(1.0, job(3, "a", 4)))
    fleet.end(J3)
    assert one_fails(fleet, 4)
    assert fleet.core.ledger.fleet.pools[0].capacity == 8


def test_jobs_that_fail_everywhere_do_not_take_the_fleet_away() -> None:
    """One machine of two or three may be put aside, a quarter of more, the only one never: then it is the jobs."""
    for machines, left in (("a", 1), ("aa", 1), ("aaa", 2), ("a" * 8, 6)):
        fleet = cluster(machines=machines, rules=RoundRules(quarantine_jobs=1))
        for number in range(1, 2 * len(machines) + 1):
            one_fails(fleet, number)
        assert fleet.core.ledger.fleet.pools[0].capacity == 4 * left, machines


def test_dependents_follow_success_and_are_cancelled_by_failure() -> None:
    """A job starts after the one it depends on succeeded, and never after that one failed."""
    fleet = cluster()
    fleet.submit(job(1), job(2, depends_on=(J1,)), job(3, depends_on=(J2,)))
    assert starts(fleet.end(J1)) == [(2, 1)]
    fleet.end(J2, exit_code=1)
    assert fleet.states[J3] == ["CANCELLED"]


def test_limits_of_run_and_queue_time() -> None:
    """Over max_runtime: TIMEOUT. Never started within max_queue_time: CANCELLED. The reasons name the limits."""
    fleet = cluster()
    fleet.begin(job(1, "a", 4, max_runtime_s=10.0))
    fleet.tell(ev.JobSubmitted(0.0, job(2, "a", 4, max_queue_s=5.0)))
    waited = next(c for c in fleet.tell(ev.Woke(5.0)) if isinstance(c, cmd.JobTransitioned))
    assert (waited.state, waited.reason) == ("CANCELLED", Reason.POLICY_MAX_QUEUE_TIME)
    assert list(revoked(fleet.tell(ev.Woke(10.0)))) == [1]
    commands = fleet.end(J1, exit_code=143)
    ended = next(c for c in commands if isinstance(c, cmd.JobTransitioned))
    assert (ended.state, ended.reason) == ("TIMEOUT", Reason.POLICY_MAX_RUNTIME)


@pytest.mark.parametrize("restarts", [False, True])
def test_the_limit_of_run_time_counts_over_all_attempts(restarts: bool) -> None:
    """Six seconds of ten are used up when it is held; it is stopped four after its release, by a new core too."""
    fleet = cluster()
    fleet.begin(job(1, max_runtime_s=10.0))
    fleet.tell(ev.JobHeld(6.0, J1))
    fleet.end(J1, exit_code=85)
    if restarts:
        fleet.restart()
    fleet.tell(ev.JobReleased(100.0, J1))
    fleet.tell(ev.AttemptStarted(100.0, J1, 2))
    assert not revoked(fleet.tell(ev.Woke(103.9)))
    assert list(revoked(fleet.tell(ev.Woke(104.0)))) == [1]


def test_the_limit_of_run_time_begins_when_all_ranks_are_up() -> None:
    """A start of 50 seconds does not count against a limit of ten."""
    fleet = cluster()
    fleet.tell(ev.JobSubmitted(0.0, job(1, max_runtime_s=10.0)))
    assert not revoked(fleet.tell(ev.Woke(49.0)))
    fleet.tell(ev.AttemptStarted(50.0, J1, 1))
    assert not revoked(fleet.tell(ev.Woke(59.9)))
    assert list(revoked(fleet.tell(ev.Woke(60.0)))) == [1]


def test_held_job_keeps_its_place_in_nothing() -> None:
    """Hold checkpoints and stops a running job; release puts it back in line."""
    fleet = cluster()
    fleet.tell(ev.JobSubmitted(0.0, job(1)))
    assert list(revoked(fleet.tell(ev.JobHeld(1.0, J1)))) == [1]
    fleet.end(J1, exit_code=85)
    assert fleet.states[J1][-1] == "HELD"
    assert starts(fleet.tell(ev.JobReleased(2.0, J1))) == [(1, 2)]


@pytest.mark.parametrize("first", [None, Reason.HOLD_USER, Reason.HOLD_BUDGET])
def test_an_operators_hold_replaces_any_other(first: Reason | None) -> None:
    """Of a job that waits or is held already; explain says so, no other hold replaces it, a release ends it."""
    fleet = fleet_of()
    fleet.tell(ev.JobSubmitted(0.0, job(1)))
    if first is not None:
        fleet.tell(ev.JobHeld(1.0, J1, first))
        assert _why_held(fleet) is first
    commands = fleet.tell(ev.JobHeld(2.0, J1, Reason.HOLD_ADMIN))
    assert [c.reason for c in commands if isinstance(c, cmd.JobTransitioned)] == [Reason.HOLD_ADMIN]
    for again in (Reason.HOLD_USER, Reason.HOLD_ADMIN):
        commands = fleet.tell(ev.JobHeld(3.0, J1, again))
        assert not [c for c in commands if isinstance(c, cmd.JobTransitioned)]
    assert _why_held(fleet) is Reason.HOLD_ADMIN
    fleet.tell(ev.JobReleased(5.0, J1))
    assert fleet.states[J1][-1] == "PENDING"


def _why_held(fleet: FakeFleet) -> Reason:
    (reason, *_) = pending_reasons(fleet.core, J1)
    return reason.reason


def test_who_gets_nowhere_five_times_is_held_with_the_reason() -> None:
    """Exit 85 without a step, or a start that is refused, five times in a row: somebody has to look."""
    fleet = cluster()
    fleet.tell(ev.JobSubmitted(0.0, job(1)))
    for _ in range(5):
        fleet.end(J1, exit_code=85)
    assert fleet.states[J1][-1] == "HELD"
    fleet = cluster()
    fleet.tell(ev.JobSubmitted(0.0, job(1)))
    for number in range(1, 8):  # each time it has made steps
        fleet.end(J1, exit_code=85, steps=10.0 * number)
        assert fleet.states[J1][-1] != "HELD"
    fleet = cluster(rules=RoundRules(backoff_s=1))
    fleet.tell(ev.JobSubmitted(0.0, job(1)))
    for number in range(1, 6):
        del fleet.attempts[J1]
        fleet.tell(ev.StartRefused(fleet.at, J1, number, NodeId("a1"), "no such folder"))
        if number < 5:
            fleet.wake()
    assert fleet.states[J1][-1] == "HELD"
    (held,) = [c for c in fleet.log[-1][1] if isinstance(c, cmd.JobTransitioned)]
    assert "no such folder" in held.detail


def test_processors_and_memory_are_checked_at_placement() -> None:
    """A free accelerator without the processors a job asks for is no place."""
    fleet = cluster(strict=False)  # 4 accelerators, 16 processors
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", cpus_per_accelerator=14.0)))
    assert starts(fleet.tell(ev.JobSubmitted(0.0, job(2, "a", cpus_per_accelerator=4.0)))) == []
    assert starts(fleet.tell(ev.JobSubmitted(0.0, job(3, "a", cpus_per_accelerator=2.0)))) == [(3, 1)]


def test_restart_cost_is_a_median_over_starts_not_over_reports() -> None:
    """One long attempt that repeats its start cost with every report counts once."""
    fleet = cluster(machines="aa")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a")))
    for at in (10.0, 20.0, 30.0):
        fleet.tell(ev.AttemptProgressed(at, J1, 1, at, start_s=9.0))
    fleet.tell(ev.JobSubmitted(30.0, job(2, "a")))
    fleet.tell(ev.AttemptProgressed(40.0, J2, 1, 1.0, start_s=3.0))
    assert fleet.core.ledger.costs.restart_s(fleet.core.ledger.jobs[J1].request.kind, 60.0) == 6.0


def test_a_job_that_uses_more_memory_than_it_asked_for_is_told_so() -> None:
    """It uses up a retry, its machine is not blamed, and the reason is its own."""
    fleet = cluster(rules=RoundRules(backoff_s=5, quarantine_jobs=1))
    fleet.tell(ev.JobSubmitted(0.0, job(1, retry=RetryRule(1))))
    fleet.end(J1, None, exceeded="memory")
    assert all(each is None or not each.failures for each in fleet.core.ledger.fleet.machines)
    fleet.tell(ev.Woke(5.0))
    where = fleet.attempts[J1].placement.parts[0].node_id
    (end,) = [c for c in fleet.end(J1, None, exceeded="memory") if isinstance(c, cmd.JobTransitioned)]
    assert (end.state, end.reason) == (JobState.FAILED, Reason.USER_OOM)
    assert end.detail == f"used more main memory than it asked for, on {where}"


def test_a_held_job_that_is_redirected_starts_where_it_was_sent() -> None:
    """One that runs or waits is not touched."""
    fleet = cluster(machines="ab")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a")))
    gang = GangRequest(demands=(Demand("b", 1),), pools=(str(fleet.core.ledger.fleet.pools[1].pool.pool_id),))
    fleet.tell(JobRedirected(1.0, J1, gang))
    assert fleet.core.ledger.jobs[J1].request.demands == (Demand("a", 1),)
    fleet.tell(ev.JobHeld(2.0, J1))
    fleet.end(J1, 85)
    assert fleet.states[J1][-1] == "HELD"
    fleet.tell(JobRedirected(3.0, J1, gang))
    commands = fleet.tell(ev.JobReleased(4.0, J1))
    assert [c.placement.pool_id for c in commands if isinstance(c, cmd.Start)] == list(gang.pools)


@pytest.mark.parametrize("aside", ["drained", "put aside", "drained while silent"])
def test_a_machine_that_is_resumed_while_it_is_silent_takes_jobs_when_it_is_back(aside: str) -> None:
    """The tables say that it is up; nobody knows what runs there until it is back."""
    fleet, silent = cluster(machines="a"), ev.NodeUnreachable(2.0, A1)
    for event in {
        "drained": (ev.NodeLeaving(1.0, A1, 1.0, Reason.HOLD_ADMIN), silent),
        "put aside": (ev.NodeQuarantined(1.0, A1, ""), silent),
        "drained while silent": (silent, ev.NodeLeaving(2.0, A1, 1e6, Reason.HOLD_ADMIN, gentle=True)),
    }[aside]:
        fleet.tell(event)
    fleet.tell(ev.NodeUncordoned(3.0, A1))
    fleet.tell(ev.JobSubmitted(4.0, job(1, "a")))
    assert not fleet.attempts
    assert starts(fleet.tell(ev.NodeBack(5.0, A1)))


def test_a_machine_that_is_drained_while_it_is_silent_is_drained_when_it_is_back() -> None:
    """What runs to its end there is seen running again."""
    fleet = cluster(machines="a")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", preemptible=False)))
    fleet.tell(ev.AttemptStarted(1.0, J1, 1))
    fleet.tell(ev.NodeUnreachable(2.0, NodeId("a1")))
    fleet.tell(ev.NodeLeaving(3.0, NodeId("a1"), 1e6, Reason.HOLD_ADMIN, gentle=True))
    fleet.tell(ev.NodeBack(4.0, NodeId("a1")))
    assert fleet.states[J1][-1] == "RUNNING"
    fleet.end(J1)
    fleet.tell(ev.JobSubmitted(5.0, job(2, "a")))
    assert not fleet.attempts


def test_a_gang_runs_again_once_no_machine_of_it_is_silent() -> None:
    """A drain of one that is still silent says nothing of its ranks."""
    fleet = cluster(machines="aa")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", 8, preemptible=False)))
    fleet.prepare_all(J1)
    fleet.tell(ev.AttemptStarted(1.0, J1, 1))
    for name in ("a1", "a2"):
        fleet.tell(ev.NodeUnreachable(2.0, NodeId(name)))
    fleet.tell(ev.NodeLeaving(3.0, NodeId("a2"), 1e6, Reason.HOLD_ADMIN, gentle=True))
    fleet.tell(ev.NodeBack(4.0, NodeId("a1")))
    assert fleet.states[J1][-1] == "UNREACHABLE"
    fleet.tell(ev.NodeBack(5.0, NodeId("a2")))
    assert fleet.states[J1][-1] == "RUNNING"


ON_B1 = Placement(PoolId("b"), (NodeShare(NodeId("b1"), (1,)),))


def restored(fleet: FakeFleet, state: JobState, **more: object) -> list[cmd.Command]:
    event = JobRestored(100.0, job(1, "b", max_runtime_s=500.0), 40.0, state, **more)  # type: ignore[arg-type]
    return fleet.core.handle(event)


def test_running_attempt_goes_on_undisturbed() -> None:
    """Its accelerators are those it had, and `max_runtime` counts from when its ranks were up."""
    fleet = cluster(machines="b")
    commands = restored(fleet, JobState.RUNNING, attempt=3, placement=ON_B1, leased_at=50.0, running_at=52.0)
    assert not [c for c in commands if isinstance(c, cmd.Start | cmd.Prepare | cmd.Revoke)]
    machine = fleet.core.ledger.fleet.machine(NodeId("b1"))
    assert (machine.free, machine.holders) == ([0], {J1: (1,)})
    fleet.tell(ev.CheckpointRecorded(101.0, J1, 3, 70.0))
    fleet.tell(ev.AttemptEnded(102.0, J1, 3, ev.EndCause.EXITED, 0))
    assert fleet.states[J1] == ["SUCCEEDED"]
    fleet = cluster(machines="b")
    restored(fleet, JobState.RUNNING, attempt=1, placement=ON_B1, leased_at=50.0, running_at=52.0)
    assert not [c for c in fleet.core.handle(ev.Woke(551.0)) if isinstance(c, cmd.Revoke)]
    commands = fleet.core.handle(ev.Woke(552.0))
    assert [c.reason for c in commands if isinstance(c, cmd.Revoke)] == [Reason.POLICY_MAX_RUNTIME]


def test_waiting_stopping_and_held_jobs_and_machines_under_way_are_what_they_were() -> None:
    """With the next number; who stops is waited for, who is held stays, what was rented is awaited once."""
    fleet = cluster(machines="b")
    commands = restored(fleet, JobState.PENDING, attempt=2, steps=30.0, safe_steps=30.0)
    (start,) = [c for c in commands if isinstance(c, cmd.Start)]
    assert (start.attempt, start.resume_steps) == (3, 30.0)
    fleet = cluster(machines="b")
    restored(fleet, JobState.CANCELLING, attempt=1, placement=ON_B1, running_at=52.0, revoked=Reason.USER_CANCELLED)
    fleet.tell(JobRestored(100.0, job(2), 0.0, JobState.HELD))
    assert J2 not in fleet.attempts
    fleet.tell(ev.AttemptEnded(101.0, J1, 1, ev.EndCause.EXITED, 143))
    assert fleet.states[J1] == ["CANCELLED"]
    fleet.tell(ev.JobReleased(102.0, J2))
    assert J2 in fleet.attempts
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
    fleet.submit(job(1, "a", 4, retry=RetryRule(3)), job(2, "a", 4))
    while fleet.solves:  # the second one knows of both jobs
        fleet.answer({1: {"a": 0.5}, 2: {"a": 0.5}}, rent={"s": 1})
    fleet.tell(ev.AttemptStarted(1.0, JobId(1), 1))
    fleet.tell(ev.CheckpointRecorded(1.5, JobId(1), 1, 1.0, 0.1))
    fleet.tell(ev.RentFailed(2.0, fleet.rents[0].token, "no capacity"))
    fleet.at = 20.0
    fleet.until(20.0)
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
    fleet = fleet_of(pool("b", 2, market=Market.SPOT, quota=2))
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
