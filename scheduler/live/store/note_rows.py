"""What people write for each other as rows: notes on jobs, and the reports that they publish.

The bytes of a report's page lie in the content store; a row names the tree that holds them. Numbers are never used
again, so that a link to a report that was removed never shows another one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scheduler.live.store.sql_dialect import SqlConnection
from walras.job_request import JobId


@dataclass(frozen=True, slots=True)
class NoteRow:
    """A note on a job. It is deleted with its job."""

    note_id: int
    job_id: JobId
    user: str
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class PublishedReportRow:
    """A page that somebody published for the readers of a project; project `*`: for all who may sign in."""

    report_id: int
    title: str
    project: str
    user: str
    published_at: float
    #: SHA-256 of the page, and the name of the tree in the content store that holds it.
    sha256: str
    tree: str
    size_bytes: int


_NOTE = "note_id, job_id, user, at, text"
_REPORT = "report_id, title, project, user, published_at, sha256, tree, size_bytes"


def read_notes(connection: SqlConnection, job_id: JobId) -> list[NoteRow]:
    """Returns the notes on a job, oldest first."""
    rows = connection.execute(f"SELECT {_NOTE} FROM notes WHERE job_id = ? ORDER BY note_id", [job_id])
    return [NoteRow(*row) for row in rows]


def read_reports(connection: SqlConnection, projects: Sequence[str] | None) -> list[PublishedReportRow]:
    """Returns the published reports of some projects or (None) of all, newest first."""
    where, values = "", list[Any]()
    if projects is not None:
        where, values = f" WHERE project IN ({', '.join('?' for _ in projects)})", list(projects)
    rows = connection.execute(f"SELECT {_REPORT} FROM reports{where} ORDER BY report_id DESC", values)
    return [PublishedReportRow(*row) for row in rows]


def read_report_trees(connection: SqlConnection) -> list[str]:
    """Returns the trees that published reports need."""
    return [str(tree) for (tree,) in connection.execute("SELECT DISTINCT tree FROM reports")]
