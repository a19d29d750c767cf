"""What strangers and careless clients put into paths, queries, headers and bodies: refused with words, never a 5xx."""

import asyncio
import json
import re
import socket
from itertools import count, islice
from urllib.parse import quote_from_bytes

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from yarl import URL

from scheduler.core.rules import parse_policy, parse_rules
from scheduler.live.auth.access_control import AgentCaller, Caller, JobCaller, JoinCaller, UserCaller, UserRole
from scheduler.live.holder_shares import HolderShares, ShareTaken
from scheduler.live.http.request_bodies import holder_of, is_reserved_for
from scheduler.live.http.web_application import api_routes
from scheduler.live.services.session_broker import SESSIONS_MOST, OpenSession, SessionBroker
from scheduler.live.store.table_rows import AttemptRow
from tests.support.http_face import Face
from walras.cluster import NodeId, PoolId
from walras.connection.remote_session import SessionAsked
from walras.errors import ConfigError
from walras.job_request import JobId
from walras.states import AttemptState

API = "/api/v1"


async def _raw(face: Face, head: bytes, body: bytes = b"") -> int:
    """The status of a request whose head is these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", face.client.port, family=socket.AF_INET)
    writer.write(head + b"Host: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    status = int((await reader.readline()).split()[1])
    writer.close()
    await writer.wait_closed()
    return status


async def test_a_key_that_is_no_utf8_is_refused_with_words(face: Face) -> None:
    """The header's bytes reach no table; the answer names the header."""
    head = b"POST /api/v1/jobs HTTP/1.1\r\nAuthorization: Bearer %s\r\n" % face.admin.encode()
    assert await _raw(face, head + b"Idempotency-Key: \xff\xfe\r\n", b'{"run": "true"}') == 400
    assert await _raw(face, head + b"Idempotency-Key: k1\r\n", b'{"run": "true"}') == 201


async def test_paths_and_queries_that_are_no_text_are_refused(face: Face) -> None:
    """A NUL, or a byte that is no UTF-8, in a path, a query or a body."""
    for place in ("nodes/%00/drain", "nodes/%FF/drain", "tokens/%00"):
        method = "POST" if place.startswith("nodes") else "DELETE"
        status = (await face.client.request(
            method, URL(f"{API}/{place}", encoded=True), headers={"Authorization": f"Bearer {face.admin}"}
        )).status  # fmt: skip
        assert status in (400, 404), place
    status, problem = await face.json("GET", f"{API}/jobs?user=%00")
    assert (status, problem["field"]) == (400, "user")
    status, _ = await face.json("POST", f"{API}/facts", b'{"kind": "\\ud800", "facts": {}}')
    assert status == 400


_BYTES = st.binary(max_size=24).map(quote_from_bytes)


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
@given(data=st.data())
async def test_no_route_answers_5xx(face: Face, data: st.DataObject) -> None:
    """Any bytes in any place of any route: 4xx or a plain answer."""
    route = data.draw(st.sampled_from([each for each in api_routes() if each.path.startswith("/api/v1/")]))
    place = re.sub(r"\{\w+\}", lambda _: data.draw(_BYTES | st.just("1")) or "1", route.plain_path)
    names = data.draw(st.lists(st.sampled_from([*route.query, "x"]), max_size=3)) if route.query else []
    query = "&".join(f"{name}={data.draw(_BYTES)}" for name in names if name != "follow")
    body = data.draw(
        st.none() | st.binary(max_size=40) | st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(max_size=8) | st.integers(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
            max_leaves=6,
        ).map(lambda value: json.dumps(value).encode())
    )  # fmt: skip
    url = URL(place + (f"?{query}" if query else ""), encoded=True)
    headers = {"Authorization": f"Bearer {face.admin}"}
    response = await face.client.request(route.method, url, data=body, headers=headers)
    assert response.status < 500, (route.method, place, query, body)


@pytest.mark.parametrize(
    ("name", "value"),
    [("round_s", 1e-9), ("round_s", 1e12), ("prepare_timeout_s", 1e-6), ("profiling_share", 3.0), ("backoff_s", 1e300),
     ("max_reservations", 10**12), ("rent_backoff_s", 1e-30), ("hysteresis", 1e200), ("min_runtime_s", -1.0)],
)  # fmt: skip
def test_every_number_of_the_rules_is_bounded(name: str, value: float) -> None:
    """What would spin the scheduler or never come to pass is refused, naming the field."""
    with pytest.raises(ConfigError) as refused:
        parse_rules({name: value})
    assert refused.value.field == f"rules.{name}"


def test_rules_at_zero_and_rules_accepted_before_are_taken() -> None:
    """0 is a meaning of its own; a policy in the tables of a server loads whatever the bounds are today."""
    assert parse_rules({"round_s": 0, "resolve_min_s": 0, "backoff_s": 0}).round_s == 0
    stored = {"policy": {"name": "fifo"}, "rules": {"round_s": 1e-9}}
    assert parse_policy(stored, bounded=False)[1].round_s == 1e-9
    with pytest.raises(ConfigError):
        parse_policy(stored)


async def test_slow_bodies_of_one_user_keep_nobody_else_out(face: Face) -> None:
    """Of as many as there may be requests half are refused, and everybody's calls are answered, the user's too."""
    ada, bob = face.token("ada", UserRole.USER, "p"), face.token("bob", UserRole.USER, "p")
    most = face.world.loop.settings.concurrency
    head = f"POST {API}/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ada}\r\nContent-Length: 15\r\n\r\n{{"
    writers, answers = [], []
    async with asyncio.timeout(30):
        for _ in range(most):
            reader, writer = await asyncio.open_connection("127.0.0.1", face.client.port, family=socket.AF_INET)
            writer.write(head.encode())
            writers.append(writer)
            answers.append(asyncio.create_task(reader.readline()))
        refused: set[asyncio.Task[bytes]] = set()
        while len(refused) < most // 2:
            refused, _ = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)
        assert {int((await each).split()[1]) for each in refused} == {429}
    for token in (face.admin, bob):
        assert [(await face.call("GET", f"{API}/jobs", token=token)).status for _ in range(5)] == [200] * 5
        assert (await face.json("POST", f"{API}/jobs", {"run": "true"}, token=token))[0] == 201
    assert (await face.call("GET", f"{API}/jobs", token=ada)).status == 200
    still = [(writer, task) for writer, task in zip(writers, answers, strict=True) if task not in refused]
    still[0][0].write(b'"run": "true"}')
    assert b" 201 " in await still[0][1]
    for writer in writers:
        writer.close()
    await asyncio.gather(*answers, return_exceptions=True)


def test_each_holder_has_half_of_what_the_others_leave() -> None:
    """Whoever comes next finds a place, until all but the reserve are taken; what ends is free again."""
    shares = HolderShares("places", 16, has_reserve=True, fix="give some back")

    def places(holder: str, *, is_reserved: bool = False) -> int:
        for taken in range(17):
            try:
                shares.take(holder, is_reserved=is_reserved)
            except ShareTaken:
                return taken
        raise AssertionError("no bound")

    assert [places(holder) for holder in "abcdef"] == [7, 4, 2, 1, 0, 0]
    assert places("machine", is_reserved=True) == 1
    for _ in range(7):
        shares.give_back("a")
    assert (places("f"), shares.held["f"]) == (3, 3)


def test_what_is_kept_is_for_machines_and_administrators() -> None:
    """Those that have joined and new ones; users and jobs are each a holder, of what is open to all."""
    callers: tuple[Caller, ...] = (
        AgentCaller(NodeId("n1")), JoinCaller(), UserCaller("root", UserRole.ADMIN, ("p",)),
        UserCaller("ada", UserRole.OPERATOR, ("p",)), UserCaller("bob", UserRole.OPERATOR, ("p",)), JobCaller(JobId(7)),
    )  # fmt: skip
    assert [is_reserved_for(each) for each in callers] == [True] * 3 + [False] * 3
    assert len({holder_of(each, "10.0.0.1") for each in callers}) == len(callers)


async def test_one_users_sessions_leave_room_for_others() -> None:
    """Half of what the others leave, over however many jobs; one that ends, once, is free again."""
    broker, asked, jobs = SessionBroker(), SessionAsked(kind="exec", argv=["id"]), count(1)

    def opened(user: str) -> list[OpenSession]:
        found = list[OpenSession]()
        for job_id in islice(jobs, SESSIONS_MOST):
            row = AttemptRow(JobId(job_id), 1, AttemptState.RUNNING, PoolId("p"), "a", False, 1, 0.0, "[]")
            try:
                found.append(broker.ask(NodeId("n1"), row, asked, user))
            except ShareTaken:
                break
        return found

    sessions = {user: opened(user) for user in ("ada", "bob")}
    assert [len(found) for found in sessions.values()] == [SESSIONS_MOST // 2, SESSIONS_MOST // 4]
    for _ in range(2):
        broker.end(sessions["ada"][0])
    assert broker.shares.held["ada"] == SESSIONS_MOST // 2 - 1
    assert len(broker.open_on(NodeId("n1"))) == sum(broker.shares.held.values())
