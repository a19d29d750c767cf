"""Who speaks for a machine: twins, thieves, lost state folders, other clusters, releases far apart."""

import logging
from pathlib import Path

import pytest

from scheduler.live.store.table_rows import OutboxRow
from tests.support.live_world import FakeAgent, World, world
from walras.cluster import NodeId
from walras.errors import Conflict, NameHeld, OtherCluster, OtherIncarnation, OtherProtocol
from walras.job_request import JobId
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
    """The first call of a new agent ends A, which starts B, and says that nothing is there: B's start is on its way."""
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


async def test_an_agent_without_its_state_gets_the_name_once_all_leases_have_run_out(w: World) -> None:
    """Its ranks may be alive: no second attempt before they cannot be. The same boot proves nothing."""
    _agent, job_id = await w.running(named=True)
    fresh = FakeAgent(w, "n1").names_itself("b" * 32, cluster=None)
    await _pass_time(w, 18)
    with pytest.raises(NameHeld, match=r"boot boot-1\), last heard 18 s ago; its ranks may be alive for another 2 s"):
        await fresh.register()
    assert (w.state(job_id), len(w.server.store.attempts(job_id))) == ("UNREACHABLE", 1)
    await _pass_time(w, 8)
    await fresh.register()
    (start,) = await fresh.start_all()
    assert (start.job_id, start.attempt) == (job_id, 2)


async def test_an_idle_machine_without_its_state_is_admitted_as_soon_as_it_is_silent(w: World) -> None:
    """Nothing was granted, so nothing can live there. Its reports count from the first, as it numbers them anew."""
    first = await FakeAgent(w, "n1").names_itself().register()
    await first.beat(*[{"type": "hint", "detail": "a slow disk"}] * 9)
    fresh = FakeAgent(w, "n1").names_itself("b" * 32, cluster=None)
    with pytest.raises(NameHeld, match="the name is its own"):
        await fresh.register()
    await _pass_time(w, 16)
    await fresh.register()
    job_id = await w.submit({})
    assert [start.job_id for start in await fresh.start_all()] == [job_id]
    assert w.state(job_id) == "RUNNING"


@pytest.mark.parametrize("identity", [{"agent": "b" * 32}, {"agent": "b" * 32, "boot_id": "boot-2"}, {"agent": ""}])
async def test_a_twin_or_thief_gets_nothing_and_disturbs_nobody(w: World, identity: dict[str, str]) -> None:
    """Whoever shows the join token and a name that is heard is refused by name, for as long as it tries."""
    agent, job_id = await w.running(named=True)
    twin = FakeAgent(w, "n1").names_itself(**identity, cluster=None)
    for _ in range(4):
        await _pass_time(w, 10, agent)
        with pytest.raises(NameHeld, match=r"another agent speaks for n1 since \d+ s \(boot boot-1\)"):
            await twin.register()
    assert w.server.gateway.node_of(agent.credential) == "n1"
    assert w.state(job_id) == "RUNNING"
    assert len(w.server.store.attempts(job_id)) == 1


async def test_a_copied_state_folder_speaks_only_where_it_is_heard_first(w: World) -> None:
    """The same credential from another boot, while the first is heard: refused, and its reports do not count."""
    agent, job_id = await w.running(named=True)
    copy = FakeAgent(w, "n1").names_itself(boot_id="boot-2")
    copy.credential, copy.next_report = agent.credential, 100
    ended = {"type": "ended", "job_id": job_id, "attempt": 1, "cause": "exited", "exit_code": 0}
    with pytest.raises(NameHeld, match="heard from boot boot-1"):
        await copy.beat(ended, resync=True)
    with pytest.raises(NameHeld):
        await copy.register()
    await agent.beat()
    assert w.state(job_id) == "RUNNING"


async def test_a_machine_that_was_restarted_speaks_again_after_a_moment(w: World) -> None:
    """Another boot of the same agent, once the former one is silent: what ran there has died."""
    agent, job_id = await w.running(named=True)
    await _pass_time(w, 16)
    agent.here.clear()
    await agent.names_itself(boot_id="boot-2").beat(resync=True)
    assert w.server.store.attempts(job_id)[0].state.value == "NODE_LOST"
    assert w.live_state.nodes["n1"].row.boot_id == "boot-2"


async def test_the_same_agent_gets_a_new_credential_at_once(w: World) -> None:
    """One whose credential was refused registers anew; its jobs go on and its reports are counted on."""
    agent, job_id = await w.running(named=True)
    before, acked = agent.credential, w.live_state.nodes["n1"].row.reports_acked
    await agent.register()
    assert agent.credential != before
    assert w.live_state.nodes["n1"].row.reports_acked == acked > 0
    await agent.end(job_id)
    assert w.state(job_id) == "SUCCEEDED"


async def test_both_sides_name_the_cluster_and_refuse_another(w: World) -> None:
    """Answers and commands name the cluster; another cluster or incarnation is refused with both names."""
    agent = await FakeAgent(w, "n1").names_itself().register()
    await w.submit({})
    answer = await agent.beat()
    assert answer.cluster == w.live_state.identity
    assert [command.incarnation for command in answer.commands] == [w.live_state.identity.incarnation]
    here = w.live_state.identity
    former = here.model_copy(update={"incarnation": "e" * 16})
    agent = await FakeAgent(w, "n1").names_itself().register()
    with pytest.raises(OtherIncarnation, match=rf"incarnation {'e' * 16} .* is incarnation {here.incarnation}") as told:
        await agent.names_itself(cluster=former).beat()
    assert told.value.identity == here.model_dump()
    here = w.live_state.identity.cluster_id
    agent = await FakeAgent(w, "n1").names_itself().register()
    for call in (FakeAgent(w, "n2").names_itself(cluster=_OTHER).register, agent.names_itself(cluster=_OTHER).beat):
        with pytest.raises(OtherCluster, match=rf"belongs to cluster {'c' * 32}; this server is cluster {here}"):
            await call()


async def test_a_report_about_the_same_number_of_another_incarnation_does_not_count(w: World) -> None:
    """Attempt 1 of job 1, as another life of the database granted it, is another attempt."""
    agent, job_id = await w.running(named=True)
    ended = {"type": "ended", "job_id": job_id, "attempt": 1, "cause": "exited", "exit_code": 0}
    await agent.beat({**ended, "incarnation": "e" * 16})
    assert (w.state(job_id), w.live_state.counters.stale_reports) == ("RUNNING", 1)
    await agent.beat({**ended, "incarnation": w.live_state.identity.incarnation})
    assert w.state(job_id) == "SUCCEEDED"


async def test_unknown_reports_are_skipped_acknowledged_and_told_once(
    w: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A newer agent beside this server: the rest of its heartbeat is taken."""
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
async def test_releases_too_far_apart_are_refused_with_words(w: World, protocol: int) -> None:
    """Not half understood."""
    agent = await FakeAgent(w, "n1").names_itself().register()
    agent.names_itself(protocol=protocol)
    for call in (agent.beat, agent.register):
        with pytest.raises(OtherProtocol, match=f"speaks protocol {protocol}, this side 2: .* upgrade this side"):
            await call()


@pytest.mark.parametrize("is_old", [True, False])
async def test_an_agent_of_the_first_release_is_sent_no_command_that_it_does_not_know(
    w: World, *, is_old: bool
) -> None:
    """For one such command it would lose the whole answer, again and again."""
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
    assert not w.server.store.load().rows(OutboxRow)


async def test_an_agent_of_the_first_release_is_given_no_job_that_it_would_start_without_its_code(
    w: World, agent: FakeAgent
) -> None:
    """The start is refused in words, and works once the agent is upgraded."""
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


async def test_an_agent_of_the_first_release_is_understood(w: World) -> None:
    """It names nothing: its attempts are known by their numbers. Upgraded, it is known from then on."""
    agent, job_id = await w.running()
    await agent.beat(resync=True)
    assert w.live_state.nodes["n1"].row.agent == ""
    for start in agent.here.values():
        assert start.incarnation == w.live_state.identity.incarnation
    await agent.names_itself().beat(resync=True)
    assert (w.state(job_id), w.live_state.nodes["n1"].row.agent) == ("RUNNING", "a" * 32)
    with pytest.raises(Conflict):
        await FakeAgent(w, "n1").register()


async def test_a_start_that_is_never_confirmed_is_withdrawn_and_tried_again(w: World) -> None:
    """After a lease it is taken back, after another one without an answer it is over; explain says so."""
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


async def test_a_part_that_waits_for_its_gang_is_not_taken_back(w: World) -> None:
    """However long another machine prepares, a lease and more: its start was not ordered yet."""
    agents = [await FakeAgent(w, name).register() for name in ("n1", "n2")]
    job_id = await w.submit({"num_nodes": 2, "resources": {"accelerators": "a:4"}})
    for agent, prepares_s in zip(agents, (25, 0), strict=True):
        await _pass_time(w, 1, *agents)
        await agent.beat({"type": "prepared", "job_id": job_id, "attempt": 1, "address": "10.0.0.1", "port": 4321})
        await _pass_time(w, prepares_s, *agents)
    await _pass_time(w, 1, *agents)
    assert [[each.type for each in agent.commands] for agent in agents] == [["prepare", "start"]] * 2


async def _withdrawn(w: World) -> tuple[FakeAgent, JobId]:
    """A machine that is heard and took a start, which was taken back as it never said what became of it."""
    agent = await FakeAgent(w, "n1").names_itself().register()
    job_id = await w.submit({})
    await agent.beat()
    agent.here.clear()
    await _pass_time(w, 25, agent)
    return agent, job_id


@pytest.mark.parametrize(
    ("what", "attempt"), [("a new agent", "START_FAILED"), ("it began", "PREEMPTED"), ("nothing", "START_FAILED")]
)
async def test_a_withdrawn_start_is_no_failure_of_the_job_nor_a_lost_machine(w: World, what: str, attempt: str) -> None:
    """Also where it begins just then and ends by our stop; where nothing is there, it is tried again at once."""
    agent, job_id = await _withdrawn(w)
    if what == "a new agent":
        await agent.beat(resync=True)
    elif what == "it began":
        await agent.beat({"type": "started", "job_id": job_id, "attempt": 1})
        await agent.end(job_id, exit_code=None, signal=9)
    else:
        await agent.end(job_id, exit_code=None)
    row = w.server.store.job(job_id)
    assert (w.server.store.attempts(job_id)[0].state.value, row.restarts) == (attempt, 0)
    assert not row.state.is_final
    w.clock.at += 5.0
    await w.advance(1.0)
    assert [start.attempt for start in await agent.start_all()] == [2]


async def test_an_agent_does_not_leave_its_jobs_for_another_name(w: World) -> None:
    """While jobs run under its first name the second one is refused; once they have ended it may have that too."""
    agent, job_id = await w.running(named=True)
    other = FakeAgent(w, "n2").names_itself()
    with pytest.raises(NameHeld, match="this agent is n1, where its jobs run"):
        await other.register()
    assert w.state(job_id) == "RUNNING"
    await agent.end(job_id)
    await other.register()


async def test_a_job_runs_once_its_ranks_have_brought_what_they_need(w: World) -> None:
    """What a machine tells twice changes nothing."""
    agent = await FakeAgent(w, "n1").names_itself().register()
    job_id = await w.submit({})
    await agent.beat()
    for brings, state in ((True, "STARTING"), (True, "STARTING"), (False, "RUNNING"), (True, "RUNNING")):
        await agent.beat({"type": "started", "job_id": job_id, "attempt": 1, "brings": brings})
        assert w.state(job_id) == state
    assert not w.live_state.jobs[job_id].attempt.parts["n1"].brings
