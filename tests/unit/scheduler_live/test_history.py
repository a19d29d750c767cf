"""Who held accelerators when: a project's line over time, and what ran on a machine."""

from pathlib import Path
from typing import Any

import pytest

from scheduler.core.events import PoolDeclared
from scheduler.live.auth.access_control import UserRole
from scheduler.live.store.store_interface import WriteBatch
from scheduler.live.store.table_rows import ChargeKind, ChargeRow
from scheduler.live.store.usage_sums import HeldQuery
from tests.support.http_face import Face, facing
from tests.support.live_world import FakeAgent
from tests.support.stores import open_test_store
from walras.cluster import Market, NodeId, Pool, PoolId, Shape
from walras.job_request import JobId

pytestmark = pytest.mark.sql

HOUR = 3600.0
AX2 = Shape("ax2", "a", 2, 8.0, 1 << 34)


async def told(f: Face, path: str, **more: Any) -> Any:
    status, body = await f.json("GET", f"/api/v1{path}", **more)
    assert status == 200, body
    return body


async def served(f: Face) -> FakeAgent:
    pool = Pool(PoolId("ax2/owned/default"), AX2, Market.OWNED, "default", 2.0)
    await f.world.emit(lambda at: PoolDeclared(at, pool))
    return await FakeAgent(f.world, "n1", market="owned").register()


async def test_a_projects_line_is_what_its_jobs_held_then(tmp_path: Path) -> None:
    """One accelerator for two of four hours: written and open charges are one line, in steps of fifteen minutes."""
    async with facing(tmp_path) as f:
        w = f.world
        agent = await served(f)
        w.clock.at += HOUR
        job_id = await w.submit({"project": "vision", "name": "long"})
        await agent.start_all()
        w.clock.at += HOUR
        body = await told(f, f"/usage/history?since_s={int(2 * HOUR)}")
        (line,) = body["items"]
        assert (line["project"], body["step_s"]) == ("vision", 60)
        assert len(line["accelerators"]) == 120
        assert sum(line["accelerators"]) / 60 == pytest.approx(1.0, rel=0.02)
        assert line["accelerators"][-2] == pytest.approx(1.0)
        assert line["accelerators"][0] == 0.0
        w.clock.at += HOUR
        await agent.end(job_id)
        w.clock.at += HOUR
        body = await told(f, f"/usage/history?since_s={int(4 * HOUR)}")
        (line,) = body["items"]
        assert body["step_s"] == 900
        assert sum(line["accelerators"]) / 4 == pytest.approx(2.0, rel=0.02)
        assert line["accelerators"][-2] == 0.0
        assert max(line["accelerators"]) == pytest.approx(1.0)


async def test_a_machine_tells_what_ran_on_it_newest_first(tmp_path: Path) -> None:
    """With how it ended and why; an unknown machine is named."""
    async with facing(tmp_path) as f:
        w = f.world
        agent = await served(f)
        first = await w.submit({"project": "vision", "name": "first"})
        await agent.start_all()
        w.clock.at += HOUR
        await agent.end(first)
        second = await w.submit({"project": "vision", "name": "second"})
        await agent.start_all()
        rows = await told(f, "/nodes/n1/history")
        assert [(row["job"], row["name"], row["attempt"]) for row in rows] == [
            (second, "second", 1),
            (first, "first", 1),
        ]
        assert rows[1]["ended_at"] - rows[1]["leased_at"] == pytest.approx(HOUR, abs=5)
        assert rows[0]["ended_at"] is None
        assert [row["name"] for row in await told(f, "/nodes/n1/history?limit=1")] == ["second"]
        status, body = await f.json("GET", "/api/v1/nodes/n9/history")
        assert status == 404, body


async def test_nobody_sees_the_hours_of_other_projects(tmp_path: Path) -> None:
    """Neither their line nor their attempts."""
    async with facing(tmp_path) as f:
        agent = await served(f)
        await f.world.submit({"project": "vision", "name": "long"})
        await agent.start_all()
        f.world.clock.at += HOUR
        other = f.token("bob", UserRole.VIEWER, "speech")
        assert (await told(f, "/usage/history", token=other))["items"] == []
        assert await told(f, "/nodes/n1/history", token=other) == []


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_sums_and_single_charges_make_the_same_line(kind: str, tmp_path: Path) -> None:
    """What lies within a step is summed by the store, what does not is told as it stands: no second is lost."""
    charges = [
        ChargeRow(
            number, ChargeKind.USE, since, until, 1.0, 1.0, 1.0, "1970-01", PoolId("p"), "owned", "a", 2.0, NodeId(""),
            JobId(number), 1, project, "ada", 1.0,
        )
        for number, (project, since, until) in enumerate(
            [("x", 0.0, 30.0), ("x", 10.0, 50.0), ("x", 50.0, 200.0), ("y", 60.0, 120.0), ("y", 500.0, 501.0)], 1
        )
    ]  # fmt: skip
    with open_test_store(kind, tmp_path) as store:
        store.commit(WriteBatch(charges=charges))
        for since_at in (0.0, 20.0, 55.0):
            rows = list(store.held(HeldQuery(since_at, "1970-01", 10, 60)))
            for project in ("x", "y"):
                meant = sum(
                    2 * max(0.0, c.until_at - max(c.since_at, since_at)) for c in charges if c.project == project
                )
                assert sum(row.accelerator_s for row in rows if row.project == project) == pytest.approx(meant)
                assert sum(row.unit_s for row in rows if row.project == project) == pytest.approx(meant / 2)
        assert list(store.held(HeldQuery(0.0, "1970-01", 10, 60, projects=("z",)))) == []
