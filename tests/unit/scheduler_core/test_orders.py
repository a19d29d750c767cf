"""Preemptive orders in the core: whose place is taken, on which pool, how many at once, and what is left alone."""

from fake_fleet import FakeFleet, cluster, job
from planned_fleet import measured

from optimizer.policy import PolicySpec
from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.explain.pending_reasons import pending_reasons
from scheduler.core.rules import RoundRules
from walras.job_request import JobId
from walras.states import Reason

QUICK = RoundRules(round_s=10, min_runtime_s=5, restart_default_s=2)


def ordered(policy: str, machines: str = "a", rules: RoundRules = QUICK, **parameters: object) -> FakeFleet:
    """Pools a (4 accelerators a machine, 4 steps/s each), b (2; 2 steps/s) and c (1; 1 step/s), all speeds known."""
    return measured(cluster(policy, rules=rules, machines=machines, **parameters))


def submit(fleet: FakeFleet, number: int, accelerator: str = "*", count: int = 1, **more: object) -> None:
    """Submit, and let it run at once if it is started."""
    fleet.tell(ev.JobSubmitted(fleet.at, job(number, accelerator, count, **more)))
    if JobId(number) in fleet.attempts:
        fleet.run(number)


def rounds_until(fleet: FakeFleet, at: float) -> list[cmd.Revoke]:
    """Let rounds end; who was asked to go."""
    revoked = [command for command in fleet.until(at) if isinstance(command, cmd.Revoke)]
    fleet.at = at
    return revoked


def test_a_challenger_goes_for_its_fastest_pool_first() -> None:
    """It outranks those of both pools, and takes the fast one; a slower one where its betters hold that."""
    fleet = ordered("srtf", "bca", margin=0.0)
    for number, name in ((1, "a"), (2, "a"), (3, "a"), (4, "a"), (5, "b"), (6, "b"), (7, "c")):
        submit(fleet, number, name, steps=1e5)
    submit(fleet, 8, steps=100.0)
    revoked = rounds_until(fleet, 30.0)
    assert len(revoked) == 1
    assert fleet.core.cycle.reservations[JobId(8)].pool == 0
    fleet.end(revoked[0].job_id, 85)
    assert fleet.attempts[JobId(8)].placement.pool_id == "a"
    fleet = ordered("srtf", "ba", margin=0.0)
    for number in (1, 2, 3, 4):
        submit(fleet, number, "a", steps=400.0)
    submit(fleet, 5, "b", 2, steps=1e5)
    submit(fleet, 6, "*", 2, steps=4000.0)
    assert [command.job_id for command in rounds_until(fleet, 40.0)] == [5]


def test_several_places_of_one_machine_change_hands_in_one_round() -> None:
    """Nobody waits for another's exchange; processors that an earlier one was promised are counted."""
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
    """Only the highest class interrupts it, at once; where it preempts, its own class waits for `min_runtime_s`."""
    fleet = ordered("srtf", "c", preemptive=False)
    submit(fleet, 1, "c", steps=1e5)
    submit(fleet, 2, "c", steps=10.0)
    submit(fleet, 3, "c", steps=100.0)
    assert fleet.wake_at == float("inf")
    fleet.end(JobId(1))
    assert list(fleet.attempts) == [2]
    fleet.run(2)
    fleet.at = 50.0
    commands = fleet.tell(ev.JobSubmitted(50.0, job(4, "c", steps=1e6, priority=90)))
    assert [c.job_id for c in commands if isinstance(c, cmd.Revoke)] == [2]
    fleet = ordered("srtf", "c", RoundRules(round_s=10, min_runtime_s=100, restart_default_s=2), margin=0.0)
    submit(fleet, 1, steps=1e5)
    submit(fleet, 2, steps=100.0)
    assert rounds_until(fleet, 95.0) == []
    assert [command.job_id for command in rounds_until(fleet, 125.0)] == [1]


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


def test_who_is_behind_one_at_its_limit_is_told_of_the_limit() -> None:
    """It may have no more of the pool that has free ones, and the other pool is taken."""
    fleet = ordered("fifo", "ab", strict=True)
    fleet.tell(ev.SharesDeclared(0.0, (ev.EntityShare("one", limits=(ev.ShareLimit("a", 1),)),)))
    submit(fleet, 1, "a", project="one", steps=1e6)
    submit(fleet, 2, "b", 2, steps=1e6)
    submit(fleet, 3, project="one")
    submit(fleet, 4, "a")
    (first, *_) = pending_reasons(fleet.core, JobId(4))
    assert first.detail.startswith("behind job 3, the head of the queue, which waits (it needs 1 of a, 3 free, ")
    assert "; project one holds 1, and its limit allows 1 of a)" in first.detail
