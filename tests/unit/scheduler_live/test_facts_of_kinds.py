"""Facts of kinds in a live server: from job files and from running jobs, believed in order, kept, predicted from."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from optimizer.prediction.predictor import AcceleratorSpecs
from scheduler.core.cycle.speed_predictions import KNOWN_MOST, predict_speeds, prediction_question
from scheduler.core.explain.job_conditions import believed_speeds
from scheduler.core.speed_events import PredictedSpeed, SpeedsPredicted, ThroughputMeasured
from scheduler.core.state.throughput import ScoredBelief
from scheduler.live.store.event_journal import as_journaled, replay_journal
from tests.support.live_world import FakeAgent, World, world
from walras.errors import JobSpecError
from walras.job_request import JobId, Kind

pytestmark = pytest.mark.sql

CNN = Kind("cnn")
POOLS = {
    "pools": [
        {"shape": "slow", "accelerator": "slow", "accelerators": 2, "cpus": 8, "memory": "16GiB"},
        {"shape": "quick", "accelerator": "quick", "accelerators": 2, "cpus": 8, "memory": "16GiB"},
    ]
}
#: The quick one has three times the arithmetic; its data sheet says so.
SHEETS = {
    "slow": AcceleratorSpecs("slow", 1e13, 1e12, link_bytes_per_s=5e10, peaks=(("fp32", 1e13), ("bf16", 2e13))),
    "quick": AcceleratorSpecs("quick", 3e13, 3e12, link_bytes_per_s=5e10, peaks=(("fp32", 3e13), ("bf16", 24e13))),
}
FACTS = {"flops_per_sample": 1e10, "gradient_bytes": 4e8, "batch_per_accelerator": 64}
COUNTED = {"flops": 64e10, "samples": 64.0, "gradient_bytes": 4e8, "layers": 50.0}


@pytest.fixture
async def w(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path, cluster=POOLS) as found:
        yield found


async def agents(w: World) -> list[FakeAgent]:
    """Two machines of each type."""
    return [
        await FakeAgent(w, f"{name}{n}", shape=name, accelerator=name, accelerators=2).register()
        for name in ("slow", "quick")
        for n in range(2)
    ]


async def run_one(w: World, agent: FakeAgent, steps_per_s: float, **more: Any) -> int:
    """A job of the kind runs on one slow accelerator."""
    job_id = await w.submit({"profile": "cnn", "resources": {"accelerators": {"slow": 1}}, **more})
    await agent.start_all()
    await agent.beat(agent.progress(job_id, 1, 5.0, steps_per_s=steps_per_s, start_s=1.0))
    return job_id


async def predict(w: World) -> dict[tuple[str, int], PredictedSpeed]:
    """What the outlet does, without its process."""
    speeds = predict_speeds(prediction_question(w.server.core.ledger, w.assembled.loaded.rows(ScoredBelief)), SHEETS)
    await w.emit(lambda at: as_journaled(SpeedsPredicted(at, speeds)))
    return {(each.accelerator, each.count): each for each in speeds}


def analytic(told: PredictedSpeed) -> float:
    return next(part.steps_per_s for part in told.parts if part.source == "analytic")


async def ask_for_more(w: World) -> JobId:
    """Waiting jobs of the kind: one accelerator, one machine, two machines."""
    for count in (1, 2):
        await w.submit({"profile": "cnn", "resources": {"accelerators": {"quick": count}}, "hold": True})
    wide = {"accelerators": {"quick": 4}}
    return await w.submit({"profile": "cnn", "resources": wide, "num_nodes": 2, "hold": True})


async def test_facts_of_a_job_file_tell_of_other_types_and_of_gangs_over_machines(w: World) -> None:
    """Measured on one type alone: the roofline tells of the other, and the measured network what two machines cost."""
    slow, *_ = await agents(w)
    await run_one(w, slow, 5.0, facts=FACTS)
    wide = await ask_for_more(w)
    told = await predict(w)
    assert analytic(told["quick", 1]) == pytest.approx(15.0, rel=0.01)
    assert analytic(told["quick", 2]) == pytest.approx(15.0, rel=0.05)
    # Nobody has measured a network: the analytic predictor does not tell of gangs over machines.
    assert "analytic" not in [part.source for part in told["quick", 4].parts]
    pool = next(pool for pool in w.server.core.ledger.fleet.pools if pool.pool.shape.accelerator == "quick")
    w.server.core.ledger.networks.saw("default", pool.pool.pool_id, 1e9)
    told = await predict(w)
    # 4e8 bytes between two machines, at 1e9 a second: .4 s, of which the backward pass hides some .04.
    assert analytic(told["quick", 4]) == pytest.approx(1 / (1 / 15 + 0.4 - 0.036), rel=0.05)
    fused = told["quick", 4].fused
    assert fused.low < fused.steps_per_s < fused.high
    shown = {each.accelerators: w.server.views.pool_speed(each) for each in believed_speeds(w.server.core, wide)}
    assert (shown[4].source, "analytic" in shown[4].by) == ("predicted", True)
    assert replay_journal(list(w.server.store.journal())).identical


@pytest.mark.parametrize(("precision", "times"), [("fp32", 3.0), ("tf32", 3.0), ("bf16", 12.0), ("fp16", None)])
async def test_types_are_compared_by_the_arithmetic_of_the_job(tmp_path: Path, precision: str, times: float) -> None:
    """Stated or counted. Where there is no tf32, fp32 is done; of a peak that nobody knows nothing is told."""
    bits = {"fp32": (32, 8), "tf32": (19, 8), "bf16": (16, 8), "fp16": (16, 5)}[precision]
    counted_too = COUNTED | dict(zip(("bits", "exponent_bits"), map(float, bits), strict=True))
    for stated, told_of in (({"facts": {**FACTS, "precision": precision}}, {}), ({}, counted_too)):
        async with world(tmp_path / str(bool(stated)), cluster=POOLS) as w:
            slow, *_ = await agents(w)
            job_id = await run_one(w, slow, 5.0, **stated)
            await slow.beat(slow.progress(job_id, 1, 6.0, facts=told_of))
            await ask_for_more(w)
            assert w.server.core.ledger.facts.of(CNN).precision == precision  # type: ignore[union-attr]
            told = (await predict(w))["quick", 1]
            parts = {part.source: part.steps_per_s for part in told.parts}
            assert parts.get("analytic") == (times and pytest.approx(5.0 * times, rel=0.01))


async def test_an_analytic_prediction_that_was_wrong_counts_less(w: World) -> None:
    """Kinds that stayed far behind their facts on the quick type: the next is believed to do what ratios say."""
    slow, _, quick, _ = await agents(w)
    await run_one(w, slow, 5.0, facts=FACTS)
    await ask_for_more(w)
    before = (await predict(w))["quick", 1]
    for n in range(6):
        kind = f"other{n}"
        await run_one(w, slow, 5.0, facts=FACTS, profile=kind)
        waiting = await w.submit({"profile": kind, "resources": {"accelerators": {"quick": 1}}})
        await predict(w)
        await quick.start_all()
        await quick.train(waiting, 1, 1.0, start_s=1.0)
        for agent in (slow, quick):
            for job_id, attempt in list(agent.here):
                await agent.end(job_id, attempt)
    scored = [each for each in w.server.core.ledger.table.scored() if each.source == "analytic"]
    assert len(scored) >= 5
    after = (await predict(w))["quick", 1]
    assert before.fused.steps_per_s > 10.0
    assert after.fused.steps_per_s < 4.0


async def test_a_kind_that_never_ran_is_predicted_from_its_facts(w: World) -> None:
    """Half of the peak, give or take; without facts nothing is said of it."""
    await agents(w)
    await w.submit({"profile": "bare", "resources": {"accelerators": {"quick": 1}}, "hold": True})
    await w.submit(
        {
            "profile": "cnn", "resources": {"accelerators": {"quick": 1}}, "facts": {**FACTS, "family": "convolution"},
            "hold": True,
        }
    )  # fmt: skip
    told = await predict(w)
    assert [each.kind for each in told.values()] == ["cnn"]
    assert told["quick", 1].fused.steps_per_s == pytest.approx(3e13 / 64e10 / 2, rel=0.01)


async def test_without_a_data_sheet_only_ratios_of_types_are_told(w: World) -> None:
    """Nominal speeds say nothing of steps per second: a kind that never ran is left to the table's own rule."""
    slow, *_ = await agents(w)
    await w.submit({"profile": "bare", "resources": {"accelerators": {"quick": 1}}, "facts": FACTS, "hold": True})
    await run_one(w, slow, 5.0, facts=FACTS)
    await ask_for_more(w)
    told = predict_speeds(prediction_question(w.server.core.ledger, ()), {})
    assert {each.kind for each in told} == {"cnn"}
    assert analytic(told[0]) == pytest.approx(5.0, rel=0.01)


async def test_a_declared_speed_says_how_far_a_kind_stays_behind_its_facts(w: World) -> None:
    """Or the other type would be judged by the peak, and that one by its submitter."""
    await agents(w)
    either = {"accelerators": {"slow": 1, "quick": 1}}
    given = {"profile": "cnn", "resources": either, "facts": FACTS, "throughput": {"slow": 2.0}, "hold": True}
    await w.submit(given)
    assert analytic((await predict(w))["quick", 1]) == pytest.approx(6.0, rel=0.01)


async def test_what_a_job_counted_goes_before_what_was_stated(tmp_path: Path) -> None:
    """And stays so when somebody states something else later; a restarted server knows both."""
    async with world(tmp_path, cluster=POOLS) as w:
        slow, *_ = await agents(w)
        job_id = await run_one(w, slow, 5.0, facts={**FACTS, "flops_per_sample": 7e10, "input_bytes": 600})
        assert w.server.core.ledger.facts.of(CNN).flops_per_sample == 7e10  # type: ignore[union-attr]
        await slow.beat(slow.progress(job_id, 1, 6.0, facts=COUNTED))
        later = {**FACTS, "flops_per_sample": 9e10, "input_bytes": 600}
        await w.submit({"profile": "cnn", "facts": later, "hold": True, "resources": {"accelerators": {"slow": 1}}})
        found = w.server.core.ledger.facts.of(CNN)
        assert (found.flops_per_sample, found.gradient_bytes, found.layers) == (1e10, 4e8, 50)
        assert found.input_bytes == 600  # which nobody counted
    async with world(tmp_path, cluster=POOLS) as w:
        assert w.server.core.ledger.facts.of(CNN) == found
        assert w.server.core.ledger.facts.is_counted(CNN)


async def test_the_newest_count_of_a_kind_is_believed(w: World) -> None:
    """A script that was changed counts itself again with its next job."""
    slow, *_ = await agents(w)
    for flops in (64e10, 32e10):
        job_id = await run_one(w, slow, 5.0)
        await slow.beat(slow.progress(job_id, 1, 6.0, facts={**COUNTED, "flops": flops}))
        await slow.end(job_id)
    assert w.server.core.ledger.facts.of(CNN).flops_per_sample == 0.5e10  # type: ignore[union-attr]


async def test_a_job_of_a_stated_batch_counts_for_the_whole_gang(w: World) -> None:
    """A larger gang then computes less on each accelerator."""
    slow, *_ = await agents(w)
    job_id = await run_one(w, slow, 5.0, batch={"global": 64})
    await slow.beat(slow.progress(job_id, 1, 6.0, facts=COUNTED))
    found = w.server.core.ledger.facts.of(CNN)
    assert (found.samples(1), found.samples(2)) == (64, 64)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), 1e40, 0.0])
async def test_what_cannot_be_believed_of_a_job_is_left_out_and_told(
    tmp_path: Path, bad: float, caplog: pytest.LogCaptureFixture
) -> None:
    """By the name of the fact, in the log; the rest, and the job's report of steps, are taken."""
    async with world(tmp_path, cluster=POOLS) as w:
        slow, *_ = await agents(w)
        with caplog.at_level(logging.WARNING):
            job_id = await run_one(w, slow, 5.0)
            await slow.beat(slow.progress(job_id, 1, 6.0, facts={**COUNTED, "flops": bad, "layers": "many"}))
        found = w.server.core.ledger.facts.of(CNN)
        assert (found.flops_per_sample, found.gradient_bytes, found.layers) == (None, 4e8, None)
        assert w.live_state.jobs[job_id].progress.steps == 6.0
    assert "a fact of kind cnn is not believed: flops is" in caplog.text


@pytest.mark.parametrize(
    ("facts", "field"),
    [
        ({"flops_per_sample": -1}, "facts.flops_per_sample"),
        ({"flops_per_sample": 1e40, "batch_per_accelerator": 1}, "facts.flops_per_sample"),
        ({"gradient_bytes": float("nan")}, "facts.gradient_bytes"),
        ({"layers": 0}, "facts.layers"),
        ({"flops": 1e9}, "facts.flops"),
        ({"flops_per_sample": 1e9}, "facts.batch_per_accelerator"),
        ("resnet.json", "facts"),
    ],
)
async def test_bad_facts_of_a_job_file_are_refused_by_name(w: World, facts: Any, field: str) -> None:
    """With the fix; the job is not submitted."""
    with pytest.raises(JobSpecError) as refused:
        await w.submit({"resources": {"accelerators": {"slow": 1}}, "facts": facts})
    assert refused.value.field == field
    assert refused.value.fix


async def test_a_network_that_was_measured_asks_anew(tmp_path: Path) -> None:
    """By a gang over two machines: its pool's figure becomes part of the question, also after a restart."""
    async with world(tmp_path, cluster=POOLS) as w:
        first, second, *_ = await agents(w)
        await run_one(w, first, 5.0, facts=FACTS)
        before = prediction_question(w.server.core.ledger, ())
        wide = {"profile": "wide", "resources": {"accelerators": {"slow": 2}}, "num_nodes": 2}
        job_id = await w.submit(wide)
        for agent in (first, second):
            await agent.beat()
        for agent in (first, second):
            await agent.beat({"type": "prepared", "job_id": job_id, "attempt": 1})
        for agent in (first, second):
            await agent.start_all()
        values = {"network_bytes_per_s": 2.345e9}
        await first.beat(first.progress(job_id, 1, 1.0, values=values))
        await second.beat(second.progress(job_id, 1, 1.0, values=values))
        after = prediction_question(w.server.core.ledger, ())
    assert before.facts.networks == ()
    assert {name: speed for _, name, speed in after.facts.networks} == {"slow": 2.3e9, "quick": 2.3e9}
    async with world(tmp_path, cluster=POOLS) as w:
        again = prediction_question(w.server.core.ledger, ())
        assert again.facts.networks == after.facts.networks


async def test_a_kind_that_was_measured_long_ago_is_not_judged_by_its_facts_alone(w: World) -> None:
    """Only the newest measured cells are learned from; the others are still better scaled than forgotten."""
    slow, *_ = await agents(w)
    await run_one(w, slow, 5.0, facts=FACTS)
    await ask_for_more(w)
    at = w.server.core.ledger.now
    for n in range(KNOWN_MOST):
        await w.emit(lambda _, n=n: ThroughputMeasured(at, Kind(f"newer{n}"), "slow", 1, 1.0))
    assert [kind for kind, *_ in prediction_question(w.server.core.ledger, ()).wanted] == []
