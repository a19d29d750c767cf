"""Budgets in hours, of groups and by period on a server: the calendar, restarts, credits, and who sees what."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.budget_limits import BudgetOwner, BudgetUnit, MeteredLimit
from scheduler.core.events import PoolDeclared
from scheduler.core.explain.pending_reasons import pending_reasons
from scheduler.core.explain.share_standing import budget_standings
from scheduler.live.auth.access_control import UserRole
from scheduler.live.loop.budget_sums import BudgetBooks, UseRow, period_of
from scheduler.live.loop.recurring_steps import begin_month_if_due
from scheduler.live.store.event_journal import replay_journal
from scheduler.live.store.sqlite_store import read_stored_journal
from tests.support.http_face import facing
from tests.support.live_world import EPOCH_UNIX_S, FIFO, FakeAgent, world
from walras.cluster import Market, Pool, PoolId, Shape
from walras.states import Reason

pytestmark = pytest.mark.sql

DAY_S, HOUR = 86_400.0, 3600.0
API = "/api/v1/budgets"
AX2 = Shape("ax2", "a", 2, 8.0, 1 << 34)
OWNED = Pool(PoolId("ax2/owned/default"), AX2, Market.OWNED, "default", 0.0)


def with_budgets(*budgets: dict[str, Any]) -> dict[str, Any]:
    rules: Any = FIFO["rules"]
    return {**FIFO, "rules": {**rules, "budgets": list(budgets), "groups": [{"name": "team", "users": ["ada", "bob"]}]}}


#: From the day on that the test's clock shows, so that no test runs over its end.
TODAY = datetime.fromtimestamp(EPOCH_UNIX_S, UTC).date().isoformat()
FORTNIGHT = with_budgets({"group": "team", "accelerator_h": 3.0, "every": "14d", "starts": TODAY})


def limit(every: str, starts: str = "") -> MeteredLimit:
    return MeteredLimit(BudgetOwner(user="ada"), BudgetUnit.ACCELERATOR_H, every, 1.0, 0.8, starts)


@pytest.mark.parametrize(
    ("every", "starts", "begins", "ends"),
    [
        ("day", "", "2026-11-24", "2026-11-25"), ("week", "", "2026-11-23", "2026-11-30"),
        ("month", "", "2026-11-01", "2026-12-01"), ("quarter", "", "2026-10-01", "2027-01-01"),
        ("14d", "2026-12-01", "2026-11-17", "2026-12-01"), ("14d", "2026-11-20", "2026-11-20", "2026-12-04"),
        ("2w", "", "2026-11-23", "2026-12-07"),
    ],
)  # fmt: skip
def test_periods_begin_and_end_at_midnight(every: str, starts: str, begins: str, ends: str) -> None:
    """Of the calendar, or of a length from a date on, forwards and back; the last instant belongs to it."""
    instants = [datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp() for day in (begins, ends)]
    for now in ("2026-11-24T00:00:00+00:00", "2026-11-24T23:59:59+00:00"):
        assert period_of(limit(every, starts), datetime.fromisoformat(now).timestamp()) == tuple(instants)
    assert datetime.fromtimestamp(instants[0], UTC).hour == 0


def test_use_over_midnight_counts_on_both_days() -> None:
    """Three hours of two accelerators, one of them after midnight: the day that has begun has two hours of use."""
    books = BudgetBooks(limits=(limit("day"),))
    books.add(UseRow("vision", "ada", 22 * HOUR, 25 * HOUR, 6.0, 6 * HOUR, 3 * HOUR))
    books.add(UseRow("vision", "bob", 24 * HOUR, 25 * HOUR, 6.0, 6 * HOUR, 3 * HOUR))
    (state,) = books.stated(25 * HOUR, 0.0)
    assert (state.used, state.refills_at) == (pytest.approx(2.0), 48 * HOUR)


async def test_a_groups_hours_survive_a_restart_and_are_filled_again(tmp_path: Path) -> None:
    """Both users' jobs are held at the limit; a fresh server knows what was used before; then they go on."""
    async with world(tmp_path, policy=FORTNIGHT) as w:
        await w.emit(lambda at: PoolDeclared(at, OWNED))
        agent = await FakeAgent(w, "n1").register()
        first, second = await w.submit({"project": "vision"}), await w.submit({"project": "speech"}, user="bob")
        await agent.start_all()
        await w.advance(HOUR)
        (standing,) = budget_standings(w.loop.core, w.clock.at)
        assert (standing.used, standing.per_h) == (pytest.approx(2.0, abs=0.01), 2.0)
    async with world(tmp_path, policy=FORTNIGHT, at=w.clock.at) as again:
        agent.world = again
        await agent.beat(resync=True)
        await again.advance(1790.0)
        assert again.state(first) == "RUNNING"
        await again.advance(20.0)
        assert {again.state(first), again.state(second)} == {"PREEMPTING"}
        await agent.end(first, exit_code=85)
        await agent.end(second, exit_code=85)
        third = await again.submit({"project": "vision"})
        await again.quiet()
        line = pending_reasons(again.loop.core, third)[0]
        assert line.reason is Reason.WAIT_BUDGET
        assert line.detail.startswith("group team: 3.0")
        assert "when it is filled again, in " in line.fix
        again.clock.at = again.live_state.budgets.refill_unix_s - again.live_state.epoch_unix_s + 60.0
        await again.loop.perform(begin_month_if_due)
        await again.quiet()
        assert sum(again.state(job_id) == "STARTING" for job_id in (first, second, third)) == 2


@pytest.mark.sqlite_file
async def test_a_credit_is_kept_audited_shown_and_replayed(tmp_path: Path) -> None:
    """Administrators add to a budget that there is; a job waits before and starts after; a restart has it still."""
    mine = with_budgets({"project": "vision", "usd": 0.0}, {"user": "bob", "fair_share_h": 5.0, "every": "quarter"})
    async with facing(tmp_path, policy=mine) as face:
        w = face.world
        await w.emit(lambda at: PoolDeclared(at, replace(OWNED, usd_per_h=2.0)))
        await FakeAgent(w, "n1").register()
        job_id = await w.submit({"project": "vision"})
        assert w.state(job_id) == "PENDING"
        status, told = await face.json("POST", f"{API}/credits", {"project": "speech", "usd": 5.0})
        assert status == 409
        assert "speech has no budget in USD" in str(told)
        for wrong in ({"usd": 5, "accelerator_h": 5}, {"usd": -1}, {"usd": 5, "user": "a", "group": "b"}, {}):
            assert (await face.json("POST", f"{API}/credits", wrong))[0] == 400
        ada = face.token("ada", UserRole.OPERATOR, "vision")
        assert (await face.json("POST", f"{API}/credits", {"project": "vision", "usd": 5.0}, token=ada))[0] == 403
        status, made = await face.json("POST", f"{API}/credits", {"project": "vision", "usd": 5.0, "reason": "paid"})
        assert (status, made["whose"], made["amount"]) == (201, "vision", 5.0)
        await w.quiet()
        assert w.state(job_id) == "STARTING"
        seen = (await face.json("GET", API, token=ada))[1]
        assert [(each["whose"], each["limit"], each["credited"]) for each in seen] == [("vision", 5.0, 5.0)]
        both = (await face.json("GET", API))[1]
        assert [(each["whose"], each["unit"], each["every"]) for each in both] == [
            ("vision", "usd", ""),
            ("user bob", "fair_share_h", "quarter"),
        ]
        audit = (await face.json("GET", "/api/v1/audit"))[1]
        assert (audit[0]["subject"], audit[0]["after"]["amount"]) == ("credit 1", 5.0)
    async with world(tmp_path, policy=mine, at=w.clock.at) as again:
        standing = next(each for each in budget_standings(again.loop.core, again.clock.at) if each.owner.project)
        assert (standing.limit, standing.credit) == (5.0, 5.0)
    assert replay_journal(read_stored_journal(tmp_path)).identical


async def test_money_is_summed_by_team(tmp_path: Path) -> None:
    """Users of a group are one row; who is in none is another."""
    async with facing(tmp_path, policy=FORTNIGHT) as face:
        w = face.world
        await w.emit(lambda at: PoolDeclared(at, replace(OWNED, usd_per_h=2.0)))
        agent = await FakeAgent(w, "n1").register()
        other = await FakeAgent(w, "n2").register()
        for user in ("ada", "bob", "cleo"):
            await w.submit({"project": "vision"}, user=user)
        await agent.start_all()
        await other.start_all()
        w.clock.at += HOUR
        body = json.loads(await (await face.call("GET", "/api/v1/money?by=team")).text())
        found = {row["key"]: row["usd"] for row in body["items"]}
        assert found == {"team": pytest.approx(2.0), "": pytest.approx(1.0)}
        assert body["by"] == "team"
