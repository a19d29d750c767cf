"""A SkyPilot task as a job: fields become ours, or are refused or noted by name.

SkyPilot counts accelerators for each machine and runs `run` once on each. So the counts are multiplied by `num_nodes`,
and the command is started once on each machine (`nproc_per_node: 1`), with the variables that SkyPilot's commands have,
and without the `-euo pipefail` with which a job file's `run` and `setup` are run.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from walras.spec.shell_scripts import NO_ACCELERATOR, ForeignReading
from walras.spec.slurm_requests import as_written, commands_of, logical_lines, only_prints

#: One line, so that the first line of a task's text stays its first.
_VARIABLES = (
    "set +eu +o pipefail; export SKYPILOT_NODE_RANK=$WALRAS_NODE_RANK SKYPILOT_NUM_NODES=$WALRAS_NUM_NODES "
    "SKYPILOT_NUM_GPUS_PER_NODE=$WALRAS_GPUS_PER_NODE SKYPILOT_TASK_ID=walras-$WALRAS_JOB_ID "
    "SKYPILOT_NODE_IPS=${WALRAS_NODE_ADDRESSES:-$MASTER_ADDR}; SKYPILOT_NODE_IPS=${SKYPILOT_NODE_IPS//,/$'\\n'}; "
    "export SKYPILOT_SETUP_NODE_RANK=$SKYPILOT_NODE_RANK SKYPILOT_SETUP_NODE_IPS=$SKYPILOT_NODE_IPS; "
)
#: SkyPilot's shells read the user's start files, which is where conda makes `conda activate` a command.
_CONDA = 'command -v conda > /dev/null && eval "$(conda shell.bash hook)"; '
_SAME = ("name", "num_nodes", "envs")
_CLUSTER = "the cluster has the machines that it has; `value_usd_per_h` says what renting is worth"
#: Fields that decide nothing here, and why.
_NOTED = {
    "resources.cloud": _CLUSTER,
    "resources.infra": _CLUSTER,
    "resources.disk_size": "no field asks for disk",
    "resources.disk_tier": "no field asks for disk",
    "resources.network_tier": "machines have the network that they have",
    "resources.ports": "no port is opened; `walras exec --forward JOB PORT` reaches one",
    "resources.autostop": "a rented machine that nobody needs is given back",
    "event_callback": "`walras notify` tells you of your jobs' ends",
}
_POOLS = "a pool has one zone and market; the scheduler chooses among all, or among `resources.pools` of a job file"
_ORDER = "resources.ordered: the scheduler chooses among them by speed and price, not in your order"
_DIFFER = "the choices differ in it; a job file has one, write a task for each"
#: Fields that cannot be obeyed, and what to write instead.
_REFUSED = {
    "file_mounts": "files travel with `workdir`, data come with `inputs` of a job file",
    "volumes": "data come with `inputs` of a job file",
    "storage_mounts": "data come with `inputs` of a job file",
    "service": "a job here runs to its end and serves nobody",
    "pool": "pools are the cluster's; `resources.pools` of a job file chooses some",
    "resources.region": _POOLS,
    "resources.zone": _POOLS,
    "resources.use_spot": _POOLS,
    "resources.instance_type": "machines are chosen by their accelerators; name a type",
    "resources.accelerator_args": "no field for it here",
    "resources.priority": "write it in our words: --set priority=low, or high",
    "resources.volumes": "data come with `inputs` of a job file",
}


def read_skypilot_task(task: Mapping[str, Any]) -> ForeignReading:
    """Returns the fields of a job, as a job file has them, what is refused, and what is noted."""
    reading = ForeignReading(has_lines=True)
    task = {name: value for name, value in task.items() if value is not None}  # a template's `null` states nothing
    reading.fields = {name: task[name] for name in _SAME if name in task}
    nodes = task.get("num_nodes", 1)
    if type(nodes) is not int or nodes < 1:
        reading.refused.append(f"num_nodes: {str(nodes)[:20]!r} is no whole number from 1")
        reading.fields.pop("num_nodes")
        nodes = 1
    for name in sorted(task.keys() - {*_SAME, "resources", "run", "setup", "workdir", "secrets"}, key=str):
        _judge_field(str(name), reading)
    _read_workdir(task.get("workdir"), reading)
    _read_secrets(task.get("secrets"), reading)
    named = [str(name) for each in ("envs", "secrets") if isinstance(task.get(each), Mapping) for name in task[each]]
    if any(name.startswith("SKYPILOT_DOCKER_") for name in named):
        reading.refused.append("envs.SKYPILOT_DOCKER_*: no registry is logged in to by them; the machines' clients are")
    base, choices = _choices(task.get("resources"), reading)
    demands = dict[str, int]()
    for number, choice in enumerate(choices, 1):
        if len(choices) > 1 and not choice.get("accelerators", base.get("accelerators")):
            reading.refused.append(
                f"resources.any_of[{number}]: names no accelerators, by which machines are chosen; name a type"
            )
        for name, count in _demands(choice.get("accelerators", base.get("accelerators")), reading):
            if demands.setdefault(name, count) != count:
                reading.refused.append(f"resources.accelerators: {name} is wanted {demands[name]} and {count} times")
    if not demands:
        demands = {"any": 1}
        if not any("accelerators" in each for each in reading.refused):
            reading.notes.append(NO_ACCELERATOR)
    reading.fields["resources"] = {"accelerators": {name: count * nodes for name, count in demands.items()}}
    _read_shares(base, choices, set(demands.values()), reading)
    _read_other_resources(base, choices, reading)
    reading.fields["nproc_per_node"] = 1
    for name in ("setup", "run"):
        text = task.get(name)
        if text is not None and not isinstance(text, str):
            reading.refused.append(f"{name}: no text")
        elif text or name == "run":
            conda = _CONDA if "conda activate" in (text or "") else ""
            _judge_text(name, text or "", named, reading)
            reading.fields[name] = f"{_VARIABLES}{conda}{text or 'true'}"
    return reading


def _judge_text(name: str, text: str, named: Sequence[str], reading: ForeignReading) -> None:
    """Refuses commands, variables and folders of SkyPilot's that are not here: the text would do something else."""
    for number, words in commands_of(text):
        if re.fullmatch(r"(?:[/~$].*/)?sky", words[0]) and words[1:]:  # not a program of the job's own
            asked = f"{as_written(' '.join(words[:2]))}: a job cannot ask SkyPilot to start or end anything here"
            reading.refused.append(f"{name}: line {number}: {asked}")
    known = {*re.findall(r"SKY\w+", _VARIABLES), *named}
    for number, line in logical_lines(text):
        for variable in dict.fromkeys(re.findall(r"\$(?:\{#?)?(SKY(?:PILOT)?_\w+)(?!\w|:?[-+=?])", line)):
            if variable not in known and not re.search(rf"\b{variable}=", text):
                told = reading.notes if only_prints(line) else reading.refused
                told.append(f"{name}: line {number}: ${variable}: it has no value here; set it in `envs`")
        if found := re.search(r"\bsky_(?:workdir|logs)\b", line):
            reading.refused.append(f"{name}: line {number}: {found[0]}: the folder that travels is the current one")


def _judge_field(name: str, reading: ForeignReading) -> None:
    if name in _NOTED:
        reading.notes.append(f"{name}: {_NOTED[name]}")
    else:
        reading.refused.append(f"{name}: {_REFUSED.get(name, 'no field of a task that is known here')}")


def _read_workdir(workdir: object, reading: ForeignReading) -> None:
    if isinstance(workdir, str) and not re.search(r"://|\$", workdir):
        reading.fields["workdir"] = workdir
    elif workdir is not None:
        reading.refused.append(
            "workdir: only a folder travels; a commit is `workdir: {git: URL, commit: ...}` of a job file"
        )


def _read_secrets(secrets: object, reading: ForeignReading) -> None:
    """Takes variables whose values the submitter has; a value in the file would be no secret."""
    if secrets is None:
        return
    if not isinstance(secrets, Mapping) or any(value is not None for value in secrets.values()):
        reading.refused.append("secrets: only names without values, which are taken from your shell's variables")
    else:
        reading.fields["secrets"] = {str(name): {"env": str(name)} for name in secrets}


def _choices(resources: object, reading: ForeignReading) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
    """Returns what all choices share, and the choices: of `any_of`, `ordered`, or a list; one if there are none."""
    if resources is None:
        return {}, [{}]
    if isinstance(resources, list):
        resources = {"ordered": resources}
    if not isinstance(resources, Mapping):
        reading.refused.append("resources: neither fields nor a list of choices")
        return {}, [{}]
    listed = [resources[name] for name in ("any_of", "ordered") if name in resources]
    if not listed:
        return resources, [{}]
    choices = listed[0]
    if (
        len(listed) > 1
        or not (isinstance(choices, list) and choices)
        or not all(isinstance(each, Mapping) for each in choices)
    ):
        reading.refused.append("resources.any_of: not understood; give one list of choices, each with its fields")
        choices = [{}]
    elif "ordered" in resources:
        reading.notes.append(_ORDER)
    return {name: value for name, value in resources.items() if name not in ("any_of", "ordered")}, choices


def _demands(accelerators: object, reading: ForeignReading) -> Iterator[tuple[str, int]]:
    """Yields type and number: of `A100:8`, `{A100: 8}`, the set `{A100:8, L4}` (keys without values), or a list."""
    pairs: list[tuple[str, object]] = []
    if accelerators is None:
        return
    if isinstance(accelerators, Mapping):
        pairs = [(str(name), count) for name, count in accelerators.items()]
    elif isinstance(accelerators, list):
        reading.notes.append(_ORDER)
        pairs = [(str(each), None) for each in accelerators]
    else:
        pairs = [(str(accelerators), None)]
    for name, count in pairs:
        if count is None:
            name, _, text = name.partition(":")
            count = text or "1"
        if not re.search(r"[A-Za-z]|[0-9]{4}", name, re.ASCII):  # 3090 is a type, 8 is none
            reading.refused.append(f"resources.accelerators: {name[:40]!r} names no type, such as A100:8")
        elif re.fullmatch(r"[1-9][0-9]{0,3}(?:\.0+)?", str(count).strip(), re.ASCII):
            yield name.strip(), int(float(str(count)))
        else:
            reading.refused.append(
                f"resources.accelerators: {name[:40]}:{str(count)[:20]} is no whole number of them, such as A100:8"
            )


def _read_shares(
    base: Mapping[str, Any], choices: list[Mapping[str, Any]], counts: set[int], reading: ForeignReading
) -> None:
    """Sets cores and memory, which SkyPilot states for a machine and a job file for each accelerator."""
    for name in ("cpus", "memory"):
        stated = [choice.get(name, base.get(name)) for choice in choices]
        if all(value is None for value in stated):
            continue
        unit = "(?:GB?)?" if name == "memory" else ""
        match = re.fullmatch(rf"(\d{{1,6}}(?:\.\d{{1,3}})?){unit}\+?{unit}", str(stated[0]).strip(), re.ASCII)
        if any(value != stated[0] for value in stated):
            reading.refused.append(f"resources.{name}: {_DIFFER}")
        elif match is None:
            reading.refused.append(f"resources.{name}: {str(stated[0])[:40]!r} is not understood; write such as 8+")
        elif len(counts) > 1:
            reading.refused.append(
                f"resources.{name}: the choices have unlike numbers of accelerators; a job file states it for each"
            )
        else:
            share = float(match[1]) / max(counts)
            reading.fields["resources"][name] = f"{share:g}" + ("GB" if name == "memory" else "")


def _read_other_resources(base: Mapping[str, Any], choices: list[Mapping[str, Any]], reading: ForeignReading) -> None:
    wholes = [{**base, **choice} for choice in choices]
    given = {name: value for whole in wholes for name, value in whole.items() if value is not None}
    for name in sorted(given.keys() - {"accelerators", "cpus", "memory"}, key=str):
        value = given[name]
        if name in ("labels", "image_id", "job_recovery") and any(each.get(name) != value for each in wholes):
            reading.refused.append(f"resources.{name}: {_DIFFER}")
        elif name == "labels" and isinstance(value, Mapping):
            reading.fields["labels"] = dict(value)
        elif name == "image_id" and isinstance(value, str) and value.startswith("docker:"):
            reading.fields["image"] = value.removeprefix("docker:")
        elif name in ("job_recovery", "spot_recovery"):
            _read_recovery(value, reading)
        elif name == "instance_type" and "accelerators" in given:
            reading.notes.append(f"resources.{name}: machines are chosen by their accelerators")
        elif name == "infra" and any("/" in str(each.get(name)).strip("/") for each in wholes):
            reading.refused.append(f"resources.{name}: {_POOLS}")
        elif name == "use_spot" and len({bool(each.get(name)) for each in wholes}) > 1:
            reading.notes.append(f"resources.{name}: the scheduler chooses the market for each of the choices")
        else:
            _judge_field(f"resources.{name}", reading)


def _read_recovery(value: object, reading: ForeignReading) -> None:
    told = value if isinstance(value, Mapping) else {"strategy": value}
    if "max_restarts_on_errors" in told:
        reading.fields["retry"] = {"max_restarts": told["max_restarts_on_errors"]}
    strategy = told.get("strategy")
    if isinstance(strategy, str) and strategy.lower() == "none":
        reading.refused.append("resources.job_recovery.strategy: a job that loses its machine is queued again")
    elif strategy is not None:
        reading.notes.append("resources.job_recovery.strategy: a job goes on wherever there is a place")
    for name in told.keys() - {"max_restarts_on_errors", "strategy"}:
        reading.refused.append(f"resources.job_recovery.{name}: no field for it here")
