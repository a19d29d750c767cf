"""What hostile ranks and machines do to a live server: nothing but to their own jobs."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.rules import RoundRules
from tests.support.http_face import Face, facing
from tests.support.live_world import FakeAgent, World
from walras.wire import Heartbeat

API = "/api/v1"


@pytest.fixture
async def face(tmp_path: Path) -> AsyncIterator[Face]:
    async with facing(tmp_path) as made:
        yield made


STARTED: dict[str, Any] = {"type": "started", "job_id": 1, "attempt": 1, "report_id": 1}
IMPOSSIBLE: list[dict[str, Any]] = [
    {"reports": [STARTED | {"report_id": 10**30}]},
    {"reports": [STARTED | {"report_id": 10**400}]},
    {"reports": [STARTED | {"job_id": 10**30}]},
    {"reports": [STARTED | {"type": "progress", "steps": float("nan")}]},
    {"reports": [STARTED | {"type": "progress", "steps": 10**400}]},
    {"reports": [STARTED | {"type": "notice", "gone_in_s": float("inf")}]},
    {"acks": [10**30]},
    {"here": [{"job_id": 10**30, "attempt": 1}]},
    {"wait_s": float("nan")},
]


@pytest.mark.parametrize("message", IMPOSSIBLE, ids=lambda message: json.dumps(message)[:60])
async def test_an_impossible_number_is_answered_with_400(face: Face, agent: FakeAgent, message: dict[str, Any]) -> None:
    """As often as one likes: the server answers the next call."""
    for _ in range(3):
        body = {"node_id": "n1", **message}
        answer = await face.call("POST", "/agent/v1/heartbeat", body, token=agent.credential)
        assert answer.status == 400
    good = await face.call("POST", "/agent/v1/heartbeat", {"node_id": "n1"}, token=agent.credential)
    assert good.status == 200


async def test_a_body_of_any_depth_is_refused(face: Face, agent: FakeAgent) -> None:
    """Too deep is not understood; too many values are too large."""
    wrong = [(b"[" * 10_000, 400), (b'{"reports":' * 9_000, 400), (b'{"acks":[' + b"9" * 5000 + b"]}", 400)]
    for body, status in (*wrong, (b"\xff", 400), (b"[" * 30_000, 413), (b'{"reports":' * 30_000, 413)):
        answer = await face.call("POST", "/agent/v1/heartbeat", body, token=agent.credential)
        assert answer.status == status


async def test_a_job_that_kills_its_supervisor_is_held_and_explained(face: Face, agent: FakeAgent) -> None:
    """Five tries; then its owner reads why, and what to do. The machine takes other jobs all the while."""
    job_id = await face.world.submit({})
    held = RoundRules().supervisor_losses_held
    for number in range(1, held + 1):
        await agent.start_all()
        await agent.end(job_id, number, None, cause="supervisor_lost", witnessed=True)
        await face.world.advance(100.0)
        await agent.beat()
    _, shown = await face.json("GET", f"{API}/jobs/{job_id}")
    assert (shown["state"], shown["reason"], shown["attempts"]) == ("HELD", "HOLD:REPEATED_FAILURE", held)
    _, explained = await face.json("GET", f"{API}/jobs/{job_id}/explain")
    (line,) = explained["reasons"]
    assert "its supervisor was killed, while the machine lived on; 5 times in a row, last on n1" in line["detail"]
    assert line["fix"] == f"walras hold --off {job_id}"
    other = await face.world.submit({})
    await agent.start_all()
    assert face.world.state(other) == "RUNNING"


async def test_a_machine_says_that_its_disk_is_full(w: World) -> None:
    """Shown as long as it says so; the machine stays up, and its leases are renewed."""
    agent, job_id = await w.running()
    full = {"node_id": "n1", "problem": "disk full: 1 MiB free", "here": [{"job_id": job_id, "attempt": 1}]}
    answer = await w.server.gateway.heartbeat(Heartbeat.model_validate(full))
    (shown,) = w.server.views.nodes()
    assert (shown.state, shown.detail) == ("up", "disk full: 1 MiB free")
    assert answer.fenced == []
    await agent.beat()
    assert w.server.views.nodes()[0].detail == ""


async def test_a_token_expires_within_bounds(face: Face) -> None:
    for seconds in (1e308, float("inf"), float("nan"), 10**400, -1):
        body = {"user": "ada", "role": "user", "expires_in_s": seconds}
        assert (await face.call("POST", f"{API}/tokens", body)).status == 400
