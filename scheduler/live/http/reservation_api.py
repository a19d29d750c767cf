"""Endpoints about reservations of machines: made, listed, cancelled.

Operators reserve for their projects; administrators reserve for all projects, and they alone for maintenance. A
reservation that cannot be honoured as things stand is refused with the numbers; the list says what keeps the others
from being whole.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

from scheduler.core.events import NOBODY, Booking, BookingsDeclared
from scheduler.core.handlers.booking_windows import BookingOutlook, booking_outlooks, check_machines, choose_machines
from scheduler.live.auth.access_control import UserRole
from scheduler.live.http.requests import RequestContext, serves
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.transaction import Transaction
from scheduler.live.store.table_rows import BookingRow, booking_row
from walras.cluster import NodeId
from walras.errors import Conflict, Forbidden, NotFound, UserError
from walras.resources.fleet import RESERVATIONS, NewReservation, ReservationCalls, ReservationView
from walras.spec.accelerator_names import covers
from walras.spec.field_types import parse_instant
from walras.spec.file_model import nearest_word
from walras.units import format_jobs

#: The most reservations that may be declared at once, and how far ahead, in seconds, one may end.
_MOST, _LONGEST_S = 1000, 366 * 86_400.0
#: A beginning that passed no longer than this ago, seconds, counts as now.
_JUST_NOW_S = 60.0
#: How many reservations that are over are listed, the newest; and how many jobs or machines a note names.
_OVER_SHOWN, _NAMED_MAX = 20, 5


@serves(ReservationCalls.reserve)
async def make_reservation(call: RequestContext) -> ReservationView:
    """Reserves machines. Raises UserError, NotFound, Forbidden, Conflict where it cannot be honoured."""
    asked = await call.model(NewReservation)
    project = NOBODY if asked.project is None else asked.project
    _check_may(call, project)
    from_at, until_at = _window(call, asked)

    def step(transaction: Transaction) -> ReservationView:
        core, rows = call.server.loop.core, transaction.state.bookings
        declared = core.cycle.bookings.declared
        if len(declared) >= _MOST:
            raise Conflict(f"there are {len(declared)} reservations already", fix="cancel some first")
        named = tuple(NodeId(each) for each in dict.fromkeys(asked.nodes))
        number = max(rows, default=0) + 1
        starts_at = max(from_at, transaction.at)
        wanted = Booking(
            number, project, named, starts_at, until_at, asked.accelerator or "", asked.accelerators, asked.reason
        )
        made = _with_machines(call, declared, wanted)
        emit(transaction, BookingsDeclared(transaction.at, (*declared, made)))
        row = booking_row(made, transaction.at, call.user.name)
        _keep(transaction, row)
        _keep_moved(transaction, core.cycle.bookings.declared)
        call.note_write(transaction, f"reservation {number}", after=_standing(row), project=project)
        return _views(call, [row])[0]

    return await call.server.loop.perform(step)


def _check_may(call: RequestContext, project: str) -> None:
    if project == NOBODY and call.user.role is not UserRole.ADMIN:
        raise Forbidden("maintenance is for administrators", field="maintenance", fix="reserve for a project")
    if project != NOBODY and not call.user.sees(project):
        raise Forbidden(f"you have no project {project!r}", field="project", fix="see walras whoami")


def _window(call: RequestContext, asked: NewReservation) -> tuple[float, float]:
    """Returns its beginning and end, seconds since the cluster's epoch. Raises UserError."""
    clock, found = call.server.loop.clock, []
    now = clock.unix(clock.now())
    for field, written in (("starts", asked.starts), ("ends", asked.ends)):
        try:
            found.append(parse_instant(written, now=now))
        except ValueError as error:
            raise UserError(f"{field}: {error}", field=field, fix="write it as 2026-12-01T08:00:00Z or +2h") from None
    starts, ends = found
    if starts < now - _JUST_NOW_S:
        raise UserError("it would have begun already", field="starts", fix="leave it out to begin now")
    if ends <= max(starts, now):
        raise UserError("it would end before it begins", field="ends", fix="give a later instant")
    if ends - now > _LONGEST_S:
        raise UserError("it would end in more than a year", field="ends", fix="give an earlier instant")
    return starts - clock.unix(0.0), ends - clock.unix(0.0)


def _with_machines(call: RequestContext, declared: Sequence[Booking], wanted: Booking) -> Booking:
    """Returns the booking with its machines. Raises NotFound, UserError, Conflict where it cannot be honoured."""
    ledger = call.server.loop.core.ledger
    if wanted.node_ids:
        for name in wanted.node_ids:
            if ledger.fleet.machine(name) is None:
                near = nearest_word(name, list(call.server.state.nodes))
                fix = f"did you mean {near}?" if near else "see walras nodes"
                raise NotFound(f"no machine {name[:100]}", field="nodes", fix=fix)
        problem, nodes = check_machines(ledger, declared, wanted), wanted.node_ids
    else:
        types = {state.pool.shape.accelerator for state in ledger.fleet.pools if not state.pool.removed}
        if not any(covers(wanted.accelerator, name) for name in types):
            near = nearest_word(wanted.accelerator, types)
            fix = f"did you mean {near}?" if near else f"this fleet has {', '.join(sorted(types)) or 'no machine yet'}"
            raise UserError(f"no accelerators of type {wanted.accelerator!r}", field="accelerator", fix=fix)
        nodes, problem = choose_machines(ledger, declared, wanted)
    if problem:
        raise Conflict(
            f"it cannot be honoured: {problem}",
            field="nodes" if wanted.node_ids else "accelerators",
            fix="ask for fewer, or for another time; `walras admin list reservations` shows them",
        )
    return replace(wanted, node_ids=nodes)


@serves(ReservationCalls.cancel_reservation)
async def cancel_reservation(call: RequestContext) -> ReservationView:
    """Cancels a reservation; one that is over stays as it is. Raises NotFound, Forbidden."""
    number = call.request.match_info["reservation_id"]

    def step(transaction: Transaction) -> ReservationView:
        core = call.server.loop.core
        row = transaction.state.bookings.get(int(number)) if number.isdecimal() and len(number) < 10 else None
        if row is None or not (call.user.sees(row.project) or row.project == NOBODY):
            fix = "walras admin list reservations"
            raise NotFound(f"no reservation {number[:20]}", field="reservation_id", fix=fix)
        _check_may(call, row.project)
        if row.cancelled or row.until_at <= transaction.at:
            return _views(call, [row])[0]
        left = tuple(each for each in core.cycle.bookings.declared if each.booking_id != row.booking_id)
        emit(transaction, BookingsDeclared(transaction.at, left))
        gone = replace(row, cancelled=True)
        _keep(transaction, gone)
        call.note_write(
            transaction,
            f"reservation {row.booking_id}",
            before=_standing(row),
            after=_standing(gone),
            project=row.project,
        )
        return _views(call, [gone])[0]

    return await call.server.loop.perform(step)


@serves(RESERVATIONS)
async def list_reservations(call: RequestContext) -> list[ReservationView]:
    """Lists reservations that have not ended, soonest first; with `all`, then the newest of the others."""
    now = call.server.loop.clock.now()
    rows = [row for row in call.server.state.bookings.values() if row.project == NOBODY or call.user.sees(row.project)]
    live = sorted((row for row in rows if _is_live(row, now)), key=lambda row: (row.from_at, row.booking_id))
    over = sorted((row for row in rows if not _is_live(row, now)), key=lambda row: -row.booking_id)
    shown = [*live, *over[:_OVER_SHOWN]] if call.request.query.get("all") else live
    return _views(call, shown)


def _is_live(row: BookingRow, now: float) -> bool:
    return not row.cancelled and row.until_at > now


def _keep(transaction: Transaction, row: BookingRow) -> None:
    transaction.state.bookings[row.booking_id] = row
    transaction.batch.put(row)


def _keep_moved(transaction: Transaction, declared: Sequence[Booking]) -> None:
    """Write the rows of bookings in which the core has replaced lost machines."""
    for booking in declared:
        row = transaction.state.bookings.get(booking.booking_id)
        if row is not None and row.booking != booking:
            _keep(transaction, booking_row(booking, row.created_at, row.created_by))


def _standing(row: BookingRow) -> dict[str, Any]:
    found: dict[str, Any] = {"project": row.project, "nodes": list(row.booking.node_ids), "reason": row.booking.reason}
    return found | {"from_at": row.from_at, "until_at": row.until_at, "cancelled": row.cancelled}


def _views(call: RequestContext, rows: Sequence[BookingRow]) -> list[ReservationView]:
    core, clock = call.server.loop.core, call.server.loop.clock
    now = clock.now()
    outlooks = {each.booking.booking_id: each for each in booking_outlooks(core.ledger, core.cycle.bookings.declared)}
    return [_view(call, row, outlooks.get(row.booking_id), now) for row in rows]


def _view(call: RequestContext, row: BookingRow, outlook: BookingOutlook | None, now: float) -> ReservationView:
    clock = call.server.loop.clock
    booking = row.booking if outlook is None else outlook.booking
    state = "coming" if now < row.from_at else "active"
    if row.until_at <= now:
        state = "over"
    ready_at = inf if outlook is None else outlook.ready_at
    return ReservationView(
        id=row.booking_id,
        project=row.project,
        maintenance=row.project == NOBODY,
        accelerator=booking.accelerator,
        accelerators=booking.accelerators,
        nodes=list(booking.node_ids),
        reserved=0 if outlook is None else outlook.accelerators,
        starts=clock.shown(row.from_at),
        ends=clock.shown(row.until_at),
        state="cancelled" if row.cancelled else state,
        reason=booking.reason,
        created_by=row.created_by,
        ready=clock.shown(ready_at) if ready_at < inf else None,
        notes=[] if outlook is None else _notes(outlook),
    )


def _notes(outlook: BookingOutlook) -> list[str]:
    """Returns what keeps the reservation from being whole, and which jobs it may stop or cost unsaved work."""
    found = []
    booking = outlook.booking
    if booking.accelerators > outlook.accelerators:
        found.append(f"{outlook.accelerators} of {booking.accelerators} {booking.accelerator} are here")
    if outlook.away:
        found.append(f"{', '.join(outlook.away[:_NAMED_MAX])} away or taking no jobs")
    blocking = sorted({job_id for each in outlook.machines for job_id in each.blocking})
    if blocking:
        found.append(f"{format_jobs(blocking, _NAMED_MAX)} may not be stopped, with no known end before it begins")
    losing = sorted({job_id for each in outlook.machines for job_id in each.losing})
    if losing:
        found.append(f"{format_jobs(losing, _NAMED_MAX)} may lose work that was not saved")
    return found
