"""A disk that is full at the server: nothing ends, nothing is lost, leases are renewed, and it recovers by itself."""

import asyncio
import errno
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from scheduler.live.loop import event_loop
from scheduler.live.services import agent_gateway
from scheduler.live.store.data_folder import LogStore
from scheduler.live.store.sqlite_store import SqliteStore
from scheduler.live.store.store_interface import StoreUnavailable, WriteBatch
from scheduler.live.store.table_rows import JournalRow
from tests.support.live_world import FakeAgent, World, world


class FullDisk:
    """Refuses commits while it is full, as the real one does: after the batch was given, before anything is kept."""

    def __init__(self, running: World) -> None:
        self._commit = running.loop._store.commit
        self.is_full = False
        self.refused = 0
        running.loop._store.commit = self._take  # type: ignore[method-assign]

    def _take(self, batch: WriteBatch) -> None:
        if self.is_full:
            self.refused += 1
            raise StoreUnavailable("walras.db cannot be written: database or disk is full")
        self._commit(batch)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "_RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(event_loop, "_RETRY_MOST_S", 0.01)
    monkeypatch.setattr(agent_gateway, "_STUCK_PACE_S", 0.0)


async def settle(running: World) -> None:
    """Until the database takes writes again and all is quiet."""
    while True:
        try:
            await running.quiet()
            return
        except StoreUnavailable:
            await asyncio.sleep(0.005)


async def test_a_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    """Who waits is told within a moment; what was under way is written once there is room; the next is taken."""
    async with world(tmp_path) as running:
        disk = FullDisk(running)
        disk.is_full = True
        with pytest.raises(StoreUnavailable, match="disk is full"):
            await running.submit({"name": "first"})
        with pytest.raises(StoreUnavailable, match="Idempotency-Key"):
            await running.submit({"name": "second"})
        with pytest.raises(StoreUnavailable):
            await running.loop.settled()
        assert running.server.store.job_named("ada", "first") is None
        disk.is_full = False
        await settle(running)
        assert running.server.store.job_named("ada", "first") == 1
        assert running.server.store.job_named("ada", "second") is None
        assert await running.submit({"name": "third"}) == 2


async def test_steps_in_the_inbox_whose_callers_were_told_are_not_taken_later(tmp_path: Path) -> None:
    """They wait behind the stuck batch, are refused with it, and may be sent again."""
    async with world(tmp_path) as running:
        disk = FullDisk(running)
        disk.is_full = True
        first = asyncio.ensure_future(running.submit({"name": "first"}))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        late = asyncio.ensure_future(running.submit({"name": "late"}))
        told = await asyncio.gather(first, late, return_exceptions=True)
        assert [type(each) for each in told] == [StoreUnavailable] * 2
        disk.is_full = False
        await settle(running)
        assert running.server.store.job_named("ada", "late") is None


async def test_steps_that_nobody_waits_for_are_kept(tmp_path: Path) -> None:
    """What the world did must be known, if later."""
    async with world(tmp_path) as running:
        disk = FullDisk(running)
        disk.is_full = True
        with pytest.raises(StoreUnavailable):
            await running.submit({})
        taken: list[Any] = []
        running.loop.perform_soon(lambda transaction: taken.append(transaction.at))
        await asyncio.sleep(0.02)
        assert taken == []
        disk.is_full = False
        await settle(running)
        assert len(taken) == 1


async def test_leases_are_renewed_while_nothing_can_be_written(tmp_path: Path) -> None:
    """The job runs on: no stop, no fence, no report acknowledged; its end is taken afterwards."""
    async with world(tmp_path) as running:
        agent = await FakeAgent(running, "n1").register()
        job_id = await running.submit({})
        await running.quiet()
        await agent.start_all()
        disk = FullDisk(running)
        disk.is_full = True
        with pytest.raises(StoreUnavailable):
            await running.submit({})
        for _ in range(6):
            running.clock.at += 10.0  # the lease is 20 s
            answer = await agent.beat()
            assert (answer.commands, answer.fenced, answer.reports_acked) == ([], [], 0)
            assert running.live_state.nodes["n1"].leased_until == running.clock.at + 20.0
        ended = {"type": "ended", "job_id": job_id, "attempt": 1, "cause": "exited", "exit_code": 0}
        assert (await agent.beat(ended)).reports_acked == 0
        disk.is_full = False
        await settle(running)
        agent.next_report -= 1
        assert (await agent.beat(ended)).reports_acked > 0
        await running.quiet()
        assert running.state(job_id) == "SUCCEEDED"


async def _life(agent: FakeAgent) -> str:
    """The agent learns the life of the server, as each start of it does by its first call."""
    return (await agent.beat(session="s1", call=1)).life


async def _lose_unwritten(running: World, agent: FakeAgent, disk: FullDisk) -> None:
    """The machine falls silent for longer than its leases, and the disk is full when the server notices."""
    running.clock.at += 30.0
    await running.loop.perform(running.server.gateway.notice_silence)
    running.clock.at += 30.0
    disk.is_full = True
    with pytest.raises(StoreUnavailable):
        await running.loop.perform(running.server.gateway.notice_silence)
    assert not running.live_state.nodes["n1"].is_member


@pytest.mark.parametrize("other", [{"call": 1, "life": ""}, {"call": 2}, {"call": 9}])
async def test_a_machine_whose_loss_is_not_written_yet_is_neither_renewed_nor_fenced(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    """Once it is written its jobs may run elsewhere; if the server dies before, it was never lost. Whatever its agent
    calls is told to wait: a call that names no life of this server, one that was overtaken, and a plain one."""
    async with world(tmp_path) as running:
        agent = await FakeAgent(running, "n1").register()
        call = {"session": "s1", "life": await _life(agent)}
        await running.submit({})
        await agent.beat(call=3, **call)
        disk = FullDisk(running)
        await _lose_unwritten(running, agent, disk)
        with pytest.raises(StoreUnavailable):
            await agent.beat(**call | other)
        disk.is_full = False
        await settle(running)
        assert agent.here
        await agent.beat(**call | other)
        assert not agent.here, "a machine that is lost is told to stop what it has, by whichever call"


def test_the_failures_of_sqlite_and_of_the_disk_have_one_name(tmp_path: Path) -> None:
    """A full disk (here: a database that may not grow) and a lock; the chain does not go on without the rows."""
    store = SqliteStore(tmp_path)
    connection: sqlite3.Connection = store._db.conn
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    big = WriteBatch(journal=[JournalRow(1.0, "event", "Woke", "x" * 100_000)])
    with pytest.raises(StoreUnavailable, match="full"):
        store.commit(big)
    connection.execute(f"PRAGMA max_page_count = {pages + 1000}")
    other = sqlite3.connect(tmp_path / "walras.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    connection.execute("PRAGMA busy_timeout = 10")
    with pytest.raises(StoreUnavailable, match="locked"):
        store.commit(big)
    other.execute("ROLLBACK")
    other.close()
    store.commit(big)
    store.close()
    SqliteStore(tmp_path).close()


def test_a_full_log_folder_is_told_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent keeps the bytes and sends them again."""
    logs = LogStore(tmp_path, 1000)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", full)
        with pytest.raises(StoreUnavailable, match="No space left"):
            logs.append(1, 1, 0, 0, b"abc")
    assert logs.append(1, 1, 0, 0, b"abc").next_offset == 3
