"""`walras nodes`, `prices`, `money`, `offers`: machines, what their accelerators are worth, and what they cost.

`offers` reads the catalog of what clouds rent out and needs no server.

`admin pool` lists, adds, changes, drains and removes the pools of a running cluster; `reserve` and `reservations` keep
machines for a project, or for maintenance, for a time.
"""

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.arguments import (
    CatalogOption,
    CloudOption,
    NoHeaderOption,
    OutputOption,
    ProjectOption,
    WatchOption,
    parse_length_option,
)
from walras.cli.session import with_client
from walras.cli.terminal_output import (
    STATE_STYLES,
    Column,
    Listing,
    OutputFormat,
    dash,
    joined,
    safe_text,
    show_line,
    show_listing,
    warn,
    watch_listing,
)
from walras.cli.usage_commands import (
    AskedPrices,
    SinceOption,
    TypeOption,
    check_bill_options,
    parse_reserved_usd,
    read_bill_usage,
    show_bills,
    show_budgets,
)
from walras.contract import SECONDS_PER_HOUR
from walras.errors import UserError
from walras.units import format_count, format_length, format_money, format_size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from walras.api import CertificateView, MoneyReport, MoneyRow, NodeView, PriceView
    from walras.client import Client
    from walras.people import EntityPriceView
    from walras.spec.catalog import Catalog, CatalogInstance
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from walras.api import PoolView
from typing import TYPE_CHECKING, Any

from walras.cli.terminal_output import show_json

if TYPE_CHECKING:
    from walras.reservations import ReservationView


def nodes_command(
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Also show what the devices do, the tools that jobs may need, and each agent's release, protocol, boot"
            " and problem.",
        ),
    ] = False,
    watch: WatchOption = False,
    output: OutputOption = OutputFormat.TABLE,
    no_header: NoHeaderOption = False,
) -> None:
    """List the machines, their free accelerators, and the jobs they run."""
    if watch:
        with_client(lambda client: watch_listing(lambda: _listed_nodes(client, verbose), output, header=not no_header))
        return
    show_listing(with_client(lambda client: _listed_nodes(client, verbose)), output, header=not no_header)


async def _listed_nodes(client: "Client", verbose: bool) -> Listing:
    found = await client.nodes()
    columns: tuple[Column, ...] = (
        Column("NODE", shrinks=True),
        Column("ACCELERATOR"),
        Column("MARKET", spare=2),
        Column("ZONE", shrinks=True, spare=3),
        Column("STATE"),
        Column("FREE", right=True),
        Column("OF", right=True),
        Column("JOBS", shrinks=True),
        Column("HEARD", right=True, spare=1),
        Column("DETAIL", shrinks=True),
    )
    rows = [_node_row(node) for node in found]
    if any(node.machine for node in found):  # parts stand below each other: they sort by their machine's name
        columns = (Column("MACHINE", shrinks=True), *columns)
        rows = [[node.machine or node.node_id, *row] for row, node in zip(rows, found, strict=True)]
    if verbose:
        columns += (
            Column("BUSY", shrinks=True),
            Column("MEMORY", right=True),
            Column("TEMP", right=True),
            Column("POWER", right=True),
            Column("TOOLS", shrinks=True),
            Column("RELEASE"),
            Column("PROTOCOL", right=True),
            Column("BOOT"),
            Column("PROBLEM", shrinks=True),
        )
        rows = [row + _agent_cells(node) for row, node in zip(rows, found, strict=True)]
    data = [node.model_dump(mode="json") for node in found]
    return Listing(columns, rows, data, STATE_STYLES)


def _agent_cells(node: "NodeView") -> list[str]:
    from walras.device_samples import memory_text, power_text, temperature_text, utilization_text

    texts = (utilization_text, memory_text, temperature_text, power_text)
    devices = [dash(text(node.devices)) for text in texts]
    devices.append("-" if node.tools is None else dash(",".join(node.tools)))
    return [*devices, dash(node.version), dash(node.protocol), dash(node.boot), dash(node.problem)]


def _node_row(node: "NodeView") -> list[str]:
    return [
        node.node_id,
        node.accelerator + (" (emulated)" if node.emulated else ""),
        node.market,
        node.zone,
        node.state,
        str(node.free),
        str(node.accelerators),
        joined(node.jobs),
        "-" if node.last_heard_s is None else f"{format_length(node.last_heard_s)} ago",
        dash(node.detail),
    ]


def prices_command(
    whole: Annotated[
        bool,
        typer.Option(
            "--whole", help="Also bound what whole gangs can reach (clusters up to 64 accelerators; takes seconds)."
        ),
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
    no_header: NoHeaderOption = False,
) -> None:
    """List the shadow price of every pool at the last solve, beside its market price."""
    found = with_client(lambda client: client.prices(whole=whole))
    columns = (
        Column("POOL", shrinks=True),
        Column("ACCELERATOR", spare=3),
        Column("MARKET", spare=2),
        Column("PRICE", right=True),
        Column("UNIT", shrinks=True),
        Column("MARKET PRICE", right=True),
        Column("FREE", right=True),
        Column("OF", right=True),
        Column("RENTED", right=True, spare=1),
        Column("MARGINAL", right=True),
    )
    data = found.model_dump(mode="json")
    show_listing(Listing(columns, [_price_row(price) for price in found.items], data), output, header=not no_header)
    if output is OutputFormat.TABLE:
        for entity in found.entities:
            show_line(entity_price_line(entity, found.items[0].unit if found.items else ""))
    if found.certificate is not None and output is OutputFormat.TABLE:
        show_line(_certificate_line(found.certificate))
        if whole and found.certificate.status != "empty":
            show_line(_integral_bound_line(found.certificate))


def entity_price_line(entity: "EntityPriceView", unit: str) -> str:
    """Returns what a limit or a guarantee that binds is worth, in one sentence."""
    said = []
    if entity.limit > 0:
        said.append(f"one accelerator more than its limit would be worth {entity.limit:.4g} to its jobs")
    if entity.guarantee > 0:
        said.append(f"others would pay {entity.guarantee:.4g} for an accelerator that its guarantee keeps")
    return f"{entity.name}: {'; '.join(said)} ({unit})"


def _price_row(price: "PriceView") -> list[str]:
    return [
        price.pool,
        price.accelerator,
        price.market,
        f"{price.price:.4g}",
        price.unit,
        f"{format_money(price.market_usd_per_h)}/h",
        format_count(price.free),
        format_count(price.capacity),
        f"{price.rented_machines} of {price.quota_machines}" if price.quota_machines else "-",
        str(price.marginal_job) if price.marginal_job else "-",
    ]


def _certificate_line(certificate: "CertificateView") -> str:
    if certificate.status == "empty":
        return f"at the last solve ({certificate.solved_at}) no job could use any pool: no prices"
    ran = "" if certificate.realised is None else f"; realised over the last rounds {certificate.realised:.1%} of it"
    return (
        f"solved {certificate.solved_at} by {certificate.path}: {certificate.status}, objective "
        f"{certificate.objective:.6g}, bound {certificate.bound:.6g}, solve gap {certificate.gap:.2%}{ran}"
        f"{_in_money(certificate)}"
    )


def _in_money(certificate: "CertificateView") -> str:
    if certificate.usd_per_h is None:
        return ""
    earned, most = certificate.usd_per_h
    gap = (most - earned) / most if most > 0 else 0.0
    return f"; in money, jobs gain {earned:.4g} USD/h of at most {most:.4g} on these machines, gap {gap:.2%}"


def _integral_bound_line(certificate: "CertificateView") -> str:
    if certificate.integral_bound is None:
        return "no integral bound of the round: more than 64 accelerators, a policy that bounds nothing, or out of time"
    lost = abs(certificate.integral_bound - certificate.bound) / max(abs(certificate.bound), 1e-12)
    return (
        f"integral bound of the round, for whole gangs: {certificate.integral_bound:.6g}, {lost:.1%} short of the bound"
    )


def money_command(
    by: Annotated[str, typer.Option("--by", help="Sum by project, user, team, job, pool or month.")] = "project",
    month: Annotated[str, typer.Option("--month", help="Only this month (UTC), such as 2026-11.")] = "",
    project: ProjectOption = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=100_000, help="Show this many of the dearest; sum up the others.")
    ] = 1000,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="one-price|by-place",
            help="Bill a reservation instead: at one price for all work, or by where it ran. Judges who would leave.",
        ),
    ] = None,
    since: SinceOption = None,
    accelerator_type: TypeOption = None,
    reserved: Annotated[
        list[str] | None,
        typer.Option(
            "--reserved", metavar="[TYPE=]USD", help="With --model: price of a reserved accelerator-hour; repeatable."
        ),
    ] = None,
    reserved_price: Annotated[
        float | None, typer.Option("--reserved-price", help="The same as a fraction of the on-demand price.")
    ] = None,
    on_demand: Annotated[
        float | None, typer.Option("--on-demand", min=0.0, help="On-demand price per accelerator-hour, USD.")
    ] = None,
    longest_wait: Annotated[
        str, typer.Option("--longest-wait", help="With --model: jobs that would wait longer run on demand.")
    ] = "0s",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the sums as CSV, for a spreadsheet.")] = False,
    budgets: Annotated[bool, typer.Option("--budgets", help="Show the budgets that your jobs pay into.")] = False,
    output: OutputOption = OutputFormat.TABLE,
    no_header: NoHeaderOption = False,
) -> None:
    """Show what was spent, at the prices in force at the time of use, and what on-demand would have cost."""
    if budgets:
        given = {"--month": month, "--project": project, "--csv": as_csv, "--model": model, "--since": since}
        if wrong := next((option for option, value in given.items() if value), None):
            raise UserError(f"{wrong} says nothing of budgets", field=wrong, fix="leave it out")
        show_budgets(output, header=not no_header)
        return
    of_ledger = {"--month": month, "--project": project, "--csv": as_csv}
    of_bills = {"--since": since, "--type": accelerator_type, "--reserved": reserved, "--on-demand": on_demand}
    check_bill_options(model, by, of_ledger, of_bills | {"--reserved-price": reserved_price})
    if model is not None:
        asked = AskedPrices(reserved_price, on_demand, parse_reserved_usd(reserved or []))
        show_bills(read_bill_usage(since, accelerator_type, asked, longest_wait), by, model, output, not no_header)
        return
    found = with_client(lambda client: client.money(by, month=month, project=project or "", limit=limit))
    if as_csv:
        _show_money_csv(found, header=not no_header)
        return
    columns = (
        Column(by.upper(), shrinks=True),
        Column("HELD", right=True),
        Column("USED", right=True),
        Column("IDLE", right=True),
        Column("ON DEMAND", right=True),
    )
    data = found.model_dump(mode="json")
    rows = [_money_row(row) for row in found.items]
    if found.rest is not None:
        rows.append([f"{found.rest_of:,} others", *_money_row(found.rest)[1:]])
    show_listing(Listing(columns, rows, data), output, header=not no_header)
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


def offers_command(
    cloud: CloudOption = None,
    accelerator: Annotated[
        str | None, typer.Option("--accelerator", "-a", help="Only machines with this accelerator type.")
    ] = None,
    catalog: CatalogOption = None,
    market: Annotated[
        bool,
        typer.Option(
            "--market", help="Show the price history of the spot pools of --cluster instead, as their cloud reports it."
        ),
    ] = False,
    cluster: Annotated[Path | None, typer.Option("--cluster", help="With --market: a cluster file.")] = None,
    since: Annotated[str, typer.Option("--since", help="With --market: how far back the history goes.")] = "24h",
    output: OutputOption = OutputFormat.TABLE,
    no_header: NoHeaderOption = False,
) -> None:
    """List the machines that clouds rent out, cheapest accelerator-hour first. Needs no server."""
    if market or cluster is not None:
        _show_market(cluster if market else None, since, output, header=not no_header)
        return
    from walras.spec.accelerator_names import canonical_accelerator

    wanted = accelerator
    if accelerator is not None:
        try:
            wanted = canonical_accelerator(accelerator)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--accelerator") from None
    known = read_catalog(catalog or ())
    found = known.offers(cloud, wanted)
    columns = (
        Column("CLOUD"),
        Column("INSTANCE", shrinks=True, least=16),
        Column("REGION", spare=1),
        Column("ACCELERATOR"),
        Column("OF", right=True),
        Column("MEMORY EACH", right=True, spare=2),
        Column("ON DEMAND", right=True),
        Column("SPOT", right=True),
        Column("PER ACCELERATOR", right=True),
        Column("AS OF", spare=3),
    )
    rows = [_offer_row(entry, known) for entry in found]
    data = [entry.model_dump(mode="json") for entry in found]
    show_listing(Listing(columns, rows, data), output, header=not no_header)


def read_catalog(paths: "Iterable[Path]") -> "Catalog":
    """Returns the built-in catalog with the given files and folders; warns of each invalid row and skips it."""
    from walras.spec.catalog import load_catalog

    known = load_catalog(paths)
    for problem in known.problems:
        warn(f"walras: left out: {problem}")
    return known


def _show_market(cluster: Path | None, since: str, output: OutputFormat, *, header: bool) -> None:
    if cluster is None:
        raise UserError("prices of a market are those of a cluster's pools", fix="give both --market and --cluster")
    from scheduler.live.providers.provider_registry import recorded_prices

    points = recorded_prices(cluster, parse_length_option(since, "--since"))
    columns = (Column("POOL", shrinks=True), Column("SINCE"), Column("USD/H", right=True))
    rows = [[point.pool_id, point.since.isoformat(timespec="seconds"), f"{point.usd_per_h:g}"] for point in points]
    data = [{"pool": point.pool_id, "since": point.since.isoformat(), "usd_per_h": point.usd_per_h} for point in points]
    show_listing(Listing(columns, rows, data), output, header=header)


def _offer_row(entry: "CatalogInstance", known: "Catalog") -> list[str]:
    facts = known.sheet(entry.accelerator)
    cheapest = entry.usd_per_accelerator_h
    return [
        entry.cloud,
        entry.instance,
        entry.region,
        entry.accelerator,
        str(entry.accelerators),
        "-" if facts is None else format_size(facts.memory),
        _hourly_price(entry.on_demand_usd_per_h),
        _hourly_price(entry.spot_usd_per_h),
        "-" if cheapest == float("inf") else _hourly_price(cheapest),
        entry.as_of.isoformat(),
    ]


def _hourly_price(usd_per_h: float | None) -> str:
    return "-" if usd_per_h is None else f"{format_money(usd_per_h)}/h"


pool_commands = typer.Typer(
    help="The pools of a running cluster: list, add, change, drain and remove them.", no_args_is_help=True
)

PoolArgument = Annotated[str, typer.Argument(metavar="POOL", help="Id of a pool, such as a100x8/spot/eu-1a.")]


@pool_commands.command("list")
def pool_list_command(output: OutputOption = OutputFormat.TABLE, no_header: NoHeaderOption = False) -> None:
    """List the pools: price and quota, machines that are here and coming, and the jobs there."""
    pools = with_client(lambda client: client.pools())
    columns = [
        Column("POOL", shrinks=True),
        Column("ACCELERATORS"),
        Column("USD/H", right=True),
        Column("QUOTA", right=True),
        Column("MACHINES", right=True),
        Column("COMING", right=True),
        Column("JOBS", shrinks=True),
        Column("STATE"),
        Column("HAS", shrinks=True, spare=1),
    ]
    data = [pool.model_dump(mode="json") for pool in pools]
    show_listing(Listing(columns, [_pool_row(pool) for pool in pools], data), output, header=not no_header)


def _pool_row(pool: "PoolView") -> list[str]:
    return [
        pool.pool_id,
        f"{pool.accelerators} {pool.accelerator}",
        f"{pool.usd_per_h:g}",
        str(pool.quota),
        str(pool.machines),
        str(pool.coming),
        dash(",".join(map(str, pool.jobs))),
        "drained" if pool.drained else "in use",
        dash(",".join(pool.tools or ())),
    ]


@pool_commands.command("add")
def pool_add_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML: one pool, as it would stand in a cluster file.")],
) -> None:
    """Add the pool of a YAML file: the fields of one entry of `pools` in a cluster file."""
    from walras.spec.cluster_file import PoolEntry
    from walras.spec.file_model import check_model, load_mapping

    written = dict(load_mapping(file))
    check_model(PoolEntry, written, source=str(file))
    added = with_client(lambda client: client.add_pool(written))
    show_line(f"pool {added.pool_id} is there")


@pool_commands.command("set")
def pool_set_command(
    pool: PoolArgument,
    quota: Annotated[
        int | None, typer.Option("--quota", min=0, max=100_000, help="Machines that may be rented at most.")
    ] = None,
    price: Annotated[
        float | None, typer.Option("--price", min=0.0, max=1e6, help="Price of one machine, USD per hour.")
    ] = None,
) -> None:
    """Change the quota or the price of a pool."""
    if quota is None and price is None:
        raise UserError("nothing is to be changed", field="--quota / --price", fix="give at least one of them")
    now = with_client(lambda client: client.change_pool(pool, quota=quota, usd_per_h=price))
    show_line(f"pool {now.pool_id}: quota {now.quota}, {now.usd_per_h:g} USD/h")


@pool_commands.command("drain")
def pool_drain_command(
    pool: PoolArgument,
    off: Annotated[bool, typer.Option("--off", help="End the drain: use the pool again.")] = False,
) -> None:
    """Drain a pool: no new jobs and nothing rented there; what cannot be saved runs to its end."""
    now = with_client(lambda client: client.change_pool(pool, drained=not off))
    if off:
        show_line(f"pool {now.pool_id} takes jobs again")
        return
    left = f"; {now.machines} machines and {len(now.jobs)} jobs are there still" if now.machines else ""
    show_line(f"pool {now.pool_id} takes no new jobs{left}")


@pool_commands.command("remove")
def pool_remove_command(pool: PoolArgument) -> None:
    """Remove a pool that has no machines and no jobs; names the waiting jobs that only it could run."""
    removed = with_client(lambda client: client.remove_pool(pool))
    show_line(f"pool {removed.pool_id} is gone")
    if removed.stranded_jobs:
        warn(f"no other pool can run job {', '.join(map(str, removed.stranded_jobs))}")


def reserve_command(
    accelerators: Annotated[
        str | None, typer.Argument(metavar="TYPE:N", help="Accelerators, such as a100:8; whole machines are taken.")
    ] = None,
    node: Annotated[
        list[str] | None, typer.Option("--node", metavar="NAME", help="This machine, in place of TYPE:N; repeatable.")
    ] = None,
    start: Annotated[
        str, typer.Option("--from", metavar="WHEN", help="Its beginning: 2026-12-01T08:00:00Z, or +2h.")
    ] = "+0s",
    end: Annotated[str | None, typer.Option("--until", metavar="WHEN", help="Its end.")] = None,
    project: Annotated[
        str | None, typer.Option("--project", "-p", metavar="NAME", help="Only jobs of this project run there.")
    ] = None,
    maintenance: Annotated[
        bool, typer.Option("--maintenance", help="No job runs there: the machines are empty when it begins.")
    ] = False,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Shown to those who wait.")] = "",
    cancel: Annotated[int | None, typer.Option("--cancel", metavar="ID", min=1, help="Cancel this one.")] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Reserve machines for a project, or for maintenance; jobs are planned around that."""
    if cancel is not None:
        if accelerators or node or end or project or maintenance:
            raise UserError("a cancelled reservation takes nothing else", field="--cancel", fix="give its ID alone")
        found = with_client(lambda client: client.cancel_reservation(cancel))
    else:
        body = _asked_reservation(accelerators, node or [], start, end) | {"maintenance": maintenance, "reason": reason}
        if maintenance == bool(project):
            raise UserError("for whom is it", field="--project", fix="give either --project or --maintenance")
        found = with_client(lambda client: client.reserve(body | ({"project": project} if project else {})))
    if output is OutputFormat.JSON:
        show_json(found.model_dump(mode="json"))
        return
    whom = "maintenance" if found.maintenance else f"project {found.project}"
    what = f"{found.reserved} accelerators on {', '.join(found.nodes)}"
    ended = "is cancelled" if found.state == "cancelled" else f"from {found.starts} until {found.ends}"
    show_line(f"reservation {found.id} for {whom}: {what}, {ended}")
    for note in found.notes:
        warn(note)


def _asked_reservation(accelerators: str | None, nodes: list[str], start: str, end: str | None) -> dict[str, Any]:
    """Returns the fields of the request that say what and when. Raises UserError."""
    if (accelerators is None) is not bool(nodes):
        raise UserError("what is to be reserved", field="TYPE:N", fix="give either TYPE:N, or --node NAME")
    from walras.spec.field_types import parse_instant

    if end is None:
        raise UserError("a reservation has an end", field="--until", fix="add --until, such as --until +8h")
    for option, text in (("--from", start), ("--until", end)):
        try:
            parse_instant(text, now=0.0)  # the server knows its now; here only the writing is looked at
        except ValueError as error:
            raise UserError(str(error), field=option) from None
    body: dict[str, Any] = {"starts": start, "ends": end}
    if accelerators is None:
        return body | {"nodes": nodes}
    kind, colon, count = accelerators.rpartition(":")
    if not colon or not kind or not count.isascii() or not count.isdecimal() or not int(count[:9]):
        raise UserError(f"{accelerators[:60]!r} says no number of a type", field="TYPE:N", fix="such as a100:8")
    return body | {"accelerator": kind, "accelerators": int(count[:9])}


def reservations_command(
    everything: Annotated[bool, typer.Option("--all", help="Also the newest of those that are over.")] = False,
    output: OutputOption = OutputFormat.TABLE,
    no_header: NoHeaderOption = False,
) -> None:
    """List reservations of machines: for whom, when, on which machines, and what stands in their way."""
    found = with_client(lambda client: client.reservations(everything=everything))
    columns = [
        Column("ID", right=True),
        Column("FOR", shrinks=True),
        Column("STATE"),
        Column("FROM"),
        Column("UNTIL"),
        Column("ACCELERATORS", right=True),
        Column("MACHINES", shrinks=True),
        Column("NOTES", shrinks=True),
    ]
    data = [each.model_dump(mode="json") for each in found]
    show_listing(Listing(columns, [_reservation_row(each) for each in found], data), output, header=not no_header)


def _reservation_row(found: "ReservationView") -> list[str]:
    notes = [*([found.reason] if found.reason else []), *found.notes]
    return [
        str(found.id),
        "maintenance" if found.maintenance else found.project,
        found.state,
        found.starts,
        found.ends,
        str(found.reserved),
        ",".join(found.nodes),
        dash("; ".join(notes)),
    ]
