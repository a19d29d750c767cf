"""What places were worth, and what shares are, over a restart."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.events import PoolDeclared, Proposal, ShareLimit, Solved
from scheduler.core.explain.share_standing import share_standings
from scheduler.live.auth.access_control import UserRole
from scheduler.live.http import usage_api
from scheduler.live.loop.price_history import LOOK_EVERY_S, PoolQuote, PriceHistory
from scheduler.live.loop.recurring_steps import keep_core_state, note_prices
from scheduler.live.store.event_journal import decode_event, encode_event
from scheduler.live.store.sqlite_store import SqliteStore
from scheduler.live.store.store_interface import PriceQuery, WriteBatch
from scheduler.live.store.table_rows import PRICES_KEPT_S, PriceRow
from tests.support.http_face import Face, facing
from tests.support.live_world import FakeAgent, World, world
from walras.cluster import Market, Pool, PoolId, Shape

pytestmark = pytest.mark.sql

AX2 = Shape("ax2", "a", 2, 8.0, 1 << 34)
WALRAS = {"policy": {"name": "walras"}, "rules": {"round_s": 10.0, "resolve_min_s": 1.0}}
POOL = PoolId("ax2/owned/default")
HOUR = 3600.0


async def watched(w: World, seconds: float) -> None:
    """Let time pass under the watch of prices."""
    for _ in range(round(seconds / LOOK_EVERY_S)):
        w.clock.at += LOOK_EVERY_S
        await w.loop.perform(note_prices)


async def queue_of(f: Face, jobs: int, **more: Any) -> None:
    """So many equal jobs for two accelerators, which rent for 1.50 USD an hour each."""
    pool = Pool(POOL, AX2, Market.OWNED, "default", 3.0)
    await f.world.emit(lambda at: PoolDeclared(at, pool))
    agent = await FakeAgent(f.world, "n1", market="owned").register()
    for _ in range(jobs):
        await f.world.submit({"resources": {"accelerators": "a:1"}, **more})
    await f.world.advance(5.0)
    await agent.start_all()
    await f.world.advance(20.0)
    await f.world.loop.perform(note_prices)


async def test_a_place_that_a_job_waits_for_is_worth_what_the_job_says(tmp_path: Path) -> None:
    """Three equal jobs at 3 USD/h on two accelerators: one more would give the third its 3 USD an hour."""
    async with facing(tmp_path, policy=WALRAS) as f:
        await queue_of(f, 3, value_usd_per_h=3.0)
        await watched(f.world, 600.0)
        body = await f.done("GET", "/api/v1/worth")
        (row, *more) = body["items"]
        assert (row["pool"], row["unit"], more) == (POOL, "worth of one accelerator", [])
        assert row["price"] > 0
        assert (row["usd_per_h"], row["rent_usd_per_h"]) == pytest.approx((3.0, 1.5))
        assert row["seconds"] == pytest.approx(600.0)
        assert row["until"] - row["since"] == pytest.approx(600.0)


@pytest.mark.parametrize(("policy", "unit"), [("fifo", ""), ("max_min_fairness", "fair-share units per accelerator")])
async def test_prices_end_with_their_policy(tmp_path: Path, policy: str, unit: str) -> None:
    """No list, page, metric or hourly mean goes on with what another policy said; a new unit begins a new history."""
    async with facing(tmp_path, policy=WALRAS) as f:
        await queue_of(f, 3, value_usd_per_h=3.0)
        (before,) = (await f.got("/prices"))["items"]
        assert before["unit"] == "worth of one accelerator"
        changed = await f.json("PUT", "/api/v1/policy", {"policy": {"name": policy}})
        assert changed[0] == 200, changed
        await watched(f.world, 600.0)
        await f.world.advance(20.0)
        page, prices = await f.got("/overview"), await f.got("/prices")
        assert (page["policy"], page["pools"], page["certificate"]) == (policy, prices["items"], prices["certificate"])
        (now,) = prices["items"]
        assert (now["unit"], now["price"] > 0, prices["certificate"] is None) == (unit, bool(unit), not unit)
        if unit:
            assert [point["prices"][POOL] for point in page["history"]] == [now["price"]] * len(page["history"])
        assert all(each["seconds"] < 600.0 for each in (await f.got("/worth"))["items"] if each["unit"] != unit)


@pytest.mark.parametrize(("jobs", "more", "usd"), [(2, {"value_usd_per_h": 3.0}, 0.0), (3, {}, None)])
async def test_nothing_is_made_up(tmp_path: Path, jobs: int, more: dict[str, float], usd: float | None) -> None:
    """Where nobody waits one more is worth nothing; where nobody states a value it is not known in USD."""
    async with facing(tmp_path, policy=WALRAS) as f:
        await queue_of(f, jobs, **more)
        await watched(f.world, 60.0)
        (row,) = (await f.json("GET", "/api/v1/worth"))[1]["items"]
        assert row["usd_per_h"] == usd
        assert (row["price"] > 0) is (jobs == 3)


@pytest.mark.sqlite_file
async def test_hours_are_kept_over_a_restart_and_read_by_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By clock hours, each once; a viewer of one project reads prices as `walras cloud prices` shows them."""
    async with facing(tmp_path, policy=WALRAS) as f:
        await queue_of(f, 3, value_usd_per_h=3.0)
        await watched(f.world, 2 * HOUR)
        at = f.world.clock.at
        body = (await f.json("GET", "/api/v1/worth", token=f.token("bob", UserRole.VIEWER, "vision")))[1]
        assert len(body["items"]) == 3
        assert sum(row["seconds"] for row in body["items"]) == pytest.approx(2 * HOUR)
        hours = [((row["since"] + 1e-3) // HOUR, (row["until"] - 1e-3) // HOUR) for row in body["items"]]
        assert hours == [(first, first) for first, _ in hours]
        assert len(set(hours)) == 3
        last = body["items"][-1]
        late = (await f.json("GET", f"/api/v1/worth?since_s=60&pool={POOL}"))[1]["items"]
        assert late == [last]
        assert (await f.call("GET", "/api/v1/worth?pool=x")).status == 404
        assert (await f.call("GET", "/api/v1/worth?since_s=-1")).status == 400
        monkeypatch.setattr(usage_api, "MOST_HOURS", 1)
        status, body = await f.json("GET", "/api/v1/worth")
        assert (status, body["fix"]) == (400, "ask for less: a shorter --since, or one --pool")
    store = SqliteStore(tmp_path)
    kept = store.price_hours(PriceQuery(0.0))
    assert sum(row.seconds for row in kept) >= 2 * HOUR - 600.0
    assert all(row.since_at < at for row in kept)
    store.close()


def quote(price: float, unit: str = "u", usd: float | None = None) -> PoolQuote:
    return PoolQuote(POOL, price, unit, usd, 1.0)


def test_a_mean_is_weighted_by_time_and_leaves_out_what_was_not_watched() -> None:
    """Of a minute at 1 and half a minute at 4 it is 2; an hour of sleep counts for nothing; a unit is a row."""
    history = PriceHistory()
    assert history.look(0.0, 0.0, [quote(9.0)]) == []
    for at, price in ((30.0, 1.0), (60.0, 1.0), (90.0, 4.0)):
        history.look(at, 0.0, [quote(price, usd=2 * price)])
    (row,) = history.open_rows()
    assert (row.price, row.usd_per_h, row.seconds) == (2.0, 4.0, 90.0)
    assert history.look(1800.0, 0.0, [quote(100.0)]) == []
    history.look(1830.0, 0.0, [quote(2.0)])
    (row,) = history.open_rows()
    assert (row.seconds, row.price) == (120.0, 2.0)
    (ended,) = history.look(1860.0, 0.0, [quote(5.0, unit="other")])
    assert (ended.unit, ended.seconds) == ("u", 120.0)
    assert [each.unit for each in history.open_rows()] == ["other"]


def test_journals_without_it_keep_their_text() -> None:
    """Where no job has a value a plan's text is what it was; where one has, it is read back."""
    plain = Proposal((POOL,), (), (), (), (), (), (0.5,), "u", 1.0, (0,), "defined", 1.0, 1.0, 0.0, "path")
    for proposal in (plain, replace(plain, worth_usd=(1.5,))):
        row = encode_event(Solved(1.0, 1, proposal))
        assert ("worth_usd" in row.payload) is bool(proposal.worth_usd)
        assert decode_event(row) == Solved(1.0, 1, proposal)


def test_old_hours_are_deleted(tmp_path: Path) -> None:
    """What began more than some months ago goes with the next write."""
    store = SqliteStore(tmp_path)

    def row(since_at: float) -> PriceRow:
        return PriceRow(POOL, since_at, since_at + HOUR, HOUR, 1.0, "u", None, 1.0)

    store.commit(WriteBatch(row(0.0), row(HOUR), row(2 * HOUR)))
    store.commit(WriteBatch(row(PRICES_KEPT_S)).expire(PriceRow, PRICES_KEPT_S + 1.5 * HOUR))
    assert [each.since_at for each in store.price_hours(PriceQuery(-1.0))] == [2 * HOUR, PRICES_KEPT_S]
    assert [each.since_at for each in store.price_hours(PriceQuery(-1.0, limit=1))] == [PRICES_KEPT_S]
    assert store.price_hours(PriceQuery(-1.0, "other")) == []
    store.close()


API = "/api/v1"


async def _shares(face: Face, token: str | None = None) -> dict[str, dict[str, object]]:
    found = await face.done("GET", f"{API}/share", token=token)
    return {each["name"]: each for each in found}


async def test_shares_are_told_and_outlive_the_server(tmp_path: Path) -> None:
    """Weights and limits by project and user, entitlement by demand, what is borrowed, and use after a restart."""
    async with facing(tmp_path / "data") as face:
        await face.call("POST", f"{API}/projects", {"name": "vision", "settings": {"share": {"weight": 3}}})
        await face.call("POST", f"{API}/projects", {"name": "speech"})
        await face.call("PATCH", f"{API}/projects/vision", {"users": {"admin": {"limits": {"a": 2}}}})
        agents = [await FakeAgent(face.world, f"n{number}").register() for number in (1, 2)]
        for _ in range(3):
            await face.json("POST", f"{API}/jobs", {"run": "true", "project": "speech"})
        for agent in agents:
            await agent.start_all()
        shares = await _shares(face)
        assert {name: each["weight"] for name, each in shares.items()} == {
            "speech": 1.0, "speech/admin": 1.0, "vision": 3.0, "vision/admin": 1.0,
        }  # fmt: skip
        speech, vision = shares["speech"], shares["vision"]
        assert (speech["entitled"], speech["nominal"], vision["entitled"], vision["nominal"]) == (3.0, 1.0, 0.0, 3.0)
        assert (speech["held"], speech["borrowed"]) == ({"a": 3.0}, [{"name": "vision", "accelerators": 2.0}])
        told = "3 a at 1 times the fleet's average speed for its jobs count 3"
        assert speech["because"] == f"speech holds 3 accelerators, which count as 3 of its share: {told}"
        assert shares["vision/admin"]["limits"] == {"a": 2}
        face.world.clock.at += 7200.0
        used = float((await _shares(face))["speech"]["used_h"])  # type: ignore[arg-type]
        assert used == pytest.approx(6.0, rel=0.01)
        stranger = face.token("eve", UserRole.USER, "speech")
        seen = await _shares(face, stranger)
        assert set(seen) == {"speech", "speech/admin"}
        assert seen["speech"]["borrowed"] == [{"name": "others", "accelerators": 2.0}]
        await face.world.loop.perform_in_pieces(keep_core_state)
    async with world(tmp_path / "data", at=7200.0) as again:
        told = {each.name: each for each in share_standings(again.server.core, 7200.0)}
        assert told["vision"].share.weight == 3.0
        assert told["vision/admin"].share.limits == (ShareLimit("a", 2),)
        assert told["speech"].used_s / 3600.0 == pytest.approx(used, rel=1e-6)
        assert told["speech"].accelerators == 3.0


async def test_what_a_project_owns_is_told_and_lent_and_outlives_policy_and_server(tmp_path: Path) -> None:
    """Both of its accelerators are lent for two hours, whatever policy is put in force: that is its credit."""
    async with facing(tmp_path / "data") as face:
        await face.call("POST", f"{API}/projects", {"name": "vision", "settings": {"share": {"owned": {"a": 2}}}})
        await face.call("POST", f"{API}/projects", {"name": "speech"})
        agents = [await FakeAgent(face.world, f"n{number}").register() for number in (1, 2)]
        await face.json("PUT", f"{API}/policy", {"policy": {"name": "max_min_fairness"}, "rules": {"round_s": 30.0}})
        job = {"run": "true", "preemptible": "always"}
        for _ in range(4):
            await face.json("POST", f"{API}/jobs", {**job, "project": "speech"})
        await face.world.advance(1.0)
        for agent in agents:
            await agent.start_all()
        face.world.clock.at += 7200.0
        (lent,) = (await _shares(face))["vision"]["owned"]  # type: ignore[misc]
        assert lent | {"credit_h": 0} == {"scope": "a", "owned": 2, "here": 2, "used": 0, "lent": 2.0, "credit_h": 0}
        await face.world.loop.perform_in_pieces(keep_core_state)
    async with world(tmp_path / "data", at=7200.0) as again:
        ledger = again.server.core.ledger
        (claim,) = ledger.usage.owned.claims
        assert ledger.usage.owned.credit_s(claim) / 3600.0 == pytest.approx(4.0, rel=0.01)


async def test_what_a_guarantee_is_worth_is_told_to_those_who_see_the_project(face: Face) -> None:
    """vision's guarantee keeps an accelerator that the short jobs of speech would pay more for."""
    guaranteed = {"share": {"guaranteed": 0.5, "weight": 0.1}}
    await face.call("POST", f"{API}/projects", {"name": "vision", "settings": guaranteed})
    await face.call("POST", f"{API}/projects", {"name": "speech"})
    rules = {"round_s": 30.0, "resolve_min_s": 1.0}
    await face.json("PUT", f"{API}/policy", {"policy": {"name": "walras"}, "rules": rules})
    for project in ("speech", "speech", *["vision"] * 6):
        length = "1h" if project == "speech" else "100h"
        job = {"run": "true", "project": project, "preemptible": "always", "estimated_duration": length}
        await face.json("POST", f"{API}/jobs", job)
    agent = await FakeAgent(face.world, "n1").register()
    await face.world.advance(1.0)
    await agent.start_all()
    await face.world.advance(600.0)
    _, prices = await face.json("GET", f"{API}/prices")
    assert [(each["name"], each["limit"]) for each in prices["entities"]] == [("vision", 0.0)], prices
    assert prices["entities"][0]["guarantee"] > 0
    _, seen = await face.json("GET", f"{API}/prices", token=face.token("eve", UserRole.USER, "speech"))
    assert seen["entities"] == []
