"""What an agent makes of servers: its own, a restored one, another cluster's, an older and a newer one."""

import asyncio
import errno
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.fake_agent_server import FakeAgentServer
from walras.contract import PROTOCOL
from walras.errors import ConfigError
from walras.wire import (
    ClusterIdentity,
    CommittedReport,
    EndedReport,
    Manifest,
    Register,
    ShapeFacts,
    StartedReport,
    StopCommand,
)
from workers.agent.agent import Agent
from workers.agent.launch import AgentMachine
from workers.agent.report_store import AgentStore, AttemptPhase, KnownAttempt, ReportOutbox
from workers.agent.server_client import CREDENTIAL_FILE, Enrolment, ServerClient, ServerRefusal
from workers.devices import Accelerators, AttemptKey, Host

_OURS = ClusterIdentity(cluster_id="a" * 32, incarnation="1" * 16)
_RESTORED = ClusterIdentity(cluster_id="a" * 32, incarnation="2" * 16)
_OTHERS = ClusterIdentity(cluster_id="b" * 32, incarnation="3" * 16)
_FACTS = ShapeFacts(shape="cpu", accelerator="cpu", accelerators=1, cpus=1.0, memory_bytes=1 << 30)


@asynccontextmanager
async def _agent(server: FakeAgentServer, state: Path, name: str = "n1") -> AsyncIterator["asyncio.Task[None]"]:
    """An agent that runs in this process, with the state folder of the one before it."""
    store = AgentStore(state)
    token = state.parent / "join.token"
    token.write_text(server.join_token)
    machine = AgentMachine(state, Accelerators("cpu", 1), Host(1.0, 1 << 30), True, {}, {})
    message = Register(node_id=name, facts=_FACTS, protocol=PROTOCOL, agent=store.agent, boot_id="boot-1")
    async with aiohttp.ClientSession() as session:
        client = ServerClient(session, server.url)
        running = asyncio.create_task(Agent(machine, store, client, Enrolment(state, message, token, "::1")).run())
        try:
            yield running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            store.close()


def _known(state: Path) -> dict[str, Any]:
    """Let the agent have run attempt 1 of jobs 4 and 5: the first has saved and ended, and the server has it all."""
    store = AgentStore(state)
    outbox = ReportOutbox(store)
    saved, other = AttemptKey(4, 1, _OURS.incarnation), AttemptKey(5, 1, _OURS.incarnation)
    manifest = Manifest(step=9.0, path="/c/4/step-9", digest="0" * 64)
    for key in (saved, other):
        outbox.move(key, AttemptPhase.RUNNING, StartedReport(**outbox.stamp(key)))
    outbox.advance_journal(saved, 10, [CommittedReport(**outbox.stamp(saved), manifest=manifest)])
    outbox.move(saved, AttemptPhase.OVER, EndedReport(**outbox.stamp(saved), cause="exited", exit_code=0))
    store.flush()
    store.acknowledge(10_000)
    store.flush()
    store.close()
    return saved._asdict()


async def test_an_agent_names_itself_and_its_cluster_with_every_call(tmp_path: Path) -> None:
    """It keeps who the server is with its credential, and shows it again after a restart."""
    async with FakeAgentServer() as server:
        server.cluster, server.protocol = _OURS, PROTOCOL
        for _ in range(2):
            server.heartbeats.clear()
            async with _agent(server, tmp_path / "agent"):
                await server.until(lambda: bool(server.heartbeats), 5, "a heartbeat")
            beat = server.heartbeats[0]
            assert (beat.cluster, beat.agent, beat.protocol) == (_OURS, server.registered[0].agent, PROTOCOL)
            assert beat.boot_id
        assert len(server.registered) == 1
        kept = json.loads((tmp_path / "agent" / CREDENTIAL_FILE).read_bytes())
        assert kept["cluster"] == _OURS.model_dump()


async def test_a_machine_whose_facts_have_changed_is_told_so_and_not_that_it_never_joined(tmp_path: Path) -> None:
    """Without a join token: which facts differ from those of its registration."""
    async with FakeAgentServer() as server, aiohttp.ClientSession() as session:
        client = ServerClient(session, server.url)
        message = Register(node_id="n1", facts=_FACTS, protocol=PROTOCOL, agent="a" * 32, boot_id="boot-1")
        with pytest.raises(ConfigError, match="this machine is not registered"):
            await Enrolment(tmp_path, message, None, "::1").ensure(client)
        (tmp_path / "join.token").write_text(server.join_token)
        await Enrolment(tmp_path, message, tmp_path / "join.token", "::1").ensure(client)
        await Enrolment(tmp_path, message, None, "::1").ensure(client)
        # A new kernel leaves a little more or less of the memory: nobody has to come with the token for that.
        renewed = message.model_copy(update={"facts": _FACTS.model_copy(update={"memory_bytes": (1 << 30) - 5000})})
        await Enrolment(tmp_path, renewed, None, "::1").ensure(client)
        other = message.model_copy(update={"facts": _FACTS.model_copy(update={"cpus": 2.0})})
        with pytest.raises(ConfigError, match=r"registered with other facts \(cpus 1.0, now 2.0\)"):
            await Enrolment(tmp_path, other, None, "::1").ensure(client)


async def test_an_agent_that_has_joined_waits_for_commands_at_once(tmp_path: Path) -> None:
    """What is started there right after it has joined does not wait for its next heartbeat."""
    async with FakeAgentServer() as server:
        server.cluster, server.heartbeat_s = _OURS, 30.0
        async with _agent(server, tmp_path / "agent"):
            await server.until(lambda: any(beat.wait_s > 0 for beat in server.heartbeats), 15, "a call held open")


async def test_agents_do_not_call_in_step(tmp_path: Path) -> None:
    """Calls that are answered together are held open for different times, at least half of the server's interval."""
    async with FakeAgentServer(heartbeat_s=0.2) as server:
        server.cluster = _OURS
        async with _agent(server, tmp_path / "agent"):
            held: list[float] = []

            def is_enough() -> bool:
                held[:] = [beat.wait_s for beat in server.heartbeats if beat.wait_s > 0]
                return len(held) >= 8

            await server.until(is_enough, 15, "calls held open")
        assert all(0.1 <= wait_s <= 0.2 for wait_s in held)
        assert max(held) - min(held) > 0.01
        assert len(set(held)) == len(held)


async def test_an_agent_that_meets_another_cluster_stops(tmp_path: Path) -> None:
    """With both names and what to do: at a heartbeat, at a registration, and where only the answer tells."""
    async with FakeAgentServer() as server:
        server.cluster = _OURS
        async with _agent(server, tmp_path / "agent") as running:
            await server.until(lambda: bool(server.heartbeats), 5, "a heartbeat")
            server.cluster = _OTHERS
            with pytest.raises(ServerRefusal, match="b" * 32) as told:
                await asyncio.wait_for(running, 5)
            assert told.value.is_final
        server.credential = "another credential"  # the other cluster does not know ours
        async with _agent(server, tmp_path / "agent") as running:
            with pytest.raises(ServerRefusal, match="b" * 32):
                await asyncio.wait_for(running, 5)
        assert not any(beat.cluster == _OTHERS for beat in server.heartbeats)


async def test_an_agent_tells_a_restored_server_again_what_it_has(tmp_path: Path) -> None:
    """What was acknowledged before the restore comes anew, under new numbers, the checkpoint before the end."""
    state = tmp_path / "agent"
    async with FakeAgentServer() as server:
        server.cluster = _OURS
        async with _agent(server, state):
            await server.until(lambda: bool(server.heartbeats), 5, "a heartbeat")
        _known(state)
        server.heartbeats.clear()
        server.cluster = _RESTORED
        async with _agent(server, state):
            await server.until(lambda: bool(server.of_type("ended")), 5, "the end is told again")
        told = [(report.type, report.job_id, report.incarnation) for report in server.reports[:3]]
        first = _OURS.incarnation
        assert told[:2] == [("committed", 4, first), ("ended", 4, first)]
        beat = server.heartbeats[0]
        assert (beat.resync, beat.cluster, beat.highest_job_id) == (True, _RESTORED, 5)
        assert len(server.registered) == 1


async def test_a_restored_server_is_met_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent lives, keeps its leases, and tells what it has: all of it is written once there is room."""
    state = tmp_path / "agent"

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space is left")

    async with FakeAgentServer() as server:
        server.cluster = _OURS
        async with _agent(server, state):
            await server.until(lambda: bool(server.heartbeats), 5, "a heartbeat")
        _known(state)
        server.cluster = _RESTORED
        server.heartbeats.clear()
        monkeypatch.setattr("workers.agent.server_client.write_durably", refuse)
        monkeypatch.setattr(AgentStore, "_perform", refuse)
        async with _agent(server, state) as running:
            await server.until(lambda: bool(server.of_type("ended")), 5, "the end is told again")
            of_the_first = [report.type for report in server.reports if getattr(report, "job_id", 0) == 4]
            assert of_the_first == ["committed", "ended"]
            await server.until(lambda: len(server.heartbeats) > 3, 5, "it goes on calling")
            assert not running.done()
        monkeypatch.undo()
        server.reports.clear()
        async with _agent(server, state):
            await server.until(lambda: bool(server.of_type("ended")), 5, "nothing of it was written: it is told again")


async def test_reports_are_numbered_beyond_what_the_server_has_seen(tmp_path: Path) -> None:
    """An agent on a full disk gives out numbers that it cannot write down; after a reboot another begins below them."""
    state = tmp_path / "agent"
    async with FakeAgentServer() as server:
        server.cluster = _OURS
        async with _agent(server, state):
            await server.until(lambda: bool(server.heartbeats), 5, "a heartbeat")
        store = AgentStore(state)
        reports = [StartedReport(report_id=store.next_report_id(), job_id=4, attempt=each) for each in (1, 2)]
        store.add_reports(list(reports))
        store.close()
        server._seen_report = seen = 10**12
        async with _agent(server, state):
            await server.until(lambda: len(server.reports) == 2, 5, "both reports")
        assert [report.attempt for report in server.of_type("started")] == [1, 2]
        assert all(report.report_id > seen for report in server.reports)
        again = AgentStore(state)
        assert again.next_report_id() > max(report.report_id for report in server.reports)
        again.close()


async def test_an_agent_waits_for_a_name_that_is_held(tmp_path: Path) -> None:
    """It has lost its state folder, and what it ran may be alive: it asks again until it is let in."""
    async with FakeAgentServer() as server:
        server.holds_name = True
        async with _agent(server, tmp_path / "agent") as running:
            await server.until(lambda: len(server.registered) >= 3, 8, "it asks again")
            assert not running.done()
            server.holds_name = False
            await server.until(lambda: bool(server.heartbeats), 8, "it is let in")


async def test_a_command_of_an_unknown_type_is_refused_by_name(tmp_path: Path) -> None:
    """A newer server: the other commands of the answer are carried out."""
    async with FakeAgentServer() as server:
        server.protocol = PROTOCOL + 1
        server.raw_commands = [{"type": "hibernate", "command_id": 7, "job_id": 1, "attempt": 1}]
        async with _agent(server, tmp_path / "agent"):
            await server.send(StopCommand(command_id=8, job_id=3, attempt=1, grace_s=1.0, reason="test"))
            refused = await server.report("command_refused")
            await server.report("ended")
            await server.acknowledged(8)
        assert refused.command_id == 7
        assert refused.detail.startswith("'hibernate' is unknown to release")
        assert f"protocol {PROTOCOL}" in refused.detail
        assert server.raw_commands == []


async def test_a_server_too_far_from_the_agents_release_is_refused_with_words(tmp_path: Path) -> None:
    """Nothing of what it says is obeyed."""
    async with FakeAgentServer() as server:
        server.protocol = PROTOCOL + 2
        async with _agent(server, tmp_path / "agent") as running:
            with pytest.raises(ServerRefusal, match=r"the server speaks protocol 4, this side 2: .* upgrade this side"):
                await asyncio.wait_for(running, 5)
        assert server.heartbeats == []


async def test_what_waited_to_be_sent_is_told_again_once_and_in_order(tmp_path: Path) -> None:
    """An end that was not sent yet must not come before the checkpoint that is told again."""
    about = _known(tmp_path)
    store = AgentStore(tmp_path)
    unsent = EndedReport(report_id=store.next_report_id(), cause="exited", exit_code=0, **about)
    store.move_attempt(AttemptKey(4, 1, _OURS.incarnation), AttemptPhase.OVER, [unsent])
    assert store.tell_again(()) == 3
    assert [(report.type, report.job_id) for report in store.reports(10)] == [  # type: ignore[union-attr]
        ("committed", 4), ("ended", 4), ("started", 5),
    ]  # fmt: skip
    assert all(report.report_id > unsent.report_id for report in store.reports(10))
    store.tell_again({(5, 1, _OURS.incarnation)})
    assert [report.brings for report in store.reports(10) if isinstance(report, StartedReport)] == [True]
    store.close()


@pytest.mark.parametrize("has_room", [True, False])
async def test_an_agent_that_is_killed_as_it_meets_a_restored_server_has_told_it_or_will(
    tmp_path: Path, has_room: bool
) -> None:
    """It counts the server as met only once what that may lack is written down to be sent."""
    _known(tmp_path)
    store = AgentStore(tmp_path)
    message = Register(node_id="n1", facts=_FACTS, protocol=PROTOCOL, agent=store.agent, boot_id="boot-1")
    enrolment = Enrolment(tmp_path, message, None, "::1")
    enrolment.on_other_incarnation = lambda: ReportOutbox(store).tell_again(())
    assert not enrolment.take_identity(_OURS, PROTOCOL)
    if not has_room:
        store._db.execute("PRAGMA query_only = ON")
    assert enrolment.take_identity(_RESTORED, PROTOCOL)
    enrolment.forget()
    assert (enrolment.cluster, enrolment._kept().cluster) == (_RESTORED, _RESTORED)
    store.close()
    kept = json.loads((tmp_path / CREDENTIAL_FILE).read_bytes())
    store = AgentStore(tmp_path)
    told = [(report.type, report.job_id) for report in store.reports(10)]  # type: ignore[union-attr]
    store.close()
    assert (kept["cluster"], told) == (
        (_RESTORED.model_dump(), [("committed", 4), ("ended", 4), ("started", 5)])
        if has_room
        else (_OURS.model_dump(), [])
    )


def test_only_the_newest_attempts_are_told_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand of them; what is older has long been in every backup."""
    monkeypatch.setattr("workers.agent.report_store.TOLD_AGAIN", 3)
    store = AgentStore(tmp_path)
    for job_id in range(1, 8):
        ended = EndedReport(report_id=store.next_report_id(), job_id=job_id, attempt=1, cause="exited", exit_code=0)
        store.move_attempt(AttemptKey(job_id, 1), AttemptPhase.OVER, [ended])
    store.flush()
    store.acknowledge(7)
    store.tell_again(())
    assert [report.job_id for report in store.reports(10)] == [5, 6, 7]  # type: ignore[union-attr]
    store.close()


def test_a_number_of_another_incarnation_is_another_attempt(tmp_path: Path) -> None:
    """One that is over says nothing about the other."""
    store = AgentStore(tmp_path)
    store.move_attempt(AttemptKey(4, 1, "1" * 16), AttemptPhase.OVER)
    assert store.attempt(AttemptKey(4, 1, "2" * 16)) is None
    store.move_attempt(AttemptKey(4, 1, "2" * 16), AttemptPhase.STARTING)
    store.flush()
    assert store.open_attempts() == [KnownAttempt(AttemptKey(4, 1, "2" * 16), AttemptPhase.STARTING, 0)]
    store.close()


def test_a_state_folder_of_the_first_release_is_taken_over(tmp_path: Path) -> None:
    """Its attempts go on under their numbers; the folder gets a name, once."""
    with sqlite3.connect(tmp_path / "agent.sqlite") as old:
        old.execute(
            "CREATE TABLE attempts (job_id INTEGER NOT NULL, attempt INTEGER NOT NULL, phase TEXT NOT NULL,"
            " journal_offset INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (job_id, attempt))"
        )
        old.execute("INSERT INTO attempts VALUES (4, 2, 'running', 77), (3, 1, 'over', 5)")
    names = set()
    for _ in range(2):
        store = AgentStore(tmp_path)
        assert store.open_attempts() == [KnownAttempt(AttemptKey(4, 2), AttemptPhase.RUNNING, 77)]
        assert store.highest_job_id == 4
        names.add(store.agent)
        store.close()
    (name,) = names
    assert len(name) == 32


async def test_a_state_folder_is_of_one_machine_and_no_other_name_takes_its_place(tmp_path: Path) -> None:
    """Under another name the server would end what runs there: refused by name; under its own it goes on."""
    state = tmp_path / "state"
    async with FakeAgentServer() as server:
        async with _agent(server, state):
            await server.until(lambda: bool(server.heartbeats), 40.0, "a heartbeat")
        async with _agent(server, state, "n2") as other:
            with pytest.raises(ConfigError, match=r"is the state of machine n1, not of n2"):
                await other
        assert [each.node_id for each in server.registered] == ["n1"]
