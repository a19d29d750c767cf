"""The events of which users are notified, and the words of these notifications.

    failed        a job of theirs ended without success, unless they cancelled it themselves
    finished      a job of theirs succeeded
    budget        a job of theirs is held for its budget, or its project's
    at_risk       a job of theirs is expected to miss its deadline                  (`services/job_watch.py`)
    stuck         a job of theirs has waited for longer than the cluster file says  (`services/job_watch.py`)
    idle          a job of theirs does not use its accelerators, likewise           (`services/job_watch.py`)
    machine_lost  a machine is gone that was not given back: operators alone

Names and reasons come from files, scripts and machines: they are bounded, and hold no control characters.
"""

import json
import unicodedata
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from scheduler.core.commands import Command, JobTransitioned
from scheduler.core.events import Event, NodeLost
from scheduler.live.loop.live_state import LiveJob
from scheduler.live.loop.transaction import Transaction
from scheduler.live.store.table_rows import ChannelRow, JobRow, NotificationRow, ToldRow
from walras.job_request import JobId
from walras.resources.notifications import NotificationKind
from walras.states import JobState, Reason

_NAME_MOST, _TEXT_MOST = 100, 300
#: A machine that leaves for one of these reasons is not lost: a person, the policy or the market took it on purpose.
_EXPECTED_ENDS = frozenset({Reason.POLICY_RELEASED, Reason.HOLD_ADMIN, Reason.HOLD_USER, Reason.INFRA_SPOT_RECLAIM})


def plain_text(text: str, most: int = _TEXT_MOST) -> str:
    """Returns one line of at most `most` characters, without characters that control, hide or reorder what is shown."""
    shown = "".join(" " if unicodedata.category(each)[0] in "CZ" else each for each in text[: 4 * most])
    line = " ".join(shown.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def note_event(transaction: Transaction, event: Event) -> None:
    """Notify operators of a machine that is lost. Called before the event changes the live state."""
    if not isinstance(event, NodeLost) or event.reason in _EXPECTED_ENDS:
        return
    channels = transaction.state.notifications.wanting_machines()
    node = transaction.state.nodes.get(event.node_id)
    if not channels or node is None:
        return
    name, pool = plain_text(event.node_id, _NAME_MOST), plain_text(node.row.pool_id, _NAME_MOST)
    jobs = sorted({job_id for job_id, _ in node.expected})
    title = f"machine {name} is lost"
    told = {"id": name, "pool": pool, "reason": event.reason.value, "jobs": jobs[:100]}
    text = f"{event.reason.words}; pool {pool}; jobs there: {', '.join(map(str, jobs[:20])) or 'none'}"
    for channel in channels:
        put_notification(transaction, channel, NotificationKind.MACHINE_LOST, title, text, machine=told)


def note_command(transaction: Transaction, command: Command) -> None:
    """Notify the owner of a job of its end, or that it is held for its budget. Called before the command is applied."""
    if not isinstance(command, JobTransitioned):
        return
    job = transaction.state.jobs[command.job_id]
    row = job.row
    if command.state.is_final:
        _forget_told(transaction, command.job_id)
    detail = command.detail or (row.detail if row.reason is command.reason else "")
    kind = _kind_of(row, command, detail)
    if kind is None:
        return
    words = {NotificationKind.FINISHED: "finished", NotificationKind.BUDGET: "is held for its budget"}
    ended = {JobState.CANCELLED: "was cancelled", JobState.TIMEOUT: "ran out of time"}.get(command.state, "failed")
    why = ": ".join(filter(None, ("" if command.reason is None else command.reason.words, detail)))
    news = _JobNews(kind, words.get(kind, ended), why, command.state, command.reason)
    for channel in _channels_for(transaction, job, kind):
        _put_job_notification(transaction, channel, row, news)


def _kind_of(row: JobRow, command: JobTransitioned, detail: str) -> NotificationKind | None:
    if command.state is JobState.SUCCEEDED:
        return NotificationKind.FINISHED
    if command.state is JobState.HELD and command.reason is Reason.HOLD_BUDGET:
        return NotificationKind.BUDGET
    by_owner = command.reason is Reason.USER_CANCELLED and detail in ("", f"by {row.user}")
    return NotificationKind.FAILED if command.state.is_final and not by_owner else None


def _channels_for(transaction: Transaction, job: LiveJob, kind: NotificationKind) -> list[ChannelRow]:
    """Returns the owner's channels that get this kind; kinds that the job states override those of the channels."""
    queue, own = transaction.state.notifications, job.launch.notify
    if own is None:
        return queue.wanting(job.row.user, kind)
    return queue.channels_of(job.row.user) if kind in own else []


def tell_once(transaction: Transaction, job: LiveJob, kind: NotificationKind, words: str, why: str) -> None:
    """Notify the owner of an active job, at most once for each job and kind."""
    queue, row = transaction.state.notifications, job.row
    channels = _channels_for(transaction, job, kind)
    if not channels or kind in queue.told.get(row.job_id, ()):
        return
    queue.told.setdefault(row.job_id, set()).add(kind)
    transaction.batch.put(ToldRow(row.job_id, kind))
    for channel in channels:
        _put_job_notification(transaction, channel, row, _JobNews(kind, words, why, row.state, row.reason))


def _forget_told(transaction: Transaction, job_id: JobId) -> None:
    if transaction.state.notifications.told.pop(job_id, None) is not None:
        transaction.batch.delete(ToldRow, job_id)


@dataclass(frozen=True, slots=True)
class _JobNews:
    """What happened to a job, in words, why, and the state that it is in then."""

    kind: NotificationKind
    words: str
    why: str
    state: JobState
    reason: Reason | None


def _put_job_notification(transaction: Transaction, channel: ChannelRow, row: JobRow, news: _JobNews) -> None:
    name, project = plain_text(row.name, _NAME_MOST), plain_text(row.project, _NAME_MOST)
    told = {"id": row.job_id, "name": name, "project": project, "user": plain_text(row.user, _NAME_MOST)}
    reason = None if news.reason is None else news.reason.value
    told |= {"state": news.state.value, "reason": reason, "detail": plain_text(news.why)}
    title = f"job {row.job_id} ({name}) {news.words}" if name else f"job {row.job_id} {news.words}"
    text = "; ".join(filter(None, (plain_text(news.why), f"project {project}")))
    put_notification(transaction, channel, news.kind, title, text, job=told)


def put_notification(
    transaction: Transaction, channel: ChannelRow, kind: NotificationKind, title: str, text: str, **about: Any
) -> NotificationRow:
    """Queue a notification for a channel in this transaction; `about` is added to its JSON body, for programs."""
    state = transaction.state
    notification_id = f"{state.identity.incarnation}-{state.notifications.next_seq}"
    at = datetime.fromtimestamp(state.epoch_unix_s + transaction.at, UTC).isoformat(timespec="seconds")
    body = {"id": notification_id, "kind": kind.value, "at": at, "cluster": state.identity.cluster_id}
    body |= {"title": title, "text": text, **about}
    return state.notifications.put(transaction.batch, channel, notification_id, json.dumps(body), transaction.at)
