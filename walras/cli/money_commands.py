"""`walras money`: what was spent, what budgets are left, and how the cluster did for it.

`--report` sets that against what any scheduler that knew the future could have done; `--model` bills a reservation.
Shares and budgets are what people are entitled to, hold, have used, and may use.

What the cluster's own jobs would have cost with a reservation, here and in `walras cloud capacity --live`: the server
tells which job held how many accelerators of which type, since when and for how long; the planning is done here. Each
type is reserved by itself, at a price beside its on-demand price: the cheapest of the cluster's pools, unless one is
given.
"""

import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walras.cli.arguments import (
    NoHeaderOption,
    OutputOption,
    ProjectOption,
    SetOption,
    parse_length_option,
    read_settings,
    refuse_options,
)
from walras.cli.session import with_client
from walras.cli.terminal_output import (
    OutputFormat,
    columns_of,
    dash,
    safe_text,
    show_as_json,
    show_columns,
    show_items,
    show_json,
    show_line,
    warn,
)
from walras.contract import SECONDS_PER_HOUR
from walras.errors import UserError
from walras.units import format_amount, format_length, format_money

if TYPE_CHECKING:
    from optimizer.planning.reserved_capacity import (
        CapacityJob,
        PricingModel,
        ReservationBills,
        ReservationTerms,
        UserBill,
    )
    from walras.cli.command_fields import BillSettings
    from walras.resources.money import (
        BudgetView,
        ClusterReport,
        MoneyReport,
        MoneyRow,
        ReportRow,
        TypeUse,
        UsageReport,
        UsageRow,
    )
    from walras.resources.people import ShareView

_SINCE = "30d"
#: USD below which an amount shown in cents is 0.
_LEAST_USD = 0.005


@dataclass(frozen=True, slots=True)
class AskedPrices:
    """The prices that options state, per accelerator-hour."""

    #: A fraction of the on-demand price.
    reserved_part: float | None = None
    on_demand_usd: float | None = None
    #: By type; `""`: for every type.
    reserved_usd: Mapping[str, float] = field(default_factory=dict)

    def part_of(self, accelerator: str, on_demand_usd: float) -> float:
        """Returns the price of a reserved hour of a type as a fraction of one on demand. Raises UserError."""
        reserved_usd = self.reserved_usd.get(accelerator, self.reserved_usd.get(""))
        return reserved_price_part(self.reserved_part, on_demand_usd, reserved_usd)


def reserved_price_part(part: float | None, on_demand: float | None, reserved: float | None) -> float:
    """Returns the price of a reserved hour as a fraction of the on-demand price. Raises UserError."""
    if part is None:
        if not on_demand or reserved is None:
            fix = "give --reserved-price, or --on-demand and --reserved"
            raise UserError("the price of a reserved hour is not known", field="--reserved-price", fix=fix)
        part = reserved / on_demand
    elif reserved is not None:
        raise UserError("two prices of a reserved hour", field="--reserved", fix="give one of both")
    if not 0 < part <= 1:
        raise UserError(
            f"a reserved hour at {part:g} of one on demand", field="--reserved-price", fix="above 0, and at most 1"
        )
    return part


def parse_reserved_usd(words: Sequence[str]) -> dict[str, float]:
    """Returns `1.06`, or `a100=1.06` for each type, by type. Raises UserError."""
    found: dict[str, float] = {}
    for word in words:
        accelerator, _, amount = word.rpartition("=")
        try:
            usd = float(amount)
        except ValueError:
            usd = -1.0
        if not 0 < usd < 1e6 or accelerator in found:
            raise UserError(f"{word[:60]!r} is no price", field="--reserved", fix="1.06, or a100=1.06 once a type")
        found[accelerator] = usd
    return found


@dataclass(frozen=True, slots=True)
class TypeUsage:
    """The use of one accelerator type, with what it would cost on demand and reserved."""

    accelerator: str
    rows: "list[UsageRow]"
    on_demand_usd: float
    terms: "ReservationTerms"

    def prices(self) -> dict[str, Any]:
        """Returns the type and its prices as they are printed as JSON."""
        return {
            "accelerator": self.accelerator,
            "on_demand_usd_per_h": self.on_demand_usd,
            "reserved_price": self.terms.reserved_price,
        }

    def jobs(self, since: float, payer: str = "user") -> "list[CapacityJob]":
        """Returns the rows as jobs to reserve for, in order of arrival; `payer`: the field that names who pays."""
        from optimizer.planning.reserved_capacity import CapacityJob

        return [
            CapacityJob(
                (row.arrived_at - since) / SECONDS_PER_HOUR,
                row.accelerator_s / row.accelerators / SECONDS_PER_HOUR,
                row.accelerators,
                str(getattr(row, payer)),
            )
            for row in self.rows
        ]


@dataclass(frozen=True, slots=True)
class LiveUsage:
    """What the server reported: the types that have a price, and those that have none."""

    report: "UsageReport"
    types: list[TypeUsage]
    unpriced: list[str]

    def window(self) -> dict[str, Any]:
        """Returns the time that it is about, as it is printed as JSON."""
        return {name: getattr(self.report, name) for name in ("since", "until", "partial")}


def read_live_usage(
    since: str | None, accelerator: str | None, asked: AskedPrices, terms: "ReservationTerms"
) -> LiveUsage:
    """Ask the server what its jobs used. Raises UserError where none did, or none of a type that has a price.

    `terms`: those of every type; the price and the time that is paid for at least are replaced.
    """
    since_s = parse_length_option(since or _SINCE, "--since")
    report = with_client(lambda client: client.usage(since_s=since_s, accelerator=accelerator or ""))
    by_type: dict[str, list[UsageRow]] = {}
    for row in report.items:
        if row.accelerator_s > 0:
            by_type.setdefault(row.accelerator, []).append(row)
    if not by_type:
        what = f"no job held {accelerator or 'an accelerator'} in the last {since or _SINCE}"
        raise UserError(what, field="--since", fix="ask for longer, such as --since 90d")
    if asked.on_demand_usd is not None and len(by_type) > 1:
        known = ", ".join(sorted(by_type))
        raise UserError(f"one on-demand price for {known}", field="--on-demand", fix="name the --type that it is of")
    if "" in asked.reserved_usd and len(by_type) > 1:
        known = ", ".join(sorted(by_type))
        raise UserError(f"one reserved price for {known}", field="--reserved", fix="name the --type that it is of")
    span_h = (report.until - report.since) / SECONDS_PER_HOUR
    listed = {price.accelerator: price.usd_per_h for price in report.on_demand}
    found: list[TypeUsage] = []
    for name, rows in sorted(by_type.items()):
        usd = asked.on_demand_usd or listed.get(name)
        if usd is not None:
            priced = replace(terms, reserved_price=asked.part_of(name, usd), least_span_h=span_h)
            found.append(TypeUsage(name, rows, usd, priced))
    unpriced = sorted(by_type.keys() - {each.accelerator for each in found})
    if not found:
        fix = f"give --on-demand USD with --type {unpriced[0]}"
        raise UserError(f"no pool rents {', '.join(unpriced)} on demand", field="--on-demand", fix=fix)
    return LiveUsage(report, found, unpriced)


def show_usage_caveats(usage: LiveUsage) -> None:
    """Prints what the figures are about, and what they leave out."""
    report = usage.report
    span = format_length(report.until - report.since)
    running = sum(row.running for each in usage.types for row in each.rows)
    still = f"; {running} of them run still, and count as long as they have run" if running else ""
    many = sum(len(each.rows) for each in usage.types)
    show_line(f"From {many:,} jobs of the last {span}, as if the next were like it{still}.")
    if report.partial:
        warn("of your projects alone: what others run is not in it")
    for name in usage.unpriced:
        warn(f"{name} is left out: no pool rents it on demand (give --on-demand with --type {name})")


# ------------------------------------------------------------------------------------------ bills


def show_bills(usage: LiveUsage, payer: str, model: str, output: OutputFormat, header: bool) -> None:
    """Print what each project or user would be billed under both pricing models, beside what was charged."""
    from optimizer.planning.reserved_capacity import PricingModel, bill_reservation

    judged = PricingModel(model)
    bills = [(each, bill_reservation(each.jobs(usage.report.since, payer), each.terms)) for each in usage.types]
    charged: dict[str, float] = {}
    for each in usage.types:
        for row in each.rows:
            key = str(getattr(row, payer))
            charged[key] = charged.get(key, 0.0) + row.usd
    rows = _sum_bills(bills, charged)
    if output is OutputFormat.JSON:
        show_json(_bills_data(usage, bills, rows, payer))
        return
    titles = f"{payer.upper()}~ | WORK> | ON DEMAND>?2 | CHARGED> | ONE PRICE> | BY PLACE> | ALONE> | SAVES BY LEAVING>"
    show_columns(titles, [row.cells(judged) for row in rows], None, output, header=header)
    for each, found in bills:
        usd = f"{format_money(each.terms.reserved_price * each.on_demand_usd)}/h"
        show_line(
            f"{found.accelerators} x {each.accelerator} reserved for {format_length(found.span_h * SECONDS_PER_HOUR)} "
            f"at {usd}, an hour on demand being {format_money(each.on_demand_usd)}"
        )
    total, was = sum(row.one_price_usd for row in rows), sum(charged.values())
    show_line(f"Each model bills {format_money(total)} in all; charged were {format_money(was)}.")
    for each_model in PricingModel:
        leaving = sum(row.saves_by_leaving_usd(each_model) > 0 for row in rows)
        show_line(f"{each_model}: {leaving} of {len(rows)} would pay less with a reservation of their own.")
    show_usage_caveats(usage)


@dataclass(slots=True)
class _BillRow:
    """The bill of one project or user over all types, USD; work in accelerator-hours."""

    name: str
    charged_usd: float
    work_h: float = 0.0
    on_demand_h: float = 0.0
    one_price_usd: float = 0.0
    by_place_usd: float = 0.0
    alone_usd: float = 0.0

    def add(self, bill: "UserBill", on_demand_usd: float) -> None:
        self.work_h += bill.work
        self.on_demand_h += bill.on_demand_work
        self.one_price_usd += bill.one_price * on_demand_usd
        self.by_place_usd += bill.by_place * on_demand_usd
        self.alone_usd += bill.alone * on_demand_usd

    def saves_by_leaving_usd(self, model: str) -> float:
        """Returns how much cheaper it is alone; 0 for less than a cent."""
        saved = (self.one_price_usd if model == "one-price" else self.by_place_usd) - self.alone_usd
        return saved if saved >= _LEAST_USD else 0.0

    def cells(self, model: "PricingModel") -> list[str]:
        saved = self.saves_by_leaving_usd(model)
        amounts = (self.charged_usd, self.one_price_usd, self.by_place_usd, self.alone_usd)
        return [
            self.name,
            f"{self.work_h:,.1f} h",
            f"{self.on_demand_h / self.work_h:.0%}",
            *map(format_money, amounts),
            format_money(saved) if saved else "-",
        ]


def _sum_bills(bills: "Sequence[tuple[TypeUsage, ReservationBills]]", charged: dict[str, float]) -> list[_BillRow]:
    """Returns one row for each payer, the largest bill first."""
    rows = {name: _BillRow(name, usd) for name, usd in charged.items()}
    for each, found in bills:
        for bill in found.bills:
            rows[bill.user].add(bill, each.on_demand_usd)
    return sorted(rows.values(), key=lambda row: (-row.one_price_usd, row.name))


def _bills_data(
    usage: LiveUsage, bills: "Sequence[tuple[TypeUsage, ReservationBills]]", rows: list[_BillRow], payer: str
) -> dict[str, Any]:
    types = [
        {
            **each.prices(),
            "reserved": found.accelerators,
            "span_h": found.span_h,
            "total_usd": found.total * each.on_demand_usd,
        }
        for each, found in bills
    ]
    leaving = {model: [row.name for row in rows if row.saves_by_leaving_usd(model)] for model in _MODELS}
    items = [asdict(row) for row in rows]
    return {**usage.window(), "by": payer, "types": types, "items": items, "leave": leaving, "unpriced": usage.unpriced}


_MODELS = ("one-price", "by-place")


def read_bill_usage(since: str | None, said: "BillSettings") -> LiveUsage:
    """Ask the server for the use to be billed. Raises UserError."""
    from optimizer.planning.reserved_capacity import ReservationTerms

    asked = AskedPrices(said.reserved_price, said.on_demand, parse_reserved_usd(said.reserved))
    wait_h = said.longest_wait / SECONDS_PER_HOUR
    return read_live_usage(since, said.type, asked, ReservationTerms(1.0, longest_wait_h=wait_h))


def check_bill_options(
    model: str | None, by: str, of_ledger: Mapping[str, object], of_bills: Mapping[str, object]
) -> None:
    """Raise UserError for a pricing model that there is not, and for options that say nothing of what is shown."""
    if model is None:
        refuse_options(of_bills, "is of the bills of a reservation", "add --model one-price")
        return
    if model not in _MODELS:
        raise UserError(f"{model[:40]!r} is no pricing model", field="--model", fix=f"choose from {', '.join(_MODELS)}")
    if by not in ("project", "user"):
        raise UserError(f"nobody is billed by {by[:40]!r}", field="--by", fix="choose from project, user")
    refuse_options(of_ledger, "says nothing of bills", "leave it out; see --since and `type`")


#: Formats of amounts, by unit.
UNITS = {"usd": "USD", "accelerator_h": "acc-h", "fair_share_h": "share-h"}
_BUDGET_COLUMNS = "BUDGET OF~+ | EVERY | USED> | LIMIT> | LEFT> | CREDITED> | AN HOUR> | FILLED AGAIN | STATE"


def budget_line(row: "BudgetView") -> str:
    period = f" this {row.every}" if row.every.isalpha() else f" in these {row.every}" if row.every else ""
    refills = f", filled again {row.refills}" if row.refills else ""
    used = f"{format_amount(row.used)} of {row.limit:g} {UNITS[row.unit]} used"
    closed = "; no job of it starts" if row.closed else ""
    return f"budget of {row.whose or 'the cluster'}: {used}{period}{refills}{closed}"


def _budget_row(row: "BudgetView") -> list[str]:
    unit = UNITS[row.unit]
    return [
        row.whose or "cluster",
        row.every or "in all",
        f"{format_amount(row.used)} {unit}",
        f"{row.limit:g} {unit}",
        f"{format_amount(max(row.limit - row.used, 0.0))} {unit}",
        f"{row.credited:g}" if row.credited else "-",
        format_amount(row.per_h),
        dash(row.refills or ""),
        "closed" if row.closed else "open",
    ]


def show_shares(project: str | None, output: OutputFormat, *, header: bool) -> None:
    """Print the shares of one project and its users, or of all; in the table also why, and the budgets."""
    shares = with_client(lambda client: client.share(project or ""))
    show_items(
        "NAME~+ | WEIGHT> | ASKS FOR> | ENTITLED> | HOLDS> | UNITS> | USED LATELY> | OF ALL> | BORROWED~+ | LIMITS~+",
        shares,
        _share_row,
        output,
        header=header,
    )
    if output is OutputFormat.TABLE and shares and header:
        for each in shares:
            if each.because and "/" not in each.name:
                show_line(each.because)
        show_line(f"used lately: accelerator-hours, halved every {format_length(shares[0].half_life_s)}")
        for budget in with_client(lambda client: client.budgets()):
            if project in (None, budget.project):
                show_line(budget_line(budget))


def _share_row(share: "ShareView") -> list[str]:
    indented = f"  {share.name.partition('/')[2]}" if "/" in share.name else share.name
    limits = [f"{scope} {most}" for scope, most in sorted(share.limits.items())]
    return [
        indented,
        f"{share.weight:g}",
        f"{share.demand:g}",
        f"{share.entitled:.1f}",
        f"{sum(share.held.values()):g}",
        f"{share.held_units:.1f}",
        f"{share.used_h:.1f} h",
        f"{share.used_part:.0%}",
        dash(", ".join(f"{loan.accelerators:.1f} of {loan.name}" for loan in share.borrowed)),
        dash(", ".join(limits)),
    ]


_ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="one-price|by-place",
        help="Bill a reservation, with the prices of --set, at one price for all work or by where it ran.",
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
    str | None, typer.Option("--since", help="With --report or --model: this time up to now (default: 7d, or 30d).")
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
    shares: Annotated[
        bool,
        typer.Option("--shares", help="Show what projects and users are entitled to, hold, have used, and borrow."),
    ] = False,
    report: _ReportOption = False,
    html: Annotated[Path | None, typer.Option("--html", help="Also write the report as HTML to this file.")] = None,
    model: _ModelOption = None,
    since: _SinceOption = None,
    setting: SetOption = None,
    output: OutputOption = OutputFormat.TABLE,
    no_header: NoHeaderOption = False,
) -> None:
    """Show what was spent, at the prices in force at the time of use, and what on-demand would have cost."""
    header = not no_header
    of_ledger: dict[str, object] = {"--month": month, "--project": project, "--csv": as_csv}
    of_bills: dict[str, object] = {"--set": setting}
    if shares:
        others = {**of_bills, "--month": month, "--csv": as_csv, "--budgets": budgets, "--report": report}
        refuse_options(others | {"--model": model, "--since": since}, "says nothing of shares", "leave it out")
        show_shares(project, output, header=header)
        return
    if budgets:
        others = of_ledger | of_bills | {"--report": report, "--html": html, "--model": model, "--since": since}
        refuse_options(others, "says nothing of budgets", "leave it out")
        show_items(_BUDGET_COLUMNS, with_client(lambda client: client.budgets()), _budget_row, output, header=header)
        return
    if report:
        others = of_ledger | of_bills | {"--model": model, "--by": "" if by == "project" else by}
        refuse_options(others, "says nothing of the report", "leave it out; see --since")
        _show_report(since or "7d", html, output, header=header)
        return
    refuse_options({"--html": html}, "is of the report", "add --report")
    check_bill_options(model, by, of_ledger, of_bills | {"--since": since})
    if model is not None:
        from walras.cli.command_fields import BillSettings

        usage = read_bill_usage(since, read_settings(BillSettings, setting))
        show_bills(usage, by, model, output, header)
        return
    found = with_client(lambda client: client.money(by, month=month, project=project or "", limit=limit))
    _show_money_csv(found, header=header) if as_csv else _show_money(found, output, header=header)


def _show_money(found: "MoneyReport", output: OutputFormat, *, header: bool) -> None:
    data = found.model_dump(mode="json")
    rows = [_money_row(row) for row in found.items]
    if found.rest is not None:
        rows.append([f"{found.rest_of:,} others", *_money_row(found.rest)[1:]])
    show_columns(f"{found.by.upper()}~ | HELD> | USED> | IDLE> | ON DEMAND>", rows, data, output, header=header)
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
        from walras.output.html_page import write_page

        write_page(html, report_page(report), "--html")
    if show_as_json(report, output):
        return
    show_columns(_REPORT_COLUMNS, _project_rows(report), None, output, header=header)
    if report.types:
        show_line("")
        show_columns(_TYPE_COLUMNS, _type_rows(report), None, output, header=header)
    show_line("")
    for line in report_notes(report):
        show_line(line)


_REPORT_COLUMNS = (
    "PROJECT~ | SUBMITTED>?3 | ENDED>?2 | COMPLETION> | WAITING> | BOUND> | ABOVE> | PREEMPTED>?4"
    " | LOST>?5 | USD> | SAVED>"
)
_TYPE_COLUMNS = "TYPE~ | MOST> | HELD> | THERE> | USED>"


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
    from walras.output.html_page import html_document, html_paragraphs, html_section, html_table, html_text

    first, last = (datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M") for at in (report.since, report.until))
    title = f"How the cluster did, {first} to {last} UTC"
    projects = html_table([column.title for column in columns_of(_REPORT_COLUMNS)], _project_rows(report))
    uses = [column.title for column in columns_of(_TYPE_COLUMNS)]
    types = html_table(uses, _type_rows(report)) if report.types else ""
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
