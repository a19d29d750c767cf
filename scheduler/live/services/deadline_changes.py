"""Changes the deadline of a job that has not ended: in its spec, in what a restart restores, and in the core.

The spec keeps the instant, not the words, because `+6h` counts from the change, which a reader of the spec does not
know. After a restart the job has the changed deadline.
"""

import json
from dataclasses import replace
from datetime import UTC, datetime
from math import inf

from scheduler.core.job_change_events import JobDeadlineChanged
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.event_loop import Clock
from scheduler.live.loop.transaction import Transaction
from scheduler.live.store.event_journal import dump_request, parse_request
from scheduler.live.store.table_rows import SpecRow
from walras.errors import JobSpecError
from walras.spec.field_types import parse_instant

#: The word that removes the deadline.
NO_DEADLINE = "none"


def changed_deadline(stored: SpecRow, written: str, clock: Clock) -> SpecRow:
    """Returns the row with the deadline that is written as in a job file, or without one for `none`.

    Raises JobSpecError where it is no instant, has passed, or is before the job may start.
    """
    spec, request = json.loads(stored.spec), parse_request(stored.request)
    if written.strip().lower() == NO_DEADLINE:
        spec.pop("deadline", None)
        return replace(stored, spec=json.dumps(spec), request=dump_request(replace(request, deadline_at=inf)))
    now, epoch = clock.now(), clock.unix(0.0)
    try:
        instant = parse_instant(written, now=epoch + now)
    except ValueError as error:
        raise JobSpecError(f"deadline: {error}", field="deadline", fix="or `none`, to take it away") from None
    deadline_at = instant - epoch
    if deadline_at <= max(now, request.not_before_at):
        earlier = "has passed" if deadline_at <= now else "is before not_before"
        raise JobSpecError(f"the deadline {written!r} {earlier}", field="deadline", fix="choose a later one")
    try:
        spec["deadline"] = datetime.fromtimestamp(instant, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError):
        raise JobSpecError(
            "deadline: it is beyond the calendar", field="deadline", fix="choose an earlier one"
        ) from None
    return replace(stored, spec=json.dumps(spec), request=dump_request(replace(request, deadline_at=deadline_at)))


def change_deadline(transaction: Transaction, changed: SpecRow) -> None:
    """Write the row, and tell the core."""
    transaction.batch.specs.append(changed)
    deadline_at = parse_request(changed.request).deadline_at
    emit(transaction, JobDeadlineChanged(transaction.at, changed.job_id, deadline_at))


def shown_deadline(transaction: Transaction, changed: SpecRow, clock: Clock) -> str | None:
    """Returns the deadline that the core has of the job now, for people; None where it has none."""
    job = transaction.core.ledger.jobs.get(changed.job_id)
    if job is None or job.request.deadline_at == inf:
        return None
    try:
        return clock.shown(job.request.deadline_at)
    except (OverflowError, ValueError):  # the last day of the calendar, in a time zone where it is later
        return "beyond the calendar"
