"""Jobs with a target under a real server: what is kept of their values, what is foreseen, and what people are told."""

from pathlib import Path
from typing import Any

import pytest

from optimizer.prediction.loss_curve import MOST_POINTS, LossCurve
from scheduler.live.http.job_api import explain_job as explain
from scheduler.live.http.job_api import show_job as show
from scheduler.live.loop.prediction_tasks import forecast_targets, keep_forecasts, target_questions
from tests.support.live_world import ADMIN, FakeAgent, World, world
from walras.resources.jobs import TargetOutlook, TargetView

TRUTH = LossCurve(1e-2, 0.4, 0.3)
WANTED = {"value": "loss", "at_most": TRUTH.loss(3000)}


class Looking:
    """A call of the HTTP face, without HTTP."""

    def __init__(self, w: World, job_id: int) -> None:
        self.server, self.job_id, self.caller, self.user = w.server, job_id, ADMIN, ADMIN


async def explained(w: World, job_id: int) -> Any:
    return await explain(Looking(w, job_id))  # type: ignore[arg-type]


async def told(w: World, job_id: int) -> TargetView:
    found = (await explained(w, job_id)).target
    assert found == (await show(Looking(w, job_id))).target  # type: ignore[arg-type]
    assert found is not None
    return found


async def begun(w: World, **spec: Any) -> tuple[FakeAgent, int]:
    agent, job_id = await w.running({"target": WANTED, "preemptible": "always", **spec})
    return agent, job_id


async def train(agent: FakeAgent, job_id: int, first: int, last: int, every: int = 25, attempt: int = 1) -> None:
    """Reports of the true curve, one a second."""
    for step in range(first, last + 1, every):
        agent.world.clock.at += 1.0
        values = {"loss": TRUTH.loss(step), "lr": 0.1}
        await agent.beat(agent.progress(job_id, attempt, float(step), steps_per_s=25.0, values=values))


async def forecast(w: World) -> None:
    """What the outlet does, without its process."""
    asked = target_questions(w.live_state)
    found = forecast_targets(asked)
    await w.loop.perform(lambda transaction: keep_forecasts(transaction, asked, found))


async def test_a_target_is_foreseen_in_steps_and_time(w: World) -> None:
    """At the present rate, anew after a tenth more steps; a wrong expectation and an early end are said."""
    agent, job_id = await begun(w, steps=5000)
    await train(agent, job_id, 25, 1000)
    assert (await told(w, job_id)).detail.endswith("not worked out yet")
    await forecast(w)
    found = await told(w, job_id)
    assert (found.outlook, found.steps_declared) == (TargetOutlook.EXPECTED, 5000)
    assert found.steps_expected == pytest.approx(3000, rel=0.02)
    assert found.left_s == pytest.approx(2000 / 25.0, rel=0.05)
    assert found.expected_at is not None
    assert found.detail.startswith(f"loss {TRUTH.loss(1000):.4g} at step 1,000, target {TRUTH.loss(3000):.4g}: ")
    assert " of 5,000 (in 1m2" in found.detail
    assert (await explained(w, job_id)).conditions == []
    await train(agent, job_id, 1025, 1075)
    assert w.live_state.to_forecast == {}
    await train(agent, job_id, 1100, 1100)
    assert list(w.live_state.to_forecast) == [job_id]
    await forecast(w)
    assert (await told(w, job_id)).foreseen_at_step == 1100
    stuck = {"loss": TRUTH.loss(1000) - 0.001}
    await agent.beat(agent.progress(job_id, 1, 3200.0, steps_per_s=25.0, values=stuck))
    found = await told(w, job_id)
    assert list(w.live_state.to_forecast) == [job_id]
    assert "was expected at step 3,0" in found.detail
    assert (found.outlook, found.left_s, found.expected_at) == (TargetOutlook.UNCLEAR, None, None)
    await agent.end(job_id)
    await w.quiet()
    found = await told(w, job_id)
    assert found.detail.endswith("ended before it was there")
    assert (found.steps_expected, found.left_s, found.expected_at) == (None, None, None)


async def test_a_job_that_is_late_or_will_never_be_there_has_a_condition(w: World) -> None:
    """With the numbers, long before its last step."""
    agent, late = await begun(w, steps=1500)
    await train(agent, late, 25, 1000)
    never = await w.submit({"preemptible": "always", "target": {"value": "loss", "at_most": 0.27}})
    await agent.start_all()
    await train(agent, never, 50, 2000, every=50)
    await forecast(w)
    conditions = {(each := (await explained(w, job_id))).job_id: each.conditions for job_id in (late, never)}
    assert [each.type for each in conditions[late]] == ["target_late"]
    assert "after the 1,500 that it declares" in conditions[late][0].detail
    assert [each.type for each in conditions[never]] == ["target_out_of_reach"]
    assert conditions[never][0].detail.endswith("its curve will level off at 0.3, above the target")


async def test_what_cannot_be_foreseen_says_why(w: World) -> None:
    """No value of that name, too few of them, and values that do not fall."""
    agent, job_id = await begun(w)
    assert "no value 'loss' was reported yet" in (await told(w, job_id)).detail
    await agent.beat(agent.progress(job_id, 1, 5.0, values={"lr": 0.1, "acc": 0.5}))
    assert (await told(w, job_id)).detail.endswith("and tells lr, acc")
    await train(agent, job_id, 10, 30, every=10)
    assert "3 values are too few to tell when, 8 are needed" in (await told(w, job_id)).detail
    for step in range(40, 100, 10):
        await agent.beat(agent.progress(job_id, 1, float(step), values={"loss": 5.0 + step}))
    await forecast(w)
    found = await told(w, job_id)
    assert found.detail.endswith("nobody can tell when, as the loss does not fall")
    assert (found.outlook, found.steps_expected, found.levels_off_at) == (TargetOutlook.UNKNOWN, None, None)


async def test_a_restart_keeps_the_series_what_was_foreseen_and_when_the_job_got_there(tmp_path: Path) -> None:
    """As far as the job's other progress: what the core was told last. Nothing is foreseen of a job that got there."""
    async with world(tmp_path) as w:
        agent, job_id = await begun(w, steps=5000)
        await train(agent, job_id, 25, 2000)
        await forecast(w)
        assert w.live_state.jobs[job_id].target.forecast is not None
        await train(agent, job_id, 2100, 4000, every=100)
        found = await told(w, job_id)
        assert (found.outlook, found.reached_step) == (TargetOutlook.REACHED, 3000)
        before = w.live_state.jobs[job_id].target
    async with world(tmp_path) as w:
        after = w.live_state.jobs[job_id].target
        assert len(after.series.points) <= MOST_POINTS
        assert after.series.points[0] == before.series.points[0]
        assert after.forecast == before.forecast
        agent.world = w
        await agent.beat(resync=True)
        await agent.end(job_id)
        await w.quiet()
        assert (await told(w, job_id)).detail.endswith("was there at step 3,000")


async def test_values_that_make_no_sense_break_nothing(w: World) -> None:
    """NaN, infinities, negative and absurd numbers, and names without end: the server answers, and foresees."""
    agent, job_id = await begun(w, steps=5000)
    for step, loss in ((1.0, float("nan")), (2.0, float("inf")), (3.0, 1e308), (9e18, 1.0), (4.0, 1.0)):
        await agent.beat(agent.progress(job_id, 1, step, values={"loss": loss, "x" * 5000: 1.0}))
    for step in range(5, 15):
        await agent.beat(agent.progress(job_id, 1, float(step), values={"loss": 10.0 ** (300 - 50 * (step % 7))}))
    await forecast(w)
    found = await told(w, job_id)
    assert len(found.detail) < 500


async def test_a_job_without_a_target_has_none(w: World) -> None:
    """Nothing is kept of its values, and nothing is asked."""
    agent, job_id = await w.running()
    await train(agent, job_id, 25, 500)
    assert (w.live_state.jobs[job_id].target, w.live_state.to_forecast) == (None, {})
    assert (await explained(w, job_id)).target is None
    await w.quiet()
    row = w.server.store.job(job_id)
    assert row.target == ""
