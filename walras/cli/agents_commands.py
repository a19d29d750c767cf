"""`walras admin agents`: agents on what people already have, Slurm's allocations or hosts that SSH reaches.

On Slurm the server itself submits, from its own pools, so that prices, quotas and explanations are those of rented
machines; the command gives it the pools of a file. Over SSH the command starts agents from here.
"""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walras.cli.session import with_client
from walras.cli.terminal_output import Column, Listing, OutputFormat, exit_with, show_line, show_listing
from walras.errors import UserError

if TYPE_CHECKING:
    from walras.api import PoolView
    from walras.cli.ssh_agents import HostAnswer
    from walras.client import Client
    from walras.spec.cluster_file import PoolEntry
    from walras.spec.hosts_file import HostEntry, HostsFile

agents_commands = typer.Typer(
    help="Agents on machines that other systems manage: launch, look after and stop them.", no_args_is_help=True
)


class AgentEngine(StrEnum):
    """What the agents are started on."""

    SLURM = "slurm"
    SSH = "ssh"


OnOption = Annotated[AgentEngine, typer.Option("--on", help="What manages the machines: slurm or ssh.")]
EngineFileOption = Annotated[
    Path, typer.Option("--file", "-f", help="YAML: the pools (slurm), or the server and the hosts (ssh).")
]


@agents_commands.command("launch")
def agents_launch_command(
    on: OnOption,
    file: EngineFileOption,
    join_token_file: Annotated[
        Path | None, typer.Option("--join-token-file", help="With ssh: file with the token that admits machines.")
    ] = None,
) -> None:
    """Launch agents as allocations of Slurm, or on hosts over SSH. What runs already is left as it is."""
    if on is AgentEngine.SLURM:
        entries = _slurm_pools(file)
        with_client(lambda client: _take_up(client, entries))
        return
    if join_token_file is None:
        fix = "the server's data folder has it: DIR/join.token"
        raise UserError("hosts are admitted by a token", field="--join-token-file", fix=fix)
    try:
        token = join_token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{join_token_file}: {error}", field="--join-token-file") from None
    from walras.cli.ssh_agents import start_agent_over_ssh

    hosts = _hosts(file)
    _on_hosts(hosts, lambda host: start_agent_over_ssh(host, hosts.servers, f"{token}\n"))


@agents_commands.command("status")
def agents_status_command(on: OnOption, file: EngineFileOption) -> None:
    """Show what became of the agents of a file: the machines of its pools, or its hosts."""
    if on is AgentEngine.SLURM:
        _show_pools(_slurm_pools(file))
        return
    from walras.cli.ssh_agents import ask_agent_over_ssh

    _on_hosts(_hosts(file), ask_agent_over_ssh)


@agents_commands.command("stop")
def agents_stop_command(on: OnOption, file: EngineFileOption) -> None:
    """Stop the agents of a file. Pools of Slurm are drained: jobs save and move on, allocations are given back."""
    if on is AgentEngine.SLURM:
        entries = _slurm_pools(file)
        with_client(lambda client: _drain(client, entries))
        return
    from walras.cli.ssh_agents import stop_agent_over_ssh

    _on_hosts(_hosts(file), stop_agent_over_ssh)


# ------------------------------------------------------------------------------------------------ Slurm


def _slurm_pools(file: Path) -> "list[PoolEntry]":
    """Returns the pools of a file. They are Slurm's, and may be taken back, unless the file says otherwise."""
    from walras.spec.cluster_file import PoolEntry
    from walras.spec.file_model import check_model, load_mapping

    pools = load_mapping(file).get("pools")
    if not isinstance(pools, list) or not pools:
        raise UserError(f"{file}: no pools", field="pools", fix="write `pools:` and a list of them")
    entries = []
    for position, written in enumerate(pools):
        fields: Any = {"provider": "slurm", "market": "spot", **written} if isinstance(written, dict) else written
        entry = check_model(PoolEntry, fields, source=f"{file}: pools[{position}]")
        if entry.provider != "slurm":
            field = f"pools[{position}].provider"
            raise UserError(f"pool {entry.pool_id} is rented from {entry.provider}", field=field)
        entries.append(entry)
    return entries


async def _take_up(client: "Client", entries: "list[PoolEntry]") -> None:
    """Adds the pools, or gives existing ones their new terms."""
    known = {pool.pool_id for pool in await client.pools()}
    for entry in entries:
        if str(entry.pool_id) in known:
            terms = {"quota": entry.quota, "least": entry.least, "usd_per_h": entry.usd_per_h, "drained": False}
            await client.change_pool(str(entry.pool_id), **terms)
        else:
            await client.add_pool(entry.model_dump(mode="json", exclude_defaults=True))
        show_line(f"pool {entry.pool_id}: {entry.least} to {entry.quota} allocations of Slurm, as they are worth it")


async def _drain(client: "Client", entries: "list[PoolEntry]") -> None:
    for entry in entries:
        await client.change_pool(str(entry.pool_id), drained=True)
        show_line(f"pool {entry.pool_id} takes no new jobs; its allocations are given back")


def _show_pools(entries: "list[PoolEntry]") -> None:
    ours = {str(entry.pool_id) for entry in entries}
    pools = [pool for pool in with_client(lambda client: client.pools()) if pool.pool_id in ours]
    columns = [
        Column("POOL", shrinks=True),
        Column("LEAST", right=True),
        Column("QUOTA", right=True),
        Column("MACHINES", right=True),
        Column("COMING", right=True),
        Column("STATE"),
    ]
    data = [pool.model_dump(mode="json") for pool in pools]
    show_listing(Listing(columns, [_pool_row(pool) for pool in pools], data), OutputFormat.TABLE, header=True)
    for missing in sorted(ours - {pool.pool_id for pool in pools}):
        show_line(f"pool {missing} is not launched")


def _pool_row(pool: "PoolView") -> list[str]:
    state = "drained" if pool.drained else "in use"
    return [pool.pool_id, str(pool.least), str(pool.quota), str(pool.machines), str(pool.coming), state]


# ------------------------------------------------------------------------------------------------ SSH


def _hosts(file: Path) -> "HostsFile":
    from walras.spec.file_model import load_yaml
    from walras.spec.hosts_file import HostsFile

    return load_yaml(file, HostsFile)


def _on_hosts(hosts: "HostsFile", work: "Callable[[HostEntry], HostAnswer]") -> None:
    """Shows a line for each host; the exit code is 1 if one of them failed."""
    from walras.cli.ssh_agents import on_all_hosts

    answers = on_all_hosts(hosts.hosts, work)
    for answer in answers:
        show_line(f"{answer.host.node_id}: {answer.detail}")
    exit_with(0 if all(answer.is_well for answer in answers) else 1)
