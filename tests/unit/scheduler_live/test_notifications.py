"""Notifications: which events become some, for whom, in which words, and where they may go."""

import json
from pathlib import Path
from typing import Any

import pytest

from scheduler.live.auth.access_control import UserRole
from scheduler.live.loop.notification_events import plain_text
from scheduler.live.services.agent_gateway import declare_node_lost
from scheduler.live.services.job_watch import LateJobNotifications
from scheduler.live.services.notification_sending import is_allowed
from scheduler.live.services.notifications import read_address
from tests.support.http_face import facing
from tests.support.live_world import FakeAgent, World, world
from tests.support.notification_receiver import (
    EVERYTHING,
    HERE,
    POOL,
    SECRET_PATH,
    add_channel,
    cancel_by_other,
    waiting_notifications,
)
from walras.cluster import NodeId
from walras.errors import UserError
from walras.job_request import JobId
from walras.resources.jobs import ForecastView
from walras.states import Reason

pytestmark = pytest.mark.sql

API = "/api/v1"


async def test_ends_of_jobs_become_notifications_of_their_owner(w: World, agent: FakeAgent) -> None:
    """Success, failure, a cancel by somebody else; nothing of others' jobs, nor of one's own cancel."""
    await add_channel(w, "https://example.org/x")
    spec = {"resources": {"accelerators": {"a": 2}}, "retry": {"max_restarts": 0}}
    for name, user, code in (("well", "ada", 0), ("ill", "ada", 3), ("others", "bob", 3)):
        job_id = await w.submit({**spec, "name": name}, user=user)
        await agent.start_all()
        await agent.end(job_id, exit_code=code)
    told = [(each["kind"], each["job"]["name"], each["job"]["reason"]) for each in waiting_notifications(w)]
    assert told == [("finished", "well", None), ("failed", "ill", "USER:EXIT_CODE")]
    assert waiting_notifications(w)[1]["title"] == "job 2 (ill) failed"
    assert len({each["id"] for each in waiting_notifications(w)}) == 2


async def test_a_job_says_itself_what_is_told_of_it_also_after_a_restart(tmp_path: Path) -> None:
    """To every address of its owner; an empty list mutes it."""
    async with world(tmp_path) as w:
        await add_channel(w, "https://example.org/x", "failed")
        await add_channel(w, "https://example.org/y", "finished")
        jobs = [await w.submit({"notify": words}) for words in ("failed", "stuck", [])]
    async with world(tmp_path) as w:
        for job_id in jobs:
            await w.loop.perform(lambda t, job_id=job_id: cancel_by_other(t, job_id))
        assert [(each["kind"], each["job"]["id"]) for each in waiting_notifications(w)] == [("failed", jobs[0])] * 2
        assert [row.channel_id for row in w.live_state.notifications.waiting.values()] == [1, 2]


async def test_cancels_budgets_and_lost_machines(tmp_path: Path) -> None:
    """A cancel by another is told, by oneself not; a hold for the budget once; a lost machine to operators alone."""
    async with facing(tmp_path / "data", cluster=HERE) as face:
        w = face.world
        for name, role in (("ada", "user"), ("ops", "operator")):
            await face.json("POST", f"{API}/users", {"name": name, "settings": {"role": role}})
        ada, ops = face.token("ada", UserRole.USER), face.token("ops", UserRole.OPERATOR)
        status, refused = await face.json(
            "POST", f"{API}/notify", {"url": "https://example.org/x", "kinds": ["machine_lost"]}, token=ada
        )
        assert (status, refused["field"]) == (403, "kinds")
        await add_channel(w, "https://example.org/x", *EVERYTHING)  # asked for it as an operator, who ada is no longer
        await add_channel(w, "https://example.org/y", *EVERYTHING, user="ops")
        for _ in range(2):
            await face.json("POST", f"{API}/jobs", {"run": "true"}, token=ada)
        assert (await face.call("POST", f"{API}/jobs/1/cancel", token=ada)).status == 200
        assert (await face.call("POST", f"{API}/jobs/2/cancel", token=ops)).status == 200
        assert [(each["kind"], each["job"]["detail"]) for each in waiting_notifications(w)] == [
            ("failed", "cancelled: by ops")
        ]
        await FakeAgent(w, "n1").register()
        await w.loop.perform(lambda t: declare_node_lost(t, NodeId("n1"), Reason.INFRA_NODE_LOST))
        await FakeAgent(w, "n2").register()
        await w.loop.perform(lambda t: declare_node_lost(t, NodeId("n2"), Reason.INFRA_SPOT_RECLAIM))
        lost = waiting_notifications(w)[1:]
        assert [(each["kind"], each["machine"]["id"]) for each in lost] == [("machine_lost", "n1")]
        queue = w.live_state.notifications
        assert [queue.channels[row.channel_id].user for row in queue.waiting.values()] == ["ada", "ops"]


async def test_a_hold_for_a_budget_is_told_once_also_after_a_restart(tmp_path: Path) -> None:
    """The fresh core learns again that the job is held: that is no news."""
    cluster = {**HERE, "pools": [POOL | {"usd_per_h": 4.0}]}
    async with world(tmp_path, cluster=cluster) as w:
        agent = await FakeAgent(w, "n1").register()
        await add_channel(w, "https://example.org/x", "budget", "failed")
        job_id = await w.submit({"limits": {"budget_usd": 2.0}, "resources": {"accelerators": {"a": 2}}})
        await agent.start_all()
        await w.advance(1801.0)
        assert waiting_notifications(w) == []
        await agent.end(job_id, exit_code=85)
        assert w.state(job_id) == "HELD"
        assert [each["kind"] for each in waiting_notifications(w)] == ["budget"]
    async with world(tmp_path, cluster=cluster) as w:
        assert w.state(job_id) == "HELD"
        assert [each["kind"] for each in waiting_notifications(w)] == ["budget"]


async def test_late_and_stuck_jobs_are_told_once_and_forgotten_with_the_job(tmp_path: Path) -> None:
    """By the middle of the forecast, and by the hour of the cluster file; waits that a job asked for do not count."""
    async with world(tmp_path, cluster=HERE) as w:
        await add_channel(w, "https://example.org/x")
        unix = w.clock.unix(0.0)
        late = await w.submit({"deadline": "+2h", "name": "late"})
        safe = await w.submit({"deadline": "+2h", "name": "safe"})
        await w.submit({"not_before": "+3h", "name": "asked"})
        await w.submit({"depends_on": [late], "name": "after"})
        await w.submit({"name": "bobs"}, user="bob")
        deadline = w.server.core.ledger.jobs[late].request.deadline_at
        ends = {late: unix + deadline + 1.0, safe: unix + deadline - 1.0}

        def forecast(job_id: JobId) -> ForecastView | None:
            end = ends.get(job_id)
            return None if end is None else ForecastView(as_of=unix, start=None, end=(end - 60, end, end + 60))

        def beyond(job_id: JobId) -> ForecastView | None:
            return ForecastView(as_of=unix, ends_after=ends[job_id]) if job_id == late else None

        look = LateJobNotifications(w.loop, forecast, 3600.0).look
        await LateJobNotifications(w.loop, beyond, 3600.0).look()
        assert "is expected to end after" in waiting_notifications(w)[0]["text"]
        await look()
        await look()
        assert [(each["kind"], each["job"]["name"]) for each in waiting_notifications(w)] == [("at_risk", "late")]
        w.clock.at += 3601.0
        await look()
        await look()
        assert [(each["kind"], each["job"]["name"]) for each in waiting_notifications(w)[1:]] == [
            ("stuck", "late"),
            ("stuck", "safe"),
        ]
        assert "has waited for 1h" in waiting_notifications(w)[1]["title"]
    async with world(tmp_path, cluster=HERE) as w:
        assert w.live_state.notifications.told == {late: {"at_risk", "stuck"}, safe: {"stuck"}}
        await LateJobNotifications(w.loop, forecast, 3600.0).look()
        assert len(waiting_notifications(w)) == 3
        await w.loop.perform(lambda t: cancel_by_other(t, late))
        assert w.live_state.notifications.told == {safe: {"stuck"}}
    async with world(tmp_path, cluster=HERE) as w:
        assert w.live_state.notifications.told == {safe: {"stuck"}}


def test_names_are_bounded_and_control_nothing() -> None:
    """Line ends, escapes, characters that reverse or hide text; an astral one stays whole."""
    assert plain_text("a\r\nBcc: x\x1b[31m\u202eb\u200bc\ud800") == "a Bcc: x [31m b c"
    assert plain_text("𝛼" * 500, 100) == "𝛼" * 99 + "…"
    assert plain_text("\n" * 10_000_000 + "x", 10) == ""


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "10.1.2.3", "192.168.1.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "::1", "::", "fe80::1%eth0", "fd00::1", "ff02::1", "::ffff:10.0.0.1", "64:ff9b::a00:1",
        "2002:a00:1::", "127.1", "2130706433", "localhost", "", "::127.0.0.1", "fec0::1", "64:ff9b:1::808:808",
        "192.0.0.192", "168.63.129.16", "::ffff:168.63.129.16", "64:ff9b::a83f:8110", "2002:a83f:8110::1",
        "100.100.100.200", "fd00:ec2::254", "2001:db8::1", "8.8.8.8%eth0", "2001:0:808:808::f5ff:fffe",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public_are_refused(host: str) -> None:
    """Loopback, private, link-local, shared, multicast, a cloud's own services; also carried by an IPv6 address."""
    assert not is_allowed(host)
    assert not is_allowed(host, ("10.200.0.0/16", "fd12::/32"))


def test_public_and_allowed_addresses_are_taken() -> None:
    """Public ones of both versions; others in a network that the cluster file names, and in that alone."""
    for host in ("8.8.8.8", "2001:4860:4860::8888", "::ffff:8.8.8.8", "64:ff9b::808:808"):
        assert is_allowed(host)
    assert is_allowed("10.1.2.3", ("10.1.0.0/16",))
    assert is_allowed("::ffff:10.1.2.3", ("10.1.0.0/16",))
    assert not is_allowed("10.2.0.1", ("10.1.0.0/16",))


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://127.0.0.1/s3cret", "not a public address"),
        ("http://localhost:8080/s3cret", "not a public address"),
        ("https://[::1]/s3cret", "not a public address"),
        ("http://2130706433/s3cret", "not a public address"),
        ("http://0x7f.1/s3cret", "not a public address"),
        ("https://ada:s3cret@example.org/", "a user or a password"),
        ("https:///s3cret", "no host"),
        ("https://example.org:99999999/s3cret", "the address is none"),
        ("https://example.org/s3cret\r\nHost: x", "characters"),
        ("ftp://example.org/s3cret", "not sent to"),
        ("file:///etc/passwd?s3cret", "not sent to"),
        ("syslog://s3cret", "not sent to"),
        ("slack://s3cret/b/c?template=secret.json", "may name files"),
        ("mailto://ada:s3cret@example.org?pgpkey=secret.key", "may name files"),
        ("discord://s3cret/b?x=/etc/passwd", "may name files"),
        ("slack://s3cret/b/c?redirect=yes", "may name files"),
    ],
)
def test_what_is_no_address_is_refused_without_repeating_it(url: str, told: str) -> None:
    """What is secret in an address is in no message."""
    with pytest.raises(UserError, match=told) as found:
        read_address(url)
    assert "s3cret" not in str(found.value) + found.value.fix


async def test_an_address_is_shown_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Answers, audit, log and the tables' plain text have the host; the rest is sealed."""
    caplog.set_level("DEBUG")
    async with facing(tmp_path / "data", cluster=HERE) as face:
        url = f"https://hooks.example.org:8443/{SECRET_PATH}?token=T0SECRET"
        status, made = await face.json("POST", f"{API}/notify", {"url": url, "kinds": ["failed"]})
        assert (status, made["shown"], made["kinds"]) == (201, "https://hooks.example.org/…", ["failed"])
        assert made["key"].startswith("whsec_")
        _, listed = await face.json("GET", f"{API}/notify")
        assert "key" not in listed[0]
        _, audit = await face.json("GET", f"{API}/audit")
        assert audit[0]["after"]["address"] == "https://hooks.example.org/…"
        status, gone = await face.json("DELETE", f"{API}/notify/{made['id']}")
        assert (status, gone["id"]) == (200, made["id"])
        assert (await face.call("DELETE", f"{API}/notify/{made['id']}")).status == 404
        _, audit = await face.json("GET", f"{API}/audit")
        told = json.dumps([listed, audit, gone]) + caplog.text
        assert "T0SECRET" not in told
        assert made["key"] not in told
    stored = b"".join(path.read_bytes() for path in (tmp_path / "data").iterdir() if path.name.startswith("walras.db"))
    assert b"T0SECRET" not in stored
    assert made["key"].encode() not in stored


async def test_everybody_has_channels_of_their_own(tmp_path: Path) -> None:
    """Others' are not seen, tested or removed; there are at most 20; a removed user's go, also for a namesake."""
    async with facing(tmp_path / "data", cluster=HERE) as face:
        await face.json("POST", f"{API}/users", {"name": "ada"})
        ada, bob = face.token("ada", UserRole.USER), face.token("bob", UserRole.USER)
        asked = {"url": "https://example.org/x", "kinds": ["failed"]}
        assert (await face.json("POST", f"{API}/notify", asked, token=ada))[0] == 201
        assert (await face.json("GET", f"{API}/notify", token=bob))[1] == []
        for method, path in (("DELETE", "1"), ("POST", "1/test"), ("DELETE", "9" * 30), ("POST", "7/test")):
            assert (await face.call(method, f"{API}/notify/{path}", token=bob)).status == 404
        for _ in range(19):
            assert (await face.json("POST", f"{API}/notify", asked, token=ada))[0] == 201
        assert (await face.json("POST", f"{API}/notify", asked, token=ada))[0] == 409
        wrong: list[Any] = [[], ["test"], ["nothing"], "failed", ["failed"] * 100]
        for kinds in wrong:
            assert (await face.json("POST", f"{API}/notify", {**asked, "kinds": kinds}, token=bob))[0] == 400
        viewer = face.token("eve", UserRole.VIEWER)
        assert (await face.json("POST", f"{API}/notify", asked, token=viewer))[0] == 403
        await face.json("POST", f"{API}/jobs", {"run": "true"}, token=ada)
        await face.call("POST", f"{API}/jobs/1/cancel")
        assert len(waiting_notifications(face.world)) == 20
        assert (await face.call("DELETE", f"{API}/users/ada")).status == 200
        assert face.world.live_state.notifications.channels == {}
        assert waiting_notifications(face.world) == []
    async with facing(tmp_path / "data", cluster=HERE) as face:
        assert face.world.live_state.notifications.channels == {}
        assert face.world.live_state.notifications.next_channel_id == 21
