"""Policies of ours in the worlds of Pollux, Sia and Shockwave, on cases small enough to follow by hand."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from training import SteadyLearning, steady

from optimizer.policy import PolicySpec
from scheduler.world.attempts import SimulatedJob
from scheduler.world.engine import RunOutcome
from scheduler.world.machines import PoolModel
from simulator.goodput import (
    AcceleratorProfile,
    Application,
    GangLayout,
    MeasuredStepTimes,
    OutsideProfileError,
    StepTimeCurve,
)
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.simulation import Scenario, SimulationResult, simulate
from simulator.workloads.trace_source import TraceJob
from simulator.worlds.pollux import pollux_scenario as pollux
from simulator.worlds.pollux import pollux_scenario as pollux_applications
from simulator.worlds.pollux.pollux_scenario import (
    T4_POOL,
    AdaptivePolluxTraining,
    TrainingLaw,
    best_goodput,
    gang_sizes_in,
)
from simulator.worlds.shockwave.shockwave_scenario import batch_schedule_of, shockwave_plan_scenario
from simulator.worlds.sia import sia_scenario as sia
from simulator.worlds.sia.sia_scenario import SiaApplication
from walras.cluster import Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind

#: Each accelerator added adds as much: no synchronisation, and no noise that a larger batch would lose by.
NET = steady(steps=200.0, grad_var=1e9)
POLICIES = ["pollux", "sia", "walras"]


def _done(jobs: Sequence[SimulatedJob], scenario: Scenario) -> SimulationResult:
    result = simulate(jobs, scenario)
    assert result.outcome is RunOutcome.COMPLETE
    assert result.violations == []
    assert len(result.jobs) == len(jobs)
    result.jobs.sort(key=lambda job: job.job_id)
    return result


def _pollux(
    arrivals: Sequence[float], policy: str, application: Application = NET, machines: int = 2
) -> SimulationResult:
    rows = [TraceJob(at, f"job-{n}", application.name, 1, batch=8) for n, at in enumerate(arrivals)]
    pool = replace(T4_POOL, machines=machines)
    workload = pollux_applications.pollux_workload(rows, {application.name: application}, pool.pool, machines)
    return _done(workload.jobs, pollux.pollux_plan_scenario(workload, PolicySpec(policy), pool=pool))


# ------------------------------------------------------------------------------------------------ what adapts


def test_the_best_batch_is_taken_and_what_nobody_measured_is_not() -> None:
    """The goodput rises with the batch until nobody knows it; from 0 batches there is none."""

    def goodput(batch: int) -> float:
        if batch > 40:
            raise OutsideProfileError("unknown")
        return float(batch)

    assert best_goodput(8, 64, goodput) == pytest.approx(40, abs=1)
    assert best_goodput(65, 64, goodput) == 0.0
    assert best_goodput(41, 41, goodput) == 0.0


def test_a_training_that_adapts_is_never_slower_than_with_a_fixed_batch() -> None:
    """Two accelerators and noise: twice the samples a second, and a larger batch loses nearly nothing."""
    training = AdaptivePolluxTraining(NET, "t4", 8)
    alone, two = (training.speed_at(GangLayout((count,)), 0.0) for count in (1, 2))
    assert two == pytest.approx(2 * alone, rel=0.01)
    assert training.speed_at(GangLayout((4,) * 40), 0.0) == 0.0  # fewer samples than accelerators


def test_ncf_keeps_its_batch_and_one_accelerator() -> None:
    ncf = replace(steady("ncf"), batch_initial=256, batch_most=32_768)
    profile = replace(ncf.on["t4"], local_most=32_768)
    workload = pollux_applications.pollux_workload(
        [TraceJob(0.0, "one", "ncf", 1, batch=256)], {"ncf": replace(ncf, on={"t4": profile})}, T4_POOL.pool, 2
    )
    ours = pollux.with_adaptive_batches(workload)
    (sizes,) = pollux.AdaptiveConfigurations.of(ours, T4_POOL).sizes.values()
    assert sizes == (1,)
    (training,) = ours.trainings.values()
    # One pass of at most 16,384 samples and another: the fixed batch, at 8 samples a second.
    assert training.speed_at(GangLayout((1,)), 0.0) == pytest.approx(8.0 / 32_768)


def test_gangs_are_parts_of_a_machine_or_whole_machines() -> None:
    assert gang_sizes_in(replace(T4_POOL, machines=3)) == (1, 2, 4, 8, 12)


def test_the_law_of_a_training_holds_until_the_epoch_ends() -> None:
    """And in the last one for ever."""
    law = TrainingLaw({"t4": AdaptivePolluxTraining(NET, "t4", 8)})
    assert law.speed_segment("t4", (1,), 0.0).until_steps == 200.0
    assert law.speed_segment("t4", (1,), 200.0).until_steps == float("inf")


# ------------------------------------------------------------------------------------------------ Pollux's world


@pytest.mark.parametrize("policy", POLICIES)
def test_every_job_of_a_crowd_ends_in_polluxs_world(policy: str) -> None:
    arrivals = [20.0 * n for n in range(14)]
    one, two = (_pollux(arrivals, policy) for _ in range(2))
    assert [job.ended_at for job in one.jobs] == [job.ended_at for job in two.jobs]


def test_a_job_alone_grows_and_pays_its_restart_each_time() -> None:
    """At most twice what it ran on: 1, 2, then a machine, then both, a start of 30 s each."""
    (job,) = _pollux([0.0], "sia", steady(steps=2000.0, grad_var=1e9)).jobs
    assert job.overhead_s == pytest.approx(4 * 30.0)
    assert job.first_run_at == 60.0 + 30.0


# ------------------------------------------------------------------------------------------------ Sia's world


def test_places_are_made_larger_gangs_first_and_nobody_is_apart_who_need_not_be() -> None:
    one, two, three, four = map(JobId, (1, 2, 3, 4))
    assert sia.pack_in_order({one: 1, two: 4, three: 2, four: 1}, [5, 7], 4) == {
        two: ((5, 4),), three: ((7, 2),), one: ((7, 1),), four: ((7, 1),),
    }  # fmt: skip
    assert sia.pack_in_order({one: 8}, [5, 7], 4) == {one: ((5, 4), (7, 4))}


@pytest.mark.parametrize("policy", POLICIES)
def test_every_job_of_a_crowd_ends_in_sias_world(policy: str) -> None:
    """On two types, the second twice as fast; each start costs 50 s."""
    pools = tuple(
        PoolModel(Pool(PoolId(name), Shape(name, name, 4, 1.0, 1)), machines=machines)
        for name, machines in (("aws", 2), ("rtx", 1))
    )
    placements = ((1,), (2,), (1, 1), (4,), (4, 4))
    laws = {
        name: MeasuredStepTimes(
            "net", {GangLayout(parts): StepTimeCurve((1, 16), (s, 16 * s), (0.0, 0.0)) for parts in placements}
        )
        for name, s in (("aws", 0.25), ("rtx", 0.125))
    }
    profiles = {name: AcceleratorProfile(law, 1, 16) for name, law in laws.items()}
    application = Application("net", 8, 64, SteadyLearning(2, 500.0, 8, 1e9), profiles)
    rows = [TraceJob(40.0 * n, f"net-{n}", "net", 1, batch=8) for n in range(15)]
    workload = sia.sia_workload(rows, {"net": SiaApplication(application, laws, 1.2, 50.0)}, pools)
    result = _done(workload.jobs, sia.sia_plan_scenario(workload, PolicySpec(policy), pools=pools))
    assert {name for job in result.jobs for name in job.accelerator_s} == {"aws", "rtx"}


# ------------------------------------------------------------------------------------------------ Shockwave's world


def _shockwave(
    jobs: Sequence[tuple[float, float]], policy: str = "shockwave", rule: str = "static"
) -> SimulationResult:
    """Language models (arrival, steps) that begin at a batch of 10, on two accelerators."""
    pool = PoolModel(Pool(PoolId("v100"), Shape("v100", "v100", 1, 1.0, 1)), machines=2)
    speeds = {f"LM (batch size {batch})": speed for batch, speed in ((10, 2.0), (20, 1.5), (80, 0.5))}
    truth = GroundTruth({SpeedKey(Kind(name), "v100", 1): speed for name, speed in speeds.items()})
    batching = batch_schedule_of("LM (batch size 10)", 1, rule)
    workload = [
        SimulatedJob(at, JobRequest(JobId(number), batching.kind(10), demands=(Demand("v100", 1),), steps=steps), steps)
        for number, (at, steps) in enumerate(jobs, start=1)
    ]
    batchings = {job.request.job_id: batching for job in workload}
    return _done(workload, shockwave_plan_scenario(pool, truth, PolicySpec(policy), batchings))


def test_the_longest_runs_on_while_shorter_ones_take_turns_beside_it() -> None:
    """840 s of one job and 4 x 120 s of others on two accelerators: nobody can end sooner than after 840 s."""
    result = _shockwave([(0.0, 240.0)] * 4 + [(0.0, 1680.0)])
    assert result.jobs[4].ended_at == 840.0
    assert result.last_ended_at == 840.0
    careless = _shockwave([(0.0, 240.0)] * 4 + [(0.0, 1680.0)], "walras")
    assert careless.last_ended_at > 840.0


def test_a_newcomer_needs_no_gate() -> None:
    """It runs in the round after it came; its first round counts 20 s less."""
    result = _shockwave([(0.0, 2400.0), (130.0, 480.0)])
    assert result.jobs[1].ended_at == 240.0 + 240.0 + 20.0


def test_batches_change_under_our_policies_too() -> None:
    """Accordion leaves the critical epochs of the network: the job ends with other steps than it was told to make."""
    result = _shockwave([(0.0, 5968.0 * 12)], rule="accordion")
    assert result.jobs[0].ended_at != pytest.approx(5968.0 * 12 / 2.0, abs=60.0)
