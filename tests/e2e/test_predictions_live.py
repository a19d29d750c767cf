"""Speeds that a live server believes: predicted in a process of its own, and learnt per project."""

import asyncio
import sys
from pathlib import Path

import pytest

from scheduler.live.loop.prediction_tasks import SpeedPredictions
from tests.support.live_world import FakeAgent, world
from tests.support.real_server import A, Serve
from tests.support.waiting import wait_for

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


#: Sends its supervisor one speed again and again, with steps that vouch for it.
LIAR = """
import json, os, socket, time
with socket.socket(socket.AF_UNIX) as link:
    link.connect(os.environ["WALRAS_SOCKET"])
    for beat in range(10**6):
        report = {"type": "progress", "steps": SPEED * beat, "steps_per_s": SPEED, "samples": 9 + beat}
        link.sendall(json.dumps(report).encode() + b"\\n")
        time.sleep(1)
"""


def test_what_a_job_of_another_project_claims_moves_no_job(serve: Serve) -> None:
    """Bob's jobs under ada's profile say that the slow type is quick and the quick one slow: ada's job goes where it
    goes without them, and what bob's project believes, it believes alone.
    """
    slow, quick = (A | {"shape": name, "accelerator": name} for name in ("k80", "a100-40gb"))
    server = serve([slow, quick], {"policy": {"name": "walras"}, "rules": {"round_s": 5, "resolve_min_s": 1}})
    for pool in (slow, quick):
        server.start_agent(pool["accelerator"], pool)

    def submit(project: str, run: str | list[str], *types: str) -> int:
        resources, stated = {"accelerators": dict.fromkeys(types, 1)}, {"k80": 3.0, "a100-40gb": 10.0}
        return server.submit(run=run, project=project, profile="cnn", resources=resources, throughput=stated)

    liars = [
        submit("speech", [sys.executable, "-c", LIAR.replace("SPEED", speed)], name)
        for name, speed in (("k80", "900000.0"), ("a100-40gb", "0.01"))
    ]
    query = "SELECT count(*) FROM speeds WHERE kind = '@speech cnn'"
    wait_for(
        lambda: server.rows(query) == [(2,)], 60, "both are believed of bob's project", lambda: server.job(liars[0])
    )
    for job in liars:
        server.call("POST", f"/jobs/{job}/cancel")
    for job in liars:
        server.until_state(job, "CANCELLED", 60)
    assert server.rows("SELECT DISTINCT kind FROM speeds") == [("@speech cnn",)]
    for project, place in (("vision", "a100-40gb"), ("speech", "k80")):
        job = submit(project, "sleep 600", "k80", "a100-40gb")
        server.until_running(job)
        assert server.attempt(job)["accelerator"] == place, project
        server.call("POST", f"/jobs/{job}/cancel")
        server.until_state(job, "CANCELLED", 60)
