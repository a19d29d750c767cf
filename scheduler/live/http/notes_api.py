"""Endpoints about notes on jobs: listed by all who see the job, added and removed by those who may change it.

Unlike other changes of a job, a note may come after its end. Audit rows name a note by its number and length and leave
out its text, so that a note that should not have been written is gone once it is removed.
"""

import asyncio

from aiohttp import web

from scheduler.live.auth.access_control import UserRole
from scheduler.live.http.audit_trail import note_write
from scheduler.live.http.job_api import visible_job_row
from scheduler.live.http.requests import RequestContext, Route, check_text, json_list
from scheduler.live.loop.transaction import Transaction
from scheduler.live.store.note_rows import NoteRow
from scheduler.live.store.table_rows import JobRow
from walras.errors import Conflict, Forbidden, NotFound
from walras.job_notes import MOST_NOTES, NewNote, NoteView

_DIGITS = 18


class NoteDesk:
    """Adds and removes notes one after the other, so that numbers and bounds hold."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def add(self, call: RequestContext) -> NoteView:
        """Adds a note. Raises Forbidden for the job of somebody else, Conflict where it has `MOST_NOTES` already."""
        asked = await call.model(NewNote)
        check_text(asked.text, "text")
        job, store = await _changeable_job(call), call.server.store
        async with self._turn:
            found = await call.server.read(store.notes, job.job_id)
            if len(found) >= MOST_NOTES:
                raise Conflict(f"job {job.job_id} has {len(found)} notes already", field="text", fix="remove one first")
            number = await call.server.read(store.last_number, "notes") + 1

            def step(transaction: Transaction) -> NoteRow:
                row = NoteRow(number, job.job_id, call.user.name, transaction.at, asked.text)
                transaction.batch.notes.append(row)
                note_write(call, transaction, f"job {job.job_id}", after=_standing(row), project=job.project)
                return row

            return _view(call, await call.server.loop.perform(step))

    async def remove(self, call: RequestContext) -> NoteView:
        """Removes a note. Raises Forbidden for the job of somebody else, NotFound for a note that is not there."""
        job = await _changeable_job(call)
        text = call.request.match_info["note_id"]
        async with self._turn:
            found = await call.server.read(call.server.store.notes, job.job_id)
            row = next((each for each in found if len(text) <= _DIGITS and each.note_id == int(text)), None)
            if row is None:
                raise NotFound(f"no note {text[:20]} on job {job.job_id}", fix=f"see `walras show {job.job_id}`")

            def step(transaction: Transaction) -> None:
                transaction.batch.notes_done.append(row.note_id)
                note_write(call, transaction, f"job {job.job_id}", before=_standing(row), project=job.project)

            await call.server.loop.perform(step)
        return _view(call, row)


async def list_notes(call: RequestContext) -> web.StreamResponse:
    row = await visible_job_row(call)
    return json_list([_view(call, each) for each in await call.server.read(call.server.store.notes, row.job_id)])


async def _changeable_job(call: RequestContext) -> JobRow:
    row = await visible_job_row(call)
    if not call.user.may_change(row.user, row.project):
        raise Forbidden(f"job {row.job_id} belongs to {row.user}")
    return row


def _standing(row: NoteRow) -> dict[str, object]:
    return {"note": row.note_id, "by": row.user, "characters": len(row.text)}


def _view(call: RequestContext, row: NoteRow) -> NoteView:
    at = call.server.loop.clock.shown(row.at)
    return NoteView(id=row.note_id, job_id=row.job_id, user=row.user, at=at, text=row.text)


def note_routes(job: str) -> list[Route]:
    """Returns the routes about notes on the job of this path."""
    base, desk, user = f"{job}/notes", NoteDesk(), UserRole.USER
    return [
        Route("GET", base, list_notes, "Notes on a job, oldest first", response=list[NoteView]),
        Route("POST", base, desk.add, "Add a note to a job, also once it has ended", role=user, request=NewNote,
              response=NoteView, status=201),
        Route("DELETE", f"{base}/{{note_id:[0-9]+}}", desk.remove, "Remove a note", role=user, response=NoteView),
    ]  # fmt: skip
