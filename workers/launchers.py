"""Commands that start ranks themselves (torchrun, accelerate, deepspeed), or use all of a machine's devices at once.

Such a command is started once on each machine. The variables PET_* are torchrun's: with them `torchrun train.py` forms
the world that the gang has, without arguments. A launcher hides two things that an attempt is judged by. It answers
SIGTERM itself, before its ranks have saved: so the signal goes to the ranks alone. And it ends with exit code 1,
whatever its ranks ended with: so the code is read in the report that torch prints last. Standard library only.

DeepSpeed's launcher reads no variables. It takes the devices 0, 1, ... of the machine, whoever has them, and one fixed
port, unless arguments say otherwise; it knows devices by numbers, not by the UUIDs of CUDA_VISIBLE_DEVICES. So bash,
which runs a job's `run`, finds a function of its name that starts it with the arguments that the place asks for.
"""

import re
from typing import TYPE_CHECKING

from workers import processes

if TYPE_CHECKING:
    from walras.wire import StartCommand


def launcher_environment(command: "StartCommand", device_numbers: str = "") -> dict[str, str]:
    """Returns torchrun's variables but for the ports, and DeepSpeed's function where the command names it.

    Empty where the machine has a rank of ours for each device. `device_numbers`: what DeepSpeed calls its devices
    (`0,2`); empty: it has no name for them.
    """
    if not command.is_launcher and len(command.devices) > 1:
        return {}
    deepspeed = _deepspeed_environment(command, device_numbers) if device_numbers else {}
    return deepspeed | {
        "PET_NNODES": str(command.num_nodes),
        "PET_NODE_RANK": str(command.node_rank),
        "PET_NPROC_PER_NODE": str(len(command.devices)),
        "PET_MASTER_ADDR": command.master_address or "127.0.0.1",
        "PET_RDZV_BACKEND": "static",
        "PET_RDZV_ID": f"walras-{command.job_id}-{command.attempt}",
    }


#: Bash takes a variable of this name as a function that is defined already.
DEEPSPEED_FUNCTION = "BASH_FUNC_deepspeed%%"
#: `command` finds the program behind the function. Numbers of devices and machines that a job states at first would
#: contradict those that it has.
_START_DEEPSPEED = """() {
  while [ $# -gt 0 ]; do
    case "$1" in
      --num_gpus | --num_accelerators | --num_nodes) shift 2 ;;
      --num_gpus=* | --num_accelerators=* | --num_nodes=*) shift ;;
      *) break ;;
    esac
  done
  local hosts code=0
  hosts="$(mktemp)"
  printf '%s\\n' $WALRAS_DEEPSPEED_HOSTS | tr : ' ' > "$hosts"
  command deepspeed --hostfile "$hosts" --include "$WALRAS_DEEPSPEED_DEVICES" --no_ssh \\
    --node_rank "$WALRAS_NODE_RANK" --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" "$@" || code=$?
  rm -f "$hosts"
  return $code
}"""


def _deepspeed_environment(command: "StartCommand", device_numbers: str) -> dict[str, str]:
    """Returns the function, and the machines of the gang as DeepSpeed is told them, in parts of equal size.

    Which devices other machines have is known there alone; here only how many they are counts.
    """
    if not any("deepspeed" in word for word in command.argv):
        return {}
    own, here = [int(number) for number in device_numbers.split(",")], len(command.devices)
    per_machine = [",".join(map(str, range(here)))] * command.num_nodes
    per_machine[command.node_rank] = device_numbers
    names = [f"machine-{number}" for number in range(command.num_nodes)]
    return {
        DEEPSPEED_FUNCTION: _START_DEEPSPEED,
        "WALRAS_DEEPSPEED_HOSTS": " ".join(f"{name}:slots={max(*own, here - 1) + 1}" for name in names),
        "WALRAS_DEEPSPEED_DEVICES": "@".join(f"{name}:{each}" for name, each in zip(names, per_machine, strict=True)),
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
