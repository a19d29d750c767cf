"""`walras server`, `agent`, `demo`, `admin`: starting the daemons and administering a cluster."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from walras.cli.arguments import NoHeaderOption, OutputOption, example_or_path, parse_length_option
from walras.cli.session import with_client
from walras.cli.setup_commands import show_first_steps
from walras.cli.terminal_output import (
    Column,
    Listing,
    OutputFormat,
    dash,
    exit_with,
    show_line,
    show_listing,
    warn,
)
from walras.errors import UserError
from walras.units import parse_size

if TYPE_CHECKING:
    from walras.machine_parts import TypeCount

#: The values of `--market`.
_MARKETS: dict[str, Literal["owned", "on_demand", "spot"]] = {
    "owned": "owned",
    "on_demand": "on_demand",
    "spot": "spot",
}


TlsOption = Annotated[
    str | None,
    typer.Option("--tls", metavar="self", help="Listen with a certificate of the server's own, which tokens then pin."),
]
TlsCertOption = Annotated[
    Path | None, typer.Option("--tls-cert", help="Listen with this certificate (PEM, with its chain).")
]
TlsKeyOption = Annotated[Path | None, typer.Option("--tls-key", help="The key of --tls-cert (PEM, no password).")]
InsecureOption = Annotated[
    bool, typer.Option("--insecure", help="Let other machines reach it without TLS: tokens cross the network readable.")
]


def server_command(
    data: Annotated[Path, typer.Option("--data", help="Folder of the database, the tokens and the logs.")],
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; others than loopback need TLS.")
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            "--port", min=0, max=65_535, help="Port to listen on; 0: the port of the last start, else any free port."
        ),
    ] = 0,
    cluster: Annotated[
        Path | None,
        typer.Option(
            "--cluster",
            help="A cluster file: the pools of machines; or example:NAME.",
            callback=example_or_path("clusters"),
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option("--policy", help="A policy file, or example:NAME.", callback=example_or_path("policies")),
    ] = None,
    tls: TlsOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    insecure: InsecureOption = False,
    store: Annotated[
        str,
        typer.Option(
            "--store",
            envvar="WALRAS_STORE",
            show_envvar=False,
            help="Database of several servers, of which one leads: postgresql://USER@HOST/DB; default: SQLite.",
        ),
    ] = "",
    new_cluster: Annotated[
        bool, typer.Option("--new-cluster", help="Put what the folder holds aside and begin a new cluster.")
    ] = False,
) -> None:
    """Run the server until SIGTERM or Ctrl-C."""
    if tls not in (None, "self"):
        raise UserError(
            f"{tls[:40]!r} is no certificate", field="--tls", fix="write --tls self, or --tls-cert and --tls-key"
        )
    if (tls_cert is None) != (tls_key is None):
        raise UserError("a certificate goes with its key", field="--tls-cert / --tls-key", fix="give both")
    from scheduler.live.auth.tls_material import TlsFiles
    from scheduler.live.main import ListenOptions, run_server

    files = None if tls_cert is None or tls_key is None else TlsFiles(tls_cert, tls_key)
    listen = ListenOptions(host, port, files, tls is not None, insecure)
    greet = partial(show_first_steps, data.absolute())
    exit_with(
        run_server(
            data=data, listen=listen, cluster=cluster, policy=policy, store=store, new_cluster=new_cluster, greet=greet
        )
    )


StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state", help="Folder of the agent's state; it must survive restarts. Default: ~/.local/state/walras/agent."
    ),
]
NodeOption = Annotated[
    str | None, typer.Option("--node", help="Name of this machine in the cluster; default: its host name.")
]
ShapeOption = Annotated[
    str,
    typer.Option(
        "--shape", help="Shape of this machine: its instance type or hardware model; default: such as a100-40gbx4."
    ),
]
JoinTokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--join-token-file", help="File with the token that admits the machine; read at its first start only."
    ),
]
AcceleratorOption = Annotated[
    str | None,
    typer.Option("--accelerator", help="Accelerator type; default: detected GPUs, or `cpu` without any."),
]
AcceleratorsOption = Annotated[
    str | None,
    typer.Option(
        "--accelerators",
        help="Number of accelerators, or those of each type: a100:2,t4:1; default: as detected.",
    ),
]
MarketOption = Annotated[str, typer.Option("--market", help="How the machine is paid for: owned, on_demand or spot.")]
NominalSpeedOption = Annotated[
    float, typer.Option("--nominal-speed", help="Speed relative to other accelerator types, until it is measured.")
]
EmulatedOption = Annotated[bool, typer.Option("--emulated", help="Emulate the accelerator: pace steps to --speeds.")]
SpeedsOption = Annotated[
    Path | None,
    typer.Option("--speeds", help="With --emulated: YAML file, {kind: {accelerator: steps per second}}."),
]
RentTokenFileOption = Annotated[
    Path | None, typer.Option("--rent-token-file", help="File with the enrolment token of a rented machine.")
]
SpotNoticesOption = Annotated[
    bool, typer.Option("--spot-notices", help="Watch EC2's metadata service for spot interruption notices.")
]
AddressOption = Annotated[
    str | None, typer.Option("--address", help="Address at which other machines of a gang reach this one.")
]


AttemptDiskOption = Annotated[
    str | None,
    typer.Option(
        "--attempt-disk",
        help="What an attempt may write into its own folder, such as 100GB; more ends it. Default: no limit.",
    ),
]


RunsAsOption = Annotated[
    Path | None,
    typer.Option(
        "--runs-as",
        help="Run ranks under the submitter's account: a YAML file of lines user: account. As root only.",
    ),
]


PassEnvOption = Annotated[
    list[str] | None,
    typer.Option("--pass-env", help="Name of a variable of the agent that jobs get, too; may be repeated."),
]
GpuUuidsOption = Annotated[
    bool, typer.Option("--gpu-uuids", help="Tell jobs the UUIDs of their GPUs instead of the numbers.")
]


def agent_command(
    server: Annotated[
        list[str], typer.Option("--server", help="URL of the server; several are tried in turn, if it may move.")
    ],
    state: StateOption = None,
    node: NodeOption = None,
    shape: ShapeOption = "",
    join_token_file: JoinTokenFileOption = None,
    accelerator: AcceleratorOption = None,
    accelerators: AcceleratorsOption = None,
    cpus: Annotated[float | None, typer.Option("--cpus", min=0.01, help="CPU cores for jobs; default: all.")] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="Memory for jobs, such as 24GB; default: all.")] = None,
    market: MarketOption = "owned",
    zone: Annotated[str, typer.Option("--zone", help="Zone or data centre of the machine.")] = "default",
    nominal_speed: NominalSpeedOption = 1.0,
    emulated: EmulatedOption = False,
    speeds: SpeedsOption = None,
    rent_token_file: RentTokenFileOption = None,
    spot_notices: SpotNoticesOption = False,
    address: AddressOption = None,
    attempt_disk: AttemptDiskOption = None,
    runs_as: RunsAsOption = None,
    pass_env: PassEnvOption = None,
    gpu_uuids: GpuUuidsOption = False,
) -> None:
    """Run the agent of this machine until SIGTERM or Ctrl-C; jobs that run outlive it."""
    from walras.spec.accelerator_names import canonical_accelerator

    if speeds is not None and not emulated:
        raise UserError("speeds are for emulated accelerators", field="--speeds", fix="add --emulated")
    try:
        count, types = _accelerators(accelerators)
        memory_bytes = parse_size(memory) if memory is not None else None
        attempt_disk_bytes = parse_size(attempt_disk) if attempt_disk is not None else 0
        accelerator = canonical_accelerator(accelerator) if accelerator is not None else None
    except ValueError as error:
        message, _, fix = str(error).partition("; ")
        raise UserError(message, field="--memory / --attempt-disk / --accelerator / --accelerators", fix=fix) from None
    import socket

    from workers.agent.startup import AgentOptions, run_agent

    exit_with(
        run_agent(
            AgentOptions(
                servers=tuple(server),
                join_token_file=join_token_file,
                state=state or Path.home() / ".local" / "state" / "walras" / "agent",
                node_id=node or socket.gethostname(),
                shape=shape,
                accelerator=accelerator,
                accelerators=count,
                types=types,
                cpus=cpus,
                memory_bytes=memory_bytes,
                market=_known_market(market),
                zone=zone,
                nominal_speed=nominal_speed,
                emulated=emulated,
                speeds=speeds,
                rent_token_file=rent_token_file,
                spot_notices=spot_notices,
                address=address,
                attempt_disk_bytes=attempt_disk_bytes,
                runs_as=runs_as,
                pass_env=tuple(pass_env or ()),
                gpu_uuids=gpu_uuids,
            )
        )
    )


def _known_market(market: str) -> Literal["owned", "on_demand", "spot"]:
    if market not in _MARKETS:
        raise UserError(f"{market[:40]!r} is no market", field="--market", fix=f"choose from {', '.join(_MARKETS)}")
    return _MARKETS[market]


def _accelerators(text: str | None) -> "tuple[int | None, tuple[TypeCount, ...]]":
    """Returns the number that `--accelerators` states, or the number of each type. Raises ValueError."""
    from walras.machine_parts import MOST_OF_TYPE, parse_type_counts

    if text is None or ":" in text:
        types = () if text is None else parse_type_counts(text)
        return None, types
    # int() accepts digits of other scripts, and is slow on long words.
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(MOST_OF_TYPE)) else 0
    if not 1 <= number <= MOST_OF_TYPE:
        fix = f"write one from 1 to {MOST_OF_TYPE}, or the types: a100:2,t4:1"
        raise ValueError(f"{text[:60]!r} is no number of accelerators; {fix}")
    return number, ()


def demo_command(
    data: Annotated[
        Path | None, typer.Option("--data", help="A new folder for the run; default: a folder below demo-run.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the database and the checkpoints.")] = False,
    no_live: Annotated[bool, typer.Option("--no-live", help="Print plain lines instead of a live view.")] = False,
    page: Annotated[
        float | None,
        typer.Option("--page", metavar="MINUTES", min=0.1, help="Keep jobs coming for so long, to watch the web page."),
    ] = None,
) -> None:
    """Run a whole cluster on this machine: server, agents and real PyTorch jobs (about three minutes)."""
    if page is not None:
        from walras.demo.main import run_page_demo

        exit_with(run_page_demo(data=data, keep=keep, minutes=page))
        return
    from walras.demo.main import run_demo

    exit_with(run_demo(data=data, keep=keep, live=not no_live))


admin_commands = typer.Typer(help="Administer a server: tokens, machines, journal.", no_args_is_help=True)

NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="Name of a machine, as listed by `walras nodes`.")]


@admin_commands.command("drain")
def admin_drain_command(
    node: NodeArgument,
    now: Annotated[bool, typer.Option("--now", help="Ask all jobs there to stop now, even if work is lost.")] = False,
    deadline: Annotated[
        str | None, typer.Option("--deadline", help="Ask all jobs that still run after this time to stop, such as 2h.")
    ] = None,
) -> None:
    """Drain a machine: no new jobs; those that can save their work move, the others run to their ends."""
    deadline_s = parse_length_option(deadline, "--deadline")
    if now and deadline_s is not None:
        raise UserError("--now and --deadline contradict each other", field="--deadline", fix="give one of them")
    with_client(lambda client: client.drain_node(node, now=now, deadline_s=deadline_s))
    show_line(f"node {node} takes no new jobs")


@admin_commands.command("resume")
def admin_resume_command(node: NodeArgument) -> None:
    """Return a drained or quarantined machine to service."""
    with_client(lambda client: client.resume_node(node))
    show_line(f"node {node} takes jobs again")


@admin_commands.command("forget")
def admin_forget_command(node: NodeArgument) -> None:
    """Strike a machine that will not come back off the list; it must be lost, or silent and empty."""
    with_client(lambda client: client.forget_node(node))
    show_line(f"node {node} is forgotten")


@admin_commands.command("audit")
def admin_audit_command(
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only writes of this user.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="Only writes of this last time, such as 24h.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="Show at most this many.")] = 100,
    output: OutputOption = OutputFormat.TABLE,
    no_header: NoHeaderOption = False,
) -> None:
    """List who changed what through the API, newest first (operators: in their projects)."""
    from datetime import UTC, datetime, timedelta

    length_s = parse_length_option(since, "--since")
    first = "" if length_s is None else (datetime.now(UTC) - timedelta(seconds=length_s)).isoformat()
    rows = with_client(lambda client: client.audit(user=user or "", since=first, limit=limit))
    columns = [
        Column("WHEN"),
        Column("USER", shrinks=True),
        Column("ACTION", shrinks=True),
        Column("WHAT", shrinks=True),
        Column("BEFORE", shrinks=True, spare=1),
        Column("AFTER", shrinks=True),
    ]
    shown = [
        [
            row.at,
            row.user,
            row.action.replace("/api/v1", ""),
            row.subject,
            _audit_cell(row.before),
            _audit_cell(row.after),
        ]
        for row in rows
    ]
    data = [row.model_dump(mode="json") for row in rows]
    show_listing(Listing(columns, shown, data), output, header=not no_header)


def _audit_cell(value: Any) -> str:
    if not isinstance(value, dict):
        return dash("" if value is None else str(value))
    return " ".join(f"{name}={item}" for name, item in value.items() if item not in (None, "", [], {}))


@admin_commands.command("replay")
def admin_replay_command(
    data: Annotated[Path, typer.Option("--data", help="Data folder of a server, running or stopped.")],
) -> None:
    """Replay a server's journal through a fresh scheduler and compare the commands; exit code 1 if they differ."""
    from scheduler.live.store.event_journal import replay_folder

    report = replay_folder(data)
    show_line(f"{report.events} events, {report.commands} commands, {report.generations} starts of the server")
    if not report.identical:
        first = report.differences[0]
        warn(f"{report.different} events differ, first {first.event.type} at {first.event.at:.3f} s")
        raise typer.Exit(1)
    show_line("identical")
