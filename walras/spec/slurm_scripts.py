"""`#SBATCH` lines of a script as fields of a job, with a note on every line that means nothing here.

Slurm runs a script once, and `srun` in it starts the tasks. Here each rank runs the script. So a script that starts its
tasks with `srun`, one for each accelerator, runs on every rank with an `srun` that just runs its command; any other
script runs once on each machine (`nproc_per_node: 1`). A prelude gives ranks the variables that Slurm's tasks have.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from walras.spec.sweeps import parse_array

_LINE = re.compile(r"#SBATCH\s+(.*?)(?:\s+#.*)?")
#: Short options, and the long ones that they stand for.
_SHORT = {
    "J": "job-name", "t": "time", "N": "nodes", "n": "ntasks", "c": "cpus-per-task", "G": "gpus", "a": "array",
    "o": "output", "e": "error", "d": "dependency", "p": "partition", "q": "qos", "A": "account", "D": "chdir",
    "H": "hold", "b": "begin", "C": "constraint", "w": "nodelist", "x": "exclude", "L": "licenses",
}  # fmt: skip
#: Options that can be ignored here, and why.
_SAID = {
    "output": "`walras logs JOB` shows the output; no file is written",
    "error": "`walras logs JOB` shows it with the output; no file is written",
    "open-mode": "`walras logs JOB` shows the output of every attempt",
    "partition": "name an accelerator type, or pools in `resources.pools`: it became the label `partition`",
    "export": "ranks have a short list of the machine's variables; name others with --env",
    "requeue": "a job that loses its machine is always queued again",
    "exclusive": "accelerators are a job's own, machines are shared",
}
_PRIORITIES = {"low": "low", "normal": "normal", "high": "high", "urgent": "high", "scavenger": "low"}
_FLAGS = frozenset({"hold", "requeue", "exclusive"})

PRELUDE = """\
export SLURM_JOB_ID=$WALRAS_JOB_ID SLURM_JOBID=$WALRAS_JOB_ID SLURM_JOB_NAME=$WALRAS_JOB_NAME
export SLURM_NNODES=$WALRAS_NUM_NODES SLURM_JOB_NUM_NODES=$WALRAS_NUM_NODES SLURM_NODEID=$WALRAS_NODE_RANK
export SLURM_PROCID=${RANK:-$WALRAS_NODE_RANK} SLURM_LOCALID=${LOCAL_RANK:-0} SLURM_GPUS_ON_NODE=$WALRAS_GPUS_PER_NODE
export SLURM_NTASKS=${WORLD_SIZE:-$WALRAS_NUM_NODES} SLURM_NPROCS=${WORLD_SIZE:-$WALRAS_NUM_NODES}
export SLURM_SUBMIT_DIR=$PWD
if [ -n "${WALRAS_ARRAY_INDEX:-}" ]; then
  export SLURM_ARRAY_JOB_ID=${WALRAS_ARRAY_ID:-$WALRAS_JOB_ID} SLURM_ARRAY_TASK_ID=$WALRAS_ARRAY_INDEX
  export SLURM_ARRAY_TASK_COUNT=$WALRAS_ARRAY_COUNT
  export SLURM_ARRAY_TASK_MIN=$WALRAS_ARRAY_MIN SLURM_ARRAY_TASK_MAX=$WALRAS_ARRAY_MAX
fi
srun() {
  while [ $# -gt 0 ]; do
    case "$1" in
      -n|-N|-c|-G|-t|-w|-p) shift 2 ;;
      -*) shift ;;
      *) break ;;
    esac
  done
  "$@"
}
export -f srun
"""


@dataclass
class SlurmReading:
    """What the `#SBATCH` lines of a script state."""

    #: Fields of a job, as a job file has them, without `run`.
    fields: dict[str, Any] = field(default_factory=dict)
    #: One text for each line that was not understood, or means nothing here.
    unread: list[str] = field(default_factory=list)
    #: Whether the script has such lines at all.
    has_lines: bool = False


def takes_value(option: str) -> bool:
    """Returns whether the next word is the value of this option of a command line."""
    if option.startswith("--"):
        return "=" not in option and option[2:] not in _FLAGS
    return len(option) == 2 and _SHORT.get(option[1], "") not in _FLAGS


def read_slurm_lines(text: str, more: Sequence[str] = ()) -> SlurmReading:
    """Returns the fields and the notes; lines after the first command do not count, as in Slurm.

    `more`: options of the command line, which override those of the script.
    """
    reading, found = SlurmReading(), dict[str, str]()
    given = [(f"line {number}", _options(options)) for number, options in _lines_of_options(text)]
    given += [("command line", [_option_of_word(word)]) for word in more]
    reading.has_lines = bool(given)
    for place, options in given:
        for name, value in options:
            where = f"{place}: --{name}" + (f"={value[:80]}" if value else "")
            if name in _SAID:
                reading.unread.append(f"{where}: {_SAID[name]}")
            if name == "partition":
                reading.fields.setdefault("labels", {})["partition"] = value
            if name in _SAID:
                continue
            if name in _GANG_OPTIONS:
                found[name] = value
                continue
            reader = _READERS.get(name)
            problem = "not understood" if reader is None else reader(reading.fields, value)
            if problem:
                reading.unread.append(f"{where}: {problem}")
    if reading.has_lines:
        _read_gang(reading, found, uses_srun=re.search(r"^\s*srun\s", text, re.MULTILINE) is not None)
    return reading


def _lines_of_options(text: str) -> Iterator[tuple[int, str]]:
    """Yields number and options of each `#SBATCH` line above the first command."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            return
        if (match := _LINE.fullmatch(line.strip())) is not None:
            yield number, match[1]


def _options(text: str) -> list[tuple[str, str]]:
    """Returns (long name, value) of the options in one line."""
    words, found = text.split(), list[tuple[str, str]]()
    while words:
        word = words.pop(0)
        name, value = _option_of_word(word)
        if takes_value(word) and words and not words[0].startswith("-"):
            value = words.pop(0).strip("\"'")
        found.append((name, value))
    return found


def _option_of_word(word: str) -> tuple[str, str]:
    """Returns (long name, value) of one word; the value is empty where it has none of its own."""
    if word.startswith("--"):
        name, _, value = word[2:].partition("=")
    else:
        name, value = _SHORT.get(word[1:2], word.lstrip("-")), word[2:].removeprefix("=")
    return name, value.strip("\"'")


# ------------------------------------------------------------------------------------------------ single options


_Reader = Callable[[dict[str, Any], str], str]


def _limit(fields: dict[str, Any], value: str) -> str:
    seconds = slurm_seconds(value)
    if seconds is None:
        return "no time such as 30, 2:00:00 or 1-12:00:00"
    if seconds:
        fields.setdefault("limits", {})["max_runtime"] = f"{seconds}s"
    return ""


def slurm_seconds(text: str) -> int | None:
    """Returns the seconds of MINUTES, MM:SS, HH:MM:SS, D-HH, D-HH:MM and D-HH:MM:SS; None if it is none of these."""
    match = re.fullmatch(r"(?:(\d{1,4})-)?(\d{1,6})(?::(\d{1,2}))?(?::(\d{1,2}))?", text, re.ASCII)
    if match is None:
        return None
    days, *rest = (None if part is None else int(part) for part in match.groups())
    first, second, third = rest[0] or 0, rest[1], rest[2]
    if days is not None or third is not None:
        return ((days or 0) * 24 + first) * 3600 + (second or 0) * 60 + (third or 0)
    return first * 60 + (second or 0)


def _array(fields: dict[str, Any], value: str) -> str:
    text = re.sub(r"^(\d+)(%\d+)?$", r"\1-\1\2", value)
    try:
        parse_array(text)
    except ValueError as error:
        return str(error)
    fields["array"] = text
    return ""


def _dependency(fields: dict[str, Any], value: str) -> str:
    kinds = {part.split(":")[0] for part in value.split(",")}
    numbers = [number for part in value.split(",") for number in part.split(":")[1:]]
    if len(kinds) != 1 or not kinds <= {"afterok", "afterany"} or not all(map(str.isdecimal, numbers)) or not numbers:
        return "only afterok:JOB or afterany:JOB, not both"
    fields["depends_on"] = [int(number) for number in numbers]
    if kinds == {"afterany"}:
        fields["condition"] = "finished"
    return ""


def _qos(fields: dict[str, Any], value: str) -> str:
    if value.lower() not in _PRIORITIES:
        return "no priority of that name; give one: --set priority=50"
    fields["priority"] = _PRIORITIES[value.lower()]
    return ""


def _plain(name: str) -> _Reader:
    def take(fields: dict[str, Any], value: str) -> str:
        fields[name] = value
        return "" if value else "has no value"

    return take


def _hold(fields: dict[str, Any], value: str) -> str:
    fields["hold"] = True
    return ""


def _comment(fields: dict[str, Any], value: str) -> str:
    fields.setdefault("labels", {})["comment"] = value
    return ""


_READERS: dict[str, _Reader] = {
    "time": _limit, "array": _array, "dependency": _dependency, "qos": _qos, "job-name": _plain("name"),
    "account": _plain("project"), "chdir": _plain("workdir"), "hold": _hold, "comment": _comment,
}  # fmt: skip

# ------------------------------------------------------------------------------------------------ the gang

_GANG_OPTIONS = frozenset(
    {"nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "gres", "gpus", "gpus-per-node", "gpus-per-task", "mem"}
    | {"mem-per-cpu", "mem-per-gpu", "cpus-per-gpu"}
)
_GPUS = re.compile(r"(?:gpu:)?(?:([A-Za-z][A-Za-z0-9_.-]*):)?(\d{1,5})", re.ASCII)
_UNITS = {"": 2**20, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _read_gang(reading: SlurmReading, found: dict[str, str], *, uses_srun: bool) -> None:
    def number(name: str, default: int) -> int:
        text = found.get(name, str(default))
        first, _, last = text.partition("-")
        if not re.fullmatch(r"\d{1,6}", first, re.ASCII) or last not in ("", first) or int(first) < 1:
            reading.unread.append(f"--{name}={text[:80]}: no whole number from 1")
            return default
        return int(first)

    def bytes_of(name: str) -> int:
        match = re.fullmatch(r"(\d{1,9})([KMGT]?)B?", found[name], re.IGNORECASE)
        if match is None:
            reading.unread.append(f"--{name}={found[name][:80]}: no size such as 32G")
        return 0 if match is None else int(match[1]) * _UNITS[match[2].upper()]

    nodes = number("nodes", 1)
    tasks = number("ntasks", nodes * number("ntasks-per-node", 1))
    accelerator, each = "any", 0
    for name, per in (("gres", 1.0), ("gpus-per-node", 1.0), ("gpus", 1 / nodes), ("gpus-per-task", tasks / nodes)):
        if name not in found:
            continue
        match = None if name == "gres" and not found[name].startswith("gpu:") else _GPUS.fullmatch(found[name])
        if match is None or not float(int(match[2]) * per).is_integer():
            reading.unread.append(f"--{name}={found[name][:80]}: not understood; write such as gpu:a100:4")
            continue
        accelerator, each = match[1] or "any", int(int(match[2]) * per)
    if tasks % nodes:
        reading.unread.append(f"--ntasks={tasks}: {nodes} machines cannot share them evenly")
    tasks_each, devices = max(1, tasks // nodes), max(each, 1)
    resources: dict[str, Any] = {"accelerators": f"{accelerator}:{devices * nodes}"}
    if nodes > 1:
        reading.fields["num_nodes"] = nodes
    if devices > 1 and not (uses_srun and tasks_each == devices):
        reading.fields["nproc_per_node"] = 1
    if tasks_each not in (1, devices) or (tasks_each > 1 and not uses_srun):
        reading.unread.append(
            f"--ntasks: {tasks_each} on a machine with {devices} accelerators; ranks are 1 or {devices}"
        )
    cpus = number("cpus-per-gpu", 1) * devices if "cpus-per-gpu" in found else number("cpus-per-task", 1) * tasks_each
    if "cpus-per-task" in found or "cpus-per-gpu" in found:
        resources["cpus"] = cpus / devices
    for name, parts in (("mem", 1.0 / devices), ("mem-per-gpu", 1.0), ("mem-per-cpu", cpus / devices)):
        if name in found and (size := bytes_of(name)):
            resources["memory"] = f"{round(size * parts)}B"
    reading.fields["resources"] = resources
