"""Converts a snapshot of another scheduler's queue to a trace and a cluster file, to see what Walras would do with it.

The readers are `slurm_snapshot` and `kubernetes_snapshot`. A snapshot does not contain the future: all jobs arrive at
its instant, and running jobs have only their remaining time. True run times are unknown, so the requested time counts,
or a part of it that the user states (`used`). Jobs without accelerators, and machines that are out of use, are left out
and named.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from simulator.workloads.formats import write_trace
from simulator.workloads.trace import SkippedRows, Trace, TraceJob
from walras.errors import ConfigError
from walras.spec.accelerator_names import canonical_accelerator
from walras.spec.cluster_file import ClusterConfig
from walras.spec.field_types import shown_name
from walras.spec.file_model import check_model

#: Largest size of a snapshot's file, bytes.
SNAPSHOT_BYTES_MAX = 256 * 1024 * 1024
SNAPSHOT_JOBS_MAX, SNAPSHOT_NODES_MAX = 1_000_000, 100_000
_FIRST_FEW = 5
#: The type of a machine or a job that states none.
UNKNOWN_TYPE = "gpu"


@dataclass(frozen=True, slots=True)
class SnapshotJob:
    """A job that waits or runs."""

    name: str
    gang: int
    #: Seconds that it may still take, by its requested time.
    left_s: float
    is_running: bool
    user: str = ""
    project: str = "default"
    #: "": any type.
    accelerator: str = ""
    nodes: int = 1
    #: Per accelerator: processors, and bytes of memory.
    cpus: float = 0.0
    memory_bytes: int = 0
    #: Higher goes first, if the other scheduler has priorities.
    order: float = 0.0


@dataclass(frozen=True, slots=True)
class SnapshotNode:
    """A machine in use."""

    name: str
    accelerator: str
    accelerators: int
    cpus: float
    memory_bytes: int


@dataclass(slots=True)
class QueueSnapshot:
    """The contents of a snapshot, and what was left out of it with the reasons."""

    jobs: list[SnapshotJob] = field(default_factory=list)
    nodes: list[SnapshotNode] = field(default_factory=list)
    skipped: int = 0
    first_skipped: list[str] = field(default_factory=list)

    def skip(self, why: str) -> None:
        """Counts something that is left out, and keeps the first few reasons."""
        self.skipped += 1
        if len(self.first_skipped) < _FIRST_FEW:
            self.first_skipped.append(why)


@dataclass(frozen=True, slots=True)
class WrittenSnapshot:
    """The result of writing a snapshot."""

    jobs: int
    running: int
    machines: int
    accelerators: int
    skipped: SkippedRows


def read_snapshot_text(path: Path) -> str:
    """Returns the text of a file. Raises ConfigError for one that is missing, not text, or too large."""
    try:
        if path.stat().st_size > SNAPSHOT_BYTES_MAX:
            raise ConfigError(f"{path}: more than {SNAPSHOT_BYTES_MAX:,} bytes", fix="is it a snapshot?")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", fix="check the path") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text", fix="write the command's output into it as it is") from None


def type_named(text: str) -> str:
    """Returns the canonical name of a type; a name that is none counts as unknown."""
    try:
        return canonical_accelerator(text) if text else UNKNOWN_TYPE
    except ValueError:
        return UNKNOWN_TYPE


def name_or_none(text: str) -> str | None:
    """Returns a name that a terminal can show, or None."""
    try:
        return shown_name(text)[:200] if text else None
    except ValueError:
        return None


def write_snapshot(
    snapshot: QueueSnapshot, source: str, out: Path, cluster: Path, *, used: float, force: bool
) -> WrittenSnapshot:
    """Writes the jobs as a trace and the machines as a cluster file.

    `used`: the part of the requested time that jobs really take, above 0. Raises ConfigError where there is no job or
    no machine, and where a file cannot be written.
    """
    if not 0 < used <= 1:
        raise ConfigError(f"used {used:g}", field="used", fix="give a part, above 0 and at most 1")
    why = f": {'; '.join(snapshot.first_skipped)}" if snapshot.first_skipped else ""
    if not snapshot.nodes:
        raise ConfigError(f"{source}: no machine with accelerators is in use{why}", fix="add the machines' snapshot")
    if not snapshot.jobs:
        raise ConfigError(f"{source}: no job asks for accelerators{why}", fix="is it the right snapshot?")
    if cluster.exists() and not force:
        raise ConfigError(f"{cluster} exists", field="cluster", fix="choose another name, or --force")
    config = cluster_data(snapshot.nodes)
    check_model(ClusterConfig, config, source=source)
    types = {node.accelerator for node in snapshot.nodes}
    write_trace(Trace(source, "snapshot", trace_jobs(snapshot.jobs, types, used)), out, force=force)
    about = "# Machines of a snapshot. Say how fast types are against each other: nominal_speed, or speeds by kind.\n"
    try:
        cluster.write_text(about + yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{cluster}: {error.strerror or error}", field="cluster", fix="check the path") from None
    return WrittenSnapshot(
        len(snapshot.jobs),
        sum(job.is_running for job in snapshot.jobs),
        len(snapshot.nodes),
        sum(node.accelerators for node in snapshot.nodes),
        SkippedRows(snapshot.skipped, tuple(snapshot.first_skipped)),
    )


def trace_jobs(jobs: Iterable[SnapshotJob], types: set[str], used: float) -> list[TraceJob]:
    """Returns the jobs as rows of a trace, running ones first, each name once.

    A type that no machine has is kept, so that such a job is refused by name; the unknown type becomes any type.
    """
    rows: list[TraceJob] = []
    names: dict[str, int] = {}
    for job in sorted(jobs, key=lambda job: (not job.is_running, -job.order)):
        names[job.name] = names.get(job.name, 0) + 1
        name = job.name if names[job.name] == 1 else f"{job.name} ({names[job.name]})"
        wanted = "" if job.accelerator == UNKNOWN_TYPE and UNKNOWN_TYPE not in types else job.accelerator
        rows.append(
            TraceJob(
                0.0,
                name,
                "any",
                job.gang,
                (wanted,) if wanted else (),
                duration_s=max(1.0, job.left_s * used),
                estimate_s=max(1.0, job.left_s),
                user=job.user,
                project=job.project,
                nodes=job.nodes,
                cpus=job.cpus,
                memory_bytes=job.memory_bytes,
            )
        )
    return rows


def cluster_data(nodes: Sequence[SnapshotNode]) -> dict[str, object]:
    """Returns a cluster file's data: a pool for each shape of machines."""
    counts: dict[tuple[str, int, float, int], int] = {}
    for node in nodes:
        shape = (node.accelerator, node.accelerators, node.cpus, node.memory_bytes)
        counts[shape] = counts.get(shape, 0) + 1
    pools, taken = [], dict[str, int]()
    for (accelerator, accelerators, cpus, memory_bytes), machines in sorted(counts.items()):
        shape_name = f"{accelerator}x{accelerators}"
        taken[shape_name] = taken.get(shape_name, 0) + 1
        pools.append(
            {
                "shape": shape_name if taken[shape_name] == 1 else f"{shape_name}-{taken[shape_name]}",
                "accelerator": accelerator,
                "accelerators": accelerators,
                "cpus": cpus,
                "memory": f"{memory_bytes // 2**20}MiB",
                "nominal_speed": 1,
                "machines": machines,
            }
        )
    return {"pools": pools}
