"""Secrets of jobs: sent once, sealed in the tables, handed to the running attempt alone, gone with the job."""

import hashlib
import json
import logging
import sqlite3
from pathlib import Path

import pytest

from scheduler.live.auth.access_control import UserRole
from scheduler.live.auth.job_privacy import SecretBox
from tests.support.http_face import Face, facing
from tests.support.live_world import FakeAgent
from walras.errors import JobSpecError
from walras.job_request import JobId
from walras.spec.job_groups import secret_values, with_secret_values
from walras.spec.job_spec import parse_spec

pytestmark = pytest.mark.sql

API = "/api/v1"
VALUE = "s3cr3t-value-of-ada"
JOB = {"run": "true", "envs": {"PLAIN": "seen-by-few"}, "secrets": {"TOKEN": {"value": VALUE}}}


def _dump(folder: Path) -> str:
    """Everything in the database, as text."""
    with sqlite3.connect(folder / "walras.db") as database:
        return "\n".join(database.iterdump())


@pytest.mark.sqlite_file
async def test_the_running_attempt_alone_gets_the_value(face: Face, agent: FakeAgent, tmp_path: Path) -> None:
    """Not the tables, the outbox, the journal, the remembered answer, or anybody who asks; and it goes with the job."""
    await face.done("POST", f"{API}/jobs", JOB, key="k1", status=201)
    (start,) = await agent.start_all()
    assert start.env == {"PLAIN": "seen-by-few", "TOKEN": VALUE, "WALRAS_ACCELERATORS": "a:1"}
    written = _dump(tmp_path / "data")
    assert "seen-by-few" in written
    assert VALUE not in written
    assert VALUE.encode().hex() not in written.lower()
    guess = hashlib.sha256(b"jobs\n" + json.dumps(JOB).encode()).hexdigest()
    assert guess not in written, "a body that holds secrets can be guessed from its digest"
    shown = await face.got("/jobs/1")
    assert shown["spec"]["secrets"] == {"TOKEN": {}}
    _, own = await face.json("GET", f"{API}/jobs/1", token=start.job_token)
    _, again = await face.json("POST", f"{API}/jobs", JOB, key="k1")
    assert VALUE not in json.dumps([shown, own, again, (await face.json("GET", f"{API}/jobs"))[1]])
    await agent.end(1)
    assert face.world.live_state.secrets == {}
    assert sqlite3.connect(tmp_path / "data" / "walras.db").execute("SELECT count(*) FROM secrets").fetchone() == (0,)


async def test_a_job_whose_secrets_do_not_open_is_held_and_never_started_without_them(tmp_path: Path) -> None:
    """With another secret.key: other jobs start; it says why it is held, once, and starts once the key is back."""
    async with facing(tmp_path) as face:
        assert (await face.json("POST", f"{API}/jobs", JOB))[0] == 201
    key = (tmp_path / "secret.key").read_text()
    (tmp_path / "secret.key").write_text("00" * 32)
    async with facing(tmp_path) as face:
        agent = await FakeAgent(face.world, "n1").register()
        assert (await face.json("POST", f"{API}/jobs", {"run": "true"}))[0] == 201
        for _ in range(3):
            await agent.start_all()
            await face.world.quiet()
        assert list(agent.here) == [(2, 1)]
        for _ in range(2):
            _, shown = await face.json("GET", f"{API}/jobs/1")
            assert (shown["state"], "secret.key" in shown["detail"]) == ("HELD", True), shown
            assert (await face.json("POST", f"{API}/jobs/1/release"))[0] == 200
            for _ in range(3):
                await face.world.advance(10.0)
                await agent.start_all()
        await agent.end(2)
    (tmp_path / "secret.key").write_text(key)
    async with facing(tmp_path) as face:
        agent.world = face.world
        assert (await face.json("POST", f"{API}/jobs/1/release"))[0] == 200
        (start,) = await agent.start_all()
        assert start.env.get("TOKEN") == VALUE


async def test_variables_are_hidden_from_others(face: Face, agent: FakeAgent) -> None:
    """The owner, the job and administrators see them; a colleague and an operator see their names."""
    ada, bob = face.token("ada", UserRole.USER, "p"), face.token("bob", UserRole.USER, "p")
    ops = face.token("ops", UserRole.OPERATOR, "p")
    assert (await face.json("POST", f"{API}/jobs", JOB, token=ada))[0] == 201
    (start,) = await agent.start_all()

    async def seen(token: str | None) -> str:
        return str((await face.json("GET", f"{API}/jobs/1", token=token))[1]["spec"]["envs"]["PLAIN"])

    assert [await seen(token) for token in (ada, None, start.job_token)] == ["seen-by-few"] * 3
    assert [await seen(token) for token in (bob, ops)] == ["(hidden)"] * 2
    _, held = await face.json("POST", f"{API}/jobs/1/cancel", token=ops)
    assert "seen-by-few" not in json.dumps(held)


@pytest.mark.parametrize(
    "secrets",
    [{"A": VALUE}, {"A": {"value": 7_654_321}}, {"A": {"value": VALUE + "\0"}}, {"A": {"value": VALUE * 2000}},
     {"A": {"value": VALUE, "env": "X"}}, {"A": {"env": "X"}}, {"A": {}}, {"WALRAS_A": {"value": VALUE}}, [VALUE],
     {"PLAIN": {"value": VALUE}}],
)  # fmt: skip
async def test_a_refusal_names_the_secret_and_never_its_value(
    face: Face, secrets: object, caplog: pytest.LogCaptureFixture
) -> None:
    """400 for what is no value, or was never sent; neither the answer nor the log repeats it."""
    with caplog.at_level(logging.DEBUG):
        status, problem = await face.json("POST", f"{API}/jobs", {**JOB, "secrets": secrets})
    assert (status, problem["field"].startswith("secrets")) == (400, True), problem
    assert VALUE not in json.dumps(problem)
    assert "7654321" not in json.dumps(problem)
    assert VALUE not in caplog.text


async def test_a_dry_run_needs_no_values(face: Face) -> None:
    assert (await face.json("POST", f"{API}/jobs:dryrun", {**JOB, "secrets": {"TOKEN": {"env": "HOME"}}}))[0] == 200


def test_the_client_reads_the_sources(tmp_path: Path) -> None:
    """A variable, a file, a value; what is not there is named. A sealed value opens for its job alone."""
    (tmp_path / "key").write_text("of a file\n")
    sources = {"A": {"env": "HERE"}, "B": {"file": str(tmp_path / "key")}, "C": {"value": "as it is"}}
    sent = with_secret_values({"run": "true", "secrets": sources}, {"HERE": "of the shell"})
    found = {name: source["value"] for name, source in sent["secrets"].items()}
    assert found == {"A": "of the shell", "B": "of a file", "C": "as it is"}
    assert parse_spec(sent).secrets["A"].value == "of the shell"
    written = parse_spec({"run": "true", "secrets": sources})
    assert secret_values(written.secrets, {"HERE": "of the shell"}) == found, "runs on this machine have them too"
    assert VALUE not in repr(parse_spec(JOB))
    for source in ({"env": "GONE"}, {"file": str(tmp_path / "gone")}, {}):
        with pytest.raises(JobSpecError) as refused:
            with_secret_values({"secrets": {"A": source}}, {})
        assert refused.value.field == "secrets.A"
    box = SecretBox(b"k" * 32)
    sealed = box.seal(JobId(1), {"A": VALUE})
    assert box.open(JobId(1), sealed) == {"A": VALUE}
    assert sealed != box.seal(JobId(1), {"A": VALUE})
    for opened_by, number, found in (
        (box, 2, sealed),
        (SecretBox(b"x"), 1, sealed),
        (box, 1, sealed[:-1]),
        (box, 1, b""),
    ):
        assert opened_by.open(number, found) is None
