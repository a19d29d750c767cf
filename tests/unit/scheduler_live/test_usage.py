"""What jobs held of accelerators, from the ledger and what is open: whole, cut at the window, and private."""

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
from scheduler.live.store.usage_sums import UsageQuery, use_of_charge
from tests.support.http_face import Face, facing
from tests.support.live_world import FakeAgent
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


async def used(f: Face, query: str = "", **more: Any) -> Any:
    status, body = await f.json("GET", f"/api/v1/usage{query}", **more)
    assert status == 200, body
    return body


async def test_a_job_is_one_row_over_prices_and_while_it_runs(tmp_path: Path) -> None:
    """Two hours at two prices, and one hour that is open still: three hours of one accelerator."""
    async with facing(tmp_path) as f:
        w = f.world
        agent = await served(f)
        began = w.clock.unix(w.clock.at)
        job_id = await w.submit({"project": "vision", "name": "long"})
        await agent.start_all()
        for usd_per_h in (2.0, 6.0):
            w.clock.at += HOUR
            await w.emit(lambda at, usd_per_h=usd_per_h: PoolDeclared(at, pool_of("owned", usd_per_h)))
        w.clock.at += HOUR
        body = await used(f)
        (row,) = body["items"]
        assert (row["job"], row["project"], row["user"], row["accelerators"]) == (job_id, "vision", "ada", 1)
        assert (row["accelerator_s"], row["usd"]) == pytest.approx((3 * HOUR, 1.0 + 1.0 + 3.0))
        assert row["arrived_at"] == pytest.approx(began, abs=1.0)
        assert (row["running"], body["partial"]) == (True, False)
        assert body["on_demand"] == [{"accelerator": "a", "usd_per_h": 2.0}]
        # The last two hours alone: what was before is neither counted nor paid, and the job came with the window.
        (late,) = (await used(f, f"?since_s={int(2 * HOUR)}"))["items"]
        assert (late["accelerator_s"], late["usd"]) == pytest.approx((2 * HOUR, 4.0), rel=1e-3)
        assert late["arrived_at"] == pytest.approx(began + HOUR, abs=2.0)
        await agent.end(job_id)
        (ended,) = (await used(f))["items"]
        assert (ended["accelerator_s"], ended["running"]) == (pytest.approx(3 * HOUR), False)
        assert (await used(f, "?type=b"))["items"] == []


async def test_nobody_is_told_of_the_people_of_other_projects(tmp_path: Path) -> None:
    """A token of one project reads its jobs alone, running or ended; operators of all read all."""
    async with facing(tmp_path) as f:
        agent = await served(f)
        first = await f.world.submit({"project": "speech"}, user="eve")
        await f.world.submit({"project": "vision"}, user="ada")
        await agent.start_all()
        f.world.clock.at += HOUR
        everybody = await used(f, token=f.token("olga", UserRole.OPERATOR, "*"))
        assert [row["user"] for row in everybody["items"]] == ["eve", "ada"]
        bob = f.token("bob", UserRole.USER, "vision")
        for _ in range(2):
            found = await used(f, token=bob)
            assert [(row["user"], row["project"]) for row in found["items"]] == [("ada", "vision")]
            assert (found["partial"], "eve" in str(found), "speech" in str(found)) == (True, False, False)
            await agent.end(first)
        assert await used(f, token=f.token("carl", UserRole.VIEWER, "none")) | {"since": 0, "until": 0} == {
            "since": 0, "until": 0, "items": [], "on_demand": found["on_demand"], "partial": True,
        }  # fmt: skip


async def test_too_much_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a negative or endless time, nor more rows than an answer holds."""
    async with facing(tmp_path) as f:
        agent = await served(f)
        for _ in range(2):
            await f.world.submit({})
        await agent.start_all()
        f.world.clock.at += HOUR
        for wrong in ("0", "-5", "1e3", "999999999999", "day"):
            status, body = await f.json("GET", f"/api/v1/usage?since_s={wrong}")
            assert (status, body["field"]) == (400, "since_s")
        monkeypatch.setattr(usage_api, "MOST_USES", 1)
        status, body = await f.json("GET", "/api/v1/usage")
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
    store.commit(WriteBatch(charges=charges))
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
