"""A running job keeps its place for `protected_s`, whoever outranks it, and among equals once it was stopped often."""

from dataclasses import replace

import pytest
from fake_fleet import FakeFleet, cluster, job, revoked
from planned_fleet import TURNS, planning, settle

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.rules import RoundRules, parse_rules
from scheduler.core.speed_events import ThroughputMeasured
from scheduler.core.state.stopping import Protection, StopFor, may_be_stopped
from walras.cluster import NodeId, PoolId
from walras.errors import ConfigError
from walras.job_request import JobId, Kind
from walras.states import Reason

RULES = replace(TURNS, protected_s=100)
LOW, NORMAL, HIGH = 10, 50, 90


def protecting(policy: str, rules: RoundRules = RULES, **parameters: object) -> FakeFleet:
    """One accelerator of type c; every speed is known."""
    return planning("c", policy, rules, **parameters)


def submit(
    fleet: FakeFleet, number: int, priority: int, at: float, brings: int = 0, **more: object
) -> list[cmd.Command]:
    """Submits a job; what was granted starts at once. Returns the commands."""
    asked = job(number, "c", priority=priority, **{"steps": 1e5, **more})
    return [*fleet.tell(ev.JobSubmitted(at, asked)), *settle(fleet, brings)]


def revoked_until(fleet: FakeFleet, at: float, brings: int = 0) -> dict[int, float]:
    """Lets rounds end; who was asked to go, and when."""
    found: dict[int, float] = {}
    while fleet.wake_at <= at:
        found |= dict.fromkeys(revoked([*fleet.wake(), *settle(fleet, brings)]), fleet.at)
    fleet.at = at
    return found


@pytest.mark.parametrize("policy", ["srtf", "las", "max_min_fairness", "walras"])
@pytest.mark.parametrize("priority", [NORMAL, HIGH])
def test_a_higher_class_waits_for_the_end_of_the_protection(policy: str, priority: int) -> None:
    """Counted from when all ranks ran; then it takes the place at the next round's end."""
    fleet = protecting(policy)
    submit(fleet, 1, LOW, 3.0)
    assert list(fleet.attempts) == [1]
    commands = submit(fleet, 2, priority, 20.0, steps=50.0)
    assert not [command for command in commands if isinstance(command, cmd.Revoke)]
    assert revoked_until(fleet, 102.5) == {}
    (moved,) = revoked_until(fleet, 125.0).items()
    assert moved[0] == 1
    assert 103.0 <= moved[1] <= 113.0


@pytest.mark.parametrize("policy", ["srtf", "las", "max_min_fairness", "walras"])
def test_a_start_of_hours_is_no_protection(policy: str) -> None:
    """A job that brings what it needs for longer than ten minutes is protected from then on as if it ran."""
    fleet = protecting(policy)
    submit(fleet, 1, LOW, 3.0, brings=1)
    assert list(fleet.attempts) == [1]
    submit(fleet, 2, NORMAL, 20.0, brings=1, steps=50.0)
    assert revoked_until(fleet, 702.5, brings=1) == {}
    assert list(revoked_until(fleet, 725.0, brings=1)) == [1]


@pytest.mark.parametrize("policy", ["srtf", "las", "max_min_fairness", "walras"])
def test_without_the_rule_a_higher_class_does_not_wait(policy: str) -> None:
    """The default: the highest class takes the place at once, or with the next answer."""
    fleet = protecting(policy, rules=RoundRules(round_s=10, resolve_min_s=0, restart_default_s=2, profiling_share=0))
    submit(fleet, 1, LOW, 3.0)
    commands = submit(fleet, 2, HIGH, 20.0, steps=50.0)
    at = revoked_until(fleet, 45.0)
    assert [command.job_id for command in commands if isinstance(command, cmd.Revoke)] == [1] or at[1] <= 40.0


def test_a_job_of_its_own_class_waits_as_long() -> None:
    """The longer of `min_runtime_s` and `protected_s` counts; it can leave for other reasons, as cancelled."""
    fleet = protecting("srtf", margin=0.0)
    submit(fleet, 1, NORMAL, 0.0)
    submit(fleet, 2, NORMAL, 1.0, steps=50.0)
    assert revoked_until(fleet, 99.0) == {}
    assert list(revoked_until(fleet, 125.0)) == [1]
    fleet = protecting("srtf")
    submit(fleet, 1, LOW, 0.0)
    commands = fleet.tell(ev.JobCancelled(5.0, JobId(1), "ada"))
    assert [command.reason for command in commands if isinstance(command, cmd.Revoke)] == [Reason.USER_CANCELLED]


@pytest.mark.parametrize("policy", ["fifo", "srtf"])
def test_where_no_round_compares_jobs_the_highest_class_comes_at_the_very_end_of_it(policy: str) -> None:
    """One that ends or is cancelled meanwhile is forgotten; one that finds a free place before needs none."""
    parameters = {} if policy == "fifo" else {"preemptive": False}
    fleet = protecting(policy, **parameters)
    submit(fleet, 1, LOW, 3.0)
    for number, at in ((2, 20.0), (3, 30.0)):
        assert not [each for each in submit(fleet, number, HIGH, at) if isinstance(each, cmd.Revoke)]
    fleet.tell(ev.JobCancelled(40.0, JobId(2), "ada"))
    assert fleet.wake_at == 103.0
    assert revoked_until(fleet, 103.0) == {1: 103.0}
    fleet.end(JobId(1), 85)
    assert list(fleet.attempts) == [3]


@pytest.mark.parametrize("policy", ["sia", "walras"])
def test_who_is_protected_is_not_sent_elsewhere_to_learn_a_speed(policy: str) -> None:
    """Nor is it stopped for a job that would learn in its place."""
    rules = replace(RULES, profiling_share=0.5, profiling_s=20)
    fleet = cluster(policy, rules=rules, machines="ac")
    fleet.tell(ThroughputMeasured(0.0, Kind("k"), "a", 1, 4.0))
    fleet.tell(ev.JobSubmitted(3.0, job(1, steps=1e5)))
    settle(fleet)
    assert fleet.attempts[JobId(1)].placement.pool_id == "a"
    assert revoked_until(fleet, 102.5) == {}
    assert list(revoked_until(fleet, 125.0)) == [1]


@pytest.mark.parametrize("policy", ["max_min_fairness", "walras"])
@pytest.mark.parametrize(
    ("attempts", "failures", "hours", "kept"),
    [(7, (0, 0), 4.0, True), (6, (0, 0), 4.0, False), (7, (0, 0), 5.0, False), (8, (1, 1), 4.0, False)],
)
def test_a_job_stopped_more_than_six_times_and_one_and_a_half_an_hour_is_kept_among_equals(
    attempts: int, failures: tuple[int, int], hours: float, *, kept: bool, policy: str
) -> None:
    """Under plans however long it has run since. Failures of its own and of machines are no stops; classes, deadlines,
    bookings and machines stop it as before.
    """
    fleet = protecting(policy)
    submit(fleet, 1, NORMAL, 0.0)
    ledger = fleet.core.ledger
    record = ledger.jobs[JobId(1)]
    record.attempt, (record.restarts, record.infra_failures), record.saves = attempts, failures, True
    ledger.now = hours * 3600.0
    record.leased_at = 0.0 if policy == "walras" else ledger.now
    keeping = {why for why in StopFor if may_be_stopped(ledger, record, why) is Protection.STOPPED_OFTEN}
    assert keeping == ({StopFor.TURN, StopFor.RETURN, StopFor.MARKET} if kept else set())


@pytest.mark.parametrize(
    ("policy", "attempts", "hours", "kept"),
    [
        *(("walras", 3, 0.1, False), ("walras", 4, 1.1, True), ("walras", 4, 1.2, False), ("walras", 6, 3.4, True)),
        *(("walras", 6, 3.6, False), ("walras", 7, 4.6, True), ("walras", 7, 4.7, False), ("sia", 9, 1.1, False)),
        ("max_min_fairness", 6, 0.1, False),
    ],
)
def test_plans_spread_the_stops_of_an_elastic_job(policy: str, attempts: int, hours: float, *, kept: bool) -> None:
    """Three at once, the others until the hour at which it may have had seven: it can always grow again soon."""
    fleet = protecting(policy)
    submit(fleet, 1, NORMAL, 0.0)
    ledger = fleet.core.ledger
    record = ledger.jobs[JobId(1)]
    record.attempt, record.saves, record.request = attempts, True, replace(record.request, sizes=(1, 2))
    ledger.now = hours * 3600.0
    assert (may_be_stopped(ledger, record, StopFor.TURN) is Protection.STOPPED_OFTEN) is kept


def test_the_rule_is_a_length_of_time() -> None:
    assert parse_rules({"protected_s": 3600}).protected_s == 3600.0
    assert parse_rules({}).protected_s == 0.0
    with pytest.raises(ConfigError, match="protected_s"):
        parse_rules({"protected_s": -1})


@pytest.mark.parametrize("protection", Protection)
def test_what_protects_several_jobs_is_said_of_several(protection: Protection) -> None:
    """A list of jobs and what keeps them is one sentence: `jobs 2 and 3, which are being measured`."""
    assert protection.said_of(1) == protection
    assert not {"is", "was", "its", "it", "runs", "saves"} & set(protection.said_of(2).split(" "))


def test_a_share_elsewhere_moves_nobody_that_is_protected() -> None:
    """The job has started where it has a share; that of a faster machine, which has joined, waits for its time."""
    fleet = planning("c", "max_min_fairness", RULES)
    fleet.tell(ev.JobSubmitted(1.0, job(2, steps=1e5)))
    fleet.answer({2: {"c": 1.0}})
    fleet.run(2)
    fleet.tell(ev.NodeJoined(2.0, NodeId("a2"), PoolId("a")))
    fleet.answer({2: {"a": 1.0, "c": 0.1}})
    assert not revoked(fleet.until(100.5))
    assert list(revoked(fleet.until(125.0))) == [2]
