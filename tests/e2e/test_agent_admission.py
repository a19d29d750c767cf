"""What a real agent takes on and what it refuses: devices, folders, late starts, machines that may not join."""

import asyncio
from pathlib import Path

import pytest

from tests.support.agent_commands import LOOP, AgentStand, a_stop, next_command_id
from walras.wire import ClusterIdentity, PrepareCommand
from workers.agent.report_store import AgentStore, AttemptPhase
from workers.agent.startup import EXIT_OTHER_CLUSTER
from workers.devices import AttemptKey
from workers.supervisor_protocol import read_plan

pytestmark = pytest.mark.slow


async def test_what_cannot_start_is_refused_with_the_reason(server: AgentStand) -> None:
    """Devices that are held, a missing workdir, and a start after its stop are refused; nothing is started."""
    agent = server.begin()
    await server.start(LOOP, devices=[0, 1])
    await server.report("progress")
    await server.start(LOOP, job_id=2, devices=[1])
    await server.start(LOOP, job_id=3, workdir="/no/such/folder", devices=[1])
    await server.until(lambda: len(server.of_type("refused")) == 2, 40, "two refusals")
    details = {report.job_id: report.detail for report in server.of_type("refused")}
    assert "held by job 1, attempt 1" in details[2]
    await server.send(a_stop(attempt=9))
    await server.report("ended")
    late = await server.start(LOOP, attempt=9)
    await server.acknowledged(late.command_id)
    beats = len(server.heartbeats)
    await server.until(lambda: len(server.heartbeats) > beats + 3, 40, "the agent has had time")
    assert len(list(agent.state.glob("attempts/*"))) == 1


async def test_an_attempt_whose_start_was_cut_off_is_refused(server: AgentStand, tmp_path: Path) -> None:
    """An agent killed between decision and start: the next one says so, and the late launcher starts nothing."""
    state = tmp_path / "agent"
    store = AgentStore(state)
    store.move_attempt(AttemptKey(1, 1), AttemptPhase.STARTING)
    store.flush()
    store.close()
    folder = state / "attempts" / "1-1"
    folder.mkdir(parents=True)
    agent = server.begin()
    assert "restarted before" in (await server.report("refused")).detail
    assert not folder.exists()
    await server.start(LOOP)
    await server.until(lambda: len(server.heartbeats) > 5, 40, "the agent has had time")
    assert agent.supervisors() == []


async def test_prepare_holds_devices_and_a_port_until_stop(server: AgentStand) -> None:
    """A prepared gang has its devices and, on node rank 0, a port; stop gives both back."""
    server.begin()
    prepare = PrepareCommand(command_id=next_command_id(), job_id=1, attempt=1, devices=[0, 1], node_rank=0)
    await server.send(prepare)
    prepared = await server.report("prepared")
    assert prepared.port > 0
    assert prepared.address == "127.0.0.1"
    await server.start("", job_id=2, devices=[0])
    assert "held by job 1" in (await server.report("refused")).detail
    await server.send(a_stop())
    await server.report("ended")
    await server.start("print('free again')", job_id=2, attempt=2, devices=[0])
    await server.report("started")


async def test_a_notice_is_reported_once(server: AgentStand) -> None:
    """The file with the seconds left becomes one report, however often the agent looks, restarts included."""
    agent = server.begin()
    await server.until(lambda: server.heartbeats, 40, "registered")
    (agent.state / "notice").write_text("300")
    notice = await server.report("notice")
    assert 250 < notice.gone_in_s <= 300
    agent.kill()
    beats = len(server.heartbeats)
    agent.start()
    await server.until(lambda: len(server.heartbeats) > beats + 4, 40, "the new agent is at work")
    assert len(server.of_type("notice")) == 1


async def test_a_wrong_join_token_ends_the_agent_with_1(server: AgentStand) -> None:
    """A machine that may not join says so and stops asking."""
    server.join_token = "another"
    agent = server.begin()
    # The fixture wrote the token it was given; the server has changed its mind since.
    server.join_token = "yet another"
    assert agent._process is not None
    assert await asyncio.to_thread(agent._process.wait, 300) == 1
    assert "does not accept this machine" in agent.log


async def test_the_lease_of_a_start_counts_from_when_its_heartbeat_was_sent(server: AgentStand) -> None:
    """An answer that was long on its way grants no more for it: the server gives the machine up by its own clock."""
    server.delay_s = 0.8
    agent = server.begin()
    await server.start("import time; time.sleep(600)", lease_s=90.0)
    await server.report("started")
    plan = read_plan(agent.state / "attempts" / "1-1")
    assert plan.lease_until <= server.heard_at[0] + 90.0


async def test_a_start_that_arrives_after_its_lease_starts_nothing(server: AgentStand) -> None:
    """By then the job may run elsewhere."""
    server.delay_s = 0.8
    agent = server.begin()
    await server.start(LOOP, lease_s=0.5)
    refused = await server.report("refused")
    assert "after its lease of 0.5 s had run out" in refused.detail
    assert agent.supervisors() == []


async def test_a_machine_that_cannot_write_says_so_and_lives_on(server: AgentStand) -> None:
    """A full disk or a folder in the way is a refusal with the reason, not the end of the agent."""
    agent = server.begin()
    await server.until(lambda: server.heartbeats, 40, "registered")
    (agent.state / "attempts").mkdir(exist_ok=True)
    (agent.state / "attempts" / "1-1").write_text("in the way")
    await server.start(LOOP)
    refused = await server.report("refused")
    assert "File exists" in refused.detail
    assert "attempts/1-1" in refused.detail
    await server.start("print('well')", attempt=2)
    await server.report("started")


async def test_a_supervisor_that_does_not_start_says_why(server: AgentStand) -> None:
    """The refusal carries the end of its log: nobody should have to find the machine and the file first."""
    server.begin()
    await server.start(LOOP, argv=[])
    refused = await server.report("refused")
    assert "supervisor did not start" in refused.detail
    assert "IndexError" in refused.detail


async def test_an_agent_of_another_cluster_ends_with_its_own_exit_code(server: AgentStand) -> None:
    """The address leads to another cluster now: it stops taking commands, says what to do, and is not restarted."""
    server.cluster = ClusterIdentity(cluster_id="a" * 32, incarnation="1" * 16)
    agent = server.begin()
    await server.until(lambda: bool(server.heartbeats), 40, "it has joined")
    server.cluster = ClusterIdentity(cluster_id="b" * 32, incarnation="1" * 16)
    assert await asyncio.to_thread(agent.wait, 300) == EXIT_OTHER_CLUSTER
    assert "belongs to" in agent.log  # the server's words, or the agent's own where it notices first
    assert "a" * 32 in agent.log
    assert "b" * 32 in agent.log
