"""What the model of the world says beyond tables of speeds: spread gangs, laws, migration, noise, dependencies."""

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from optimizer.policy import PolicySpec
from scheduler.core.commands import Command, JobTransitioned
from scheduler.core.events import AttemptEnded, AttemptProgressed, AttemptStarted, Event
from scheduler.core.rules import RoundRules
from scheduler.core.speed_events import ThroughputMeasured
from scheduler.world.attempts import AttemptCosts, PlannedFailure, SimulatedJob, SpeedSegment, WorldParameters
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.simulation import Scenario, Simulation, simulate
from walras.cluster import Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind
from walras.states import JobState, Reason

Make = Callable[..., Any]
KIND = Kind("k")


class Growing:
    """A job whose goodput doubles when half of a thousand steps are behind it, and grows with its gang."""

    def speed_segment(self, accelerator: str, parts: tuple[int, ...], steps: float) -> SpeedSegment:
        return SpeedSegment(1.0 * sum(parts), 500.0) if steps < 500.0 else SpeedSegment(2.0 * sum(parts))


def test_a_spread_gang_has_a_speed_of_its_own(bench: Make, job: Make) -> None:
    """Two accelerators of one machine, and one of each of two: the second way is as slow as the table says."""
    truth = GroundTruth({}, multi_machine_speeds={SpeedKey(KIND, "a100", 2): 1.0})
    b = bench(truth=truth)
    b.submit(job(1, steps=100.0), job(2, steps=100.0))
    b.start(0.0, 1, 1, {"own-1": (0, 1)})
    b.prepare(60.0, 2, 1, {"own-1": (0,), "own-2": (0,)})
    b.start(60.0, 2, 1, {"own-1": (0,), "own-2": (0,)})
    b.run()
    assert [(e.job_id, e.at) for e in b.told(AttemptEnded)] == [(1, 50.0), (2, 160.0)]


def test_the_scheduler_is_told_the_speed_that_its_gang_will_have() -> None:
    """Spread over machines if it must be, however the oracle would love to see it together."""
    truth = GroundTruth({SpeedKey(KIND, "a100"): 2.0}, multi_machine_speeds={SpeedKey(KIND, "a100", 4): 3.0})
    pool = PoolModel(Pool(PoolId("p"), Shape("s", "a100", 2, 8.0, 2**30)), machines=2)
    told: list[float] = []
    request = JobRequest(JobId(1), KIND, demands=(Demand("a100", 4),), steps=30.0)

    def hear(event: object, commands: object) -> None:
        if isinstance(event, ThroughputMeasured):
            told.append(event.steps_per_s)

    result = simulate([SimulatedJob(0.0, request, 30.0)], Scenario((pool,), truth, PolicySpec("fifo")), recorder=hear)
    assert (told, result.last_ended_at) == ([3.0], 10.0)


def test_a_law_turns_at_its_steps_and_goes_on_there_after_a_restart(bench: Make, job: Make) -> None:
    """Goodput follows the job's progress to the instant, and its gang; what is reported is what it is."""
    b = bench(model=WorldParameters(report_s=100.0), truth=GroundTruth({}, laws={KIND: Growing()}))
    b.submit(job(1, steps=1000.0))
    b.start(0.0, 1, 1, {"own-1": (0,)})
    b.revoke(600.0, 1, 1, Reason.POLICY_PREEMPTED)
    b.start(700.0, 1, 2, {"own-2": (0, 1)}, steps=700.0)
    b.run()
    # 500 steps by 500 s, 200 more by 600 s; the other 300 at 4 a second.
    assert [(e.at, e.steps) for e in b.told(AttemptEnded)] == [(600.0, 700.0), (775.0, 1000.0)]
    assert [r.steps_per_s for r in b.told(AttemptProgressed) if r.at in (400.0, 600.0)] == [1.0, 2.0]


def test_a_move_to_other_machines_costs_more_than_a_restart_in_place(bench: Make, job: Make) -> None:
    """The state is fetched where it is not; the first start fetches nothing."""
    costs = AttemptCosts(start_s=2.0, checkpoint_s=0.0, migrate_s=5.0)
    b = bench(costs)
    b.submit(job(1, steps=1000.0))
    b.start(0.0, 1, 1, {"own-1": (0,)})
    b.revoke(12.0, 1, 1, Reason.POLICY_PREEMPTED)
    b.start(20.0, 1, 2, {"own-1": (1,)}, steps=20.0)
    b.revoke(32.0, 1, 2, Reason.POLICY_MOVED)
    b.start(40.0, 1, 3, {"own-2": (0,)}, steps=40.0)
    b.run()
    assert [e.at for e in b.told(AttemptStarted)] == [2.0, 22.0, 47.0]
    assert costs.restart_s == 7.0


@pytest.mark.parametrize("noise", ["speed_noise", "cost_noise"])
def test_noise_of_speeds_and_of_costs_is_drawn_for_each_attempt(bench: Make, job: Make, noise: str) -> None:
    """Around the truth, from streams of their own: one kind of noise leaves the other's figures alone."""
    b = bench(AttemptCosts(start_s=10.0), WorldParameters(**{noise: 0.1}))
    b.submit(*(job(number, steps=100.0) for number in (1, 2)))
    b.start(0.0, 1, 1, {"own-1": (0,)})
    b.start(0.0, 2, 1, {"own-1": (1,)})
    b.run()
    ups = [e.at for e in b.told(AttemptStarted)]
    ran = sorted(e.at - up for e, up in zip(b.told(AttemptEnded), sorted(ups), strict=True))
    assert (len(set(ups)) == 2) == (noise == "cost_noise")
    assert ran[0] == pytest.approx(50.0, rel=0.4)
    assert (ran[1] - ran[0] > 0.1) == (noise == "speed_noise")


def _story(*jobs: SimulatedJob) -> dict[int, tuple[JobState, float]]:
    pool = PoolModel(Pool(PoolId("p"), Shape("s", "a100", 4, 8.0, 2**30)), machines=1)
    scenario = Scenario((pool,), GroundTruth({SpeedKey(KIND, "a100"): 1.0}), PolicySpec("fifo"))
    result = Simulation(scenario).run(jobs)
    assert not result.violations
    return {int(each.job_id): (each.state, each.ended_at) for each in result.jobs}


def test_a_job_waits_for_those_it_depends_on(job: Make) -> None:
    """It starts when the last of them has succeeded; where one fails it never runs, whenever it comes."""

    def after(number: int, *others: int, at: float = 0.0, any_end: bool = False) -> SimulatedJob:
        plan = job(number, steps=10.0, at=at)
        depends_on = tuple(map(JobId, others))
        request = replace(plan.request, depends_on=depends_on, depends_on_any_end=any_end)
        return replace(plan, request=request)

    fails = replace(job(1, steps=100.0), failures=(PlannedFailure(50.0),))
    found = _story(
        fails, job(2, steps=20.0), after(3, 2), after(4, 1, 2), after(5, 1, at=60.0), after(6, 1, at=60.0, any_end=True)
    )
    assert found[1] == (JobState.FAILED, 50.0)
    assert found[3] == (JobState.SUCCEEDED, 30.0)
    assert found[4] == (JobState.CANCELLED, 50.0)
    assert found[5] == (JobState.CANCELLED, 60.0)
    assert found[6] == (JobState.SUCCEEDED, 70.0)


def test_a_job_that_is_cancelled_ends_then(job: Make) -> None:
    """Whether it waits or runs; one that has ended before is left in peace."""
    found = _story(job(1, cancel_at=30.0), job(2, steps=10.0, cancel_at=20.0), job(3, cancel_at=inf))
    assert found == {
        1: (JobState.CANCELLED, 30.0), 2: (JobState.SUCCEEDED, 10.0), 3: (JobState.SUCCEEDED, 100.0)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "gang", "rate"),
    [
        ({"fork_max": 3}, 1, 0.9 * (2 * 3.0 + 1.0)),
        ({"fork_max": 9}, 1, 0.9 * (2 * 3.0 + 2 * 1.0)),
        ({"mixed": True}, 3, 0.8 * 2.0),
        ({"mixed": True, "shares": True}, 3, 0.8 * (2 * 3.0 + 2.0) / 3),
    ],
)
def test_a_fork_has_the_speed_of_its_parts_and_a_mixed_gang_that_of_its_slowest_unless_it_shares(
    more: dict[str, Any], gang: int, rate: float
) -> None:
    """Work credited is work done: beside a job that cannot be stopped, it ends after its steps over its true speed."""
    fast = Pool(PoolId("a100"), Shape("a100", "a100", 2, 8.0, 2**33))
    slow = Pool(PoolId("k80"), Shape("k80", "k80", 2, 8.0, 2**33))
    speeds = {SpeedKey(KIND, "a100"): 3.0, SpeedKey(KIND, "k80"): 1.0, SpeedKey(KIND, "k80", 3): 2.0}
    truth = GroundTruth(speeds, mixing_loss=0.2, averaging_loss=0.1)
    there = JobRequest(JobId(1), KIND, demands=(Demand("k80", 2),), steps=5000.0, preemptible=False)
    spread = JobRequest(JobId(2), KIND, demands=(Demand("a100", gang), Demand("k80", gang)), steps=900.0, **more)
    jobs = [SimulatedJob(0.0, there, 5000.0), SimulatedJob(1.0, spread, 900.0)]
    pools = (PoolModel(fast, machines=2 if gang > 2 else 1), PoolModel(slow, machines=2))
    rules = RoundRules(round_s=1e4, resolve_min_s=0.0)
    ended_at: dict[JobId, float] = {}

    def hear(event: Event, commands: list[Command]) -> None:
        ended_at.update((each.job_id, event.at) for each in commands if isinstance(each, JobTransitioned))

    busy = JobRequest(JobId(3), KIND, demands=(Demand("a100", 2),), steps=1e5, preemptible=False)
    jobs += [SimulatedJob(0.0, busy, 1e5)] if gang > 2 else []
    simulate(
        sorted(jobs, key=lambda job: job.at),
        Scenario(pools, truth, PolicySpec("walras" if spread.shares else "hadar"), rules),
        recorder=hear,
    )
    assert ended_at[JobId(2)] == pytest.approx(1.0 + 900.0 / rate)
