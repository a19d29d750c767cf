"""Finds late and long-waiting jobs, of which no event tells, and notifies their owners.

    at_risk   the median of the forecast of its end is after its deadline, or the deadline has passed
    stuck     it has waited for longer than `notify.stuck_after` of the cluster file, and could have started

Each is sent once for each job. Jobs of users without channels are skipped.
"""

import asyncio
from collections.abc import Callable, Iterator
from math import inf, isfinite

from scheduler.core.state.ledger import JobRecord
from scheduler.live.loop.event_loop import ServerLoop
from scheduler.live.loop.live_state import LiveJob
from scheduler.live.loop.notification_events import tell_once
from scheduler.live.loop.transaction import Transaction
from walras.api import ForecastView
from walras.job_request import JobId
from walras.notifications import NotificationKind
from walras.states import JobState
from walras.units import format_length

#: Seconds between two looks, and jobs between two yields.
_LOOK_EVERY_S, _IN_ONE_PIECE = 60.0, 200


class LateJobNotifications:
    """Notifies owners of jobs that are at risk or stuck."""

    def __init__(
        self, loop: ServerLoop, forecast: Callable[[JobId], ForecastView | None], stuck_after_s: float = 86_400.0
    ) -> None:
        self._loop, self._forecast, self._stuck_after_s = loop, forecast, stuck_after_s

    async def watch(self) -> None:
        """Look at all active jobs every minute, for ever."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            await self.look()

    async def look(self) -> None:
        """Checks all active jobs once and queues a notification for each that may miss its deadline."""
        if self._loop.state.notifications.channels:
            await self._loop.perform_in_pieces(self._tell_late)

    def _tell_late(self, transaction: Transaction) -> Iterator[None]:
        queue, records = transaction.state.notifications, transaction.core.ledger.jobs
        for position, (job_id, job) in enumerate(list(transaction.state.jobs.items())):
            if position % _IN_ONE_PIECE == 0:
                yield
            record = records.get(job_id)
            if record is None or not queue.channels_of(job.row.user):
                continue
            known = queue.next_seq
            self._tell_at_risk(transaction, job, record)
            self._tell_stuck(transaction, job, record)
            if queue.next_seq != known:  # a notification takes a hundred times as long as a look
                yield

    def _tell_at_risk(self, transaction: Transaction, job: LiveJob, record: JobRecord) -> None:
        deadline_at = record.request.deadline_at
        if deadline_at == inf:
            return
        shown = self._loop.clock.shown
        if transaction.at > deadline_at:
            why = f"its deadline {shown(deadline_at)} has passed"
        else:
            found, when = self._forecast(job.row.job_id), "about"
            if found is None:
                return
            if found.end is not None:
                end_unix_s: float | None = found.end[1]
            else:
                end_unix_s, when = found.ends_after or found.starts_after, "after"
            if end_unix_s is None:
                return
            end_at = end_unix_s - self._loop.clock.unix(0.0)
            if end_at <= deadline_at:
                return
            why = f"it is expected to end {when} {shown(end_at)}, its deadline is {shown(deadline_at)}"
        tell_once(transaction, job, NotificationKind.AT_RISK, "may miss its deadline", why)

    def _tell_stuck(self, transaction: Transaction, job: LiveJob, record: JobRecord) -> None:
        if record.state is not JobState.PENDING or record.blocked_by or record.awaits_turn:
            return
        since_at = job.row.submitted_at
        if job.row.attempts:
            since_at = float(transaction.core.ledger.columns.since_at[record.slot])
        if isfinite(record.ready_at):  # it may not start earlier (`not_before`)
            since_at = max(since_at, record.ready_at)
        if transaction.at - since_at > self._stuck_after_s:
            reason = "" if job.row.reason is None else f"{job.row.reason.value}; "
            why = f"{reason}`walras explain {job.row.job_id}` says why"
            words = f"has waited for {format_length(transaction.at - since_at)}"
            tell_once(transaction, job, NotificationKind.STUCK, words, why)
