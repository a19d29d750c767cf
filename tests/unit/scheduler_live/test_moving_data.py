"""The size of a checkpoint travels from the machine's report to the plan, and outlives the server."""

from pathlib import Path
from typing import Any

import pytest

from scheduler.core.explain.job_conditions import job_conditions
from scheduler.core.speed_events import RestartMeasured, ThroughputMeasured
from tests.support.live_world import FakeAgent, World, world
from walras.job_request import JobId
from walras.wire import StopCommand

A = {"shape": "ax2", "accelerator": "a", "accelerators": 2, "cpus": 8, "memory": "16GiB", "machines": 1}
B = {**A, "shape": "bx2", "accelerator": "b", "zone": "far", "data": {"usd_per_gb": 0.02, "speed": "1Gbit"}}
CLUSTER = {"pools": [A, B]}
WALRAS = {"policy": {"name": "walras"}, "rules": {"round_s": 60, "resolve_min_s": 0, "profiling_share": 0}}
MB = 10**6


async def running(w: World) -> tuple[FakeAgent, JobId]:
    """A job of half an hour on a, where it runs; on b it would take a quarter."""
    agent = await FakeAgent(w, "n1").register()
    job_id = await w.submit({"resources": {"accelerators": "any:2"}, "steps": 7200})
    while (job_id, 1) not in agent.here:
        await w.advance(1.0)
        await agent.start_all()
    kind = w.live_state.jobs[job_id].kind
    for accelerator, steps_per_s in (("a", 4.0), ("b", 8.0)):
        await w.emit(lambda at, a=accelerator, s=steps_per_s: ThroughputMeasured(at, kind, a, 2, s))
    await w.emit(lambda at: RestartMeasured(at, kind, 5.0))
    return agent, job_id


def saved(agent: FakeAgent, job_id: JobId, size_bytes: Any) -> dict[str, Any]:
    report = agent.committed(job_id, 1, 20.0)
    return report | {"manifest": {**report["manifest"], "content": "0" * 64}, "size_bytes": size_bytes}


def told(w: World, job_id: JobId) -> str:
    return {each.type: each.detail for each in job_conditions(w.server.core, job_id)}.get("fetches_inputs", "")


@pytest.mark.parametrize(("size_mb", "moves"), [(1_000, True), (1_000_000, False)])
async def test_a_job_moves_to_a_faster_machine_afar_unless_its_checkpoint_takes_longer(
    tmp_path: Path, size_mb: int, moves: bool
) -> None:
    """A gigabyte takes 8 seconds, a terabyte more than two hours: a quarter of an hour would be saved."""
    async with world(tmp_path, policy=WALRAS, cluster=CLUSTER) as w:
        agent, job_id = await running(w)
        await agent.beat(saved(agent, job_id, size_mb * MB))
        await FakeAgent(w, "n2", shape="bx2", accelerator="b", zone="far").register()
        for _ in range(4):
            await w.advance(60.0)
            await agent.beat(agent.progress(job_id, 1, 20.0 + 4.0 * w.clock.at))
        assert any(isinstance(each, StopCommand) for each in agent.commands) is moves


async def test_the_size_of_a_checkpoint_is_explained_and_outlives_the_server(tmp_path: Path) -> None:
    async with world(tmp_path, policy=WALRAS, cluster=CLUSTER) as w:
        agent, job_id = await running(w)
        await agent.beat(saved(agent, job_id, 250_000 * MB))
        assert told(w, job_id) == "2e+03 s and 5.00 USD to fetch 250 GB of its checkpoint on b"
    async with world(tmp_path, policy=WALRAS, cluster=CLUSTER, at=100.0) as w:
        assert w.live_state.jobs[job_id].checkpoint.size_bytes == 250_000 * MB
        assert w.server.core.ledger.jobs[job_id].checkpoint_bytes == 250_000 * MB


@pytest.mark.parametrize("size_bytes", [-1, 2**61, "much", 0.5])
async def test_a_size_that_cannot_be_is_refused_and_changes_nothing(tmp_path: Path, size_bytes: Any) -> None:
    async with world(tmp_path, policy=WALRAS, cluster=CLUSTER) as w:
        agent, job_id = await running(w)
        with pytest.raises(ValueError, match="size_bytes"):
            await agent.beat(saved(agent, job_id, size_bytes))
        assert w.server.core.ledger.jobs[job_id].checkpoint_bytes == 0
