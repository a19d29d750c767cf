"""A machine that is slower than others of its pool is known after two jobs, passed over, and not held against kinds."""

from collections.abc import Sequence
from random import Random

import pytest
from fake_fleet import FakeFleet, cluster, job

from scheduler.core import events as ev
from scheduler.core.rules import RoundRules
from scheduler.core.state.slow_machines import SlowMachines
from walras.cluster import NodeId
from walras.job_request import JobId, Kind

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
    assert known.slow[NodeId("n2")] == pytest.approx(0.7, abs=0.03)
    percent, said = known.told(NodeId("n2")).split(" ", 1)
    assert said == "% slower than others of its pool, by what jobs report"
    assert 27 <= int(percent) <= 33
    assert known.told(NodeId("n0")) == ""


@pytest.mark.parametrize("noise", [0.03, 0.3])
def test_noise_and_one_job_alone_make_no_machine_slow(noise: float) -> None:
    """Twenty machines alike, forty seeds; one odd job is another program under the same name."""
    assert not any(reported([1.0] * 20, seed, jobs=3, noise=noise).slow for seed in range(40))
    known = reported([1.0] * 4, jobs=1)
    for _ in range(20):
        known.saw(JobId(99), NodeId("n1"), CELL, 3.0)
    assert not known.slow


def test_two_machines_that_differ_do_not_tell_which_is_slow_until_others_run_the_kind() -> None:
    """With one job on one other machine nothing is judged."""
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
    assert fleet.core.ledger.slow_machines.slow == {"c1": pytest.approx(0.6)}
    assert fleet.core.ledger.table.measured(Kind("k"), "c", 1) == pytest.approx(1.0)
    fleet.tell(ev.JobSubmitted(fleet.at, job(101, "c")))
    assert str(fleet.attempts[JobId(101)].placement.parts[0].node_id) != "c1"
    for number in (102, 103):
        fleet.tell(ev.JobSubmitted(fleet.at, job(number, "c")))
    held = {str(fleet.attempts[JobId(number)].placement.parts[0].node_id) for number in (101, 102, 103)}
    assert held == {"c1", "c2", "c3"}
