"""Commands that start ranks themselves (torchrun, accelerate, deepspeed), or use all of a machine's devices at once.

Such a command is started once on each machine. The variables PET_* are torchrun's: with them `torchrun train.py` forms
the gang's world without arguments. A launcher ends with exit code 1, whatever its ranks ended with, so the code is read
from the report that torch prints last. Standard library only.

DeepSpeed's launcher reads no variables. Without arguments it uses the devices 0, 1, ... of the machine, whichever job
holds them, and one fixed port; it knows devices by numbers, not by the UUIDs of CUDA_VISIBLE_DEVICES. Therefore bash,
which runs a job's `run`, gets a function of the launcher's name that adds the arguments of the placement.
"""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from walras.wire import StartCommand


def launcher_environment(command: "StartCommand", device_numbers: str = "") -> dict[str, str]:
    """Returns torchrun's variables except the ports, and DeepSpeed's function if the command names it.

    Empty if the machine starts one rank per device. `device_numbers`: DeepSpeed's names of the devices (`0,2`); empty
    if it has none for them.
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
#: `command` runs the program instead of the function. Device or machine numbers at the start of the job's arguments
#: would contradict those of the placement.
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
    """Returns the function, and the machines of the gang as DeepSpeed lists them, in parts of equal size.

    The devices of other machines are unknown here; only their number counts.
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
    """Returns the environment with torchrun's port variables, where it has any torchrun variables.

    Variables that the job sets itself are not changed.
    """
    if "PET_NNODES" not in env:
        return env
    address = env.get("PET_MASTER_ADDR", "127.0.0.1")
    return {"PET_MASTER_PORT": str(port), "PET_RDZV_ENDPOINT": f"{address}:{port}"} | env


#: The part of torch's report on the rank that failed first.
_ROOT_CAUSE = b"Root Cause (first observed failure)"
_EXIT_CODE = re.compile(rb"exitcode\s*: (-?[0-9]{1,3}) ")
_CODE_MOST, _SIGNAL_MOST = 255, 64


def end_of_its_ranks(output: bytes, own_code: int) -> tuple[int | None, int | None]:
    """Returns the exit code or the signal of the rank that failed first, by torch's report at the end of `output`.

    Without such a report, the launcher's own code counts. `output` is untrusted: it affects only this job.
    """
    _, found, report = output.rpartition(_ROOT_CAUSE)
    told = _EXIT_CODE.search(report) if found else None
    code = 0 if told is None else int(told[1])
    if 0 < code <= _CODE_MOST:
        return code, None
    if -_SIGNAL_MOST <= code < 0:
        return None, -code
    return own_code, None
