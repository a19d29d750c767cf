"""The web page's server side: sign-in, what is sent without a token, the overview and its stream."""

import asyncio
import io
import json
import random
import re
import sqlite3
from http.cookies import Morsel
from pathlib import Path
from typing import Any

import pytest

from scheduler.live.auth.access_control import UserRole
from scheduler.live.http.cluster_api import STREAM
from scheduler.live.services.views import order_of_queue
from scheduler.live.store.store_interface import StoreUnavailable
from scheduler.live.web import overview as event_stream
from scheduler.live.web.overview import OverviewStream
from scheduler.live.web.page import CSRF_HEADER
from tests.support.http_face import Face
from tests.support.live_world import FakeAgent

pytestmark = pytest.mark.sql

API = "/api/v1"
PAGE = {CSRF_HEADER: "1"}
STATIC = Path(__file__).parents[3] / "scheduler" / "live" / "web" / "static"


async def sign_in(face: Face, token: str) -> tuple[int, "Morsel[str] | None"]:
    """Status, and the cookie that was set, which the client forgets: each call names it."""
    body = io.BytesIO(json.dumps({"token": token}).encode())
    response = await face.client.post("/web/session", data=body.read(), headers=PAGE)
    face.client.session.cookie_jar.clear()
    return response.status, next(iter(response.cookies.values()), None)


async def as_page(face: Face, method: str, path: str, cookie: "Morsel[str]", **headers: str) -> int:
    sent = {"Cookie": f"{cookie.key}={cookie.value}", **headers}
    return (await face.client.request(method, path, headers=sent)).status


async def test_a_token_becomes_a_cookie_that_scripts_and_other_sites_cannot_use(face: Face) -> None:
    """HttpOnly, SameSite=Strict, without the token in it; a changed or late one is nobody's."""
    status, cookie = await sign_in(face, face.admin)
    assert status == 200
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Strict", "/")
    assert face.admin not in cookie.value
    assert await as_page(face, "GET", f"{API}/whoami", cookie) == 200
    secret = cookie.value
    cookie.set(cookie.key, secret[:-1] + ("0" if secret[-1] != "0" else "1"), "")
    assert await as_page(face, "GET", f"{API}/whoami", cookie) == 401
    _, until, rest = secret.replace("wlr_s", "wlr-s").split("_", 2)
    cookie.set(cookie.key, f"wlr_s_{int(until) + 9}_{rest}", "")
    assert await as_page(face, "GET", f"{API}/whoami", cookie) == 401


async def test_what_changes_something_needs_the_header_of_a_page(face: Face) -> None:
    """Another site can make a browser send a form with cookies, but not this header; agents' routes stay closed."""
    await face.world.submit({})
    _, cookie = await sign_in(face, face.admin)
    assert cookie is not None
    assert await as_page(face, "POST", f"{API}/jobs/1/hold", cookie) == 401
    assert await as_page(face, "POST", f"{API}/jobs/1/hold", cookie, **PAGE) == 200
    assert await as_page(face, "POST", "/agent/v1/heartbeat", cookie, **PAGE) == 403
    assert await as_page(face, "GET", f"{API}/jobs/1", cookie) == 200
    assert await as_page(face, "GET", f"{API}/jobs/1", cookie, Upgrade="websocket", Connection="Upgrade") == 401
    body = json.dumps({"token": face.admin}).encode()
    assert (await face.client.post("/web/session", data=body)).status == 401


async def test_a_cookie_is_void_when_its_token_is(face: Face) -> None:
    """Revoked, or its user removed: the page is signed out at once. The role is the token's."""
    _, made = await face.json("POST", f"{API}/tokens", {"user": "ada", "role": "viewer"})
    _, cookie = await sign_in(face, made["token"])
    assert cookie is not None
    assert await as_page(face, "GET", f"{API}/jobs", cookie) == 200
    assert await as_page(face, "GET", f"{API}/audit", cookie) == 403
    await face.json("DELETE", f"{API}/tokens/{made['prefix']}")
    assert await as_page(face, "GET", f"{API}/jobs", cookie) == 401
    _, made = await face.json("POST", f"{API}/tokens", {"user": "bob", "role": "viewer"})
    _, cookie = await sign_in(face, made["token"])
    assert cookie is not None
    assert (await face.call("DELETE", f"{API}/users/bob")).status == 200
    assert await as_page(face, "GET", f"{API}/jobs", cookie) == 401


async def test_only_users_sign_in_and_wrong_tokens_are_limited(face: Face, agent: FakeAgent) -> None:
    """Neither the token of a machine nor nonsense of any size; after a burst 429."""
    assert (await sign_in(face, agent.credential))[0] == 401
    for body in (b"", b"[]", b'{"token": 7}', b"{" * 3000, b'{"token": "' + b"x" * 5000 + b'"}'):
        assert (await face.client.post("/web/session", data=body, headers=PAGE)).status == 401
    statuses = [(await sign_in(face, "wlr_u_wrong"))[0] for _ in range(40)]
    assert set(statuses) == {401, 429}


async def test_files_of_the_page_come_without_a_token_and_nothing_else_does(face: Face) -> None:
    """With a policy that forbids inline scripts; all but the first lie under a name made of their content."""
    response = await face.client.get("/")
    text = await response.text()
    policy = response.headers["Content-Security-Policy"]
    assert response.status == 200
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert re.findall(r"<script(?![^>]* src=)|\son\w+=|style=", text) == []
    named = re.findall(r'(?:src|href)="(/web/[^"]+)"', text)
    assert len(named) >= 4
    for path in named:
        again = await face.client.get(path)
        assert again.status == 200, path
        etag = {"If-None-Match": again.headers["ETag"]}
        assert (await face.client.get(path, headers=etag)).status == 304
    for path in ("/web/", "/web/../page.py", "/web/%2e%2e/page.py", "/web/vendor", "/web/none.js"):
        assert (await face.client.get(path)).status in (401, 429), path
    assert (await face.client.post("/")).status in (401, 429)
    first = await face.client.get("/")
    assert first.headers["Cache-Control"] == "no-cache"
    text = await first.text()
    named = re.findall(r'(?:src|href)="(/web/[^"]+)"', text)
    (folder,) = {path.split("/")[2] for path in named}
    assert re.fullmatch("[0-9a-f]{16}", folder)
    modules = re.findall(r'<link rel="modulepreload" href="/web/[0-9a-f]{16}/([^"]+)">', text)
    imported = set()
    for name in modules:
        response = await face.client.get(f"/web/{folder}/{name}")
        assert response.headers["Cache-Control"] == "public, max-age=31536000, immutable"
        imported |= set(re.findall(r'from "\./([^"]+)"', await response.text()))
    assert imported == set(modules) - {"app.js"}
    assert (await face.client.get("/web/app.js")).headers["Cache-Control"] == "no-cache"
    assert (await face.client.get("/web/0123456789abcdef/app.js")).status == 401


async def test_one_question_tells_who_is_signed_in(face: Face) -> None:
    """Nobody at first; then the user of the token."""
    assert await (await face.client.get("/web/session")).json() == {"signed_in": False}
    _, cookie = await sign_in(face, face.admin)
    sent = {"Cookie": f"{cookie.key}={cookie.value}"}
    told = await (await face.client.get("/web/session", headers=sent)).json()
    _, who = await face.json("GET", f"{API}/whoami")
    assert told == {"signed_in": True, "user": who}


async def test_data_is_never_run(face: Face) -> None:
    """Whatever a job wrote: opened by itself in a browser that is signed in, it is neither sniffed nor given rights."""
    for path in (f"{API}/jobs", f"{API}/overview", "/metrics", f"{API}/jobs/9/logs"):
        headers = (await face.call("GET", path)).headers
        assert headers["X-Content-Type-Options"] == "nosniff", path
        assert "sandbox" in headers["Content-Security-Policy"], path


def test_own_scripts_make_no_markup_of_strings_and_stay_short() -> None:
    """No innerHTML and its kin, no eval, no address of another site; vendored files have their licences beside them."""
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|dangerouslySet|\beval\(|new Function|https?:"
    )
    for path in STATIC.glob("*.js"):
        assert forbidden.findall(path.read_text()) == [], path.name
        assert len(path.read_text().splitlines()) < 450
    licences = {path.name for path in (STATIC / "vendor").glob("LICENSE-*.txt")}
    assert licences == {"LICENSE-htm.txt", "LICENSE-preact.txt", "LICENSE-uplot.txt"}


async def busy(face: Face) -> FakeAgent:
    """One machine with two accelerators: job 1 holds one, job 2 the other, the rest waits."""
    agent = await FakeAgent(face.world, "n1").register()
    for number in range(5):
        project = "vision" if number % 2 == 0 else "speech"
        spec = {
            "name": f"j{number + 1}", "project": project, "priority": (0, 0, 0, 50, 90)[number],
            "resources": {"accelerators": "a:1"},
        }  # fmt: skip
        await face.world.submit(spec)
    await agent.start_all()
    return agent


async def test_no_screen_counts_what_another_does_not(face: Face) -> None:
    """A machine that takes no jobs has nothing free, and its accelerators are nobody's capacity; who is held does not
    wait. It is drained once no job is on it.
    """
    agent = await busy(face)
    for job, verb in ((3, "cancel"), (4, "cancel"), (5, "hold")):
        await face.call("POST", f"{API}/jobs/{job}/{verb}")
    await FakeAgent(face.world, "n2").register()
    for node in ("n1", "n2"):
        await face.json("POST", f"{API}/nodes/{node}/drain")
    _, nodes = await face.json("GET", f"{API}/nodes")
    assert [(each["state"], each["free"]) for each in nodes] == [("draining", 0), ("drained", 0)]
    await face.json("POST", f"{API}/nodes/n1/resume")
    await agent.end(1)
    _, found = await face.json("GET", f"{API}/overview")
    assert found["types"] == [{"accelerator": "a", "free": 1, "capacity": 2}]
    assert [(each["capacity"], each["free"]) for each in found["pools"]] == [(2.0, 1.0)]
    state = face.world.loop.core.ledger.fleet.pools[0]
    assert (state.capacity, state.free) == (2, 1)
    assert (found["waiting"], found["counts"]["HELD"]) == (0, 1)


async def test_the_overview_says_who_holds_what_and_who_is_next(face: Face) -> None:
    """Cells by device, the queue by urgency as the jobs' own bodies, others left out; looking changes nothing."""
    agent = await busy(face)
    _, found = await face.json("GET", f"{API}/overview")
    _, listed = await face.json("GET", f"{API}/jobs?state=PENDING")
    assert {job["id"]: job for job in found["queue"]} == {job["id"]: job for job in listed["items"]}
    _, prices = await face.json("GET", f"{API}/prices")
    assert found["pools"] == prices["items"]
    token = face.token("eve", UserRole.USER, "speech")
    _, found = await face.json("GET", f"{API}/overview", token=token)
    assert found["machines"][0]["cells"] == [1, 2]
    assert found["names"] == {"2": "j2"}
    assert [job["id"] for job in found["queue"]] == [4]
    assert (found["waiting"], found["counts"]) == (1, {"RUNNING": 1, "PENDING": 1})
    core = face.world.loop.core
    before = repr(core.ledger.columns.owed), repr(core.ledger.columns.settled_at)
    face.world.clock.at += 5.0
    assert await order_of_queue(core, 10) == (5, 4, 3)
    assert await order_of_queue(core, 1, lambda job: job.request.project == "speech") == (4,)
    assert (repr(core.ledger.columns.owed), repr(core.ledger.columns.settled_at)) == before
    _, found = await face.json("GET", f"{API}/overview")
    assert found["machines"][0]["cells"] == [1, 2]
    assert found["types"] == [{"accelerator": "a", "free": 0, "capacity": 2}]
    assert found["counts"] == {"RUNNING": 2, "PENDING": 3}
    assert [job["id"] for job in found["queue"]] == [5, 4, 3]
    assert (found["waiting"], found["names"]) == (3, {"1": "j1", "2": "j2"})
    assert found["alerts"] == []
    await agent.end(1)
    (started,) = await agent.start_all()
    assert started.job_id == 5
    await face.call("POST", f"{API}/jobs/4/hold")
    _, found = await face.json("GET", f"{API}/overview")
    assert [job["id"] for job in found["queue"]] == [3, 4]
    assert found["machines"][0]["cells"] == [5, 2]


def stream_quickly(monkeypatch: pytest.MonkeyPatch, pace_s: float = 0.02) -> None:
    """Build overviews often: a busy machine would else wait for 20 times as long as its builds took."""
    monkeypatch.setattr(event_stream, "_PACE_S", pace_s)
    monkeypatch.setattr(event_stream, "_PART", 1.0)


async def next_event(stream: Any, queue: list[int] | None = None) -> dict[str, Any]:
    """The next event; with `queue` the next one that tells this queue."""
    async with asyncio.timeout(30.0):
        while True:
            line = (await stream.content.readline()).decode()
            if line.startswith("data: "):
                event: dict[str, Any] = json.loads(line.removeprefix("data: "))
                if queue is None or [job["id"] for job in event.get("queue", ())] == queue:
                    return event


async def test_pages_get_everything_once_and_then_what_changed(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many pages are open, the overview is built once for all who see the same."""
    stream_quickly(monkeypatch, 3600.0)  # nothing is built but because somebody came
    await busy(face)
    builder, built = face.client.app[STREAM].builder, 0  # type: ignore[index]
    build = builder.build

    async def counted(projects: Any) -> Any:
        nonlocal built
        built += 1
        return await build(projects)

    monkeypatch.setattr(type(builder), "build", lambda _, projects: counted(projects))
    pages = [await face.call("GET", f"{API}/overview/events") for _ in range(20)]
    first = [await next_event(page) for page in pages]
    assert all({"machines", "queue", "pools"} <= event.keys() for event in first)
    assert built <= 2
    stream_quickly(monkeypatch)
    await face.call("POST", f"{API}/jobs/5/hold")
    face.client.app[STREAM]._is_awaited.set()  # type: ignore[index]
    changes = [await next_event(page, [4, 3, 5]) for page in pages]
    assert "machines" not in changes[0]
    for page in pages:
        page.close()


async def test_a_page_that_is_loaded_again_shows_at_once_what_was_sent_last(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a wait for the next overview, which follows; after a while nothing is kept, and nothing is built."""
    stream_quickly(monkeypatch)
    await busy(face)
    stream: OverviewStream = face.client.app[STREAM]  # type: ignore[index]
    before = await face.call("GET", f"{API}/overview/events")
    sent = await next_event(before)
    before.close()
    while stream.pages:  # noqa: ASYNC110 - the server notices by itself that the page was closed
        await asyncio.sleep(0.01)
    await face.call("POST", f"{API}/jobs/5/hold")
    page = await face.call("GET", f"{API}/overview/events")
    assert (await next_event(page))["queue"] == sent["queue"]
    await next_event(page, [4, 3, 5])
    page.close()
    monkeypatch.setattr(event_stream, "_KEPT_S", 0.0)
    task = stream._task
    assert task is not None
    async with asyncio.timeout(30.0):
        await task
    assert stream._audiences == {}


@pytest.mark.parametrize("error", [StoreUnavailable("timeout"), sqlite3.OperationalError("locked")])
async def test_a_page_goes_on_after_an_overview_that_the_database_refused(
    face: Face, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    stream_quickly(monkeypatch)
    await busy(face)
    page = await face.call("GET", f"{API}/overview/events")
    await next_event(page)
    store, loop, refused = face.world.server.store, asyncio.get_running_loop(), asyncio.Event()

    def refuse(*_: object) -> Any:
        loop.call_soon_threadsafe(refused.set)
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(store, "usage", refuse)
        await refused.wait()
    await face.call("POST", f"{API}/jobs/5/hold")
    await next_event(page, [4, 3, 5])
    page.close()


async def test_a_stream_ends_with_its_token(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """Revoked while the page is open: nothing more is sent. A page that reads nothing is left behind."""
    stream_quickly(monkeypatch)
    _, made = await face.json("POST", f"{API}/tokens", {"user": "ada", "role": "viewer", "projects": ["*"]})
    page = await face.call("GET", f"{API}/overview/events", token=made["token"])
    await next_event(page)
    await face.json("DELETE", f"{API}/tokens/{made['prefix']}")
    await face.world.submit({"name": "after"})
    async with asyncio.timeout(30.0):
        rest = await page.content.read()
    assert b"after" not in rest
    lazy = event_stream._OpenPage(event_stream._UNREAD_MOST)
    for _ in range(event_stream._UNREAD_MOST):
        lazy.put_nowait(b"x")
    event_stream._leave_behind(lazy)
    assert await lazy.get() is None


@pytest.mark.parametrize("seed", range(4))
async def test_every_page_of_the_queue_is_cut_from_the_overviews_order(face: Face, seed: int) -> None:
    """Whatever the limit: waiting jobs by urgency, those that hold places last, each once; a sweep where its first job
    is. Nothing else is in the listing of a project.
    """
    draw = random.Random(seed)
    await busy(face)
    for number in range(draw.randint(5, 40)):
        more = {"array": "0-2"} if draw.random() < 0.2 else {}
        spec = {"name": f"k{number}", "priority": draw.randint(0, 99), "resources": {"accelerators": "a:1"}}
        spec |= {"run": "true", "project": draw.choice(["vision", "speech"])} | more
        assert (await face.call("POST", f"{API}/jobs", spec, key=str(number))).status == 201
    overview = await face.got("/overview")

    async def listed(asked: str, limit: int) -> list[int]:
        found, cursor = [], ""
        while cursor is not None:
            page = await face.got(f"/jobs?sort=queue&limit={limit}&cursor={cursor}{asked}")
            found, cursor = found + [job["id"] for job in page["items"]], page.get("next")
        return found

    whole = await listed("", 1000)
    assert whole[: len(overview["queue"])] == [job["id"] for job in overview["queue"]]
    assert (whole[-2:], len(set(whole)), len(whole)) == ([1, 2], overview["waiting"] + 2, overview["waiting"] + 2)
    assert await listed("", draw.randint(1, 9)) == whole
    of = {job["id"]: job for job in (await face.got("/jobs?limit=1000"))["items"]}
    assert await listed("&project=speech", 5) == [each for each in whole if of[each]["project"] == "speech"]
    firsts = {of[each].get("sweep") or each: each for each in reversed(whole)}
    assert await listed("&sweeps=folded", 4) == sorted(firsts.values(), key=whole.index)


async def test_jobs_are_filtered_sorted_and_paged(face: Face) -> None:
    """Pages by any column neither skip nor repeat a job; a cursor of another order is refused."""
    for number in range(7):
        await face.world.submit({"name": ("b", "a", "Cat")[number % 3], "priority": number % 2})
    for sort in ("name", "-name", "id", "-id", "-priority", "submitted"):
        seen: list[tuple[Any, int]] = []
        cursor = ""
        while True:
            _, page = await face.json("GET", f"{API}/jobs?sort={sort}&limit=2&cursor={cursor}")
            seen += [
                (job[{"submitted": "submitted_at"}.get(sort, sort.strip("-"))], job["id"]) for job in page["items"]
            ]
            if not page["next"]:
                break
            cursor = page["next"]
        assert len({job_id for _, job_id in seen}) == len(seen) == 7, sort
        values = [value for value, _ in seen]
        assert values == sorted(values, reverse=sort.startswith("-")), sort
    _, found = await face.json("GET", f"{API}/jobs?name=CA")
    assert {job["name"] for job in found["items"]} == {"Cat"}
    assert (await face.call("GET", f"{API}/jobs?sort=secret")).status == 400
    for cursor in ("x", "WyIx", "-1", "W1tdLCAxXQ=="):
        assert (await face.call("GET", f"{API}/jobs?sort=name&cursor={cursor}")).status == 400


async def test_the_end_of_a_log_and_a_job_file_as_it_is(face: Face, agent: FakeAgent) -> None:
    """`tail` begins so many bytes before the end; a submit takes YAML where the request says so."""
    body, headers = b"name: written\nrun: 'true'\n", {"Authorization": f"Bearer {face.admin}"}
    as_yaml = {**headers, "Content-Type": "application/yaml"}
    response = await face.client.post(f"{API}/jobs", data=body, headers=as_yaml)
    assert (response.status, (await response.json())["name"]) == (201, "written")
    assert (await face.client.post(f"{API}/jobs:dryrun", data=b"a: &x [*x]", headers=as_yaml)).status == 400
    await agent.start_all()
    path = "/agent/v1/logs?job_id=1&attempt=1&rank=0&offset=0"
    sent = {"Authorization": f"Bearer {agent.credential}"}
    assert (await face.client.post(path, data=io.BytesIO(b"0123456789"), headers=sent)).status == 200
    end = await face.call("GET", f"{API}/jobs/1/logs?tail=4")
    assert (await end.read(), end.headers["X-Walras-Next-Offset"]) == (b"6789", "10")
    assert await (await face.call("GET", f"{API}/jobs/1/logs?tail=99")).read() == b"0123456789"
