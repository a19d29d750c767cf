"""`walras admin pool`: the pools of a running cluster, listed, added, changed, drained and removed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.arguments import NoHeaderOption, OutputOption
from walras.cli.session import with_client
from walras.cli.terminal_output import Column, Listing, OutputFormat, dash, show_line, show_listing, warn
from walras.errors import UserError

if TYPE_CHECKING:
    from walras.api import PoolView

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
    show_listing(Listing(columns, [_row(pool) for pool in pools], data), output, header=not no_header)


def _row(pool: "PoolView") -> list[str]:
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
