"""A real agent and real supervisors that are killed, frozen, restarted or out of touch with their server."""

import os
import signal
from pathlib import Path

import pytest

from tests.support.agent_commands import LOOP, Begin, a_start, a_stop, next_command_id
from tests.support.fake_agent_server import FakeAgentServer
from walras.wire import Heartbeat
from workers import processes
from workers.supervisor_protocol import JOURNAL_FILE, read_attempt_journal

pytestmark = pytest.mark.slow


async def test_an_exit_85_that_happened_while_the_agent_was_dead_is_reported(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    """kill -9 of the agent: ranks undisturbed; the next agent reports what they did meanwhile, commit included."""
    agent = begin()
    go = tmp_path / "go"
    script = LOOP.replace("counter.n += 1", f"counter.n += 1\n    if __import__('os').path.exists({str(go)!r}): break")
    script += "\nassert loop.save()\nraise SystemExit(85)\n"
    await server.send(a_start(tmp_path, script))
    await server.report("progress")
    ranks = agent.alive()
    agent.kill()
    assert agent.alive() == ranks
    go.touch()
    await server.until(lambda: not agent.alive(), 20, "the job ends by itself")
    assert not server.of_type("ended")
    agent.start()
    ended = await server.report("ended")
    assert (ended.cause, ended.exit_code) == ("exited", 85)
    committed = await server.report("committed")
    assert committed.report_id < ended.report_id
    assert committed.manifest.step == ended.steps > 0
    assert len(server.of_type("started")) == 1


async def test_an_agent_that_comes_back_within_the_lease_restarts_nothing(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    """SIGTERM or kill -9 of the agent and a new one: the same ranks, renewed, known to the server as before."""
    agent = begin()
    start = a_start(tmp_path, LOOP, lease_s=30.0)
    await server.send(start)
    await server.report("progress")
    ranks = agent.alive()
    assert agent.terminate() == 0
    agent.start()

    def resyncs() -> list[Heartbeat]:
        return [beat for beat in server.heartbeats if beat.resync]

    await server.until(lambda: len(resyncs()) == 2, 30, "the new agent says what is here")
    assert [(here.job_id, here.attempt) for here in resyncs()[-1].here] == [(1, 1)]
    agent.kill()
    killed_at = processes.boottime()
    agent.start()
    again = start.model_copy(update={"command_id": next_command_id()})
    await server.send(again)
    await server.acknowledged(again.command_id, 30.0)
    # Longer than any lease that an agent before it was granted.
    await server.until(lambda: agent.lease_until(1, 1) > killed_at + 30.0, 30, "the newest agent renews the lease")
    assert agent.alive() == ranks
    assert len(server.of_type("started")) == 1
    await server.send(a_stop())
    assert (await server.report("ended")).exit_code == 85


async def test_ranks_are_gone_at_expiry_when_no_agent_comes_back(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    """An agent that stays away: its supervisor ends the attempt by the end of the lease, and a later agent says so."""
    server.lease_s = 15.0
    agent = begin()
    ignore = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    await server.send(a_start(tmp_path, ignore, lease_s=15.0))
    await server.report("started")
    agent.kill()
    until = agent.lease_until(1, 1)
    await server.until(lambda: not agent.alive(), 20.0, "ranks gone at expiry")
    agent.start()
    assert (await server.report("ended")).cause == "lease_expired"
    events, _ = read_attempt_journal(agent.state / "attempts" / "1-1" / JOURNAL_FILE)
    # Were they signalled at the end of the lease only, they would last for another third of it.
    assert [event["at"] <= until + 3.0 for event in events if event["type"] == "ended"] == [True]


async def test_a_server_that_is_away_for_less_than_the_lease_disturbs_nothing(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    """Calls fail for a while: the job goes on, and what was reported meanwhile arrives once, in order."""
    agent = begin()
    await server.send(a_start(tmp_path, LOOP))
    await server.report("progress")
    ranks = agent.alive()
    server.is_down = True
    await server.until(lambda: server.refused >= 3, 30, "calls fail")
    server.is_down = False
    steps = server.of_type("progress")[-1].steps
    await server.until(lambda: server.of_type("progress")[-1].steps > steps, 30, "progress arrives again")
    assert agent.alive() == ranks
    ids = [report.report_id for report in server.reports]
    assert ids == sorted(set(ids))


async def test_a_killed_supervisor_is_reported_as_lost_with_nothing_left(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    """kill -9 of a supervisor is an infrastructure loss, reported once nothing of the attempt lives."""
    agent = begin()
    await server.send(a_start(tmp_path, LOOP))
    await server.report("progress")
    (supervisor,) = agent.supervisors()
    os.kill(supervisor, signal.SIGKILL)
    assert (await server.report("ended")).cause == "supervisor_lost"
    assert agent.alive() == []


async def test_a_fenced_attempt_is_stopped_at_once(server: FakeAgentServer, begin: Begin, tmp_path: Path) -> None:
    """An attempt whose fence is old gets no grace."""
    agent = begin()
    await server.send(a_start(tmp_path, LOOP, lease_s=6000.0, grace_s=600.0))
    await server.report("progress")
    server.fenced.add((1, 1))
    await server.report("ended", 20.0)
    assert agent.alive() == []
    assert not server.of_type("committed")


async def test_a_machine_frozen_past_its_leases_reports_no_commit_when_it_thaws(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    """SIGSTOP of agent, guardian, supervisor and ranks; after SIGCONT the ranks are gone at once, uncommitted."""
    server.lease_s = 12.0
    agent = begin()
    await server.send(a_start(tmp_path, LOOP.replace("every_s=None", "every_s=0.2"), lease_s=12.0))
    await server.report("committed")
    frozen = [agent.pid, *agent.guardians(), *agent.supervisors(), *agent.alive()]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    frozen_at = processes.boottime()
    await server.until(lambda: processes.boottime() > frozen_at + server.lease_s + 0.5, 30, "the lease is over")
    for pid in reversed(frozen):
        os.kill(pid, signal.SIGCONT)
    await server.until(lambda: not agent.alive(), 1.0, "ranks gone after the thaw")
    assert (await server.report("ended")).cause == "lease_expired"
    events, _ = read_attempt_journal(agent.state / "attempts" / "1-1" / JOURNAL_FILE)
    committed = [event for event in events if event["type"] == "committed"]
    assert committed
    assert all(event["at"] <= frozen_at for event in committed)
    assert len(server.of_type("committed")) == len(committed)
