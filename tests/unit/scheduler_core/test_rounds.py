"""The round mechanism: fill, reserve, lend, exchange, move; prices, solves in flight, renting, explanations."""

from dataclasses import replace
from itertools import pairwise

from fake_fleet import FakeFleet, cluster, job, pool

from optimizer.policy import PolicySpec
from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.explain.pending_reasons import first_pending_reason, pending_reasons
from scheduler.core.job_change_events import JobReprioritised
from scheduler.core.rules import Backfill, RoundRules
from scheduler.core.speed_events import ThroughputMeasured
from walras.cluster import Market, NodeId
from walras.job_request import JobId, Kind
from walras.states import Reason

J1, J2, J3, J4 = JobId(1), JobId(2), JobId(3), JobId(4)
QUICK = RoundRules(round_s=10, resolve_min_s=0, min_runtime_s=5, restart_default_s=2, profiling_share=0)


def starts(commands: list[cmd.Command]) -> list[int]:
    return [c.job_id for c in commands if isinstance(c, cmd.Start)]


def revoked(commands: list[cmd.Command]) -> dict[int, Reason]:
    return {c.job_id: c.reason for c in commands if isinstance(c, cmd.Revoke)}


def running(fleet: FakeFleet, job_id: JobId, at: float) -> None:
    fleet.tell(ev.AttemptStarted(at, job_id, fleet.attempts[job_id].number))


def measured(fleet: FakeFleet, kind: str = "k") -> None:
    """Every speed is known, so that nothing is a profiling lease."""
    for name, steps_per_s in (("a", 4.0), ("b", 2.0), ("c", 1.0)):
        for count in (1, 2, 4):
            fleet.tell(ThroughputMeasured(fleet.at, Kind(kind), name, count, steps_per_s * count))


def shared(machines: str = "a", rules: RoundRules = QUICK) -> FakeFleet:
    fleet = cluster("max_min_fairness", rules=rules, machines=machines)
    measured(fleet)
    return fleet


# ------------------------------------------------------------------------------------------------ orders


def test_strict_order_lets_nobody_pass_the_first_in_line() -> None:
    """Head of line: a small job waits behind a large one that does not fit."""
    fleet = cluster("fifo", strict=True)
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", 3)))
    fleet.tell(ev.JobSubmitted(1.0, job(2, "a", 4)))
    assert starts(fleet.tell(ev.JobSubmitted(2.0, job(3, "a", 1)))) == []
    assert starts(fleet.end(J1)) == [2]


def test_backfill_never_delays_the_reservation() -> None:
    """EASY: only a job that ends before the first in line can start may pass it."""
    fleet = cluster("fifo", rules=RoundRules(restart_default_s=0), strict=False)
    measured(fleet)
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", 2, steps=800.0)))  # 8 steps/s: ends at 100
    fleet.tell(ev.JobSubmitted(0.0, job(2, "a", 4, steps=800.0)))  # needs everything: starts at 100
    assert starts(fleet.tell(ev.JobSubmitted(0.0, job(3, "a", 1, steps=800.0)))) == []  # would end at 200
    assert starts(fleet.tell(ev.JobSubmitted(0.0, job(4, "a", 1, steps=200.0)))) == [4]  # ends at 50
    fleet.at = 50.0
    fleet.end(J4)
    fleet.at = 100.0
    assert starts(fleet.end(J1)) == [2]


def test_free_backfill_protects_nobody() -> None:
    """FREE: whoever fits goes."""
    fleet = cluster("fifo", rules=RoundRules(backfill=Backfill.FREE), strict=False)
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", 2)))
    fleet.tell(ev.JobSubmitted(0.0, job(2, "a", 4)))
    assert starts(fleet.tell(ev.JobSubmitted(0.0, job(3, "a", 1)))) == [3]


def test_aware_order_takes_the_fastest_pool_with_room() -> None:
    """FIFO chooses the type for the job; agnostic FIFO takes pools as they come."""
    fleet = cluster("fifo", machines="ba")
    measured(fleet)
    fleet.tell(ev.JobSubmitted(0.0, job(1, "*")))
    assert fleet.attempts[J1].placement.pool_id == "a"


def test_idle_to_round_end_gives_nothing_before_the_round_ends() -> None:
    """Another scheduler's mechanism is a value of the rules."""
    fleet = cluster("fifo", rules=RoundRules(round_s=10, idle_to_round_end=True))
    assert starts(fleet.tell(ev.JobSubmitted(1.0, job(1)))) == []
    assert starts(fleet.wake()) == [1]
    assert fleet.at == 10.0


# ------------------------------------------------------------------------------------------------ shares


def test_newcomer_starts_at_once_on_the_configuration_worth_most_above_its_price() -> None:
    """The arrival rule: no solve is waited for."""
    fleet = shared("ba")
    assert starts(fleet.tell(ev.JobSubmitted(0.0, job(1)))) == [1]
    assert fleet.attempts[J1].placement.pool_id == "a"


def test_one_solve_in_flight_and_old_answers_count() -> None:
    """Events during a solve mark the core dirty; the late answer is applied, then a new question goes out."""
    fleet = shared("a")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", 2)))
    assert len(fleet.solves) == 1
    fleet.tell(ev.JobSubmitted(1.0, job(2, "a", 2)))
    assert len(fleet.solves) == 1
    commands = fleet.answer({1: {"a": 0.5}})
    assert fleet.core.ledger.columns.entitled[fleet.core.ledger.jobs[J1].slot].tolist() == [1.0, 0.0, 0.0]
    assert any(isinstance(c, cmd.Solve) for c in commands)


def test_answer_about_an_older_policy_is_void() -> None:
    """Only a policy change makes an answer worthless."""
    fleet = shared("a")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", 2)))
    fleet.tell(ev.PolicyChanged(1.0, PolicySpec("max_min_fairness"), QUICK))
    commands = fleet.answer({1: {"a": 0.5}})
    assert fleet.core.ledger.policy.proposal is None
    assert any(isinstance(c, cmd.Solve) for c in commands)


def test_lost_capacity_scales_an_old_answer_down() -> None:
    """Entitlements never exceed what is there."""
    fleet = shared("aa")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", 4)))
    fleet.tell(ev.JobSubmitted(0.0, job(2, "a", 4)))
    fleet.answer({1: {"a": 1.0}})
    fleet.lose(NodeId("a2"))
    fleet.answer({1: {"a": 1.0}, 2: {"a": 1.0}})
    assert fleet.core.ledger.columns.entitled.sum() <= 4.0 + 1e-9


def test_exchange_waits_until_it_pays_for_both_restarts() -> None:
    """Preempted iff owed_k - owed_i >= h gang_k (restart_i + restart_k): with half a share each, after 8 s."""
    fleet = shared("c")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "c")))
    running(fleet, J1, 0.0)
    fleet.tell(ev.JobSubmitted(0.0, job(2, "c")))
    fleet.answer({1: {"c": 0.5}, 2: {"c": 0.5}})
    while fleet.solves:
        fleet.answer({1: {"c": 0.5}, 2: {"c": 0.5}})
    assert not revoked(fleet.tell(ev.Woke(7.0)))
    # h = 2, gang 1, restarts 2 + 2: the advantage must reach 8. It grows by one per second.
    assert revoked(fleet.wake()) == {1: Reason.POLICY_PREEMPTED}
    assert fleet.at == 10.0
    assert starts(fleet.end(J1, exit_code=85)) == [2]


def test_place_freed_by_an_exchange_cannot_be_stolen() -> None:
    """Whoever comes while the incumbent leaves does not get the place it leaves."""
    fleet = shared("c")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "c")))
    running(fleet, J1, 0.0)
    fleet.tell(ev.JobSubmitted(0.0, job(2, "c")))
    while fleet.solves:
        fleet.answer({1: {"c": 0.5}, 2: {"c": 0.5}})
    while not revoked(fleet.wake()):
        pass
    fleet.tell(ev.JobSubmitted(fleet.at, job(3, "c")))
    assert starts(fleet.end(J1, exit_code=85)) == [2]


def test_higher_class_takes_a_place_at_once() -> None:
    """A high-priority arrival need not wait for the round to end."""
    fleet = shared("c")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "c")))
    running(fleet, J1, 0.0)
    assert revoked(fleet.tell(ev.JobSubmitted(1.0, job(2, "c", priority=90)))) == {1: Reason.POLICY_PREEMPTED}
    assert starts(fleet.end(J1, exit_code=85)) == [2]


def test_opportunist_leaves_for_the_entitled() -> None:
    """A job on a place where it has no share makes room for one that has, without hysteresis."""
    fleet = shared("bc")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "b", 2)))
    fleet.tell(ev.JobSubmitted(0.0, job(2)))
    running(fleet, J1, 0.0)
    running(fleet, J2, 0.0)
    fleet.tell(ev.JobSubmitted(0.0, job(3)))
    assert fleet.attempts[J1].placement.pool_id == "b"
    fleet.answer({2: {"b": 1.0}})
    while fleet.solves:
        fleet.answer({2: {"b": 1.0}, 3: {"c": 1.0}})
    assert J2 in fleet.core.ledger.jobs
    assert fleet.attempts[J2].stopping  # it ran on c, where only job 3 has a share
    assert starts(fleet.end(J2, exit_code=85)) == [3]


def test_job_moves_to_the_pool_where_it_is_owed_time() -> None:
    """A running job whose share lies elsewhere is moved when that pays for its restart."""
    fleet = shared("ac")
    fleet.tell(ev.JobSubmitted(0.0, job(1)))
    running(fleet, J1, 0.0)
    assert fleet.attempts[J1].placement.pool_id == "a"
    fleet.answer({1: {"c": 1.0}})
    commands = fleet.wake()
    assert revoked(commands) == {1: Reason.POLICY_MOVED}
    assert starts(fleet.end(J1, exit_code=85)) == [1]
    assert fleet.attempts[J1].placement.pool_id == "c"


def test_gang_collects_its_place_and_borrowers_leave() -> None:
    """A gang that fits nowhere gets a reservation; those who borrow from it are asked to go when only they are left."""
    fleet = shared("a")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", 2)))
    running(fleet, J1, 0.0)
    fleet.tell(ev.JobSubmitted(0.0, job(2, "a", 4)))
    while fleet.solves:
        fleet.answer({1: {"a": 0.5}, 2: {"a": 0.5}})
    fleet.tell(ev.JobSubmitted(1.0, job(3, "a", 1)))
    while fleet.solves:
        fleet.answer({1: {"a": 0.4}, 2: {"a": 0.4}, 3: {"a": 0.4}})
    assert J3 in fleet.attempts  # it borrows
    assert J2 in fleet.core.cycle.reservations
    running(fleet, J3, 1.0)
    commands = fleet.end(J1)
    assert revoked(commands) == {3: Reason.POLICY_PREEMPTED}
    assert starts(fleet.end(J3, exit_code=85)) == [2]


# ------------------------------------------------------------------------------------------------ renting


def test_rented_machines_come_when_worth_it_and_go_when_idle() -> None:
    """The answer says how many machines to hold; an idle one beyond that is given back after `rent_keep_s`."""
    fleet = FakeFleet()
    rules = RoundRules(round_s=10, resolve_min_s=0, rent_keep_s=30, profiling_share=0)
    fleet.tell(ev.PolicyChanged(0.0, PolicySpec("max_min_fairness"), rules))
    spot = pool("s", market=Market.SPOT, quota=3)
    fleet.tell(ev.PoolDeclared(0.0, spot))
    fleet.tell(ev.JobSubmitted(0.0, job(1, "s")))
    fleet.answer({}, rent={"s": 2})
    rent = fleet.rents.pop()
    assert (rent.machines, rent.pool_id) == (2, "s")
    assert [line.reason for line in pending_reasons(fleet.core, J1)] == [Reason.WAIT_PROVISIONING]
    for number in (1, 2):
        fleet.tell(ev.NodeJoined(1.0, NodeId(f"s{number}"), spot.pool_id, rent.token))
    assert J1 in fleet.attempts
    while fleet.solves:
        fleet.answer({1: {"s": 1.0}}, rent={"s": 1})
    while fleet.at < 60 and fleet.wake_at < 100:
        fleet.wake()
    assert fleet.released == ["s2"]
    (detail,) = [c.detail for _, commands in fleet.log for c in commands if isinstance(c, cmd.ReleaseNode)]
    assert "at 1 USD/h 1 of 2 machines are worth their price" in detail


def test_a_solve_knows_what_is_on_its_way_and_what_fetching_takes() -> None:
    """Machines that were asked for are no part of the capacity, and are not paid for twice."""
    fleet = FakeFleet()
    rules = RoundRules(round_s=10, resolve_min_s=0, profiling_share=0)
    fleet.tell(ev.PolicyChanged(0.0, PolicySpec("max_min_fairness"), rules))
    spot = replace(pool("s", 2, market=Market.SPOT, quota=3), boot_s=90.0, minimum_billing_s=600.0)
    fleet.tell(ev.PoolDeclared(0.0, spot))
    fleet.tell(ev.JobSubmitted(0.0, job(1, "s")))
    fleet.answer({}, rent={"s": 2})
    fleet.tell(ev.JobSubmitted(1.0, job(2, "s")))
    pools = fleet.solves[-1].problem.pools
    assert (pools.capacity.tolist(), pools.coming.tolist()) == ([0.0], [4.0])
    assert (pools.boot_s.tolist(), pools.minimum_billing_s.tolist()) == ([90.0], [600.0])


def test_a_rent_that_failed_is_asked_again_ever_less_often() -> None:
    """Exponential, capped, whatever the pace of solves; explained in the provider's words; a machine begins anew."""
    fleet = FakeFleet()
    rules = RoundRules(round_s=1000, resolve_min_s=1, rent_backoff_s=10, rent_backoff_max_s=35, profiling_share=0)
    fleet.tell(ev.PolicyChanged(0.0, PolicySpec("max_min_fairness"), rules))
    spot = pool("s", market=Market.SPOT, quota=3)
    fleet.tell(ev.PoolDeclared(0.0, spot))
    fleet.tell(ev.JobSubmitted(0.0, job(1, "s")))
    fleet.answer({}, rent={"s": 1})
    asked_at = []
    for _ in range(4):
        asked_at.append(fleet.at)
        fleet.tell(ev.RentFailed(fleet.at, fleet.rents.pop().token, "no capacity in this zone"))
        (line,) = pending_reasons(fleet.core, J1)
        assert line.reason is Reason.WAIT_PROVISIONING
        assert "no capacity in this zone; asked again in" in line.detail
        while not fleet.rents:
            fleet.wake()
            while fleet.solves:
                fleet.answer({}, rent={"s": 1})
    asked_at.append(fleet.at)
    assert [later - earlier for earlier, later in pairwise(asked_at)] == [10, 20, 35, 35]
    fleet.tell(ev.NodeJoined(fleet.at, NodeId("s1"), spot.pool_id, fleet.rents.pop().token))
    state = fleet.core.ledger.fleet.pools[0]
    assert (state.rent_failures, state.rent_problem) == (0, "")


def test_machines_granted_in_part_are_awaited_and_the_others_asked_for_again() -> None:
    """A cloud that has one of two: the one that comes is not rented twice, the one that does not is tried again."""
    fleet = FakeFleet()
    rules = RoundRules(round_s=10, resolve_min_s=0, profiling_share=0)
    fleet.tell(ev.PolicyChanged(0.0, PolicySpec("max_min_fairness"), rules))
    fleet.tell(ev.PoolDeclared(0.0, pool("s", market=Market.SPOT, quota=3)))
    fleet.tell(ev.JobSubmitted(0.0, job(1, "s")))
    fleet.answer({}, rent={"s": 2})
    fleet.tell(ev.RentFailed(1.0, fleet.rents.pop().token, "the market has 1", machines=1))
    while not fleet.rents:
        fleet.wake()  # not at once: a market that has none keeps having none for a while
    assert [rent.machines for rent in fleet.rents] == [1]


# ------------------------------------------------------------------------------------------------ explanations


def test_explain_gives_numbers_and_what_to_change() -> None:
    """Every binding constraint, with its figures; what no waiting cures comes first."""
    fleet = shared("ca")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "tpu")))
    (line,) = pending_reasons(fleet.core, J1)
    assert line.reason is Reason.CONFIG_NO_SUCH_ACCELERATOR
    assert "a, b, c" in line.detail
    fleet.tell(ev.JobSubmitted(0.0, job(2, "a", 16)))
    (line,) = pending_reasons(fleet.core, J2)
    assert line.reason is Reason.CONFIG_EXCEEDS_FLEET
    fleet.tell(ev.JobSubmitted(0.0, job(3, "c")))
    assert pending_reasons(fleet.core, J3) == ()
    fleet.tell(ev.JobSubmitted(0.0, job(4, "c")))
    (line,) = pending_reasons(fleet.core, J4)
    assert line.reason is Reason.WAIT_CAPACITY
    assert "needs 1, 0 of 1 free" in line.detail


def test_explain_says_when_a_gang_does_not_fit_any_machine_or_waits_for_machines_to_join() -> None:
    """Too much memory for each accelerator, or an uneven spread, never runs; a pool without machines yet may."""
    fleet = shared("c")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "c", 1, memory_bytes_per_accelerator=1 << 40)))
    fleet.tell(ev.JobSubmitted(0.0, job(2, "c", 4, nodes=2)))
    fleet.tell(ev.JobSubmitted(0.0, job(3, "a", 16)))
    for job_id, field in ((J1, "1 x c with 0 cpus and 1.02e+03 GiB"), (J2, "4 x c spread evenly over 2 machines")):
        (line,) = pending_reasons(fleet.core, job_id)
        assert line.reason is Reason.CONFIG_EXCEEDS_LARGEST_NODE
        assert field in line.detail
        assert line.fix
    (line,) = pending_reasons(fleet.core, J3)
    assert (line.reason, "more of its machines must join" in line.detail) == (Reason.WAIT_CAPACITY, True)


def test_explain_names_who_holds_the_place_and_which_machine_is_silent() -> None:
    """A person can go and look at the job, or at the machine."""
    fleet = shared("c")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "c")))
    fleet.tell(ev.JobSubmitted(0.0, job(2, "c")))
    assert "held by job 1" in pending_reasons(fleet.core, J2)[0].detail
    fleet.tell(ev.NodeUnreachable(1.0, NodeId("c1")))
    assert "c1 is unreachable" in pending_reasons(fleet.core, J2)[0].detail
    assert "no heartbeat from c1" in pending_reasons(fleet.core, J1)[0].detail
    fleet.tell(ev.JobCancelled(2.0, J1))
    assert pending_reasons(fleet.core, J1)[0].detail == "being cancelled: its attempt is stopping; no heartbeat from c1"


def test_explain_counts_who_is_ahead_and_changes_nothing() -> None:
    """The place in line is counted in the lines themselves; asking leaves every number of the ledger as it was."""
    fleet = shared("c")
    for number in range(1, 6):
        fleet.tell(ev.JobSubmitted(0.0, job(number, "c")))
    fleet.tell(JobReprioritised(3.0, JobId(5), 90))
    fleet.tell(ev.Woke(4.0))
    columns = fleet.core.ledger.columns
    before = (columns.owed.copy(), columns.settled_at.copy(), columns.attained_s.copy())
    told = {
        number: pending_reasons(fleet.core, JobId(number))[-1].detail
        for number in range(1, 6)
        if fleet.attempts.get(JobId(number)) is None
    }
    assert sorted(detail.split(" ahead")[0].split("; ")[-1] for detail in told.values()) == ["0", "1", "2", "3"]
    assert (before[0] == columns.owed).all()
    assert (before[1] == columns.settled_at).all()
    assert (before[2] == columns.attained_s).all()


def test_the_first_reason_of_a_listing_is_the_first_of_the_explanation() -> None:
    """Without the place in line, and None for a job that runs."""
    fleet = shared("c")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "c")))
    fleet.tell(ev.JobSubmitted(0.0, job(2, "c")))
    assert first_pending_reason(fleet.core, J1) is None
    line = first_pending_reason(fleet.core, J2)
    assert line is not None
    assert (line.reason, "ahead" in line.detail) == (Reason.WAIT_CAPACITY, False)
