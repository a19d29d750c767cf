"""Converts a snapshot of a Slurm queue to a trace and a cluster file, to see what Walras would do with it.

The user runs `_SQUEUE_COMMAND` and `_SINFO_COMMAND`. Lines are cells separated by `|` under a header with Slurm's own
titles; a name may hold `|` too. Accelerators are the number of `gpu` that a job asks for per machine, per task or in
all, whichever of these columns a file has. A waiting job array counts as one job per remaining task.

A snapshot does not contain the future: all jobs arrive at its instant, and running jobs have only their remaining time.
True run times are unknown, so the requested time counts, or a part of it that the user states (`used`). Jobs without
accelerators, and machines that are out of use, are left out and named.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from simulator.file_access import bounded_bytes
from simulator.workloads.formats import write_trace
from simulator.workloads.trace_source import SkippedRows, Trace, TraceJob
from walras.errors import ConfigError, system_refusals
from walras.spec.accelerator_names import canonical_accelerator
from walras.spec.cluster_file import ClusterConfig
from walras.spec.field_types import shown_name
from walras.spec.file_model import check_model

#: Largest size of a snapshot's file, bytes.
_BYTES_MAX = 256 * 1024 * 1024
_JOBS_MAX, _NODES_MAX = 1_000_000, 100_000
_FIRST_FEW = 5
#: The type of a machine or a job that states none.
_UNKNOWN_TYPE = "gpu"
_SQUEUE_COMMAND = (
    "SLURM_BITSTR_LEN=0 squeue -a -O 'JobArrayID:|,UserName:|,Account:|,State:|,NumNodes:|,NumTasks:|,tres-per-node:|,"
    "tres-per-job:|,tres-per-task:|,tres-alloc:|,NumCPUs:|,TimeLimit:|,TimeLeft:|,PriorityLong:|,Name:' > squeue.txt"
)
_SINFO_COMMAND = "sinfo -a -N -o '%N|%G|%c|%m|%T' > sinfo.txt"
_QUEUE_COLUMNS = ("JOBID", "USER", "STATE", "NODES", "TRES_PER_NODE", "TIME_LIMIT")
_NODE_COLUMNS = ("NODELIST", "GRES", "CPUS", "MEMORY", "STATE")
_LONGEST_LINE = 64 * 1024
#: `gpu:8`, `gpu:3090:2`, `gres:gpu:a100`, `gres/gpu:2080ti=4`: digits alone are a count, unless a count follows.
_GPU = re.compile(
    r"(?:gres[:/])?gpu(?:[:/](?P<type>[A-Za-z0-9_.-]*[A-Za-z_.-][A-Za-z0-9_.-]*|\d{1,6}(?=[:=])))?(?:[:=](?P<count>\d{1,6}))?",
    re.ASCII,
)
#: Any word of GPUs but those of accounting.
_OF_A_GPU = re.compile(r"gpu(?!mem|util)", re.IGNORECASE)
_TIME = re.compile(r"(?:(?P<days>\d{1,6})-)?(?P<clock>\d{1,6}(?::\d{1,2}){0,2})", re.ASCII)
_NUMBER = re.compile(r"(?P<number>\d{1,12}(?:\.\d{1,3})?)(?P<unit>[KMGT]?)B?(?:\+|-\d{1,12}[KMGT]?)?", re.ASCII)
_TASKS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?(?::(\d{1,9}))?", re.ASCII)
_WAITING = {"PENDING", "PD"}
_RUNNING = {"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "R", "S", "CG", "CF"}
#: States (by prefix) in which a node has jobs or takes them, and flags (`idle+drain`) with which it takes none.
_IN_USE = ("alloc", "mix", "idle", "comp", "plan", "plnd")
_OUT_OF_USE = ("drain", "down", "fail", "maint", "inval", "not_responding", "reboot", "reserved")
#: Times that are none.
_UNLIMITED = frozenset({"UNLIMITED", "NOT_SET", "PARTITION_LIMIT"})
_UNKNOWN = frozenset({"INVALID", "N/A", ""})
_MIB = 2**20
#: Seconds of a job in a partition without a limit.
_UNLIMITED_S = 7 * 86_400.0


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
    #: Processors per accelerator.
    cpus: float = 0.0
    #: Higher goes first.
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

    #: The file with the queue, for messages.
    source: str
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


def read_slurm_snapshot(queue: Path, machines: Path) -> QueueSnapshot:
    """Reads both files. Raises ConfigError that names file and line of text that is no such listing."""
    snapshot = QueueSnapshot(str(queue))
    seen: set[str] = set()
    for row in _rows(machines, _NODE_COLUMNS, _SINFO_COMMAND):
        _add_node(snapshot, row, seen)
    for row in _rows(queue, _QUEUE_COLUMNS, _SQUEUE_COMMAND):
        _add_jobs(snapshot, row)
    return snapshot


class _Row(dict[str, str]):
    """Cells by their title; `where` is the file and the line."""

    where: str = ""


def _rows(path: Path, required: tuple[str, ...], command: str) -> Iterator[_Row]:
    lines = _read_text(path).splitlines()
    titles = [title.strip().upper() for title in lines[0].split("|")] if lines else []
    missing = [title for title in required if title not in titles]
    if missing:
        raise ConfigError(f"{path}: no column {', '.join(missing)} in its first line", fix=f"write it with: {command}")
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        cells = _cells(line, titles)
        if len(line) > _LONGEST_LINE or len(cells) != len(titles):
            raise ConfigError(
                f"{path}:{number}: {len(cells)} cells, {len(titles)} expected",
                fix=f"write it with: {command}",
            )
        row = _Row(zip(titles, cells, strict=True))
        row.where = f"{path}:{number}"
        yield row


def _cells(line: str, titles: list[str]) -> list[str]:
    """Returns the cells of a line; those that are too many are a name with `|` in it."""
    cells = line.split("|")
    if (more := len(cells) - len(titles)) > 0 and titles.count("NAME") == 1:
        at = titles.index("NAME")
        cells[at : at + more + 1] = ["|".join(cells[at : at + more + 1])]
    return [cell.strip() for cell in cells]


def _add_node(snapshot: QueueSnapshot, row: _Row, seen: set[str]) -> None:
    name = _name_or_none(row["NODELIST"])
    if name is None or re.search(r"[\[,]", name):
        fix = "correct the line" if name is None else f"a line for each machine: {_SINFO_COMMAND}"
        raise ConfigError(f"{row.where}: NODELIST is {row['NODELIST'][:40]!r}", fix=fix)
    if name in seen:
        return  # a node has a line for each of its partitions
    seen.add(name)
    if len(seen) > _NODES_MAX:
        raise ConfigError(f"{row.where}: more than {_NODES_MAX:,} machines", fix="is it one cluster?")
    state = row["STATE"].lower().rstrip("*~#!%$@^-+")
    if not state.startswith(_IN_USE) or any(flag.startswith(_OUT_OF_USE) for flag in state.split("+")[1:]):
        snapshot.skip(f"machine {name} is {state}")
        return
    held = _accelerators(row["GRES"])
    if unread := _unread(row["GRES"]):
        snapshot.skip(f"machine {name} has {unread[:60]}, which is not understood")
    cpus, memory = (_whole(row, "CPUS"), _whole(row, "MEMORY")) if held else (1, 1)
    for accelerator, count in held.items():
        # A machine with several types counts as one for each, with its part of cores and memory.
        part = count / sum(held.values())
        snapshot.nodes.append(
            SnapshotNode(name, accelerator, count, max(1.0, cpus * part), max(1, int(memory * part)) * _MIB)
        )


def _add_jobs(snapshot: QueueSnapshot, row: _Row) -> None:
    state, number = row["STATE"].upper(), row["JOBID"]
    if state not in _WAITING | _RUNNING:
        snapshot.skip(f"job {number[:60]} is {state[:30]}")
        return
    nodes = max(1, _whole(row, "NODES"))
    asked = _gang(row, nodes)
    if len(asked) != 1:
        unread = ", ".join(filter(None, (_unread(row.get(column, "")) for column, _ in _OF_THE_JOB)))
        what = "accelerators of several types" if asked else "no accelerator"
        what = f"{unread[:60]}, which is not understood" if unread else what
        if not asked and not unread and "TRES_PER_JOB" not in row:
            what += f" per machine; what --gpus asks for is told by: {_SQUEUE_COMMAND}"
        snapshot.skip(f"job {number[:60]} asks for {what}")
        return
    ((accelerator, gang),) = asked.items()
    is_running = state in _RUNNING
    left_s = _seconds(row, "TIME_LEFT") if is_running and row.get("TIME_LEFT", "").upper() not in _UNKNOWN else None
    left_s = _seconds(row, "TIME_LIMIT") if left_s is None else left_s
    title = _name_or_none(row.get("NAME", "")) or "job"
    tasks = _tasks(row, number)
    if "..." in number:
        snapshot.skip(f"tasks of job {number[:60]} are not listed: {_SQUEUE_COMMAND}")
    if len(snapshot.jobs) + tasks > _JOBS_MAX:
        raise ConfigError(f"{row.where}: more than {_JOBS_MAX:,} jobs", fix="is it a queue?")
    job = SnapshotJob(
        name=f"{number.split('_')[0].split('[')[0]} {title}"[:200],
        gang=gang,
        left_s=left_s,
        is_running=is_running,
        user=_name_or_none(row["USER"]) or "",
        project=_name_or_none(row.get("ACCOUNT", "")) or "default",
        accelerator="" if accelerator == _UNKNOWN_TYPE else accelerator,
        nodes=nodes,
        cpus=_whole(row, "CPUS") / gang if row.get("CPUS") else 0.0,
        order=float(_whole(row, "PRIORITY")) if row.get("PRIORITY", "").isdigit() else 0.0,
    )
    snapshot.jobs += [job] * tasks


def _tasks(row: _Row, number: str) -> int:
    """Returns the number of jobs in a line: `123_[1-10,20%4]` has eleven."""
    _, bracket, inside = number.partition("[")
    if not bracket:
        return 1
    count = 0
    for part in inside.rstrip("]").split("%")[0].split(","):
        if part.endswith("..."):
            continue  # the rest was cut off, in the middle of a number
        found = _TASKS.fullmatch(part.strip())
        if found is None:
            raise ConfigError(f"{row.where}: JOBID is {number[:60]!r}", fix="correct the line")
        first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        count += max(0, last - first) // max(1, step) + 1
    return count


#: Columns with what a job asks for, and the column by which that is multiplied.
_OF_THE_JOB = (("TRES_PER_NODE", "NODES"), ("TRES_PER_JOB", ""), ("TRES_PER_TASK", "TASKS"), ("TRES_ALLOC", ""))


def _gang(row: _Row, nodes: int) -> dict[str, int]:
    """Returns the accelerators of the whole job by type: of the first column that names some."""
    for column, times in _OF_THE_JOB:
        if found := _accelerators(row.get(column, "")):
            factor = nodes if times == "NODES" else max(1, _whole(row, times)) if times else 1
            return {accelerator: count * factor for accelerator, count in found.items()}
    return {}


def _parts(text: str) -> list[str]:
    return [part.strip() for part in re.sub(r"\([^)]*\)", "", text).replace(":no_consume", "").split(",")]


def _unread(text: str) -> str:
    """Returns the parts that speak of GPUs and are not understood."""
    return ",".join(part for part in _parts(text) if _OF_A_GPU.search(part) and _GPU.fullmatch(part) is None)


def _accelerators(text: str) -> dict[str, int]:
    """Returns the numbers by type of `gpu:a100:4(S:0-1),gpu:v100:2`, `gres/gpu=8`, `gpu:2`; empty without any."""
    held: dict[str, int] = {}
    for part in _parts(text):
        found = _GPU.fullmatch(part)
        if found is not None and int(found["count"] or 1):
            accelerator = _type_named(found["type"] or "")
            held[accelerator] = held.get(accelerator, 0) + int(found["count"] or 1)
    # Slurm lists a total (gres/gpu=4) beside the types of it (gres/gpu:a100=4).
    if len(held) > 1 and held.get(_UNKNOWN_TYPE) == sum(held.values()) - held.get(_UNKNOWN_TYPE, 0):
        del held[_UNKNOWN_TYPE]
    return held


def _whole(row: _Row, column: str) -> int:
    """Returns a number that Slurm may give as `64+`, as the range `1-4`, whose least counts, or as `1.5K` of 1024."""
    found = _NUMBER.fullmatch(row.get(column, ""))
    if found is None:
        raise ConfigError(f"{row.where}: {column} is {row.get(column, '')[:40]!r}", fix="give a whole number")
    power = " KMGT".find(found["unit"] or ("M" if column == "MEMORY" else " "))
    return int(float(found["number"]) * 1024 ** (power - 2 * (column == "MEMORY")))


def _seconds(row: _Row, column: str) -> float:
    """Returns the seconds of `1-12:00:00`, `12:00:00`, `30:00` or `30` (minutes)."""
    text = row[column].upper()
    if text in _UNLIMITED or text in _UNKNOWN:
        return _UNLIMITED_S
    found = _TIME.fullmatch(text)
    if found is None:
        raise ConfigError(f"{row.where}: {column} is {text[:40]!r}", fix="write a time such as 1-12:00:00")
    days, clock = int(found["days"] or 0), [int(part) for part in found["clock"].split(":")]
    if found["days"] is not None:
        hours, minutes, seconds = [*clock, 0, 0][:3]
    elif len(clock) == 3:
        hours, minutes, seconds = clock
    else:
        hours, (minutes, seconds) = 0, [*clock, 0][:2]
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _read_text(path: Path) -> str:
    """Returns the text of a file. Raises ConfigError for one that is missing, not text, or too large."""
    content = bounded_bytes(path, _BYTES_MAX, refused="check the path", too_large="is it a snapshot?")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text", fix="write the command's output into it as it is") from None


def _type_named(text: str) -> str:
    """Returns the canonical name of a type; a name that is none counts as unknown."""
    try:
        return canonical_accelerator(text) if text else _UNKNOWN_TYPE
    except ValueError:
        return _UNKNOWN_TYPE


def _name_or_none(text: str) -> str | None:
    """Returns a name that a terminal can show, or None; `(null)` is Slurm's word for none."""
    try:
        return shown_name(text)[:200] if text not in ("", "(null)") else None
    except ValueError:
        return None


def write_snapshot(snapshot: QueueSnapshot, out: Path, cluster: Path, *, used: float, force: bool) -> WrittenSnapshot:
    """Writes the jobs as a trace and the machines as a cluster file.

    `used`: the part of the requested time that jobs really take, above 0. Raises ConfigError where there is no job or
    no machine, and where a file cannot be written.
    """
    source = snapshot.source
    if not 0 < used <= 1:
        raise ConfigError(f"used {used:g}", field="used", fix="give a part, above 0 and at most 1")
    why = f": {'; '.join(snapshot.first_skipped)}" if snapshot.first_skipped else ""
    if not snapshot.nodes:
        raise ConfigError(f"{source}: no machine with accelerators is in use{why}", fix="add the machines' snapshot")
    if not snapshot.jobs:
        raise ConfigError(f"{source}: no job asks for accelerators{why}", fix="is it the right snapshot?")
    if cluster.exists() and not force:
        raise ConfigError(f"{cluster} exists", field="cluster", fix="choose another name, or --force")
    config = _cluster_data(snapshot.nodes)
    check_model(ClusterConfig, config, source=source)
    types = {node.accelerator for node in snapshot.nodes}
    write_trace(Trace(source, "snapshot", _trace_jobs(snapshot.jobs, types, used)), out, force=force)
    about = "# Machines of a snapshot. Say how fast types are against each other: nominal_speed, or speeds by kind.\n"
    with system_refusals(cluster, fix="check the path", field="cluster"):
        cluster.write_text(about + yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return WrittenSnapshot(
        len(snapshot.jobs),
        sum(job.is_running for job in snapshot.jobs),
        len(snapshot.nodes),
        sum(node.accelerators for node in snapshot.nodes),
        SkippedRows(snapshot.skipped, tuple(snapshot.first_skipped)),
    )


def _trace_jobs(jobs: Iterable[SnapshotJob], types: set[str], used: float) -> list[TraceJob]:
    """Returns the jobs as rows of a trace, running ones first, each name once.

    A type that no machine has is kept, so that such a job is refused by name; the unknown type becomes any type.
    """
    rows: list[TraceJob] = []
    names: dict[str, int] = {}
    for job in sorted(jobs, key=lambda job: (not job.is_running, -job.order)):
        names[job.name] = names.get(job.name, 0) + 1
        name = job.name if names[job.name] == 1 else f"{job.name} ({names[job.name]})"
        wanted = "" if job.accelerator == _UNKNOWN_TYPE and _UNKNOWN_TYPE not in types else job.accelerator
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
            )
        )
    return rows


def _cluster_data(nodes: Sequence[SnapshotNode]) -> dict[str, object]:
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
