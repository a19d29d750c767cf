"""The ledger of money: rows at the price of use that add up, whatever happens."""

import json
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from scheduler.core.events import PoolDeclared
from scheduler.core.explain.pending_reasons import pending_reasons
from scheduler.live.auth.access_control import UserRole
from scheduler.live.loop import billing
from scheduler.live.loop.billing import spending_report, sum_charges
from scheduler.live.loop.recurring_steps import begin_month_if_due
from scheduler.live.services.agent_gateway import declare_node_lost
from scheduler.live.store.sqlite_store import SqliteStore
from scheduler.live.store.store_interface import MoneyQuery, MoneySum, WriteBatch
from scheduler.live.store.table_rows import ChargeKind, RentRow
from tests.support.charges import charge
from tests.support.http_face import Face, facing
from tests.support.live_world import FIFO, FakeAgent, World, world
from walras.cluster import Market, NodeId, Pool, PoolId, Shape
from walras.resources.money import MoneyReport
from walras.states import Reason

pytestmark = pytest.mark.sql

AX2 = Shape("ax2", "a", 2, 8.0, 1 << 34)


def pool_of(market: str, usd_per_h: float, **more: Any) -> Pool:
    return Pool(PoolId(f"ax2/{market}/default"), AX2, Market(market), "default", usd_per_h, **more)


async def declare(w: World, pool: Pool) -> None:
    await w.emit(lambda at: PoolDeclared(at, pool))


async def rented(w: World, name: str, market: str = "spot") -> FakeAgent:
    """A machine that answers a request for one."""

    token = f"token-{name}"

    def ask(transaction: Any) -> None:
        transaction.state.rents[token] = RentRow(token, PoolId(f"ax2/{market}/default"), 1, transaction.at)

    await w.loop.perform(ask)
    return await FakeAgent(w, name, token, market=market).register()


async def gone(w: World, name: str, reason: Reason = Reason.POLICY_RELEASED) -> None:
    await w.loop.perform(lambda transaction: declare_node_lost(transaction, NodeId(name), reason))


def ledger(w: World, by: str = "project", **more: Any) -> MoneyReport:
    """The report as the server makes it."""
    query = MoneyQuery(by, w.live_state.next_charge_id, **more)
    open_now = sum_charges(billing.open_charges(w.live_state, w.clock.now()), query)
    return spending_report(query, [*w.server.store.money(query), *open_now])


async def test_every_price_change_closes_a_row_and_the_sum_is_price_times_time(w: World) -> None:
    """Half a machine for an hour each at 2, 200 and 0 USD/h costs 1 + 100 + 0, and the other half was idle."""
    await declare(w, pool_of("on_demand", 4.0))
    await declare(w, pool_of("spot", 2.0, quota=4))
    agent = await rented(w, "n1")
    job_id = await w.submit({"project": "vision"})
    await agent.start_all()
    for usd_per_h in (200.0, 0.0, 2.0):
        w.clock.at += 3600.0
        await declare(w, pool_of("spot", usd_per_h, quota=4))
    await agent.end(job_id)
    found = ledger(w)
    assert [(row.key, row.usd) for row in found.items] == [("vision", pytest.approx(101.0))]
    assert (found.used_usd, found.idle_usd, found.total_usd) == pytest.approx((101.0, 101.0, 202.0))
    assert found.on_demand_usd == pytest.approx(3 * 4.0)
    rows = w.server.store.charges(job_id)
    assert [row.usd_per_h for row in rows] == pytest.approx([1.0, 100.0, 0.0])
    assert [row.usd for row in rows] == pytest.approx([1.0, 100.0, 0.0])
    assert [row.since_at for row in rows[1:]] == [row.until_at for row in rows[:-1]]


async def test_a_machine_is_paid_for_at_least_its_minimum(w: World) -> None:
    """Given back after a minute of a minimum of ten, ten are paid; after twenty, twenty."""
    await declare(w, pool_of("spot", 6.0, quota=4, minimum_billing_s=600.0))
    await rented(w, "n1")
    await rented(w, "n2")
    w.clock.at += 60.0
    await gone(w, "n1")
    assert ledger(w).total_usd == pytest.approx(1.0 + 0.1)
    w.clock.at += 1140.0
    await gone(w, "n2", Reason.INFRA_SPOT_RECLAIM)
    assert ledger(w).total_usd == pytest.approx(1.0 + 2.0)


async def test_hours_that_were_begun_are_paid_from_the_rent_on(tmp_path: Path) -> None:
    """Asked for at 0, joined at 600 s, gone at 4000 s over a restart: two hours, of them ten minutes of boot."""
    hourly = pool_of("spot", 6.0, quota=4, billing_step_s=3600.0)
    async with world(tmp_path) as w:
        await declare(w, hourly)

        def ask(transaction: Any) -> None:
            rent = transaction.state.rents["t"] = RentRow("t", hourly.pool_id, 1, transaction.at)
            transaction.rent_changed(rent)

        await w.loop.perform(ask)
        w.clock.at += 600.0
        await FakeAgent(w, "n1", "t", market="spot").register()
        assert ledger(w).total_usd == pytest.approx(1.0)
        assert w.loop.core.cycle.spending.everything.used == pytest.approx(1.0)
    async with world(tmp_path, at=3000.0) as again:
        machine = again.loop.core.ledger.fleet.machine(NodeId("n1"))
        assert machine.paid_since == 0.0
        again.clock.at = 4000.0
        await gone(again, "n1")
        assert ledger(again).total_usd == pytest.approx(12.0)
        rows = again.server.store.charges()
        assert [row.since_at for row in rows[1:]] == [row.until_at for row in rows[:-1]]
        assert again.loop.core.cycle.spending.everything.used == pytest.approx(12.0)


async def test_months_are_those_of_the_calendar(w: World) -> None:
    """A stretch over the end of a month is two rows, and each month's report has its own."""
    assert billing.month_of(0.0) == "1970-01"
    begins = datetime(2027, 1, 1, tzinfo=UTC).timestamp()
    assert billing.next_month_unix_s(begins - 1.0) == begins
    assert [month for month, _, _ in billing.split_by_month(0.0, 70 * 86400.0, begins - 86400.0)] == [
        "2026-12", "2027-01", "2027-02", "2027-03",
    ]  # fmt: skip
    w.live_state.epoch_unix_s = begins - 3600.0
    await declare(w, pool_of("owned", 2.0))
    agent, job_id = await w.running()
    w.clock.at += 3600.0 * 3
    await agent.end(job_id)
    assert [(row.key, row.usd) for row in ledger(w, "month").items] == [
        ("2027-01", pytest.approx(2.0)), ("2026-12", pytest.approx(1.0)),
    ]  # fmt: skip
    assert ledger(w, month="2026-12").total_usd == pytest.approx(1.0)


async def test_people_see_the_money_of_their_projects(face: Face) -> None:
    """`GET /money` sums by what is asked for; who sees one project sees its use and nothing else."""
    w = face.world
    await declare(w, pool_of("spot", 2.0, quota=4))
    agent = await rented(w, "n1")
    await w.submit({"project": "vision"})
    await w.submit({"project": "speech"})
    await agent.start_all()
    w.clock.at += 3600.0
    answer = await face.call("GET", "/api/v1/money?by=user")
    body = MoneyReport.model_validate(json.loads(await answer.text()))
    assert (body.total_usd, body.items[0].key) == (pytest.approx(2.0), "ada")

    token = face.token("bob", UserRole.VIEWER, "vision")
    answer = await face.call("GET", "/api/v1/money", token=token)
    body = MoneyReport.model_validate(json.loads(await answer.text()))
    assert [(row.key, row.usd) for row in body.items] == [("vision", pytest.approx(1.0))]
    assert body.total_usd == pytest.approx(1.0)
    assert (await face.call("GET", "/api/v1/money?by=colour")).status == 400
    assert (await face.call("GET", "/api/v1/money?month=may")).status == 400


@pytest.mark.parametrize("seed", range(8))
async def test_the_ledger_adds_up_to_the_cent_whatever_happens(tmp_path: Path, seed: int) -> None:
    """Random prices, jobs, losses, months, restarts, times without a server: total and use are price x time."""
    random = Random(seed)
    markets = ("owned", "on_demand", "spot")
    price = dict.fromkeys(markets, 1.0)
    expected, used, at = 0.0, 0.0, 27 * 86400.0
    names = iter(range(1000))
    alive: dict[str, str] = {}

    def pass_time(w: World, passed_s: float) -> float:
        """What is paid in these seconds: for machines that are rented, and for the use of those that are owned."""
        nonlocal expected, used
        held = dict.fromkeys(markets, 0)
        for job in w.live_state.jobs.values():
            if job.attempt is not None:
                held[job.attempt.row.pool_id.split("/")[1]] += job.attempt.row.accelerators
        by_use = {market: price[market] * count / 2 * passed_s / 3600.0 for market, count in held.items()}
        rented_usd = sum(price[market] for market in alive.values() if market != "owned") * passed_s / 3600.0
        expected, used = expected + rented_usd + by_use["owned"], used + sum(by_use.values())
        return w.clock.at + passed_s

    for _ in range(3):
        async with world(tmp_path, at=at) as w:
            for market in markets:
                await declare(w, pool_of(market, price[market], quota=9))
            for _ in range(12):
                w.clock.at = pass_time(w, random.choice((0.0, 0.37, 60.0, 3600.0, 40_000.0)))
                match random.randrange(5):
                    case 0:
                        market = random.choice(markets)
                        price[market] = random.choice((0.0, 0.01, 1.0, 3.7, 370.0))
                        await declare(w, pool_of(market, price[market], quota=9))
                    case 1:
                        market, name = random.choice(markets), f"n{next(names)}"
                        await (rented(w, name, market) if market != "owned" else FakeAgent(w, name).register())
                        alive[name] = market
                    case 2 if alive:
                        name = random.choice(list(alive))
                        del alive[name]
                        await gone(w, name, Reason.INFRA_NODE_LOST)
                    case _:
                        count = random.choice((1, 2))
                        await w.submit({"project": random.choice("xy"), "resources": {"accelerators": f"a:{count}"}})
            assert ledger(w).total_usd == pytest.approx(expected, abs=0.005)
            for by in ("project", "user", "job", "pool", "month"):
                found = ledger(w, by)
                assert found.used_usd == pytest.approx(sum(row.usd for row in found.items), abs=1e-6)
                assert found.used_usd == pytest.approx(used, abs=0.005)
                assert found.total_usd == pytest.approx(expected, abs=0.005)
            at = pass_time(w, random.choice((0.0, 900.0)))


BUDGET = {
    **FIFO,
    "rules": {**FIFO["rules"], "budgets": [{"project": "vision", "month_usd": 2.0}]},  # type: ignore[dict-item]
}


async def test_budgets_count_what_was_spent_before_a_restart_and_months_begin_anew(tmp_path: Path) -> None:
    """At the limit the job checkpoints and is held; a restarted server holds it still; a new month lets it go on."""
    async with world(tmp_path, policy=BUDGET) as w:
        await declare(w, pool_of("owned", 2.0))
        agent = await FakeAgent(w, "n1").register()
        job_id = await w.submit({"project": "vision"})
        other = await w.submit({"project": "speech"})
        await agent.start_all()
        await w.advance(5400.0)
    async with world(tmp_path, policy=BUDGET, at=5400.0) as again:
        agent.world = again
        await agent.beat(resync=True)
        await again.advance(1799.0)
        assert again.state(job_id) == "RUNNING"
        await again.advance(2.0)
        assert again.state(job_id) == "PREEMPTING"
        await agent.end(job_id, exit_code=85)
        assert (again.state(job_id), again.state(other)) == ("HELD", "RUNNING")
    async with world(tmp_path, policy=BUDGET, at=7300.0) as third:
        agent.world = third
        await agent.beat(resync=True)
        await third.advance(60.0)
        assert third.state(job_id) == "HELD"
        (line,) = pending_reasons(third.loop.core, job_id)
        assert line.reason is Reason.HOLD_BUDGET
        assert "vision: 2.00 of 2.00 USD spent this month" in line.detail
        third.clock.at += 40 * 86400.0
        await third.loop.perform(begin_month_if_due)
        await third.quiet()
        assert third.state(job_id) == "STARTING"


async def test_budgets_of_users_count_over_projects_restarts_and_policies(tmp_path: Path) -> None:
    """What the user spent before there was a budget counts; a restarted server knows it; the next month opens it."""
    mine = {**FIFO, "rules": {**FIFO["rules"], "budgets": [{"user": "ada", "month_usd": 2.5}]}}  # type: ignore[dict-item]
    async with facing(tmp_path) as face:
        w = face.world
        await declare(w, pool_of("owned", 2.0))
        agent = await FakeAgent(w, "n1").register()
        first = await w.submit({"project": "vision"})
        await w.submit({"project": "speech"}, user="bob")
        await agent.start_all()
        await w.advance(7200.0)
        await agent.end(first)
        assert (await face.json("PUT", "/api/v1/policy", mine))[0] == 200
        second = await w.submit({"project": "speech"})
        await w.quiet()
        assert w.state(second) == "STARTING", "half a dollar is left"
        await agent.start_all()
        await w.advance(1801.0)
        assert w.state(second) == "PREEMPTING"
        await agent.end(second, 1, 85)
    async with world(tmp_path, policy=mine, at=9100.0) as again:
        agent.world = again
        await agent.beat(resync=True)
        third = await again.submit({"project": "vision"})
        await again.quiet()
        assert (again.state(second), again.state(third)) == ("HELD", "PENDING")
        line = pending_reasons(again.loop.core, third)[0]
        assert line.reason is Reason.WAIT_BUDGET
        assert line.detail.startswith("user ada: 2.50 of 2.50 USD spent this month")
        assert "with the next month, in " in line.fix
        again.clock.at += 40 * 86400.0
        await again.loop.perform(begin_month_if_due)
        await again.quiet()
        assert again.loop.core.cycle.spending.closed_to(again.loop.core.ledger.jobs[third]) is None


async def test_a_job_held_for_its_budget_goes_on_once_that_is_raised(tmp_path: Path) -> None:
    """Through the API, for whoever may change the job; a restarted server knows the new budget and what was spent."""
    async with facing(tmp_path) as f:
        w = f.world
        await declare(w, pool_of("owned", 4.0))
        agent, job_id = await w.running({"limits": {"budget_usd": 2.0}})
        await w.advance(3601.0)
        assert w.state(job_id) == "PREEMPTING"
        await agent.end(job_id, exit_code=85)
        assert w.state(job_id) == "HELD"
        (line,) = pending_reasons(w.loop.core, job_id)
        assert f"walras update {job_id} --budget" in line.fix
        path = f"/api/v1/jobs/{job_id}"
        for wrong in ({}, {"budget_usd": 0}, {"budget_usd": -1.0}, {"budget_usd": "5"}):
            assert (await f.call("PATCH", path, wrong)).status == 400
        other = f.token("eve", UserRole.USER, "vision")
        assert (await f.call("PATCH", path, {"budget_usd": 9.0}, token=other)).status in (403, 404)
        assert (await f.call("PATCH", path, {"budget_usd": 1.0})).status == 200
        assert w.state(job_id) == "HELD"
        assert (await f.call("PATCH", path, {"budget_usd": 4.0, "priority": 60})).status == 200
        assert w.state(job_id) == "STARTING"
        now = w.clock.at
    async with world(tmp_path, at=now) as again:
        agent.world = again
        await agent.beat(resync=True)
        record = again.loop.core.ledger.jobs[job_id]
        assert (record.request.budget_usd, record.request.priority) == (4.0, 60)
        await agent.start_all()
        await again.advance(3500.0)
        assert again.state(job_id) == "RUNNING"
        await again.advance(200.0)
        assert again.state(job_id) == "PREEMPTING"


async def test_a_budget_given_to_a_running_job_counts_what_it_has_cost(face: Face) -> None:
    """Half an hour at 2 USD/h, then a budget of 2 USD: it is held after another half hour."""
    w = face.world
    await declare(w, pool_of("owned", 4.0))
    _agent, job_id = await w.running()
    await w.advance(1800.0)
    assert (await face.call("PATCH", f"/api/v1/jobs/{job_id}", {"budget_usd": 2.0})).status == 200
    await w.advance(1790.0)
    assert w.state(job_id) == "RUNNING"
    await w.advance(20.0)
    assert w.state(job_id) == "PREEMPTING"


async def test_who_submits_is_told_what_the_job_is_worth_and_by_whom(face: Face) -> None:
    """Nobody says: a dry run names the price and the remedies. Then the project does, in the policy file."""
    await declare(face.world, pool_of("spot", 2.0, quota=4))
    spec = {"run": "true", "project": "vision", "resources": {"accelerators": "a:2"}}
    walras: dict[str, Any] = {"policy": {"name": "walras"}, "rules": {"resolve_min_s": 1}}
    await face.json("PUT", "/api/v1/policy", walras)
    _, dry = await face.json("POST", "/api/v1/jobs:dryrun", spec)
    assert (dry["reason"], dry["value_by"]) == ("WAIT:PRICE", "")
    assert "no value of an hour is stated for this job" in dry["detail"]
    assert "`rules.values` of the policy for project vision" in dry["detail"]

    walras["rules"]["values"] = [{"project": "vision", "usd_per_h": 5.0}]
    assert (await face.json("PUT", "/api/v1/policy", walras))[0] == 200
    _, dry = await face.json("POST", "/api/v1/jobs:dryrun", spec)
    assert (dry["reason"], dry["value_usd_per_h"], dry["value_by"]) == ("WAIT:CAPACITY", 5.0, "project")
    _, told = await face.json("POST", "/api/v1/jobs", spec)
    _, job = await face.json("GET", f"/api/v1/jobs/{told['id']}")
    assert (job["value_usd_per_h"], job["value_by"]) == (5.0, "project")

    for wrong, field in (
        ([{"project": "vision", "usd_per_h": -1}], "rules.values.0.usd_per_h"),
        ([{"project": "vision", "usd": 1}], "rules.values.0.usd_per_h"),
        ([{"project": "vision", "usd_per_h": 1}, {"project": "vision", "usd_per_h": 2}], "rules.values.1"),
    ):
        walras["rules"]["values"] = wrong
        status, problem = await face.json("PUT", "/api/v1/policy", walras)
        assert (status, problem["field"]) == (400, field)


def test_the_dearest_are_told_apart_with_what_is_open(tmp_path: Path) -> None:
    """What is still open counts: it may lift a job over those that are written. Sums are those without a limit."""
    store = SqliteStore(tmp_path)
    rows = [
        charge(number, float(number), job=number, market="spot" if number % 2 else "owned") for number in range(1, 9)
    ]
    rows.append(charge(9, 1.0, job=1))  # one job on two markets
    rows.append(charge(10, 50.0, node="n1", market="spot"))
    store.commit(WriteBatch(*rows))
    open_now = [MoneySum("2", ChargeKind.USE, True, 100.0, 100.0, 60.0)]

    def report(by: str, limit: int) -> MoneyReport:
        query = MoneyQuery(by, 11, limit=limit)
        opened = open_now if by == "job" else []
        return spending_report(query, [*store.money(query, [each.key for each in opened]), *opened])

    whole, short = report("job", 1000), report("job", 3)
    assert [row.key for row in whole.items] == ["2", "8", "7", "6", "5", "4", "3", "1"]
    assert (whole.rest, whole.rest_of) == (None, 0)
    assert short.items == whole.items[:3]
    assert short.rest_of == 5
    assert short.rest.usd == 6.0 + 5.0 + 4.0 + 3.0 + 2.0
    for name in ("used_usd", "idle_usd", "total_usd", "on_demand_usd"):
        assert getattr(short, name) == getattr(whole, name)
    pools, dearest = report("pool", 1000), report("pool", 1)
    assert [row.key for row in pools.items] == ["x/spot", "x/owned"]
    assert (dearest.items, dearest.rest.usd) == (pools.items[:1], pools.items[1].usd)
    store.close()


async def test_a_long_ledger_is_answered_by_job(face: Face) -> None:
    """The thousand dearest apart, the others as one sum. How long it takes: `python -m benchmarks ledger`."""
    many = 1_730
    charges = [charge(number, 1.0 + number % 97, job=number) for number in range(1, many + 1)]
    face.world.server.store.commit(WriteBatch(*charges))
    face.world.live_state.next_charge_id = many + 1
    status, found = await face.json("GET", "/api/v1/money?by=job")
    assert (status, len(found["items"]), found["rest_of"]) == (200, 1000, many - 1000)
    assert found["total_usd"] == sum(each.usd for each in charges)
    assert min(row["usd"] for row in found["items"]) >= found["rest"]["usd"] / found["rest_of"]
    assert (await face.json("GET", "/api/v1/money?by=job&limit=0"))[0] == 400
