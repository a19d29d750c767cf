"""Two jobs on one accelerator: put together where it pays, memory and money right, separated where it loses."""

from dataclasses import replace
from math import inf
from random import Random
from typing import Any

import pytest
from fake_fleet import FakeFleet, job, pool, revoked

from optimizer.policy import PolicySpec
from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.events import Booking, BookingsDeclared
from scheduler.core.rules import RoundRules
from scheduler.core.speed_events import SpeedDiffers, ThroughputMeasured
from scheduler.core.state.shared_accelerators import beside_kind
from walras.cluster import NodeId
from walras.job_request import DeviceShare, JobId, JobRequest, Kind, RetryRule
from walras.states import Reason

GIB = 1 << 30
RULES = RoundRules(round_s=10, resolve_min_s=0, min_runtime_s=5, restart_default_s=2, profiling_share=0)
POLICIES = ("fifo", "las", "max_min_fairness", "walras")


def fleet_of(
    policy: str = "fifo", machines: int = 1, memory_gib: int = 16, usd_per_h: float = 0.0, *, strict: bool = False
) -> FakeFleet:
    """Machines with one accelerator of type c each; kinds x, y and z run alone there at 10 steps/s."""
    fleet = FakeFleet()
    parameters = {"strict": strict} if policy == "fifo" else {}
    fleet.tell(ev.PolicyChanged(0.0, PolicySpec(policy, parameters), RULES))
    declared = pool("c", 1)
    shape = replace(declared.shape, accelerator_memory_bytes=memory_gib * GIB)
    fleet.tell(ev.PoolDeclared(0.0, replace(declared, shape=shape, usd_per_h=usd_per_h)))
    for number in range(1, machines + 1):
        fleet.tell(ev.NodeJoined(0.0, NodeId(f"c{number}"), declared.pool_id))
    for kind in ("x", "y", "z"):
        fleet.tell(ThroughputMeasured(0.0, Kind(kind), "c", 1, 10.0))
    return fleet


def willing(
    job_id: int, kind: str = "x", *, memory_gib: int = 8, busy: float | None = 0.5, **more: object
) -> JobRequest:
    return job(job_id, "c", 1, kind=Kind(kind), steps=1e6, shared=DeviceShare(memory_gib * GIB, busy), **more)


def submit(fleet: FakeFleet, request: JobRequest) -> list[cmd.Command]:
    commands = fleet.tell(ev.JobSubmitted(fleet.at, request))
    while fleet.solves:  # the first ones in the order of admission
        capacity = fleet.core.ledger.fleet.pools[0].capacity
        shares: dict[int, dict[str, float]] = {each: {"c": 1.0} for each in sorted(fleet.core.ledger.jobs)[:capacity]}
        commands = [*commands, *fleet.answer(shares)]
    return commands


def report(fleet: FakeFleet, job_id: int, steps_per_s: float, windows: int, steps: float = 1.0) -> list[cmd.Command]:
    number = fleet.attempts[JobId(job_id)].number
    return fleet.tell(ev.AttemptProgressed(fleet.at, JobId(job_id), number, steps, steps_per_s, windows))


def beside(commands: list[cmd.Command]) -> dict[int, int | None]:
    return {each.job_id: each.beside for each in commands if isinstance(each, cmd.Start)}


def pair_of(fleet: FakeFleet, guest: JobRequest | None = None) -> FakeFleet:
    """Job 1 (kind x) runs, job 2 (kind y) beside it."""
    submit(fleet, willing(1))
    fleet.run(1)
    assert beside(submit(fleet, guest or willing(2, "y"))) == {2: 1}
    fleet.run(2)
    return fleet


def measured_pair(fleet: FakeFleet, host: float, guest: float) -> list[cmd.Command]:
    """Both report their speeds beside each other, as late as they count."""
    report(fleet, 1, 10.0, 100)  # before the guest has made a step
    report(fleet, 2, guest, 1)
    report(fleet, 1, 10.0, 101)  # windows before this one are of the time alone
    first = report(fleet, 1, host, 161)
    return [*first, *report(fleet, 2, guest, 20)]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_waiting_job_is_put_beside_a_running_one(policy: str) -> None:
    """Both agreed, nothing is free, and together they keep the device busy for no more than all of the time."""
    fleet = fleet_of(policy)
    submit(fleet, willing(1))
    fleet.run(1)
    commands = submit(fleet, willing(2, "y"))
    assert beside(commands) == {2: 1}
    placements = {fleet.attempts[JobId(number)].placement for number in (1, 2)}
    assert len(placements) == 1


def test_it_is_put_there_once_the_other_runs_and_a_free_place_comes_first() -> None:
    fleet = fleet_of()
    submit(fleet, willing(1))
    assert beside(submit(fleet, willing(2, "y"))) == {}
    assert beside(fleet.run(1)) == {2: 1}
    fleet = fleet_of(machines=2)
    submit(fleet, willing(1))
    fleet.run(1)
    assert beside(submit(fleet, willing(2, "y"))) == {2: None}


@pytest.mark.parametrize(
    "second",
    [
        job(2, "c", 1, kind=Kind("y"), steps=1e6), willing(2, "y", memory_gib=9), willing(2, "y", busy=None),
        willing(2, "y", busy=1.0), willing(2, "w"), willing(2, "y", deadline_at=1e6),
        willing(2, "y", preemptible=False), willing(2, "y", unproven=True), willing(2, "y", cpus_per_accelerator=4.1),
    ],
    ids=["unwilling", "memory", "nothing known", "busy", "unmeasured", "deadline", "stays", "loses", "cpus"],
)  # fmt: skip
def test_who_is_not_put_beside_another(second: JobRequest) -> None:
    """Host: 8 of 16 GiB, busy half of the time. 0.5 + 1.0 would be 1.33 of one's speed: enough; see the next test."""
    fleet = fleet_of()
    submit(fleet, willing(1, busy=0.9))
    fleet.run(1)
    assert beside(submit(fleet, second)) == {}


def test_there_are_never_three_and_none_where_memory_is_unknown() -> None:
    fleet = pair_of(fleet_of(memory_gib=64))
    assert beside(submit(fleet, willing(3, "z"))) == {}
    fleet = fleet_of(memory_gib=0)
    submit(fleet, willing(1))
    fleet.run(1)
    assert beside(submit(fleet, willing(2, "y"))) == {}


def test_of_two_the_one_with_which_more_is_gained() -> None:
    fleet = fleet_of(machines=2)
    submit(fleet, willing(1, "x", busy=0.9))
    submit(fleet, willing(2, "y", busy=0.4))
    fleet.run(1)
    fleet.run(2)
    assert beside(submit(fleet, willing(3, "z", busy=0.6))) == {3: 2}


def test_under_a_strict_order_only_the_first_in_line_is_a_guest() -> None:
    fleet = fleet_of(strict=True)
    submit(fleet, willing(1))
    fleet.run(1)
    submit(fleet, job(2, "c", 1))  # it did not agree, and stands first
    assert beside(submit(fleet, willing(3, "y"))) == {}
    fleet.tell(ev.JobCancelled(fleet.at, JobId(2)))
    assert JobId(3) in fleet.attempts


def test_a_pair_that_was_measured_to_gain_stays_and_is_chosen_again() -> None:
    """Nothing is stated of the third job: what its kind reached beside the first one's is enough."""
    fleet = pair_of(fleet_of())
    assert revoked(measured_pair(fleet, 8.0, 7.0)) == {}
    table = fleet.core.ledger.table
    assert table.measured(beside_kind(Kind("x"), Kind("y")), "c", 1) == 8.0
    assert table.measured(beside_kind(Kind("y"), Kind("x")), "c", 1) == 7.0
    assert table.measured(Kind("x"), "c", 1) == 10.0
    fleet.end(JobId(2))
    assert beside(submit(fleet, willing(3, "y", busy=None))) == {3: 1}


def test_a_pair_that_loses_is_separated_and_never_chosen_again() -> None:
    fleet = pair_of(fleet_of())
    assert revoked(measured_pair(fleet, 6.0, 3.9)) == {2: Reason.POLICY_MOVED}
    fleet.end(JobId(2), exit_code=85)
    assert JobId(2) not in fleet.attempts
    for _ in range(5):
        fleet.at += 100.0
        assert beside(fleet.tell(ev.Woke(fleet.at))) == {}
    assert beside(submit(fleet, willing(3, "y"))) == {}
    assert beside(submit(fleet, willing(4, "z"))) == {4: 1}, "another kind is another matter"


def test_speeds_of_the_time_before_do_not_count() -> None:
    """A report is a median over windows: as long as old ones are among them it says nothing of the pair."""
    fleet = pair_of(fleet_of())
    report(fleet, 1, 10.0, 100)
    report(fleet, 2, 7.0, 1)
    for windows in (101, 130, 160):
        report(fleet, 1, 9.9, windows)
    assert fleet.core.ledger.table.measured(beside_kind(Kind("x"), Kind("y")), "c", 1) is None
    report(fleet, 1, 5.0, 161)
    assert fleet.core.ledger.table.measured(beside_kind(Kind("x"), Kind("y")), "c", 1) == 5.0
    report(fleet, 2, 7.0, 30)
    fleet.end(JobId(2))
    for windows in (170, 200, 229):  # alone again: the windows of the pair are not of the kind alone
        report(fleet, 1, 5.0, windows)
    assert fleet.core.ledger.table.measured(Kind("x"), "c", 1) == 10.0
    report(fleet, 1, 12.0, 230)
    for windows in range(231, 240):
        report(fleet, 1, 12.0, windows)
    assert fleet.core.ledger.table.measured(Kind("x"), "c", 1) == 12.0


def test_who_is_slow_because_it_shares_is_no_outlier_of_its_kind() -> None:
    fleet = pair_of(fleet_of())
    measured_pair(fleet, 6.0, 6.0)
    fleet.end(JobId(2))
    number = fleet.attempts[JobId(1)].number
    fleet.tell(SpeedDiffers(fleet.at, JobId(1), number, 10.0, 5.0))
    ledger = fleet.core.ledger
    assert ledger.kind_of(ledger.jobs[JobId(1)]) == Kind("x")


def test_the_other_has_the_accelerator_alone_when_one_ends_and_a_lost_machine_takes_both() -> None:
    fleet = pair_of(fleet_of())
    fleet.end(JobId(1))
    ledger = fleet.core.ledger
    assert ledger.kind_of(ledger.jobs[JobId(2)]) == Kind("y")
    assert ledger.fleet.pools[0].free == 0
    assert beside(submit(fleet, willing(3, "x"))) == {3: 2}
    fleet.end(JobId(2))
    fleet.end(JobId(3))
    assert ledger.fleet.pools[0].free == 1
    fleet = pair_of(fleet_of())
    fleet.lose(NodeId("c1"))
    assert not fleet.attempts
    assert not fleet.core.cycle.sharing.pairs


def test_a_guest_moves_to_a_free_place_that_nobody_waits_for() -> None:
    """Where it keeps 1 / 1.2 of its speed, with a million steps to go; one that is not slowed down stays."""
    fleet = pair_of(fleet_of(), willing(2, "y", busy=0.7))
    pool_id = fleet.core.ledger.fleet.pools[0].pool.pool_id
    assert revoked(fleet.tell(ev.NodeJoined(fleet.at, NodeId("c2"), pool_id))) == {2: Reason.POLICY_MOVED}
    assert beside(fleet.end(JobId(2), exit_code=85)) == {2: None}
    fleet = pair_of(fleet_of())
    pool_id = fleet.core.ledger.fleet.pools[0].pool.pool_id
    assert revoked(fleet.tell(ev.NodeJoined(fleet.at, NodeId("c2"), pool_id))) == {}


def test_a_guest_keeps_its_place_for_its_protected_time() -> None:
    """Neither a free place nor a pair that loses moves it earlier; it moves at the first round's end after that."""
    fleet = pair_of(fleet_of(), willing(2, "y", busy=0.7))
    fleet.tell(ev.PolicyChanged(fleet.at, PolicySpec("fifo"), replace(RULES, protected_s=100)))
    pool_id, began_at = fleet.core.ledger.fleet.pools[0].pool.pool_id, fleet.at
    stopped = [*fleet.tell(ev.NodeJoined(fleet.at, NodeId("c2"), pool_id)), *measured_pair(fleet, 6.0, 3.9)]
    while fleet.at < began_at + 90.0:
        fleet.at += 10.0
        stopped += fleet.tell(ev.Woke(fleet.at))
    assert revoked(stopped) == {}
    fleet.at += 10.0
    assert revoked(fleet.tell(ev.Woke(fleet.at))) == {2: Reason.POLICY_MOVED}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_guest_goes_nowhere_it_may_not_be_and_is_put_beside_nobody_there(policy: str) -> None:
    """c2 is closed to job 2: a guest on c1, it is left alone though c2 is free; where c1 is closed, it is no guest."""
    retried = willing(2, "y", retry=RetryRule(9))
    fleet = fleet_of(policy, machines=2)
    submit(fleet, willing(1))
    fleet.run(1)
    fleet.core.ledger.retries.blame(JobId(2), NodeId("c2"), inf)
    fleet.core.ledger.retries.blame(JobId(2), NodeId("c2"), inf)
    assert beside(submit(fleet, retried)) == {2: 1}
    fleet.run(2)
    stopped = measured_pair(fleet, 5.6, 5.6)
    for _ in range(20):
        fleet.at += 10.0
        stopped += fleet.tell(ev.Woke(fleet.at))
    assert revoked(stopped) == {}
    fleet = fleet_of(policy, machines=2)
    submit(fleet, willing(1))
    fleet.run(1)
    fleet.core.ledger.retries.blame(JobId(2), NodeId("c1"), inf)
    fleet.core.ledger.retries.blame(JobId(2), NodeId("c1"), inf)
    submit(fleet, replace(willing(3), shared=None))
    assert beside(submit(fleet, retried)) == {}


def test_a_guest_moves_to_no_place_that_the_plan_keeps_from_it() -> None:
    """It would be put beside the same job again, for ever."""
    fleet = pair_of(fleet_of("walras"), willing(2, "y", busy=0.7))
    pool_id = fleet.core.ledger.fleet.pools[0].pool.pool_id
    stopped = fleet.tell(ev.NodeJoined(fleet.at, NodeId("c2"), pool_id))
    assert revoked(stopped + fleet.answer({1: {"c": 1.0}})) == {}


def test_a_job_of_a_high_class_has_both_leave() -> None:
    """The place is free when both have left. Where one may not be stopped neither is: that would be in vain."""
    fleet = pair_of(fleet_of("max_min_fairness"))
    for number in (1, 2):
        fleet.tell(ev.CheckpointRecorded(fleet.at, JobId(number), fleet.attempts[JobId(number)].number, 1.0, 0.1))
    commands = submit(fleet, job(3, "c", 1, kind=Kind("z"), priority=80))
    assert set(revoked(commands)) == {1, 2}
    assert beside(fleet.end(JobId(1), exit_code=85)) == {}
    assert beside(fleet.end(JobId(2), exit_code=85)) == {3: None}
    fleet = fleet_of("max_min_fairness")
    submit(fleet, willing(1, preemptible=False))
    fleet.run(1)
    assert beside(submit(fleet, willing(2, "y"))) == {2: 1}
    fleet.run(2)
    assert revoked(submit(fleet, job(3, "c", 1, kind=Kind("z"), priority=80))) == {}


def test_a_server_that_starts_again_knows_the_pair() -> None:
    fleet = pair_of(fleet_of())
    fleet.restart()
    for kind in ("x", "y", "z"):
        fleet.tell(ThroughputMeasured(fleet.at, Kind(kind), "c", 1, 10.0))
    pair = fleet.core.cycle.sharing.pairs[JobId(1)]
    assert {pair.host, pair.guest} == {1, 2}
    assert revoked(measured_pair(fleet, 6.0, 3.9)) == {2: Reason.POLICY_MOVED}


def test_each_pays_half_and_counts_as_half() -> None:
    fleet = fleet_of(usd_per_h=3.0)
    submit(fleet, willing(1, project="p"))
    fleet.run(1)
    fleet.at = 3600.0
    submit(fleet, willing(2, "y", project="q"))
    usage = fleet.core.ledger.usage
    assert (usage.held("p")[0], usage.held("q")[0]) == (0.5, 0.5)
    fleet.at = 7200.0
    fleet.end(JobId(1))
    assert (usage.held("p")[0], usage.held("q")[0]) == (0.0, 1.0)
    fleet.at = 10_800.0
    fleet.end(JobId(2))
    spent = {name: usd for name, usd, _ in fleet.core.cycle.spending.stated(fleet.at)}
    assert spent == pytest.approx({"": 9.0, "p": 4.5, "q": 4.5})
    assert usage.held("q")[0] == 0.0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens(policy: str, seed: int) -> None:
    """Invariants after every event (never three, memory, who holds what); charges add up to what was held."""
    random = Random(seed)
    fleet = fleet_of(policy, machines=3, usd_per_h=2.0)
    ledger, held_usd, jobs = fleet.core.ledger, 0.0, 0
    seen_pairs = 0
    for _ in range(250):
        passed = random.choice((0.0, 1.0, 30.0))
        held = {part.node_id for job in ledger if job.placement and job.holds for part in job.placement.parts}
        held_usd += len(held) * 2.0 * passed / 3600.0
        fleet.at += passed
        what = random.random()
        attempt = fleet.some_attempt(random)
        if what < 0.3 or attempt is None:
            jobs += 1
            kind = random.choice("xyz")
            shared = DeviceShare(random.choice((4, 8, 12)) * GIB, random.choice((0.3, 0.5, 0.9)))
            more = {"priority": random.choice((20, 50, 80)), "preemptible": random.random() < 0.9}
            agreed = {"shared": shared} if random.random() < 0.7 else {}
            submit(fleet, job(jobs, "c", 1, kind=Kind(kind), steps=1e4, **more, **agreed))
        elif what < 0.5 and not attempt.stopping:
            fleet.tell(ev.AttemptStarted(fleet.at, attempt.job_id, attempt.number))
        elif what < 0.8 and not attempt.stopping:
            windows = random.choice((1, 30, 100, 200, 400))
            report(fleet, attempt.job_id, random.uniform(2.0, 10.0), windows, random.uniform(0.0, 1e4))
        elif what < 0.9:
            fleet.end(attempt.job_id, random.choice((0, 1, 85)))
        elif what < 0.93:
            fleet.lose(attempt.placement.parts[0].node_id)
            node_id = NodeId(f"c{random.randrange(10**9)}")
            fleet.tell(ev.NodeJoined(fleet.at, node_id, ledger.fleet.pools[0].pool.pool_id))
        else:
            fleet.tell(ev.JobCancelled(fleet.at, JobId(random.randint(1, jobs))))
        while fleet.solves:
            asked = sorted(ledger.jobs)[: ledger.fleet.pools[0].capacity]
            fleet.answer({job_id: {"c": 1.0} for job_id in asked})
        seen_pairs += bool(fleet.core.cycle.sharing.pairs)
    assert seen_pairs
    spent = {name: usd for name, usd, _ in fleet.core.cycle.spending.stated(fleet.at)}
    assert spent[""] == pytest.approx(held_usd)


@pytest.mark.parametrize("length", ["duration_s", "steps"])
@pytest.mark.parametrize(
    ("joins_at", "leaves_at", "is_gone"),
    [(10.0, inf, True), (10.0, 850.0, True), (800.0, inf, False), (10.0, 300.0, False)],
)
def test_a_job_is_gone_before_a_booking_if_the_time_beside_another_makes_it_late(
    joins_at: float, leaves_at: float, is_gone: bool, length: str
) -> None:
    """It takes 900 s alone and 1,080 s beside the other: whether it surely ends in time is told by both parts."""
    fleet = fleet_of()
    stated: dict[str, Any] = {"duration_s": 900.0, "steps": None} if length == "duration_s" else {"steps": 9e3}
    submit(fleet, replace(willing(1, busy=0.6), grace_s=5.0, **stated))
    fleet.run(1)
    fleet.tell(BookingsDeclared(0.0, (Booking(1, "vision", (NodeId("c1"),), 1060.0, 2000.0, "c", 1, "a demo"),)))
    for at in (joins_at, leaves_at, 1000.0):
        while fleet.wake_at <= at < inf and 1 in fleet.attempts:
            fleet.wake()
        if at == joins_at:
            fleet.tell(ev.Woke(at))
            assert beside(submit(fleet, replace(willing(2, "y", busy=0.6), grace_s=5.0))) == {2: 1}
            fleet.run(2)
        elif at == leaves_at < inf:
            fleet.tell(ev.Woke(at))
            fleet.tell(ev.JobCancelled(at, JobId(2)))
            fleet.end(JobId(2), exit_code=85)
    assert fleet.attempts[JobId(1)].stopping is is_gone
