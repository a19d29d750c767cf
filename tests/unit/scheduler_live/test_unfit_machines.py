"""A machine whose agent reports a fault of its devices: what people see of it, and how it comes back."""

from pathlib import Path

from tests.support.live_world import FakeAgent, world

FIT = [{"device": 0}, {"device": 1}]
FAULT = [{"device": 0}, {"device": 1, "fault": "Xid 79, it fell off the bus\x1b[2J"}]
SHOWN = "GPU 1: Xid 79, it fell off the bus?[2J"


async def test_a_faulty_machine_takes_no_jobs_and_says_why_until_it_is_checked(tmp_path: Path) -> None:
    """Its state and the reason are in the tables and survive a restart of the server; so does its return."""
    async with world(tmp_path) as w:
        agents = [await FakeAgent(w, name).register() for name in ("n1", "n2")]
        for agent in agents:
            await agent.beat(devices=FIT)
        await agents[0].beat(devices=FAULT)
        row = w.live_state.nodes["n1"].row  # type: ignore[index]
        assert (row.state, row.cordon, row.detail) == ("up", "quarantined", SHOWN)
        await agents[0].beat(devices=FAULT)
        for _ in range(2):
            await w.submit({"run": "true", "resources": {"accelerators": "a:2"}})
        await w.loop.settled()
        assert [len((await agent.beat()).commands) for agent in agents] == [0, 1]
    async with world(tmp_path) as again:
        again_row = again.live_state.nodes["n1"].row  # type: ignore[index]
        assert (again_row.cordon, again_row.detail) == ("quarantined", SHOWN)
        for agent in agents:
            agent.world = again
        await agents[0].beat(devices=FAULT, resync=True)
        await agents[0].beat(devices=FIT)
        assert (again_row.cordon, again_row.detail) == ("", "")
