"""Speeds that nobody measured in a live server: predicted, told, scored by its journal, or those of a data sheet."""

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scheduler.core.cycle.speed_predictions import predict_speeds, prediction_question
from scheduler.core.explain.job_conditions import believed_speeds
from scheduler.core.speed_events import SpeedsPredicted
from scheduler.core.state.throughput import ScoredBelief
from scheduler.live.services.agent_identity import with_known_speed
from scheduler.live.store.event_journal import as_journaled, decode_event, replay_journal, scored_folder
from tests.support.live_world import FakeAgent, World, world
from walras.cli.main import app
from walras.cluster import Market, Pool, PoolId, Shape
from walras.spec.catalog import catalog_speed

TWO_POOLS = {
    "pools": [
        {"shape": "ax2", "accelerator": "a", "accelerators": 2, "cpus": 8, "memory": "16GiB"},
        {"shape": "bx2", "accelerator": "b", "accelerators": 2, "cpus": 8, "memory": "16GiB"},
    ]
}
EITHER = {"accelerators": {"a": 1, "b": 1}}


async def measured(w: World, agent: FakeAgent, kind: str, steps_per_s: float, accelerators: Any) -> int:
    """One job of the kind runs and ends."""
    job_id = await w.submit({"profile": kind, "resources": {"accelerators": accelerators}})
    await agent.start_all()
    await agent.train(job_id, 1, steps_per_s, start_s=1.5)
    return job_id


async def predict(w: World) -> None:
    """What the outlet does, without its process."""
    speeds = predict_speeds(prediction_question(w.server.core.ledger, ()), {})
    await w.emit(lambda at: as_journaled(SpeedsPredicted(at, speeds)))


async def learn(w: World) -> tuple[int, FakeAgent]:
    """The kind `cnn` has run on a, and not on b; another job of it, which may go to either, is in the queue."""
    agent = await FakeAgent(w, "n1").register()
    other = await FakeAgent(w, "n2", shape="bx2", accelerator="b").register()
    job_id = await measured(w, agent, "cnn", 4.0, {"a": 1})
    await agent.end(job_id)
    waiting = await w.submit({"profile": "cnn", "resources": EITHER})
    await predict(w)
    return waiting, other


async def test_an_unmeasured_speed_is_predicted_and_said_to_be(tmp_path: Path) -> None:
    """Measured where it ran; elsewhere predicted, with the interval."""
    async with world(tmp_path, cluster=TWO_POOLS) as w:
        waiting, _ = await learn(w)
        told = {each.accelerator: w.server.views.pool_speed(each) for each in believed_speeds(w.server.core, waiting)}
    assert (told["a"].source, told["a"].steps_per_s, told["a"].low) == ("measured", 4.0, None)
    assert (told["b"].source, told["b"].steps_per_s) == ("predicted", 4.0)
    assert (told["b"].low or 9.9) < 4.0 < (told["b"].high or 0.0)


@pytest.mark.sqlite_file
async def test_a_replay_needs_no_predictor(tmp_path: Path) -> None:
    """What was predicted is an event: the journal gives the same commands, and the same scores."""
    async with world(tmp_path, cluster=TWO_POOLS) as w:
        _, agent = await learn(w)
        await measured(w, agent, "cnn", 9.0, {"b": 1})
        await w.quiet()
        rows = list(w.server.store.journal())
    events = [decode_event(row) for row in rows if row.type == "SpeedsPredicted"]
    assert len(events) == 1
    assert replay_journal(rows).identical
    scored = {each.source: each for each in scored_folder(tmp_path) if each.accelerator == "b"}
    assert (scored["fused"].predicted, scored["fused"].measured) == (pytest.approx(4.0), 9.0)
    assert scored["nominal"].low is not None


@pytest.mark.sqlite_file
async def test_scores_are_kept_for_the_next_start(tmp_path: Path) -> None:
    """A restarted server goes on weighting predictors by what they did."""
    async with world(tmp_path, cluster=TWO_POOLS) as w:
        _, agent = await learn(w)
        await measured(w, agent, "cnn", 9.0, {"b": 1})
        await w.quiet()
    async with world(tmp_path, cluster=TWO_POOLS) as w:
        kept = {each.source: each.measured for each in w.assembled.loaded.rows(ScoredBelief) if each.accelerator == "b"}
    assert kept == {"fused": 9.0, "nominal": 9.0}
    with sqlite3.connect(tmp_path / "walras.db") as db:
        assert db.execute("SELECT count(*) FROM scores WHERE accelerator = 'b'").fetchone() == (2,)


async def recorded(folder: Path, machine: str = "n1") -> None:
    """Two jobs of a kind, one after the other: what was believed of the first is not believed of the second."""
    async with world(folder) as w:
        agent = await FakeAgent(w, machine).register()
        for steps_per_s in (4.0, 4.1):
            job_id = await w.submit({"profile": "cnn", "throughput": {"a": 5.0}})
            await agent.start_all()
            await agent.beat(agent.progress(job_id, 1, 5.0, steps_per_s=steps_per_s, start_s=1.5))
            await agent.end(job_id)


@pytest.mark.sqlite_file
async def test_a_journal_tells_what_was_believed(tmp_path: Path) -> None:
    """One belief a cell: the declared speed, against the one that was measured and published."""
    await recorded(tmp_path)
    (only,) = scored_folder(tmp_path)
    assert (only.kind, only.accelerator, only.count) == ("cnn", "a", 1)
    assert (only.source, only.predicted, only.measured) == ("declared", 5.0, 4.0)


@pytest.mark.sqlite_file
async def test_a_restarted_server_does_not_score_again_what_it_knows(tmp_path: Path) -> None:
    """What the last generation measured comes from a table: it is no prediction."""
    await recorded(tmp_path)
    await recorded(tmp_path, "n2")
    assert len(scored_folder(tmp_path)) == 1


@pytest.mark.sqlite_file
async def test_the_report_of_a_folder_can_be_read_again(tmp_path: Path) -> None:
    """`walras cloud profile report` says the same of a folder and of the JSON it printed."""
    await recorded(tmp_path / "data")
    told = CliRunner().invoke(app, ["cloud", "profile", "report", str(tmp_path / "data"), "-o", "json"])
    assert told.exit_code == 0, told.output
    report = json.loads(told.stdout)
    assert report["by"]["source"][0]["median_error"] == pytest.approx(0.2)
    assert report["weights"] == {"declared": 1.0}
    (tmp_path / "again.json").write_text(told.stdout)
    again = CliRunner().invoke(app, ["cloud", "profile", "report", str(tmp_path / "again.json"), "-o", "json"])
    assert json.loads(again.stdout) == report


A100 = Pool(PoolId("p"), Shape("p4d", "a100-40gb", 8, 96.0, 1 << 40), Market.OWNED)


def stated(pool: Pool, speed: float, *, emulated: bool = False) -> Pool:
    return replace(pool, shape=replace(pool.shape, nominal_speed=speed, emulated=emulated))


@pytest.mark.parametrize(
    ("joining", "declared", "speed"),
    [
        (A100, None, catalog_speed("a100-40gb")),
        (stated(A100, 3.0), None, 3.0),
        (stated(A100, 3.0), stated(A100, 2.0), 3.0),
        (A100, stated(A100, 2.0), 2.0),
        (A100, A100, 1.0),
        (stated(A100, 1.0, emulated=True), None, 1.0),
        (replace(A100, shape=replace(A100.shape, accelerator="frob")), None, 1.0),
    ],
)
def test_a_machine_that_states_no_speed_has_a_known_one(joining: Pool, declared: Pool | None, speed: float) -> None:
    """What it states counts, then its pool (so that machines of earlier releases stay welcome), then the data sheet."""
    assert with_known_speed(joining, declared).shape.nominal_speed == speed
