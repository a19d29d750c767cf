"""Commands that start ranks themselves (torchrun, accelerate, deepspeed), or use all of a machine's devices at once.

Such a command is started once on each machine. The variables PET_* are torchrun's: with them `torchrun train.py` forms
the world that the gang has, without arguments. A launcher hides two things that an attempt is judged by. It answers
SIGTERM itself, before its ranks have saved: so the signal goes to the ranks alone. And it ends with exit code 1,
whatever its ranks ended with: so the code is read in the report that torch prints last. Standard library only.
"""

import re
from typing import TYPE_CHECKING

from workers import processes

if TYPE_CHECKING:
    from walras.wire import StartCommand


def launcher_environment(command: "StartCommand") -> dict[str, str]:
    """Returns torchrun's variables but for the ports; empty where the machine has a rank of ours for each device."""
    if not command.is_launcher and len(command.devices) > 1:
        return {}
    return {
        "PET_NNODES": str(command.num_nodes),
        "PET_NODE_RANK": str(command.node_rank),
        "PET_NPROC_PER_NODE": str(len(command.devices)),
        "PET_MASTER_ADDR": command.master_address or "127.0.0.1",
        "PET_RDZV_BACKEND": "static",
        "PET_RDZV_ID": f"walras-{command.job_id}-{command.attempt}",
    }


def with_ports(env: dict[str, str], port: int) -> dict[str, str]:
    """Returns the environment with torchrun's variables that name the port, where it has any of them.

    What the job sets itself stays as it is.
    """
    if "PET_NNODES" not in env:
        return env
    address = env.get("PET_MASTER_ADDR", "127.0.0.1")
    return {"PET_MASTER_PORT": str(port), "PET_RDZV_ENDPOINT": f"{address}:{port}"} | env


def ranks_below(pids: list[int]) -> list[int]:
    """Returns the processes that a launcher started as ranks, and what descends from those; all if there are none.

    Launchers give RANK to the processes that they start, and have none themselves.
    """
    return processes.with_variable(pids, "RANK") or pids


#: The part of torch's report on the rank that failed first.
_ROOT_CAUSE = b"Root Cause (first observed failure)"
_EXIT_CODE = re.compile(rb"exitcode\s*: (-?[0-9]{1,3}) ")
_CODE_MOST, _SIGNAL_MOST = 255, 64


def end_of_its_ranks(output: bytes, own_code: int) -> tuple[int | None, int | None]:
    """Returns the exit code or the signal of the rank that failed first, after torch's report at the end of `output`.

    Without such a report, the launcher's own code counts. `output` is the job's: it decides about that job alone.
    """
    _, found, report = output.rpartition(_ROOT_CAUSE)
    told = _EXIT_CODE.search(report) if found else None
    code = 0 if told is None else int(told[1])
    if 0 < code <= _CODE_MOST:
        return code, None
    if -_SIGNAL_MOST <= code < 0:
        return None, -code
    return own_code, None
