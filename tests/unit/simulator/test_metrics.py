"""What a run is measured by."""

import json
from collections.abc import Callable
from math import isnan, nan
from typing import Any

import pytest
from rich.console import Console

from scheduler.core.commands import AttemptTransitioned, JobTransitioned
from scheduler.core.events import JobSubmitted, NodeJoined, NodeLost, PoolDeclared
from scheduler.world.engine import Engine, RunOutcome, SolveStats
from simulator.metrics import JobMetrics, MetricsCollector
from simulator.reports.report_page import print_run_summary
from simulator.reports.run_summary import summarise_run, summary_document
from simulator.simulation import SimulationResult
from walras.cluster import NodeId, NodeShare, Placement, Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind
from walras.output.json_output import json_pieces
from walras.states import AttemptState, JobState, Reason

Make = Callable[..., Any]
POOL = Pool(PoolId("own"), Shape("own", "a100", 2, 8.0, 2**30), usd_per_h=7.2)


def read_back(document: dict[str, Any]) -> Any:
    """What a program reads of `-o json`."""
    return json.loads("".join(json_pieces(document)))


class Watch:
    """Metrics over a story told by the test."""

    def __init__(self) -> None:
        self.ended: list[JobMetrics] = []
        self.engine = Engine(self, lambda solve: pytest.fail("no solve"))
        self.metrics = MetricsCollector(self.engine, self.ended.append)

    def handle(self, event: object) -> list[Any]:
        return []

    def event(self, event: Any) -> None:
        self.engine.on_event[type(event)](event)

    def attempt(self, at: float, job: int, number: int, state: AttemptState, nodes: str = "", **more: Any) -> None:
        parts = tuple(NodeShare(NodeId(node), (0,)) for node in nodes.split())
        placement = Placement(POOL.pool_id, parts) if nodes else None
        command = AttemptTransitioned(JobId(job), number, state, more.get("reason"), placement)
        self.engine.on_command[AttemptTransitioned](at, command)

    def job(self, at: float, job: int, state: JobState) -> None:
        self.metrics.job(at, JobTransitioned(JobId(job), state, None))


@pytest.fixture
def watch() -> Watch:
    w = Watch()
    w.event(PoolDeclared(0.0, POOL))
    for node in ("n1", "n2"):
        w.event(NodeJoined(0.0, NodeId(node), POOL.pool_id))
    w.event(JobSubmitted(10.0, JobRequest(JobId(1), Kind("k"), demands=(Demand("a100", 1),), project="p", user="u")))
    return w


def test_a_jobs_life_is_measured(watch: Watch) -> None:
    """JCT from submission to end, queueing to the first run, overhead while not all ranks are up, money by price."""
    watch.attempt(20.0, 1, 1, AttemptState.LEASED, "n1")
    watch.attempt(25.0, 1, 1, AttemptState.RUNNING)
    watch.attempt(45.0, 1, 1, AttemptState.STOPPING)
    watch.attempt(50.0, 1, 1, AttemptState.PREEMPTED, reason=Reason.POLICY_PREEMPTED)
    watch.attempt(60.0, 1, 2, AttemptState.LEASED, "n2")
    watch.attempt(60.0, 1, 2, AttemptState.RUNNING)
    watch.attempt(110.0, 1, 2, AttemptState.SUCCEEDED)
    watch.job(110.0, 1, JobState.SUCCEEDED)
    (job,) = watch.ended
    assert (job.jct_s, job.queueing_s, job.attempts, job.preemptions, job.losses) == (100.0, 15.0, 2, 1, 0)
    assert (job.running_s, job.overhead_s, job.accelerator_s) == (70.0, 10.0, {"a100": 80.0})
    assert job.usd == pytest.approx(80.0 * 7.2 / 2 / 3600)
    assert (job.project, job.user, job.state) == ("p", "u", JobState.SUCCEEDED)
    assert watch.metrics.open == {}


def test_a_pools_integrals(watch: Watch) -> None:
    """Accelerator-seconds there, held and running, and the price of the machines while they were there."""
    watch.attempt(20.0, 1, 1, AttemptState.LEASED, "n1 n2")
    watch.attempt(25.0, 1, 1, AttemptState.RUNNING)
    watch.event(PoolDeclared(30.0, Pool(POOL.pool_id, POOL.shape, usd_per_h=14.4)))
    watch.attempt(45.0, 1, 1, AttemptState.SUCCEEDED)
    watch.event(NodeLost(50.0, NodeId("n2")))
    watch.metrics.settle(100.0)
    meter = watch.metrics.pools[POOL.pool_id]
    assert (meter.there_s, meter.held_s, meter.running_s) == (2 * (100.0 + 50.0), 2 * 25.0, 2 * 20.0)
    assert meter.usd == pytest.approx((2 * 30 * 7.2 + (20 * 2 + 50) * 14.4) / 3600)


def test_a_gang_that_loses_a_machine_holds_only_the_rest(watch: Watch) -> None:
    """So that never more is held than is there."""
    watch.attempt(20.0, 1, 1, AttemptState.LEASED, "n1 n2")
    watch.attempt(20.0, 1, 1, AttemptState.RUNNING)
    watch.event(NodeLost(30.0, NodeId("n2")))
    watch.attempt(40.0, 1, 1, AttemptState.PREEMPTED, reason=Reason.INFRA_NODE_LOST)
    watch.job(50.0, 1, JobState.CANCELLED)
    meter, (job,) = watch.metrics.pools[POOL.pool_id], watch.ended
    assert (meter.held, meter.running, meter.held_s) == (0, 0, 30.0)
    assert (job.accelerator_s, job.preemptions, job.losses) == ({"a100": 30.0}, 0, 1)


def test_two_attempts_at_once_stop_the_simulation(watch: Watch) -> None:
    """A scheduler that grants a second attempt while the first holds accelerators has a mistake."""
    watch.attempt(20.0, 1, 1, AttemptState.LEASED, "n1")
    with pytest.raises(AssertionError, match="job 1 is granted two attempts at once"):
        watch.attempt(21.0, 1, 2, AttemptState.LEASED, "n2")


def _measure(number: int, jct_s: float, state: JobState = JobState.SUCCEEDED) -> JobMetrics:
    measure = JobMetrics(JobId(number), "k", "p", "u", 10.0, 12.0, 10.0 + jct_s, state)
    measure.accelerator_s = {"a100": 3600.0}
    return measure


def _result(*jobs: JobMetrics, unfinished: tuple[JobMetrics, ...] = ()) -> SimulationResult:
    return SimulationResult(
        RunOutcome.COMPLETE, 300.0, 10.0, 210.0, list(jobs), list(unfinished), [], {}, 100.0, 5.0, 42, SolveStats(), 0.1
    )


def test_figures_are_taken_over_the_jobs_that_succeeded() -> None:
    """A job that failed at once would make every mean look better."""
    summary = summarise_run(_result(_measure(1, 100.0), _measure(2, 200.0), _measure(3, 1.0, JobState.FAILED)))
    assert (summary.avg_jct_s, summary.median_jct_s, summary.p99_jct_s) == (150.0, 150.0, pytest.approx(199.0))
    assert (summary.makespan_s, summary.jobs, summary.by_state) == (200.0, 3, {"FAILED": 1, "SUCCEEDED": 2})
    assert summary.accelerator_h == {"a100": 3.0}


def test_a_run_without_a_finished_job_has_no_mean() -> None:
    """nan in data, null in JSON, a dash in the table: never a zero."""
    summary = summarise_run(_result(unfinished=(JobMetrics(JobId(1), "k", "p", "u", 1.0),)))
    assert isnan(summary.avg_jct_s)
    assert isnan(summary.utilisation)
    assert read_back(summary_document(summary))["avg_jct_s"] is None
    console = Console(record=True, width=100)
    print_run_summary(summary, console)
    assert "JCT avg / median / p95 / p99    │ - / - / - / -" in console.export_text()


def test_the_json_has_each_job() -> None:
    """With its JCT and queueing, and null for what never happened."""
    never_ran = _measure(2, 50.0, JobState.CANCELLED)
    never_ran.first_run_at = nan
    body = read_back(summary_document(summarise_run(_result()), [_measure(1, 100.0), never_ran]))
    assert [(job["job_id"], job["jct_s"], job["queueing_s"]) for job in body["per_job"]] == [
        (1, 100.0, 2.0),
        (2, 50.0, None),
    ]
