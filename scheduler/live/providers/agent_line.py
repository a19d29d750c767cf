"""The command line of an agent on a rented machine: what it is comes from its pool, secrets come in files."""

from collections.abc import Sequence
from pathlib import PurePath

from walras.cluster import Pool


def agent_line(
    command: Sequence[str],
    server_url: str,
    pool: Pool,
    *,
    state: PurePath,
    join_token_file: PurePath,
    rent_token_file: PurePath,
) -> list[str]:
    """Everything but the machine's name, which whoever starts the agent adds (`--node`)."""
    shape = pool.shape
    arguments = {
        "--server": server_url,
        "--join-token-file": str(join_token_file),
        "--state": str(state),
        "--shape": shape.name,
        "--accelerator": shape.accelerator,
        "--accelerators": str(shape.accelerators),
        "--cpus": f"{shape.cpus:g}",
        "--memory": f"{shape.memory_bytes}B",
        "--market": pool.market.value,
        "--zone": pool.zone,
        "--nominal-speed": f"{shape.nominal_speed:g}",
        "--rent-token-file": str(rent_token_file),
    }
    line = [*command, "agent", *(word for pair in arguments.items() for word in pair)]
    return [*line, "--emulated"] if shape.emulated else line
