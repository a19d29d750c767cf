"""`walras report`: how the cluster did lately, against what any scheduler that knew the future could have done."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.arguments import NoHeaderOption, OutputOption, parse_length_option
from walras.cli.session import with_client
from walras.cli.terminal_output import Column, Listing, OutputFormat, dash, show_json, show_line, show_listing
from walras.errors import UserError
from walras.units import format_length, format_money

if TYPE_CHECKING:
    from walras.cluster_report import ClusterReport, ReportRow, TypeUse

_WEEK, _MONTH = "7d", "30d"


def report_command(
    week: Annotated[bool, typer.Option("--week", help="The last 7 days, as without any of these.")] = False,
    month: Annotated[bool, typer.Option("--month", help="The last 30 days.")] = False,
    since: Annotated[str | None, typer.Option("--since", help="This time up to now, such as 24h or 14d.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Also write it as one HTML page to this file.")] = None,
    output: OutputOption = OutputFormat.TABLE,
    no_header: NoHeaderOption = False,
) -> None:
    """Show how the cluster did, by project, beside a proved bound that no scheduler could have undercut."""
    if week + month + (since is not None) > 1:
        raise UserError("--week, --month and --since say different times", field="--since", fix="give one of them")
    since_s = parse_length_option(since or (_MONTH if month else _WEEK), "--since")
    report = with_client(lambda client: client.report(since_s=since_s))
    if html is not None:
        from walras.html_page import write_page

        write_page(html, report_page(report), "--html")
    if output is OutputFormat.JSON:
        show_json(report.model_dump(mode="json"))
        return
    show_listing(Listing(_COLUMNS, _project_rows(report), None), output, header=not no_header)
    if report.types:
        show_line("")
        show_listing(Listing(_TYPE_COLUMNS, _type_rows(report), None), output, header=not no_header)
    show_line("")
    for line in report_notes(report):
        show_line(line)


_COLUMNS = [
    Column("PROJECT", shrinks=True),
    Column("SUBMITTED", right=True, spare=3),
    Column("ENDED", right=True, spare=2),
    Column("COMPLETION", right=True),
    Column("WAITING", right=True),
    Column("BOUND", right=True),
    Column("ABOVE", right=True),
    Column("PREEMPTED", right=True, spare=4),
    Column("LOST", right=True, spare=5),
    Column("USD", right=True),
    Column("SAVED", right=True),
]
_TYPE_COLUMNS = [
    Column("TYPE", shrinks=True),
    Column("MOST", right=True),
    Column("HELD", right=True),
    Column("THERE", right=True),
    Column("USED", right=True),
]


def _project_rows(report: "ClusterReport") -> list[list[str]]:
    rows = [*report.projects, report.total] if len(report.projects) != 1 else report.projects
    return [_cells(each) for each in rows]


def _type_rows(report: "ClusterReport") -> list[list[str]]:
    return [
        [each.accelerator, f"{each.most:g}", _hours(each.held_h), _hours(each.there_h), _part(each)]
        for each in report.types
    ]


def report_page(report: "ClusterReport") -> str:
    """Returns the report as an HTML document."""
    from walras.html_page import html_document, html_paragraphs, html_section, html_table, html_text

    first, last = (datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M") for at in (report.since, report.until))
    title = f"How the cluster did, {first} to {last} UTC"
    projects = html_table([column.title for column in _COLUMNS], _project_rows(report))
    types = html_table([column.title for column in _TYPE_COLUMNS], _type_rows(report)) if report.types else ""
    return html_document(
        title,
        [
            f"<h1>{html_text(title)}</h1>",
            html_section("Projects", "", projects),
            html_section("Accelerators", "", types) if types else "",
            html_section("What the figures say", "", html_paragraphs(report_notes(report))),
        ],
    )


def _cells(row: "ReportRow") -> list[str]:
    regret = row.regret
    return [
        row.project or "all",
        f"{row.submitted:,}",
        f"{row.ended:,}",
        dash(None if row.completion_s is None else format_length(row.completion_s)),
        dash(None if row.waiting_s is None else format_length(row.waiting_s)),
        dash(None if regret is None else format_length(regret.bound_s)),
        dash(None if regret is None else f"{regret.above:.0%}"),
        f"{row.preemptions + row.losses:,}",
        _hours(row.lost_h),
        format_money(row.usd),
        format_money(row.on_demand_usd - row.usd),
    ]


def _hours(hours: float) -> str:
    return f"{hours:,.1f} h"


def _part(use: "TypeUse") -> str:
    return f"{use.held_h / use.there_h:.0%}" if use.there_h > 0 else "-"


def report_notes(report: "ClusterReport") -> list[str]:
    """Returns what the figures are of, and what is left out of the bound."""
    total = report.total
    notes = []
    if total.regret is None:
        notes.append("No job could be bounded: none was submitted and succeeded within the time as one rigid gang.")
    else:
        found = total.regret
        notes.append(
            f"BOUND and ABOVE are of {found.jobs:,} jobs: they took {format_length(found.achieved_s)} on average, and"
            f" no scheduler, whatever it knew, could have come below {format_length(found.bound_s)}"
            f" ({format_length(found.alone_s)} if each had been alone)."
        )
        if found.assumed:
            notes.append(
                f"For {found.assumed:,} of them a type that they accept was never measured: the bound holds if they are"
                " no faster there than on the fastest type that was."
            )
    if report.left_out:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in report.left_out.items())
        notes.append(f"Not in the bound: {reasons}.")
    if len(report.projects) > 1:
        notes.append("A project's own bound is as if it had had all machines; the bound of all counts that they share.")
    notes.append(
        "PREEMPTED counts attempts that were interrupted; LOST is their unsaved work, in accelerator-hours. SAVED is"
        " against the price on demand of what was held."
    )
    if report.partial:
        notes.append("The report covers only your projects.")
    return notes
