"""A SkyPilot task as fields of a job, with a note on every field that means nothing here.

SkyPilot counts accelerators for each machine and runs `run` once on each. So the counts are multiplied by `num_nodes`,
and the command is started once on each machine (`nproc_per_node: 1`), with the variables that SkyPilot's commands have.
"""

from collections.abc import Mapping
from typing import Any

PRELUDE = """\
export SKYPILOT_NODE_RANK=$WALRAS_NODE_RANK SKYPILOT_NUM_NODES=$WALRAS_NUM_NODES
export SKYPILOT_NUM_GPUS_PER_NODE=$WALRAS_GPUS_PER_NODE SKYPILOT_NODE_IPS=$MASTER_ADDR
export SKYPILOT_TASK_ID=walras-$WALRAS_JOB_ID
"""
_SAME = ("name", "num_nodes", "envs")
#: Fields that can be ignored here, and why.
_SAID = {
    "file_mounts": "files travel with `workdir`, data come with `inputs`",
    "service": "a job here runs to its end",
    "resources.cloud": "the cluster has the machines that it has; `value_usd_per_h` says what renting is worth",
    "resources.infra": "the cluster has the machines that it has; `value_usd_per_h` says what renting is worth",
    "resources.region": "a pool has one zone; `resources.pools` chooses pools",
    "resources.zone": "a pool has one zone; `resources.pools` chooses pools",
    "resources.use_spot": "the scheduler chooses; a job that saves its work survives either way",
    "resources.instance_type": "name an accelerator type",
    "resources.disk_size": "no field asks for disk",
    "resources.ports": "no port is opened",
}


def read_skypilot_task(task: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns the fields of a job, as a job file has them, and one note for each field that means nothing here.

    What is wrong with a value is left to the check of the fields.
    """
    notes: list[str] = []
    fields: dict[str, Any] = {name: task[name] for name in _SAME if name in task}
    nodes = task.get("num_nodes", 1)
    nodes = nodes if type(nodes) is int and nodes >= 1 else 1
    resources = task.get("resources") or {}
    if not isinstance(resources, Mapping):
        notes.append("resources: a list of choices is not understood; give one")
        resources = {}
    for name in task.keys() - {*_SAME, "resources", "run", "setup", "workdir"}:
        notes.append(f"{name}: {_SAID.get(str(name), 'not understood')}")
    for name in resources.keys() - {"accelerators", "cpus", "memory"}:
        notes.append(f"resources.{name}: {_SAID.get(f'resources.{name}', 'not understood')}")
    workdir = task.get("workdir")
    if isinstance(workdir, str):
        fields["workdir"] = workdir
    elif workdir is not None:
        notes.append("workdir: only a folder travels here")
    demands = _counts(resources.get("accelerators"))
    each = max(demands.values(), default=1)
    fields["resources"] = {"accelerators": {name: count * nodes for name, count in (demands or {"any": 1}).items()}}
    for name in ("cpus", "memory"):
        if name in resources:
            share = _share(resources[name], each)
            if share is None:
                notes.append(f"resources.{name}: {str(resources[name])[:40]!r} is not understood")
            else:
                fields["resources"][name] = f"{share:g}" + ("GB" if name == "memory" else "")
    if each > 1:
        fields["nproc_per_node"] = 1
    fields |= {"setup": task["setup"]} if task.get("setup") else {}
    fields["run"] = f"{PRELUDE}{task.get('run', '')}"
    return fields, sorted(notes)


def _counts(accelerators: object) -> dict[str, int]:
    """Returns the accelerators of a machine by type: of `A100:8`, `{A100: 8}` or a list of these."""
    if isinstance(accelerators, Mapping):
        return {str(name): count for name, count in accelerators.items() if type(count) is int and count > 0}
    if isinstance(accelerators, list):
        return {name: count for each in accelerators for name, count in _counts(each).items()}
    if not isinstance(accelerators, str):
        return {}
    name, colon, count = accelerators.partition(":")
    return {name: int(count)} if count.isdecimal() and int(count) else ({} if colon else {name: 1})


def _share(value: object, parts: int) -> float | None:
    """Returns what each accelerator gets of `8`, `8+` or `32GB+` of a machine; None if it is none of these."""
    text = str(value).removesuffix("+").removesuffix("GB").removesuffix("+")
    try:
        return float(text) / parts
    except ValueError:
        return None
