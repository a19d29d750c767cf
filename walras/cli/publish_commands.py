"""`walras report publish`, `list`, `fetch`, `remove`: pages of simulations that people share over the server."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.arguments import NoHeaderOption, OutputOption
from walras.cli.job_choice import local_time
from walras.cli.session import with_client
from walras.cli.terminal_output import Column, Listing, OutputFormat, show_json, show_line, show_listing
from walras.errors import UserError
from walras.server_access import server_access

if TYPE_CHECKING:
    from walras.published_reports import PublishedReport

ReportArgument = Annotated[int, typer.Argument(metavar="ID", min=1, help="Number, as `walras report list` has it.")]


def publish_command(
    page: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="One HTML file that needs no other, or a folder of `walras simulate ... --out`."
        ),
    ],
    title: Annotated[str | None, typer.Option("--title", help="A title; without it, the one of the page.")] = None,
    project: Annotated[
        str | None,
        typer.Option(
            "--project", "-p", help="Whose readers may open it; without it, your first project. '*': all (operators)."
        ),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Publish the page of a simulation, comparison or sweep, for the readers of a project."""
    from walras.published_reports import REPORT_BYTES, title_of_page

    path = _page_in(page)
    content = path.read_bytes() if path.stat().st_size <= REPORT_BYTES else b""
    if not content:
        what = f"larger than {REPORT_BYTES >> 20} MiB" if path.stat().st_size else "empty"
        raise UserError(f"{path} is {what}", field="FILE", fix="publish a comparison of fewer settings")
    named = title or title_of_page(content) or path.stem
    made = with_client(lambda client: client.publish_report(content, named, project=project))
    if output is OutputFormat.JSON:
        show_json(made.model_dump(mode="json"))
        return
    show_line(f"report {made.id} ({made.title}) for {_readers(made)}: {server_access().url}/#/report/{made.id}")


#: Pages that a folder of results may hold, the first that is there.
_PAGES = ("compare.html", "report.html")


def _page_in(path: Path) -> Path:
    """Returns the file, or the page in the folder. Raises UserError for a folder without one."""
    if not path.is_dir():
        return path
    found = next((path / name for name in _PAGES if (path / name).is_file()), None)
    if found is None:
        raise UserError(f"{path} holds none of {', '.join(_PAGES)}", field="FILE", fix="name the HTML file")
    return found


def _readers(report: "PublishedReport") -> str:
    return "everybody" if report.project == "*" else f"readers of {report.project}"


def list_command(output: OutputOption = OutputFormat.TABLE, no_header: NoHeaderOption = False) -> None:
    """List the published reports that you may read, newest first."""
    found = with_client(lambda client: client.published_reports())
    columns = [
        Column("ID", right=True),
        Column("TITLE", shrinks=True, least=20),
        Column("READERS", shrinks=True),
        Column("BY", shrinks=True),
        Column("PUBLISHED"),
        Column("KB", right=True, spare=1),
    ]
    rows = [
        [
            str(each.id),
            each.title,
            _readers(each),
            each.user,
            local_time(each.published_at),
            f"{each.size_bytes / 1e3:,.0f}",
        ]
        for each in found
    ]
    data = [each.model_dump(mode="json") for each in found]
    show_listing(Listing(columns, rows, data), output, header=not no_header)


def fetch_report_command(
    report: ReportArgument,
    to: Annotated[Path | None, typer.Option("--to", help="This new file, instead of report-ID.html.")] = None,
) -> None:
    """Fetch the page of a published report into a file. Its scripts run when you open it: it is its publisher's."""
    path = to or Path(f"report-{report}.html")
    if path.exists():
        raise UserError(f"{path} is there already", field="--to", fix="name a file that is not there yet")
    path.write_bytes(with_client(lambda client: client.report_page(report)))
    show_line(str(path))


def remove_report_command(report: ReportArgument) -> None:
    """Remove a published report: one of yours, or as an operator."""
    gone = with_client(lambda client: client.remove_report(report))
    show_line(f"report {gone.id} ({gone.title}) is removed")


PUBLISH_COMMANDS: dict[str, Callable[..., None]] = {
    "publish": publish_command,
    "list": list_command,
    "fetch": fetch_report_command,
    "remove": remove_report_command,
}
