"""Users, projects and roles: who may grant what, caps on jobs, defaults, and clusters of releases before them."""

import json
import re
from math import inf
from pathlib import Path
from typing import Any

import pytest

from scheduler.live.auth.access_control import RECOVERED, UserCaller, UserRole, new_user_token
from scheduler.live.auth.people import People, adopt_token_owners
from scheduler.live.store.store_interface import WriteBatch
from scheduler.live.store.table_rows import PeopleRow
from tests.support.http_face import Face, facing
from walras.job_request import JobId
from walras.resources.people import ROLES, Caps, UserSettings
from walras.states import JobState

pytestmark = pytest.mark.sql

API = "/api/v1"


async def _token(face: Face, user: str, role: str, *projects: str, by: str | None = None) -> str:
    body = {"user": user, "role": role, "projects": list(projects)}
    made = await face.done("POST", f"{API}/tokens", body, token=by, status=201)
    return str(made["token"])


async def test_a_token_belongs_to_its_user(face: Face) -> None:
    """What is taken from the user no token of theirs opens; removed and added again, they have none of the old ones."""
    ada = await _token(face, "ada", "operator", "vision", "speech")
    assert (await face.json("PATCH", f"{API}/users/ada", {"role": "user", "projects": ["speech"]}))[0] == 200
    status, me = await face.json("GET", f"{API}/whoami", token=ada)
    assert (me["role"], me["projects"]) == ("user", ["speech"])
    beyond = {"user": "ada", "role": "operator", "projects": ["speech"]}
    status, refused = await face.json("POST", f"{API}/tokens", beyond)
    assert (status, refused["field"]) == (409, "role")
    assert "walras admin set user ada role=operator" in refused["fix"]
    assert (await face.call("DELETE", f"{API}/users/ada")).status == 200
    assert (await face.call("GET", f"{API}/whoami", token=ada)).status == 401
    assert (await face.call("POST", f"{API}/users", {"name": "ada"})).status == 201
    assert (await face.call("GET", f"{API}/whoami", token=ada)).status == 401
    assert (await face.call("DELETE", f"{API}/users/admin")).status == 409  # the only administrator
    assert (await face.call("PATCH", f"{API}/users/admin", {"role": "user"})).status == 409


async def test_nobody_grants_what_comes_to_his_own(face: Face) -> None:
    """An operator: users below operator, in its projects, caps below its own; the rest is refused naming the field."""
    ops, admin = await _token(face, "ops", "operator", "vision"), None
    await _token(face, "bob", "user", "vision", by=ops)
    await _token(face, "eve", "operator", "speech", by=admin)
    refused: list[tuple[str, str, Any]] = [
        ("POST", "tokens", {"user": "x", "role": "operator", "projects": ["vision"]}),
        ("POST", "tokens", {"user": "x", "role": "user", "projects": ["speech"]}),
        ("POST", "tokens", {"user": "x", "role": "user", "projects": ["*"]}),
        ("POST", "users", {"name": "x", "settings": {"role": "admin", "projects": ["vision"]}}),
        ("PATCH", "users/bob", {"role": "operator"}),
        ("PATCH", "users/ops", {"role": "admin"}),
        ("PATCH", "users/ops", {"projects": ["vision", "speech"]}),
        ("PATCH", "users/eve", {"projects": ["vision"]}),
        ("DELETE", "users/eve", None),
        ("DELETE", "users/admin", None),
        ("PATCH", "projects/vision", {"caps": {"max_priority": 90}}),
        ("PATCH", "projects/vision", {"share": {"weight": 9}}),
        ("PATCH", "projects/vision", {"defaults": {"priority": 91}}),
        ("PATCH", "projects/speech", {"caps": {"max_priority": 10}}),
        ("POST", "projects", {"name": "mine"}),
        ("PATCH", "roles/user", {"caps": {"max_priority": 20}}),
        ("PATCH", "roles/operator", {"caps": {"max_priority": None}}),
    ]
    for method, path, body in refused:
        status, problem = await face.json(method, f"{API}/{path}", body, token=ops)
        assert status == 403, (path, body, problem)
    assert (await face.json("PATCH", f"{API}/projects/vision", {"caps": {"max_priority": 89}}, token=ops))[0] == 200
    status, project = await face.json("PATCH", f"{API}/projects/vision", {"users": {"bob": {"weight": 2}}}, token=ops)
    assert (status, project["users"]["bob"]["weight"], project["caps"]["max_priority"]) == (200, 2.0, 89)
    assert (await face.json("PATCH", f"{API}/projects/vision", {"caps": {"max_priority": None}}, token=ops))[0] == 403
    status, listed = await face.json("GET", f"{API}/tokens", token=ops)
    assert {each["user"] for each in listed["items"]} == {"ops", "bob"}


@pytest.mark.parametrize(
    ("asked", "field", "told"),
    [
        ({"priority": 67}, "priority", "above the cap of 66 for the role user"),
        ({"preemptible": False}, "preemptible", "not allowed for the role user"),
        ({"weight": 11}, "weight", "above the cap of 10 for the role user"),
        ({"value_usd_per_h": 6}, "value_usd_per_h", "above the cap of 5 for project vision"),
    ],
)
async def test_what_is_beyond_a_cap_is_refused(face: Face, asked: dict[str, Any], field: str, told: str) -> None:
    """Submit, batch and dry run say the field, the cap, and who may raise it; raised, the same job is taken."""
    ada = await _token(face, "ada", "user", "vision")
    await face.json("PATCH", f"{API}/projects/vision", {"caps": {"max_value_usd_per_h": 5}})
    job = {"run": "true", **asked}
    for path in ("jobs", "jobs:dryrun"):
        status, problem = await face.json("POST", f"{API}/{path}", job, token=ada)
        assert (status, problem["field"]) == (403, field), problem
        assert told in problem["detail"]
        raised = re.search(r"raise it: walras admin set (role user|project vision) (\w+)=(N|true)$", problem["fix"])
        assert raised is not None, problem["fix"]
        assert raised[2] in Caps.model_fields
    _, batch = await face.json("POST", f"{API}/jobs:batch", {"jobs": [{"run": "true"}, job]}, token=ada)
    assert batch["items"][0]["id"] == 1
    assert batch["items"][1]["error"]["field"] == field
    opened = {"max_priority": None, "may_pin": True, "max_weight": 11, "max_value_usd_per_h": None}
    assert (await face.call("PATCH", f"{API}/roles/user", {"caps": opened})).status == 200
    assert (await face.call("PATCH", f"{API}/projects/vision", {"caps": opened})).status == 200
    assert (await face.call("POST", f"{API}/jobs", job, token=ada)).status == 201


async def test_a_priority_is_changed_within_the_callers_cap(face: Face) -> None:
    """The owner up to the user's cap, an operator up to its own; nothing else of the job changes when refused."""
    ada, ops = await _token(face, "ada", "user", "vision"), await _token(face, "ops", "operator", "vision")
    await face.json("POST", f"{API}/jobs", {"run": "true"}, token=ada)
    status, problem = await face.json("PATCH", f"{API}/jobs/1", {"priority": 80, "budget_usd": 4}, token=ada)
    assert (status, problem["field"]) == (403, "priority")
    status, job = await face.json("PATCH", f"{API}/jobs/1", {"priority": 80}, token=ops)
    assert (status, job["priority"]) == (200, 80)
    assert "priority" not in [each["field"] for each in job["defaults"]]
    assert (await face.call("PATCH", f"{API}/jobs/1", {"priority": 91}, token=ops)).status == 403


async def test_a_job_that_waits_goes_to_another_project(face: Face) -> None:
    """With its stated values within the caps there, its defaults taken anew, and a row of audit for each."""
    ada = await _token(face, "ada", "user", "vision", "speech")
    settings = {"caps": {"max_priority": 40, "max_weight": 2}, "defaults": {"priority": 30, "value_usd_per_h": 2.5}}
    assert (await face.call("PATCH", f"{API}/projects/speech", settings)).status == 200
    for stated in ({}, {"priority": 45}, {"weight": 3, "priority": 40}):
        await face.json("POST", f"{API}/jobs", {"run": "true", **stated}, token=ada)
    status, job = await face.json("PATCH", f"{API}/jobs/1", {"project": "speech", "deadline": "+6h"}, token=ada)
    assert (status, job["project"], job["priority"], job["value_by"]) == (200, "speech", 30, "project")
    assert job["spec"]["deadline"]
    for number, field in ((2, "priority"), (3, "weight")):
        status, problem = await face.json("PATCH", f"{API}/jobs/{number}", {"project": "speech"}, token=ada)
        assert (status, problem["field"]) == (403, field)
        assert "for project speech" in problem["detail"]
    status, job = await face.json("PATCH", f"{API}/jobs/2", {"project": "speech", "priority": 40}, token=ada)
    assert (status, job["project"], job["priority"]) == (200, "speech", 40)
    back = {"project": "vision", "priority": 50}  # above the cap of the project that it leaves
    status, problem = await face.json("PATCH", f"{API}/jobs/2", {**back, "priority": 67}, token=ada)
    assert (status, problem["field"]) == (403, "priority")
    status, job = await face.json("PATCH", f"{API}/jobs/2", back, token=ada)
    assert (status, job["project"], job["priority"]) == (200, "vision", 50)
    request = face.world.server.core.ledger.jobs[JobId(1)].request
    assert (request.project, request.priority, request.value_usd_per_h) == ("speech", 30, 2.5)
    assert request.deadline_at < inf
    _, page = await face.json("GET", f"{API}/audit")
    moves = [(each["project"], each["after"].get("project")) for each in page if each["subject"] == "job 1"]
    assert set(moves) >= {("vision", "speech"), ("speech", "speech")}


async def test_a_job_goes_to_no_project_that_is_closed_to_it(face: Face) -> None:
    """Closed to the caller, or to the owner; while it runs; with checkpoints in a folder of its project."""
    ada = await _token(face, "ada", "user", "vision")
    ops = await _token(face, "ops", "operator", "vision", "speech")
    await face.json("POST", f"{API}/jobs", {"run": "true"}, token=ada)
    await face.json("POST", f"{API}/jobs", {"run": "true", "project": "vision", "checkpoint": {"dir": "d"}}, token=ops)
    status, problem = await face.json("PATCH", f"{API}/jobs/1", {"project": "speech"}, token=ada)
    assert (status, problem["field"]) == (403, "project")
    status, problem = await face.json("PATCH", f"{API}/jobs/1", {"project": "speech"}, token=ops)
    assert (status, problem["field"]) == (403, "project")
    assert problem["fix"].endswith("walras admin set user ada projects=vision,speech")
    for project in ("", "a\nb", "x" * 201):
        assert (await face.call("PATCH", f"{API}/jobs/2", {"project": project}, token=ops)).status in (400, 422)
    live = face.world.server.state.jobs[JobId(2)]
    live.row.attempts = 1
    status, problem = await face.json("PATCH", f"{API}/jobs/2", {"project": "speech"}, token=ops)
    assert (status, problem["field"]) == (409, "checkpoint.dir")
    live.row.state = JobState.RUNNING
    status, problem = await face.json("PATCH", f"{API}/jobs/2", {"project": "speech"}, token=ops)
    assert (status, problem["field"]) == (409, "project")
    assert problem["fix"].startswith("hold it first: walras hold 2")
    assert live.row.project == "vision"


async def test_every_answer_says_which_default_was_taken(face: Face) -> None:
    """Project, then Walras, never beyond a cap; a stated value, 50 included, is nobody's default."""
    ada = await _token(face, "ada", "user", "vision")
    change = {"defaults": {"priority": 60, "value_usd_per_h": 2.5}}
    assert (await face.call("PATCH", f"{API}/projects/vision", change)).status == 200
    _, dry = await face.json("POST", f"{API}/jobs:dryrun", {"run": "true"}, token=ada)
    _, made = await face.json("POST", f"{API}/jobs", {"run": "true"}, token=ada)
    _, shown = await face.json("GET", f"{API}/jobs/1", token=ada)
    _, page = await face.json("GET", f"{API}/jobs", token=ada)
    taken = [
        {"field": "project", "value": "vision", "by": "your token"},
        {"field": "priority", "value": 60, "by": "project vision"},
        {"field": "value_usd_per_h", "value": 2.5, "by": "project vision"},
    ]
    assert dry["defaults"] == made["defaults"] == shown["defaults"] == page["items"][0]["defaults"] == taken
    assert (dry["value_usd_per_h"], dry["value_by"], shown["value_by"]) == (2.5, "project", "project")
    assert (shown["priority"], "priority" in shown["spec"]) == (60, False)
    stated = {"run": "true", "project": "vision", "priority": 50, "value_usd_per_h": 1}
    _, shown = await face.json("POST", f"{API}/jobs", stated, token=ada)
    assert shown["defaults"] == []
    assert face.world.server.core.ledger.jobs[2].request.priority == 50
    await face.json("PATCH", f"{API}/projects/vision", {"caps": {"max_priority": 30}})
    _, capped = await face.json("POST", f"{API}/jobs", {"run": "true", "project": "vision"}, token=ada)
    assert capped["defaults"][0] == {"field": "priority", "value": 30, "by": "your cap"}


async def test_a_project_in_use_is_not_removed(face: Face) -> None:
    """Neither while users have it nor while a job of it is left; what it was goes into the audit."""
    await face.call("POST", f"{API}/projects", {"name": "p"})
    ada = await _token(face, "ada", "user", "p", "q")
    assert (await face.call("DELETE", f"{API}/projects/p")).status == 409
    await face.json("POST", f"{API}/jobs", {"run": "true"}, token=ada)
    await face.call("PATCH", f"{API}/users/ada", {"projects": ["q"]})
    status, problem = await face.json("DELETE", f"{API}/projects/p")
    assert (status, "job 1" in problem["detail"]) == (409, True)
    await face.call("POST", f"{API}/jobs/1/cancel")
    assert (await face.call("DELETE", f"{API}/projects/p")).status == 200
    assert [each["name"] for each in (await face.json("GET", f"{API}/projects"))[1]] == ["default", "q"][1:]
    _, audit = await face.json("GET", f"{API}/audit")
    assert (audit[0]["subject"], audit[0]["after"]) == ("project p", None)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("users/admin", {"role": "king"}),
        ("users/admin", {"projects": []}),
        ("users/admin", {"projects": "x"}),
        ("users/admin", {"token": "x"}),
        ("users/admin", []),
        ("projects/default", {"caps": {"max_priority": 101}}),
        ("projects/default", {"share": {"weight": 0}}),
        ("projects/default", {"share": {"limits": {"fleet": -1}}}),
        ("projects/default", {"share": {"owned": {"fleet": 8}}}),
        ("projects/default", {"users": {"ada": {"owned": {"a": 8}}}}),
        ("roles/admin", {"caps": {"max_priority": 1}}),
        ("roles/king", {"caps": {"max_priority": 1}}),
    ],
)
async def test_bad_settings_are_refused_by_name(face: Face, path: str, body: Any) -> None:
    """A field, a range, a role that is none; nothing is written."""
    await _token(face, "ada", "user", "default")
    status, problem = await face.json("PATCH", f"{API}/{path}", body)
    assert status == 400, problem
    assert problem["field"]


async def test_people_outlive_the_server(tmp_path: Path) -> None:
    """Users, projects, roles and the defaults that a job took are the same after a restart."""
    async with facing(tmp_path / "data") as face:
        ada = await _token(face, "ada", "user", "vision", "speech")
        await face.call("PATCH", f"{API}/projects/vision", {"defaults": {"priority": 40}, "share": {"weight": 3}})
        await face.call("PATCH", f"{API}/roles/user", {"caps": {"max_priority": 44}})
        for _ in range(2):
            await face.json("POST", f"{API}/jobs", {"run": "true"}, token=ada)
        await face.json("PATCH", f"{API}/jobs/2", {"project": "speech"}, token=ada)
        before = [(await face.json("GET", f"{API}/{each}"))[1] for each in ("users", "projects", "roles", "jobs")]
    async with facing(tmp_path / "data") as face:
        after = [(await face.json("GET", f"{API}/{each}"))[1] for each in ("users", "projects", "roles", "jobs")]
        assert after == before
        assert [job.request.project for job in face.world.server.core.ledger.jobs.values()] == ["vision", "speech"]
        assert (await face.call("POST", f"{API}/jobs", {"run": "true", "priority": 45}, token=ada)).status == 403


def test_an_earlier_releases_tokens_keep_what_they_opened() -> None:
    """No cap is put on anybody; a recovered token, of a user who was removed or is less, opens everything."""
    tokens = [
        new_user_token(UserCaller("ada", UserRole.USER, ("vision",)), "admin")[1],
        new_user_token(UserCaller("ada", UserRole.OPERATOR, ("speech", "*")), "admin")[1],
        new_user_token(UserCaller("bob", UserRole.VIEWER, ("vision",)), "admin")[1],
        new_user_token(UserCaller("eve", UserRole.ADMIN, ("*",)), "admin")[1],
    ]
    tokens[3].revoked_at = 1.0
    people, now = People(), tokens[0].created_at + 10.0
    rows = adopt_token_owners(people, tokens, now)
    for token in tokens[:3]:
        told = UserCaller(token.user, UserRole[token.role.upper()], tuple(json.loads(token.projects)))
        assert people.caller(token, now) == told
    assert "eve" not in people.users
    assert people.refusal(UserCaller("ada", UserRole.USER, ("vision",)), "vision", "priority", 100) is None
    assert adopt_token_owners(People.of(rows), tokens, now) == []
    removed = PeopleRow("user", "admin", '{"role": "viewer", "projects": ["p"]}', 1.0, "x", removed=True)
    people = People.of([removed])
    token = new_user_token(UserCaller("admin", UserRole.ADMIN, ("*",)), RECOVERED)[1]
    assert people.caller(token, token.created_at) is None
    assert len(adopt_token_owners(people, [token], token.created_at + 1)) == 1
    caller = people.caller(token, token.created_at + 1)
    assert (caller.role, caller.projects) == (UserRole.ADMIN, ("*",))
    assert adopt_token_owners(people, [token], token.created_at + 2) == []  # and not again at the next start


def test_the_roles_of_settings_are_those_that_requests_are_judged_by() -> None:
    assert list(ROLES) == [role.word for role in sorted(UserRole)]


async def test_who_lost_the_role_of_admin_does_not_have_it_again_by_an_old_token(tmp_path: Path) -> None:
    """A start that finds no administrator makes one, of a token in the data folder."""
    async with facing(tmp_path) as first:
        old, body = first.admin, UserSettings(role="viewer").model_dump_json()
        first.world.server.store.commit(WriteBatch(PeopleRow("user", "admin", body, 2.0, "restore")))
    async with facing(tmp_path) as again:
        assert (await again.call("GET", f"{API}/whoami", token=old)).status == 401
        assert (await again.json("GET", f"{API}/whoami"))[1]["role"] == "admin"
