"""Delivers notifications to users: adds and removes channels, and sends the queue beside the loop.

A notification is durable before it is sent (`ServerLoop.settled`). The result is a step of the loop, which deletes the
notification once its receiver has it. If the server is killed in between, it sends it again under the same id: each is
delivered at least once, and none is lost.

Two processes send (`notification_sending.py`): one to users whose receivers all work, one to users with a failure
within the last hour. So a receiver that is down or slow, always or now and then, delays others at most once an hour,
for `SEND_S`. Each channel sends one notification at a time, the oldest; after each failure the channel waits longer.

Addresses with `https://` and `http://` are webhooks in Walras's own format. Others are chat and mail services as
Apprise writes them, of which those are accepted that do nothing on the server's machine. Their addresses are secrets as
a whole (a token often stands in the place of a host), so only the kind of service is ever shown; of a webhook its
host.
"""

import asyncio
import base64
import contextlib
import importlib.util
import ipaddress
import json
import logging
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from math import inf
from random import Random
from urllib.parse import parse_qsl, urlsplit

from scheduler.live.auth.job_privacy import SecretBox
from scheduler.live.loop.event_loop import ServerLoop
from scheduler.live.loop.notification_events import put_notification
from scheduler.live.loop.notification_queue import CHANNELS_MOST
from scheduler.live.loop.transaction import Transaction, TransactionEffects
from scheduler.live.loop.worker_process import (
    SingleFlightTask,
    kill_worker_process,
    new_worker_process,
    try_worker_process,
)
from scheduler.live.services.notification_sending import (
    SEND_S,
    Sending,
    SendingBatch,
    SendingOutcome,
    is_allowed,
    is_known_service,
    send_all,
)
from scheduler.live.store.table_rows import ChannelRow, NotificationRow
from walras.clocks import random_hex
from walras.errors import Conflict, NotFound, UserError
from walras.resources.notifications import KEY_PREFIX, NotificationKind

log = logging.getLogger(__name__)

#: Waits between the tries of one notification, seconds; after the last try it is given up.
WAITS_S = (5.0, 15.0, 45.0, 135.0, 405.0, 1215.0, 3600.0, 3600.0, 3600.0, 3600.0)
#: The most notifications that one process sends at once, each to another channel.
_AT_ONCE = 32
#: Seconds after which the sending process is given up, and the longest pause between two looks at the queue.
_BATCH_S, _LOOK_EVERY_S = SEND_S + 20.0, 30.0
#: The longest time, seconds, that a test of a channel waits for its outcome.
_TEST_S = 25.0
_CHECK_S = 15.0
#: For this time after a failure, seconds, a user's notifications are sent by the second process.
_APART_S = 3600.0


WEBHOOKS = ("https", "http")
#: Services of Apprise that reach another machine over the network and need no file of this one.
SERVICES = frozenset(
    {
        "discord", "gchat", "gotify", "gotifys", "mailto", "mailtos", "matrix", "matrixs", "mmost", "mmosts", "msteams",
        "ntfy", "ntfys", "opsgenie", "pagerduty", "pover", "rocket", "rockets", "slack", "tgram", "webex", "workflows",
        "wxteams", "zulip",
    }
)  # fmt: skip
#: Parameters that name files or other addresses, or that change how requests are made.
_REFUSED_PARAMETERS = re.compile(r"template|pgp|key|attach|redirect|cto|rto|retry|wait|avatar_url|image_url|thumbnail")
_FIELD = "url"


@dataclass(frozen=True, slots=True)
class NotificationAddress:
    """A validated address."""

    url: str = field(repr=False)
    #: The part of it that others may see.
    shown: str
    is_webhook: bool


def read_address(url: str, networks: Sequence[str] = ()) -> NotificationAddress:
    """Returns a validated address, as far as that needs no network. Raises UserError, which does not repeat it."""
    url = url.strip()
    if not url.isascii() or not url.isprintable() or " " in url:
        raise UserError("the address has characters that none may have", field=_FIELD, fix="percent-encode them")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise UserError("the address is none", field=_FIELD, fix="write https://HOST/PATH") from None
    scheme = parts.scheme.lower()
    if scheme in WEBHOOKS:
        return _webhook(url, scheme, host, parts.username is not None, networks)
    if scheme not in SERVICES:
        known = ", ".join(sorted(SERVICES))
        raise UserError("this kind of address is not sent to", field=_FIELD, fix=f"https://..., or one of {known}")
    _check_parameters(parts.query)
    if importlib.util.find_spec("apprise") is None:
        fix = "have the server's owner install it: pip install 'walras[notify]'; webhooks need nothing"
        raise UserError("the server has no apprise, which chat and mail need", field=_FIELD, fix=fix)
    return NotificationAddress(url, f"{scheme}://…", is_webhook=False)


def _webhook(url: str, scheme: str, host: str, has_user: bool, networks: Sequence[str]) -> NotificationAddress:
    if not host:
        raise UserError("the address names no host", field=_FIELD, fix="write https://HOST/PATH")
    if has_user:
        fix = "leave it out: notifications are signed, and the path may hold a token"
        raise UserError("the address holds a user or a password", field=_FIELD, fix=fix)
    named = "127.0.0.1" if host == "localhost" or host.endswith(".localhost") else host
    if _is_number(named) and not is_allowed(named, networks):
        fix = "have the server's owner allow its network: `notify: {private_networks: [...]}` in the cluster file"
        raise UserError(f"{host} is not a public address", field=_FIELD, fix=fix)
    return NotificationAddress(url, f"{scheme}://{host}/…", is_webhook=True)


def _is_number(host: str) -> bool:
    """Returns whether the host is a numeric address, in whichever notation, so that no name is resolved."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        # Some resolvers read `127.1`, `2130706433` and `0x7f.1` as addresses; `is_allowed` refuses all of these.
        return re.fullmatch(r"(0x[0-9a-f]*|\d+)(\.(0x[0-9a-f]*|\d+))*", host) is not None
    return True


def _check_parameters(query: str) -> None:
    for name, value in parse_qsl(query, keep_blank_values=True):
        if _REFUSED_PARAMETERS.search(name.lower()) or "/" in value or "\\" in value:
            told = f"the parameter {name[:40]!r} is not taken: it may name files, or another address"
            raise UserError(told, field=_FIELD, fix="leave it out")


class _SendingLane:
    """One process that sends, started when it is first needed."""

    def __init__(self, make_process: Callable[[], Executor]) -> None:
        self._make_process = make_process
        self._process: Executor | None = None
        self.task = SingleFlightTask()

    async def send(self, batch: SendingBatch) -> list[SendingOutcome]:
        """Returns the outcome of each notification; if the process fails, all of them have failed."""
        if self._process is None:
            self._process = self._make_process()
        work = asyncio.get_running_loop().run_in_executor(self._process, send_all, batch)
        problem = "the process that sends notifications failed"
        try:
            outcomes = await asyncio.wait_for(work, _BATCH_S)
            if any(each.is_hung for each in outcomes):
                self.end_process()
            return outcomes
        except TimeoutError:
            problem = f"no answer within {_BATCH_S:g} s"
        except BrokenProcessPool:
            log.warning("the process that sends notifications has died")
        except Exception as error:  # outermost handler of that process; the error's words may name an address
            log.warning("the process that sends notifications failed: %s", type(error).__name__)
        self.end_process()
        return [SendingOutcome(each.seq, problem) for each in batch.sendings]

    def end_process(self) -> None:
        kill_worker_process(self._process)
        self._process = None


class Notifications:
    """The channels of users, and the sending of notifications to them."""

    def __init__(
        self,
        loop: ServerLoop,
        box: SecretBox,
        networks: Sequence[str] = (),
        chance: Random | None = None,
        make_process: Callable[[], Executor] = new_worker_process,
    ) -> None:
        """`networks`: not public, and sending there is allowed. `chance`: None for keys that cannot be guessed."""
        self._loop, self._box, self._networks, self._chance = loop, box, tuple(networks), chance
        self._lanes = (_SendingLane(make_process), _SendingLane(make_process))
        self._checking = asyncio.Lock()
        self._wake = asyncio.Event()
        #: Notifications that a process is sending, or whose outcome is not written yet.
        self._under_way: set[int] = set()
        #: The next notification's number when the queue was last looked at.
        self._known_seq = 0
        #: When a receiver of each user last failed.
        self._failed_at: dict[str, float] = {}
        #: Futures of the tests whose callers wait for the outcome.
        self._awaited: dict[int, asyncio.Future[str]] = {}

    # ---------------------------------------------------------------- channels

    async def checked(self, url: str) -> NotificationAddress:
        """Returns the validated address. Raises UserError, without repeating the address, where it is not accepted."""
        address = read_address(url, self._networks)
        if address.is_webhook:
            return address
        if self._checking.locked():
            raise Conflict("another address is being checked", fix="try again in a few seconds")
        async with self._checking:
            if await try_worker_process(is_known_service, address.url, _CHECK_S, "checking an address") is not True:
                raise UserError("the address is none of this service", field="url", fix="see the service at Apprise")
        return address

    def add(
        self, transaction: Transaction, user: str, address: NotificationAddress, kinds: Sequence[NotificationKind]
    ) -> tuple[ChannelRow, str]:
        """Returns the new channel and, for a webhook, its signing key. Raises Conflict where there are too many."""
        queue = transaction.state.notifications
        key = KEY_PREFIX + base64.b64encode(bytes.fromhex(random_hex(self._chance, 64))).decode()
        key = key if address.is_webhook else ""
        number = queue.next_channel_id
        row = ChannelRow(
            channel_id=number,
            user=user,
            shown=address.shown,
            sealed=self._box.seal(number, {"url": address.url, "key": key}),
            kinds=json.dumps(sorted(set(kinds))),
            added_at=transaction.at,
        )
        queue.add_channel(transaction.batch, row)
        return row, key

    def channel_of(self, user: str, number: int) -> ChannelRow:
        """Returns a channel of this user. Raises NotFound."""
        row = self._loop.state.notifications.channels.get(number)
        if row is None or row.user != user:
            raise NotFound(f"no channel {number}", field="channel_id", fix="check `walras notify`")
        return row

    async def test(self, user: str, number: int, note: Callable[[Transaction, ChannelRow], None]) -> str:
        """Send a test to a channel, with an audit row. Returns what went wrong; empty: the receiver has it."""
        outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def step(transaction: Transaction) -> int:
            channel = self.channel_of(user, number)
            title, text = "a test by Walras", "notifications of this cluster will come here"
            queue = transaction.state.notifications
            if any(_is_test(queue.waiting[seq]) for seq in queue.by_channel.get(number, ())):
                raise Conflict("a test of this channel is under way", fix="see `walras notify`")
            notification = put_notification(transaction, channel, NotificationKind.TEST, title, text)
            note(transaction, channel)
            self._awaited[notification.seq] = outcome
            return notification.seq

        seq = await self._loop.perform(step)
        try:
            return await asyncio.wait_for(outcome, _TEST_S)
        except TimeoutError:
            return "it waits for others; see `walras notify`"
        finally:
            self._awaited.pop(seq, None)

    # ---------------------------------------------------------------- sending

    def deliver(self, effects: TransactionEffects) -> None:
        """Wake the sender if the durable batch holds a new notification (`EffectHandler`)."""
        next_seq = self._loop.state.notifications.next_seq
        if next_seq != self._known_seq:
            self._known_seq = next_seq
            self._wake.set()

    async def watch(self) -> None:
        """Send what is due, for ever."""
        while True:
            self._wake.clear()
            await self._loop.settled()
            next_due_s = self._begin_due()
            # Not `wait_for`: it loses a cancellation that comes at the same moment as the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(next_due_s):
                    await self._wake.wait()

    def _begin_due(self) -> float:
        """Hand due notifications to the processes. Returns the seconds until the next is due."""
        queue, now, next_due_s = self._loop.state.notifications, self._loop.clock.now(), _LOOK_EVERY_S
        chosen: tuple[list[NotificationRow], list[NotificationRow]] = ([], [])
        for channel_id, seqs in queue.by_channel.items():
            notification = queue.waiting[next(iter(seqs))]
            if notification.seq in self._under_way:
                continue
            if notification.due_at > now:
                next_due_s = min(next_due_s, notification.due_at - now)
                continue
            channel = queue.channels[channel_id]
            had_failure = now - self._failed_at.get(channel.user, -inf) < _APART_S
            chosen[bool(channel.problem) or had_failure].append(notification)
        for lane, notifications in zip(self._lanes, chosen, strict=True):
            if notifications and not lane.task.is_under_way:
                # The oldest notification first.
                notifications.sort(key=lambda each: each.seq)
                batch = notifications[:_AT_ONCE]
                self._under_way.update(each.seq for each in batch)
                lane.task.begin(self._send(lane, batch))
        return max(next_due_s, 0.05)

    async def _send(self, lane: _SendingLane, notifications: Sequence[NotificationRow]) -> None:
        sendings = []
        for notification in notifications:
            channel = self._loop.state.notifications.channels.get(notification.channel_id)
            opened = (None if channel is None else self._box.open(channel.channel_id, channel.sealed)) or {}
            sendings.append(
                Sending(
                    notification.seq,
                    notification.notification_id,
                    opened.get("url", ""),
                    opened.get("key", ""),
                    notification.body,
                )
            )
        known = tuple(each for each in sendings if each.url)
        outcomes = await lane.send(SendingBatch(known, self._networks)) if known else []
        outcomes += [SendingOutcome(each.seq, "its address does not open", True) for each in sendings if not each.url]
        self._loop.perform_soon(lambda transaction: self._settle(transaction, outcomes))

    def _settle(self, transaction: Transaction, outcomes: Sequence[SendingOutcome]) -> None:
        """Record the outcomes of a batch: delivered, to be tried again, or given up."""
        queue, batch = transaction.state.notifications, transaction.batch
        for outcome in outcomes:
            self._under_way.discard(outcome.seq)
            notification = queue.waiting.get(outcome.seq)
            if notification is None:  # it was dropped, or its channel removed, while it was being sent
                continue
            channel = queue.channels[notification.channel_id]
            is_over = outcome.is_final or notification.tries >= len(WAITS_S) or _is_test(notification)
            if not outcome.problem:
                done = replace(channel, delivered=channel.delivered + 1, delivered_at=transaction.at, problem="")
            else:
                done = replace(channel, failed=channel.failed + is_over, problem=outcome.problem)
                self._note_failure(channel.user, transaction.at)
            queue.change_channel(batch, done)
            if is_over or not outcome.problem:
                queue.remove(batch, notification.seq)
            else:
                queue.try_later(batch, notification, transaction.at + WAITS_S[notification.tries])
            awaited = self._awaited.get(outcome.seq)
            if awaited is not None and not awaited.done():
                awaited.set_result(outcome.problem)
        self._wake.set()

    def _note_failure(self, user: str, at: float) -> None:
        self._failed_at[user] = at
        if len(self._failed_at) > CHANNELS_MOST:  # keep those of the last hour
            self._failed_at = {each: then for each, then in self._failed_at.items() if then > at - _APART_S}

    async def close(self) -> None:
        """Cancel what is being sent: the next start sends it again."""
        for lane in self._lanes:
            await lane.task.close()
            lane.end_process()


def _is_test(notification: NotificationRow) -> bool:
    return bool(json.loads(notification.body)["kind"] == NotificationKind.TEST)
