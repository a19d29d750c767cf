"""What was used, and what that costs: budgets, the worth of accelerators, and the bills of a reservation.

What the cluster's own jobs would have cost with a reservation: `plan capacity --live` and `money --model`.

The server tells which job held how many accelerators of which type, since when and for how long; the planning is done
here. Each accelerator type is reserved by itself, at a price beside its on-demand price: the cheapest of the cluster's
pools, unless one is given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walras.cli.arguments import parse_length_option
from walras.cli.session import with_client
from walras.cli.terminal_output import Column, Listing, OutputFormat, show_json, show_line, show_listing, warn
from walras.contract import SECONDS_PER_HOUR
from walras.errors import UserError
from walras.units import format_length, format_money

if TYPE_CHECKING:
    from optimizer.planning.reserved_capacity import (
        CapacityJob,
        PricingModel,
        ReservationBills,
        ReservationTerms,
        UserBill,
    )
    from walras.usage import UsageReport, UsageRow
from typing import TYPE_CHECKING

from walras.cli.arguments import NoHeaderOption, OutputOption
from walras.cli.terminal_output import dash

if TYPE_CHECKING:
    from walras.budgets import BudgetView
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from walras.accelerator_worth import WorthHour, WorthMean
    from walras.api import PoolView
    from walras.client import Client
    from walras.what_if import WhatIfView

SinceOption = Annotated[
    str | None, typer.Option("--since", help="What the jobs of this time up to now used, such as 30d (the default).")
]
TypeOption = Annotated[str | None, typer.Option("--type", help="Only this accelerator type.")]

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
    columns = [
        Column(payer.upper(), shrinks=True),
        Column("WORK", right=True),
        Column("ON DEMAND", right=True, spare=2),
    ]
    columns += [Column(name, right=True) for name in ("CHARGED", "ONE PRICE", "BY PLACE", "ALONE")]
    columns.append(Column("SAVES BY LEAVING", right=True))
    show_listing(Listing(columns, [row.cells(judged) for row in rows], None), output, header=header)
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
    report = usage.report
    types = [
        {
            "accelerator": each.accelerator,
            "on_demand_usd_per_h": each.on_demand_usd,
            "reserved_price": each.terms.reserved_price,
            "reserved": found.accelerators,
            "span_h": found.span_h,
            "total_usd": found.total * each.on_demand_usd,
        }
        for each, found in bills
    ]
    leaving = {model: [row.name for row in rows if row.saves_by_leaving_usd(model)] for model in _MODELS}
    items = [asdict(row) for row in rows]
    window = {"since": report.since, "until": report.until, "partial": report.partial}
    return {**window, "by": payer, "types": types, "items": items, "leave": leaving, "unpriced": usage.unpriced}


_MODELS = ("one-price", "by-place")


def read_bill_usage(since: str | None, accelerator: str | None, asked: AskedPrices, longest_wait: str) -> LiveUsage:
    """Ask the server for the use to be billed. Raises UserError.

    `longest_wait`: who would wait longer for reserved accelerators runs on demand.
    """
    from optimizer.planning.reserved_capacity import ReservationTerms

    wait_h = parse_length_option(longest_wait, "--longest-wait") / SECONDS_PER_HOUR
    return read_live_usage(since, accelerator, asked, ReservationTerms(1.0, longest_wait_h=wait_h))


def check_bill_options(
    model: str | None, by: str, of_ledger: Mapping[str, object], of_bills: Mapping[str, object]
) -> None:
    """Raise UserError for a pricing model that there is not, and for options that say nothing of what is shown."""
    if model is None:
        for option, given in of_bills.items():
            if given is not None:
                raise UserError(f"{option} is of the bills of a reservation", field=option, fix="add --model one-price")
        return
    if model not in _MODELS:
        raise UserError(f"{model[:40]!r} is no pricing model", field="--model", fix=f"choose from {', '.join(_MODELS)}")
    if by not in ("project", "user"):
        raise UserError(f"nobody is billed by {by[:40]!r}", field="--by", fix="choose from project, user")
    for option, given in of_ledger.items():
        if given:
            raise UserError(f"{option} says nothing of bills", field=option, fix="leave it out; see --since, --type")


#: Formats of amounts, by unit.
_UNITS = {"usd": "USD", "accelerator_h": "acc-h", "fair_share_h": "share-h"}


def credit_command(
    project: Annotated[
        str | None, typer.Option("--project", "-p", metavar="NAME", help="The project whose budget it is for.")
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", "-u", metavar="NAME", help="The user whose budget it is for.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="NAME", help="The group whose budget it is for.")
    ] = None,
    usd: Annotated[float | None, typer.Option("--usd", help="USD to add.")] = None,
    accelerator_hours: Annotated[
        float | None, typer.Option("--accelerator-hours", help="Accelerator-hours to add.")
    ] = None,
    fair_share_hours: Annotated[
        float | None, typer.Option("--fair-share-hours", help="Fair-share hours to add.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Kept with it.")] = "",
    show: Annotated[bool, typer.Option("--list", help="List what was added, newest first.")] = False,
    output: OutputOption = OutputFormat.TABLE,
    no_header: NoHeaderOption = False,
) -> None:
    """Add to a budget of a project, user or group: pre-paid use."""
    amounts = {"usd": usd, "accelerator_h": accelerator_hours, "fair_share_h": fair_share_hours}
    given = {name: amount for name, amount in amounts.items() if amount is not None}
    if show:
        if given or project or user or group or reason:
            raise UserError("a list takes nothing else", field="--list", fix="leave the other options out")
        _show_credits(output, header=not no_header)
        return
    if len(given) != 1:
        fix = "give one of --usd, --accelerator-hours and --fair-share-hours"
        raise UserError("how much is added", field="--usd", fix=fix)
    whom: dict[str, Any] = {"project": project, "user": user, "group": group}
    body = given | {name: value for name, value in whom.items() if value} | {"reason": reason}
    found = with_client(lambda client: client.add_credit(body))
    if output is OutputFormat.JSON:
        show_json(found.model_dump(mode="json"))
        return
    show_line(f"credit {found.id}: {found.amount:g} {_UNITS[found.unit]} for {found.whose or 'the cluster'}")


def _show_credits(output: OutputFormat, *, header: bool) -> None:
    found = with_client(lambda client: client.credits())
    columns = [Column("ID", right=True), Column("AT"), Column("WHOSE", shrinks=True), Column("ADDED", right=True)]
    columns += [Column("BY", shrinks=True), Column("REASON", shrinks=True)]
    rows = [
        [str(row.id), row.at, row.whose or "cluster", f"{row.amount:g} {_UNITS[row.unit]}", row.created_by,
         dash(row.reason)]
        for row in found
    ]  # fmt: skip
    data = [row.model_dump(mode="json") for row in found]
    show_listing(Listing(columns, rows, data), output, header=header)


def show_budgets(output: OutputFormat, *, header: bool) -> None:
    """Print the budgets that the caller may see."""
    found = with_client(lambda client: client.budgets())
    columns = [Column("BUDGET OF", shrinks=True), Column("EVERY")]
    columns += [Column(name, right=True) for name in ("USED", "LIMIT", "LEFT", "CREDITED", "AN HOUR")]
    columns += [Column("FILLED AGAIN"), Column("STATE")]
    data = [row.model_dump(mode="json") for row in found]
    show_listing(Listing(columns, [_budget_row(row) for row in found], data), output, header=header)


def budget_line(row: "BudgetView") -> str:
    """Returns a budget in a sentence."""
    period = f" this {row.every}" if row.every.isalpha() else f" in these {row.every}" if row.every else ""
    refills = f", filled again {row.refills}" if row.refills else ""
    unit = _UNITS[row.unit]
    used, closed = f"{row.used:.2f} of {row.limit:g} {unit} used", "; no job of it starts" if row.closed else ""
    return f"budget of {row.whose or 'the cluster'}: {used}{period}{refills}{closed}"


def _budget_row(row: "BudgetView") -> list[str]:
    unit = _UNITS[row.unit]
    return [
        row.whose or "cluster",
        row.every or "in all",
        f"{row.used:.2f} {unit}",
        f"{row.limit:g} {unit}",
        f"{row.limit - row.used:.2f} {unit}",
        f"{row.credited:g}" if row.credited else "-",
        f"{row.per_h:.2f}",
        dash(row.refills or ""),
        "closed" if row.closed else "open",
    ]


def worth_command(
    pool: Annotated[str | None, typer.Option("--pool", help="Only this pool, hour by hour of the week (UTC).")] = None,
    since: Annotated[str, typer.Option("--since", help="Mean over this time up to now.")] = "7d",
    usd_per_unit: Annotated[
        float | None,
        typer.Option(
            "--usd-per-unit",
            min=0.0,
            help="USD an hour for a price of 1, in place of what the jobs say.",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="With --pool: also roll the present queue forward with one machine more."),
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
    no_header: NoHeaderOption = False,
) -> None:
    """Show what one more accelerator of each pool was worth, beside its rent."""
    from walras.accelerator_worth import mean_worth

    if check and pool is None:
        raise UserError("one more machine of which pool", field="--check", fix="add --pool")
    since_s = parse_length_option(since, "--since")
    report = with_client(lambda client: client.worth(since_s=since_s, pool=pool or ""))
    means = mean_worth(report.items, by_hour_of_week=pool is not None, usd_per_unit=usd_per_unit)
    checked = None if pool is None or not check else with_client(lambda client: _one_more(client, pool))
    if output is OutputFormat.JSON:
        data = {"since": report.since, "until": report.until, "items": [asdict(each) for each in means]}
        show_json(data | ({"check": checked.model_dump(mode="json")} if checked is not None else {}))
        return
    if not means:
        warn(f"no price of the last {format_length(since_s)} is known: the policy has none, or the server is new")
    else:
        columns = _worth_columns(by_hour=pool is not None)
        peaks = {} if pool is not None else _peaks(report.items, usd_per_unit)
        rows = [_worth_row(each, peaks) for each in means]
        show_listing(Listing(columns, rows, None), output, header=not no_header)
        _show_notes(means)
    if checked is not None:
        from walras.cli.what_if_text import show_what_if

        show_what_if(checked)


def _worth_columns(*, by_hour: bool) -> list[Column]:
    first = [Column("HOUR")] if by_hour else [Column("POOL", shrinks=True)]
    return [
        *first,
        Column("WORTH", right=True),
        Column("RENT", right=True),
        Column("PAYS", right=True),
        *([] if by_hour else [Column("PEAK", spare=1)]),
        Column("PRICE", right=True, spare=2),
        Column("MEASURED", right=True),
    ]


def _worth_row(mean: "WorthMean", peaks: "dict[str, WorthMean]") -> list[str]:
    worth = None if mean.usd_per_h is None else f"{format_money(mean.usd_per_h)}/h"
    peak = peaks.get(mean.pool)
    at_peak = "" if peak is None or not peak.usd_per_h else f"{peak.when}h {format_money(peak.usd_per_h)}/h"
    return [
        mean.when + "h" if mean.when else mean.pool,
        dash(worth),
        f"{format_money(mean.rent_usd_per_h)}/h",
        "-" if worth is None else f"{mean.pays:.0%}",
        *([] if mean.when else [dash(at_peak)]),
        f"{mean.price:.4g}",
        f"{mean.hours:,.1f} h",
    ]


def _peaks(hours: "list[WorthHour]", usd_per_unit: float | None) -> "dict[str, WorthMean]":
    """Returns by pool the hour of the week in which one more was worth most."""
    from walras.accelerator_worth import mean_worth

    found: dict[str, WorthMean] = {}
    for each in mean_worth(hours, by_hour_of_week=True, usd_per_unit=usd_per_unit):
        best = found.get(each.pool)
        if each.usd_per_h is not None and (best is None or each.usd_per_h > (best.usd_per_h or 0.0)):
            found[each.pool] = each
    return found


def _show_notes(means: "list[WorthMean]") -> None:
    show_line("WORTH: what the jobs would gain from one accelerator more; PAYS: part of the time above its rent.")
    if any(each.usd_per_h is None for each in means):
        unit = next(each.unit for each in means if each.usd_per_h is None)
        show_line(f"PRICE is in the policy's unit ({unit}); nothing says what that is in USD.")
        show_line("State `value_usd_per_h` in jobs or `rules.delay_usd_per_h` in the policy, or give --usd-per-unit.")


async def _one_more(client: "Client", pool_id: str) -> "WhatIfView":
    """Roll the present queue forward with one more machine of the pool's type and market."""
    from walras.cluster import Market
    from walras.what_if import MachinesMore, WhatIfRequest

    found: list[PoolView] = [each for each in await client.pools() if each.pool_id == pool_id]
    if not found:
        raise UserError(f"no pool {pool_id[:100]}", field="--pool", fix="check `walras admin pool list`")
    (pool,) = found
    more = MachinesMore(
        accelerator=pool.accelerator, accelerators=max(1, pool.accelerators), market=Market(pool.market)
    )
    return await client.what_if(WhatIfRequest(add=[more]))
