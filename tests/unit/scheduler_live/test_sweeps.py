"""A sweep at the server: one submission, all or nothing, one line, and its jobs on demand."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.http_face import Face, facing
from tests.support.live_world import FakeAgent, world

pytestmark = pytest.mark.sql

API = "/api/v1"
SWEEP = {"name": "grid", "run": "python t.py {lr}", "matrix": {"lr": [0.1, 0.2, 0.3], "seed": "0-1"}, "array": "%2"}


async def states(face: Face) -> list[str]:
    _, page = await face.json("GET", f"{API}/jobs?sweep=1")
    return [job["state"] for job in reversed(page["items"])]


async def test_one_submission_is_many_jobs_once(face: Face) -> None:
    """Six jobs for one key, however often it is sent; two run at once; what each runs has its value."""
    agents = [await FakeAgent(face.world, name).register() for name in ("n1", "n2")]
    for _ in range(2):
        _, answer = await face.json("POST", f"{API}/jobs", SWEEP, key="k")
        assert (answer["id"], answer["name"], answer["jobs"]) == (1, "grid", 6)
    starts = [start for agent in agents for start in await agent.start_all()]
    assert sorted(start.argv[-1] for start in starts) == ["python t.py 0.1", "python t.py 0.1"]
    assert {start.env["WALRAS_ARRAY_ID"] for start in starts} == {"1"}
    assert await states(face) == ["RUNNING"] * 2 + ["PENDING"] * 4
    _, explained = await face.json("GET", f"{API}/jobs/4/explain")
    assert explained["reasons"][0]["reason"] == "WAIT:SWEEP"


async def test_a_sweep_is_one_line_and_its_jobs_on_demand(face: Face) -> None:
    """Folded: the newest job, with the states of all; beside other jobs, by state, and after some have ended."""
    await face.json("POST", f"{API}/jobs", SWEEP)
    await face.json("POST", f"{API}/jobs", {"run": "x"})
    await face.json("POST", f"{API}/jobs/6/cancel")
    _, page = await face.json("GET", f"{API}/jobs?active=true&sweeps=folded")
    assert [(job["id"], job["sweep"], job["sweep_states"]) for job in page["items"]] == [
        (7, None, {}),
        (5, 1, {"PENDING": 5, "CANCELLED": 1}),
    ]
    _, page = await face.json("GET", f"{API}/jobs?sweeps=folded&state=CANCELLED")
    assert [job["id"] for job in page["items"]] == [6]
    assert (await face.json("PATCH", f"{API}/jobs/5", {"project": "other"}))[0] == 200
    found = [(await face.json("GET", f"{API}/jobs?sweeps=folded&project={name}"))[1] for name in ("other", "default")]
    assert [[job["id"] for job in page["items"]] for page in found] == [[5], [7, 6]]
    _, page = await face.json("GET", f"{API}/jobs")
    assert len(page["items"]) == 7
    assert [(job["sweep_index"], job["name"]) for job in page["items"][-2:]] == [(1, "grid"), (0, "grid")]


async def test_a_sweep_that_is_refused_leaves_no_job(face: Face) -> None:
    """What the fleet could never run, and what is too much: nothing is admitted; a batch takes no sweep."""
    await FakeAgent(face.world, "n1").register()
    status, problem = await face.json("POST", f"{API}/jobs", SWEEP | {"resources": {"accelerators": "h100:1"}})
    assert (status, problem["field"]) == (400, "resources.accelerators")
    large: dict[str, Any] = {"run": "x" * 90_000, "array": "1-1000"}
    status, problem = await face.json("POST", f"{API}/jobs", large)
    assert (status, "the specs of 1000 jobs come to" in problem["detail"]) == (400, True), problem
    _, batch = await face.json("POST", f"{API}/jobs:batch", {"jobs": [SWEEP]})
    assert batch["items"][0]["error"]["field"] == "array"
    assert (await face.json("GET", f"{API}/jobs"))[1]["items"] == []
    status, plan = await face.json("POST", f"{API}/jobs:dryrun", SWEEP)
    assert (status, plan["accelerators"]) == (200, 1)


async def test_a_job_waits_for_all_of_a_sweep(face: Face) -> None:
    """By the sweep's number or its name; by the number of another of its jobs, for that one alone."""
    await face.json("POST", f"{API}/jobs", SWEEP | {"hold": True})
    for needed in (1, "grid", 3):
        await face.json("POST", f"{API}/jobs", {"run": "x", "depends_on": [needed]})
    ledger = face.world.server.core.ledger
    assert [len(ledger.jobs[job_id].blocked_by) for job_id in (7, 8, 9)] == [6, 6, 1]  # type: ignore[index]


async def test_a_sweep_survives_a_restart_with_its_limit(tmp_path: Path) -> None:
    """The restarted server starts the third job when one ends, and launches it with its own values."""
    async with facing(tmp_path) as face:
        agents = [await FakeAgent(face.world, name).register() for name in ("n1", "n2")]
        await face.json("POST", f"{API}/jobs", SWEEP)
        for agent in agents:
            await agent.start_all()
    async with world(tmp_path) as again:
        for agent in agents:
            agent.world = again
            await agent.beat(resync=True)
        assert [again.state(job_id) for job_id in (1, 2, 3)] == ["RUNNING", "RUNNING", "PENDING"]
        holder = next(agent for agent in agents if any(command.job_id == 2 for command in agent.commands))
        await holder.end(2)
        starts = [start for agent in agents for start in await agent.start_all()]
        assert [(start.job_id, start.argv[-1]) for start in starts] == [(3, "python t.py 0.2")]
        assert starts[0].env["WALRAS_ARRAY_INDEX"] == "2"
