"""Endpoints about published reports: HTML pages that people share with the readers of a project, or with everybody.

A page is a stranger's: its scripts may be hostile. It is sent with a policy of its own that makes it a sandbox without
an origin. Its scripts run, so that charts can be looked at, but they have no cookie, read nothing of the page around
them, open nothing, send nothing, and load nothing. Only pages of this server may frame it; a browser that is to show it
by itself, and says so (over TLS or on the same machine), saves it as a file instead, for outside a frame it could pass
for a page of Walras.
"""

import asyncio
import hashlib
import os
from typing import Any

from aiohttp import web

from scheduler.live.auth.access_control import ALL_PROJECTS, UserRole
from scheduler.live.http.audit_trail import note_write
from scheduler.live.http.requests import RequestContext, Route, json_list
from scheduler.live.loop.transaction import Transaction
from scheduler.live.store.content_store import ContentStore
from scheduler.live.store.note_rows import PublishedReportRow
from walras.content import CHUNK_BYTES, ContentFile, ContentTree, DamagedContent, chunk_name
from walras.errors import ClusterError, Conflict, Forbidden, NotFound, UserError
from walras.published_reports import (
    LONGEST_TITLE,
    MOST_REPORTS,
    MOST_REPORTS_OF_PROJECT,
    REPORT_BYTES,
    PublishedReport,
    is_html,
)

_DIGITS = 18
_LONGEST_PROJECT = 200
_FILE = "report.html"
_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:;"
    " font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class ReportShelf:
    """Publishes and removes reports one after the other, so that numbers and bounds hold."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def publish(self, call: RequestContext) -> PublishedReport:
        """Publishes a page, once: the same page with the same title in the same project is the report of before.

        Raises UserError for a page that is no HTML or too large, Forbidden for a project that the caller does not
        have, NotFound for one that nobody has, Conflict where too many are published.
        """
        title, project = _title(call), _project(call)
        page = await call.body(REPORT_BYTES)
        sha256 = await call.server.read(_checked_sha256, page)
        async with self._turn:
            rows = await call.server.read(call.server.store.reports, None)
            of_project = [row for row in rows if row.project == project]
            for row in of_project:
                if (row.sha256, row.title) == (sha256, title):
                    return _view(call, row)
            if len(of_project) >= MOST_REPORTS_OF_PROJECT or len(rows) >= MOST_REPORTS:
                count = f"{len(of_project)} reports of project {project}, {len(rows)} in all"
                raise Conflict(f"{count}, are published already", fix="remove some first")
            # Waits for the disk, so it must not take one of the few reader threads.
            tree = await asyncio.to_thread(_keep_page, call.server.content, page)
            number = await call.server.read(call.server.store.last_number, "reports") + 1

            def step(transaction: Transaction) -> PublishedReportRow:
                row = PublishedReportRow(
                    number, title, project, call.user.name, transaction.at, sha256, tree, len(page)
                )
                transaction.batch.reports.append(row)
                note_write(call, transaction, f"report {number}", after=_standing(row), project=_audited(row))
                return row

            return _view(call, await call.server.loop.perform(step))

    async def remove(self, call: RequestContext) -> PublishedReport:
        """Removes a report. Raises NotFound, and Forbidden for the report of somebody else."""
        async with self._turn:
            row = await _visible_report(call)
            if not call.user.may_change(row.user, row.project):
                raise Forbidden(f"report {row.report_id} was published by {row.user}")

            def step(transaction: Transaction) -> None:
                transaction.batch.reports_done.append(row.report_id)
                # The page goes with the next sweep, unless another report has the same.
                transaction.state.superseded.add(row.tree)
                note_write(call, transaction, f"report {row.report_id}", before=_standing(row), project=_audited(row))

            await call.server.loop.perform(step)
        return _view(call, row)


def _title(call: RequestContext) -> str:
    title = " ".join(call.request.query.get("title", "").split())
    if not 1 <= len(title) <= LONGEST_TITLE:
        raise UserError(f"a report has a title of 1 to {LONGEST_TITLE} characters", field="title", fix="add ?title=")
    return title


def _project(call: RequestContext) -> str:
    """Returns the project whose readers may read the report.

    Raises Forbidden where the caller does not have it, NotFound where nobody has: a report without a reader is a slip.
    """
    project = call.request.query.get("project", "") or call.user.default_project
    if not call.user.sees(project) or len(project) > _LONGEST_PROJECT:
        have = ", ".join(call.user.projects)
        raise Forbidden(f"you have no project {project[:80]!r}", field="project", fix=f"choose one of {have}")
    if project == ALL_PROJECTS and call.user.role < UserRole.OPERATOR:
        raise Forbidden("only operators publish for everybody", field="project", fix="name one of your projects")
    known = {ALL_PROJECTS, call.user.default_project, *call.user.projects, *call.server.secrets.people.known_projects()}
    if project not in known and project not in {job.row.project for job in call.server.state.jobs.values()}:
        raise NotFound(f"no project {project!r}", field="project", fix=f"walras admin project add {project}")
    return project


def _checked_sha256(page: bytes) -> str:
    """Returns the SHA-256 of a page. Raises UserError for one that is empty, not UTF-8 or no HTML."""
    fix = "publish an HTML file in UTF-8, such as compare.html of `walras simulate compare --out`"
    if not page.strip():
        raise UserError("the page is empty", field="page", fix=fix)
    try:
        page.decode()
    except UnicodeDecodeError:
        raise UserError("the page is not text in UTF-8", field="page", fix=fix) from None
    if not is_html(page):
        raise UserError("the page does not begin as HTML does", field="page", fix=fix)
    return hashlib.sha256(page).hexdigest()


def _keep_page(content: ContentStore, page: bytes) -> str:
    """Make a page durable in the content store; returns the name of its tree. Raises ClusterError for a full disk."""
    names = []
    try:
        for start in range(0, len(page), CHUNK_BYTES):
            piece = page[start : start + CHUNK_BYTES]
            names.append(chunk_name(piece))
            content.put(names[-1], piece)
        return content.commit_tree(ContentTree(files=(ContentFile(path=_FILE, size=len(page), chunks=tuple(names)),)))
    except OSError as error:
        raise ClusterError(f"the report cannot be kept: {os.strerror(error.errno or 0)}") from None


async def list_reports(call: RequestContext) -> web.StreamResponse:
    visible = call.user.visible_projects
    projects = None if visible is None else (*visible, ALL_PROJECTS)
    return json_list([_view(call, row) for row in await call.server.read(call.server.store.reports, projects)])


async def show_report(call: RequestContext) -> PublishedReport:
    return _view(call, await _visible_report(call))


async def show_page(call: RequestContext) -> web.StreamResponse:
    """Returns the HTML of a report, fenced in. Raises NotFound where it is gone, as after a restore elsewhere."""
    row = await _visible_report(call)
    try:
        page = await call.server.read(_read_page, call.server.content, row.tree)
    except (NotFound, DamagedContent) as error:
        raise NotFound(f"the page of report {row.report_id} is gone: {error}", fix="publish it again") from None
    headers = dict(_HEADERS)
    if call.request.headers.get("Sec-Fetch-Dest") == "document":
        headers["Content-Disposition"] = f'attachment; filename="report-{row.report_id}.html"'
    return web.Response(body=page, content_type="text/html", charset="utf-8", headers=headers)


def _read_page(content: ContentStore, tree: str) -> bytes:
    return b"".join(content.get(chunk) for file in content.tree(tree).files for chunk in file.chunks)


async def _visible_report(call: RequestContext) -> PublishedReportRow:
    """Returns the report of the path. Raises NotFound where there is none, or the caller may not see it."""
    text = call.request.match_info["report_id"]
    rows = await call.server.read(call.server.store.reports, None)
    for row in rows:
        if len(text) <= _DIGITS and row.report_id == int(text):
            if row.project == ALL_PROJECTS or call.user.sees(row.project):
                return row
            break
    raise NotFound(f"no report {text[:20]}", field="report_id", fix="see `walras report list`")


def _standing(row: PublishedReportRow) -> dict[str, Any]:
    return {"title": row.title, "project": row.project, "sha256": row.sha256, "size_bytes": row.size_bytes}


def _audited(row: PublishedReportRow) -> str:
    """Returns the project whose operators see the audit row; none for a report that is everybody's."""
    return "" if row.project == ALL_PROJECTS else row.project


def _view(call: RequestContext, row: PublishedReportRow) -> PublishedReport:
    return PublishedReport(
        id=row.report_id,
        title=row.title,
        project=row.project,
        user=row.user,
        published_at=call.server.loop.clock.shown(row.published_at),
        sha256=row.sha256,
        size_bytes=row.size_bytes,
    )


def published_routes() -> list[Route]:
    """Returns the routes about published reports: viewers read those of their projects, users publish."""
    base, one, shelf, user = "/api/v1/reports", "/api/v1/reports/{report_id:[0-9]+}", ReportShelf(), UserRole.USER
    return [
        Route("GET", base, list_reports, "Reports that were published, newest first", response=list[PublishedReport]),
        Route("POST", base, shelf.publish, "Publish an HTML page for the readers of a project", role=user,
              request="text/html", response=PublishedReport, status=201, query=("title", "project")),
        Route("GET", one, show_report, "One published report, without its page", response=PublishedReport),
        Route("GET", f"{one}/page", show_page, "The page of a report, in a sandbox", response="text/html"),
        Route("DELETE", one, shelf.remove, "Remove a published report", role=user, response=PublishedReport),
    ]  # fmt: skip
