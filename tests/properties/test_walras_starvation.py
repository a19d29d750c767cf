"""Nobody starves under walras: the bound of docs/walras-policy.md, on workloads that overload the fleet."""

from dataclasses import dataclass
from math import floor, log

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from optimizer.policy import PolicySpec
from optimizer.problem import Problem
from scheduler.core.commands import Command, Solve
from scheduler.core.events import Event, Solved
from scheduler.core.rules import RoundRules
from scheduler.world.attempts import AttemptCosts, SimulatedJob
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth, SpeedKey
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
#: A job is a step later when its stretch is this many times larger.
STEP = 1.5


@dataclass(frozen=True)
class Promise:
    """What an overdue job is promised when it reaches a step of stretch."""

    #: Stretch at which the step begins.
    least: float
    #: When it would end if it ran from then on, seconds after its arrival.
    predicted_s: float
    #: Steps left of the jobs that were there.
    left: dict[int, float]


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


def promises(problem: Problem, overdue: list[int], length_s: dict[int, float]) -> dict[tuple[int, int], Promise]:
    """By job and step: of the overdue jobs of this problem, whose lengths on their best pools these are."""
    jobs, columns = problem.jobs, problem.columns
    best = np.zeros(len(jobs))
    np.maximum.at(best, columns.job, columns.steps_per_s)
    left = {int(job_id): float(steps) for job_id, steps in zip(jobs.job_id, jobs.remaining_steps, strict=True)}
    made = {}
    for job_id in overdue:
        row = jobs.job_id.tolist().index(job_id)
        predicted_s = float(problem.at - jobs.submitted_at[row] + left[job_id] / best[row])
        step = floor(log(max(predicted_s / length_s[job_id] / GUARD["slowdown"], 1.0)) / log(STEP))
        made[job_id, step] = Promise(GUARD["slowdown"] * STEP**step, predicted_s, left)
    return made


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(workloads())
def test_a_late_job_is_delayed_by_jobs_as_late_alone(jobs: list[SimulatedJob]) -> None:
    """Completion <= predicted completion when it reached a step + B / (M - s + 1), B what jobs that reach that step
    need then, whatever else arrives: for every job that fits its pool."""
    request = {int(job.request.job_id): job.request for job in jobs}
    best = {job_id: max(("fast", "slow"), key=lambda pool: SPEED[told.kind, pool]) for job_id, told in request.items()}
    length_s = {job_id: told.steps / SPEED[told.kind, best[job_id]] for job_id, told in request.items()}
    told: dict[tuple[int, int], Promise] = {}
    asked: list[Problem] = []

    def watch(happened: Event, commands: list[Command]) -> None:
        if isinstance(happened, Solved) and asked:
            told.update(promises(asked.pop(), happened.proposal.memory["overdue"], length_s) | told)
        asked.extend(command.problem for command in commands if isinstance(command, Solve))

    result = simulate(jobs, scenario(), recorder=watch)
    assert not result.unfinished
    jct_s = {int(job.job_id): job.jct_s for job in result.jobs}
    event(f"steps reached: {max((step for _, step in told), default='none')}")
    for (job_id, _), promise in told.items():
        reach = [i for i in jct_s if i != job_id and jct_s[i] / length_s[i] >= promise.least * (1 - 1e-9)]
        work = sum(
            request[i].demands[0].count * promise.left.get(i, request[i].steps) / SPEED[request[i].kind, best[job_id]]
            for i in reach
        )
        gang = request[job_id].demands[0].count
        most = PLACES / 2 if gang <= PLACES / 2 else PLACES
        assert jct_s[job_id] <= promise.predicted_s + work / (most - gang + 1) + ROUND_S, f"job {job_id}"
