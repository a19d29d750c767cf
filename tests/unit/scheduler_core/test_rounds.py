"""The round mechanism: fill, reserve, lend, exchange, move; prices, solves in flight, renting, explanations."""

from dataclasses import replace
from itertools import pairwise

import pytest
from fake_fleet import FakeFleet, cluster, fleet_of, job, pool, revoked, starts
from planned_fleet import TURNS, measured, planning

from optimizer.policy import Policy, PolicySpec
from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle.backfill import STARTS_AT_ONCE
from scheduler.core.cycle.problem_snapshot import build_problem
from scheduler.core.cycle.round import MECHANISMS
from scheduler.core.events import FLEET, EntityShare, JobReprioritised, ShareLimit, SharesDeclared
from scheduler.core.explain.pending_reasons import first_pending_reason, pending_reasons
from scheduler.core.rules import Backfill, RoundRules, parse_rules
from scheduler.core.state.working_set import Cycle, JobOrdering
from walras.cluster import Market, NodeId, Pool, PoolId
from walras.errors import ConfigError
from walras.job_request import Demand, JobId, JobRequest, Kind
from walras.states import Reason

J1, J2, J3, J4 = JobId(1), JobId(2), JobId(3), JobId(4)
SPOT = pool("s", market=Market.SPOT, quota=3)


def shared(machines: str = "a", rules: RoundRules = TURNS) -> FakeFleet:
    return planning(machines, "max_min_fairness", rules)


def test_strict_order_lets_nobody_pass_the_first_in_line() -> None:
    """Head of line: a small job waits behind a large one that does not fit."""
    fleet = cluster("fifo", strict=True)
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", 3)))
    fleet.tell(ev.JobSubmitted(1.0, job(2, "a", 4)))
    assert not starts(fleet.tell(ev.JobSubmitted(2.0, job(3, "a", 1))))
    assert list(starts(fleet.end(J1))) == [2]


@pytest.mark.parametrize("states", ["steps", "duration_s", "max_runtime_s"])
def test_backfill_never_delays_the_reservation_unless_it_is_free(states: str) -> None:
    """EASY: only a job that ends, by its work or its limit, before the first in line can start. FREE: whoever fits."""
    fleet = measured(cluster("fifo", rules=RoundRules(restart_default_s=0), strict=False))

    def submit(number: int, accelerators: int, seconds: float) -> dict[int, str]:
        stated = {states: seconds * (4 * accelerators if states == "steps" else 1)}
        return starts(fleet.tell(ev.JobSubmitted(0.0, job(number, "a", accelerators, preemptible=False, **stated))))

    submit(1, 2, 100.0)
    assert not submit(2, 4, 50.0)  # needs everything: starts at 100
    assert not submit(3, 1, 200.0)
    assert list(submit(4, 1, 50.0)) == [4]
    fleet.at = 50.0
    fleet.end(J4)
    fleet.at = 100.0
    assert list(starts(fleet.end(J1))) == [2]
    fleet = cluster("fifo", rules=RoundRules(backfill=Backfill.FREE), strict=False)
    fleet.submit(job(1, "a", 2), job(2, "a", 4))
    assert list(starts(fleet.tell(ev.JobSubmitted(0.0, job(3, "a", 1))))) == [3]


@pytest.mark.parametrize("policy", ["fifo", "max_min_fairness"])
def test_a_newcomer_starts_at_once_on_the_fastest_pool_with_room(policy: str) -> None:
    """No solve is waited for; an order chooses the type for the job, too."""
    fleet = measured(cluster(policy, rules=TURNS, machines="ba"))
    assert list(starts(fleet.tell(ev.JobSubmitted(0.0, job(1))))) == [1]
    assert fleet.attempts[J1].placement.pool_id == "a"


def test_one_solve_in_flight_and_old_answers_count() -> None:
    """An event during a solve asks again after it; the late answer is applied, unless the policy has changed."""
    fleet = shared("a")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", 2)))
    assert len(fleet.solves) == 1
    fleet.tell(ev.JobSubmitted(1.0, job(2, "a", 2)))
    assert len(fleet.solves) == 1
    commands = fleet.answer({1: {"a": 0.5}})
    assert fleet.core.ledger.columns.entitled[fleet.core.ledger.jobs[J1].slot].tolist() == [1.0, 0.0, 0.0]
    assert any(isinstance(c, cmd.Solve) for c in commands)
    fleet = shared("a")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", 2)))
    fleet.tell(ev.PolicyChanged(1.0, PolicySpec("max_min_fairness"), TURNS))
    commands = fleet.answer({1: {"a": 0.5}})
    assert fleet.core.ledger.policy.proposal is None
    assert any(isinstance(c, cmd.Solve) for c in commands)


def test_lost_capacity_scales_an_old_answer_down() -> None:
    """Entitlements never exceed what is there."""
    fleet = shared("aa")
    fleet.submit(job(1, "a", 4), job(2, "a", 4))
    fleet.answer({1: {"a": 1.0}})
    fleet.lose(NodeId("a2"))
    fleet.answer({1: {"a": 1.0}, 2: {"a": 1.0}})
    assert fleet.core.ledger.columns.entitled.sum() <= 4.0 + 1e-9


def test_exchange_waits_until_it_pays_for_both_restarts() -> None:
    """Preempted iff owed_k - owed_i >= h gang_k (restart_i + restart_k): with half a share each, after 8 s."""
    fleet = shared("c")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "c")))
    fleet.run(1)
    fleet.tell(ev.JobSubmitted(0.0, job(2, "c")))
    fleet.answer({1: {"c": 0.5}, 2: {"c": 0.5}})
    while fleet.solves:
        fleet.answer({1: {"c": 0.5}, 2: {"c": 0.5}})
    assert not revoked(fleet.tell(ev.Woke(7.0)))
    # h = 2, gang 1, restarts 2 + 2: the advantage must reach 8. It grows by one per second.
    assert revoked(fleet.wake()) == {1: Reason.POLICY_PREEMPTED}
    assert fleet.at == 10.0
    fleet.tell(ev.JobSubmitted(10.0, job(3, "c")))  # whoever comes meanwhile does not get the place
    assert list(starts(fleet.end(J1, exit_code=85))) == [2]


def test_higher_class_takes_a_place_at_once() -> None:
    """A high-priority arrival need not wait for the round to end."""
    fleet = shared("c")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "c")))
    fleet.run(1)
    assert revoked(fleet.tell(ev.JobSubmitted(1.0, job(2, "c", priority=90)))) == {1: Reason.POLICY_PREEMPTED}
    assert list(starts(fleet.end(J1, exit_code=85))) == [2]


def test_opportunist_leaves_for_the_entitled() -> None:
    """A job on a place where it has no share makes room for one that has, without hysteresis."""
    fleet = shared("bc")
    fleet.submit(job(1, "b", 2), job(2))
    fleet.run(1)
    fleet.run(2)
    fleet.tell(ev.JobSubmitted(0.0, job(3)))
    assert fleet.attempts[J1].placement.pool_id == "b"
    fleet.answer({2: {"b": 1.0}})
    while fleet.solves:
        fleet.answer({2: {"b": 1.0}, 3: {"c": 1.0}})
    assert J2 in fleet.core.ledger.jobs
    assert fleet.attempts[J2].stopping  # it ran on c, where only job 3 has a share
    assert list(starts(fleet.end(J2, exit_code=85))) == [3]


def test_job_moves_to_the_pool_where_it_is_owed_time() -> None:
    """A running job whose share lies elsewhere is moved when that pays for its restart."""
    fleet = shared("ac")
    fleet.tell(ev.JobSubmitted(0.0, job(1)))
    fleet.run(1)
    assert fleet.attempts[J1].placement.pool_id == "a"
    fleet.answer({1: {"c": 1.0}})
    commands = fleet.wake()
    assert revoked(commands) == {1: Reason.POLICY_MOVED}
    assert list(starts(fleet.end(J1, exit_code=85))) == [1]
    assert fleet.attempts[J1].placement.pool_id == "c"


def test_gang_collects_its_place_and_borrowers_leave() -> None:
    """A gang that fits nowhere gets a reservation; those who borrow from it are asked to go when only they are left."""
    fleet = reserved_and_borrowed()
    assert J3 in fleet.attempts  # it borrows
    assert revoked(fleet.end(J1)) == {3: Reason.POLICY_PREEMPTED}
    assert list(starts(fleet.end(J3, exit_code=85))) == [2]


def reserved_and_borrowed(**fields: object) -> FakeFleet:
    """Job 1 runs on half of a machine, which is reserved for job 2; job 3 borrows from that."""
    fleet = shared("a")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", 2)))
    fleet.run(1)
    fleet.tell(ev.JobSubmitted(0.0, job(2, "a", 4)))
    while fleet.solves:
        fleet.answer({1: {"a": 0.5}, 2: {"a": 0.5}})
    fleet.tell(ev.JobSubmitted(1.0, job(3, "a", 1, **fields)))
    while fleet.solves:
        fleet.answer({1: {"a": 0.4}, 2: {"a": 0.4}, 3: {"a": 0.4}})
    assert J2 in fleet.core.cycle.reservations
    fleet.run(3)
    return fleet


def test_a_job_that_left_what_it_borrowed_is_not_asked_for_it() -> None:
    """It runs on another pool when the gang calls in what it has lent."""
    fleet = shared("ac")
    for request in (job(1, "a", 2), job(5, "c"), job(2, "a", 4), job(3), job(4, "a")):
        fleet.tell(ev.JobSubmitted(0.0, request))
        while fleet.solves:
            fleet.answer({job_id: {"a": 0.4, "c": 0.4} for job_id in fleet.core.ledger.jobs})
    assert set(fleet.core.cycle.reservations[J2].lent) == {J3, J4}
    fleet.at = 1.0
    for job_id in (J3, J4):
        fleet.run(job_id)
    fleet.end(JobId(5))
    fleet.end(J3, exit_code=85)
    assert fleet.attempts[J3].placement.pool_id == "c"
    assert revoked(fleet.end(J1)) == {4: Reason.POLICY_PREEMPTED}


def test_a_borrower_of_a_higher_class_keeps_its_place() -> None:
    """A lower class stops no higher one, not even for a place that it has reserved: it waits for the borrower's end."""
    fleet = reserved_and_borrowed(priority=80)
    assert revoked(fleet.end(J1)) == {}
    assert list(starts(fleet.end(J3))) == [2]


def behind_a_reservation(*requests: JobRequest) -> FakeFleet:
    """Job 1 runs on half of a machine, which is reserved for job 2; the others come then."""
    fleet = shared("a")
    for request in (job(1, "a", 2), job(2, "a", 4), *requests):
        fleet.tell(ev.JobSubmitted(0.0, request))
        while fleet.solves:
            fleet.answer({job_id: {"a": 0.4} for job_id in fleet.core.ledger.jobs})
    return fleet


def test_what_a_lower_class_has_reserved_goes_to_a_higher_one() -> None:
    """Also to a job that neither can be stopped nor says when it ends, which could not borrow it."""
    for priority, starts_now in ((50, False), (80, True)):
        request = job(3, "a", 1, priority=priority, preemptible=False, steps=None)
        assert (J3 in behind_a_reservation(request).attempts) == starts_now


def limits(*of: int) -> SharesDeclared:
    return SharesDeclared(2.0, tuple(EntityShare("default", limits=(ShareLimit(FLEET, most),)) for most in of))


def test_nobody_leaves_for_a_gang_above_its_limit() -> None:
    """A limit that was lowered below a gang gives its reservation up; without the limit its place comes together."""
    fleet = reserved_and_borrowed(project="another")
    fleet.tell(limits(2))
    assert revoked(fleet.end(J1)) == {}
    fleet.tell(limits())
    assert list(starts(fleet.end(J3))) == [2]


@pytest.mark.parametrize("lifts", ["limit", "end"])
def test_a_complete_place_is_taken_once_the_limit_allows_it(lifts: str) -> None:
    """What else its project holds keeps a gang from the place it has collected: until that ends, or the limit goes."""
    fleet = shared("ac")
    for request in (job(1, "a", 2), job(4, "c"), job(2, "a", 4)):
        fleet.tell(ev.JobSubmitted(0.0, request))
        while fleet.solves:
            fleet.answer({job_id: {"a": 0.4, "c": 0.4} for job_id in fleet.core.ledger.jobs})
    fleet.tell(limits(4))
    assert J2 in fleet.core.cycle.reservations
    assert not starts(fleet.end(J1))
    assert list(starts(fleet.tell(limits()) if lifts == "limit" else fleet.end(J4))) == [2]


def test_a_reserved_place_is_not_taken_while_one_of_its_machines_is_silent() -> None:
    """The gang starts when the machine is heard of again, not onto a machine that may be gone."""
    fleet = shared("aa")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", 2)))
    fleet.run(1)
    fleet.tell(ev.JobSubmitted(0.0, job(2, "a", 8)))
    while fleet.solves:
        fleet.answer({1: {"a": 0.5}, 2: {"a": 0.5}})
    assert J2 in fleet.core.cycle.reservations
    taken = {part.node_id for part in fleet.attempts[J1].placement.parts}
    (other,) = {"a1", "a2"} - taken
    fleet.tell(ev.NodeUnreachable(1.0, NodeId(other)))
    assert not any(isinstance(each, cmd.Prepare) for each in fleet.end(J1))
    assert any(isinstance(each, cmd.Prepare) for each in fleet.tell(ev.NodeBack(3.0, NodeId(other))))


def test_rented_machines_come_when_worth_it_and_go_when_idle() -> None:
    """The answer says how many machines to hold; an idle one beyond that is given back after `rent_keep_s`."""
    fleet = renting(2, rent_keep_s=30)
    rent = fleet.rents.pop()
    assert (rent.machines, rent.pool_id) == (2, "s")
    assert [line.reason for line in pending_reasons(fleet.core, J1)] == [Reason.WAIT_PROVISIONING]
    for number in (1, 2):
        fleet.tell(ev.NodeJoined(1.0, NodeId(f"s{number}"), SPOT.pool_id, rent.token))
    assert J1 in fleet.attempts
    while fleet.solves:
        fleet.answer({1: {"s": 1.0}}, rent={"s": 1})
    while fleet.at < 60 and fleet.wake_at < 100:
        fleet.wake()
    assert fleet.released == ["s2"]
    (detail,) = [c.detail for _, commands in fleet.log for c in commands if isinstance(c, cmd.ReleaseNode)]
    assert "at 1 USD/h 1 of 2 machines are worth their price" in detail


def renting(machines: int, *, declared: Pool = SPOT, **rules: float) -> FakeFleet:
    """Max-min fairness has asked for so many spot machines for job 1."""
    rules = {"round_s": 10, "resolve_min_s": 0, "profiling_share": 0, **rules}
    fleet = fleet_of(declared, policy="max_min_fairness", **rules)
    fleet.tell(ev.JobSubmitted(0.0, job(1, "s")))
    fleet.answer({}, rent={"s": machines})
    return fleet


def test_a_solve_knows_what_is_on_its_way_and_what_fetching_takes() -> None:
    """Machines that were asked for are no part of the capacity, and are not paid for twice."""
    spot = replace(pool("s", 2, market=Market.SPOT, quota=3), boot_s=90.0, minimum_billing_s=600.0)
    fleet = renting(2, declared=spot)
    fleet.tell(ev.JobSubmitted(1.0, job(2, "s")))
    pools = fleet.solves[-1].problem.pools
    assert (pools.capacity.tolist(), pools.coming.tolist()) == ([0.0], [4.0])
    assert (pools.boot_s.tolist(), pools.minimum_billing_s.tolist()) == ([90.0], [600.0])


@pytest.mark.parametrize("quota", [3, 1, 0])
def test_machines_beyond_a_lowered_quota_cost_money_until_they_are_given_back(quota: int) -> None:
    """A plan that took them for owned ones would keep them for jobs that would not pay for them."""
    spot = pool("s", 2, market=Market.SPOT, quota=3)
    fleet = renting(1, declared=spot)
    fleet.tell(ev.NodeJoined(fleet.at, NodeId("s1"), spot.pool_id, fleet.rents.pop().token))
    while fleet.solves:
        fleet.answer({1: {"s": 1.0}}, rent={"s": 1})
    fleet.tell(ev.PoolDeclared(fleet.at, replace(spot, quota=quota)))
    fleet.tell(ev.JobSubmitted(fleet.at, job(2, "s")))
    pools = fleet.solves[-1].problem.pools
    assert (pools.capacity.tolist(), pools.rented.tolist()) == ([2.0], [2.0])


@pytest.mark.parametrize(
    ("came", "fails", "drained", "most"),
    [
        (0, None, False, 6.0),
        (0, 2, False, 0.0),
        (1, 1, False, 2.0),
        (0, 1, False, 6.0),
        (1, None, True, 0.0),
        (0, 2, True, 0.0),
        (1, 1, True, 0.0),
    ],
)
def test_a_plan_counts_on_no_machines_that_a_provider_refuses(
    came: int, fails: int | None, drained: bool, most: float
) -> None:
    """All that was missing is refused: what is there stays, until it is asked again. A drained pool has no more."""
    spot = pool("s", 2, market=Market.SPOT, quota=3)
    fleet = renting(2, declared=spot, rent_backoff_s=1000, rent_backoff_max_s=1000)
    token = fleet.rents.pop().token
    for number in range(came):
        fleet.tell(ev.NodeJoined(fleet.at, NodeId(f"s{number}"), spot.pool_id, token))
    if fails is not None:
        fleet.tell(ev.RentFailed(fleet.at, token, "no capacity", fails))
    if drained:
        fleet.tell(ev.PoolDeclared(fleet.at, replace(spot, drained=True)))
    assert build_problem(fleet.core.ledger).pools.rentable.tolist() == [most]
    fleet.until(fleet.at + 1001.0)
    assert build_problem(fleet.core.ledger).pools.rentable.tolist() == [0.0 if drained else 6.0]


def test_a_rent_that_failed_is_asked_again_ever_less_often() -> None:
    """Exponential, capped, whatever the pace of solves; explained in the provider's words; a machine begins anew."""
    fleet = renting(1, round_s=1000, resolve_min_s=1, rent_backoff_s=10, rent_backoff_max_s=35)
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
    fleet.tell(ev.NodeJoined(fleet.at, NodeId("s1"), SPOT.pool_id, fleet.rents.pop().token))
    state = fleet.core.ledger.fleet.pools[0]
    assert (state.rent_failures, state.rent_problem) == (0, "")


def test_machines_granted_in_part_are_awaited_and_the_others_asked_for_again() -> None:
    """A cloud that has one of two: the one that comes is not rented twice, the one that does not is tried again."""
    fleet = renting(2)
    fleet.tell(ev.RentFailed(1.0, fleet.rents.pop().token, "the market has 1", machines=1))
    while not fleet.rents:
        fleet.wake()  # not at once: a market that has none keeps having none for a while
    assert [rent.machines for rent in fleet.rents] == [1]


def test_explain_gives_numbers_and_what_to_change() -> None:
    """Every binding constraint with its figures, who holds the place, which machine is silent; a list has the first."""
    fleet = shared("ca")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "tpu")))
    (line,) = pending_reasons(fleet.core, J1)
    assert line.reason is Reason.CONFIG_NO_SUCH_ACCELERATOR
    assert "a, b, c" in line.detail
    fleet.tell(ev.JobSubmitted(0.0, job(2, "a", 16)))
    (line,) = pending_reasons(fleet.core, J2)
    assert line.reason is Reason.CONFIG_EXCEEDS_FLEET
    fleet.tell(ev.JobSubmitted(0.0, job(3, "c")))
    assert (pending_reasons(fleet.core, J3), first_pending_reason(fleet.core, J3)) == ((), None)
    fleet.tell(ev.JobSubmitted(0.0, job(4, "c")))
    (line,) = pending_reasons(fleet.core, J4)
    assert line.reason is Reason.WAIT_CAPACITY
    assert "needs 1, 0 of 1 free" in line.detail
    assert "held by job 3" in line.detail
    first = first_pending_reason(fleet.core, J4)
    assert (first.reason, "ahead" in first.detail) == (Reason.WAIT_CAPACITY, False)
    fleet.tell(ev.NodeUnreachable(1.0, NodeId("c1")))
    assert "c1 is unreachable" in pending_reasons(fleet.core, J4)[0].detail
    assert "no heartbeat from c1" in pending_reasons(fleet.core, J3)[0].detail
    fleet.tell(ev.JobCancelled(2.0, J3))
    assert pending_reasons(fleet.core, J3)[0].detail == "being cancelled: its attempt is stopping; no heartbeat from c1"
    fleet = shared("c")
    fleet.submit(job(1, "c", 1, memory_bytes_per_accelerator=1 << 40), job(2, "c", 4, nodes=2), job(3, "a", 16))
    for job_id, field in ((J1, "1 x c with 0 cpus and 1.02e+03 GiB"), (J2, "4 x c spread evenly over 2 machines")):
        (line,) = pending_reasons(fleet.core, job_id)
        assert line.reason is Reason.CONFIG_EXCEEDS_LARGEST_NODE
        assert field in line.detail
        assert line.fix
    (line,) = pending_reasons(fleet.core, J3)
    assert (line.reason, "more of its machines must join" in line.detail) == (Reason.WAIT_CAPACITY, True)


@pytest.mark.parametrize("policy", ["max_min_fairness", "las"])
def test_explain_counts_who_is_ahead_and_changes_nothing(policy: str) -> None:
    """The place in line is counted in the lines themselves; asking leaves every number of the ledger as it was."""
    fleet = measured(cluster(policy, rules=TURNS, machines="c"))
    for number in range(1, 6):
        fleet.tell(ev.JobSubmitted(0.0, job(number, "c")))
    fleet.tell(JobReprioritised(3.0, JobId(5), 90))
    fleet.tell(ev.Woke(4.0))
    columns = fleet.core.ledger.columns
    before = [each.copy() for each in (columns.owed, columns.settled_at, columns.attained_s)]
    told = {
        number: pending_reasons(fleet.core, JobId(number))[-1].detail
        for number in range(1, 6)
        if fleet.attempts.get(JobId(number)) is None
    }
    assert sorted(detail.split(" ahead")[0].split("; ")[-1] for detail in told.values()) == ["0", "1", "2", "3"]
    for was, now in zip(before, (columns.owed, columns.settled_at, columns.attained_s), strict=True):
        assert (was == now).all()


HALVES = {1: {"c": 0.5}, 2: {"c": 0.5}}
LATE = RoundRules(
    round_s=10, resolve_min_s=10, min_runtime_s=5, restart_default_s=1, profiling_share=0, tolerated_lag=0.0
)


def due_at_the_round_end() -> FakeFleet:
    """Two jobs share one accelerator; at 20 s the one that waits is owed the place, and a solve is asked for."""
    fleet = measured(cluster("max_min_fairness", rules=LATE, machines="c"))
    fleet.tell(ev.JobSubmitted(0.0, job(1, "c")))
    fleet.tell(ev.AttemptStarted(0.0, J1, fleet.attempts[J1].number))
    fleet.tell(ev.JobSubmitted(0.0, job(2, "c")))
    fleet.answer({1: {"c": 1.0}})
    fleet.tell(ev.Woke(10.0))
    assert revoked(fleet.answer(HALVES)) == {}
    fleet.tell(JobReprioritised(11.0, J2, 50))
    assert not fleet.solves
    assert revoked(fleet.tell(ev.Woke(20.0))) == {}
    assert len(fleet.solves) == 1
    return fleet


def test_a_round_that_asks_for_a_solve_compares_by_its_answer() -> None:
    """The shares in force decide where it fails, or takes longer than a round."""
    assert list(revoked(due_at_the_round_end().answer(HALVES))) == [1]
    assert revoked(due_at_the_round_end().answer({1: {"c": 1.0}})) == {}
    fleet = due_at_the_round_end()
    assert list(revoked(fleet.tell(ev.SolveFailed(22.0, fleet.solves.pop().request_id, "out of time")))) == [1]
    assert list(revoked(due_at_the_round_end().tell(ev.Woke(30.0)))) == [1]


#: h = 16, restarts 5 + 5, gang 4: 640 accelerator-seconds. It can be owed 240 at most, and those who run 60 too much.
DEAR = replace(TURNS, restart_default_s=5, hysteresis=16, owed_limit_rounds=6)
SINGLES = (1, 2, 3, 4)


def stopped_for_a_gang(*, loses_work: bool = False) -> list[int]:
    """Four jobs that never end hold a machine of four; a gang of four waits for 400 s: whom it has stopped."""
    fleet = measured(cluster("max_min_fairness", rules=DEAR))
    for number in SINGLES:
        fleet.tell(ev.JobSubmitted(0.0, job(number, "a", 1)))
        fleet.tell(ev.AttemptStarted(0.0, JobId(number), 1))
        columns = fleet.core.ledger.columns
        columns.loses_work[fleet.core.ledger.jobs[JobId(number)].slot] = loses_work
    fleet.tell(ev.JobSubmitted(0.0, job(5, "a", 4)))
    stopped: list[int] = []
    while fleet.at < 400 and not stopped:
        while fleet.solves:
            fleet.answer({number: {"a": 0.5} for number in range(1, 6)})
        stopped = [command.job_id for command in fleet.wake() if isinstance(command, cmd.Revoke)]
    return stopped


def test_a_gang_has_its_turn_where_an_exchange_costs_more_than_is_remembered() -> None:
    """Jobs that never end must not keep their places for ever; those that would lose their work are never done."""
    assert sorted(stopped_for_a_gang()) == [*SINGLES]
    assert stopped_for_a_gang(loses_work=True) == []


JOBS = 2 * STARTS_AT_ONCE + 50


def test_what_one_event_does_not_start_the_next_ones_do_at_the_same_instant() -> None:
    """A machine joins that has room for all who wait: in order, and with nothing in between."""
    fleet = FakeFleet()
    fleet.tell(ev.PolicyChanged(0.0, PolicySpec("fifo"), RoundRules(round_s=300.0)))
    fleet.tell(ev.PoolDeclared(0.0, pool("a", JOBS)))
    for number in range(1, JOBS + 1):
        fleet.tell(ev.JobSubmitted(1.0, job(number, "a")))
    fleet.log.clear()
    fleet.tell(ev.NodeJoined(10.0, NodeId("n1"), PoolId("a")))
    while fleet.wake_at == 10.0:
        fleet.tell(ev.Woke(10.0))
    assert [len(starts(commands)) for _, commands in fleet.log] == [STARTS_AT_ONCE, STARTS_AT_ONCE, 50]
    assert list(fleet.attempts) == list(range(1, JOBS + 1))


def test_where_places_stay_idle_until_the_rounds_end_all_start_then() -> None:
    fleet = FakeFleet()
    fleet.tell(ev.PolicyChanged(0.0, PolicySpec("fifo"), RoundRules(round_s=300.0, idle_to_round_end=True)))
    fleet.tell(ev.PoolDeclared(0.0, pool("a", JOBS)))
    fleet.tell(ev.NodeJoined(0.0, NodeId("n1"), PoolId("a")))
    for number in range(1, JOBS + 1):
        fleet.tell(ev.JobSubmitted(1.0, job(number, "a")))
    while not fleet.attempts:
        fleet.tell(ev.Woke(fleet.wake_at))
    assert fleet.at == 300.0
    assert max([len(starts(commands)) for _, commands in fleet.log]) == len(fleet.attempts) == JOBS


class _Counting:
    """A mechanism that starts nobody and counts what it is called for."""

    calls = 0

    def __init__(self, cycle: Cycle, policy: Policy, rules: RoundRules) -> None:
        self.rules = rules

    def settle(self, cycle: Cycle) -> None:
        type(self).calls += 1


def test_the_rules_name_the_mechanism_and_it_settles_every_event() -> None:
    """A core that was handed another mechanism uses it from the policy change on, and goes back as easily."""
    core = SchedulerCore(mechanisms={**MECHANISMS, "counting": _Counting})
    core.handle(ev.PolicyChanged(0.0, PolicySpec("fifo"), RoundRules(mechanism="counting")))
    core.handle(ev.JobSubmitted(1.0, JobRequest(JobId(1), Kind("net"), demands=(Demand("a100", 1),))))
    assert _Counting.calls == 2
    assert type(core.cycle.ordering) is JobOrdering
    core.handle(ev.PolicyChanged(2.0, PolicySpec("fifo"), RoundRules()))
    assert _Counting.calls == 2
    assert type(core.cycle.ordering) is not JobOrdering


@pytest.mark.parametrize("part", [-0.1, 1.5, float("nan"), float("inf")])
def test_a_tolerated_lag_is_a_part(part: float) -> None:
    """What cannot be a part of what was received is refused, and the field is named."""
    with pytest.raises(ConfigError, match=r"rules\.tolerated_lag"):
        parse_rules({"tolerated_lag": part})
    assert parse_rules({"tolerated_lag": 0}).tolerated_lag == 0.0
    assert parse_rules({"tolerated_lag": 1}).tolerated_lag == 1.0
