"""Reads Kubernetes lists (JSON) as a snapshot: nodes, and Kueue's workloads or, if there are none, pods.

`kubectl get nodes,pods,workloads.kueue.x-k8s.io -A -o json` gives one list of all. A job without a time limit
(`maximumExecutionTimeSeconds`, `activeDeadlineSeconds`) gets the length that the user states.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.workloads.queue_snapshots import (
    SNAPSHOT_JOBS_MAX,
    SNAPSHOT_NODES_MAX,
    QueueSnapshot,
    SnapshotJob,
    SnapshotNode,
    name_or_none,
    read_snapshot_text,
    type_named,
)
from walras.errors import ConfigError

KUBECTL_COMMAND = "kubectl get nodes,pods,workloads.kueue.x-k8s.io -A -o json > cluster.json"
_GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi")
_PRODUCT_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator")
_QUANTITY = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)(m|[kMGTP]i?|Ki)?", re.ASCII)
_UNITS = {
    None: 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "Ki": 2.0**10, "ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50,
}  # fmt: skip
_Object = Mapping[str, Any]


def read_kubernetes_snapshot(path: Path, length_s: float) -> QueueSnapshot:
    """Reads a list. `length_s`: seconds of jobs without a time limit. Raises ConfigError for a file that is no such
    list.
    """
    try:
        body = json.loads(read_snapshot_text(path))
        items = body["items"] if body.get("kind", "List").endswith("List") else [body]
        kinds = [(str(item["kind"]), item) for item in items]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{path} is no list of Kubernetes", fix=f"write it with: {KUBECTL_COMMAND}") from None
    snapshot = QueueSnapshot()
    has_workloads = any(kind == "Workload" for kind, _ in kinds)
    for place, (kind, item) in enumerate(kinds):
        try:
            if kind == "Node":
                _add_node(snapshot, item)
            elif kind == "Workload":
                _add_workload(snapshot, item, length_s)
            elif kind == "Pod" and not has_workloads:
                _add_pod(snapshot, item, length_s)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            why = f"{type(error).__name__} {error}"[:200]
            raise ConfigError(
                f"{path}: items[{place}], a {kind[:40]}, cannot be read: {why}", fix="correct it"
            ) from None
        if len(snapshot.jobs) > SNAPSHOT_JOBS_MAX or len(snapshot.nodes) > SNAPSHOT_NODES_MAX:
            raise ConfigError(f"{path}: too many jobs or nodes", fix="is it one cluster?")
    return snapshot


def _add_node(snapshot: QueueSnapshot, item: _Object) -> None:
    name = name_or_none(str(item["metadata"]["name"])) or "node"
    capacity, labels = item["status"].get("allocatable") or item["status"]["capacity"], item["metadata"].get("labels")
    count = _gpus(capacity)
    if not count:
        return
    ready = [each["status"] for each in item["status"].get("conditions", ()) if each.get("type") == "Ready"]
    if item.get("spec", {}).get("unschedulable") or "False" in ready or "Unknown" in ready:
        snapshot.skip(f"node {name} takes no pods")
        return
    product = next((str((labels or {})[label]) for label in _PRODUCT_LABELS if label in (labels or {})), "")
    cpus, memory = quantity(capacity.get("cpu", 1)), int(quantity(capacity.get("memory", 2**30)))
    snapshot.nodes.append(SnapshotNode(name, type_named(product), count, max(cpus, 0.1), max(memory, 2**20)))


def _add_workload(snapshot: QueueSnapshot, item: _Object, length_s: float) -> None:
    spec, name = item["spec"], _job_name(item)
    held = {str(each["type"]) for each in item.get("status", {}).get("conditions", ()) if each["status"] == "True"}
    if "Finished" in held or spec.get("active") is False:
        snapshot.skip(f"workload {name} is {'over' if 'Finished' in held else 'held'}")
        return
    sets = [(int(each.get("count", 1)), each["template"]["spec"]) for each in spec["podSets"]]
    with_gpus = [(count, pod) for count, pod in sets if _pod_needs(pod)[0]]
    if not with_gpus:
        snapshot.skip(f"workload {name} asks for no accelerator")
        return
    gang = sum(count * _pod_needs(pod)[0] for count, pod in with_gpus)
    first = with_gpus[0][1]
    snapshot.jobs.append(
        _job(
            name, first, gang, item,
            left_s=float(spec.get("maximumExecutionTimeSeconds") or length_s),
            is_running="Admitted" in held,
            project=name_or_none(str(spec.get("queueName", ""))) or "default",
            order=float(spec.get("priority") or 0),
        )
    )  # fmt: skip


def _add_pod(snapshot: QueueSnapshot, item: _Object, length_s: float) -> None:
    spec, phase, name = item["spec"], str(item.get("status", {}).get("phase", "")), _job_name(item)
    gang = _pod_needs(spec)[0]
    if phase not in ("Pending", "Running") or not gang:
        snapshot.skip(f"pod {name} {'asks for no accelerator' if not gang else f'is {phase[:30]}'}")
        return
    project = name_or_none(str(item["metadata"].get("namespace", ""))) or "default"
    left_s = float(spec.get("activeDeadlineSeconds") or length_s)
    order = float(spec.get("priority") or 0)
    snapshot.jobs.append(
        _job(name, spec, gang, item, left_s=left_s, is_running=phase == "Running", project=project, order=order)
    )


def _job(name: str, pod: _Object, gang: int, item: _Object, **more: Any) -> SnapshotJob:
    """Returns a job. `pod` is the spec of one of its pods, which states type, processors and memory."""
    gpus, cpus, memory = _pod_needs(pod)
    selector = pod.get("nodeSelector") or {}
    product = next((str(selector[label]) for label in _PRODUCT_LABELS if label in selector), "")
    user = name_or_none(str(item["metadata"].get("namespace", ""))) or ""
    wanted = type_named(product) if product else ""
    return SnapshotJob(
        name, gang, user=user, accelerator=wanted, cpus=cpus / gpus, memory_bytes=int(memory / gpus), **more
    )


def _job_name(item: _Object) -> str:
    metadata = item["metadata"]
    return (name_or_none(f"{metadata.get('namespace', 'default')}/{metadata['name']}") or "job")[:150]


def _pod_needs(pod: _Object) -> tuple[int, float, float]:
    """Returns accelerators, processors and bytes of one pod."""
    gpus, cpus, memory = 0, 0.0, 0.0
    for container in pod["containers"]:
        resources = container.get("resources") or {}
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        gpus += _gpus(asked)
        cpus += quantity(asked.get("cpu", 0))
        memory += quantity(asked.get("memory", 0))
    return gpus, cpus, memory


def _gpus(resources: _Object) -> int:
    return sum(int(quantity(resources[name])) for name in _GPU_RESOURCES if name in resources)


def quantity(value: Any) -> float:
    """Returns a quantity of Kubernetes: `2`, `500m`, `64Gi`. Raises ValueError."""
    found = _QUANTITY.fullmatch(str(value))
    if found is None:
        raise ValueError(f"{str(value)[:40]!r} is no quantity")
    return float(found[1]) * _UNITS[found[2]]
