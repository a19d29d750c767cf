"""What the cluster's own jobs would have cost with a reservation: `plan capacity --live` and `money --model`.

The server tells which job held how many accelerators of which type, since when and for how long; the planning is done
here. Each accelerator type is reserved by itself, at a price beside its on-demand price: the cheapest of the cluster's
pools, unless one is given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from walras.cli.arguments import parse_length_option, refuse_options
from walras.cli.session import with_client
from walras.cli.terminal_output import OutputFormat, show_columns, show_json, show_line, warn
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
    from walras.cli.command_fields import BillSettings
    from walras.resources.money import UsageReport, UsageRow

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
