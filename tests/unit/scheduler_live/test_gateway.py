"""Heartbeats, leases and fences, with agents played by hand; calls that arrive late or twice."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.events import JobCancelled
from scheduler.live.services.agent_gateway import declare_node_lost
from scheduler.live.store.table_rows import OutboxRow
from tests.support.live_world import FakeAgent, World, world
from walras.cluster import NodeId
from walras.errors import Conflict
from walras.job_request import JobId
from walras.machines.machine_facts import DeviceSample
from walras.states import Reason
from walras.wire import AttemptHere, EndedReport, Heartbeat, StartCommand, StopCommand


async def test_a_job_runs_from_submit_to_success(w: World, agent: FakeAgent) -> None:
    """Submit, start command, started, ended with 0: SUCCEEDED, and the machine is free."""
    job_id = await w.submit({"envs": {"LR": "0.1"}, "resources": {"accelerators": "a:2"}})
    (start,) = await agent.start_all()
    assert (start.argv, start.env, start.devices) == (
        ["bash", "-euo", "pipefail", "-c", "true"], {"LR": "0.1", "WALRAS_ACCELERATORS": "a:2"}, [0, 1],
    )  # fmt: skip
    assert (start.world_size, start.first_rank, start.master_port, start.resume) == (2, 0, 0, None)
    assert w.state(job_id) == "RUNNING"
    await agent.end(job_id)
    assert w.state(job_id) == "SUCCEEDED"
    assert w.server.views.nodes()[0].free == 2


async def test_commands_are_repeated_until_confirmed_and_reports_count_once(w: World, agent: FakeAgent) -> None:
    """An answer that got lost is said again; a report that is repeated changes nothing."""
    job_id = await w.submit({})
    lost = await agent.beat(ack=False)
    again = await agent.beat(ack=False)
    assert [c.command_id for c in lost.commands] == [c.command_id for c in again.commands] != []
    await agent.start_all()
    assert not w.live_state.nodes["n1"].outbox or agent.acks
    agent.next_report = 1
    answer = await agent.beat({"type": "started", "job_id": job_id, "attempt": 1})
    assert (answer.commands, w.state(job_id)) == ([], "RUNNING")


async def test_no_secret_of_a_job_is_written_down(tmp_path: Path) -> None:
    """The start command carries a job token; neither the outbox nor the journal holds it."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").register()
        await w.submit({})
        answer = await agent.beat(ack=False)
        token = answer.commands[0].job_token  # type: ignore[union-attr]
        assert token.startswith("wlr_j_1_1_")
        assert w.server.identify(token) is not None
        secrets = (token, agent.credential)
    written = _written(tmp_path)
    assert not [secret for secret in secrets if secret.encode() in written]


def _written(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("walras.db*"))


async def test_silence_is_unreachable_first_lost_only_after_the_lease_and_fenced_then(w: World) -> None:
    """The job starts elsewhere once no lease can be alive; what the machine has and says after that counts nothing."""
    frozen, job_id = await w.running()
    await frozen.beat(frozen.committed(job_id, 1, 100.0))
    other = await FakeAgent(w, "n2").register()
    # 24 s after the last word the lease of 20 s is over, the margin of 5 s is not.
    for passed_s, machine in ((16.0, "unreachable"), (8.0, "unreachable"), (2.0, "lost")):
        w.clock.at += passed_s
        await other.beat()
        await w.loop.perform(w.server.gateway.notice_silence)
        assert w.live_state.nodes["n1"].row.state == machine
        assert (w.state(job_id) == "UNREACHABLE") == (machine == "unreachable")
    (start,) = await other.start_all()
    assert (start.job_id, start.attempt, start.resume.step) == (job_id, 2, 100.0)
    assert start.resume.step == 100.0
    answer = await frozen.beat(frozen.committed(job_id, 1, 900.0))
    assert [(f.job_id, f.attempt) for f in answer.fenced] == [(job_id, 1)]
    assert w.live_state.jobs[job_id].checkpoint.step == 100.0
    assert w.live_state.counters.stale_commits == 1
    assert w.live_state.nodes["n1"].row.state == "lost"  # until its old ranks are gone
    await frozen.beat()
    assert w.live_state.nodes["n1"].row.state == "up"


async def test_commands_for_a_lost_machine_are_forgotten(w: World) -> None:
    """They are about attempts that are over; none is there for the next start of the server either."""
    agent, job_id = await w.running()
    await w.emit(lambda at: JobCancelled(at, job_id))
    told = [[row.node_id for row in w.server.store.load().rows(OutboxRow)]]
    for passed_s in (16.0, 10.0):
        w.clock.at += passed_s
        await w.loop.perform(w.server.gateway.notice_silence)
        told.append([row.node_id for row in w.server.store.load().rows(OutboxRow)])
    assert told == [["n1"], ["n1"], []]
    assert not (await agent.beat()).commands


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_stop_for_a_machine_that_is_lost_too_is_forgotten(w: World, at_once: bool) -> None:
    """Both machines of a gang are lost: the stop that the first loss causes is for nobody."""
    first, second, _ = await _a_prepared_gang(w)
    for agent in (first, second):
        await agent.start_all()

    def lose(*agents: FakeAgent) -> Any:
        return lambda turn: [declare_node_lost(turn, NodeId(each.node_id), Reason.INFRA_NODE_LOST) for each in agents]

    if at_once:
        await w.loop.perform(lose(first, second))
    else:  # the second is lost while the stop is written
        await asyncio.gather(w.loop.perform(lose(first)), w.loop.perform(lose(second)))
    await w.quiet()
    assert (w.server.store.load().rows(OutboxRow), w.live_state.nodes["n2"].outbox) == ((), {})


async def test_an_agent_back_within_the_lease_restarts_nothing(w: World) -> None:
    """Back after 18 s of silence: the same attempt goes on."""
    agent, job_id = await w.running()
    w.clock.at += 18.0
    await w.loop.perform(w.server.gateway.notice_silence)
    answer = await agent.beat(resync=True)
    assert (answer.fenced, answer.commands, w.state(job_id)) == ([], [], "RUNNING")


async def test_a_checkpoint_outside_the_jobs_folder_is_refused(w: World, agent: FakeAgent) -> None:
    """A manifest may not point anywhere else, whatever its path looks like."""
    job_id = await w.submit({})
    (start,) = await agent.start_all()
    for path in ("/etc", f"{start.checkpoint_dir}/../2", "relative"):
        await agent.beat(agent.committed(job_id, 1, 5.0, path))
    assert w.live_state.jobs[job_id].checkpoint is None
    assert w.live_state.counters.stale_commits == 3


async def test_an_attempt_missing_after_a_restart_of_the_agent_has_ended(w: World) -> None:
    """`here` of a resync is the whole truth: what is not there has died, and the job goes on from its checkpoint."""
    agent, job_id = await w.running()
    agent.here.clear()
    await agent.beat(resync=True)
    row = w.server.store.attempts(job_id)[0]
    assert row.state.value == "NODE_LOST"
    assert [s.attempt for s in await agent.start_all()] == [2]


async def test_a_gang_starts_when_all_parts_have_and_ends_by_its_first_failure(w: World) -> None:
    """Two machines: prepare, start with one rendezvous, RUNNING with the second; a failing part stops the other."""
    first, second, job_id = await _a_prepared_gang(w)
    (start,) = await first.start_all()
    assert w.state(job_id) == "STARTING"
    (rest,) = await second.start_all()
    assert (start.master_address, rest.master_address, rest.master_port) == ("10.0.0.1", "10.0.0.1", 4321)
    assert {start.env["WALRAS_NODE_ADDRESSES"], rest.env["WALRAS_NODE_ADDRESSES"]} == {"10.0.0.1,10.0.0.2"}
    assert (start.first_rank, rest.first_rank, rest.world_size) == (0, 2, 4)
    assert w.state(job_id) == "RUNNING"
    await second.end(job_id, exit_code=7, failed_rank=3)
    await first.beat()
    assert isinstance(first.commands[-1], StopCommand)
    assert w.state(job_id) == "RUNNING"
    await first.end(job_id, exit_code=None, signal=15)
    assert w.state(job_id) == "FAILED"
    row = w.server.store.attempts(job_id)[0]
    assert (row.exit_code, row.signal, row.failed_rank) == (7, None, 3)


async def _a_prepared_gang(w: World) -> tuple[FakeAgent, FakeAgent, int]:
    """A job on two machines, whose starts were ordered: the machine of its first ranks, and the other."""
    one, two = await FakeAgent(w, "n1").register(), await FakeAgent(w, "n2").register()
    job_id = await w.submit({"num_nodes": 2, "resources": {"accelerators": "a:4"}})
    for agent in (one, two):
        await agent.beat()
        assert [c.type for c in agent.commands] == ["prepare"]
    first, second = (one, two) if one.commands[0].node_rank == 0 else (two, one)
    prepared = {"type": "prepared", "job_id": job_id, "attempt": 1}
    await first.beat({**prepared, "address": "10.0.0.1", "port": 4321})
    await second.beat({**prepared, "address": "10.0.0.2"})
    return first, second, job_id


async def test_what_a_machine_reports_of_its_ended_part_counts_for_nothing(w: World) -> None:
    """The other part runs on: neither another end, nor a checkpoint, nor progress of the ended one is taken."""
    first, second, job_id = await _a_prepared_gang(w)
    for agent in (first, second):
        await agent.start_all()
    late = [second.progress(job_id, 1, 900.0), second.committed(job_id, 1, 900.0)]
    await second.end(job_id)
    await second.beat(*late)
    await second.end(job_id, exit_code=7)
    assert (w.state(job_id), w.live_state.jobs[job_id].checkpoint, w.live_state.counters.stale_reports) == (
        "RUNNING", None, 3,
    )  # fmt: skip
    await first.end(job_id)
    assert w.state(job_id) == "SUCCEEDED"


async def test_the_commit_of_a_survivor_counts_only_if_every_rank_has_all_of_the_state(w: World) -> None:
    """It is the newest checkpoint then, if of a later step; of two machines' of one step the first machine's counts."""
    first, second, job_id = await _a_prepared_gang(w)
    for agent in (first, second):
        await agent.start_all()

    async def kept(agent: FakeAgent, step: float, name: str, layout: str) -> str:
        folder = f"{agent.here[job_id, 1].checkpoint_dir}/attempt-0001"
        await agent.beat(agent.committed(job_id, 1, step, f"{folder}/{name}") | {"layout": layout})
        checkpoint = w.live_state.jobs[job_id].checkpoint
        return "" if checkpoint is None else Path(checkpoint.path).name

    assert await kept(second, 5.0, "sharded", "") == ""
    assert await kept(second, 5.0, "survivor", "replicated") == "survivor"
    assert await kept(first, 5.0, "first", "replicated") == "first"
    assert await kept(second, 5.0, "same", "replicated") == "first"
    assert await kept(second, 6.0, "sharded", "") == "first"
    assert await kept(second, 6.0, "later", "replicated") == "later"
    # A part that vanishes, as its agent has begun anew without it, stops the others.
    second.here.clear()
    await second.beat(resync=True)
    await first.beat()
    assert isinstance(first.commands[-1], StopCommand)
    assert w.state(job_id) == "RUNNING", "its end is reported by the machine that still has it"


@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_part_that_is_refused_stops_the_others_whose_places_are_free_once_they_have_ended(
    w: World, has_begun: bool
) -> None:
    """A machine that was told to start its part may be about to: nobody else is sent there before it says more."""
    first, second, job_id = await _a_prepared_gang(w)
    if has_begun:
        await first.start_all()
    other = await w.submit({"resources": {"accelerators": "a:4"}})
    await second.beat({"type": "refused", "job_id": job_id, "attempt": 1, "detail": "no room"})
    await first.beat()
    stop = first.commands[-1]
    assert isinstance(stop, StopCommand)
    assert (stop.job_id, stop.attempt, stop.reason) == (job_id, 1, "a part of the gang was refused")
    assert (w.state(other), w.live_state.nodes["n1"].expected | w.live_state.nodes["n2"].expected) == (
        "PENDING", {(job_id, 1)},
    )  # fmt: skip
    await first.end(job_id, exit_code=None, signal=9)
    row, detail = w.server.store.attempts(job_id)[0], w.server.store.job(job_id).detail  # type: ignore[union-attr]
    assert (row.state.value, detail) == ("START_FAILED", f"{second.node_id}: no room")
    assert w.state(other) == "STARTING"


async def test_progress_is_coalesced_and_the_last_word_comes_before_the_end(w: World) -> None:
    """The core hears the first figures, the first speed, then at most one a round, and what is known at the end."""
    agent, job_id = await w.running({"steps": 1000})
    await agent.beat(agent.progress(job_id, 1, 1, start_s=2.0))
    await agent.beat(agent.progress(job_id, 1, 50, steps_per_s=10.0, samples=1))
    for steps in range(60, 100):
        await agent.beat(agent.progress(job_id, 1, steps, steps_per_s=11.0, samples=2, values={"loss": 0.5}))
    await agent.end(job_id)
    told = [row for row in w.server.store.journal() if row.type == "AttemptProgressed"]
    assert len(told) == 3
    (view,) = await w.server.views.jobs([w.server.store.job(job_id)], [])  # type: ignore[list-item]
    assert view.last_values == {"loss": 0.5}


async def test_a_machine_cannot_change_what_it_is(w: World) -> None:
    """The same name with other facts, or a pool with another shape, is a conflict that says what to change."""
    await FakeAgent(w, "n1").register()
    with pytest.raises(Conflict, match="another machine"):
        await FakeAgent(w, "n1", shape="bx4", accelerators=4).register()
    with pytest.raises(Conflict, match=r"has other machines: accelerators is 4 here, 2 there$"):
        await FakeAgent(w, "n2", accelerators=4).register()
    with pytest.raises(Conflict, match=r"has other machines: nominal_speed is 3.5 here, "):
        await FakeAgent(w, "n2", nominal_speed=3.5).register()
    with pytest.raises(Conflict, match="nobody asked"):
        await FakeAgent(w, "n3", rent_token="rent-99").register()


async def test_machines_whose_kernels_leave_a_little_more_or_less_are_alike(w: World) -> None:
    """As after an upgrade of the kernel; a machine with a quarter less is another."""
    memory = 1 << 34
    agent, job_id = await w.running(named=True)
    await FakeAgent(w, "n1", memory_bytes=memory - (96 << 20)).names_itself().register()
    await FakeAgent(w, "n2", memory_bytes=memory + (96 << 20)).register()
    await agent.beat(resync=True)
    assert w.state(job_id) == "RUNNING"
    (pool,) = w.live_state.pools.values()
    assert pool.shape.memory_bytes == memory
    for node_id in ("n1", "n3"):
        with pytest.raises(Conflict, match="memory_bytes is 12884901888 here, 17179869184 there"):
            await FakeAgent(w, node_id, memory_bytes=memory - (4 << 30)).register()


async def test_a_gang_whose_prepared_part_was_lost_is_not_started_when_another_part_is_ready(w: World) -> None:
    """The agent began anew and knows of no start; the other says in one call that it is ready and that it ended."""
    first, second = [await FakeAgent(w, name).register() for name in ("n1", "n2")]
    job_id = await w.submit({"resources": {"accelerators": "a:4"}, "num_nodes": 2})
    prepared = {"type": "prepared", "job_id": job_id, "attempt": 1}
    for agent in (first, second):
        await agent.beat()
    await first.beat({**prepared, "address": "10.0.0.1", "port": 4321})
    await first.beat(resync=True)
    ended = {"type": "ended", "job_id": job_id, "attempt": 1, "cause": "exited", "exit_code": 0}
    await second.beat(prepared, ended)
    await first.beat()
    assert [each for each in first.commands if isinstance(each, StartCommand) and each.attempt == 1] == []
    assert w.live_state.jobs[JobId(job_id)].row.attempts == 2


async def test_a_gang_that_did_not_get_ready_in_time_is_stopped_once_on_each_machine(w: World) -> None:
    """The machine whose part is ready would keep it, and the silent one begin it when it comes back."""
    first, second = [await FakeAgent(w, name).register() for name in ("n1", "n2")]
    job_id = await w.submit({"resources": {"accelerators": "a:4"}, "num_nodes": 2})
    for agent in (first, second):
        await agent.beat()
    await first.beat({"type": "prepared", "job_id": job_id, "attempt": 1, "address": "10.0.0.1", "port": 4321})
    await w.advance(w.loop.core.ledger.policy.rules.prepare_timeout_s)
    for agent in (first, second):
        await agent.beat()
        (stop,) = [each for each in agent.commands if isinstance(each, StopCommand)]
        assert (stop.job_id, stop.attempt, stop.grace_s) == (job_id, 1, 0.0)
    assert w.server.store.attempts(job_id)[0].state.value == "START_FAILED"


async def test_a_machine_that_outlives_its_notice_takes_jobs_again(w: World, agent: FakeAgent) -> None:
    """The notice was late, or it was stopped and came back: ten minutes after the end that was told, if it is heard."""
    await agent.beat({"type": "notice", "gone_in_s": 10.0})
    job_id = await w.submit({})
    for passed_s, cordon in ((300.0, "leaving"), (309.0, "leaving"), (10.0, "")):
        for _ in range(int(passed_s / 5.0)):
            w.clock.at += 5.0
            await agent.beat()
            await w.loop.perform(w.server.gateway.notice_silence)
        assert w.live_state.nodes["n1"].row.cordon == cordon, passed_s
    await agent.start_all()
    assert w.state(job_id) == "RUNNING"


def call(agent: FakeAgent, number: int, *, session: str = "s1", resync: bool = False, **more: Any) -> Heartbeat:
    """A call of the agent with what is on its machine now."""
    here = [AttemptHere(job_id=job_id, attempt=attempt) for job_id, attempt in agent.here]
    known = {"life": agent.life} | more
    return Heartbeat(node_id=agent.node_id, session=session, call=number, resync=resync, here=here, **known)


async def greeted(agent: FakeAgent, w: World) -> FakeAgent:
    """It has heard of this start of the server."""
    agent.life = (await w.server.gateway.heartbeat(call(agent, 1, resync=True))).life
    return agent


async def running(w: World) -> tuple[FakeAgent, Heartbeat]:
    """A machine with a running job, and its first call, from before the job."""
    agent = await greeted(await FakeAgent(w, "m1").register(), w)
    first = call(agent, 1, resync=True)
    await w.server.gateway.heartbeat(first)
    await w.submit({})
    await agent.start_all()
    await w.server.gateway.heartbeat(call(agent, 2))
    return agent, first


async def test_a_repeated_first_call_ends_nothing(w: World) -> None:
    """A proxy sends it again after a job has begun, or after the agent was started anew: nothing has vanished."""
    agent, first = await running(w)
    await w.server.gateway.heartbeat(first)
    await w.quiet()
    assert w.state(1) == "RUNNING"
    await w.server.gateway.heartbeat(call(agent, 1, session="s2", resync=True))
    await w.server.gateway.heartbeat(first)
    await w.quiet()
    assert w.state(1) == "RUNNING"


async def test_a_call_of_a_start_that_was_only_met_before_the_present_one_ends_nothing(w: World) -> None:
    """Its first call was answered; its second, which names this life of the server, comes after its successor's."""
    agent, _ = await running(w)
    for session in ("s2", "s3"):
        await w.server.gateway.heartbeat(call(agent, 1, session=session, resync=True, life=""))
    await w.server.gateway.heartbeat(call(agent, 2, session="s3", resync=True))
    agent.here.clear()
    await w.server.gateway.heartbeat(call(agent, 2, session="s2", resync=True))
    await w.quiet()
    assert w.state(1) == "RUNNING"


@pytest.mark.parametrize(
    ("number", "more", "believed"), [(7, {"life": "before"}, (3,)), (9, {}, (3, 4, 5))], ids=["another life", "no life"]
)
async def test_a_late_call_of_a_former_start_does_not_silence_the_present_one(
    w: World, number: int, more: dict[str, str], believed: tuple[int, ...]
) -> None:
    """At once where it names another life of the server, else once the agent has called on: its reports count."""
    agent, _ = await running(w)
    await w.server.gateway.heartbeat(call(agent, number, session="s0", **more))
    ended = EndedReport(report_id=1000, job_id=JobId(1), attempt=1, cause="exited", exit_code=0)
    agent.here.clear()
    for each in believed:
        await w.server.gateway.heartbeat(call(agent, each, reports=[ended]))
    await w.quiet()
    assert w.state(1) == "SUCCEEDED"


async def test_a_new_start_without_the_job_ends_it(w: World) -> None:
    """The newest call is believed: what is not there has died unseen."""
    agent, _ = await running(w)
    agent.here.clear()
    answer = await w.server.gateway.heartbeat(call(agent, 1, session="s2", resync=True))
    await w.quiet()
    assert next(attempt.state for attempt in w.server.store.attempts(1)) == "NODE_LOST"
    assert answer.lease_s > 0


async def test_a_first_call_that_comes_after_a_restart_of_the_server_ends_nothing(tmp_path: Path) -> None:
    """It is answered, and its lease goes on; only a call that names this life of the server says what is there."""
    async with world(tmp_path) as w:
        agent, first = await running(w)
    async with world(tmp_path) as w:
        answer = await w.server.gateway.heartbeat(first)
        await w.quiet()
        assert (w.state(1), answer.commands, answer.fenced) == ("RUNNING", [], [])
        assert answer.life not in ("", agent.life)
        agent.life = answer.life
        agent.here.clear()
        await w.server.gateway.heartbeat(call(agent, 3, resync=True))
        await w.quiet()
        assert next(attempt.state for attempt in w.server.store.attempts(1)) == "NODE_LOST"


async def test_what_devices_do_is_shown_while_it_is_new(w: World) -> None:
    """Not of a late call; one without samples keeps those before it; after a minute they say nothing any more."""
    agent = await greeted(await FakeAgent(w, "m1").register(), w)
    sample = DeviceSample(device=0, utilization=97, power_w=300)
    await w.server.gateway.heartbeat(call(agent, 3, devices=[sample]))
    await w.server.gateway.heartbeat(call(agent, 2, devices=[DeviceSample(device=0, utilization=1)]))
    await w.server.gateway.heartbeat(call(agent, 4))
    assert w.server.views.nodes()[0].devices == [sample]
    w.clock.at += 61
    await w.server.gateway.heartbeat(call(agent, 5))
    assert w.server.views.nodes()[0].devices == []
