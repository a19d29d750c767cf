"""`POST /jobs/ID/redirect`: a held job is sent to other machines; who may, when, and what a restart knows of it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.live.auth.access_control import UserRole
from scheduler.live.store.event_journal import replay_journal
from scheduler.live.store.sqlite_store import read_stored_journal
from tests.support.http_face import Face, facing
from walras.job_request import Demand, JobId

API = "/api/v1/jobs"
POOL = {"shape": "ax4", "accelerator": "a", "accelerators": 4, "cpus": 16, "memory": "64GB"}
B = POOL | {"shape": "bx4", "accelerator": "b", "market": "spot", "provider": "local", "usd_per_h": 1.0, "quota": 4}
B_ID = "bx4/spot/default"
JOB = {"run": "true", "steps": 100, "hold": True, "resources": {"accelerators": {"a": 1}}, "deadline": "+2h"}
THERE = {"resources": {"accelerators": {"b": 2}, "pools": [B_ID]}, "throughput": {"b": 9.0}, "value_usd_per_h": 4.0}


@pytest.fixture
async def face(tmp_path: Path) -> AsyncIterator[Face]:
    async with facing(tmp_path / "data") as found:
        for pool in (POOL, B):
            assert (await found.json("POST", "/api/v1/pools", pool))[0] == 201
        yield found


async def submitted(face: Face, **changes: Any) -> int:
    answer = await face.done("POST", API, JOB | changes, status=201)
    return int(answer["id"])


@pytest.mark.sqlite_file
async def test_a_held_job_is_another_gang_from_then_on(face: Face, tmp_path: Path) -> None:
    """In the core, in what is shown, in what is kept; its deadline and its kind stay; the journal replays."""
    job_id = await submitted(face)
    before = face.world.loop.core.ledger.jobs[JobId(job_id)].request
    shown = await face.done("POST", f"{API}/{job_id}/redirect", THERE)
    assert shown["spec"]["resources"] == THERE["resources"]
    assert (shown["kind"], shown["accelerators"]) == (before.kind, 2)
    now = face.world.loop.core.ledger.jobs[JobId(job_id)].request
    assert (now.demands, now.pools) == ((Demand("b", 2),), (B_ID,))
    assert (now.value_usd_per_h, now.declared) == (4.0, (("b", 9.0),))
    audit = (await face.json("GET", "/api/v1/audit"))[1][0]
    told = (audit["before"]["machines"], audit["after"]["machines"])
    assert told == ("1 x a", f"2 x b of {B_ID}")
    assert (now.deadline_at, now.kind, now.steps) == (before.deadline_at, before.kind, before.steps)
    assert replay_journal(read_stored_journal(tmp_path / "data")).identical


REFUSED: tuple[tuple[Any, int, str], ...] = (
    ({}, 400, "resources"),
    ([], 400, ""),
    (THERE | {"run": "rm"}, 400, "run"),
    (THERE | {"num_nodes": 3}, 400, "num_nodes"),
    (THERE | {"value_usd_per_h": -1}, 400, "value_usd_per_h"),
    (THERE | {"resources": {"accelerators": {"c": 1}}}, 400, "resources.accelerators"),
    (THERE | {"resources": {"accelerators": {"b": 2}, "pools": ["bx4/spot/defualt"]}}, 400, "resources.pools"),
    (THERE | {"plan": {"pool": B_ID}}, 400, "plan.machines"),
)


@pytest.mark.parametrize(("body", "status", "field"), REFUSED)
async def test_what_makes_no_sense_is_refused_by_name(face: Face, body: Any, status: int, field: str) -> None:
    """And the job is as it was."""
    job_id = await submitted(face)
    request = face.world.loop.core.ledger.jobs[JobId(job_id)].request
    got, answer = await face.json("POST", f"{API}/{job_id}/redirect", body)
    assert got == status, answer
    assert str(answer.get("field") or "").startswith(field)
    assert face.world.loop.core.ledger.jobs[JobId(job_id)].request == request


async def test_the_worth_that_its_project_states_stays(face: Face) -> None:
    """A redirect that states no value gives the job its project's, within the caller's cap, and says whose it is."""
    vision = {"name": "vision", "settings": {"defaults": {"value_usd_per_h": 9.0}}}
    assert (await face.json("POST", "/api/v1/projects", vision))[0] == 201
    job_id = await submitted(face, project="vision")
    cap = {"caps": {"max_value_usd_per_h": 5.0}}
    assert (await face.json("PATCH", "/api/v1/roles/user", cap))[0] == 200
    there = {name: each for name, each in THERE.items() if name != "value_usd_per_h"}
    ada = face.token("admin", UserRole.USER, "vision")
    for token, value, by in ((None, 9.0, "project vision"), (ada, 5.0, "your cap"), (None, 9.0, "project vision")):
        shown = await face.done("POST", f"{API}/{job_id}/redirect", there, token=token)
        assert face.world.loop.core.ledger.jobs[JobId(job_id)].request.value_usd_per_h == value
        assert {"field": "value_usd_per_h", "value": value, "by": by} in shown["defaults"]
        assert "value_usd_per_h" not in shown["spec"]
    status, shown = await face.json("POST", f"{API}/{job_id}/redirect", THERE)
    assert (status, [each["field"] for each in shown["defaults"]]) == (200, ["priority"])


async def test_only_a_held_job_of_one_gang_is_sent_elsewhere(face: Face) -> None:
    """One that waits has a place in queues; an elastic one chooses itself; one that is not there is not found."""
    waiting = await submitted(face, hold=False)
    status, answer = await face.json("POST", f"{API}/{waiting}/redirect", THERE)
    assert (status, answer["fix"]) == (409, f"walras hold {waiting}")
    elastic = await submitted(face, elastic={"min": 1, "max": 2})
    assert (await face.json("POST", f"{API}/{elastic}/redirect", THERE))[0] == 409
    assert (await face.json("POST", f"{API}/999/redirect", THERE))[0] == 404
    held, bob = await submitted(face), face.token("bob", UserRole.USER, "default")
    assert (await face.json("POST", f"{API}/{held}/redirect", THERE, token=bob))[0] == 403
