"""A recorded run, simulated again under its own policy and under others."""

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from optimizer.policy import PolicySpec
from scheduler.core.commands import Command, JobTransitioned
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle.speed_predictions import PredictionQuestion
from scheduler.core.events import Event, JobCancelled, JobDeadlineChanged, JobSubmitted
from scheduler.core.rules import RoundRules
from simulator import online_predictor
from simulator.ground_truth import SpeedKey
from simulator.measured_costs import MeasuredCosts, MeasuredFacts, MeasuredKind, MeasuredPrediction, RecordedEvent
from simulator.reports.recorded_runs import (
    Recording,
    completed_truth,
    make_recording,
    read_recording,
    replay_json,
    replay_recording,
    replay_table,
    with_policy_from,
    write_recording,
)
from tests.support.live_world import FakeAgent, world
from tests.support.recorded_run import recorded_run
from walras.cli.main import app
from walras.errors import ConfigError
from walras.job_request import JobId, Kind
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import check_model
from walras.spec.workload_file import WorkloadFile
from walras.states import JobState

CLUSTER = check_model(
    ClusterConfig,
    {
        "pools": [
            {"shape": "a", "accelerator": "a100", "accelerators": 2, "cpus": 8, "memory": "8GB", "machines": 1,
             "nominal_speed": 4},
            {"shape": "k", "accelerator": "k80", "accelerators": 1, "cpus": 8, "memory": "8GB", "machines": 1,
             "nominal_speed": 1},
        ],
        "speeds": {"cnn": {"a100": 10, "k80": 5}, "rnn": {"a100": 8, "k80": 6}},
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
                    "resources": {"accelerators": wanted, "cpus": 1, "memory": "1GB"},
                },
            }
            for at, kind, steps, wanted in (
                (0, "cnn", 600, "a100:1"), (2, "rnn", 500, "any:1"), (5, "cnn", 300, "any:1"),
                (9, "rnn", 400, "a100:2"),
            )
        ],
    },
    source="workload",
)  # fmt: skip
POLICY = PolicySpec("fifo"), RoundRules(round_s=12.0, resolve_min_s=4.0)
TRUE = MeasuredCosts(
    kinds=tuple(MeasuredKind(kind=kind, start_s=0.2, warm_up_s=3.0, exit_s=0.8) for kind in ("cnn", "rnn")),
    begins_at=1.5,
)


@pytest.fixture(scope="module")
def run() -> list[RecordedEvent]:
    """One run in the true world, recorded."""
    return recorded_run(WORKLOAD, CLUSTER, POLICY, TRUE)


@pytest.fixture(scope="module")
def recording(run: list[RecordedEvent]) -> Recording:
    return make_recording(run)


def test_a_replay_under_the_runs_own_policy_takes_as_long(recording: Recording) -> None:
    """The costs are known exactly here, so the forecast is within a few percent."""
    replayed = replay_recording(recording, [0])
    assert [job.job_id for job in replayed.jobs] == [1, 2, 3, 4]
    assert replayed.median_error < 0.05
    assert replayed.results[0].violations == []


def test_a_replay_predicts_speeds_when_the_run_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the rnn on the k80 nothing is measured at first; the prediction is made from the facts that the run knew."""
    facts = MeasuredFacts(at=1.0, kind="rnn", flops_per_sample=2e9, batch=64.0)
    true = TRUE.model_copy(update={"predictions": (MeasuredPrediction(at=20.0, took_s=2.0),), "facts": (facts,)})
    run = recorded_run(WORKLOAD, CLUSTER, POLICY, true)
    asked: list[PredictionQuestion] = []
    predict = online_predictor.predict_speeds
    monkeypatch.setattr(
        online_predictor, "predict_speeds", lambda question, sheets: asked.append(question) or predict(question, sheets)
    )
    assert replay_recording(make_recording(run), [0]).median_error < 0.05
    assert len(asked) == 1


def test_another_policy_from_an_instant_on(recording: Recording) -> None:
    """At once, from the middle, and from after the end: the last one changes nothing."""
    other = PolicySpec("isolated"), RoundRules(round_s=12.0, resolve_min_s=4.0)
    own = replay_recording(recording, [0])
    at_once, late = (replay_recording(with_policy_from(recording, *other, from_s), [0]) for from_s in (0.0, 1e6))
    assert late.jobs == own.jobs
    # First come, first served asks no solver; shares do.
    assert own.results[0].solves.solves == 0
    assert at_once.results[0].solves.solves > 0
    assert [change.policy.name for change in with_policy_from(recording, *other, 10.0).header.policies] == [
        "fifo",
        "isolated",
    ]


def test_the_file_says_everything(recording: Recording, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write_recording(recording, path)
    again = read_recording(path)
    assert again == recording
    assert replay_recording(again, [3]).jobs == replay_recording(recording, [3]).jobs


@pytest.mark.parametrize("content", ["", "{}", "[]\n", "no json\n", '{"recording": 2}\n'])
def test_a_file_that_is_no_recording(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"x\.jsonl"):
        read_recording(path)
    with pytest.raises(ConfigError):
        read_recording(tmp_path / "gone.jsonl")


def test_a_recording_with_a_job_twice_is_refused(recording: Recording, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    write_recording(replace(recording, jobs=(recording.jobs[0], recording.jobs[0])), path)
    with pytest.raises(ConfigError, match="numbered twice"):
        read_recording(path)


def test_a_way_that_nobody_tried_is_guessed_from_those_that_were(recording: Recording) -> None:
    """By the types' nominal speeds and the size of the gang; what was measured stays."""
    truth = completed_truth(recording)
    measured = recording.header.costs.truth().speeds
    assert all(truth.speeds[key] == speed for key, speed in measured.items())
    for job in recording.jobs:
        for accelerator, count in truth.accelerators_of(job.request, ["a100", "k80"]):
            assert truth.steps_per_s(job.request.kind, accelerator, count) > 0
    cnn = Kind("cnn")
    if SpeedKey(cnn, "k80", 1) not in measured:
        assert truth.speeds[SpeedKey(cnn, "k80", 1)] == pytest.approx(measured[SpeedKey(cnn, "a100", 1)] / 4)


def test_jobs_of_unknown_length_are_left_out_and_told(run: list[RecordedEvent]) -> None:
    """A job that had not ended, of a kind that nobody measured, and whoever depends on it."""
    submitted = [event for event, _ in run if isinstance(event, JobSubmitted)]
    unknown = replace(submitted[0].job, job_id=JobId(8), kind=Kind("new"), steps=100.0)
    dependent = replace(submitted[0].job, job_id=JobId(9), depends_on=(JobId(8),))
    at = run[-1][0].at
    found = make_recording([*run, (JobSubmitted(at, unknown), []), (JobSubmitted(at, dependent), [])])
    assert found.header.left_out == (8, 9)
    assert [job.request.job_id for job in found.jobs] == [1, 2, 3, 4]
    assert replay_json(replay_recording(found, [0]), found)["left_out"] == [8, 9]


def test_what_users_did_happens_again(run: list[RecordedEvent]) -> None:
    first = next(event for event, _ in run if isinstance(event, JobSubmitted))
    cancelled = [*run, (JobCancelled(first.at + 7.0, first.job.job_id), [])]
    found = make_recording(cancelled)
    assert [job.cancel_at for job in found.jobs][:2] == [first.at + 7.0, inf]
    result = replay_recording(found, [0]).results[0]
    assert {job.job_id: job.state for job in result.jobs}[first.job.job_id] is JobState.CANCELLED


def test_another_deadline_is_kept_and_given_again(
    run: list[RecordedEvent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the file, to the core of the simulation."""
    first = next(event for event, _ in run if isinstance(event, JobSubmitted))
    dated = JobDeadlineChanged(first.at + 1.0, first.job.job_id, first.at + 5.0)
    write_recording(make_recording([*run, (dated, [])]), tmp_path / "run.jsonl")
    found = read_recording(tmp_path / "run.jsonl")
    assert found.header.acts.redated == (dated,)
    told: list[object] = []
    handle = SchedulerCore.handle

    def watched(core: SchedulerCore, event: Event) -> list[Command]:
        told.append(event)
        return handle(core, event)

    monkeypatch.setattr(SchedulerCore, "handle", watched)
    replay_recording(found, [0])
    assert dated in told


def test_a_record_of_nothing_cannot_be_replayed() -> None:
    with pytest.raises(ConfigError, match="no job that ended"):
        make_recording([])


def test_words_about_jobs_of_an_older_record_are_ignored(run: list[RecordedEvent]) -> None:
    """A journal may begin in the middle of a job's life."""
    at = run[-1][0].at
    end = JobTransitioned(JobId(77), JobState.SUCCEEDED, None)
    event = JobCancelled(at, JobId(77))
    assert [job.request.job_id for job in make_recording([*run, (event, [end])]).jobs] == [1, 2, 3, 4]


def test_the_table_has_a_line_per_job_and_the_means(recording: Recording) -> None:
    assert replay_table(replay_recording(recording, [0, 1])).row_count == 5


async def test_a_servers_folder_is_replayed_from_the_command_line(tmp_path: Path) -> None:
    """From the journal of a live server: its own policy, another one, and again from the exported file."""
    async with world(tmp_path / "data") as live:
        agent = await FakeAgent(live, "n1").register()
        jobs = [await live.submit({"resources": {"accelerators": "a:2"}}) for _ in range(2)]
        for job_id in jobs:
            await agent.start_all()
            await live.advance(30.0)
            await agent.end(job_id)
            await live.quiet()
        assert [live.state(job_id) for job_id in jobs] == ["SUCCEEDED", "SUCCEEDED"]

    def told(source: Path, *more: object) -> dict[str, Any]:
        done = CliRunner().invoke(app, ["simulate", "replay", str(source), "-o", "json", *map(str, more)])
        assert done.exit_code == 0, done.output
        body: dict[str, Any] = json.loads(done.stdout)
        return body

    export = tmp_path / "run.jsonl"
    own = told(tmp_path / "data", "--seeds", "0", "--export", export)
    assert [job["recorded_s"] for job in own["jobs"]] == [30.0, 60.0]
    assert own["median_error"] < 0.05
    assert told(export, "--seeds", "0") == own
    assert len(told(export, "--seeds", "0-1", "--policy", "isolated", "--from", "10s")["jobs"]) == 2
    refused = CliRunner().invoke(app, ["simulate", "replay", str(export), "--from", "10s"])
    assert refused.exit_code == 2
    assert "--policy" in refused.stderr
