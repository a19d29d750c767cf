"""A recorded run, measured and simulated again."""

from typing import TypeVar

import pytest

from scheduler.core.commands import AttemptTransitioned
from scheduler.core.events import AttemptProgressed, AttemptStarted, Event, JobSubmitted
from scheduler.core.rules import parse_policy
from scheduler.core.speed_events import FactsTold, SpeedsPredicted
from scheduler.world.attempts import SimulatedJob
from simulator.experiment import workload_experiment
from simulator.measured_costs import (
    MeasuredCosts,
    MeasuredFacts,
    MeasuredKind,
    MeasuredPool,
    MeasuredPrediction,
    MeasuredRevocation,
    MeasuredSpeed,
    RecordedEvent,
    measure_costs,
    recorded_completion_times,
)
from simulator.reports.recorded_runs import live_world_parameters, resimulate, resimulation_scenario
from simulator.simulation import Simulation
from tests.support.recorded_run import recorded_run
from walras.cluster import NodeId, NodeShare, Placement, PoolId
from walras.job_request import Demand, JobId, JobRequest, Kind
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import check_model
from walras.spec.workload_file import WorkloadFile
from walras.states import AttemptState

T = TypeVar("T")

CLUSTER = check_model(
    ClusterConfig,
    {
        "pools": [
            {"shape": "a", "accelerator": "a100", "accelerators": 2, "cpus": 8, "memory": "8GB", "machines": 1},
            {
                "shape": "v", "accelerator": "v100", "accelerators": 1, "cpus": 8, "memory": "8GB", "market": "spot",
                "provider": "local", "usd_per_h": 0.9, "quota": 1, "notice": "10s", "boot": "2s",
            },
        ],
        "lease": "20s",
        "speeds": {"cnn": {"a100": 10, "v100": 5}, "rnn": {"a100": 8, "v100": 6}},
    },
    source="cluster",
)  # fmt: skip
WORKLOAD = check_model(
    WorkloadFile,
    {
        "jobs": [
            {
                "at": f"{at}s",
                "job": {
                    "name": f"job-{at}", "run": "python train.py", "profile": kind, "steps": steps,
                    "resources": {"accelerators": "any:1", "cpus": 1, "memory": "1GB"},
                },
            }
            for at, kind, steps in ((0, "cnn", 600), (2, "rnn", 500), (5, "cnn", 300), (9, "rnn", 400), (30, "cnn", 90))
        ],
        "incidents": [{"at": "40s", "revoke": "v/spot/default"}],
    },
    source="workload",
)  # fmt: skip
POLICY = parse_policy(
    {
        "policy": {"name": "max_min_fairness"},
        "rules": {"round_s": 12, "resolve_min_s": 4, "min_runtime_s": 12, "restart_default_s": 5, "profiling_s": 8,
                  "delay_usd_per_h": 3, "rent_keep_s": 20, "tolerated_lag": 0},
    }
)  # fmt: skip
#: The world in which the run happens.
TRUE = MeasuredCosts(
    kinds=tuple(
        MeasuredKind(kind=kind, start_s=0.2, warm_up_s=3.0, checkpoint_s=0.1, exit_s=0.8) for kind in ("cnn", "rnn")
    ),
    pools=(MeasuredPool(pool_id="v/spot/default", boot_s=2.5),),
    revocations=(MeasuredRevocation(at=41.0, pool_id="v/spot/default"),),
    begins_at=1.5,
    solve_s=0.05,
)
#: The same world; the scheduler counted the operations of a kind, and predicted speeds from them twice.
PREDICTED = TRUE.model_copy(
    update={
        "predictions": (MeasuredPrediction(at=7.0), MeasuredPrediction(at=13.5, took_s=1.5)),
        "facts": (
            MeasuredFacts(at=6.0, kind="cnn", flops_per_sample=1e9, batch_per_accelerator=32.0, counted=True),
            MeasuredFacts(at=8.0, kind="rnn", flops_per_sample=2e9, batch=64.0),
        ),
    }
)


@pytest.fixture(scope="module")
def run() -> list[RecordedEvent]:
    """One run in the true world, recorded."""
    return recorded_run(WORKLOAD, CLUSTER, POLICY, TRUE)


def test_what_is_measured_is_what_was_true(run: list[RecordedEvent]) -> None:
    """Every phase of an attempt, boot time, revocations, solve time, the clock and the work come back as they were."""
    found = measure_costs(run)
    for kind in found.kinds:
        assert (kind.start_s, kind.checkpoint_s) == (pytest.approx(0.2), pytest.approx(0.1))
        # A job's own clock says when its first step was done; the step's length is taken off again.
        assert kind.warm_up_s == pytest.approx(3.0, abs=0.3)
        assert kind.exit_s == pytest.approx(0.8, abs=0.3)
    assert [pool.boot_s for pool in found.pools] == [pytest.approx(2.5)]
    assert [each.at for each in found.revocations] == [pytest.approx(41.0)]
    assert (found.begins_at, found.solve_s) == (pytest.approx(1.5), pytest.approx(0.05))
    assert [job.steps for job in found.jobs] == [600, 500, 300, 400, 90]
    assert {(s.kind, s.accelerator): s.steps_per_s for s in found.speeds}["cnn", "a100"] == pytest.approx(10.0)


def test_a_run_simulated_again_takes_as_long(run: list[RecordedEvent]) -> None:
    """In a world that is known, the second run is the first one, up to a step here and there."""
    again = resimulate(run, WORKLOAD, CLUSTER, POLICY, seeds=1)
    assert len(again) == 5
    assert max(job.error for job in again) < 0.1, again
    assert {job.job_id: job.run_s for job in again} == recorded_completion_times(run)


def test_the_range_over_seeds_holds_the_forecast(run: list[RecordedEvent]) -> None:
    """The forecast is the median over seeds."""
    for job in resimulate(run, WORKLOAD, CLUSTER, POLICY, seeds=3):
        assert job.least_s <= job.simulated_s <= job.most_s


def test_a_run_without_a_single_step_is_measured_in_seconds() -> None:
    """Nothing recorded says nothing, and harms nothing."""
    assert measure_costs([]) == MeasuredCosts()


def test_each_attempt_takes_the_times_that_it_took_in_the_run() -> None:
    """Starts and exits that differ by half decide who is moved; drawn anew, they make another history."""
    run = recorded_run(WORKLOAD, CLUSTER, POLICY, TRUE.model_copy(update={"cost_noise": 0.5}))
    found = measure_costs(run)
    warm_ups = {each.warm_up_s for each in found.attempts}
    assert len(warm_ups) == len(found.attempts) > 5
    again = resimulate(run, WORKLOAD, CLUSTER, POLICY, seeds=5)
    assert max(job.error for job in again) < 0.03, again
    assert max(job.most_s / job.least_s for job in again) > 1.1, "the drawn ones differ"
    assert found.without_single_times().attempts == ()


def test_jobs_arrive_and_machines_report_at_the_instants_of_the_run() -> None:
    """A second's delay puts a job behind a solve, and a beat's delay a speed behind a prediction."""
    jobs = [each.model_copy(update={"at": each.at and each.at + 0.9}) for each in WORKLOAD.jobs]
    true = PREDICTED.model_copy(update={"cost_noise": 0.5})
    run = recorded_run(WORKLOAD.model_copy(update={"jobs": jobs}), CLUSTER, POLICY, true)
    again = resimulate(run, WORKLOAD, CLUSTER, POLICY, seeds=1)
    assert max(job.error for job in again) < 0.03, again


def test_each_request_for_a_machine_boots_as_long_as_it_did() -> None:
    pools = (MeasuredPool(pool_id="v/spot/default", boot_s=2.5, boots_s=(7.0, 1.5)),)
    run = recorded_run(WORKLOAD, CLUSTER, POLICY, TRUE.model_copy(update={"pools": pools}))
    (found,) = measure_costs(run).pools
    assert found.boots_s == (pytest.approx(7.0), pytest.approx(1.5))
    assert found.boot_s == pytest.approx(4.25)
    assert max(job.error for job in resimulate(run, WORKLOAD, CLUSTER, POLICY, seeds=1)) < 0.1


def test_beats_lie_as_far_apart_as_the_reports_show() -> None:
    """Leases of 20 s: agents wait for 2 s after each answer, and a report comes with each third beat."""
    rules = POLICY[1]
    late = MeasuredCosts(report_gap_s=6.3, beat_s=2.1)
    assert live_world_parameters(late, rules, 20.0).report_s == pytest.approx(2.1)
    assert live_world_parameters(late, rules).report_s == 2.1
    assert live_world_parameters(MeasuredCosts(report_gap_s=0.1), rules, 20.0).report_s == 2.0
    assert live_world_parameters(MeasuredCosts(), rules).report_s == 5.0


@pytest.mark.parametrize(("first_s", "gap_s", "beat_s"), [(4.3, 6.3, 2.1), (2.1, 6.3, 2.1), (5.1, 60.2, 0.0)])
def test_the_time_between_beats_is_told_by_first_reports_and_gaps(first_s: float, gap_s: float, beat_s: float) -> None:
    """Nothing is told where a report comes with more beats than are tried."""
    place = Placement(PoolId("a/owned/default"), (NodeShare(NodeId("n"), (0,)),))
    leased = AttemptTransitioned(JobId(1), 1, AttemptState.LEASED, None, place)
    events: list[Event] = [AttemptStarted(10.0, JobId(1), 1)]
    events += [AttemptProgressed(10.0 + first_s + n * gap_s, JobId(1), 1, 5.0 * n) for n in range(5)]
    request = JobRequest(JobId(1), Kind("cnn"), demands=(Demand("a100", 1),))
    record: list[RecordedEvent] = [(JobSubmitted(9.0, request), [leased]), *((event, []) for event in events)]
    assert measure_costs(record).beat_s == pytest.approx(beat_s)


def test_speeds_are_predicted_again_when_the_run_predicted_them() -> None:
    """A simulation that knew less than the run would take other decisions."""
    run = recorded_run(WORKLOAD, CLUSTER, POLICY, PREDICTED)
    found = measure_costs(run)
    assert [(each.at, each.took_s) for each in found.predictions] == [
        (pytest.approx(7.0), 0.0),
        (pytest.approx(13.5), pytest.approx(1.5)),
    ]
    assert [each.told(found.begins_at) for each in found.facts] == _said(run, FactsTold)
    again = recorded_run(WORKLOAD, CLUSTER, POLICY, MeasuredCosts.model_validate_json(found.model_dump_json()))
    for first, second in zip(_said(run, SpeedsPredicted), _said(again, SpeedsPredicted), strict=True):
        assert first.at == pytest.approx(second.at)
        assert first.speeds
        assert [(each.kind, each.accelerator) for each in first.speeds] == [
            (each.kind, each.accelerator) for each in second.speeds
        ]
    assert max(job.error for job in resimulate(run, WORKLOAD, CLUSTER, POLICY, seeds=1)) < 0.1


def _said(run: list[RecordedEvent], kind: type[T]) -> list[T]:
    return [event for event, _ in run if isinstance(event, kind)]


@pytest.mark.parametrize("saves", [True, False])
def test_a_kind_that_was_never_seen_to_save_does_not_save_in_the_simulation(saves: bool) -> None:
    """A script that saves says so with its reports, so that it may be moved; one that does not keeps its place."""
    place = Placement(PoolId("a/owned/default"), (NodeShare(NodeId("n"), (0,)),))
    leased = AttemptTransitioned(JobId(1), 1, AttemptState.LEASED, None, place)
    request = JobRequest(JobId(1), Kind("cnn"), demands=(Demand("a100", 1),), steps=600.0, unproven=True)
    events: list[Event] = [AttemptStarted(10.0, JobId(1), 1)]
    events += [AttemptProgressed(15.0, JobId(1), 1, 5.0, saves=saves)]
    record: list[RecordedEvent] = [(JobSubmitted(9.0, request), [leased]), *((event, []) for event in events)]
    (kind,) = measure_costs(record).kinds
    assert (kind.checkpoint_s is not None) == saves
    said: list[Event] = []
    costs = MeasuredCosts(kinds=(kind,), speeds=(MeasuredSpeed(kind="cnn", accelerator="a100", steps_per_s=1.0),))
    experiment = workload_experiment(WORKLOAD, CLUSTER, costs)
    jobs = [SimulatedJob(0.0, request, 600.0)]
    simulation = Simulation(resimulation_scenario(experiment, costs, CLUSTER, POLICY, seed=0))
    simulation.run(jobs, lambda event, _: said.append(event))
    assert {event.saves for event in said if isinstance(event, AttemptProgressed)} == {saves}
