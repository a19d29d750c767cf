"""The users' channels and the notifications that wait for them: bounded, and equal in memory and in the tables.

A notification is written in the transaction of the event that it reports, so neither is stored without the other. It
leaves the queue once its receiver has it, once it is given up, or when newer ones need its place: then the oldest is
dropped, and its channel counts it.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from scheduler.live.store.store_interface import LoadedState, WriteBatch
from scheduler.live.store.table_rows import ChannelRow, NotificationRow, ToldRow
from walras.errors import Conflict
from walras.job_request import JobId
from walras.resources.notifications import NotificationKind

#: The most notifications that may wait, of one user and of all.
WAITING_OF_USER, WAITING_MOST = 200, 10_000
#: The most channels, of one user and of all.
CHANNELS_OF_USER, CHANNELS_MOST = 20, 10_000


def _nobody(_: str) -> bool:
    return False


@dataclass(slots=True)
class NotificationQueue:
    """Channels by number, and each channel's waiting notifications, oldest first."""

    channels: dict[int, ChannelRow] = field(default_factory=dict)
    waiting: dict[int, NotificationRow] = field(default_factory=dict)
    #: Numbers of the waiting notifications by channel; channels without any are left out.
    by_channel: dict[int, dict[int, None]] = field(default_factory=dict)
    #: By active job, the kinds of which its owner was notified and is not notified again.
    told: dict[JobId, set[str]] = field(default_factory=dict)
    #: Returns whether a user may be notified about machines.
    is_operator: Callable[[str], bool] = _nobody
    next_channel_id: int = 1
    next_seq: int = 1
    _channels_of: dict[str, set[int]] = field(default_factory=dict)
    _kinds: dict[int, frozenset[str]] = field(default_factory=dict)
    _of_machines: set[int] = field(default_factory=set)

    @staticmethod
    def of(loaded: LoadedState) -> "NotificationQueue":
        """Returns the queue as the tables have it."""
        queue = NotificationQueue(
            next_channel_id=loaded.last_numbers[ChannelRow] + 1, next_seq=loaded.last_numbers[NotificationRow] + 1
        )
        for channel in loaded.rows(ChannelRow):
            queue._enter(channel)
        for notification in loaded.rows(NotificationRow):
            if notification.channel_id in queue.channels:
                queue.waiting[notification.seq] = notification
                queue.by_channel.setdefault(notification.channel_id, {})[notification.seq] = None
        for row in loaded.rows(ToldRow):
            queue.told.setdefault(row.job_id, set()).add(row.kind)
        return queue

    # ---------------------------------------------------------------- channels

    def channels_of(self, user: str) -> list[ChannelRow]:
        return [self.channels[each] for each in sorted(self._channels_of.get(user, ()))]

    def wanting(self, user: str, kind: NotificationKind) -> list[ChannelRow]:
        """Returns the channels of a user that are to get this kind of event."""
        return [each for each in self.channels_of(user) if kind in self._kinds[each.channel_id]]

    def wanting_machines(self) -> list[ChannelRow]:
        """Returns the channels of operators that are to get lost machines."""
        found = (self.channels[each] for each in sorted(self._of_machines))
        return [row for row in found if self.is_operator(row.user)]

    def add_channel(self, batch: WriteBatch, row: ChannelRow) -> None:
        """Add a channel. Raises Conflict where there are too many."""
        if len(self._channels_of.get(row.user, ())) >= CHANNELS_OF_USER or len(self.channels) >= CHANNELS_MOST:
            raise Conflict(f"there are {CHANNELS_OF_USER} channels already", fix="walras notify --remove ID")
        self._enter(row)
        self.next_channel_id = row.channel_id + 1
        batch.put(row)

    def change_channel(self, batch: WriteBatch, row: ChannelRow) -> None:
        """Store a changed channel; nothing if it was removed meanwhile."""
        if row.channel_id in self.channels:
            self.channels[row.channel_id] = row
            batch.put(row)

    def remove_channels(self, batch: WriteBatch, rows: Iterable[ChannelRow]) -> None:
        """Remove channels with the notifications that wait for them."""
        for row in rows:
            for seq in list(self.by_channel.get(row.channel_id, ())):
                self.remove(batch, seq)
            del self.channels[row.channel_id], self._kinds[row.channel_id]
            self._of_machines.discard(row.channel_id)
            self._channels_of[row.user].discard(row.channel_id)
            if not self._channels_of[row.user]:
                del self._channels_of[row.user]
            batch.delete(ChannelRow, row.channel_id)

    def _enter(self, row: ChannelRow) -> None:
        self.channels[row.channel_id] = row
        self._kinds[row.channel_id] = frozenset(json.loads(row.kinds))
        if NotificationKind.MACHINE_LOST in self._kinds[row.channel_id]:
            self._of_machines.add(row.channel_id)
        self._channels_of.setdefault(row.user, set()).add(row.channel_id)

    # ---------------------------------------------------------------- notifications

    def put(
        self, batch: WriteBatch, channel: ChannelRow, notification_id: str, body: str, due_at: float
    ) -> NotificationRow:
        """Add a notification; where there are too many, the oldest is dropped."""
        own = [seq for each in self._channels_of[channel.user] for seq in self.by_channel.get(each, ())]
        if len(own) >= WAITING_OF_USER:
            self._drop(batch, min(own))
        if len(self.waiting) >= WAITING_MOST:
            self._drop(batch, next(iter(self.waiting)))
        row = NotificationRow(self.next_seq, notification_id, channel.channel_id, body, 0, due_at)
        self.next_seq += 1
        self.waiting[row.seq] = row
        self.by_channel.setdefault(row.channel_id, {})[row.seq] = None
        batch.put(row)
        return row

    def try_later(self, batch: WriteBatch, row: NotificationRow, due_at: float) -> None:
        """Count a failed try and set the next one; nothing if the notification has left the queue meanwhile."""
        if row.seq in self.waiting:
            self.waiting[row.seq] = replace(row, tries=row.tries + 1, due_at=due_at)
            batch.put(self.waiting[row.seq])

    def remove(self, batch: WriteBatch, seq: int) -> None:
        """Remove a notification that was delivered, given up or dropped; nothing if it is not in the queue."""
        row = self.waiting.pop(seq, None)
        if row is None:
            return
        batch.delete(NotificationRow, seq)
        of_channel = self.by_channel[row.channel_id]
        del of_channel[seq]
        if not of_channel:
            del self.by_channel[row.channel_id]

    def _drop(self, batch: WriteBatch, seq: int) -> None:
        channel = self.channels[self.waiting[seq].channel_id]
        self.remove(batch, seq)
        self.change_channel(batch, replace(channel, dropped=channel.dropped + 1))
