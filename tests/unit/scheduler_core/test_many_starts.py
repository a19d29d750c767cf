"""A burst of starts: no event starts more than a bounded number of attempts, and none of the others waits for long."""

from fake_fleet import FakeFleet, job, pool

from optimizer.policy import PolicySpec
from scheduler.core import events as ev
from scheduler.core.commands import Start
from scheduler.core.cycle.backfill import STARTS_AT_ONCE
from scheduler.core.rules import RoundRules
from walras.cluster import NodeId, PoolId

JOBS = 2 * STARTS_AT_ONCE + 50


def _starts(fleet: FakeFleet) -> list[int]:
    """Of each event so far."""
    return [sum(isinstance(each, Start) for each in commands) for _, commands in fleet.log]


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
    assert _starts(fleet) == [STARTS_AT_ONCE, STARTS_AT_ONCE, 50]
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
    assert max(_starts(fleet)) == len(fleet.attempts) == JOBS
