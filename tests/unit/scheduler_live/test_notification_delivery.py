"""Delivery of notifications: signed, tried again, after a kill too, within bounds, and at nobody else's cost."""

import asyncio
import json
import socket
import time
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from scheduler.live.loop import notification_queue
from scheduler.live.loop.notification_events import put_notification
from scheduler.live.loop.worker_process import kill_worker_process, new_worker_process
from scheduler.live.services.notification_sending import SEND_S, Sending, SendingBatch, SendingOutcome, send_all
from scheduler.live.services.notifications import WAITS_S
from tests.support.http_face import facing
from tests.support.live_world import world
from tests.support.notification_receiver import HERE, SECRET_PATH, Receiver, add_channel, cancel_by_other, sending
from tests.support.waiting import until
from walras.resources.notifications import NotificationKind, is_signed, sign_notification

API = "/api/v1"


def test_a_signature_is_that_of_the_standard_and_of_this_moment() -> None:
    """The published example of Standard Webhooks; another body, key or time does not pass."""
    key, notification_id, unix_s = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330
    body = b'{"test": 2432232314}'
    signature = sign_notification(key, notification_id, unix_s, body)
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    headers = {
        "webhook-id": notification_id, "webhook-timestamp": str(unix_s), "webhook-signature": f"v1,eA== {signature}",
    }  # fmt: skip
    assert is_signed(key, headers, body, unix_s + 100.0)
    assert not is_signed(key, headers, body + b" ", unix_s)
    assert not is_signed("whsec_" + "A" * 32, headers, body, unix_s)
    assert not is_signed(key, headers, body, unix_s + 301.0)
    assert not is_signed(key, {**headers, "webhook-timestamp": "x"}, body, unix_s)
    assert not is_signed(key, {}, body, unix_s)


@pytest.mark.slow
async def test_a_notification_is_delivered_signed_and_tried_again(tmp_path: Path) -> None:
    """500 is tried again under the same id; 204 takes it; then there is nothing more to send."""
    receiver = Receiver()
    receiver.answers = [500]
    async with receiver.listening() as url, world(tmp_path, cluster=HERE) as w, sending(w):
        number, key = await add_channel(w, url, "failed")
        job_id = await w.submit({"name": "train"})
        await w.loop.perform(lambda t: cancel_by_other(t, job_id))
        await receiver.has(1)
        await until(lambda: w.live_state.notifications.channels[number].problem == "HTTP 500", 20.0, "the server knows")
        (row,) = w.live_state.notifications.waiting.values()
        assert (row.tries, row.due_at) == (1, w.clock.at + WAITS_S[0])
        w.clock.at += WAITS_S[0]
        w.server.notifications._wake.set()
        await receiver.has(2)
        await until(lambda: not w.live_state.notifications.waiting, 20.0, "the server knows")
        channel = w.live_state.notifications.channels[number]
        assert (channel.delivered, channel.failed, channel.problem) == (1, 0, "")
        assert len(set(receiver.ids)) == 1
        headers, body = receiver.requests[1]
        assert is_signed(key, headers, body, int(headers["webhook-timestamp"]))
        assert json.loads(body)["job"]["name"] == "train"
        assert json.loads(body)["id"] == headers["webhook-id"]
        await w.quiet()
        assert len(receiver.requests) == 2


async def test_sending_stops_when_it_is_told_to_whatever_arrives_just_then(tmp_path: Path) -> None:
    """A server that stops as something is written must not wait for ever."""
    async with world(tmp_path, cluster=HERE) as w:
        service = w.server.notifications
        for ticks in range(6):
            task = asyncio.create_task(service.watch())
            await asyncio.sleep(0.02)
            service._wake.set()
            for _ in range(ticks):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task}, timeout=10.0)
            assert task.cancelled(), f"it goes on, {ticks} turns later"


@pytest.mark.slow
async def test_a_dead_receiver_harms_nobody_else(tmp_path: Path) -> None:
    """It holds the others up once, for one batch; from then on it is tried apart, also if it answers now and then."""
    dead, alive = Receiver(), Receiver()
    dead.is_dead = True
    async with dead.listening() as dead_url, alive.listening() as url, world(tmp_path, cluster=HERE) as w, sending(w):
        number, _ = await add_channel(w, dead_url, "failed", user="eve")
        await add_channel(w, url, "failed")
        jobs = [await w.submit({}, user=user) for user in ("eve", "ada", "eve", "ada", "ada")]
        for job_id in jobs[:2]:
            await w.loop.perform(lambda t, job_id=job_id: cancel_by_other(t, job_id))
        await alive.has(1)
        await until(
            lambda: "no answer" in w.live_state.notifications.channels[number].problem, 20.0, "the server knows"
        )
        dead.is_dead = False
        w.clock.at += WAITS_S[0]
        w.server.notifications._wake.set()
        await until(lambda: w.live_state.notifications.channels[number].delivered == 1, 20.0, "the server knows")
        assert w.live_state.notifications.channels[number].problem == ""
        dead.is_dead = True
        await w.loop.perform(lambda t: cancel_by_other(t, jobs[2]))
        await dead.has(3)
        for position, job_id in enumerate(jobs[3:]):
            await w.loop.perform(lambda t, job_id=job_id: cancel_by_other(t, job_id))
            await alive.has(position + 2)
        waiting = w.live_state.notifications.waiting
        told = "the others were delivered while the dead one is still being waited for"
        await until(lambda: [(row.seq, row.tries) for row in waiting.values()] == [(3, 0)], 5.0, told)


@pytest.mark.slow
async def test_the_test_of_a_channel_says_what_came_of_it(tmp_path: Path) -> None:
    """Taken, refused, redirected, not public though its name is: each in words, none of them tried again."""
    receiver = Receiver()
    receiver.answers = [204, 404, 302]
    async with receiver.listening() as url, facing(tmp_path / "data", cluster=HERE) as face:
        w = face.world
        async with sending(w):
            assert (await face.json("POST", f"{API}/notify", {"url": url, "kinds": ["failed"]}))[0] == 201
            told = [(await face.json("POST", f"{API}/notify/1/test"))[1]["problem"] for _ in range(3)]
            assert told == ["", "HTTP 404", "it redirects (HTTP 302), which is not followed"]
            assert [body["kind"] for body in receiver.bodies] == ["test"] * 3
            _, (view,) = await face.json("GET", f"{API}/notify")
            assert (view["delivered"], view["failed"], view["waiting"]) == (1, 2, 0)
            assert view["delivered_at"]


@pytest.mark.slow
def test_a_name_that_is_never_resolved_holds_a_batch_up_no_longer_than_a_receiver() -> None:
    """Nobody waits for the thread that asks for it."""
    process = new_worker_process()
    try:
        outcomes, took_s = process.submit(_send_to_unknown_names, 8).result(timeout=60)
        assert {outcome.problem for outcome in outcomes} == {f"no answer within {SEND_S:g} s"}
        assert took_s < 4 * SEND_S, "one after the other they take eight times as long"
    finally:
        kill_worker_process(process)


def _send_to_unknown_names(count: int) -> tuple[list[SendingOutcome], float]:
    """In the process that sends, with a resolver that never answers."""
    socket.getaddrinfo = lambda *_, **__: time.sleep(3 * SEND_S)  # type: ignore[assignment, return-value, func-returns-value]
    key, began = "whsec_" + "A" * 32, time.monotonic()
    batch = SendingBatch(tuple(Sending(seq, "a", f"http://n{seq}.example/x", key, "{}") for seq in range(count)))
    return send_all(batch), time.monotonic() - began


@pytest.mark.slow
def test_no_connection_is_made_to_a_private_address_whatever_its_name() -> None:
    """Checked at the connection, after the name is resolved: for webhooks and for services of a library alike."""
    process = new_worker_process()
    key = "whsec_" + "A" * 32
    try:
        named = Sending(1, "a", "http://localhost:9/x", key, "{}")
        number = Sending(2, "b", "http://169.254.169.254/latest", key, "{}")
        body = json.dumps({"title": "t", "text": "t"})
        service = Sending(3, "c", "ntfy://localhost:9/topic", "", body)
        outcomes = process.submit(send_all, SendingBatch((named, number, service))).result(timeout=60)
        assert [(each.problem, each.is_final) for each in outcomes[:2]] == [("the address is not public", True)] * 2
        assert outcomes[2].problem
        allowed = process.submit(_connects, "127.0.0.1").result(timeout=30)
        assert allowed == "NotPublic"
    finally:
        kill_worker_process(process)


def _connects(host: str) -> str:
    """In the process that sends: what any code of it gets that connects there."""
    try:
        socket.create_connection((host, 9), timeout=1.0)
    except OSError as error:
        return type(error).__name__
    return "connected"


@pytest.mark.slow
async def test_a_chat_gets_title_and_text_that_call_nobody(tmp_path: Path) -> None:
    """Through Apprise, to a service on an allowed network; a redirect is not followed there either."""
    pytest.importorskip("apprise")
    receiver = Receiver()
    receiver.answers = [200, 302]
    async with receiver.listening() as url, facing(tmp_path / "data", cluster=HERE) as face:
        w = face.world
        chat = url.replace("http://", "ntfy://").replace(SECRET_PATH, "T0SECRET")
        status, made = await face.json("POST", f"{API}/notify", {"url": chat, "kinds": ["failed"]})
        assert (status, made["shown"], made["key"]) == (201, "ntfy://…", "")
        status, refused = await face.json("POST", f"{API}/notify", {"url": "slack://s3cret", "kinds": ["failed"]})
        assert (status, refused["detail"]) == (400, "the address is none of this service")
        async with sending(w):
            job_id = await w.submit({"name": "@everyone <!here> [x](y)"}, user="admin")
            await w.loop.perform(lambda t: cancel_by_other(t, job_id))
            await until(lambda: w.live_state.notifications.channels[1].delivered == 1, 20.0, "the server knows")
            sent = json.dumps([[headers, body.decode()] for headers, body in receiver.requests])
            assert "(at)everyone" in sent
            assert "@everyone" not in sent
            assert "<!here>" not in sent
            _, tested = await face.json("POST", f"{API}/notify/1/test")
            assert tested["problem"] == "the service did not take it"
            assert len(receiver.requests) == 2


async def test_waiting_notifications_are_bounded_by_user_and_in_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest leave, and their channel counts them; one user's many do not push out another's few."""
    monkeypatch.setattr(notification_queue, "WAITING_OF_USER", 5)
    monkeypatch.setattr(notification_queue, "WAITING_MOST", 8)
    async with world(tmp_path, cluster=HERE) as w:
        queue = w.live_state.notifications
        numbers = {
            user: (await add_channel(w, "https://example.org/x", user=user))[0] for user in ("ada", "eve", "bob")
        }

        async def put(user: str, count: int) -> None:
            def step(transaction: Any) -> None:
                for _ in range(count):
                    put_notification(transaction, queue.channels[numbers[user]], NotificationKind.FAILED, "t", "t")

            await w.loop.perform(step)

        await put("ada", 1)
        await put("eve", 100)
        assert [len(queue.by_channel[numbers[user]]) for user in ("ada", "eve")] == [1, 5]
        assert queue.channels[numbers["eve"]].dropped == 95
        await put("bob", 3)
        assert len(queue.waiting) == 8
        assert queue.channels[numbers["ada"]].dropped == 1
    async with world(tmp_path, cluster=HERE) as w:
        assert list(w.live_state.notifications.waiting) == [97, 98, 99, 100, 101, 102, 103, 104]
        assert w.live_state.notifications.channels[numbers["eve"]].dropped == 95


async def test_a_notification_is_given_up_after_all_its_tries(tmp_path: Path) -> None:
    """Counted as failed with the last reason; the process that sends may die at each of them."""
    async with world(tmp_path, cluster=HERE) as w:
        number, _ = await add_channel(w, "https://example.org/x", "failed")
        made: list[_DyingProcess] = []

        def make() -> Executor:
            made.append(_DyingProcess())
            return made[-1]

        for lane in w.server.notifications._lanes:
            lane._make_process = make
        async with sending(w):
            job_id = await w.submit({})
            await w.loop.perform(lambda t: cancel_by_other(t, job_id))
            for tries in range(1, len(WAITS_S) + 1):
                await until(
                    lambda tries=tries: [r.tries for r in w.live_state.notifications.waiting.values()] == [tries],
                    20.0, "one more try",
                )  # fmt: skip
                w.clock.at += WAITS_S[tries - 1]
                w.server.notifications._wake.set()
            await until(lambda: not w.live_state.notifications.waiting, 20.0, "the server knows")
        channel = w.live_state.notifications.channels[number]
        assert (channel.delivered, channel.failed) == (0, 1)
        assert channel.problem == "the process that sends notifications failed"
        assert len(made) == len(WAITS_S) + 1


class _DyingProcess(Executor):
    """Fails whatever it is given."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        future: Future[Any] = Future()
        future.set_exception(BrokenProcessPool())
        return future
