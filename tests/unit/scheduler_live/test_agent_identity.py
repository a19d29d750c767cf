"""Who speaks for a machine: twins, thieves, lost state folders, other clusters, releases far apart."""

import logging
from pathlib import Path

import pytest

from tests.support.live_world import FakeAgent, World, world
from walras.cluster import NodeId
from walras.errors import Conflict, NameHeld, OtherCluster, OtherIncarnation, OtherProtocol
from walras.wire import CheckpointEveryCommand, ClusterIdentity

_OTHER = ClusterIdentity(cluster_id="c" * 32, incarnation="d" * 16)


async def _pass_time(w: World, seconds: float, *heard: FakeAgent) -> None:
    """Let time pass second by second; these agents are heard meanwhile."""
    for _ in range(int(seconds)):
        w.clock.at += 1.0
        for agent in heard:
            await agent.beat()
        await w.loop.perform(w.server.gateway.notice_silence)


async def test_a_job_started_by_a_report_of_a_resync_has_not_vanished(tmp_path: Path) -> None:
    """A runs, B waits. Server and agent die, A ends meanwhile: the first message of the new agent ends A, starts B, and
    says that nothing is there. B's start is on its way."""
    whole = {"resources": {"accelerators": "a:2"}}
    async with world(tmp_path) as w:
        agent = (await FakeAgent(w, "n1").register()).names_itself()
        first, second = await w.submit(whole), await w.submit(whole)
        await agent.start_all()
    async with world(tmp_path) as again:
        agent.world = again
        agent.here.clear()
        ended = {"type": "ended", "job_id": first, "attempt": 1, "cause": "exited", "exit_code": 0}
        await agent.beat(ended, resync=True)
        assert (again.state(first), again.state(second)) == ("SUCCEEDED", "STARTING")
        assert [row.state.value for row in again.server.store.attempts(second)] == ["LEASED"]
        assert [(start.job_id, start.attempt) for start in await agent.start_all()] == [(second, 1)]
        assert again.state(second) == "RUNNING"


async def test_an_agent_without_its_state_gets_the_name_once_all_leases_have_run_out(tmp_path: Path) -> None:
    """Its ranks may be alive: no second attempt before they cannot be. The same boot proves nothing."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").names_itself().register()
        job_id = await w.submit({})
        await agent.start_all()
        fresh = FakeAgent(w, "n1").names_itself("b" * 32, cluster=None)
        await _pass_time(w, 18)
        with pytest.raises(
            NameHeld, match=r"boot boot-1\), last heard 18 s ago; its ranks may be alive for another 2 s"
        ):
            await fresh.register()
        assert (w.state(job_id), len(w.server.store.attempts(job_id))) == ("UNREACHABLE", 1)
        await _pass_time(w, 8)
        await fresh.register()
        (start,) = await fresh.start_all()
        assert (start.job_id, start.attempt) == (job_id, 2)


async def test_an_idle_machine_without_its_state_is_admitted_as_soon_as_it_is_silent(tmp_path: Path) -> None:
    """Nothing was granted, so nothing can live there."""
    async with world(tmp_path) as w:
        await (await FakeAgent(w, "n1").names_itself().register()).beat()
        fresh = FakeAgent(w, "n1").names_itself("b" * 32, cluster=None)
        with pytest.raises(NameHeld, match="the name is its own"):
            await fresh.register()
        await _pass_time(w, 16)
        await fresh.register()
        job_id = await w.submit({})
        assert [start.job_id for start in await fresh.start_all()] == [job_id]


@pytest.mark.parametrize("identity", [{"agent": "b" * 32}, {"agent": "b" * 32, "boot_id": "boot-2"}, {"agent": ""}])
async def test_a_twin_or_thief_gets_nothing_and_disturbs_nobody(tmp_path: Path, identity: dict[str, str]) -> None:
    """Whoever shows the join token and a name that is heard is refused by name, for as long as it tries."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").names_itself().register()
        job_id = await w.submit({})
        await agent.start_all()
        twin = FakeAgent(w, "n1").names_itself(**identity, cluster=None)
        for _ in range(4):
            await _pass_time(w, 10, agent)
            with pytest.raises(NameHeld, match=r"another agent speaks for n1 since \d+ s \(boot boot-1\)"):
                await twin.register()
        assert w.server.gateway.node_of(agent.credential) == "n1"
        assert w.state(job_id) == "RUNNING"
        assert len(w.server.store.attempts(job_id)) == 1


async def test_a_copied_state_folder_speaks_only_where_it_is_heard_first(tmp_path: Path) -> None:
    """The same credential from another boot, while the first is heard: refused, and its reports do not count."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").names_itself().register()
        job_id = await w.submit({})
        await agent.start_all()
        copy = FakeAgent(w, "n1").names_itself(boot_id="boot-2")
        copy.credential, copy.next_report = agent.credential, 100
        ended = {"type": "ended", "job_id": job_id, "attempt": 1, "cause": "exited", "exit_code": 0}
        with pytest.raises(NameHeld, match="heard from boot boot-1"):
            await copy.beat(ended, resync=True)
        with pytest.raises(NameHeld):
            await copy.register()
        await agent.beat()
        assert w.state(job_id) == "RUNNING"


async def test_a_machine_that_was_restarted_speaks_again_after_a_moment(tmp_path: Path) -> None:
    """Another boot of the same agent, once the former one is silent: what ran there has died."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").names_itself().register()
        job_id = await w.submit({})
        await agent.start_all()
        await _pass_time(w, 16)
        agent.here.clear()
        await agent.names_itself(boot_id="boot-2").beat(resync=True)
        assert w.server.store.attempts(job_id)[0].state.value == "NODE_LOST"
        assert w.live_state.nodes["n1"].row.boot_id == "boot-2"


async def test_the_same_agent_gets_a_new_credential_at_once(tmp_path: Path) -> None:
    """One whose credential was refused registers anew; its jobs go on and its reports are counted on."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").names_itself().register()
        job_id = await w.submit({})
        await agent.start_all()
        before, acked = agent.credential, w.live_state.nodes["n1"].row.reports_acked
        await agent.register()
        assert agent.credential != before
        assert w.live_state.nodes["n1"].row.reports_acked == acked > 0
        await agent.end(job_id)
        assert w.state(job_id) == "SUCCEEDED"


async def test_another_cluster_is_refused_with_both_names(tmp_path: Path) -> None:
    """At registration and with every heartbeat; nothing that it says counts."""
    async with world(tmp_path) as w:
        here = w.live_state.identity.cluster_id
        agent = await FakeAgent(w, "n1").names_itself().register()
        for call in (FakeAgent(w, "n2").names_itself(cluster=_OTHER).register, agent.names_itself(cluster=_OTHER).beat):
            with pytest.raises(OtherCluster, match=rf"belongs to cluster {'c' * 32}; this server is cluster {here}"):
                await call()


async def test_another_incarnation_is_refused_with_both_names(tmp_path: Path) -> None:
    """The refusal says which one it is, so that the agent can say anew what it has."""
    async with world(tmp_path) as w:
        here = w.live_state.identity
        former = here.model_copy(update={"incarnation": "e" * 16})
        agent = await FakeAgent(w, "n1").names_itself().register()
        with pytest.raises(
            OtherIncarnation, match=rf"incarnation {'e' * 16} .* is incarnation {here.incarnation}"
        ) as told:
            await agent.names_itself(cluster=former).beat()
        assert told.value.identity == here.model_dump()


async def test_answers_and_commands_name_the_cluster(tmp_path: Path) -> None:
    """Registration, heartbeats, starts and stops."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").names_itself().register()
        await w.submit({})
        answer = await agent.beat()
        assert answer.cluster == w.live_state.identity
        assert [command.incarnation for command in answer.commands] == [w.live_state.identity.incarnation]


async def test_a_report_about_the_same_number_of_another_incarnation_does_not_count(tmp_path: Path) -> None:
    """Attempt 1 of job 1, as another life of the database granted it, is another attempt."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").names_itself().register()
        job_id = await w.submit({})
        await agent.start_all()
        ended = {"type": "ended", "job_id": job_id, "attempt": 1, "cause": "exited", "exit_code": 0}
        await agent.beat({**ended, "incarnation": "e" * 16})
        assert (w.state(job_id), w.live_state.counters.stale_reports) == ("RUNNING", 1)
        await agent.beat({**ended, "incarnation": w.live_state.identity.incarnation})
        assert w.state(job_id) == "SUCCEEDED"


async def test_unknown_reports_are_skipped_acknowledged_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A newer agent beside this server: the rest of its heartbeat is taken."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").names_itself(protocol=3, version="9.1").register()
        job_id = await w.submit({})
        await agent.start_all()
        caplog.set_level(logging.WARNING)
        news = {"type": "weather", "job_id": job_id, "sunny": True}
        ended = {"type": "ended", "job_id": job_id, "attempt": 1, "cause": "exited", "exit_code": 0}
        answer = await agent.beat(news, news, ended)
        assert answer.reports_acked == agent.next_report - 1
        assert w.state(job_id) == "SUCCEEDED"
        assert w.live_state.counters.unknown_reports == 2
        assert len([text for text in caplog.messages if "'weather'" in text and "9.1" in text]) == 1
        assert w.server.views.nodes()[0].version == "9.1"


@pytest.mark.parametrize("protocol", [4, 1_000])
async def test_releases_too_far_apart_are_refused_with_words(tmp_path: Path, protocol: int) -> None:
    """Not half understood."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").names_itself().register()
        agent.names_itself(protocol=protocol)
        for call in (agent.beat, agent.register):
            with pytest.raises(OtherProtocol, match=f"speaks protocol {protocol}, this side 2: .* upgrade this side"):
                await call()


@pytest.mark.parametrize("is_old", [True, False])
async def test_an_agent_of_the_first_release_is_sent_no_command_that_it_does_not_know(
    tmp_path: Path, *, is_old: bool
) -> None:
    """For one such command it would lose the whole answer, again and again."""
    async with world(tmp_path) as w:
        agent = FakeAgent(w, "n1")
        await (agent if is_old else agent.names_itself()).register()
        first = await w.submit({})
        (start,) = await agent.start_all()
        told = {"incarnation": start.incarnation, "every_s": 60.0, "job_id": first, "attempt": 1}
        await w.loop.perform(
            lambda transaction: transaction.post(
                NodeId("n1"), CheckpointEveryCommand(command_id=transaction.next_command_id(), **told)
            )
        )
        second = await w.submit({})
        types = [command.type for _ in range(3) for command in (await agent.beat()).commands]
        assert types == (["start"] if is_old else ["checkpoint_every", "start"])
        assert (second, 1) in agent.here
        assert not w.live_state.nodes["n1"].outbox
        assert not w.server.store.load().outbox


async def test_an_agent_of_the_first_release_is_given_no_job_that_it_would_start_without_its_code(
    tmp_path: Path,
) -> None:
    """The start is refused in words, and works once the agent is upgraded."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").register()
        job_id = await w.submit({"setup": "make tools"})
        assert await agent.start_all() == []
        job = w.live_state.jobs[job_id]
        assert (job.row.state, job.row.reason) == ("PENDING", "INFRA:START_REFUSED")
        assert "upgrade the agent" in job.row.detail
        agent.names_itself()
        await agent.beat(resync=True)
        await w.advance(60.0)
        (start,) = await agent.start_all()
        assert (start.job_id, start.attempt) == (job_id, 2)


async def test_an_agent_of_the_first_release_is_understood(tmp_path: Path) -> None:
    """It names nothing: its attempts are known by their numbers. Upgraded, it is known from then on."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").register()
        job_id = await w.submit({})
        await agent.start_all()
        await agent.beat(resync=True)
        assert w.live_state.nodes["n1"].row.agent == ""
        for start in agent.here.values():
            assert start.incarnation == w.live_state.identity.incarnation
        await agent.names_itself().beat(resync=True)
        assert (w.state(job_id), w.live_state.nodes["n1"].row.agent) == ("RUNNING", "a" * 32)
        with pytest.raises(Conflict):
            await FakeAgent(w, "n1").register()


async def test_a_start_that_is_never_confirmed_is_withdrawn_and_tried_again(tmp_path: Path) -> None:
    """The machine is heard, took the command, and never says what became of it: after a lease the start is taken back,
    after another one without an answer the attempt is over, and explain says so."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").names_itself().register()
        job_id = await w.submit({})
        await agent.beat()
        agent.here.clear()
        await _pass_time(w, 10, agent)
        assert w.state(job_id) == "STARTING"
        await _pass_time(w, 15, agent)
        assert [command.type for command in agent.commands] == ["start", "stop"]
        await _pass_time(w, 22, agent)
        row = w.server.store.attempts(job_id)[0]
        assert row.state.value == "START_FAILED"
        assert "did not confirm the start within 20 s" in w.server.store.job(job_id).detail  # type: ignore[union-attr]


async def test_a_withdrawn_start_is_not_told_as_a_lost_machine_when_its_agent_starts_again(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").names_itself().register()
        job_id = await w.submit({})
        await agent.beat()
        agent.here.clear()
        await _pass_time(w, 25, agent)
        await agent.beat(resync=True)
        assert [row.state.value for row in w.server.store.attempts(job_id)] == ["START_FAILED"]
        job = w.server.store.job(job_id)
        assert job is not None
        assert (job.state.value, job.restarts) == ("PENDING", 0)


async def test_a_start_that_is_withdrawn_as_it_begins_is_no_failure_of_the_job(tmp_path: Path) -> None:
    """Its ranks end by our stop: the job is queued again, without using a restart."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").names_itself().register()
        job_id = await w.submit({})
        await agent.beat()
        agent.here.clear()
        await _pass_time(w, 25, agent)
        await agent.beat({"type": "started", "job_id": job_id, "attempt": 1})
        await agent.end(job_id, exit_code=None, signal=9)
        row = w.server.store.job(job_id)
        assert row is not None
        assert (w.server.store.attempts(job_id)[0].state.value, row.restarts) == ("PREEMPTED", 0)
        assert not row.state.is_final


async def test_a_withdrawn_start_ends_when_the_machine_says_that_nothing_is_there(tmp_path: Path) -> None:
    """At once, and without using one of the job's restarts."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").names_itself().register()
        job_id = await w.submit({})
        await agent.beat()
        agent.here.clear()
        await _pass_time(w, 25, agent)
        await agent.end(job_id, exit_code=None)
        row = w.server.store.job(job_id)
        assert row is not None
        assert (w.server.store.attempts(job_id)[0].state.value, row.restarts) == ("START_FAILED", 0)
        w.clock.at += 5.0
        await w.advance(1.0)
        assert [start.attempt for start in await agent.start_all()] == [2]
