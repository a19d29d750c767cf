"""Sia's Gavel, its places and its time model on cases small enough to follow by hand: steps of 360 s."""

from collections.abc import Sequence
from math import ceil
from pathlib import Path

import numpy as np
import pytest
from training import SteadyLearning

from scheduler.world.engine import RunOutcome
from scheduler.world.machines import PoolModel
from simulator.goodput import (
    AcceleratorProfile,
    Application,
    GangLayout,
    MeasuredStepTimes,
    StepTimeCurve,
    StepTimes,
)
from simulator.simulation import SimulationResult, simulate
from simulator.workloads.trace_source import TraceJob
from simulator.worlds.sia.sia_scenario import (
    ReceivedService,
    SiaApplication,
    SiaTraining,
    largest_local_batch,
    number_accelerators,
    pick_by_priority,
    read_sia_applications,
    sia_scenario,
    sia_workload,
)
from walras.cluster import Pool, PoolId, Shape
from walras.errors import ConfigError
from walras.job_request import JobId

A, B, C = JobId(1), JobId(2), JobId(3)
RESTART_S = 50.0
#: Seconds per sample: the second type is twice as fast.
SAMPLE_S = {"aws": 0.25, "rtx": 0.125}
POOLS = tuple(
    PoolModel(Pool(PoolId(name), Shape(name, name, 4, 1.0, 1)), machines=machines)
    for name, machines in (("aws", 3), ("rtx", 1))
)


def _curve(sample_s: float, most: int = 16) -> StepTimeCurve:
    """A pass takes so long per sample, and nothing for synchronisation."""
    return StepTimeCurve((1, most), (sample_s, most * sample_s), (0.0, 0.0))


def _steps(sample_s: float) -> MeasuredStepTimes:
    placements = ((1,), (2,), (1, 1), (4,), (3, 4), (4, 4))
    return MeasuredStepTimes("net", {GangLayout(parts): _curve(sample_s) for parts in placements})


def _net(slow_down: float = 1.0, steps: float = 4000.0) -> SiaApplication:
    """Designed for a batch of 8, trained with at most 64, in one epoch."""
    laws = {name: _steps(sample_s) for name, sample_s in SAMPLE_S.items()}
    profiles = {name: AcceleratorProfile(law, 1, 16) for name, law in laws.items()}
    return SiaApplication(Application("net", 8, 64, SteadyLearning(1, steps, 8), profiles), laws, slow_down, RESTART_S)


def _run(rows: Sequence[tuple[float, int]], pools: tuple[PoolModel, ...] = POOLS[:1]) -> SimulationResult:
    """Jobs (arrival, accelerators) with 8 samples per accelerator, but no more than 64."""
    jobs = [
        TraceJob(at, f"net-{n}", "net", gang, batch=min(8 * gang, 64)) for n, (at, gang) in enumerate(rows, start=1)
    ]
    workload = sia_workload(jobs, {"net": _net()}, pools)
    result = simulate(workload.jobs, sia_scenario(workload, pools=pools))
    assert result.outcome is RunOutcome.COMPLETE
    assert result.violations == []
    result.jobs.sort(key=lambda job: job.job_id)
    return result


def test_a_job_is_seen_at_the_end_of_its_step_and_waits_out_its_start() -> None:
    """8 samples a pass of 2 s: 4,000 steps are 8,000 s, in rounds of their own length."""
    (job,) = _run([(10.0, 1)]).jobs
    assert (job.first_run_at, job.ended_at) == (360.0 + RESTART_S, 360.0 + RESTART_S + 8000.0)


def test_moving_in_the_same_shape_is_free_and_in_another_is_not() -> None:
    """The larger newcomer takes the lowest numbers; four on one machine move to four on one, two on one are parted."""
    alike, _ = _run([(10.0, 4), (400.0, 8)]).jobs
    assert (alike.attempts, alike.overhead_s) == (2, RESTART_S)
    parted, _ = _run([(10.0, 2), (400.0, 7)]).jobs
    assert (parted.attempts, parted.overhead_s) == (2, 2 * RESTART_S)


def test_a_gang_larger_than_a_type_runs_on_the_other() -> None:
    """Eight accelerators are there on the slower type alone; on it the job makes updates of 2 s."""
    (large,) = _run([(10.0, 8)], POOLS).jobs
    assert set(large.accelerator_s) == {"aws"}
    (small,) = _run([(10.0, 4)], POOLS).jobs
    assert set(small.accelerator_s) == {"rtx"}


def test_speeds_are_slowed_down() -> None:
    plain, slowed = (SiaTraining(_net(factor), "aws", 8) for factor in (1.0, 1.8))
    assert slowed.updates_per_s(2, 12, 4) == pytest.approx(plain.updates_per_s(2, 12, 4) / 1.8)
    assert slowed.advance(GangLayout((2,)), 0.0, 90.0)[0] == pytest.approx(90.0 / 1.8)
    assert plain.updates_per_s(13, 12, 4) == 0.1


def test_the_policy_takes_single_accelerators_to_need_two_passes() -> None:
    """Seven samples are two passes of four; the job itself makes one of seven."""
    training = SiaTraining(_net(), "aws", 7)
    assert training.updates_per_s(1, 12, 4) == pytest.approx(1 / (2 * 4 * 0.25))


def test_the_batch_per_accelerator_is_what_was_measured_for_the_placement() -> None:
    """There, else with as many machines and accelerators or more; nothing that large: refused by name."""
    points = [((2, 3, 12), StepTimes(1.0, 0.0)), ((2, 4, 6), StepTimes(1.0, 0.0))]
    steps = MeasuredStepTimes("net", {GangLayout((1, 2)): _curve(1.0, 10)}, points)
    assert largest_local_batch(steps, GangLayout((2, 1))) == 10
    assert largest_local_batch(steps, GangLayout((1, 1))) == 12
    assert largest_local_batch(steps, GangLayout((2, 2))) == 6
    with pytest.raises(ConfigError, match="5 accelerators on 1 machines"):
        largest_local_batch(steps, GangLayout((5,)))


def test_no_placement_has_more_samples_than_were_measured_for_so_many_accelerators() -> None:
    """A gang parted 1+1 trains with the 4 samples that 2 on a machine were measured with, though 16 would fit."""
    curves = {GangLayout((1,)): _curve(0.25), GangLayout((2,)): _curve(0.25, 4), GangLayout((4,)): _curve(0.25)}
    grid = [
        ((machines, accelerators, local), StepTimes(local * 0.25, 0.0))
        for machines in (1, 2)
        for accelerators in (1, 4)
        for local in (1, 16)
    ]
    law = MeasuredStepTimes("net", curves, grid)
    application = Application("net", 8, 64, SteadyLearning(1, 1000.0, 8), {"aws": AcceleratorProfile(law, 1, 16)})
    training = SiaTraining(SiaApplication(application, {"aws": law}, 1.0, 0.0), "aws", 16)
    # Each update is worth a step, whatever its batch: 4 samples take a second, 8 would take two.
    assert training.advance(GangLayout((1, 1)), 0.0, 10.0)[0] == pytest.approx(10.0)


def test_who_received_least_of_his_share_is_first_and_what_was_received_is_never_forgotten() -> None:
    """After a step of A, B is first on its type; a job that ended still counts in what all received."""
    service = ReceivedService(types=2, prior_s=180.0)
    for job_id in (A, B, C):
        service.admit(job_id)
    half = np.array([0.5, 0.0])
    assert service.ranked({A: half, B: half})[:2] == [(A, 0), (B, 0)]
    service.credit(A, 0, 360.0)
    service.forget(C)
    ranked = service.ranked({A: half, B: half})
    assert ranked == [(B, 0), (A, 0), (A, 1), (B, 1)]


def test_jobs_without_a_share_fill_what_is_left_on_any_type() -> None:
    """B has no share anywhere and fits on the second type only; C fits nowhere."""
    ranked = [(A, 0), (B, 0), (C, 0), (A, 1), (B, 1), (C, 1)]
    assert pick_by_priority(ranked, {A: 4, B: 3, C: 6}, [6, 4]) == {A: 0, B: 1}


def test_gangs_keep_their_numbers_unless_a_larger_one_takes_them() -> None:
    """Of one size, those that stay come first, and newcomers fill the gaps between them."""
    count = {A: 2, B: 2, C: 4}
    assert number_accelerators([A, B], count, {B: (0, 1)}) == {B: (0, 1), A: (2, 3)}
    assert number_accelerators([A, B], count, {B: (1, 2)}) == {B: (1, 2), A: (0, 3)}
    assert number_accelerators([A, C, B], count, {A: (4, 5), B: (2, 3)}) == {C: (0, 1, 2, 3), A: (4, 5), B: (6, 7)}


def test_every_job_of_a_crowd_ends() -> None:
    result = _run([(40.0 * n, (1, 2, 4)[n % 3]) for n in range(20)], POOLS)
    assert len(result.jobs) == 20
    assert all(job.ended_at == ceil(job.ended_at) for job in result.jobs)


def test_what_cannot_be_run_is_named(tmp_path: Path) -> None:
    """Unknown applications, jobs without a batch or larger than every type, folders without profiles, policies."""
    known = {"net": _net()}
    for row, told in (
        (TraceJob(0.0, "x", "gpt", 1, batch=8), "'gpt'"),
        (TraceJob(0.0, "x", "net", 1), "batch size"),
        (TraceJob(0.0, "x", "net", 13, batch=64), "no type has more than 12"),
    ):
        with pytest.raises(ConfigError, match=told):
            sia_workload([row], known, POOLS)
    with pytest.raises(ConfigError, match="no application's profile"):
        read_sia_applications(tmp_path, tmp_path)
