"""A disk that is full at the server: nothing ends, nothing is lost, leases are renewed, and it recovers by itself."""

import asyncio
import errno
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from scheduler.live import main
from scheduler.live.loop import event_loop
from scheduler.live.loop.event_loop import Overloaded
from scheduler.live.services import agent_gateway
from scheduler.live.store.data_folder import LogPlace, LogStore
from scheduler.live.store.event_journal import replay_journal
from scheduler.live.store.sqlite_store import SqliteStore
from scheduler.live.store.store_interface import StoreUnavailable, WriteBatch
from scheduler.live.store.table_rows import JournalRow
from tests.support.http_face import Face
from tests.support.live_world import FakeAgent, World


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


async def test_a_full_disk_refuses_and_recovers(w: World) -> None:
    """Who waits is told within a moment; what was under way is written once there is room; the next is taken."""
    disk = FullDisk(w)
    disk.is_full = True
    with pytest.raises(StoreUnavailable, match="disk is full"):
        await w.submit({"name": "first"})
    with pytest.raises(StoreUnavailable, match="Idempotency-Key"):
        await w.submit({"name": "second"})
    with pytest.raises(StoreUnavailable):
        await w.loop.settled()
    assert w.server.store.job_named("ada", "first") is None
    disk.is_full = False
    await settle(w)
    assert w.server.store.job_named("ada", "first") == 1
    assert w.server.store.job_named("ada", "second") is None
    assert await w.submit({"name": "third"}) == 2
    assert replay_journal(w.server.store.journal()).identical


async def test_steps_in_the_inbox_whose_callers_were_told_are_not_taken_later(w: World) -> None:
    """They may be sent again; what the world did, for which nobody waits, is kept."""
    disk = FullDisk(w)
    disk.is_full = True
    first = asyncio.ensure_future(w.submit({"name": "first"}))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    late = asyncio.ensure_future(w.submit({"name": "late"}))
    told = await asyncio.gather(first, late, return_exceptions=True)
    assert [type(each) for each in told] == [StoreUnavailable] * 2
    disk.is_full = False
    await settle(w)
    assert w.server.store.job_named("ada", "late") is None
    disk.is_full = True
    with pytest.raises(StoreUnavailable):
        await w.submit({})
    taken: list[Any] = []
    w.loop.perform_soon(lambda transaction: taken.append(transaction.at))
    await asyncio.sleep(0.02)
    assert taken == []
    disk.is_full = False
    await settle(w)
    assert len(taken) == 1


async def test_a_batch_whose_later_turn_cannot_be_written_goes_on_from_there(face: Face) -> None:
    """Sent again with its key, it has each job once: those of the turn before, and those of the turn that was stuck."""
    disk = FullDisk(face.world)
    commit = disk._commit

    def fill(batch: WriteBatch) -> None:
        commit(batch)
        disk.is_full = True

    disk._commit = fill
    jobs = {"jobs": [{"run": "true", "hold": True}] * 40}
    status, told = await face.json("POST", "/api/v1/jobs:batch", jobs, key="b1")
    assert (status, told["code"]) == (503, "store_unavailable")
    disk._commit, disk.is_full = commit, False
    await settle(face.world)
    known = len((await face.got("/jobs"))["items"])
    assert 0 < known < 40
    for _ in range(2):
        status, told = await face.json("POST", "/api/v1/jobs:batch", jobs, key="b1")
        assert (status, [item["id"] for item in told["items"]]) == (200, list(range(1, 41)))
    assert len((await face.got("/jobs"))["items"]) == 40
    assert replay_journal(face.world.server.store.journal()).identical


async def test_leases_are_renewed_while_nothing_can_be_written(w: World, agent: FakeAgent) -> None:
    """The job runs on: no stop, no fence, no report acknowledged; its end is taken afterwards."""
    job_id = await w.submit({})
    await w.quiet()
    await agent.start_all()
    disk = FullDisk(w)
    disk.is_full = True
    with pytest.raises(StoreUnavailable):
        await w.submit({})
    for _ in range(6):
        w.clock.at += 10.0  # the lease is 20 s
        answer = await agent.beat()
        assert (answer.commands, answer.fenced, answer.reports_acked) == ([], [], 0)
        assert w.live_state.nodes["n1"].leased_until == w.clock.at + 20.0
    ended = {"type": "ended", "job_id": job_id, "attempt": 1, "cause": "exited", "exit_code": 0}
    assert (await agent.beat(ended)).reports_acked == 0
    disk.is_full = False
    await settle(w)
    agent.next_report -= 1
    assert (await agent.beat(ended)).reports_acked > 0
    await w.quiet()
    assert w.state(job_id) == "SUCCEEDED"


async def _life(agent: FakeAgent) -> str:
    """The agent learns the life of the server, as each start of it does by its first call."""
    return (await agent.beat(session="s1", call=1)).life


async def test_a_machine_that_lost_its_ranks_meanwhile_says_so_again(w: World, agent: FakeAgent) -> None:
    """What it told while nothing could be written was not taken: it does not hold for told."""
    job_id = await w.submit({})
    await w.quiet()
    await agent.start_all()
    call = {"session": "s1", "life": await _life(agent), "tools": ["uv"], "data": []}
    disk = FullDisk(w)
    disk.is_full = True
    with pytest.raises(StoreUnavailable):
        await w.submit({})
    agent.here.clear()
    assert (await agent.beat(resync=True, call=2, **call)).life != call["life"]
    disk.is_full = False
    await settle(w)
    assert (await agent.beat(resync=True, call=3, **call)).life == call["life"]
    await w.quiet()
    assert w.live_state.attempt(job_id, 1) is None
    assert "uv" in w.live_state.nodes["n1"].row.tools


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
    w: World, agent: FakeAgent, other: dict[str, Any]
) -> None:
    """Whatever its agent calls is told to wait: if the server dies before it is written, it was never lost."""
    call = {"session": "s1", "life": await _life(agent)}
    await w.submit({})
    await agent.beat(call=3, **call)
    disk = FullDisk(w)
    await _lose_unwritten(w, agent, disk)
    with pytest.raises(StoreUnavailable):
        await agent.beat(**call | other)
    disk.is_full = False
    await settle(w)
    assert agent.here
    await agent.beat(**call | other)
    assert not agent.here, "a machine that is lost is told to stop what it has, by whichever call"


def test_the_failures_of_sqlite_and_of_the_disk_have_one_name(tmp_path: Path) -> None:
    """A full disk (here: a database that may not grow) and a lock; the chain does not go on without the rows."""
    store = SqliteStore(tmp_path)
    connection: sqlite3.Connection = store._db.conn
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    big = WriteBatch(JournalRow(1.0, "event", "Woke", "x" * 100_000))
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


@pytest.mark.parametrize("refusal", [StoreUnavailable("full"), Overloaded("too much to do")])
async def test_a_watch_whose_step_is_refused_begins_again_and_ends_no_server(
    refusal: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "_WATCH_AGAIN_S", 0.0)
    refusals = [refusal, refusal]

    async def watch() -> None:
        if refusals:
            raise refusals.pop()

    await main.through_full_disks(watch)
    assert not refusals


def test_a_full_log_folder_is_told_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent keeps the bytes and sends them again."""
    logs = LogStore(tmp_path, 1000)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", full)
        with pytest.raises(StoreUnavailable, match="No space left"):
            logs.append(LogPlace(1, 1, 0), 0, b"abc")
    assert logs.append(LogPlace(1, 1, 0), 0, b"abc").next_offset == 3
