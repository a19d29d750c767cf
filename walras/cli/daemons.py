"""`walras server`, `agent`, `demo`: starting the daemons and the demo."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from walras.cli.output import exit_with
from walras.errors import UserError
from walras.units import parse_size

#: What `--market` may say.
_MARKETS: dict[str, Literal["owned", "on_demand", "spot"]] = {
    "owned": "owned",
    "on_demand": "on_demand",
    "spot": "spot",
}


def server_command(
    data: Annotated[Path, typer.Option("--data", help="Folder of the database, the tokens and the logs.")],
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="0: any free one.")] = 0,
    cluster: Annotated[Path | None, typer.Option("--cluster", help="A cluster file.")] = None,
    policy: Annotated[Path | None, typer.Option("--policy", help="A policy file.")] = None,
) -> None:
    """Run the server, until SIGTERM or Ctrl-C."""
    from scheduler.live.main import run_server

    exit_with(run_server(data=data, host=host, port=port, cluster=cluster, policy=policy))


def agent_command(
    server: Annotated[str, typer.Option("--server", help="Address of the server.")],
    state: Annotated[Path, typer.Option("--state", help="Folder of this agent; it survives restarts.")],
    node: Annotated[str, typer.Option("--node", help="Name of this machine.")],
    shape: Annotated[str, typer.Option("--shape", help="Kind of machine.")],
    join_token_file: Annotated[
        Path | None, typer.Option("--join-token-file", help="File of the token to join with, the first time.")
    ] = None,
    accelerator: Annotated[
        str | None, typer.Option("--accelerator", help="Type; without it GPUs are looked for, else it is `cpu`.")
    ] = None,
    accelerators: Annotated[int | None, typer.Option("--accelerators", min=1, max=1024, help="How many.")] = None,
    cpus: Annotated[float | None, typer.Option("--cpus", min=0.01, help="Cores for jobs; default all.")] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="Memory for jobs, such as 24GB; default all.")] = None,
    market: Annotated[str, typer.Option("--market", help="owned, on_demand or spot.")] = "owned",
    zone: Annotated[str, typer.Option("--zone", help="Where it stands.")] = "default",
    nominal_speed: Annotated[float, typer.Option("--nominal-speed", help="Against the other types.")] = 1.0,
    emulated: Annotated[bool, typer.Option("--emulated", help="Pace steps to --speeds instead of owning it.")] = False,
    speeds: Annotated[
        Path | None, typer.Option("--speeds", help="YAML: kind: {accelerator: steps per second}.")
    ] = None,
    rent_token_file: Annotated[Path | None, typer.Option("--rent-token-file", help="For rented machines.")] = None,
    spot_notices: Annotated[
        bool, typer.Option("--spot-notices", help="On a spot machine of EC2: look for its notices.")
    ] = False,
    address: Annotated[
        str | None, typer.Option("--address", help="Where the other machines of a gang reach this one.")
    ] = None,
) -> None:
    """Run the agent of this machine."""
    from walras.names import canonical_accelerator

    if speeds is not None and not emulated:
        raise UserError("speeds are for emulated accelerators", field="--speeds", fix="add --emulated")
    if market not in _MARKETS:
        raise UserError(f"{market[:40]!r} is no market", field="--market", fix=f"choose from {', '.join(_MARKETS)}")
    try:
        memory_bytes = parse_size(memory) if memory is not None else None
        accelerator = canonical_accelerator(accelerator) if accelerator is not None else None
    except ValueError as error:
        told, _, fix = str(error).partition("; ")
        raise UserError(told, field="--memory / --accelerator", fix=fix) from None
    from workers.agent.options import AgentOptions
    from workers.main import run_agent

    exit_with(
        run_agent(
            AgentOptions(
                server=server,
                join_token_file=join_token_file,
                state=state,
                node_id=node,
                shape=shape,
                accelerator=accelerator,
                accelerators=accelerators,
                cpus=cpus,
                memory_bytes=memory_bytes,
                market=_MARKETS[market],
                zone=zone,
                nominal_speed=nominal_speed,
                emulated=emulated,
                speeds=speeds,
                rent_token_file=rent_token_file,
                spot_notices=spot_notices,
                address=address,
            )
        )
    )


def demo_command(
    data: Annotated[Path | None, typer.Option("--data", help="Folder to work in; default: one below demo-run.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the database and checkpoints behind.")] = False,
    no_live: Annotated[bool, typer.Option("--no-live", help="Plain lines instead of a live view.")] = False,
) -> None:
    """Run the whole system on this machine: server, agents and real PyTorch jobs (about three minutes)."""
    from walras.demo.main import run_demo

    exit_with(run_demo(data=data, keep=keep, live=not no_live))
