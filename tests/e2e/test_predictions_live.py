"""Speeds predicted by a live server, in a process of its own."""

import asyncio
from pathlib import Path

import pytest

from scheduler.live.loop.prediction_tasks import SpeedPredictions
from tests.support.live_world import FakeAgent, world

pytestmark = pytest.mark.slow

TWO_POOLS = {
    "pools": [
        {"shape": "v100x1", "accelerator": "v100", "accelerators": 1, "cpus": 8, "memory": "16GiB"},
        {"shape": "k80x1", "accelerator": "k80", "accelerators": 1, "cpus": 8, "memory": "16GiB"},
    ]
}


async def test_a_cell_is_predicted_once_for_what_is_known(tmp_path: Path) -> None:
    """Some seconds after a speed was measured the others are told to the core; what is answered is not asked again."""
    async with world(tmp_path, cluster=TWO_POOLS) as w:
        predictions = SpeedPredictions(w.loop, pace_s=0.1)
        w.loop.effect_handlers.append(predictions)
        shape = {"shape": "v100x1", "accelerator": "v100", "accelerators": 1}
        agent = await FakeAgent(w, "n1", **shape).register()
        accelerators = {"v100": 1, "k80": 1}
        facts = {"flops_per_sample": 4e9, "gradient_bytes": 1e8, "batch_per_accelerator": 64}
        job_id = await w.submit({"profile": "cnn", "resources": {"accelerators": accelerators}, "facts": facts})
        await agent.start_all()
        await agent.beat(agent.progress(job_id, 1, 5.0, steps_per_s=4.0, start_s=1.5))

        def told() -> int:
            return sum(row.type == "SpeedsPredicted" for row in w.server.store.journal())

        for _ in range(600):
            if told():
                break
            await asyncio.sleep(0.1)
        for _ in range(5):
            await w.quiet()
            await asyncio.sleep(0.2)
        await predictions.close()
        # Once for what the facts say of a kind that never ran, unless its speed was there as soon, and once for that.
        assert 1 <= told() <= 2
        ledger = w.server.core.ledger
        k80 = ledger.table.speed("cnn", "k80", 1, ledger.classes.nominal)  # type: ignore[arg-type]
    # Data sheets know that a K80 is the slower one; nominal speeds, which nobody gave, do not.
    assert k80.steps_per_s < 4.0
    assert k80.low is not None
    assert "analytic" in k80.by
