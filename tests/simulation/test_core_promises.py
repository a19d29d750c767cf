"""Promises of the round mechanism, each as a run of the real core and the real policy in virtual time."""

from dataclasses import replace

from fake_fleet import cluster, job, pool

from optimizer.policy import PolicySpec
from scheduler.core import events as ev
from scheduler.core.commands import Command, JobTransitioned, Revoke, Start
from scheduler.core.rules import RoundRules
from simulator.attempts import WorldParameters
from simulator.engine import RunLimits
from simulator.ground_truth import AttemptCosts, GroundTruth, SpeedKey
from simulator.machines import PoolModel
from simulator.simulated_jobs import SimulatedJob
from simulator.simulation import Scenario, Simulation, simulate
from walras.job_request import JobId, Kind
from walras.states import JobState

KIND = Kind("k")
RESTART_S = 10.0
RULES = RoundRules(round_s=60, resolve_min_s=60, min_runtime_s=60, profiling_share=0)


def scenario(machines: int, size: int, until_at: float = 1e9) -> Scenario:
    """One pool of identical machines, speeds known, restarts of 10 s."""
    model = PoolModel(pool("a", size), machines)
    truth = GroundTruth({SpeedKey(KIND, "a"): 1.0}, {KIND: AttemptCosts(RESTART_S - 2.0, 2.0)})
    return Scenario(
        (model,), truth, PolicySpec("max_min_fairness"), RULES, WorldParameters(), limits=RunLimits(until_at=until_at)
    )


def test_answers_are_applied_at_nearly_the_possible_rate() -> None:
    """With arrivals every 0.3 solve times for an hour, answers are applied at >= 0.9 of one per solve time."""
    solve_s = 6.0
    fleet = cluster("max_min_fairness", rules=RoundRules(resolve_min_s=0, profiling_share=0), machines="aaaa")
    answered, answer_at, next_at, number = 0, float("inf"), 0.0, 0
    while next_at < 3600.0:
        if answer_at <= next_at:
            fleet.at = answer_at
            fleet.answer({})
            answered += 1
            answer_at = float("inf")
        else:
            fleet.at = next_at
            number += 1
            fleet.tell(ev.JobSubmitted(fleet.at, job(number, "a")))
            if number > 12 and JobId(number - 12) in fleet.attempts:
                fleet.end(JobId(number - 12))
            next_at += 0.3 * solve_s
        if fleet.solves and answer_at == float("inf"):
            answer_at = fleet.at + solve_s
    assert answered >= 0.9 * 3600.0 / solve_s


def test_gang_in_a_stream_of_single_jobs_starts_within_its_bound() -> None:
    """A gang of 8 among single jobs that never leave a place free starts within the bound of the round mechanism.

    Eight accelerators; n single jobs of 300 s are active while the gang waits. Max-min shares count accelerators, so
    the gang is owed 8/(n + 1) accelerator-seconds per second. It may displace the eight that run once it is owed
    h * 8 * (restart + restart) more than each of them. A single job that is owed more than h * (restart + restart) is
    let in at the next round, so those that run are owed no more than that and a round. Then an incumbent may have its
    minimum run to finish, a round has to end, and the eight have to checkpoint.
    """
    stream = [SimulatedJob(max(0.0, 42.0 * (i - 16)), job(i + 1, "a", steps=300.0), 300.0) for i in range(90)]
    gang = SimulatedJob(1000.0, job(1000, "a", 8, steps=300.0), 300.0)
    active, most_active, started_at = 0, 0, float("inf")

    def watch(event: ev.Event, commands: list[Command]) -> None:
        nonlocal active, most_active, started_at
        active += isinstance(event, ev.JobSubmitted)
        active -= sum(isinstance(c, JobTransitioned) and c.state.is_final for c in commands)
        if 1000.0 <= event.at < started_at:
            most_active = max(most_active, active)
            if any(isinstance(c, Start) and c.job_id == 1000 for c in commands):
                started_at = event.at

    workload = sorted([*stream, gang], key=lambda planned: planned.at)
    result = simulate(workload, scenario(machines=1, size=8), recorder=watch)
    exchange_s = RULES.hysteresis * 2 * RESTART_S
    owed_s = 8 * exchange_s + exchange_s + RULES.round_s
    bound_s = owed_s * most_active / 8 + RULES.min_runtime_s + RULES.round_s + RESTART_S
    assert not result.unfinished
    assert most_active > 8  # nobody left a place free
    assert started_at - 1000.0 <= bound_s


def test_preemptions_under_a_constant_workload_settle() -> None:
    """Constant jobs and machines: at most one preemption per job and min_runtime, and restarts cost <= 1/(1 + h)."""
    jobs = [SimulatedJob(0.0, job(i, "a", steps=1e6), 1e6) for i in range(1, 13)]
    revokes = 0
    ended: list[JobState] = []

    def watch(_: ev.Event, commands: list[Command]) -> None:
        nonlocal revokes
        revokes += sum(isinstance(c, Revoke) for c in commands)
        ended.extend(c.state for c in commands if isinstance(c, JobTransitioned) and c.state.is_final)

    hours = 10
    result = Simulation(scenario(machines=8, size=1, until_at=hours * 3600.0)).run(jobs, watch)
    assert not ended
    delivered_s = sum(meter.held_s for meter in result.pools)
    overhead_s = revokes * RESTART_S
    assert overhead_s <= delivered_s / (1 + RULES.hysteresis)
    assert revokes <= delivered_s / RULES.min_runtime_s
    # Everybody got its two thirds of a machine, within what the mechanism may still owe.
    ran = [measure.running_s for measure in result.unfinished]
    assert min(ran) >= 0.8 * max(ran)


def test_a_workload_that_fits_is_never_preempted() -> None:
    """With a place for everybody nothing moves."""
    jobs = [SimulatedJob(5.0 * i, job(i, "a", steps=5000.0), 5000.0) for i in range(1, 9)]
    revokes: list[Revoke] = []

    def watch(_: ev.Event, commands: list[Command]) -> None:
        revokes.extend(c for c in commands if isinstance(c, Revoke))

    result = simulate(jobs, scenario(machines=8, size=1), recorder=watch)
    assert len(result.jobs) == 8
    assert not revokes


def test_jobs_that_cannot_checkpoint_take_turns_once_and_then_run_to_their_end() -> None:
    """A job whose work is lost when it is stopped is stopped at most once by its equals: all of them finish."""
    jobs = [SimulatedJob(0.0, job(i, "a", steps=600.0), 600.0) for i in range(1, 5)]
    base = scenario(machines=1, size=1, until_at=1e5)
    truth = GroundTruth(base.truth.speeds, {KIND: AttemptCosts(RESTART_S, None)})
    result = simulate(jobs, replace(base, truth=truth))
    assert len(result.jobs) == 4
    assert max(measure.preemptions for measure in result.jobs) <= 1
