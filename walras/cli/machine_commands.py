"""`walras nodes`: the machines, what is free on them, and what runs there; `walras top`: the same and the queue, live.

`walras admin agents` starts agents on what people already have, Slurm's allocations or hosts that SSH reaches. On Slurm
the server itself submits, from its own pools, so that prices, quotas and explanations are those of rented machines; the
command gives it the pools of a file. Over SSH the command starts agents from here.

Nothing is copied over SSH but the join token, which travels as standard input and never on a command line. Everything
may be repeated: a host whose agent runs is left as it is. OpenSSH's client does what it is good at (keys, jump hosts,
known hosts); no password is ever asked for.
"""

import asyncio
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walras.cli.arguments import NoHeaderOption, OutputOption, WatchOption
from walras.cli.session import with_client
from walras.cli.terminal_output import (
    STATE_STYLES,
    Listing,
    OutputFormat,
    columns_of,
    dash,
    exit_with,
    joined,
    show_columns,
    show_line,
    show_listing,
    watch_listing,
)
from walras.errors import Conflict, NotFound, UserError
from walras.server_access import ServerAccess, server_access
from walras.units import format_length

if TYPE_CHECKING:
    from walras.client import Client
    from walras.resources.fleet import NodeView, PoolView
    from walras.spec.cluster_file import HostEntry, HostsFile, PoolEntry


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
    titles = "NODE~ | ACCELERATOR | MARKET?2 | ZONE~?3 | STATE | FREE> | OF> | JOBS~ | HEARD>?1 | DETAIL?9/"
    rows = [_node_row(node) for node in found]
    if any(node.machine for node in found):  # parts stand below each other: they sort by their machine's name
        titles = f"MACHINE~ | {titles}"
        rows = [[node.machine or node.node_id, *row] for row, node in zip(rows, found, strict=True)]
    if verbose:
        titles += " | BUSY~ | MEMORY> | TEMP> | POWER> | TOOLS~ | RELEASE | PROTOCOL> | BOOT | PROBLEM~"
        rows = [row + _agent_cells(node) for row, node in zip(rows, found, strict=True)]
    return Listing(columns_of(titles), rows, [node.model_dump(mode="json") for node in found], STATE_STYLES)


def _agent_cells(node: "NodeView") -> list[str]:
    from walras.machines.machine_facts import memory_text, power_text, temperature_text, utilization_text

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


agents_commands = typer.Typer(
    help="Agents on machines that other systems manage: launch, look after and stop them.", no_args_is_help=True
)


class AgentEngine(StrEnum):
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
    hosts = _hosts(file)
    _on_hosts(hosts, lambda host: start_agent_over_ssh(host, hosts.servers, f"{token}\n"))


@agents_commands.command("status")
def agents_status_command(on: OnOption, file: EngineFileOption) -> None:
    """Show which agents of a file run: the machines of its pools, or its hosts."""
    if on is AgentEngine.SLURM:
        _show_pools(_slurm_pools(file))
        return
    _on_hosts(_hosts(file), ask_agent_over_ssh)


@agents_commands.command("stop")
def agents_stop_command(on: OnOption, file: EngineFileOption) -> None:
    """Stop the agents of a file. Pools of Slurm are drained: jobs save and move on, allocations are given back."""
    if on is AgentEngine.SLURM:
        entries = _slurm_pools(file)
        with_client(lambda client: _drain(client, entries))
        return
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
        pool_id = str(entry.pool_id)
        if pool_id not in known:
            try:
                await client.add_pool(entry.model_dump(mode="json", exclude_defaults=True))
            except Conflict:  # perhaps it was added meanwhile
                known = {pool.pool_id for pool in await client.pools()}
                if pool_id not in known:
                    raise
        if pool_id in known:
            terms = {"quota": entry.quota, "least": entry.least, "usd_per_h": entry.usd_per_h, "drained": False}
            await client.change_pool(pool_id, **terms)
        show_line(f"pool {entry.pool_id}: {entry.least} to {entry.quota} allocations of Slurm, as they are worth it")


async def _drain(client: "Client", entries: "list[PoolEntry]") -> None:
    for entry in entries:
        await client.change_pool(str(entry.pool_id), drained=True)
        show_line(f"pool {entry.pool_id} takes no new jobs; its allocations are given back")


def _show_pools(entries: "list[PoolEntry]") -> None:
    ours = {str(entry.pool_id) for entry in entries}
    pools = [pool for pool in with_client(lambda client: client.pools()) if pool.pool_id in ours]
    data = [pool.model_dump(mode="json") for pool in pools]
    show_columns(
        "POOL~ | LEAST> | QUOTA> | MACHINES> | COMING> | STATE~+",
        [_pool_row(pool) for pool in pools],
        data,
        OutputFormat.TABLE,
        header=True,
    )
    for missing in sorted(ours - {pool.pool_id for pool in pools}):
        show_line(f"pool {missing} is not launched")


def _pool_row(pool: "PoolView") -> list[str]:
    return [pool.pool_id, str(pool.least), str(pool.quota), str(pool.machines), str(pool.coming), pool.standing]


# ------------------------------------------------------------------------------------------------ SSH


def _hosts(file: Path) -> "HostsFile":
    from walras.spec.cluster_file import HostsFile
    from walras.spec.file_model import load_yaml

    return load_yaml(file, HostsFile)


def _on_hosts(hosts: "HostsFile", work: "Callable[[HostEntry], HostAnswer]") -> None:
    """Shows a line for each host; the exit code is 1 if one of them failed."""
    answers = on_all_hosts(hosts.hosts, work)
    for answer in answers:
        show_line(f"{answer.host.node_id}: {answer.detail}")
    exit_with(0 if all(answer.is_well for answer in answers) else 1)


_CONNECT_S = 10
#: Seconds for connecting, starting, and checking that the agent stays up.
_CALL_S = 60.0
_AT_ONCE = 16
_MOST_BYTES = 4096

_STATE = """set -eu
umask 077
state={state}
"""
#: Shell text by which what starts or stops the agent of a host takes turns. The agent itself must not inherit it.
_ALONE = """mkdir -p "$state"
exec 9>"$state/launch.lock"
if command -v flock >/dev/null && ! flock -w 30 9; then
  echo "another command starts or stops this agent"; exit 1
fi
"""
#: Shell text that sets `pid` to that of the running agent, or to nothing.
_LOOK = """pid=$(cat "$state/agent.pid" 2>/dev/null || true)
case "$pid" in ''|*[!0-9]*) pid= ;; esac
if [ -n "$pid" ] && ! tr '\\0' '\\n' <"/proc/$pid/cmdline" 2>/dev/null | grep -qxF "$state/agent"; then pid=; fi
"""
_START = (
    _ALONE
    + _LOOK
    + """if [ -n "$pid" ]; then cat >/dev/null; echo "running $pid"; exit 0; fi
mkdir -p "$state"
cat >"$state/join.token"
nohup setsid {line} --state "$state/agent" --join-token-file "$state/join.token" \\
  >>"$state/agent.log" 2>&1 </dev/null 9>&- &
pid=$!
echo "$pid" >"$state/agent.pid"
i=0
while [ $i -lt 20 ]; do
  [ -s "$state/agent/credential.json" ] && break
  kill -0 "$pid" 2>/dev/null || {{ echo "ended: $(tail -n 1 "$state/agent.log" | cut -c1-300)"; exit 1; }}
  sleep 0.5
  i=$((i + 1))
done
echo "started $pid"
"""
)
_STATUS = (
    _LOOK
    + """if [ -n "$pid" ]; then echo "running $pid"; else echo stopped; fi
"""
)
_STOP = (
    """[ -d "$state" ] || {{ echo stopped; exit 0; }}
"""
    + _ALONE
    + _LOOK
    + """if [ -z "$pid" ]; then echo stopped; exit 0; fi
kill -TERM "$pid"
i=0
while [ $i -lt 40 ] && kill -0 "$pid" 2>/dev/null; do sleep 0.25; i=$((i + 1)); done
kill -0 "$pid" 2>/dev/null && {{ echo "still running $pid"; exit 1; }}
rm -f "$state/agent.pid"
echo "stopped $pid"
"""
)


@dataclass(frozen=True, slots=True)
class HostAnswer:
    host: "HostEntry"
    #: Whether the host is now as was asked.
    is_well: bool
    #: In the host's words: `running 4711`, or what went wrong.
    detail: str


def start_agent_over_ssh(host: "HostEntry", servers: Sequence[str], join_token: str) -> HostAnswer:
    """Start the agent of a host unless it runs."""
    line = [host.walras, "agent"]
    for server in servers:
        line += ["--server", server]
    line += ["--node", host.node_id, "--shape", host.shape, "--zone", host.zone]
    if host.accelerator is not None:
        line += ["--accelerator", host.accelerator]
    if host.accelerators is not None:
        line += ["--accelerators", str(host.accelerators)]
    if host.emulated:
        line.append("--emulated")
    return _run(host, _START.format(line=shlex.join(line)), join_token)


def ask_agent_over_ssh(host: "HostEntry") -> HostAnswer:
    """Returns whether the agent of a host runs, in the host's words."""
    return _run(host, _STATUS.format())


def stop_agent_over_ssh(host: "HostEntry") -> HostAnswer:
    """Stop the agent of a host. Jobs that run there go on until their lease ends."""
    return _run(host, _STOP.format())


def on_all_hosts(hosts: "Sequence[HostEntry]", work: "Callable[[HostEntry], HostAnswer]") -> list[HostAnswer]:
    """Runs `work` on all hosts, several at a time; the answers are in the order of the hosts."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(work, hosts))


def _run(host: "HostEntry", script: str, stdin: str = "") -> HostAnswer:
    where = host.state if host.state.startswith("/") else f"$HOME/{host.state.removeprefix('~/')}"
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_S}", "-T"]
    if host.port is not None:
        options += ["-p", str(host.port)]
    state = _STATE.format(state=f'"{where}"')
    remote = f"exec /bin/sh -c {shlex.quote(state + script)}"
    try:
        ran = subprocess.run(
            ["ssh", *options, "--", host.host, remote],
            input=stdin.encode(), capture_output=True, timeout=_CALL_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return HostAnswer(host, is_well=False, detail=f"no answer within {_CALL_S:g} s")
    except OSError as error:
        return HostAnswer(host, is_well=False, detail=f"ssh: {error.strerror or error}")
    told = (ran.stdout if ran.stdout.strip() else ran.stderr)[-_MOST_BYTES:].decode(errors="replace").strip()
    last = told.splitlines()[-1] if told else f"exit code {ran.returncode}"
    return HostAnswer(host, is_well=ran.returncode == 0, detail="".join(filter(str.isprintable, last)))


# ----------------------------------------------------------------------------------------------- walras top


#: One try: the screen says that the server is away, and asks again by itself.
_TRIES, _CALL_TIMEOUT_S = 1, 15.0


def top_command(
    every: Annotated[
        float,
        typer.Option("--every", min=0.5, max=3600.0, help="Seconds between polls of a server that pushes no changes."),
    ] = 2.0,
) -> None:
    """Watch the cluster in the terminal: the fleet, its prices, and who is next."""
    _require_textual()
    if not sys.stdout.isatty() or not sys.stdin.isatty():
        raise UserError("walras top needs a terminal", fix="walras queue prints the queue once")
    asyncio.run(_watch_cluster(server_access(), every))


def _require_textual() -> None:
    """Raises UserError if the library that draws the screens is missing."""
    try:
        import textual  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "textual":
            raise
        raise UserError("walras top needs textual, which is not installed", fix="pip install 'walras[top]'") from None


async def _watch_cluster(server: ServerAccess, every_s: float) -> None:
    from walras.cli.top_screens import TopApp
    from walras.client import Client
    from walras.connection.transport import Patience

    async with Client(server.url, server.token) as client:
        await first_look(client)
    patience = Patience(tries=_TRIES, call_timeout_s=_CALL_TIMEOUT_S)
    async with Client(server.url, server.token, patience=patience) as client:
        await TopApp(client, every_s).run_async()


async def first_look(client: "Client") -> None:
    """Raises, before the terminal is taken, what the commands raise: no server, no token, an older server."""
    try:
        await client.overview()
    except NotFound:
        raise UserError("this server is older than `walras top`", fix="walras queue -w watches it") from None
