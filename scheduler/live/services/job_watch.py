"""Finds jobs of which no event tells, and notifies their owners: idle, late and long-waiting ones.

    idle      every accelerator that it holds has stayed below a utilisation for a time, in every sample of its agent
    at_risk   the median of the forecast of its end is after its deadline, or the deadline has passed
    stuck     it has waited for longer than `notify.stuck_after` of the cluster file, and could have started

Utilisation and time are an administrator's rule (`idle_job` of the cluster file; without it nothing is checked).
`walras explain` and `walras show` say that a job is idle, and, where the rule asks for that, it is held after its
checkpoint (`HOLD:IDLE`), unless it could not save its work. What was not sampled is not known to be idle: for emulated
accelerators, for drivers that report nothing, and after silence of the agent, the time begins anew.

`at_risk` and `stuck` are sent once for each job; jobs of users without channels are skipped.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from math import inf, isfinite

from scheduler.core.events import JobHeld
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.stopping import may_lose_work
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.event_loop import Clock, ServerLoop
from scheduler.live.loop.live_state import LiveAttempt, LiveJob
from scheduler.live.loop.notification_events import tell_once
from scheduler.live.loop.transaction import Transaction
from walras.cluster import NodeId
from walras.job_request import JobId
from walras.resources.jobs import ForecastView
from walras.resources.notifications import NotificationKind
from walras.spec.cluster_file import IdleJobEntry
from walras.states import JobState, Reason
from walras.units import format_length

#: Seconds between two looks (agents sample their devices every ten), and jobs between two yields.
_LOOK_EVERY_S, _IN_ONE_PIECE = 30.0, 500


class IdleJobs:
    """Notes idle jobs, notifies their owners and, if the rule asks for it, holds them."""

    def __init__(self, loop: ServerLoop, rule: IdleJobEntry) -> None:
        self._loop, self._rule = loop, rule
        self._looked_at = inf

    async def watch(self) -> None:
        """Look at all running jobs every half minute, for ever."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            await self.look()

    async def look(self) -> None:
        """Look at all running jobs once."""
        await self._loop.perform_in_pieces(self._look_at_all)

    def _look_at_all(self, transaction: Transaction) -> Iterator[None]:
        state, records = transaction.state, transaction.core.ledger.jobs
        peaks: dict[NodeId, Mapping[int, float]] = {}
        for node in state.nodes.values():
            peaks[node.row.node_id], node.peaks = ({} if node.facts.emulated else node.peaks), {}
        since_at, self._looked_at = self._looked_at, transaction.at
        for position, job_id in enumerate(list(state.jobs)):
            if position % _IN_ONE_PIECE == 0:
                yield
            job, record = state.jobs.get(job_id), records.get(job_id)
            if job is None or record is None or job.attempt is None:
                continue
            if (
                job.row.state is not JobState.RUNNING
                or record.running_at > since_at
                or _is_busy(job.attempt, peaks, self._rule.below)
            ):
                job.attempt.idle_since, job.attempt.idle_detail = inf, ""
                continue
            job.attempt.idle_since = min(job.attempt.idle_since, since_at)
            if transaction.at - job.attempt.idle_since >= self._rule.lasting:
                self._found_idle(transaction, job, job.attempt, record)

    def _found_idle(self, transaction: Transaction, job: LiveJob, attempt: LiveAttempt, record: JobRecord) -> None:
        idle = format_length(transaction.at - attempt.idle_since)
        told = f"its accelerators have been used for less than {self._rule.below:g}% for {idle}"
        is_held = self._rule.act == "requeue-held"
        if is_held and (not record.request.preemptible or may_lose_work(transaction.core.ledger, record)):
            is_held, told = False, f"{told}; it is not held, for it could not be stopped without loss"
        attempt.idle_detail = told
        job_id = job.row.job_id
        words = "is idle, and is held after its checkpoint" if is_held else "is idle"
        tell_once(
            transaction,
            job,
            NotificationKind.IDLE,
            words,
            f"{told}; `walras hold --off {job_id}` goes on" if is_held else told,
        )
        if is_held:
            emit(transaction, JobHeld(transaction.at, job_id, Reason.HOLD_IDLE))


def _is_busy(attempt: LiveAttempt, peaks: Mapping[NodeId, Mapping[int, float]], below: float) -> bool:
    """Returns whether one of its accelerators was used since the last look, or was not sampled."""
    return any(
        peaks.get(part.node_id, {}).get(device, inf) >= below
        for part in attempt.placement.parts
        for device in part.devices
    )


# ------------------------------------------------------------------------------------------ late jobs


#: Seconds between two looks, and jobs between two yields.
_LOOK_FOR_LATE_EVERY_S, _LATE_IN_ONE_PIECE = 60.0, 200


def why_late(clock: Clock, deadline_at: float, forecast: ForecastView | None) -> str:
    """Returns why a job that ends as foreseen misses its deadline; empty if it does not, or nothing is foreseen."""
    if deadline_at == inf:
        return ""
    if clock.now() > deadline_at:
        return f"its deadline {clock.in_words(deadline_at)} has passed"
    if forecast is None:
        return ""
    when, end_unix_s = "after", forecast.ends_after or forecast.starts_after
    if forecast.end is not None:
        when, end_unix_s = "about", forecast.end[1]
    if end_unix_s is None or end_unix_s <= clock.unix(deadline_at):
        return ""
    end_at = end_unix_s - clock.unix(0.0)
    return f"it is expected to end {when} {clock.in_words(end_at)}, its deadline is {clock.in_words(deadline_at)}"


class LateJobNotifications:
    """Notifies owners of jobs that are at risk or stuck."""

    def __init__(
        self, loop: ServerLoop, forecast: Callable[[JobId], ForecastView | None], stuck_after_s: float = 86_400.0
    ) -> None:
        self._loop, self._forecast, self._stuck_after_s = loop, forecast, stuck_after_s

    async def watch(self) -> None:
        """Look at all active jobs every minute, for ever."""
        while True:
            await asyncio.sleep(_LOOK_FOR_LATE_EVERY_S)
            await self.look()

    async def look(self) -> None:
        """Checks all active jobs once and queues a notification for each that may miss its deadline."""
        if self._loop.state.notifications.channels:
            await self._loop.perform_in_pieces(self._tell_late)

    def _tell_late(self, transaction: Transaction) -> Iterator[None]:
        queue, records = transaction.state.notifications, transaction.core.ledger.jobs
        for position, (job_id, job) in enumerate(list(transaction.state.jobs.items())):
            if position % _LATE_IN_ONE_PIECE == 0:
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
        if why := why_late(self._loop.clock, record.request.deadline_at, self._forecast(job.row.job_id)):
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
