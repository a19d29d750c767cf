"""Calls of an agent that arrive late or twice: what they say is there is of the past."""

from pathlib import Path
from typing import Any

from live_world import FakeAgent, World, world

from walras.device_samples import DeviceSample
from walras.job_request import JobId
from walras.wire import AttemptHere, EndedReport, Heartbeat


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


async def test_a_repeated_first_call_ends_nothing(tmp_path: Path) -> None:
    """A proxy sends the first call of an agent again, after a job has begun: the job is not taken for vanished."""
    async with world(tmp_path) as w:
        _, first = await running(w)
        await w.server.gateway.heartbeat(first)
        await w.quiet()
        assert w.state(1) == "RUNNING"


async def test_a_call_of_an_earlier_start_ends_nothing(tmp_path: Path) -> None:
    """The agent was started anew since: its former self knows nothing of what runs."""
    async with world(tmp_path) as w:
        agent, first = await running(w)
        await w.server.gateway.heartbeat(call(agent, 1, session="s2", resync=True))
        await w.server.gateway.heartbeat(first)
        await w.quiet()
        assert w.state(1) == "RUNNING"


async def test_a_call_of_a_start_that_was_only_met_before_the_present_one_ends_nothing(tmp_path: Path) -> None:
    """Its first call was answered; its second, which names this life of the server, comes after its successor's."""
    async with world(tmp_path) as w:
        agent, _ = await running(w)
        for session in ("s2", "s3"):
            await w.server.gateway.heartbeat(call(agent, 1, session=session, resync=True, life=""))
        await w.server.gateway.heartbeat(call(agent, 2, session="s3", resync=True))
        agent.here.clear()
        await w.server.gateway.heartbeat(call(agent, 2, session="s2", resync=True))
        await w.quiet()
        assert w.state(1) == "RUNNING"


async def test_a_call_that_names_another_life_of_the_server_does_not_silence_the_present_start(tmp_path: Path) -> None:
    """It is one of a former start: the next call of the present one is believed at once."""
    async with world(tmp_path) as w:
        agent, _ = await running(w)
        await w.server.gateway.heartbeat(call(agent, 7, session="s0", life="before"))
        ended = EndedReport(report_id=1000, job_id=JobId(1), attempt=1, cause="exited", exit_code=0)
        agent.here.clear()
        await w.server.gateway.heartbeat(call(agent, 3, reports=[ended]))
        await w.quiet()
        assert w.state(1) == "SUCCEEDED"


async def test_a_new_start_without_the_job_ends_it(tmp_path: Path) -> None:
    """The newest call is believed: what is not there has died unseen."""
    async with world(tmp_path) as w:
        agent, _ = await running(w)
        agent.here.clear()
        answer = await w.server.gateway.heartbeat(call(agent, 1, session="s2", resync=True))
        await w.quiet()
        assert next(attempt.state for attempt in w.server.store.attempts(1)) == "NODE_LOST"
        assert answer.lease_s > 0


async def test_a_call_of_an_earlier_start_does_not_silence_the_present_one(tmp_path: Path) -> None:
    """The server was started anew and knows no calls; one of a former start of the agent comes late. The agent that
    calls on is believed again: what it reports counts."""
    async with world(tmp_path) as w:
        agent, _ = await running(w)
        await w.server.gateway.heartbeat(call(agent, 9, session="s0"))
        ended = EndedReport(report_id=1000, job_id=JobId(1), attempt=1, cause="exited", exit_code=0)
        agent.here.clear()
        for number in (3, 4, 5):
            await w.server.gateway.heartbeat(call(agent, number, reports=[ended]))
        await w.quiet()
        assert w.state(1) == "SUCCEEDED"


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


async def test_what_devices_do_is_shown_while_it_is_new(tmp_path: Path) -> None:
    """A call without samples keeps those of the call before; after a minute they say nothing any more."""
    async with world(tmp_path) as w:
        agent = await greeted(await FakeAgent(w, "m1").register(), w)
        sample = DeviceSample(device=0, utilization=97, power_w=300)
        await w.server.gateway.heartbeat(call(agent, 2, devices=[sample]))
        await w.server.gateway.heartbeat(call(agent, 3))
        assert w.server.views.nodes()[0].devices == [sample]
        w.clock.at += 61
        await w.server.gateway.heartbeat(call(agent, 4))
        assert w.server.views.nodes()[0].devices == []


async def test_samples_of_a_late_call_are_not_taken(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        agent = await greeted(await FakeAgent(w, "m1").register(), w)
        await w.server.gateway.heartbeat(call(agent, 3, devices=[DeviceSample(device=0, utilization=1)]))
        await w.server.gateway.heartbeat(call(agent, 2, devices=[DeviceSample(device=0, utilization=99)]))
        assert w.server.views.nodes()[0].devices[0].utilization == 1
