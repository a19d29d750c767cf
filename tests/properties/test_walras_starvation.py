"""Nobody starves under walras: the bound of docs/walras-policy.md, on workloads that overload the fleet."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from optimizer.policy import PolicySpec
from optimizer.problem import Problem
from scheduler.core.commands import Command, Solve
from scheduler.core.events import Event, Solved
from scheduler.core.rules import RoundRules
from simulator.ground_truth import AttemptCosts, GroundTruth, SpeedKey
from simulator.machines import PoolModel
from simulator.simulated_jobs import SimulatedJob
from simulator.simulation import Scenario, simulate
from walras.cluster import Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind

#: Time passes unnoticed for a round at most.
ROUND_S = 30.0
KINDS = ("cnn", "rnn")
SPEED = {("cnn", "fast"): 4.0, ("cnn", "slow"): 1.0, ("rnn", "fast"): 2.0, ("rnn", "slow"): 1.5}
PLACES = 6
#: Early enough that small workloads have overdue jobs.
GUARD = {"slowdown": 1.3, "margin": 1.1}


@dataclass(frozen=True)
class Promise:
    """What a job is promised when it becomes urgent."""

    ends_by_s: float


@st.composite
def workloads(draw: st.DrawFn) -> list[SimulatedJob]:
    """More work than two pools of six can do for a while, long jobs among many short ones."""
    count = draw(st.integers(25, 60))
    every_s = draw(st.sampled_from([2.0, 6.0]))
    jobs = []
    for number in range(1, count + 1):
        kind = Kind(draw(st.sampled_from(KINDS)))
        gang = draw(st.sampled_from([1, 1, 2, 3, 5, PLACES]))
        steps = float(draw(st.sampled_from([80, 400, 1000, 4000])))
        request = JobRequest(JobId(number), kind, demands=(Demand("*", gang),), steps=steps)
        jobs.append(SimulatedJob(number * every_s, request, steps))
    return jobs


def scenario() -> Scenario:
    pools = tuple(PoolModel(Pool(PoolId(name), Shape(name, name, 1, 8.0, 2**33)), PLACES) for name in ("fast", "slow"))
    speeds = {SpeedKey(Kind(kind), name): speed for (kind, name), speed in SPEED.items()}
    rules = RoundRules(round_s=ROUND_S, resolve_min_s=0.0, restart_default_s=0.0)
    return Scenario(pools, GroundTruth(speeds, {}, AttemptCosts()), PolicySpec("walras", GUARD), rules)


def promises(problem: Problem, urgent: list[int], known: set[int]) -> dict[int, Promise]:
    """Of the jobs that have just become urgent: rho' x length + B / (M - s + 1), M the reserve or all."""
    jobs, columns = problem.jobs, problem.columns
    rate = np.zeros((len(jobs), len(problem.pools)))
    rate[columns.job, columns.use_pool] = columns.steps_per_s
    row = {int(job_id): at for at, job_id in enumerate(jobs.job_id)}
    made = {}
    for place, job_id in enumerate(urgent):
        if job_id in known:
            continue
        j = row[job_id]
        best = int(rate[j].argmax())
        predicted_s = problem.at - jobs.submitted_at[j] + jobs.remaining_steps[j] / rate[j, best]
        before = [row[other] for other in urgent[:place]]
        work = sum(float(jobs.gang[i] * jobs.remaining_steps[i] / rate[i, best]) for i in before)
        capacity = problem.pools.capacity[best]
        reserve = np.ceil(0.5 * capacity)
        most = reserve if jobs.gang[j] <= reserve else capacity
        made[job_id] = Promise(float(predicted_s + work / (most - jobs.gang[j] + 1)))
    return made


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(workloads())
def test_an_urgent_job_ends_by_its_promise(jobs: list[SimulatedJob]) -> None:
    """Completion <= predicted completion when it became urgent + B / (M - s + 1), whatever arrives later: for every job
    that fits its pool."""
    told: dict[int, Promise] = {}
    asked: list[Problem] = []

    def watch(happened: Event, commands: list[Command]) -> None:
        if isinstance(happened, Solved) and asked:
            told.update(promises(asked.pop(), happened.proposal.memory.get("urgent", []), set(told)))
        asked.extend(command.problem for command in commands if isinstance(command, Solve))

    result = simulate(jobs, scenario(), recorder=watch)
    assert not result.unfinished
    large = {int(job.request.job_id) for job in jobs if job.request.demands[0].count > PLACES / 2}
    event(f"urgent: {'larger than the reserve too' if large & set(told) else 'some' if told else 'none'}")
    for job in result.jobs:
        if job.job_id in told:
            assert job.jct_s <= told[job.job_id].ends_by_s + ROUND_S, f"job {job.job_id}"
