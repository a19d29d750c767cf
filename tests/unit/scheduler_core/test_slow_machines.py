"""Machines and networks that are slower than others: found, told, and left to jobs they slow less."""

from collections.abc import Sequence
from math import inf
from random import Random

import pytest
from fake_fleet import FakeFleet, cluster, job
from planned_fleet import measured, submit

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.cycle.solve_requests import run_solve
from scheduler.core.rules import RoundRules
from scheduler.core.speed_events import NetworkMeasured, SpeedDiffers, ThroughputMeasured
from scheduler.core.state.slow_machines import SlowMachines
from scheduler.core.state.throughput import SpeedSource
from walras.cluster import NodeId, PoolId
from walras.job_request import JobId, Kind
from walras.states import Reason

CELL = (Kind("k"), 0, 1)
NOISE = 0.03


def reported(paces: Sequence[float], seed: int = 0, jobs: int = 4, noise: float = NOISE) -> SlowMachines:
    """What is known after so many jobs, one after the other on each machine, with ten noisy reports each."""
    random, found = Random(seed), SlowMachines()
    for turn in range(jobs):
        for _ in range(10):
            for machine, pace in enumerate(paces):
                number = JobId(turn * len(paces) + machine + 1)
                found.saw(number, NodeId(f"n{machine}"), CELL, 8.0 * pace * random.lognormvariate(0.0, noise))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_machine_a_third_slower_is_found_and_told_and_no_other(seed: int) -> None:
    known = reported((1.0, 1.0, 0.7, 1.0), seed)
    assert known.slow.keys() == {"n2"}
    assert known.pace(NodeId("n2")) == pytest.approx(0.7, abs=0.03)
    percent, said = known.told(NodeId("n2")).split(" ", 1)
    assert said == "% slower than others of its pool, by what jobs report"
    assert 27 <= int(percent) <= 33
    assert known.told(NodeId("n0")) == ""


@pytest.mark.parametrize("noise", [0.03, 0.3])
def test_noise_and_one_job_alone_make_no_machine_slow(noise: float) -> None:
    """Twenty machines alike, forty seeds; one odd job is another program; of two that differ neither is told slow."""
    assert not any(reported([1.0] * 20, seed, jobs=3, noise=noise).slow for seed in range(40))
    known = reported([1.0] * 4, jobs=1)
    for _ in range(20):
        known.saw(JobId(99), NodeId("n1"), CELL, 3.0)
    assert not known.slow
    known = reported((1.0, 0.5), jobs=1)
    assert not known.slow


def test_nothing_is_kept_of_a_job_that_has_ended() -> None:
    """Reports of every job that ever ran would fill a server's memory; what they told of the machine stays."""
    fleet = cluster(machines="cc")
    for number in (1, 2):
        fleet.tell(ev.JobSubmitted(number, job(number, "c", steps=100.0)))
        fleet.tell(ev.AttemptStarted(number, JobId(number), 1))
        fleet.tell(ev.AttemptProgressed(number, JobId(number), 1, 10.0, steps_per_s=1.0, samples=5))
    known = fleet.core.ledger.slow_machines
    assert known.own.keys() == {1, 2}
    fleet.tell(ev.AttemptEnded(50.0, JobId(1), 1, ev.EndCause.EXITED, exit_code=0, steps=100.0))
    assert known.own.keys() == {2}
    assert [job_id for seen in known._seen.values() for _, job_id, _ in seen] == [1, 2]


def test_a_machine_that_was_mended_is_taken_back_after_two_jobs_and_one_that_left_is_forgotten() -> None:
    known = reported((1.0, 1.0, 0.6))
    assert known.slow
    for number, expected in ((101, 1), (102, 0)):
        for _ in range(9):
            known.saw(JobId(number), NodeId("n2"), CELL, 8.0)
        assert len(known.slow) == expected
    known = reported((1.0, 1.0, 0.6))
    known.forget_machine(NodeId("n2"))
    assert not known.slow


def run_jobs(fleet: FakeFleet, paces: dict[str, float], rounds: int) -> None:
    """Fill the machines with single jobs of one kind again and again; each reports its speed and ends."""
    number = max((int(each) for each in fleet.core.ledger.jobs), default=0)
    for _ in range(rounds):
        names = []
        for _ in paces:
            number += 1
            names.append(JobId(number))
            fleet.tell(ev.JobSubmitted(fleet.at, job(number, "c", steps=1e6)))
        for turn in range(8):
            for name in names:
                attempt = fleet.attempts[name]
                node = str(attempt.placement.parts[0].node_id)
                fleet.tell(ev.AttemptProgressed(fleet.at, name, attempt.number, 10.0 * turn, paces[node], 20))
        for name in names:
            fleet.end(name)


def test_jobs_go_to_other_machines_and_the_kind_keeps_its_speed() -> None:
    """Three machines, the first at .6 of the others: a job alone starts elsewhere, three take all machines."""
    fleet = cluster("fifo", machines="ccc", rules=RoundRules(round_s=20.0))
    run_jobs(fleet, {"c1": 0.6, "c2": 1.0, "c3": 1.0}, rounds=4)
    assert fleet.core.ledger.slow_machines.slow == {"c1": {"default": pytest.approx(0.6)}}
    assert fleet.core.ledger.table.measured(Kind("k"), "c", 1) == pytest.approx(1.0)
    fleet.tell(ev.JobSubmitted(fleet.at, job(101, "c")))
    assert str(fleet.attempts[JobId(101)].placement.parts[0].node_id) != "c1"
    for number in (102, 103):
        fleet.tell(ev.JobSubmitted(fleet.at, job(number, "c")))
    held = {str(fleet.attempts[JobId(number)].placement.parts[0].node_id) for number in (101, 102, 103)}
    assert held == {"c1", "c2", "c3"}


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
    """A tenth of the plan reaches its own speeds; steps that were counted are then believed more, for it alone."""
    gang(fleet, J2, USUAL / 10)
    assert speeds(fleet, J2) == (pytest.approx(16.0 / 5.5, rel=0.01), 8.0)
    assert fleet.solves
    nominal = fleet.core.ledger.classes.nominal
    assert fleet.core.ledger.table.speed(Kind("k"), "a", 4, nominal).steps_per_s == 16.0
    number = fleet.attempts[J2].number
    fleet.tell(ev.AttemptProgressed(fleet.at, J2, number, 50.0, 12.0, 3))
    assert speeds(fleet, J2) == (12.0, 8.0)
    table, nominal = fleet.core.ledger.table, fleet.core.ledger.classes.nominal
    assert table.speed(Kind("k"), "a", 4, nominal).steps_per_s == 16.0
    (scored,) = table.scored()
    assert (scored.source, scored.measured) == ("derived", 12.0)
    assert table.speed(scored.kind, "b", 4, nominal).source is SpeedSource.MEASURED


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


def test_a_project_that_was_here_when_machines_were_sorted_is_no_news() -> None:
    """Each submission would otherwise cost a look at all jobs while a machine is slow for another project only."""
    known = reported((1.0, 1.0, 0.7, 1.0))
    for met, is_due in (({"default", "theirs"}, False), ({"default"}, True)):
        known.met, known.is_due = met, False
        known.meet("theirs")
        assert known.is_due is is_due


def test_who_has_jobs_is_known_after_a_sort() -> None:
    fleet = cluster("walras", machines="cccc", rules=RoundRules(round_s=100, resolve_min_s=0))
    known = fleet.core.ledger.slow_machines
    known.slow = {NodeId("c2"): {"default": 0.6}}
    fleet.tell(ev.JobSubmitted(0.0, job(1, "c", project="theirs", kind=Kind("@theirs k"))))
    assert known.met == {"theirs"}


def test_a_gang_over_several_pools_stays_one_whatever_is_reported_of_it() -> None:
    """Its network is no news of either pool, and a job that is slower than its kind still holds parts of two."""
    fleet = measured(cluster("walras", rules=RoundRules(round_s=10, resolve_min_s=0), machines="ab"))
    submit(fleet, 0.0, job(1, "*", 6, mixed=True, steps=1e5), runs=True)
    ledger, record = fleet.core.ledger, fleet.core.ledger.jobs[JobId(1)]
    usual = ledger.rate_of(record)
    ledger.networks.saw("default", PoolId("a"), 1e9)
    fleet.tell(NetworkMeasured(1.0, JobId(1), 1, 1e8))
    assert (ledger.is_spread(record), ledger.rate_of(record)) == (True, usual)
    fleet.tell(SpeedDiffers(2.0, JobId(1), 1, 4.0, 2.0))
    assert (ledger.is_spread(record), ledger.rate_of(record)) == (True, pytest.approx(0.5 * usual))
