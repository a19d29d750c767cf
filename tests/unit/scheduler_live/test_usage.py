"""What jobs held of accelerators and when, from the ledger and what is open: whole, cut at the window, and private."""

from pathlib import Path
from typing import Any

import pytest

from scheduler.core.events import PoolDeclared
from scheduler.live.auth.access_control import UserRole
from scheduler.live.http import usage_api
from scheduler.live.http.usage_api import on_demand_prices
from scheduler.live.store.sqlite_store import SqliteStore
from scheduler.live.store.store_interface import WriteBatch
from scheduler.live.store.table_rows import ChargeKind, ChargeRow
from scheduler.live.store.usage_sums import HeldQuery, UsageQuery, use_of_charge
from tests.support.http_face import Face
from tests.support.live_world import FakeAgent
from tests.support.stores import open_test_store
from walras.cluster import Market, NodeId, Pool, PoolId, Shape
from walras.job_request import JobId

AX2 = Shape("ax2", "a", 2, 8.0, 1 << 34)
HOUR = 3600.0


def pool_of(market: str, usd_per_h: float, shape: Shape = AX2) -> Pool:
    return Pool(PoolId(f"{shape.name}/{market}/default"), shape, Market(market), "default", usd_per_h)


async def served(f: Face) -> FakeAgent:
    """A machine of two accelerators at 2 USD/h, as many as 4 USD/h would buy on demand."""
    for pool in (pool_of("on_demand", 4.0), pool_of("owned", 2.0)):
        await f.world.emit(lambda at, pool=pool: PoolDeclared(at, pool))
    return await FakeAgent(f.world, "n1", market="owned").register()


async def test_a_job_is_one_row_over_prices_and_while_it_runs(face: Face) -> None:
    """Two hours at two prices, and one hour that is open still: three hours of one accelerator."""
    w = face.world
    agent = await served(face)
    began = w.clock.unix(w.clock.at)
    job_id = await w.submit({"project": "vision", "name": "long"})
    await agent.start_all()
    for usd_per_h in (2.0, 6.0):
        w.clock.at += HOUR
        await w.emit(lambda at, usd_per_h=usd_per_h: PoolDeclared(at, pool_of("owned", usd_per_h)))
    w.clock.at += HOUR
    body = await face.got("/usage")
    (row,) = body["items"]
    assert (row["job"], row["project"], row["user"], row["accelerators"]) == (job_id, "vision", "ada", 1)
    assert (row["accelerator_s"], row["usd"]) == pytest.approx((3 * HOUR, 1.0 + 1.0 + 3.0))
    assert row["arrived_at"] == pytest.approx(began, abs=1.0)
    assert (row["running"], body["partial"]) == (True, False)
    assert body["on_demand"] == [{"accelerator": "a", "usd_per_h": 2.0}]
    # The last two hours alone: what was before is neither counted nor paid, and the job came with the window.
    (late,) = (await face.got(f"/usage?since_s={int(2 * HOUR)}"))["items"]
    assert (late["accelerator_s"], late["usd"]) == pytest.approx((2 * HOUR, 4.0), rel=1e-3)
    assert late["arrived_at"] == pytest.approx(began + HOUR, abs=2.0)
    await agent.end(job_id)
    (ended,) = (await face.got("/usage"))["items"]
    assert (ended["accelerator_s"], ended["running"]) == (pytest.approx(3 * HOUR), False)
    assert (await face.got("/usage?type=b"))["items"] == []


async def test_nobody_is_told_of_the_people_of_other_projects(face: Face) -> None:
    """A token of one project reads its jobs alone, running or ended; operators of all read all."""
    agent = await served(face)
    first = await face.world.submit({"project": "speech"}, user="eve")
    await face.world.submit({"project": "vision"}, user="ada")
    await agent.start_all()
    face.world.clock.at += HOUR
    everybody = await face.got("/usage", token=face.token("olga", UserRole.OPERATOR, "*"))
    assert [row["user"] for row in everybody["items"]] == ["eve", "ada"]
    bob = face.token("bob", UserRole.USER, "vision")
    for _ in range(2):
        found = await face.got("/usage", token=bob)
        assert [(row["user"], row["project"]) for row in found["items"]] == [("ada", "vision")]
        assert (found["partial"], "eve" in str(found), "speech" in str(found)) == (True, False, False)
        await agent.end(first)
    nothing = await face.got("/usage", token=face.token("carl", UserRole.VIEWER, "none"))
    assert nothing == found | {"items": [], "since": nothing["since"], "until": nothing["until"]}


async def test_too_much_is_refused_by_name(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a negative or endless time, nor more rows than an answer holds."""
    agent = await served(face)
    for _ in range(2):
        await face.world.submit({})
    await agent.start_all()
    face.world.clock.at += HOUR
    for wrong in ("0", "-5", "1e3", "999999999999", "day"):
        status, body = await face.json("GET", f"/api/v1/usage?since_s={wrong}")
        assert (status, body["field"]) == (400, "since_s")
    monkeypatch.setattr(usage_api, "MOST_USES", 1)
    status, body = await face.json("GET", "/api/v1/usage")
    assert (status, body["fix"]) == (400, "ask for less: a shorter --since, or one --type")


def charge(number: int, since_at: float, until_at: float, **more: Any) -> ChargeRow:
    whose = {"project": "p", "user": "ada", "accelerator": "a"} | more
    return ChargeRow(number, ChargeKind.USE, since_at, until_at, 1.0, (until_at - since_at) / HOUR, 2.0, "1970-01",
                     PoolId("x"), "owned", whose["accelerator"], 4.0, NodeId(""), JobId(7), 1, whose["project"],
                     whose["user"])  # fmt: skip


def test_the_store_and_what_is_open_sum_alike(tmp_path: Path) -> None:
    """The same charges, written or not: as sums of the store, and one by one."""
    store = SqliteStore(tmp_path)
    charges = [charge(1, 0.0, HOUR), charge(2, HOUR, 3 * HOUR), charge(3, 0.0, HOUR / 2, accelerator="b")]
    store.commit(WriteBatch(*charges))
    for since_at, wanted in ((0.0, ""), (HOUR / 2, ""), (2 * HOUR, ""), (0.0, "b"), (4 * HOUR, "")):
        query = UsageQuery(since_at, "1970-01", 10, wanted)
        opened = [use for each in charges if (use := use_of_charge(each, query, None)) is not None]
        written = store.attempt_uses(query)
        for field in ("accelerator_s", "usd", "on_demand_usd"):
            assert sum(getattr(use, field) for use in written) == pytest.approx(
                sum(getattr(use, field) for use in opened)
            )
        assert {use.accelerator for use in written} == {use.accelerator for use in opened}
    assert store.attempt_uses(UsageQuery(0.0, "1970-01", 10, projects=("other",))) == []
    assert store.attempt_uses(UsageQuery(0.0, "1970-01", 10, projects=())) == []
    store.close()


def test_the_price_of_a_type_is_that_of_its_cheapest_machine_on_demand() -> None:
    """By accelerator, whatever the machine's size; spot and owned machines have no say."""
    eight = Shape("ax8", "a", 8, 8.0, 1 << 34)
    pools = [pool_of("on_demand", 4.0), pool_of("on_demand", 12.0, eight), pool_of("spot", 0.1)]
    assert [(each.accelerator, each.usd_per_h) for each in on_demand_prices(pools)] == [("a", 1.5)]


pytestmark = pytest.mark.sql


async def test_a_projects_line_is_what_its_jobs_held_then(face: Face) -> None:
    """One accelerator for two of four hours: written and open charges are one line, in steps of fifteen minutes."""
    w = face.world
    agent = await served(face)
    w.clock.at += HOUR
    job_id = await w.submit({"project": "vision", "name": "long"})
    await agent.start_all()
    w.clock.at += HOUR
    body = await face.got(f"/usage/history?since_s={int(2 * HOUR)}")
    (line,) = body["items"]
    assert (line["project"], body["step_s"]) == ("vision", 60)
    assert len(line["accelerators"]) == 120
    assert sum(line["accelerators"]) / 60 == pytest.approx(1.0, rel=0.02)
    assert line["accelerators"][-2] == pytest.approx(1.0)
    assert line["accelerators"][0] == 0.0
    w.clock.at += HOUR
    await agent.end(job_id)
    w.clock.at += HOUR
    body = await face.got(f"/usage/history?since_s={int(4 * HOUR)}")
    (line,) = body["items"]
    assert body["step_s"] == 900
    assert sum(line["accelerators"]) / 4 == pytest.approx(2.0, rel=0.02)
    assert line["accelerators"][-2] == 0.0
    assert max(line["accelerators"]) == pytest.approx(1.0)


async def test_a_machine_tells_what_ran_on_it_newest_first(face: Face) -> None:
    """With how it ended and why; an unknown machine is named."""
    w = face.world
    agent = await served(face)
    first = await w.submit({"project": "vision", "name": "first"})
    await agent.start_all()
    w.clock.at += HOUR
    await agent.end(first)
    second = await w.submit({"project": "vision", "name": "second"})
    await agent.start_all()
    rows = await face.got("/nodes/n1/history")
    assert [(row["job"], row["name"], row["attempt"]) for row in rows] == [(second, "second", 1), (first, "first", 1)]
    assert rows[1]["ended_at"] - rows[1]["leased_at"] == pytest.approx(HOUR, abs=5)
    assert rows[0]["ended_at"] is None
    assert [row["name"] for row in await face.got("/nodes/n1/history?limit=1")] == ["second"]
    status, body = await face.json("GET", "/api/v1/nodes/n9/history")
    assert status == 404, body


async def test_nobody_sees_the_hours_of_other_projects(face: Face) -> None:
    """Neither their line nor their attempts."""
    agent = await served(face)
    await face.world.submit({"project": "vision", "name": "long"})
    await agent.start_all()
    face.world.clock.at += HOUR
    other = face.token("bob", UserRole.VIEWER, "speech")
    assert (await face.got("/usage/history", token=other))["items"] == []
    assert await face.got("/nodes/n1/history", token=other) == []


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_sums_and_single_charges_make_the_same_line(kind: str, tmp_path: Path) -> None:
    """What lies within a step is summed by the store, what does not is asked_for as it stands: no second is lost."""
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
        store.commit(WriteBatch(*charges))
        for since_at in (0.0, 20.0, 55.0):
            rows = list(store.held(HeldQuery(since_at, "1970-01", 10, 60)))
            for project in ("x", "y"):
                meant = sum(
                    2 * max(0.0, c.until_at - max(c.since_at, since_at)) for c in charges if c.project == project
                )
                assert sum(row.accelerator_s for row in rows if row.project == project) == pytest.approx(meant)
                assert sum(row.unit_s for row in rows if row.project == project) == pytest.approx(meant / 2)
        assert list(store.held(HeldQuery(0.0, "1970-01", 10, 60, projects=("z",)))) == []
