"""Preemptive orders in the core: whose place is taken, on which pool, how many at once, and what is left alone."""

import numpy as np
from fake_fleet import FakeFleet, cluster, job

from optimizer.policy import PolicySpec
from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.explain.pending_reasons import pending_reasons
from scheduler.core.rules import RoundRules
from scheduler.core.speed_events import ThroughputMeasured
from walras.job_request import JobId, Kind
from walras.states import Reason

QUICK = RoundRules(round_s=10, min_runtime_s=5, restart_default_s=2)


def ordered(policy: str, machines: str = "a", rules: RoundRules = QUICK, **parameters: object) -> FakeFleet:
    """Pools a (4 accelerators a machine, 4 steps/s each), b (2; 2 steps/s) and c (1; 1 step/s), all speeds known."""
    fleet = cluster(policy, rules=rules, machines=machines, **parameters)
    for name, steps_per_s in (("a", 4.0), ("b", 2.0), ("c", 1.0)):
        for count in (1, 2, 4):
            fleet.tell(ThroughputMeasured(0.0, Kind("k"), name, count, steps_per_s * count))
    return fleet


def submit(fleet: FakeFleet, number: int, accelerator: str = "*", count: int = 1, **more: object) -> None:
    """Submit, and let it run at once if it is started."""
    fleet.tell(ev.JobSubmitted(fleet.at, job(number, accelerator, count, **more)))
    run(fleet, number)


def run(fleet: FakeFleet, number: int) -> None:
    attempt = fleet.attempts.get(JobId(number))
    if attempt is not None:
        fleet.tell(ev.AttemptStarted(fleet.at, JobId(number), attempt.number))


def rounds_until(fleet: FakeFleet, at: float) -> list[cmd.Revoke]:
    """Let rounds end; who was asked to go."""
    revoked: list[cmd.Revoke] = []
    while fleet.wake_at <= at:
        revoked += [command for command in fleet.wake() if isinstance(command, cmd.Revoke)]
    fleet.at = at
    return revoked


def test_a_challenger_goes_for_its_fastest_pool_first() -> None:
    """It outranks the incumbents of both pools, and takes the place on the fast one."""
    fleet = ordered("srtf", "bca", margin=0.0)
    for number, name in ((1, "a"), (2, "a"), (3, "a"), (4, "a"), (5, "b"), (6, "b"), (7, "c")):
        submit(fleet, number, name, steps=1e5)
    submit(fleet, 8, steps=100.0)
    revoked = rounds_until(fleet, 30.0)
    assert len(revoked) == 1
    assert fleet.core.cycle.reservations[JobId(8)].pool == 0
    fleet.end(revoked[0].job_id, 85)
    assert fleet.attempts[JobId(8)].placement.pool_id == "a"


def test_a_challenger_takes_a_slower_pool_where_the_fast_one_is_held_by_its_betters() -> None:
    """Rank is compared pool by pool."""
    fleet = ordered("srtf", "ba", margin=0.0)
    for number in (1, 2, 3, 4):
        submit(fleet, number, "a", steps=400.0)
    submit(fleet, 5, "b", 2, steps=1e5)
    submit(fleet, 6, "*", 2, steps=4000.0)
    assert [command.job_id for command in rounds_until(fleet, 40.0)] == [5]


def test_several_places_of_one_machine_change_hands_in_one_round() -> None:
    """Four short jobs, four long ones on one machine: nobody waits for another's exchange."""
    fleet = ordered("srtf", "a")
    for number in (1, 2, 3, 4):
        submit(fleet, number, "a", steps=1e5)
    for number in (5, 6, 7, 8):
        submit(fleet, number, "a", steps=100.0)
    revoked = fleet.wake()
    assert sorted(c.job_id for c in revoked if isinstance(c, cmd.Revoke)) == [1, 2, 3, 4]
    for number in (3, 1, 4, 2):
        fleet.end(JobId(number), 85)
    assert sorted(fleet.attempts) == [5, 6, 7, 8]


def test_an_exchange_counts_processors_that_an_earlier_one_was_promised() -> None:
    """Two victims leave processors for one hungry challenger; the second challenger asks for one victim more."""
    fleet = ordered("srtf", "a")  # 16 processors
    for number in (1, 2, 3, 4):
        submit(fleet, number, "a", steps=1e5, cpus_per_accelerator=4.0)
    submit(fleet, 5, "a", steps=100.0, cpus_per_accelerator=8.0)
    submit(fleet, 6, "a", steps=200.0, cpus_per_accelerator=8.0)
    revoked = [c.job_id for c in fleet.wake() if isinstance(c, cmd.Revoke)]
    assert len(revoked) == 4
    for number in revoked:
        fleet.end(number, 85)
    assert {5, 6} <= set(fleet.attempts)


def test_a_job_keeps_its_place_for_the_least_run_time() -> None:
    """Against its own class: a shorter job waits until the incumbent has run for `min_runtime_s`."""
    fleet = ordered("srtf", "c", RoundRules(round_s=10, min_runtime_s=100, restart_default_s=2), margin=0.0)
    submit(fleet, 1, steps=1e5)
    submit(fleet, 2, steps=100.0)
    assert rounds_until(fleet, 95.0) == []
    assert [command.job_id for command in rounds_until(fleet, 125.0)] == [1]


def test_a_gang_that_fits_no_pool_does_not_stand_in_the_way() -> None:
    """Eight accelerators on one machine of four: never; those behind it may challenge all the same."""
    fleet = ordered("las", "a", quantum_s=1.0)
    for number in range(1, 12):
        submit(fleet, number, "a", 8)
    for number in range(12, 16):
        submit(fleet, number, "a")
    rounds_until(fleet, 15.0)
    submit(fleet, 16, "a")
    assert len(rounds_until(fleet, 30.0)) == 1


def test_a_non_preemptive_order_leaves_everybody_in_place() -> None:
    """Shortest job first is SRTF that never interrupts; only the highest class does, at once."""
    fleet = ordered("srtf", "c", preemptive=False)
    submit(fleet, 1, "c", steps=1e5)
    submit(fleet, 2, "c", steps=10.0)
    submit(fleet, 3, "c", steps=100.0)
    assert fleet.wake_at == float("inf")
    fleet.end(JobId(1))
    assert list(fleet.attempts) == [2]
    run(fleet, 2)
    fleet.at = 50.0
    commands = fleet.tell(ev.JobSubmitted(50.0, job(4, "c", steps=1e6, priority=90)))
    assert [c.job_id for c in commands if isinstance(c, cmd.Revoke)] == [2]


def test_jobs_that_may_not_be_preempted_keep_their_places() -> None:
    """The submitter's word holds against any rank."""
    fleet = ordered("srtf", "c")
    submit(fleet, 1, "c", steps=1e5, preemptible=False)
    submit(fleet, 2, "c", steps=10.0)
    assert rounds_until(fleet, 200.0) == []


def test_a_promotion_counts_service_anew_and_is_kept() -> None:
    """Tiresias: the demoted job waits its multiple, is in the first queue again, and holds its place there."""
    fleet = ordered("tiresias", "c", thresholds_s=[20.0], promote=1.0)
    submit(fleet, 1, "c")
    rounds_until(fleet, 25.0)
    submit(fleet, 2, "c")
    assert [c.job_id for c in rounds_until(fleet, 30.0)] == [1]
    fleet.end(JobId(1), 85)
    run(fleet, 2)
    assert rounds_until(fleet, 50.0) == []  # 2 has had its 20 accelerator-seconds now, 1 waits since 20 s
    revoked = rounds_until(fleet, 60.0)
    assert [c.job_id for c in revoked] == [2]
    columns, slot = fleet.core.ledger.columns, fleet.core.ledger.jobs[JobId(1)].slot
    assert columns.renewed_at_s[slot] == 30.0


def test_the_reason_for_waiting_counts_who_ranks_before() -> None:
    """And asking changes nothing that is decided later."""
    fleet = ordered("las", "c", quantum_s=10.0)
    for number in (1, 2, 3):
        submit(fleet, number, "c")
    fleet.at = 5.0
    columns = fleet.core.ledger.columns
    before = (columns.attained_s.copy(), columns.settled_at.copy())
    (line, *_) = pending_reasons(fleet.core, JobId(3))
    assert line.reason is Reason.WAIT_CAPACITY
    assert "1 ahead" in line.detail
    assert np.array_equal(before[0], columns.attained_s)
    assert np.array_equal(before[1], columns.settled_at)


def test_a_change_of_policy_ranks_everybody_anew() -> None:
    """From first come to shortest first, with jobs in line."""
    fleet = ordered("fifo", "c")
    for number, steps in ((1, 1e5), (2, 1e4), (3, 100.0)):
        submit(fleet, number, "c", steps=steps)
    fleet.tell(ev.PolicyChanged(1.0, PolicySpec("srtf"), QUICK))
    assert [c.job_id for c in rounds_until(fleet, 20.0)] == [1]
    fleet.end(JobId(1), 85)
    assert list(fleet.attempts) == [3]


def test_who_is_behind_the_first_in_line_is_told_which_job_that_is() -> None:
    """Under a strict order the first waits for another pool, and blocks; what is free here is no reason and no fix."""
    fleet = ordered("fifo", "ab", strict=True)
    submit(fleet, 1, "a", 4, steps=1e6)
    submit(fleet, 2, "a", 2, steps=1e6)
    submit(fleet, 3, "b", 1)
    submit(fleet, 4, "b", 1)
    for number in (3, 4):
        (first, *_) = pending_reasons(fleet.core, JobId(number))
        assert first.reason is Reason.WAIT_PRIORITY
        assert first.detail.startswith("behind job 2, the head of the queue, which waits (it needs 2 of a, 0 free)")
        assert "job 2" in first.fix
    assert not any("behind job" in line.detail for line in pending_reasons(fleet.core, JobId(2)))
    fleet.end(JobId(1))
    fleet.end(JobId(2)) if JobId(2) in fleet.attempts else None
    assert JobId(3) in fleet.attempts
