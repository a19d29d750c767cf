"""Machines that will not come back are struck off the list, and none that may be alive is."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scheduler.live.auth.access_control import UserRole
from scheduler.live.store.event_journal import replay_journal
from scheduler.live.store.sqlite_store import read_stored_journal
from tests.support.http_face import Face, facing
from tests.support.live_world import FakeAgent, world

NODE = "/api/v1/nodes/n1"


@pytest.fixture
async def face(tmp_path: Path) -> AsyncIterator[Face]:
    async with facing(tmp_path / "data") as found:
        yield found


async def _silent(face: Face, seconds: float) -> None:
    face.world.clock.at += seconds
    await face.world.loop.perform(face.world.server.gateway.notice_silence)


async def test_a_member_that_is_heard_stays(face: Face) -> None:
    await FakeAgent(face.world, "n1").register()
    status, problem = await face.json("DELETE", NODE)
    assert status == 409
    assert "heard 0 s ago" in problem["detail"]
    assert "stop its agent" in problem["fix"]
    assert (await face.json("DELETE", "/api/v1/nodes/nope"))[0] == 404
    operator = face.token("ada", UserRole.OPERATOR)
    assert (await face.json("DELETE", NODE, token=operator))[0] == 403
    assert [node["node_id"] for node in (await face.json("GET", "/api/v1/nodes"))[1]] == ["n1"]


async def test_a_machine_that_holds_an_attempt_stays_until_it_is_lost(face: Face) -> None:
    """Silent, but its ranks may be alive; once its leases have run out it may go, and the job is elsewhere or waits."""
    agent = await FakeAgent(face.world, "n1").register()
    job_id = await face.world.submit({})
    await agent.start_all()
    await _silent(face, 16.0)
    status, problem = await face.json("DELETE", NODE)
    assert (status, problem["detail"]) == (409, f"n1 holds a part of an attempt of job {job_id}")
    await _silent(face, 20.0)
    assert face.world.live_state.nodes["n1"].row.state == "lost"
    status, view = await face.json("DELETE", NODE)
    assert (status, view["state"]) == (200, "lost")
    assert (await face.json("GET", "/api/v1/nodes"))[1] == []
    row = (await face.json("GET", "/api/v1/audit"))[1][0]
    assert (row["action"], row["subject"]) == ("DELETE /api/v1/nodes/{node_id}", "node n1")
    assert row["before"]["state"] == "lost"


@pytest.mark.sqlite_file
async def test_a_drained_silent_machine_leaves_the_core_and_the_tables_and_may_join_anew(tmp_path: Path) -> None:
    async with facing(tmp_path) as face:
        agent = await FakeAgent(face.world, "n1").register()
        await agent.beat()
        await face.json("POST", f"{NODE}/drain")
        await _silent(face, 16.0)
        assert (await face.json("DELETE", NODE))[0] == 200
        assert face.world.server.core.ledger.fleet.machine("n1") is None  # type: ignore[arg-type]
        assert face.world.server.gateway.node_of(agent.credential) is None
    async with world(tmp_path) as again:
        assert not again.live_state.nodes
        back = await FakeAgent(again, "n1").register()
        job_id = await again.submit({})
        await back.start_all()
        assert again.state(job_id) == "RUNNING"
    async with world(tmp_path) as third:
        assert list(third.live_state.nodes) == ["n1"]
    assert replay_journal(read_stored_journal(tmp_path)).identical
