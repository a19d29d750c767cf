"""Published reports: who publishes, reads and removes them, what bounds them, and how their pages are fenced in."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.live.auth.access_control import UserRole
from scheduler.live.http import published_api
from scheduler.live.services.content_sweep import drop_superseded, sweep_content
from tests.support.http_face import Face, facing
from walras.content import CHUNK_BYTES
from walras.published_reports import LONGEST_TITLE, REPORT_BYTES, is_html, title_of_page

API = "/api/v1"
PAGE = b"<!DOCTYPE html><title>Policies</title><script>document.title = 'ran'</script><p>\xc3\xbc"


@pytest.fixture
async def face(tmp_path: Path) -> AsyncIterator[Face]:
    async with facing(tmp_path / "data") as found:
        yield found


async def publish(face: Face, page: bytes = PAGE, query: str = "title=T", **more: Any) -> tuple[int, Any]:
    return await face.json("POST", f"{API}/reports?{query}", page, **more)


async def titles(face: Face, token: str | None = None) -> list[str]:
    status, found = await face.json("GET", f"{API}/reports", token=token)
    assert status == 200, found
    return [each["title"] for each in found]


async def test_a_page_comes_back_byte_by_byte_under_its_hash(face: Face) -> None:
    """Also one of several chunks. The same page with the same title is one report; with another title it is two."""
    face.world.clock.at += 60.0
    long = PAGE + b" " * (CHUNK_BYTES + 5)
    for number, page in enumerate((PAGE, long), 1):
        status, made = await publish(face, page)
        digest = hashlib.sha256(page).hexdigest()
        assert (status, made["id"], made["sha256"], made["size_bytes"]) == (201, number, digest, len(page))
        assert (made["user"], made["project"], made["title"]) == ("admin", "default", "T")
        assert made["published_at"] == face.world.loop.clock.shown(face.world.clock.at)
        assert await (await face.call("GET", f"{API}/reports/{number}/page")).read() == page
        assert await face.json("GET", f"{API}/reports/{number}") == (200, made)
    assert (await publish(face))[1]["id"] == 1
    assert (await publish(face, query="title=Other"))[1]["id"] == 3
    assert await titles(face) == ["Other", "T", "T"]
    _, rows = await face.json("GET", f"{API}/audit")
    assert [row["subject"] for row in rows] == ["report 3", "report 2", "report 1"]


async def test_a_page_is_sent_as_a_sandbox_that_reaches_nothing(face: Face) -> None:
    """Its scripts have no origin and no network; only this server frames it; by itself it is saved, not shown."""
    await publish(face)
    response = await face.call("GET", f"{API}/reports/1/page")
    policy = dict(each.strip().split(" ", 1) for each in response.headers["Content-Security-Policy"].split(";"))
    assert policy == {
        "sandbox": "allow-scripts", "default-src": "'none'", "script-src": "'unsafe-inline'",
        "style-src": "'unsafe-inline'", "img-src": "data:", "font-src": "data:", "base-uri": "'none'",
        "form-action": "'none'", "frame-ancestors": "'self'",
    }  # fmt: skip
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "Content-Disposition" not in response.headers
    headers = {"Authorization": f"Bearer {face.admin}", "Sec-Fetch-Dest": "document"}
    alone = await face.client.get(f"{API}/reports/1/page", headers=headers)
    assert alone.headers["Content-Disposition"].startswith("attachment")


async def test_readers_of_the_project_read_and_publishers_and_operators_remove(face: Face) -> None:
    """A viewer publishes nothing; nobody sees what is of another project; what is for everybody only operators of all
    projects publish.
    """
    ada, bob = face.token("ada", UserRole.USER, "p", "q"), face.token("bob", UserRole.USER, "p")
    eve, ops = face.token("eve", UserRole.VIEWER, "q"), face.token("ops", UserRole.OPERATOR, "p")
    for query, token, status in (
        ("title=mine", ada, 201), ("title=other&project=q", ada, 201), ("title=no&project=q", bob, 403),
        ("title=no", eve, 403), ("title=no&project=*", ada, 403), ("title=no&project=*", ops, 403),
        ("title=all&project=*", face.admin, 201), ("title=all&project=*", face.token("r", UserRole.USER, "*"), 403),
    ):  # fmt: skip
        assert (await publish(face, query=query, token=token))[0] == status, query
    assert [await titles(face, token) for token in (ada, bob, eve)] == [
        ["all", "other", "mine"], ["all", "mine"], ["all", "other"],
    ]  # fmt: skip
    for path in ("", "/page"):
        assert (await face.call("GET", f"{API}/reports/2{path}", token=bob)).status == 404
        assert (await face.call("GET", f"{API}/reports/3{path}", token=bob)).status == 200
    assert [(await face.call("DELETE", f"{API}/reports/1", token=each)).status for each in (eve, bob)] == [403, 403]
    assert (await face.call("DELETE", f"{API}/reports/3", token=ops)).status == 403
    assert (await face.call("DELETE", f"{API}/reports/1", token=ops)).status == 200
    assert (await face.call("DELETE", f"{API}/reports/2", token=ada)).status == 200
    assert await titles(face) == ["all"]
    assert (await face.call("GET", f"{API}/reports/1/page")).status == 404
    _, rows = await face.json("GET", f"{API}/audit", token=ops)
    assert [(row["subject"], row["project"]) for row in rows] == [("report 1", "p"), ("report 1", "p")]


async def test_reports_are_bounded_and_checked(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """In size, in number of a project and in all, also where several come at once; each is HTML and has a title."""
    for name in "pq":
        assert (await face.json("POST", f"{API}/projects", {"name": name}))[0] == 201
    for page, query, status in (
        (b"", "title=T", 400), (b" \n", "title=T", 400), (b"\xff\xfe", "title=T", 400), (PAGE, "", 400),
        (PAGE, "title=%20", 400), (PAGE, f"title={'x' * (LONGEST_TITLE + 1)}", 400), (PAGE, "title=a%00", 400),
        (b"x" * (REPORT_BYTES + 1), "title=T", 413), (b"name: a\nrun: [python]\n", "title=T", 400),
        (b"{}", "title=T", 400), (b"<svg></svg>", "title=T", 400), (PAGE, "title=T&project=nosuch", 404),
    ):  # fmt: skip
        assert (await publish(face, page, query))[0] == status, (page[:9], query)
    monkeypatch.setattr(published_api, "MOST_REPORTS_OF_PROJECT", 3)
    monkeypatch.setattr(published_api, "MOST_REPORTS", 4)
    sent = [publish(face, PAGE + b"%d" % number) for number in range(6)]
    assert sorted(status for status, _ in await asyncio.gather(*sent)) == [201, 201, 201, 409, 409, 409]
    assert [(await publish(face, query=f"title=T&project={name}"))[0] for name in "pq"] == [201, 409]
    assert (await face.call("DELETE", f"{API}/reports/4")).status == 200
    assert (await publish(face, query="title=T&project=q"))[1]["id"] == 5, "a number is never used again"
    for name in ("0", "9" * 30):
        assert (await face.json("GET", f"{API}/reports/{name}"))[0] == 404


async def test_a_page_is_kept_while_a_report_has_it_and_goes_after_it_was_removed(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sweeps leave it alone; of two reports of the same page the other keeps it; a lost page is said in words."""
    monkeypatch.setattr("scheduler.live.services.content_sweep.CONTENT_KEPT_S", -1.0)
    monkeypatch.setattr("scheduler.live.services.content_sweep.SUPERSEDED_KEPT_S", -1.0)
    server = face.world.server
    await publish(face)
    await publish(face, query="title=Again")
    assert await sweep_content(server) == 0
    await face.call("DELETE", f"{API}/reports/1")
    await drop_superseded(server)
    assert await (await face.call("GET", f"{API}/reports/2/page")).read() == PAGE
    await face.call("DELETE", f"{API}/reports/2")
    await drop_superseded(server)
    assert await sweep_content(server) == 0, "nothing is left of it"
    await publish(face, query="title=Lost")
    for path in server.content._folder.glob("??/*"):
        path.unlink()
    status, problem = await face.json("GET", f"{API}/reports/3/page")
    assert (status, "is gone" in problem["detail"]) == (404, True)


async def test_a_project_that_nobody_has_is_refused_also_to_administrators(face: Face) -> None:
    """The answer says how the project is made; with settings, a user or an active job, it is somebody's."""
    status, problem = await publish(face, query="title=T&project=vision")
    assert (status, problem["detail"], problem["fix"]) == (
        404, "no project 'vision'", "walras admin project add vision",
    )  # fmt: skip
    assert (await face.json("POST", f"{API}/projects", {"name": "vision"}))[0] == 201
    user = {"name": "ada", "settings": {"role": "user", "projects": ["audio"]}}
    assert (await face.json("POST", f"{API}/users", user))[0] == 201
    await face.json("POST", f"{API}/jobs", {"name": "j", "run": ["true"], "project": "text"})
    for project in ("vision", "audio", "text"):
        assert (await publish(face, query=f"title=T&project={project}"))[0] == 201, project


def test_a_page_is_known_by_how_it_begins() -> None:
    """After a byte order mark and white space, in either case."""
    for page in (PAGE, b"\xef\xbb\xbf\n <HTML lang=en>", b"<!-- made by hand --><p>", b"<meta charset=utf-8>"):
        assert is_html(page)
    for page in (b"", b"T", b"a <p>", b"<?xml version='1.0'?>", b"<svg>", b"<price>", b"%PDF-1.7", b"run: <html>"):
        assert not is_html(page)


def test_the_title_is_the_pages_own_in_one_line() -> None:
    """Whatever it holds, cut to the longest; none of a page without one."""
    assert title_of_page(b"<html><TITLE lang=en>A &lt;b&gt;\n  title</TITLE>") == "A <b> title"
    assert title_of_page(b"<p>\xff\xfe no title") == ""
    assert len(title_of_page(b"<title>" + b"x" * 5000 + b"</title>")) == LONGEST_TITLE
    assert json.dumps(title_of_page(b"<title></title>")) == '""'
