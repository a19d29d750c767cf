"""Gangs whose machines are worse connected than others of their pool."""

from math import inf

import pytest
from fake_fleet import FakeFleet, cluster, job

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.cycle.solve_requests import run_solve
from scheduler.core.rules import RoundRules
from scheduler.core.speed_events import NetworkMeasured, ThroughputMeasured
from scheduler.core.state.throughput import SpeedSource
from walras.job_request import JobId, Kind
from walras.states import Reason

J1, J2 = JobId(1), JobId(2)
QUICK = RoundRules(round_s=10, resolve_min_s=0, min_runtime_s=5, restart_default_s=2, profiling_share=0)
USUAL = 10e9


def answer(fleet: FakeFleet) -> list[cmd.Command]:
    """Solve what was asked, for real."""
    question = fleet.solves.pop()
    return fleet.tell(ev.Solved(fleet.at, question.request_id, run_solve(question), 0.1))


def gang(fleet: FakeFleet, job_id: JobId, bytes_per_s: float) -> list[cmd.Command]:
    """A gang of four on two machines of pool a starts, and measures what they exchange."""
    fleet.tell(ev.JobSubmitted(fleet.at, job(job_id, count=4, nodes=2)))
    while fleet.solves:
        answer(fleet)
    assert fleet.attempts[job_id].placement.pool_id == "a"
    fleet.prepare_all(job_id)
    number = fleet.attempts[job_id].number
    fleet.tell(ev.AttemptStarted(fleet.at, job_id, number))
    return fleet.tell(NetworkMeasured(fleet.at, job_id, number, bytes_per_s))


@pytest.fixture
def fleet() -> FakeFleet:
    """Two machines of the fast pool a, two of the slower b, both speeds measured; one gang has been on a."""
    fleet = cluster("max_min_fairness", rules=QUICK, machines="aabb")
    for name, steps_per_s in (("a", 16.0), ("b", 8.0)):
        fleet.tell(ThroughputMeasured(0.0, Kind("k"), name, 4, steps_per_s))
    gang(fleet, J1, USUAL)
    fleet.end(J1)
    return fleet


def speeds(fleet: FakeFleet, job_id: JobId) -> tuple[float, float]:
    """Of the job as the next solve sees it: on a, and on b."""
    ledger = fleet.core.ledger
    a, b, _ = ledger.class_of(ledger.jobs[job_id]).speeds
    return a, b


def test_a_slow_network_slows_the_job_and_no_other(fleet: FakeFleet) -> None:
    """A tenth of what was planned reaches the job's own speeds, and asks for a solve; its kind is as fast as before."""
    gang(fleet, J2, USUAL / 10)
    assert speeds(fleet, J2) == (pytest.approx(16.0 / 5.5, rel=0.01), 8.0)
    assert fleet.solves
    nominal = fleet.core.ledger.classes.nominal
    assert fleet.core.ledger.table.speed(Kind("k"), "a", 4, nominal).steps_per_s == 16.0


def test_a_job_on_a_slow_network_moves(fleet: FakeFleet) -> None:
    """The solve that follows finds it faster elsewhere; there it is one of its kind again."""
    gang(fleet, J2, USUAL / 10)
    moved: list[cmd.Command] = []
    for _ in range(10):
        while fleet.solves:
            moved += answer(fleet)
        if any(isinstance(command, cmd.Revoke) for command in moved) or fleet.wake_at == inf:
            break
        moved += fleet.wake()
    assert [c.reason for c in moved if isinstance(c, cmd.Revoke)] == [Reason.POLICY_MOVED]
    fleet.end(J2, exit_code=85)
    assert fleet.attempts[J2].placement.pool_id == "b"
    assert speeds(fleet, J2) == (16.0, 8.0)


def test_a_network_near_the_plan_changes_nothing(fleet: FakeFleet) -> None:
    """Up to fifteen per cent below it the plan stands."""
    gang(fleet, J2, 0.86 * USUAL)
    assert speeds(fleet, J2) == (16.0, 8.0)


def test_what_is_measured_on_a_slow_network_replaces_the_estimate(fleet: FakeFleet) -> None:
    """Steps that were counted are believed more than a guess at what a step spends on its network, and for it alone."""
    gang(fleet, J2, USUAL / 10)
    number = fleet.attempts[J2].number
    fleet.tell(ev.AttemptProgressed(fleet.at, J2, number, 50.0, 12.0, 3))
    assert speeds(fleet, J2) == (12.0, 8.0)
    table, nominal = fleet.core.ledger.table, fleet.core.ledger.classes.nominal
    assert table.speed(Kind("k"), "a", 4, nominal).steps_per_s == 16.0
    (scored,) = table.scored()
    assert (scored.source, scored.measured) == ("derived", 12.0)
    assert table.speed(scored.kind, "b", 4, nominal).source is SpeedSource.MEASURED
