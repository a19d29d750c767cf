"""`walras cloud prices`: prices of pools, what one more accelerator was worth, and what clouds ask.

`--offers` reads the catalog of what clouds rent out, `--market` asks a cloud; both need no server.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.arguments import (
    CatalogOption,
    CloudOption,
    NoHeaderOption,
    OutputOption,
    example_or_path,
    local_time,
    parse_length_option,
    refuse_options,
)
from walras.cli.session import with_client
from walras.cli.terminal_output import OutputFormat, dash, show_columns, show_items, show_json, show_line, warn
from walras.errors import UserError
from walras.units import format_count, format_length, format_money, format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from walras.client import Client
    from walras.resources.fleet import PoolView
    from walras.resources.people import EntityPriceView
    from walras.resources.prices import CertificateView, PriceView, WorthHour, WorthMean
    from walras.resources.what_if import WhatIfView
    from walras.spec.catalog import Catalog, CatalogInstance


def prices_command(
    whole: Annotated[
        bool,
        typer.Option(
            "--whole", help="Also bound what whole gangs can reach (clusters up to 64 accelerators; takes seconds)."
        ),
    ] = False,
    worth: Annotated[
        bool, typer.Option("--worth", help="Show what one more accelerator of each pool was worth, beside its rent.")
    ] = False,
    pool: Annotated[
        str | None, typer.Option("--pool", help="With --worth: only this pool, hour by hour of the week (UTC).")
    ] = None,
    usd_per_unit: Annotated[
        float | None,
        typer.Option(
            "--usd-per-unit", min=0.0, help="With --worth: USD an hour for a price of 1, in place of what the jobs say."
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="With --pool: also roll the present queue forward with one machine more.")
    ] = False,
    offers: Annotated[
        bool,
        typer.Option(
            "--offers", help="List the machines that clouds rent out, cheapest accelerator-hour first. Needs no server."
        ),
    ] = False,
    cloud: CloudOption = None,
    accelerator: Annotated[
        str | None, typer.Option("--accelerator", "-a", help="With --offers: only machines with this accelerator type.")
    ] = None,
    catalog: CatalogOption = None,
    market: Annotated[
        Path | None,
        typer.Option(
            "--market",
            metavar="CLUSTER",
            callback=example_or_path("clusters"),
            help="Show the price history of the spot pools of this cluster file, as their cloud reports it.",
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="With --worth or --market: this time up to now (default: 7d, or 24h).")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
    no_header: NoHeaderOption = False,
) -> None:
    """List the shadow price of every pool at the last solve, beside its market price."""
    if worth + offers + (market is not None) > 1:
        raise UserError("--worth, --offers and --market are three listings", field="--offers", fix="give one of them")
    of_worth = {"--pool": pool, "--usd-per-unit": usd_per_unit, "--check": check}
    of_offers = {"--cloud": cloud, "--accelerator": accelerator, "--catalog": catalog}
    refuse_options({} if worth else of_worth, "is of what one more accelerator was worth", "add --worth")
    refuse_options({} if offers else of_offers, "is of what clouds rent out", "add --offers")
    if offers or not (worth or market):
        refuse_options({"--since": since}, "is of what was", "add --worth")
    if worth or offers or market:
        refuse_options({"--whole": whole}, "is of the prices of a solve", "leave it out")
    header = not no_header
    if worth:
        _show_worth(_AskedWorth(pool, since or "7d", usd_per_unit, check), output, header=header)
    elif offers:
        _show_offers(cloud, accelerator, catalog or (), output, header=header)
    elif market is not None:
        _show_market(market, since or "24h", output, header=header)
    else:
        _show_prices(whole, output, header=header)


# ------------------------------------------------------------------------------------------------ of the last solve


def _show_prices(whole: bool, output: OutputFormat, *, header: bool) -> None:
    found = with_client(lambda client: client.prices(whole=whole))
    data = found.model_dump(mode="json")
    show_columns(
        "POOL~ | ACCELERATOR?3 | MARKET?2 | PRICE> | UNIT~ | MARKET PRICE> | FREE> | OF> | RENTED>?1 | MARGINAL>",
        [_price_row(price) for price in found.items],
        data,
        output,
        header=header,
    )
    if output is not OutputFormat.TABLE:
        return
    for entity in found.entities:
        show_line(entity_price_line(entity, found.items[0].unit if found.items else ""))
    if found.certificate is not None:
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
        return f"at the last solve ({local_time(certificate.solved_at)}) no job could use any pool: no prices"
    ran = "" if certificate.realised is None else f"; realised over the last rounds {certificate.realised:.1%} of it"
    return (
        f"solved {local_time(certificate.solved_at)} by {certificate.path}: {certificate.status}, objective "
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


# ------------------------------------------------------------------------------------------------ one more accelerator


@dataclass(frozen=True, slots=True)
class _AskedWorth:
    """What `--worth` is asked for: a pool by hour of the week, or all; the mean over which time; in which money."""

    pool: str | None
    since: str
    usd_per_unit: float | None
    check: bool


def _show_worth(asked: _AskedWorth, output: OutputFormat, *, header: bool) -> None:
    from walras.resources.prices import mean_worth

    pool = asked.pool
    if asked.check and pool is None:
        raise UserError("one more machine of which pool", field="--check", fix="add --pool")
    since_s = parse_length_option(asked.since, "--since")
    report = with_client(lambda client: client.worth(since_s=since_s, pool=pool or ""))
    means = mean_worth(report.items, by_hour_of_week=pool is not None, usd_per_unit=asked.usd_per_unit)
    checked = None if pool is None or not asked.check else with_client(lambda client: _one_more(client, pool))
    if output is OutputFormat.JSON:
        data = {"since": report.since, "until": report.until, "items": [asdict(each) for each in means]}
        show_json(data | ({"check": checked.model_dump(mode="json")} if checked is not None else {}))
        return
    if not means:
        warn(f"no price of the last {format_length(since_s)} is known: the policy has none, or the server is new")
    else:
        peaks = {} if pool is not None else _peaks(report.items, asked.usd_per_unit)
        rows = [_worth_row(each, peaks) for each in means]
        show_columns(_worth_columns(by_hour=pool is not None), rows, None, output, header=header)
        _show_worth_notes(means)
    if checked is not None:
        from walras.cli.forecast_text import show_what_if

        show_what_if(checked)


def _worth_columns(*, by_hour: bool) -> str:
    first, peak = ("HOUR", "") if by_hour else ("POOL~", " | PEAK?1")
    return f"{first} | WORTH> | RENT> | PAYS>{peak} | PRICE>?2 | MEASURED>"


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
    from walras.resources.prices import mean_worth

    found: dict[str, WorthMean] = {}
    for each in mean_worth(hours, by_hour_of_week=True, usd_per_unit=usd_per_unit):
        best = found.get(each.pool)
        if each.usd_per_h is not None and (best is None or each.usd_per_h > (best.usd_per_h or 0.0)):
            found[each.pool] = each
    return found


def _show_worth_notes(means: "list[WorthMean]") -> None:
    show_line("WORTH: what the jobs would gain from one accelerator more; PAYS: part of the time above its rent.")
    if any(each.usd_per_h is None for each in means):
        unit = next(each.unit for each in means if each.usd_per_h is None)
        show_line(f"PRICE is in the policy's unit ({unit}); nothing says what that is in USD.")
        show_line("State `value_usd_per_h` in jobs or `rules.delay_usd_per_h` in the policy, or give --usd-per-unit.")


async def _one_more(client: "Client", pool_id: str) -> "WhatIfView":
    """Roll the present queue forward with one more machine of the pool's type and market."""
    from walras.cluster import Market
    from walras.resources.what_if import MachinesMore, WhatIfRequest

    found: list[PoolView] = [each for each in await client.pools() if each.pool_id == pool_id]
    if not found:
        raise UserError(f"no pool {pool_id[:100]}", field="--pool", fix="check `walras admin list pools`")
    (pool,) = found
    more = MachinesMore(
        accelerator=pool.accelerator, accelerators=max(1, pool.accelerators), market=Market(pool.market)
    )
    return await client.what_if(WhatIfRequest(add=[more]))


# ------------------------------------------------------------------------------------------------ what clouds ask


def _show_offers(
    cloud: str | None, accelerator: str | None, catalog: "Sequence[Path]", output: OutputFormat, *, header: bool
) -> None:
    from walras.spec.accelerator_names import canonical_accelerator

    wanted = accelerator
    if accelerator is not None:
        try:
            wanted = canonical_accelerator(accelerator)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--accelerator") from None
    known = read_catalog(catalog)
    found = known.offers(cloud, wanted)
    titles = "CLOUD | INSTANCE~16 | REGION?1 | ACCELERATOR | OF> | MEMORY EACH>?2 | ON DEMAND> | SPOT>"
    show_items(
        f"{titles} | PER ACCELERATOR> | AS OF?3", found, lambda entry: _offer_row(entry, known), output, header=header
    )


def read_catalog(paths: "Iterable[Path]") -> "Catalog":
    """Returns the built-in catalog with the given files and folders; warns of each invalid row and skips it."""
    from walras.spec.catalog import load_catalog

    known = load_catalog(paths)
    for problem in known.problems:
        warn(f"walras: left out: {problem}")
    return known


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


def _show_market(cluster: Path, since: str, output: OutputFormat, *, header: bool) -> None:
    from scheduler.live.providers.live_provider import recorded_prices

    points, silent = recorded_prices(cluster, parse_length_option(since, "--since"))
    for name, problem in silent.items():
        warn(f"prices of {name} are not known: {problem}")
    rows = [[point.pool_id, local_time(point.since.isoformat()), f"{point.usd_per_h:g}"] for point in points]
    data = [{"pool": point.pool_id, "since": point.since.isoformat(), "usd_per_h": point.usd_per_h} for point in points]
    show_columns("POOL~ | SINCE | USD/H>", rows, data, output, header=header)
