"""Delivers what users are to be told: channels are added and removed here, and the queue is sent from beside the loop.

What is sent is durable already (`ServerLoop.settled`). What came of it is a step of the loop: a notice leaves the table
once its receiver has it. Killed in between, the server sends it again under the same id: at least once, never lost.

Two processes send (`notice_sending.py`): one to channels whose last notice arrived, one to those whose last one failed.
So a receiver that is down, or takes its time, holds the others up once, for `SEND_S`. Of each channel one notice is
under way, the oldest; after a failure the channel waits, longer each time.
"""

import asyncio
import base64
import json
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from random import Random

from scheduler.live.auth.job_privacy import SecretBox
from scheduler.live.loop.event_loop import ServerLoop
from scheduler.live.loop.notices import put_notice
from scheduler.live.loop.transaction import Transaction, TransactionEffects
from scheduler.live.loop.worker_process import (
    SingleFlightTask,
    kill_worker_process,
    new_worker_process,
    try_worker_process,
)
from scheduler.live.services.notice_addresses import NoticeAddress, read_address
from scheduler.live.services.notice_sending import (
    SEND_S,
    Sending,
    SendingBatch,
    SendingOutcome,
    is_known_service,
    send_all,
)
from scheduler.live.store.table_rows import ChannelRow, NoticeRow
from walras.clocks import random_hex
from walras.errors import Conflict, NotFound, UserError
from walras.notifications import KEY_PREFIX, NoticeKind

log = logging.getLogger(__name__)

#: Waits between the tries of one notice, seconds; after the last one it is given up.
WAITS_S = (5.0, 15.0, 45.0, 135.0, 405.0, 1215.0, 3600.0, 3600.0, 3600.0, 3600.0)
#: Sent by one process at once, each to another channel.
_AT_ONCE = 32
#: The process that sends is given up after this time; the queue is looked at so often at least.
_BATCH_S, _LOOK_EVERY_S = SEND_S + 20.0, 30.0
#: Whoever tests a channel waits no longer than this for what comes of it.
_TEST_S = 25.0
_CHECK_S = 15.0


class _SendingLane:
    """One process that sends, started when it is needed."""

    def __init__(self, make_process: Callable[[], Executor]) -> None:
        self._make_process = make_process
        self._process: Executor | None = None
        self.task = SingleFlightTask()

    async def send(self, batch: SendingBatch) -> list[SendingOutcome]:
        """What came of each; where the process fails, all of them failed."""
        if self._process is None:
            self._process = self._make_process()
        work = asyncio.get_running_loop().run_in_executor(self._process, send_all, batch)
        problem = "the process that sends notices failed"
        try:
            outcomes = await asyncio.wait_for(work, _BATCH_S)
            if any(each.is_hung for each in outcomes):
                self.end_process()
            return outcomes
        except TimeoutError:
            problem = f"no answer within {_BATCH_S:g} s"
        except BrokenProcessPool:
            log.warning("the process that sends notices has died")
        except Exception as error:  # the outermost place of that process; its words may name an address
            log.warning("the process that sends notices failed: %s", type(error).__name__)
        self.end_process()
        return [SendingOutcome(each.seq, problem) for each in batch.sendings]

    def end_process(self) -> None:
        if isinstance(self._process, ProcessPoolExecutor):
            kill_worker_process(self._process)
        elif self._process is not None:
            self._process.shutdown(wait=False, cancel_futures=True)
        self._process = None


class Notifications:
    """Where users are told of events, and the sending of it."""

    def __init__(
        self,
        loop: ServerLoop,
        box: SecretBox,
        networks: Sequence[str] = (),
        chance: Random | None = None,
        make_process: Callable[[], Executor] = new_worker_process,
    ) -> None:
        """`networks`: those that are not public and may be sent to. `chance`: None for keys that nobody can guess."""
        self._loop, self._box, self._networks, self._chance = loop, box, tuple(networks), chance
        self._lanes = (_SendingLane(make_process), _SendingLane(make_process))
        self._checking = asyncio.Lock()
        self._wake = asyncio.Event()
        #: Notices that a process has, or whose outcome is not written yet.
        self._under_way: set[int] = set()
        #: The number that the next notice had when the queue was looked at last.
        self._known_seq = 0
        #: Tests that somebody waits for: what came of them.
        self._awaited: dict[int, asyncio.Future[str]] = {}

    # ---------------------------------------------------------------- channels

    async def checked(self, url: str) -> NoticeAddress:
        """Raises UserError for an address that is not sent to, without repeating it."""
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
        self, transaction: Transaction, user: str, address: NoticeAddress, kinds: Sequence[NoticeKind]
    ) -> tuple[ChannelRow, str]:
        """Returns the new channel and the key of its notices (webhooks). Raises Conflict where there are too many."""
        queue = transaction.state.notices
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
        """A channel of this user. Raises NotFound."""
        row = self._loop.state.notices.channels.get(number)
        if row is None or row.user != user:
            raise NotFound(f"no channel {number}", field="channel_id", fix="check `walras notify list`")
        return row

    async def test(self, user: str, number: int, note: Callable[[Transaction, ChannelRow], None]) -> str:
        """Send a test to a channel, noted in the audit. Returns what went wrong; empty: the receiver has it."""
        outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def step(transaction: Transaction) -> int:
            channel = self.channel_of(user, number)
            title, text = "a test by Walras", "notices of this cluster will come here"
            queue = transaction.state.notices
            if any(_is_test(queue.waiting[seq]) for seq in queue.by_channel.get(number, ())):
                raise Conflict("a test of this channel is under way", fix="see `walras notify list`")
            notice = put_notice(transaction, channel, NoticeKind.TEST, title, text)
            note(transaction, channel)
            self._awaited[notice.seq] = outcome
            return notice.seq

        seq = await self._loop.perform(step)
        try:
            return await asyncio.wait_for(outcome, _TEST_S)
        except TimeoutError:
            return "it waits for others; see `walras notify list`"
        finally:
            self._awaited.pop(seq, None)

    # ---------------------------------------------------------------- sending

    def deliver(self, effects: TransactionEffects) -> None:
        """A batch is durable: there may be notices in it (`EffectHandler`)."""
        next_seq = self._loop.state.notices.next_seq
        if next_seq != self._known_seq:
            self._known_seq = next_seq
            self._wake.set()

    async def watch(self) -> None:
        """For ever."""
        while True:
            self._wake.clear()
            await self._loop.settled()
            next_due_s = self._begin_due()
            try:
                await asyncio.wait_for(self._wake.wait(), next_due_s)
            except TimeoutError:
                continue

    def _begin_due(self) -> float:
        """Give the processes what is due. Returns how long to wait for what is due next, seconds."""
        queue, now, next_due_s = self._loop.state.notices, self._loop.clock.now(), _LOOK_EVERY_S
        chosen: tuple[list[NoticeRow], list[NoticeRow]] = ([], [])
        for channel_id, seqs in queue.by_channel.items():
            notice = queue.waiting[next(iter(seqs))]
            if notice.seq in self._under_way:
                continue
            if notice.due_at > now:
                next_due_s = min(next_due_s, notice.due_at - now)
                continue
            chosen[bool(queue.channels[channel_id].problem)].append(notice)
        for lane, notices in zip(self._lanes, chosen, strict=True):
            if notices and not lane.task.is_under_way:
                # Whoever was told least recently first.
                notices.sort(key=lambda each: each.seq)
                batch = notices[:_AT_ONCE]
                self._under_way.update(each.seq for each in batch)
                lane.task.begin(self._send(lane, batch))
        return max(next_due_s, 0.05)

    async def _send(self, lane: _SendingLane, notices: Sequence[NoticeRow]) -> None:
        sendings = []
        for notice in notices:
            channel = self._loop.state.notices.channels.get(notice.channel_id)
            opened = {} if channel is None else self._box.open(channel.channel_id, channel.sealed)
            sendings.append(
                Sending(notice.seq, notice.notice_id, opened.get("url", ""), opened.get("key", ""), notice.body)
            )
        known = tuple(each for each in sendings if each.url)
        outcomes = await lane.send(SendingBatch(known, self._networks)) if known else []
        outcomes += [SendingOutcome(each.seq, "its address does not open", True) for each in sendings if not each.url]
        self._loop.perform_soon(lambda transaction: self._settle(transaction, outcomes))

    def _settle(self, transaction: Transaction, outcomes: Sequence[SendingOutcome]) -> None:
        """Write down what came of a batch."""
        queue, batch = transaction.state.notices, transaction.batch
        for outcome in outcomes:
            self._under_way.discard(outcome.seq)
            notice = queue.waiting.get(outcome.seq)
            if notice is None:  # it was dropped, or its channel removed, while it was under way
                continue
            channel = queue.channels[notice.channel_id]
            is_over = outcome.is_final or notice.tries >= len(WAITS_S) or _is_test(notice)
            if not outcome.problem:
                done = replace(channel, delivered=channel.delivered + 1, delivered_at=transaction.at, problem="")
            else:
                done = replace(channel, failed=channel.failed + is_over, problem=outcome.problem)
            queue.change_channel(batch, done)
            if is_over or not outcome.problem:
                queue.remove(batch, notice.seq)
            else:
                queue.try_later(batch, notice, transaction.at + WAITS_S[notice.tries])
            awaited = self._awaited.get(outcome.seq)
            if awaited is not None and not awaited.done():
                awaited.set_result(outcome.problem)
        self._wake.set()

    async def close(self) -> None:
        """Give up what is under way: the next start sends it again."""
        for lane in self._lanes:
            await lane.task.close()
            lane.end_process()


def _is_test(notice: NoticeRow) -> bool:
    return bool(json.loads(notice.body)["kind"] == NoticeKind.TEST)
