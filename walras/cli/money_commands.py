"""`walras money`: what was spent, what budgets are left, and how the cluster did for it.

`--report` sets that against what any scheduler that knew the future could have done; `--model` bills a reservation.
"""

import csv
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.arguments import NoHeaderOption, OutputOption, ProjectOption, parse_length_option, refuse_options
from walras.cli.budget_commands import show_budgets
from walras.cli.session import with_client
from walras.cli.terminal_output import (
    Column,
    Listing,
    OutputFormat,
    dash,
    safe_text,
    show_json,
    show_line,
    show_listing,
)
from walras.cli.usage_commands import (
    AskedPrices,
    TypeOption,
    check_bill_options,
    parse_reserved_usd,
    read_bill_usage,
    show_bills,
)
from walras.contract import SECONDS_PER_HOUR
from walras.units import format_length, format_money

if TYPE_CHECKING:
    from walras.api import MoneyReport, MoneyRow
    from walras.cluster_report import ClusterReport, ReportRow, TypeUse

_ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="one-price|by-place",
        help="Bill a reservation instead: at one price for all work, or by where it ran. Judges who would leave.",
    ),
]
_ReservedOption = Annotated[
    list[str] | None,
    typer.Option(
        "--reserved", metavar="[TYPE=]USD", help="With --model: price of a reserved accelerator-hour; repeatable."
    ),
]
_ReportOption = Annotated[
    bool,
    typer.Option(
        "--report",
        help="Show how the cluster did, by project, beside a proved bound that no scheduler could have undercut.",
    ),
]
_SinceOption = Annotated[
    str | None,
    typer.Option("--since", help="With --report or --model: this time up to now (default: 7d, or 30d)."),
]


def money_command(
    by: Annotated[str, typer.Option("--by", help="Sum by project, user, team, job, pool or month.")] = "project",
    month: Annotated[str, typer.Option("--month", help="Only this month (UTC), such as 2026-11.")] = "",
    project: ProjectOption = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=100_000, help="Show this many of the dearest; sum up the others.")
    ] = 1000,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the sums as CSV, for a spreadsheet.")] = False,
    budgets: Annotated[bool, typer.Option("--budgets", help="Show the budgets that your jobs pay into.")] = False,
    report: _ReportOption = False,
    html: Annotated[Path | None, typer.Option("--html", help="Also write the report as HTML to this file.")] = None,
    model: _ModelOption = None,
    since: _SinceOption = None,
    accelerator_type: TypeOption = None,
    reserved: _ReservedOption = None,
    reserved_price: Annotated[
        float | None, typer.Option("--reserved-price", help="The same as a fraction of the on-demand price.")
    ] = None,
    on_demand: Annotated[
        float | None, typer.Option("--on-demand", min=0.0, help="On-demand price per accelerator-hour, USD.")
    ] = None,
    longest_wait: Annotated[
        str, typer.Option("--longest-wait", help="With --model: jobs that would wait longer run on demand.")
    ] = "0s",
    output: OutputOption = OutputFormat.TABLE,
    no_header: NoHeaderOption = False,
) -> None:
    """Show what was spent, at the prices in force at the time of use, and what on-demand would have cost."""
    header = not no_header
    of_ledger: dict[str, object] = {"--month": month, "--project": project, "--csv": as_csv}
    of_bills: dict[str, object] = {"--type": accelerator_type, "--reserved": reserved, "--on-demand": on_demand}
    of_bills |= {"--reserved-price": reserved_price}
    if budgets:
        others = of_ledger | of_bills | {"--report": report, "--html": html, "--model": model, "--since": since}
        refuse_options(others, "says nothing of budgets", "leave it out")
        show_budgets(output, header=header)
        return
    if report:
        others = of_ledger | of_bills | {"--model": model, "--by": "" if by == "project" else by}
        refuse_options(others, "says nothing of the report", "leave it out; see --since")
        _show_report(since or "7d", html, output, header=header)
        return
    refuse_options({"--html": html}, "is of the report", "add --report")
    check_bill_options(model, by, of_ledger, of_bills | {"--since": since})
    if model is not None:
        asked = AskedPrices(reserved_price, on_demand, parse_reserved_usd(reserved or []))
        show_bills(read_bill_usage(since, accelerator_type, asked, longest_wait), by, model, output, header)
        return
    found = with_client(lambda client: client.money(by, month=month, project=project or "", limit=limit))
    _show_money_csv(found, header=header) if as_csv else _show_money(found, output, header=header)


def _show_money(found: "MoneyReport", output: OutputFormat, *, header: bool) -> None:
    columns = (
        Column(found.by.upper(), shrinks=True),
        Column("HELD", right=True),
        Column("USED", right=True),
        Column("IDLE", right=True),
        Column("ON DEMAND", right=True),
    )
    data = found.model_dump(mode="json")
    rows = [_money_row(row) for row in found.items]
    if found.rest is not None:
        rows.append([f"{found.rest_of:,} others", *_money_row(found.rest)[1:]])
    show_listing(Listing(columns, rows, data), output, header=header)
    if output is OutputFormat.TABLE:
        show_line(_money_total_line(found))


def _show_money_csv(found: "MoneyReport", *, header: bool) -> None:
    """Numbers as they are, in accelerator-hours and USD; the jobs that are not told of one by one are the last row."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if header:
        writer.writerow((found.by, "accelerator_hours", "usd", "idle_usd", "on_demand_usd"))
    others = [] if found.rest is None else [found.rest.model_copy(update={"key": f"{found.rest_of} others"})]
    for row in (*found.items, *others):
        hours = row.accelerator_s / SECONDS_PER_HOUR
        writer.writerow((_cell_of_csv(row.key), hours, row.usd, row.idle_usd, row.on_demand_usd))


def _cell_of_csv(text: str) -> str:
    """Returns a name that a spreadsheet does not interpret as a formula."""
    shown = safe_text(text)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) else shown


def _money_row(row: "MoneyRow") -> list[str]:
    return [
        dash(row.key),
        format_length(row.accelerator_s),
        format_money(row.usd),
        format_money(row.idle_usd),
        format_money(row.on_demand_usd),
    ]


def _money_total_line(found: "MoneyReport") -> str:
    words = (
        f"in all {format_money(found.total_usd)}: {format_money(found.used_usd)} used by jobs, "
        f"{format_money(found.idle_usd)} for rented machines that idled"
    )
    if found.on_demand_usd <= found.total_usd + 1e-9:
        return words
    saved = 1.0 - found.total_usd / found.on_demand_usd
    return f"{words}; all on demand {format_money(found.on_demand_usd)}, {saved:.0%} saved"


# ------------------------------------------------------------------------------------------------ the report


def _show_report(since: str, html: Path | None, output: OutputFormat, *, header: bool) -> None:
    since_s = parse_length_option(since, "--since")
    report = with_client(lambda client: client.report(since_s=since_s))
    if html is not None:
        from walras.html_page import write_page

        write_page(html, report_page(report), "--html")
    if output is OutputFormat.JSON:
        show_json(report.model_dump(mode="json"))
        return
    show_listing(Listing(_REPORT_COLUMNS, _project_rows(report), None), output, header=header)
    if report.types:
        show_line("")
        show_listing(Listing(_TYPE_COLUMNS, _type_rows(report), None), output, header=header)
    show_line("")
    for line in report_notes(report):
        show_line(line)


_REPORT_COLUMNS = [
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
    return [_report_cells(each) for each in rows]


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
    projects = html_table([column.title for column in _REPORT_COLUMNS], _project_rows(report))
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


def _report_cells(row: "ReportRow") -> list[str]:
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
