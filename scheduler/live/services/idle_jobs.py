"""Finds jobs that hold accelerators and do not use them, by the utilisation that drivers report.

An administrator's rule (`idle_job` of the cluster file; without it nothing is checked) states a utilisation and a time.
A job is idle once every accelerator that it holds has stayed below that utilisation, in every sample of its agent, for
that time. Then its owner is notified, `walras explain` and `walras show` say so, and, where the rule asks for that, the
job is held after its checkpoint (`HOLD:IDLE`).

What was not sampled is not known to be idle: for emulated accelerators, for drivers that report nothing, and after
silence of the agent, the time begins anew. A job that could not save its work is not held.
"""

import asyncio
from collections.abc import Iterator, Mapping
from math import inf

from scheduler.core.events import JobHeld
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.unsaved_work import may_lose_work
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.event_loop import ServerLoop
from scheduler.live.loop.live_state import LiveAttempt, LiveJob
from scheduler.live.loop.notification_events import tell_once
from scheduler.live.loop.transaction import Transaction
from walras.cluster import NodeId
from walras.notifications import NotificationKind
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
            f"{told}; `walras release {job_id}` goes on" if is_held else told,
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
