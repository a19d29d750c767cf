"""What a restarted server knows, and what a journal proves, also one of an earlier version."""

import gzip
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from math import inf
from pathlib import Path

import pytest

from optimizer.registry import names
from scheduler.core.events import (
    JobCancelled,
    JobHeld,
    JobReleased,
    NodeLeaving,
    NodeUncordoned,
    PoolDeclared,
    RentFailed,
    Woke,
)
from scheduler.live.loop.event_loop import Clock
from scheduler.live.loop.recurring_steps import keep_core_state
from scheduler.live.services.agent_gateway import declare_node_lost
from scheduler.live.services.policy_service import PolicyWish
from scheduler.live.store.event_journal import decode_event, encode_event, replay_journal
from scheduler.live.store.sqlite_store import read_stored_journal
from scheduler.live.store.table_rows import JournalRow
from tests.support.live_world import FakeAgent, World, world
from walras.clocks import Clocks
from walras.cluster import Market, NodeId, Pool, PoolId, Shape
from walras.errors import JobSpecError
from walras.job_request import Kind
from walras.states import Reason

pytestmark = pytest.mark.sql

SHARES = {
    "policy": {"name": "max_min_fairness", "parameters": {"aware": True}},
    "rules": {
        "round_s": 10.0, "resolve_min_s": 1.0, "min_runtime_s": 1.0, "restart_default_s": 0.1, "hysteresis": 0.1,
        "delay_usd_per_h": 100.0, "rent_keep_s": 5.0, "profiling_s": 1.0,
    },
}  # fmt: skip
SPOT = {
    "shape": "sx1", "accelerator": "s", "accelerators": 1, "cpus": 8, "memory": "16GB", "market": "spot",
    "provider": "local", "usd_per_h": 0.5, "quota": 1, "nominal_speed": 5,
}  # fmt: skip
CLUSTER = {"pools": [SPOT]}


async def test_a_killed_server_comes_back_with_the_core_it_had(tmp_path: Path) -> None:
    """Running, waiting and ended jobs, checkpoints, unconfirmed commands: all there; nothing is started twice."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").register()
        first, second = await w.submit({}), await w.submit({"resources": {"accelerators": "a:2"}})
        await agent.start_all()
        await agent.beat(agent.committed(first, 1, 10.0))
    async with world(tmp_path) as again:
        agent.world = again
        assert again.server.gateway.node_of(agent.credential) == "n1"
        answer = await agent.beat(resync=True)
        assert (answer.fenced, answer.commands) == ([], [])
        assert (again.state(first), again.state(second)) == ("RUNNING", "PENDING")
        await agent.end(first)
        assert again.state(first) == "SUCCEEDED"
        assert [(s.job_id, s.attempt) for s in await agent.start_all()] == [(second, 1)]
        assert await again.submit({}) == second + 1


async def test_unconfirmed_commands_go_out_again_by_their_ids(tmp_path: Path) -> None:
    """A start command that may or may not have arrived is repeated with its id, and launches from the stored spec."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").register()
        await w.submit({"run": ["echo", "hi"]})
        before = await agent.beat(ack=False)
    async with world(tmp_path) as again:
        agent.world = again
        after = await agent.beat(resync=True, ack=False)
        assert [c.command_id for c in after.commands] == [c.command_id for c in before.commands]
        assert after.commands[0].argv == ["echo", "hi"]  # type: ignore[union-attr]
        assert again.live_state.next_command_id > after.commands[-1].command_id


async def test_every_stage_of_a_job_survives_a_restart(tmp_path: Path) -> None:
    """Held, blocked, half-prepared, stopping, cancelling, retried: each goes on where it was."""
    async with world(tmp_path) as w:
        one, two = await FakeAgent(w, "n1").register(), await FakeAgent(w, "n2").register()
        gang = await w.submit({"num_nodes": 2, "resources": {"accelerators": "a:4"}})
        await one.beat()
        await two.beat()
        prepared = {"type": "prepared", "job_id": gang, "attempt": 1, "address": "10.0.0.1", "port": 99}
        first, second = (one, two) if one.commands[0].node_rank == 0 else (two, one)
        await first.beat(prepared)
        held, blocked = await w.submit({"hold": True}), await w.submit({"depends_on": [gang]})
    async with world(tmp_path) as again:
        first.world = second.world = again
        assert [again.state(job_id) for job_id in (gang, held, blocked)] == ["STARTING", "HELD", "PENDING"]
        await second.beat({**prepared, "address": "", "port": 0})
        starts = [*await first.start_all(), *await second.start_all()]
        assert {start.master_address for start in starts} == {"10.0.0.1"}
        assert again.state(gang) == "RUNNING"
        await again.emit(lambda at: JobHeld(at, gang))
    async with world(tmp_path) as third:
        first.world = second.world = third
        assert third.state(gang) == "PREEMPTING"
        await first.end(gang, exit_code=None, signal=15)
        await second.end(gang, exit_code=None, signal=15)
        assert [third.state(job_id) for job_id in (gang, held, blocked)] == ["HELD", "HELD", "PENDING"]
        await third.emit(lambda at: JobReleased(at, held))
        (start,) = [*await first.start_all(), *await second.start_all()]
        assert (start.job_id, start.attempt) == (held, 1)


async def test_a_gang_of_which_one_machine_was_lost_and_is_back_with_another_job_survives_a_restart(
    tmp_path: Path,
) -> None:
    """The rest of the gang is still being stopped; its former accelerators there are another job's."""
    async with world(tmp_path) as w:
        one, two = await FakeAgent(w, "n1").register(), await FakeAgent(w, "n2").register()
        gang = await w.submit({"num_nodes": 2, "resources": {"accelerators": "a:4"}})
        for agent in (one, two):
            await agent.beat()
        prepared = {"type": "prepared", "job_id": gang, "attempt": 1, "address": "10.0.0.1", "port": 99}
        for agent in (one, two):
            await agent.beat(prepared)
        for agent in (one, two):
            await agent.start_all()
        assert w.state(gang) == "RUNNING"
        other = await w.submit({"resources": {"accelerators": "a:2"}})
        await w.loop.perform(lambda step: declare_node_lost(step, NodeId("n2"), Reason.INFRA_NODE_LOST))
        back = await FakeAgent(w, "n2").register()
        assert [start.job_id for start in await back.start_all()] == [other]
    async with world(tmp_path) as again:
        one.world = back.world = again
        assert again.state(other) == "RUNNING"
        await one.end(gang, exit_code=None, signal=15)
        assert again.state(gang) == "PENDING"


async def test_machines_and_requests_for_them_survive_a_restart(tmp_path: Path) -> None:
    """A drained machine stays drained, a silent one silent; a machine that was asked for is still awaited."""
    async with world(tmp_path, policy=SHARES, cluster=CLUSTER) as w:
        for name in ("n1", "n2", "n3"):
            await FakeAgent(w, name).register()
        await w.emit(lambda at: NodeLeaving(at, NodeId("n1"), inf, Reason.HOLD_ADMIN))
        w.clock.at += 16.0
        w.live_state.nodes["n1"].heard_at = w.live_state.nodes["n2"].heard_at = w.clock.at
        await w.loop.perform(w.server.gateway.notice_silence)
        for _ in range(8):
            await w.submit({"resources": {"accelerators": "s:1"}, "value_usd_per_h": 90.0})
        await w.advance(3.0)
        assert len(w.live_state.rents) == 1
    async with world(tmp_path, policy=SHARES, cluster=CLUSTER) as again:
        assert [again.live_state.nodes[n].shown_state for n in ("n1", "n2", "n3")] == ["drained", "up", "unreachable"]
        token = next(iter(again.live_state.rents))
        await again.advance(5.0)
        assert list(again.live_state.rents) == [token]  # awaited: not asked for a second time
        spot = {"shape": "sx1", "accelerator": "s", "accelerators": 1, "memory_bytes": 16 * 10**9, "nominal_speed": 5}
        rented = await FakeAgent(again, "spot-1", token, market="spot", **spot).register()
        assert len(await rented.start_all()) == 1


async def test_what_was_measured_is_known_after_a_restart(tmp_path: Path) -> None:
    """Speeds, restart costs, money and the id of the next job."""
    async with world(tmp_path) as w:
        agent, job_id = await w.running({"profile": "cnn"})
        await agent.beat(agent.progress(job_id, 1, 5.0, steps_per_s=4.0, start_s=1.5))
        await agent.beat(agent.committed(job_id, 1, 5.0))
        await agent.end(job_id)
    async with world(tmp_path) as again:
        ledger = again.server.core.ledger
        assert ledger.table.speed(Kind("cnn"), "a", 1, {}).steps_per_s == 4.0
        assert ledger.costs.restart_s(Kind("cnn"), 60.0) == 1.5
        assert await again.submit({}) == job_id + 1


async def _busy_stretch(w: World) -> None:
    """Every kind of command, and many events."""
    agents = [await FakeAgent(w, name).register() for name in ("n1", "n2")]
    gang = await w.submit({"num_nodes": 2, "resources": {"accelerators": "a:4"}})
    for agent in agents:
        await agent.beat()
        await agent.beat({"type": "prepared", "job_id": gang, "attempt": 1, "address": "10.0.0.1", "port": 99})
    for agent in agents:
        await agent.start_all()
        await agent.end(gang)
    jobs = [await w.submit({"profile": f"k{i % 2}", "steps": 1e6, "value_usd_per_h": 50.0}) for i in range(6)]
    await w.advance(2.0)
    for _ in range(12):
        for agent in agents:
            await agent.start_all()
            reports = []
            for job_id, attempt in list(agent.here):
                reports.append(agent.progress(job_id, attempt, w.clock.at, steps_per_s=5.0, samples=2, start_s=0.5))
                reports += [agent.committed(job_id, attempt, w.clock.at + step / 100) for step in range(25)]
            await agent.beat(*reports)
            stops = [c for c in agent.commands if c.type == "stop" and (c.job_id, c.attempt) in agent.here]
            for stop in stops:
                await agent.end(stop.job_id, stop.attempt, exit_code=None, signal=15)
        await w.advance(3.0)
    tokens = list(w.live_state.rents)
    assert tokens, "nothing was rented"
    spot = {"shape": "sx1", "accelerator": "s", "accelerators": 1, "memory_bytes": 16 * 10**9, "nominal_speed": 5}
    rented = await FakeAgent(w, "spot-1", tokens[0], market="spot", **spot).register()
    await w.advance(1.0)
    await rented.start_all()
    await w.emit(lambda at: NodeLeaving(at, NodeId("n2"), inf, Reason.HOLD_ADMIN))
    await w.emit(lambda at: NodeUncordoned(at, NodeId("n2")))
    for job_id in jobs:
        await _cancel(w, job_id)
    for agent in (*agents, rented):
        await agent.beat()
        for job_id, attempt in list(agent.here):
            await agent.end(job_id, attempt, exit_code=None, signal=15)
    for _ in range(8):
        await w.advance(6.0)
    await w.loop.perform(lambda transaction: declare_node_lost(transaction, NodeId("spot-1"), Reason.INFRA_NODE_LOST))


async def _cancel(w: World, job_id: int) -> None:
    await w.emit(lambda at: JobCancelled(at, job_id))  # type: ignore[arg-type]


@pytest.mark.sqlite_file
async def test_a_long_journal_with_every_command_replays_to_identical_commands(tmp_path: Path) -> None:
    """More than 1,000 events and every command type: identical through a fresh core; without one event, not."""
    async with world(tmp_path, policy=SHARES, cluster=CLUSTER) as w:
        await _busy_stretch(w)
    rows = list(read_stored_journal(tmp_path))
    report = replay_journal(rows)
    assert report.identical, report.differences
    assert report.events > 1000
    assert set(report.command_types) == {
        "WakeAt", "Solve", "Prepare", "Start", "Revoke", "Rent", "ReleaseNode", "JobTransitioned",
        "AttemptTransitioned", "NodeCordoned", "CheckpointEvery",
    }  # fmt: skip
    for kind in ("JobSubmitted", "NodeJoined", "Solved", "AttemptEnded"):
        place = next(i for i, row in enumerate(rows) if row.type == kind)
        assert not replay_journal([*rows[:place], *_without_its_commands(rows[place:])]).identical, kind


def _without_its_commands(rows: list[JournalRow]) -> list[JournalRow]:
    """The rows after the first event and its commands."""
    rest = rows[1:]
    while rest and rest[0].kind == "command":
        rest = rest[1:]
    return rest


def test_events_come_back_as_they_were_written() -> None:
    """Infinite instants, enums, nested values and tuples survive the journal exactly."""
    pool = Pool(PoolId("s"), Shape("s", "s", 1, 1.5, 1 << 40, 0.1 + 0.2), Market.SPOT, "z", 0.1, 3, 1e-9)
    for event in (
        NodeLeaving(1.1, NodeId("n"), inf, Reason.HOLD_ADMIN),
        PoolDeclared(0.1 + 0.2, pool),
        RentFailed(1e9, "t", "ünïcode \x00"),
        Woke(-0.0),
    ):
        assert decode_event(encode_event(event)) == event


@pytest.mark.sqlite_file
async def test_a_back_off_and_what_is_owed_outlive_the_server(tmp_path: Path) -> None:
    """They are written down, told to the fresh core as an event, and the journal replays with it."""
    async with world(tmp_path) as w:
        await w.server.policies.change(SHARES | {"rules": SHARES["rules"] | {"backoff_s": 1000.0}}, PolicyWish("test"))
        agent, failing = await w.running({"retry": {"max_restarts": 3}})
        await agent.end(failing, exit_code=1)
        ready_at = w.server.core.ledger.jobs[failing].ready_at
        await w.server.loop.perform_in_pieces(keep_core_state)
        await w.server.loop.perform_in_pieces(keep_core_state)  # nothing has changed: nothing is written
    async with world(tmp_path) as again:
        assert again.server.core.ledger.jobs[failing].ready_at == ready_at
        assert again.state(failing) == "PENDING"
    assert replay_journal(read_stored_journal(tmp_path)).identical


@pytest.mark.parametrize("set_by", [7200.0, -7200.0])
async def test_a_step_of_the_wall_clock_is_followed_told_and_changes_no_length(w: World, set_by: float) -> None:
    """Instants that people state right after it are those of the corrected clock, in `not_before` and in deadlines."""
    assert (await w.server.check_health())["clock"] == "ok"
    before, w.clock.set_by = w.clock.now(), set_by
    soon = datetime.fromtimestamp(w.clock.unix(before) + set_by + 60.0, UTC).isoformat()
    job_id = await w.submit({"not_before": soon})
    assert w.server.core.ledger.jobs[job_id].request.not_before_at == pytest.approx(before + 60.0)
    assert (await w.server.check_health())["clock"].startswith(f"set by {set_by:+.0f} s at ")
    past = datetime.fromtimestamp(w.clock.unix(before) - 3000.0, UTC).isoformat()
    with pytest.raises(JobSpecError, match="is before submission"):
        await w.submit({"deadline": past})
    assert w.clock.now() == before


def test_a_server_that_starts_after_a_step_calls_instants_by_the_clock_as_it_is() -> None:
    """What its boot clock counted is how long it was away; the wall clock says what that is called."""
    clock = Clock(1000.0, 50.0, Clocks(lambda: 8350.0, lambda: 7.0, lambda: 7.0), absent_until=150.0)
    assert (clock.follow(), clock.now(), clock.unix(150.0)) == (7200.0, 150.0, 8350.0)
    assert clock.follow() == 0.0


#: Recorded at commit 6d64c02 (2026-11-22): jobs on three machines, each of 25 policies in force for a while.
RECORDED = Path(__file__).with_name("recorded_journal.jsonl.gz")


def recorded_rows() -> Iterator[JournalRow]:
    with gzip.open(RECORDED, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield JournalRow(*json.loads(line))


def test_a_journal_of_an_earlier_version_replays() -> None:
    """To the same commands and questions, though classes and modules have other names by now."""
    report = replay_journal(recorded_rows())
    assert report.differences == []
    assert report.identical
    assert report.command_types["Solve"] == 80
    assert (report.events, report.generations) == (645, 1)


def test_the_recorded_journal_puts_questions_to_every_policy_of_its_time() -> None:
    """Or the replay would not notice that a policy's memory is recorded under another name."""
    changed = [json.loads(row.payload)["policy"]["name"] for row in recorded_rows() if row.type == "PolicyChanged"]
    assert len(set(changed)) == 25
    assert set(changed) <= set(names())
