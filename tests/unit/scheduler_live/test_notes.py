"""Notes on jobs: who writes and reads them, how many there may be, and that they go with their job."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.live.auth.access_control import UserRole
from scheduler.live.store.retention import prune
from tests.support.http_face import Face, facing
from walras.job_notes import LONGEST_NOTE, MOST_NOTES

API = "/api/v1"
HOSTILE = "<script>alert(1)</script> \x1b[31m'); DROP TABLE notes; --\nsecond line"


@pytest.fixture
async def face(tmp_path: Path) -> AsyncIterator[Face]:
    async with facing(tmp_path / "data") as found:
        yield found


async def texts(face: Face, job: int = 1, token: str | None = None) -> list[str]:
    status, found = await face.json("GET", f"{API}/jobs/{job}/notes", token=token)
    assert status == 200, found
    return [each["text"] for each in found]


async def test_a_note_says_who_wrote_what_when_and_comes_back_as_it_was_written(face: Face) -> None:
    """In order, with blanks around it left out, whatever is in it; also on a job that has ended."""
    await face.world.submit({})
    face.world.clock.at += 90.0
    status, made = await face.json("POST", f"{API}/jobs/1/notes", {"text": f"  {HOSTILE} \n"})
    assert (status, made["text"], made["user"], made["job_id"]) == (201, HOSTILE, "admin", 1)
    assert made["at"] == face.world.loop.clock.shown(face.world.clock.at)
    await face.call("POST", f"{API}/jobs/1/cancel")
    assert (await face.json("POST", f"{API}/jobs/1/notes", {"text": "cancelled: the data were wrong"}))[0] == 201
    assert await texts(face) == [HOSTILE, "cancelled: the data were wrong"]


async def test_owners_and_operators_write_and_all_who_see_the_job_read(face: Face) -> None:
    """As with other changes of a job; who does not see the job learns nothing of it."""
    await face.world.submit({"project": "p"}, user="ada")
    may = {"ada": UserRole.USER, "ops": UserRole.OPERATOR}
    for user, role in may.items():
        status, _ = await face.json("POST", f"{API}/jobs/1/notes", {"text": user}, token=face.token(user, role, "p"))
        assert status == 201, user
    bob, eve = face.token("bob", UserRole.USER, "p"), face.token("eve", UserRole.VIEWER, "p")
    stranger = face.token("mal", UserRole.OPERATOR, "q")
    for token, status in ((bob, 403), (eve, 403), (stranger, 404)):
        assert (await face.json("POST", f"{API}/jobs/1/notes", {"text": "x"}, token=token))[0] == status
        assert (await face.json("DELETE", f"{API}/jobs/1/notes/1", token=token))[0] == status
    assert await texts(face, token=bob) == await texts(face, token=eve) == ["ada", "ops"]
    assert (await face.json("GET", f"{API}/jobs/1/notes", token=stranger))[0] == 404


async def test_notes_are_bounded_in_length_and_number(face: Face) -> None:
    """Also where many are sent at once; a removed one makes room, and its number is not given out again."""
    await face.world.submit({})
    for body in (
        {"text": " "},
        {"text": "x" * (LONGEST_NOTE + 1)},
        {"text": 7},
        {"text": "a\0b"},
        {},
        {"text": "\ud800"},
    ):
        assert (await face.json("POST", f"{API}/jobs/1/notes", body))[0] == 400, body
    sent = [face.json("POST", f"{API}/jobs/1/notes", {"text": f"n{number}"}) for number in range(MOST_NOTES + 20)]
    statuses = [status for status, _ in await asyncio.gather(*sent)]
    assert (statuses.count(201), statuses.count(409)) == (MOST_NOTES, 20)
    assert (await face.json("DELETE", f"{API}/jobs/1/notes/{MOST_NOTES}"))[0] == 200
    assert (await face.json("DELETE", f"{API}/jobs/1/notes/{MOST_NOTES}"))[0] == 404
    assert (await face.json("DELETE", f"{API}/jobs/1/notes/{'9' * 30}"))[0] == 404
    _, made = await face.json("POST", f"{API}/jobs/1/notes", {"text": "again"})
    assert made["id"] == MOST_NOTES + 1
    await face.world.submit({})
    assert (await face.json("DELETE", f"{API}/jobs/2/notes/1"))[0] == 404, "it is a note on another job"


async def test_the_audit_has_the_note_and_not_its_text(face: Face) -> None:
    """What should not have been written is gone once it is removed."""
    await face.world.submit({})
    await face.json("POST", f"{API}/jobs/1/notes", {"text": "password hunter2"})
    await face.json("DELETE", f"{API}/jobs/1/notes/1")
    _, rows = await face.json("GET", f"{API}/audit")
    removed, added = rows
    assert (added["subject"], added["after"]) == ("job 1", {"note": 1, "by": "admin", "characters": 16})
    assert (removed["before"], removed["after"]) == (added["after"], None)
    assert "hunter2" not in json.dumps(rows)


@pytest.mark.sqlite_file
async def test_notes_outlive_a_restart_and_go_with_their_job(tmp_path: Path) -> None:
    """Those of other jobs stay; a number is not used again after a restart either."""
    async with facing(tmp_path / "data") as face:
        for job in (1, 2):
            await face.world.submit({})
            await face.json("POST", f"{API}/jobs/{job}/notes", {"text": f"of job {job}"})
        await face.json("DELETE", f"{API}/jobs/2/notes/2")
    async with facing(tmp_path / "data") as face:
        assert await texts(face) == ["of job 1"]
        _, made = await face.json("POST", f"{API}/jobs/2/notes", {"text": "later"})
        assert made["id"] == 3
        await face.call("POST", f"{API}/jobs/1/cancel")
        face.world.clock.at += 10 * 86_400.0
        await face.call("POST", f"{API}/jobs/2/hold")
        assert prune(tmp_path / "data", jobs_older_s=86_400.0, logs_older_s=86_400.0).jobs == 1
        store: Any = face.world.server.store
        assert store.notes(1) == []
        assert await texts(face, 2) == ["later"]
