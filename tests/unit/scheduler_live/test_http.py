"""The REST face: who may come in, what goes in and out, and how refusals read."""

import asyncio
import json
import re
from typing import Any

import pytest

from scheduler.core.state.stopping import CANNOT_MOVE, CANNOT_MOVE_FIX
from scheduler.live.auth.access_control import UserRole
from scheduler.live.http import submission_api
from scheduler.live.http.web_application import api_routes
from tests.support.http_face import Face
from tests.support.live_world import FakeAgent

pytestmark = pytest.mark.sql

API = "/api/v1"


async def test_every_endpoint_asks_for_a_token(face: Face) -> None:
    """Enumerated from the OpenAPI, which is made of the same table as the dispatch: 401 everywhere without one."""
    _, described = await face.json("GET", f"{API}/openapi.json")
    operations = [(method, path) for path, methods in described["paths"].items() for method in methods]
    assert len(operations) == len(api_routes()) > 25
    assert "Harmless" in described["paths"][f"{API}/jobs/{{job_id}}/cancel"]["post"]["description"]
    face.world.server.secrets.join_token = "wlr_join_x"
    for method, path in operations:
        place = re.sub(r"\{\w+\}", "1", path)
        for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": "Basic Zm9v"}):
            response = await face.client.request(method.upper(), place, headers=headers)
            assert response.status in (401, 429), (method, path)
            assert response.content_type == "application/problem+json"


async def test_wrong_tokens_are_limited_and_right_ones_are_not(face: Face) -> None:
    """After a burst of failures an address gets 429 for wrong tokens; a valid token still works."""
    statuses = [(await face.call("GET", f"{API}/jobs", token="wlr_u_wrong")).status for _ in range(40)]
    assert set(statuses) == {401, 429}
    assert (await face.call("GET", f"{API}/jobs")).status == 200


async def test_roles_and_endpoints(face: Face) -> None:
    """Each endpoint opens exactly for the roles its table names; agents' endpoints for no user."""
    for role in UserRole:
        token = face.token(role.word, role, "*")
        for route in api_routes():
            place = re.sub(r"\{\w+\}", "999", route.plain_path)
            response = await face.call(route.method, place, {}, token=token)
            if not route.role or role < UserRole[route.role.upper()]:
                assert response.status == 403, (role, route.path)
            else:
                assert response.status != 403, (role, route.path)


async def test_a_job_token_opens_its_own_job_and_nothing_else(face: Face, agent: FakeAgent) -> None:
    """Own record, attempts and logs; not another job's, not the list; nothing once the attempt is over."""
    await face.world.submit({})
    await face.world.submit({})
    (first, _) = await agent.start_all()
    for path, status in (("jobs/1", 200), ("jobs/1/attempts", 200), ("jobs/1/logs", 200), ("jobs/2", 403)):
        assert (await face.call("GET", f"{API}/{path}", token=first.job_token)).status == status, path
    for method, path in (("GET", "jobs"), ("POST", "jobs/1/cancel"), ("GET", "nodes"), ("GET", "jobs/1/explain")):
        assert (await face.call(method, f"{API}/{path}", token=first.job_token)).status == 403
    assert (await face.call("GET", f"{API}/jobs/1", token=first.job_token[:-1] + "0")).status in (401, 200)
    await agent.end(1)
    assert (await face.call("GET", f"{API}/jobs/1", token=first.job_token)).status == 401


async def test_users_see_their_projects_and_change_their_own_jobs(face: Face) -> None:
    """Another project's job does not exist; a colleague's is seen but not cancelled; an operator may."""
    ada, bob = face.token("ada", UserRole.USER, "vision"), face.token("bob", UserRole.USER, "vision", "speech")
    eve, ops = face.token("eve", UserRole.USER, "speech"), face.token("ops", UserRole.OPERATOR, "vision")
    status, made = await face.json("POST", f"{API}/jobs", {"run": "true"}, token=ada)
    assert (status, made["id"]) == (201, 1)
    assert (await face.call("GET", f"{API}/jobs/1", token=bob)).status == 200
    assert (await face.call("GET", f"{API}/jobs/1", token=eve)).status == 404
    assert (await face.json("GET", f"{API}/jobs", token=eve))[1]["items"] == []
    assert (await face.call("POST", f"{API}/jobs/1/cancel", token=bob)).status == 403
    assert (await face.call("POST", f"{API}/jobs", {"run": "true", "project": "secret"}, token=ada)).status == 403
    status, cancelled = await face.json("POST", f"{API}/jobs/1/cancel", token=ops)
    assert (status, cancelled["state"]) == (200, "CANCELLED")
    assert (await face.call("POST", f"{API}/jobs/1/cancel", token=ada)).status == 200  # harmless
    assert (await face.call("POST", f"{API}/jobs/1/hold", token=ada)).status == 409


async def test_many_jobs_are_cancelled_in_one_call_and_each_is_answered(face: Face) -> None:
    """As one by one: ended ones are no error, another's are refused, another project's do not exist."""
    ada, bob = face.token("ada", UserRole.USER, "vision"), face.token("bob", UserRole.USER, "vision")
    eve = face.token("eve", UserRole.USER, "speech")
    for token in (ada, ada, bob, eve):
        await face.json("POST", f"{API}/jobs", {"run": "true", "hold": True}, token=token)
    await face.call("POST", f"{API}/jobs/2/cancel", token=ada)
    status, told = await face.json("POST", f"{API}/jobs:cancel", {"jobs": [99, 4, 3, 2, 1, 1]}, token=ada)
    assert status == 200, told
    assert [(item["id"], item["state"]) for item in told["items"]] == [
        (99, None), (4, None), (3, None), (2, "CANCELLED"), (1, "CANCELLED"), (1, "CANCELLED")
    ]  # fmt: skip
    assert [item["error"]["status"] for item in told["items"][:3]] == [404, 404, 403]
    shown = [(await face.json("GET", f"{API}/jobs/{number}"))[1]["state"] for number in (1, 3, 4)]
    assert shown == ["CANCELLED", "HELD", "HELD"]
    for wrong in ([], [0], ["1"], [1] * 1001):
        assert (await face.json("POST", f"{API}/jobs:cancel", {"jobs": wrong}, token=ada))[0] == 400, wrong


async def test_tokens_are_granted_listed_and_revoked(face: Face) -> None:
    """Shown once, stored as a hash, gone at once when revoked."""
    made = await face.done("POST", f"{API}/tokens", {"user": "ada", "role": "user", "projects": ["p"]}, status=201)
    assert made["token"].startswith("wlr_u_")
    assert (await face.call("GET", f"{API}/jobs", token=made["token"])).status == 200
    _, listed = await face.json("GET", f"{API}/tokens")
    assert made["token"] not in json.dumps(listed)
    assert (await face.call("DELETE", f"{API}/tokens/{made['prefix']}")).status == 200
    assert (await face.call("GET", f"{API}/jobs", token=made["token"])).status == 401
    status, problem = await face.json("POST", f"{API}/tokens", {"user": "x", "role": "king"})
    assert (status, problem["field"]) == (400, "role")


async def test_the_same_key_is_the_same_job(face: Face) -> None:
    """Same key and body: 200 with the first job; another body: 422; races included; other users' keys are theirs."""
    assert (await face.json("POST", f"{API}/jobs", {"run": "a"}, key="k"))[0] == 201
    taken = [("project", "default", "your token"), ("priority", 50, "default")]
    defaults = [dict(zip(("field", "value", "by"), each, strict=True)) for each in taken]
    assert await face.json("POST", f"{API}/jobs", {"run": "a"}, key="k") == (
        200,
        {
            "id": 1, "name": "job", "error": None, "note": f"{CANNOT_MOVE}; {CANNOT_MOVE_FIX}", "defaults": defaults,
            "jobs": 1,
        },
    )  # fmt: skip
    status, problem = await face.json("POST", f"{API}/jobs", {"run": "b"}, key="k")
    assert (status, problem["code"]) == (422, "idempotency_key_reused")
    answers = await asyncio.gather(*(face.json("POST", f"{API}/jobs", {"run": "c"}, key="r") for _ in range(5)))
    assert sorted(status for status, _ in answers) == [200, 200, 200, 200, 201]
    assert {answer["id"] for _, answer in answers} == {2}
    other = face.token("ada", UserRole.USER)
    assert (await face.json("POST", f"{API}/jobs", {"run": "x"}, key="k", token=other))[1]["id"] == 3


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"run": "true", "prioritty": 3}, "prioritty"),
        ({"run": "true", "priority": -1}, "priority"),
        ({"run": "true", "resources": {"accelerators": "a:-2"}}, "resources.accelerators"),
        ({"run": "true", "checkpoint": {"dir": "../../etc"}}, "checkpoint.dir"),
        ({"run": "true", "depends_on": [77]}, "depends_on"),
        ({"run": "true", "deadline": "yesterday"}, "deadline"),
        ({"run": "true", "envs": {"A": None}}, "envs.A"),
        ({}, "run"),
        ([], ""),
        (b"{", "body"),
        (b"\xff\xfe", "body"),
        (b"[" * 100_000, "body"),
    ],
)
async def test_a_bad_spec_is_refused_by_field_and_leaves_nothing(face: Face, body: Any, field: str) -> None:
    """4xx problem+json that names the field; no job, no id used up."""
    status, problem = await face.json("POST", f"{API}/jobs", body)
    assert 400 <= status < 500
    assert (problem["field"], bool(problem["detail"])) == (field, True)
    assert (await face.json("POST", f"{API}/jobs", {"run": "true"}))[1]["id"] == 1


async def test_a_batch_resolves_names_refuses_cycles_and_admits_the_rest(face: Face) -> None:
    """Names inside the batch, whatever their order; errors per item; the same key answers the same."""
    await FakeAgent(face.world, "n1").register()
    jobs = [
        {"run": "b", "name": "second", "depends_on": ["first"]}, {"run": "a", "name": "first"},
        {"run": "c", "name": "x", "depends_on": ["y"]}, {"run": "c", "name": "y", "depends_on": ["x"]},
        {"run": "d", "depends_on": ["x"]}, {"nonsense": 1},
    ]  # fmt: skip
    status, answer = await face.json("POST", f"{API}/jobs:batch", {"jobs": jobs}, key="b1")
    items = answer["items"]
    assert status == 200
    assert [item["id"] for item in items] == [2, 1, None, None, None, None]
    assert {items[2]["error"]["field"], items[3]["error"]["field"]} == {"depends_on"}
    assert (await face.json("POST", f"{API}/jobs:batch", {"jobs": jobs}, key="b1"))[1] == answer
    _, explained = await face.json("GET", f"{API}/jobs/2/explain")
    assert "WAIT:DEPENDENCY" in json.dumps(explained)
    assert len((await face.json("GET", f"{API}/jobs"))[1]["items"]) == 2


async def test_a_batch_that_is_sent_again_before_its_answer_admits_each_item_once(face: Face) -> None:
    """However the turns of both, and of another user's batch, follow each other."""
    jobs = [{"run": "true", "name": f"j{n}", "depends_on": [f"j{n - 1}"] if n else []} for n in range(40)]
    same = [face.json("POST", f"{API}/jobs:batch", {"jobs": jobs}, key="k") for _ in range(3)]
    other = face.json("POST", f"{API}/jobs:batch", {"jobs": [{"run": "true"}] * 40}, key="other")
    *answers, others = await asyncio.gather(*same, other)
    ids = [[item["id"] for item in told["items"]] for _, told in answers]
    assert ids[0] == ids[1] == ids[2]
    assert len({*ids[0], *(item["id"] for item in others[1]["items"])}) == 80
    assert len(face.world.live_state.jobs) == 80


async def test_an_explanation_is_of_one_instant(face: Face) -> None:
    """Of a job that is cancelled meanwhile, too: the reasons are those of the state that is told."""
    await face.world.running({"resources": {"accelerators": "any:2"}})
    ids = [await face.world.submit({"resources": {"accelerators": "any:2"}}) for _ in range(4)]
    explained = [asyncio.create_task(face.json("GET", f"{API}/jobs/{job_id}/explain")) for job_id in ids]
    await face.json("POST", f"{API}/jobs:cancel", {"jobs": ids})
    for status, told in await asyncio.gather(*explained):
        assert (status, told.get("state")) == (200, "CANCELLED")
        assert [each["reason"] for each in told["reasons"]] == ["USER:CANCELLED"]


async def test_a_thousand_jobs_in_one_batch_do_not_hold_up_the_loop(face: Face) -> None:
    """All are admitted; a spec of 10 MB is read to its end, so that the sender sees the refusal."""
    jobs = [{"run": "true"}] * 1000
    status, answer = await face.json("POST", f"{API}/jobs:batch", {"jobs": jobs})
    assert (status, len({item["id"] for item in answer["items"]})) == (200, 1000)
    assert (await face.call("POST", f"{API}/jobs:batch", {"jobs": [*jobs, {"run": "true"}]})).status == 400
    status, problem = await face.json("POST", f"{API}/jobs", {"run": "x" * 10_000_000})
    assert (status, problem["code"]) == (413, "too_large")


async def test_the_answer_to_a_batch_without_a_key_is_made_once(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a key it is remembered after each piece."""
    made: list[str] = []
    batch = submission_api._BatchSubmission
    plain = batch.answer
    monkeypatch.setattr(batch, "answer", lambda self: made.append("") or plain(self))
    for key, times in (("", 1), ("k", 4)):
        made.clear()
        assert (await face.json("POST", f"{API}/jobs:batch", {"jobs": [{"run": "true"}] * 40}, key=key))[0] == 200
        assert len(made) == times


async def test_a_dry_run_tells_configurations_and_stores_nothing(face: Face) -> None:
    """The fleet's configurations with speed, source and price; what can never run is refused as at submit."""
    await FakeAgent(face.world, "n1").register()
    _, told = await face.json("POST", f"{API}/jobs:dryrun", {"run": "true", "throughput": {"a": 7}})
    assert (told["chosen"]["accelerator"], told["chosen"]["steps_per_s"]) == ("a", 7)
    never = {"run": "true", "resources": {"accelerators": "zz:1"}}
    status, problem = await face.json("POST", f"{API}/jobs:dryrun", never)
    assert (status, problem["code"], problem["field"]) == (400, "job_spec", "resources.accelerators")
    assert (await face.json("GET", f"{API}/jobs"))[1]["items"] == []


async def test_pages_follow_each_other_without_gaps(face: Face) -> None:
    """Newest first, by an opaque cursor, filtered by state, user and activity."""
    for _ in range(5):
        await face.world.submit({})
    seen: list[int] = []
    cursor = ""
    while cursor is not None:
        _, page = await face.json("GET", f"{API}/jobs?limit=2&active=true{f'&cursor={cursor}' if cursor else ''}")
        seen += [item["id"] for item in page["items"]]
        cursor = page["next"]
    assert seen == [5, 4, 3, 2, 1]
    assert len((await face.json("GET", f"{API}/jobs?state=PENDING&user=ada"))[1]["items"]) == 5
    assert (await face.json("GET", f"{API}/jobs?state=SUCCEEDED,FAILED"))[1]["items"] == []
    for query in ("limit=0", "limit=x", "state=NOPE", "cursor=-1", "active=maybe"):
        assert (await face.call("GET", f"{API}/jobs?{query}")).status == 400


async def test_logs_pass_bytes_through_as_they_are(face: Face, agent: FakeAgent) -> None:
    """Bytes that are no UTF-8 arrive unchanged; repeats and gaps do no harm; another machine cannot write there."""
    stranger = await FakeAgent(face.world, "n2", shape="bx1", accelerator="b").register()
    job_id = await face.world.submit({"resources": {"accelerators": "a:1"}})
    await agent.start_all()
    raw = b"loss \xff\xfe\x00 <script>\x1b[31m\n" * 3
    place = f"/agent/v1/logs?job_id={job_id}&attempt=1&rank=0&offset="
    for offset, data, following in ((0, raw[:10], 10), (0, raw[:20], 20), (50, b"gap", 20), (20, raw[20:], len(raw))):
        status, answer = await face.json("POST", f"{place}{offset}", data, token=agent.credential)
        assert (status, answer["next"]) == (200, following)
    assert (await face.call("POST", f"{place}0", b"x", token=stranger.credential)).status == 403
    response = await face.call("GET", f"{API}/jobs/1/logs?offset=4")
    assert (await response.read(), response.headers["X-Walras-Next-Offset"]) == (raw[4:], str(len(raw)))
    assert (response.content_type, response.headers["X-Content-Type-Options"]) == ("text/plain", "nosniff")
    assert (await face.call("GET", f"{API}/jobs/1/logs?rank=../../1")).status == 400
    assert (await face.call("GET", f"{API}/jobs/1/logs?attempt=9")).status == 404


async def test_uploads_of_another_life_of_the_cluster_are_refused(face: Face) -> None:
    """Another cluster, another incarnation, another attempt of the same number: none gets into the log."""
    agent, job_id = await face.world.running()
    here = face.world.live_state.identity
    place = f"/agent/v1/logs?job_id={job_id}&attempt=1&rank=0&offset=0&cluster_id="
    for named, code in (
        (f"{'b' * 32}&incarnation={here.incarnation}", "other_cluster"),
        (f"{here.cluster_id}&incarnation={'e' * 16}", "other_incarnation"),
        (f"{here.cluster_id}&incarnation={here.incarnation}&granted_by={'e' * 16}", "forbidden"),
        ("x", "invalid_request"),
    ):
        _, problem = await face.json("POST", place + named, b"not mine", token=agent.credential)
        assert problem["code"] == code, named
    good = f"{here.cluster_id}&incarnation={here.incarnation}&granted_by={here.incarnation}"
    assert (await face.call("POST", place + good, b"mine", token=agent.credential)).status == 200
    assert await (await face.call("GET", f"{API}/jobs/1/logs")).read() == b"mine"


async def test_an_agent_learns_from_a_refusal_who_the_server_is(face: Face) -> None:
    """The problem of an unknown incarnation names the one in force, and no other problem has such a field."""
    agent = await FakeAgent(face.world, "n1").names_itself().register()
    here = face.world.live_state.identity
    beat = {"node_id": "n1", "protocol": 2, "cluster": {**here.model_dump(), "incarnation": "e" * 16}}
    status, problem = await face.json("POST", "/agent/v1/heartbeat", beat, token=agent.credential)
    assert (status, problem["code"], problem["cluster"]) == (409, "other_incarnation", here.model_dump())
    _, other = await face.json("GET", f"{API}/jobs/99")
    assert "cluster" not in other


async def test_the_policy_changes_without_a_restart(face: Face) -> None:
    """Validated, dry-run, versioned; a bad one changes nothing and names the field."""
    changed = {"policy": {"name": "fifo"}, "rules": {"round_s": 33}}
    _, dry = await face.json("PUT", f"{API}/policy?dry_run=true", changed)
    assert (dry["version"], dry["rules"]["round_s"]) == (2, 33)
    assert (await face.json("GET", f"{API}/policy"))[1]["version"] == 1
    assert (await face.json("PUT", f"{API}/policy", changed))[1]["version"] == 2
    status, problem = await face.json("PUT", f"{API}/policy", {"policy": {"name": "fifo"}, "rules": {"rounds": 1}})
    assert (status, problem["field"]) == (400, "rules.rounds")
    assert (await face.json("PUT", f"{API}/policy", {"policy": {"name": "nope"}}))[0] == 400
    assert (await face.json("GET", f"{API}/policy"))[1]["version"] == 2


async def test_machines_are_drained_and_resumed(face: Face, agent: FakeAgent) -> None:
    """A drained machine stops its jobs and takes none; resumed it does again."""
    await face.world.submit({})
    await agent.start_all()
    status, node = await face.json("POST", f"{API}/nodes/n1/drain")
    assert (status, node["state"]) == (200, "draining")
    assert node["detail"] == "drained by admin; what cannot be saved runs on"
    await agent.beat()
    assert agent.commands[-1].type != "stop"  # a plain script: nothing shows that it saves its work
    status, node = await face.json("POST", f"{API}/nodes/n1/drain", {"deadline_s": 7200})
    assert node["detail"] == "drained by admin; what cannot be saved runs on, for 7200 s at most"
    assert (await face.json("POST", f"{API}/nodes/n1/drain", {"deadline_s": -1}))[0] == 400
    status, node = await face.json("POST", f"{API}/nodes/n1/drain", {"now": True})
    assert (status, node["detail"]) == (200, "drained by admin")
    await agent.beat()
    assert agent.commands[-1].type == "stop"
    assert (await face.json("POST", f"{API}/nodes/n1/resume"))[1]["state"] == "up"
    assert (await face.call("POST", f"{API}/nodes/nope/drain")).status == 404


async def test_a_refused_start_is_explained_with_the_machine_and_its_words(face: Face, agent: FakeAgent) -> None:
    """While the job waits for another try, and once it is held: which machine, what is wrong, what to do then."""
    job_id = await face.world.submit({})
    words = "workdir '/no' is no folder on this machine"
    for number in range(1, 6):
        await agent.beat()
        del agent.here[job_id, number]
        await agent.beat({"type": "refused", "job_id": job_id, "attempt": number, "detail": words})
        _, explained = await face.json("GET", f"{API}/jobs/{job_id}/explain")
        if number == 1:
            refused = {"reason": "INFRA:START_REFUSED", "detail": f"n1: {words}", "fix": "", "figures": ""}
            assert (explained["reasons"][0]["reason"], refused in explained["reasons"]) == ("WAIT:BACKOFF", True)
        await face.world.advance(60.0)
        await agent.beat()
    _, shown = await face.json("GET", f"{API}/jobs/{job_id}")
    assert (shown["state"], shown["reason"]) == ("HELD", "HOLD:REPEATED_FAILURE")
    assert shown["detail"] == f"5 starts in a row were refused; the last: n1: {words}"
    _, explained = await face.json("GET", f"{API}/jobs/{job_id}/explain")
    (line,) = explained["reasons"]
    assert (line["detail"], line["fix"]) == (shown["detail"], f"walras hold --off {job_id}")


async def test_health_checks_the_loop_and_a_write(face: Face) -> None:
    """Both probes, at the root and under the API; 404 and 405 as problems, for those who have a token."""
    for path in ("/healthz", f"{API}/healthz"):
        status, health = await face.json("GET", path)
        assert (status, health["checks"]["database"], health["checks"]["event_loop"]) == (200, "ok", "ok")
    assert (await face.call("GET", "/readyz")).status == 200
    face.world.server.is_ready = False
    assert (await face.call("GET", "/readyz")).status == 503
    assert (await face.json("GET", "/nope"))[0] == 404
    assert (await face.json("DELETE", f"{API}/jobs"))[0] == 405
    for number in ("999999", "9" * 30):
        assert (await face.json("GET", f"{API}/jobs/{number}"))[0] == 404
