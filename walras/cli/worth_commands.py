"""`walras worth`: what one more accelerator of a pool was worth, by hour of the week, beside its rent."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.arguments import NoHeaderOption, OutputOption, parse_length_option
from walras.cli.session import with_client
from walras.cli.terminal_output import Column, Listing, OutputFormat, dash, show_json, show_line, show_listing, warn
from walras.errors import UserError
from walras.units import format_length, format_money

if TYPE_CHECKING:
    from walras.accelerator_worth import WorthHour, WorthMean
    from walras.api import PoolView
    from walras.client import Client
    from walras.what_if import WhatIfView


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
        columns = _columns(by_hour=pool is not None)
        peaks = {} if pool is not None else _peaks(report.items, usd_per_unit)
        rows = [_row(each, peaks) for each in means]
        show_listing(Listing(columns, rows, None), output, header=not no_header)
        _show_notes(means)
    if checked is not None:
        from walras.cli.what_if_text import show_what_if

        show_what_if(checked)


def _columns(*, by_hour: bool) -> list[Column]:
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


def _row(mean: "WorthMean", peaks: "dict[str, WorthMean]") -> list[str]:
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
