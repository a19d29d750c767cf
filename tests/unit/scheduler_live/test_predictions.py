"""Predicted speeds in a live server: from the journal, in the database, and told to people."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.cycle.speed_predictions import predict_speeds, prediction_question
from scheduler.core.explain.job_conditions import believed_speeds
from scheduler.core.speed_events import SpeedsPredicted
from scheduler.live.store.event_journal import as_journaled, decode_event, replay_journal, scored_folder
from tests.support.live_world import FakeAgent, World, world

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
    await agent.beat(agent.progress(job_id, 1, 5.0, steps_per_s=steps_per_s, start_s=1.5))
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
        kept = {each.source: each.measured for each in w.assembled.loaded.scores if each.accelerator == "b"}
    assert kept == {"fused": 9.0, "nominal": 9.0}
    with sqlite3.connect(tmp_path / "walras.db") as db:
        assert db.execute("SELECT count(*) FROM scores WHERE accelerator = 'b'").fetchone() == (2,)
