"""Another deadline through the API: durable, audited, and refused where it is none."""

import asyncio
import json
from math import inf
from pathlib import Path

import pytest

from scheduler.live.auth.access_control import UserRole
from scheduler.live.store.event_journal import replay_folder
from tests.support.http_face import Face, facing
from tests.support.live_world import world
from walras.job_request import JobId

API = "/api/v1"
J1 = JobId(1)
#: 1_700_000_000, when the clock of these tests begins.
BEGIN = "2023-11-14T22:13:20"


async def patched(face: Face, deadline: object, token: str | None = None) -> tuple[int, dict[str, str]]:
    return await face.json("PATCH", f"{API}/jobs/1", {"deadline": deadline}, token=token)


def deadline_of(face: Face) -> float:
    return face.world.server.core.ledger.jobs[J1].request.deadline_at


@pytest.mark.sqlite_file
async def test_it_is_what_counts_from_then_on_and_after_a_restart(tmp_path: Path) -> None:
    """The spec tells the instant, whatever words it was changed with."""
    async with facing(tmp_path) as face:
        await face.json("POST", f"{API}/jobs", {"run": "true", "deadline": "+1h", "hold": True})
        face.world.clock.at = 600.0
        status, told = await patched(face, "+6h")
        assert (status, told["spec"]["deadline"]) == (200, "2023-11-15T04:23:20+00:00")  # type: ignore[index]
        assert deadline_of(face) == 600.0 + 6 * 3600.0
    async with world(tmp_path, at=700.0) as w:
        assert w.server.core.ledger.jobs[J1].request.deadline_at == 600.0 + 6 * 3600.0
    async with facing(tmp_path) as face:
        status, told = await patched(face, "none")
        assert "deadline" not in told["spec"]
        assert deadline_of(face) == inf
    assert replay_folder(tmp_path).identical


async def test_a_job_that_shares_gets_none(tmp_path: Path) -> None:
    """As at submission, where sharing and a deadline exclude each other; the job is as it was."""
    async with facing(tmp_path) as face:
        spec = {"run": "true", "resources": {"accelerators": "a:1", "shared": {"memory": "1GB", "busy": 0.3}}}
        assert (await face.json("POST", f"{API}/jobs", spec))[0] == 201
        status, told = await patched(face, "+6h")
        assert (status, told["field"]) == (400, "resources.shared")
        assert deadline_of(face) == inf
        _, shown = await face.json("GET", f"{API}/jobs/1")
        assert "deadline" not in shown["spec"]
        assert (await patched(face, "none"))[0] == 200


@pytest.mark.sqlite_file
async def test_of_two_changes_at_once_both_are_kept(tmp_path: Path) -> None:
    """As two people, or a script that changes one thing after another without waiting, make them."""
    async with facing(tmp_path) as face:
        await face.json("POST", f"{API}/jobs", {"run": "true", "hold": True})
        terms = face.json("PATCH", f"{API}/jobs/1", {"priority": 60})
        where = face.json("POST", f"{API}/jobs/1/redirect", {"resources": {"accelerators": "a:2"}})
        answers = await asyncio.gather(patched(face, "+6h"), terms, where)
        assert [status for status, _ in answers] == [200, 200, 200]
        _, told = await face.json("GET", f"{API}/jobs/1")
        assert {"deadline", "priority", "resources"} <= set(told["spec"])
    async with world(tmp_path, at=700.0) as w:
        request = w.server.core.ledger.jobs[J1].request
        assert (request.deadline_at, request.demands[0].count) == (6 * 3600.0, 2)


async def test_the_audit_tells_what_it_was_and_is(face: Face) -> None:
    await face.json("POST", f"{API}/jobs", {"run": "true", "hold": True})
    await patched(face, "2023-11-20T00:00:00Z")
    await patched(face, "none")
    _, rows = await face.json("GET", f"{API}/audit")
    newest, first, _ = rows
    assert (first["before"]["deadline"], first["after"]["deadline"]) == (None, "2023-11-20T00:00:00.000+00:00")
    assert (newest["before"]["deadline"], newest["after"]["deadline"]) == ("2023-11-20T00:00:00.000+00:00", None)


@pytest.mark.parametrize(
    ("deadline", "words"),
    [
        ("tomorrow", "is not an instant"), ("+0h", "has passed"), (f"{BEGIN}Z", "has passed"),
        ("+1h", "is before not_before"), ("9999-12-31T23:59:59-14:00", "calendar"), ("+" + "9" * 70, "at most 64"),
        (7, "string"),
    ],
)  # fmt: skip
async def test_what_is_no_deadline_changes_nothing(face: Face, deadline: object, words: str) -> None:
    await face.json("POST", f"{API}/jobs", {"run": "true", "not_before": "+2h"})
    status, told = await patched(face, deadline)
    assert (status, words in json.dumps(told)) == (400, True), told
    assert deadline_of(face) == inf


async def test_only_its_owner_changes_it_while_it_lives(face: Face) -> None:
    ada, bob = face.token("ada", UserRole.USER, "p"), face.token("bob", UserRole.USER, "p")
    await face.json("POST", f"{API}/jobs", {"run": "true", "project": "p", "hold": True}, token=ada)
    assert (await patched(face, "+6h", token=bob))[0] == 403
    assert (await patched(face, "+6h", token=ada))[0] == 200
    await face.json("POST", f"{API}/jobs/1/cancel", token=ada)
    status, told = await patched(face, "+6h", token=ada)
    assert (status, "has ended" in told["detail"]) == (409, True)


async def test_the_spec_tells_every_change_so_that_the_job_can_be_submitted_again_as_it_is_now(face: Face) -> None:
    """Each change keeps the ones before it."""
    await face.json("POST", f"{API}/jobs", {"run": "true", "hold": True, "limits": {"max_runtime": "1h"}})
    status, told = await face.json("PATCH", f"{API}/jobs/1", {"deadline": "+5h", "priority": 60, "budget_usd": 5.0})
    assert (status, told["priority"]) == (200, 60), told
    request = face.world.server.core.ledger.jobs[J1].request
    assert (request.budget_usd, request.deadline_at) == (5.0, 5 * 3600.0)
    _, told = await patched(face, "+6h")
    spec = told["spec"]
    assert isinstance(spec, dict)
    assert (spec["priority"], spec["limits"]["budget_usd"], "deadline" in spec) == (60, 5.0, True)
    assert "max_runtime" in spec["limits"]
    assert (await face.json("POST", f"{API}/jobs", spec))[0] == 201
    assert face.world.server.core.ledger.jobs[JobId(2)].request.budget_usd == 5.0
