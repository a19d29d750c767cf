"""The client against a server that loses answers, breaks off and refuses."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from walras.client import Client
from walras.connection.body import ApiCall
from walras.connection.transport import Patience, Transport
from walras.errors import (
    ClusterError,
    ConfigError,
    Conflict,
    Forbidden,
    JobSpecError,
    NotFound,
    ServerUnreachable,
    UnknownPolicyError,
)
from walras.spec.job_spec import parse_spec
from walras.storage.content import hash_folder
from walras.storage.content_transfer import ContentTransfer

TOKEN = "walras_user_secret"
QUICK = Patience(tries=3, backoff_s=0.0, poll_s=0.0, call_timeout_s=5.0, connect_timeout_s=1.0, outage_s=0.0)


def client_of(fake: Any, token: str = TOKEN) -> Client:
    return Client(fake.url, token, patience=QUICK)


async def test_a_submission_whose_answer_is_lost_makes_one_job(fake: Any) -> None:
    """The connection breaks after the server has stored the job; the repeated call gets the same job."""
    fake.script = ["drop", 503]
    async with client_of(fake) as client:
        submitted = await client.submit(parse_spec("run: python train.py\nname: a"))
    assert (submitted.id, submitted.name) == (1, "a")
    assert len(fake.jobs) == 1
    assert [request[:2] for request in fake.requests] == [("POST", "/api/v1/jobs")] * 3
    assert fake.requests[0][2] == {"name": "a", "run": "python train.py"}


async def test_two_submissions_are_two_jobs(fake: Any) -> None:
    """The key is made anew for each call; a caller's own key makes equal calls one job."""
    async with client_of(fake) as client:
        ids = [(await client.submit({"run": "x"})).id for _ in range(2)]
        ids += [(await client.submit({"run": "x"}, idempotency_key="mine")).id for _ in range(2)]
    assert ids == [1, 2, 3, 3]


async def test_a_token_is_asked_for_once(fake: Any) -> None:
    """A call that would do something twice is not repeated."""
    fake.script = ["drop"]
    async with client_of(fake) as client:
        with pytest.raises(ServerUnreachable):
            await client.create_token("ada", "user", ["vision"])
    assert len(fake.requests) == 1


async def test_patience_ends(fake: Any) -> None:
    """A server that stays busy is given up after the allowed number of tries, an absent one too."""
    fake.script = [503] * 10
    async with client_of(fake) as client:
        with pytest.raises(ServerUnreachable, match="not now"):
            await client.health()
    assert len(fake.requests) == 3
    async with Client("http://127.0.0.1:9", TOKEN, patience=QUICK) as client:
        with pytest.raises(ServerUnreachable, match=r"no Walras server answers at http://127\.0\.0\.1:9"):
            await client.nodes()


@pytest.mark.parametrize(
    ("act", "kind", "said"),
    [
        (lambda c: c.job(99), NotFound, "no job 99"),
        (lambda c: c.hold(1), Conflict, "only a waiting job"),
        (lambda c: c.submit({"run": "x", "resources": {"accelerators": {"h900": 1}}}), JobSpecError, "h900"),
        (lambda c: c.set_policy({"policy": {"name": "max_mim"}}), UnknownPolicyError, "max_mim"),
    ],
)
async def test_refusals_become_our_errors(fake: Any, act: Any, kind: type[Exception], said: str) -> None:
    """Each problem is raised as the class of its code or status, with the server's words, field and fix."""
    fake.add(state="RUNNING")
    async with client_of(fake) as client:
        with pytest.raises(kind, match=said):
            await act(client)
    assert len(fake.requests) == 1, "a refusal is not asked for again"


async def test_a_wrong_token_and_a_broken_server(fake: Any) -> None:
    """401 says what to set; 500 is the cluster's fault, not the user's."""
    async with client_of(fake, token="stale") as client:
        with pytest.raises(Forbidden) as refusal:
            await client.nodes()
    assert "WALRAS_TOKEN_FILE" in refusal.value.fix
    fake.script = [500]
    async with client_of(fake) as client:
        with pytest.raises(ClusterError, match="500"):
            await client.nodes()


async def test_the_token_is_in_no_address(fake: Any) -> None:
    """The token travels in the header alone."""
    fake.add()
    async with client_of(fake) as client:
        await client.job(1)
        _ = [job async for job in client.jobs(active=True)]
    assert all(TOKEN not in path for _, path, _ in fake.requests)
    with pytest.raises(ConfigError, match="password"):
        Client("http://ada:secret@host:1", TOKEN)
    for wrong in ("", "host:80", "ftp://host", "http://"):
        with pytest.raises(ConfigError, match="not a server's address"):
            Client(wrong, TOKEN)


async def test_an_answer_of_a_newer_server_is_understood(fake: Any) -> None:
    """Fields that this version does not know are ignored."""
    async with client_of(fake) as client:
        assert (await client.health()).ok


async def test_content_is_waited_for_as_long_as_a_slow_line_needs(fake: Any, tmp_path: Path) -> None:
    """A chunk has 4 MiB: within the seconds of any other call it would never arrive from a hotel or a home."""
    (tmp_path / "a").write_bytes(os.urandom(64 * 1024))
    tree = hash_folder(tmp_path, ["a"])
    name = tree.files[0].chunks[0]
    async with Transport(fake.url, TOKEN, Patience(tries=1, call_timeout_s=1e-6)) as slow:
        with pytest.raises(ServerUnreachable):
            await slow.bytes(ApiCall("GET", "/api/v1/whoami"))
        await ContentTransfer(slow)._put(name, (tmp_path / "a").read_bytes())
        fake.trees[tree.name] = tree
        assert await ContentTransfer(slow, "/api/v1/jobs/1/outputs").fetch(tree.name, tmp_path / "to") == tree


async def log_of(client: Client, job_id: int, **options: Any) -> bytes:
    return b"".join([piece async for piece in client.logs(job_id, **options)])


async def test_a_followed_log_survives_lost_connections(fake: Any) -> None:
    """The connection breaks three times; every byte arrives once and in order."""
    job_id = fake.add(state="RUNNING")
    fake.attempts[job_id] = [attempt(job_id, 1)]
    fake.logs[job_id, 1] = bytes(range(256)) * 100
    fake.log_cuts = [10_000, 1, 5_000]

    def end_later(number: int) -> None:
        if number == 14:
            fake.attempts[job_id] = [attempt(job_id, 1, state="SUCCEEDED")]
            fake.jobs[job_id]["state"] = "SUCCEEDED"
            fake.logs[job_id, 1] += b"the last words"

    fake.on_request = end_later
    async with client_of(fake) as client:
        assert await log_of(client, job_id, follow=True) == bytes(range(256)) * 100 + b"the last words"


@pytest.mark.parametrize("follow", [True, False])
async def test_a_log_is_read_on_after_a_moment_in_which_the_server_is_busy(fake: Any, follow: bool) -> None:
    """A proxy before a server that restarts says 502, a full share 429: as transient as a lost connection."""
    job_id = fake.add(state="SUCCEEDED")
    fake.attempts[job_id] = [attempt(job_id, 1, state="SUCCEEDED")]
    fake.logs[job_id, 1] = b"all of it"
    asked = []

    def busy(number: int) -> None:
        path = fake.requests[-1][1]
        asked.append(path)
        if "/logs" in path and sum("/logs" in each for each in asked) <= 2:
            fake.script = [502]

    fake.on_request = busy
    async with client_of(fake) as client:
        assert await log_of(client, job_id, follow=follow) == b"all of it"


async def test_a_followed_log_survives_a_restart_of_the_server(fake: Any) -> None:
    """Which takes longer than any call is tried again."""
    job_id, asked = fake.add(state="PENDING"), []
    fake.logs[job_id, 1] = b"all of it"

    def restart(number: int) -> None:
        asked.append(fake.requests[-1][1])
        if len(asked) in (3, 30):
            fake.script = [503] * 20
        elif len(asked) == 26:
            fake.attempts[job_id] = [attempt(job_id, 1)]
        elif len(asked) > 52:
            fake.attempts[job_id], fake.jobs[job_id]["state"] = [attempt(job_id, 1, state="SUCCEEDED")], "SUCCEEDED"

    fake.on_request = restart
    async with Client(fake.url, TOKEN, patience=replace(QUICK, outage_s=60.0)) as client:
        assert await log_of(client, job_id, follow=True) == b"all of it"


async def test_following_goes_on_with_the_next_attempt(fake: Any) -> None:
    """After a preemption the next attempt's log follows from its beginning, until the job ends."""
    job_id = fake.add(state="PENDING")

    def advance(number: int) -> None:
        if number == 3:
            fake.attempts[job_id] = [attempt(job_id, 1, state="PREEMPTED")]
            fake.logs[job_id, 1] = b"one "
        elif number == 9:
            fake.attempts[job_id].append(attempt(job_id, 2, state="SUCCEEDED"))
            fake.logs[job_id, 2] = b"two"
            fake.jobs[job_id]["state"] = "SUCCEEDED"

    fake.on_request = advance
    async with client_of(fake) as client:
        assert await log_of(client, job_id, follow=True) == b"one two"


async def test_a_server_that_stays_away_ends_following(fake: Any) -> None:
    """Following gives up after the allowed number of failures in a row."""
    job_id = fake.add(state="RUNNING")
    fake.attempts[job_id] = [attempt(job_id, 1)]
    fake.log_cuts = [0] * 50
    async with client_of(fake) as client:
        with pytest.raises(ServerUnreachable):
            await log_of(client, job_id, follow=True)


def attempt(job_id: int, number: int, state: str = "RUNNING") -> dict[str, Any]:
    return {
        "job_id": job_id, "attempt": number, "state": state, "pool": "p", "accelerator": "a100", "placement": [],
        "accelerators": 1, "leased_at": "2026-11-05T18:00:00Z",
    }  # fmt: skip
