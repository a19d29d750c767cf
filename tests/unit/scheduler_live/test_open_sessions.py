"""Rights hold while a thing is open: sessions and logs that are followed end when their callers may not have them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSMsgType, WSServerHandshakeError

from tests.support.http_face import Face, facing
from tests.support.live_world import FakeAgent
from walras.connection.remote_session import parse_note, send_note

pytestmark = pytest.mark.slow

API = "/api/v1"
#: A change of rights, and the callers whose shells in a job of ada it ends.
CHANGES: list[tuple[str, str, dict[str, Any] | None, set[str]]] = [
    ("DELETE", "users/gone", None, {"gone"}),
    ("DELETE", "tokens/{revoked}", None, {"revoked"}),
    ("PATCH", "users/lowered", {"role": "user"}, {"lowered"}),
    ("PATCH", "users/elsewhere", {"projects": ["speech"]}, {"elsewhere"}),
    ("PATCH", "users/ada", {"role": "viewer"}, {"ada"}),
]
CALLERS = {"ada": "user"} | dict.fromkeys(("gone", "revoked", "lowered", "elsewhere", "stays"), "operator")


async def _token(face: Face, user: str, role: str) -> str:
    asked = {"user": user, "role": role, "projects": ["vision", "speech"]}
    made = await face.done("POST", f"{API}/tokens", asked, status=201)
    return str(made["token"])


async def _running_job(face: Face, token: str) -> FakeAgent:
    agent = await FakeAgent(face.world, "n1").register()
    await face.done("POST", f"{API}/jobs", {"run": "true", "project": "vision"}, token=token, status=201)
    await agent.start_all()
    return agent


async def _open(face: Face, agent: FakeAgent, token: str, kind: str) -> tuple[Any, Any]:
    """The websockets of a caller and of the machine, once the machine has said that it is ready."""
    asked = f"{API}/jobs/1/session?kind={kind}" + ("&port=9" if kind == "forward" else "&argv=[%22id%22]")
    caller = await face.client.ws_connect(asked, headers={"Authorization": f"Bearer {token}"})
    (lost,) = (await agent.beat()).sessions  # the machine does not get this answer
    (request,) = (await agent.beat()).sessions
    assert request == lost
    headers = {"Authorization": f"Bearer {agent.credential}"}
    machine = await face.client.ws_connect(f"/agent/v1/sessions/{request.session_id}", headers=headers)
    await send_note(machine, type="ready")
    assert (await caller.receive_json(timeout=10))["type"] == "ready"
    assert (await agent.beat()).sessions == []
    return caller, machine


@pytest.mark.parametrize("kind", ["shell", "exec", "forward"])
async def test_a_session_ends_with_words_when_its_caller_may_not_have_it(tmp_path: Path, kind: str) -> None:
    """Within five seconds of a removed user, a revoked token, a lowered role, a lost project; no other session does."""
    async with facing(tmp_path / "data", real_time=True) as face:
        tokens = {name: await _token(face, name, role) for name, role in CALLERS.items()}
        agent = await _running_job(face, tokens["ada"])
        sessions = {name: await _open(face, agent, token, kind) for name, token in tokens.items()}
        for method, path, body, ended in CHANGES:
            changed = await face.call(method, f"{API}/{path.format(revoked=tokens['revoked'][:14])}", body)
            assert changed.status == 200, await changed.text()
            for name in ended:
                caller, machine = sessions.pop(name)
                told = await caller.receive(timeout=5)
                note = parse_note(told.data) if told.type is WSMsgType.TEXT else None
                assert note.type == "refused"
                assert "may not enter job 1 any more" in note.detail
                assert (await machine.receive(timeout=5)).type is WSMsgType.CLOSE
        assert set(sessions) == {"stays"}
        caller, machine = sessions["stays"]
        await caller.send_bytes(b"\0still here")
        assert (await machine.receive(timeout=5)).data == b"\0still here"
        await caller.close()


async def test_a_followed_log_ends_when_its_reader_may_not_see_it(tmp_path: Path) -> None:
    """Nothing that is written later is sent to a user who has lost the project."""
    async with facing(tmp_path / "data", real_time=True) as face:
        ada, eve = await _token(face, "ada", "user"), await _token(face, "eve", "viewer")
        await _running_job(face, ada)
        followed = await face.call("GET", f"{API}/jobs/1/logs?follow=1", token=eve)
        assert followed.status == 200
        changed = await face.call("PATCH", f"{API}/users/eve", {"projects": ["speech"]})
        assert changed.status == 200
        assert await asyncio.wait_for(followed.read(), 5) == b""
        assert (await face.call("GET", f"{API}/jobs/1/logs?follow=1", token=eve)).status == 404


async def test_a_session_beyond_the_share_is_refused_with_words_and_leaves_no_trace(tmp_path: Path) -> None:
    """Who asks for 500 sessions writes no more to the audit than are opened."""
    async with facing(tmp_path / "data", real_time=True) as face:
        ada = await _token(face, "ada", "user")
        await _running_job(face, ada)
        face.world.server.gateway.sessions.shares.most = 0
        audited = len((await face.json("GET", f"{API}/audit"))[1])
        asked = f"{API}/jobs/1/session?kind=exec&argv=[%22id%22]"
        with pytest.raises(WSServerHandshakeError) as refused:
            await face.client.ws_connect(asked, headers={"Authorization": f"Bearer {ada}"})
        assert refused.value.status == 429
        assert len((await face.json("GET", f"{API}/audit"))[1]) == audited
