"""The audit: every write through the API leaves a row with who, what, before and after, in the same transaction."""

import json
from typing import Any

import pytest

from scheduler.live.auth.access_control import UserRole
from scheduler.live.http.web_application import api_routes
from scheduler.live.services import notifications
from tests.support.http_face import Face
from tests.support.live_world import FIFO, FakeAgent

pytestmark = pytest.mark.sql

API = "/api/v1"
JOB = {"run": "true", "name": "j", "envs": {"KEY": "hidden-value"}, "secrets": {"S": {"value": "sealed-value"}}}
POOL = {"shape": "px1", "accelerator": "p", "accelerators": 1, "cpus": 8, "memory": "16GB"}
#: A request for every route by which users write, in an order in which each one succeeds.
WRITES: tuple[tuple[str, str, Any], ...] = (
    ("POST", "jobs", JOB),
    ("POST", "jobs:batch", {"jobs": [{"run": "true"}, {"run": "true", "hold": True}, {"run": ""}]}),
    ("POST", "jobs/1/hold", None),
    ("PATCH", "jobs/1", {"priority": 80}),
    ("POST", "jobs/3/redirect", {"resources": {"accelerators": "any:1"}}),
    ("POST", "jobs/1/release", None),
    ("POST", "jobs/1/cancel", None),
    ("POST", "jobs:cancel", {"jobs": [2]}),
    ("POST", "nodes/n1/drain", None),
    ("POST", "nodes/n1/resume", None),
    ("POST", "facts", {"kind": "k", "facts": {"gradient_bytes": 5.0}}),
    ("PUT", "policy", {**FIFO, "rules": {"round_s": 20, "budgets": [{"project": "vision", "usd": 100}]}}),
    ("POST", "budgets/credits", {"project": "vision", "usd": 5.0}),
    ("POST", "notify", {"url": "https://example.org/hidden-value", "kinds": ["failed"]}),
    ("POST", "notify/1/test", None),
    ("DELETE", "notify/1", None),
    ("POST", "tokens", {"user": "ada", "role": "user"}),
    ("POST", "users", {"name": "bob"}),
    ("PATCH", "users/bob", {"role": "operator"}),
    ("DELETE", "users/bob", None),
    ("POST", "projects", {"name": "vision"}),
    ("PATCH", "projects/vision", {"defaults": {"priority": 40}}),
    ("DELETE", "projects/vision", None),
    ("PATCH", "roles/user", {"caps": {"max_priority": 70}}),
    ("POST", "pools", POOL),
    ("PATCH", "pools/px1%2Fowned%2Fdefault", {"drained": True}),
    ("DELETE", "pools/px1%2Fowned%2Fdefault", None),
    ("POST", "pools:revoke", {"pool_id": "none"}),
    ("POST", "reservations", {"nodes": ["n1"], "maintenance": True, "ends": "+1h"}),
    ("DELETE", "reservations/1", None),
    ("DELETE", "tokens/PREFIX", None),
    ("DELETE", "nodes/n1", None),
    ("POST", "content/prune", {}),
)
#: Asks, though it is sent as a write is.
ASKING = {"/api/v1/jobs:dryrun", "/api/v1/jobs:quote", "/api/v1/whatif"}


async def test_every_write_leaves_a_row(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each route of the table by which users write; no secret in any row."""
    monkeypatch.setattr(notifications, "_TEST_S", 0.0)  # nothing sends here
    await FakeAgent(face.world, "n1").register()
    prefix, done = "", set()
    for number, (method, path, body) in enumerate(WRITES, 1):
        if (method, path) == ("DELETE", "nodes/n1"):
            for _ in range(2):  # silent, then lost
                face.world.clock.at += 1000.0
                await face.world.loop.perform(face.world.server.gateway.notice_silence)
        status, answer = await face.json(method, f"{API}/{path.replace('PREFIX', prefix)}", body)
        assert status < 300 or path == "pools:revoke", (path, answer)
        prefix = answer.get("prefix", prefix)
        rows = await face.got("/audit")
        assert len(rows) == number, path
        assert (rows[0]["user"], rows[0]["role"]) == ("admin", "admin")
        done.add(rows[0]["action"])
    writing = {
        f"{route.method} {route.path}"
        for route in api_routes()
        if route.method != "GET" and route.role and "agent" not in route.who
    }
    named = {each.replace(":[0-9]+", "") for each in writing if each.split()[1] not in ASKING}
    assert done == named
    text = json.dumps(await face.got("/audit"))
    assert "hidden-value" not in text
    assert "sealed-value" not in text
    assert "wlr_u_" not in text.replace(prefix, "")


async def test_a_row_says_what_was_before_and_after(face: Face) -> None:
    """Newest first; a refused request and a repeated one leave nothing."""
    await face.json("POST", f"{API}/jobs", {"run": "true"}, key="k")
    await face.json("POST", f"{API}/jobs", {"run": "true"}, key="k")
    await face.json("PATCH", f"{API}/jobs/1", {"priority": 70})
    await face.json("PATCH", f"{API}/jobs/9", {"priority": 70})
    await face.json("PATCH", f"{API}/jobs/1", {"priority": 170})
    changed, submitted = await face.got("/audit")
    assert (submitted["subject"], submitted["before"], submitted["after"]["priority"]) == ("job 1", None, 50)
    assert (changed["before"]["priority"], changed["after"]["priority"]) == (50, 70)
    assert changed["action"] == "PATCH /api/v1/jobs/{job_id}"
    assert changed["address"] == "127.0.0.1"


async def test_who_sees_what(face: Face) -> None:
    """Administrators everything; operators the jobs of their projects, and nothing of tokens; users nothing."""
    ada, ops = face.token("ada", UserRole.USER, "p"), face.token("ops", UserRole.OPERATOR, "p")
    everywhere = face.token("roamer", UserRole.OPERATOR, "*")
    await face.json("POST", f"{API}/jobs", {"run": "true", "project": "p"}, token=ada)
    await face.json("POST", f"{API}/jobs", {"run": "true", "project": "q"})
    await face.json("POST", f"{API}/tokens", {"user": "eve"})
    assert [row["subject"] for row in await face.got("/audit", token=ops)] == ["job 1"]
    assert [row["subject"] for row in await face.got("/audit", token=everywhere)] == ["job 2", "job 1"]
    assert len(await face.got("/audit")) == 3
    assert (await face.json("GET", f"{API}/audit", token=ada))[0] == 403
    assert [row["user"] for row in await face.got("/audit?user=ada")] == ["ada"]
    assert len(await face.got("/audit?limit=1")) == 1
    assert await face.got("/audit?since=2100-01-01T00:00:00Z") == []
    assert len(await face.got("/audit?since=2000-01-01T00:00:00Z")) == 3
    status, problem = await face.json("GET", f"{API}/audit?since=yesterday")
    assert (status, problem["field"]) == (400, "since")


async def test_a_huge_before_or_after_is_cut(face: Face) -> None:
    long = {"policy": {"name": "fifo"}, "rules": {"budgets": [{"project": f"p{n}" * 20, "usd": 1} for n in range(200)]}}
    assert (await face.json("PUT", f"{API}/policy", long))[0] == 200
    (row,) = await face.got("/audit")
    assert len(json.dumps(row["after"])) < 10_000
