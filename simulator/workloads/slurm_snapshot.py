"""Reads the text of `squeue` and `sinfo` as a snapshot. The user runs `SQUEUE_COMMAND` and `SINFO_COMMAND`.

Lines are cells separated by `|` under a header with Slurm's own titles; a name may hold `|` too. Accelerators are the
number of `gpu` that a job asks for per machine, per task or in all, whichever of these columns a file has. A waiting
job array counts as one job per remaining task.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from simulator.workloads.queue_snapshots import (
    SNAPSHOT_JOBS_MAX,
    SNAPSHOT_NODES_MAX,
    UNKNOWN_TYPE,
    QueueSnapshot,
    SnapshotJob,
    SnapshotNode,
    name_or_none,
    read_snapshot_text,
    type_named,
)
from walras.errors import ConfigError

SQUEUE_COMMAND = (
    "squeue -a -O 'JobArrayID:|,UserName:|,Account:|,State:|,NumNodes:|,NumTasks:|,tres-per-node:|,tres-per-job:|,"
    "tres-per-task:|,tres-alloc:|,NumCPUs:|,TimeLimit:|,TimeLeft:|,PriorityLong:|,Name:' > squeue.txt"
)
SINFO_COMMAND = "sinfo -a -N -o '%N|%G|%c|%m|%T' > sinfo.txt"
_QUEUE_COLUMNS = ("JOBID", "USER", "STATE", "NODES", "TRES_PER_NODE", "TIME_LIMIT")
_NODE_COLUMNS = ("NODELIST", "GRES", "CPUS", "MEMORY", "STATE")
_LONGEST_LINE = 64 * 1024
#: `gpu:8`, `gpu:3090:2`, `gres:gpu:a100`, `gres/gpu:2080ti=4`: digits alone are a count, unless a count follows.
_GPU = re.compile(
    r"(?:gres[:/])?gpu(?:[:/](?P<type>[A-Za-z0-9_.-]*[A-Za-z_.-][A-Za-z0-9_.-]*|\d{1,6}(?=[:=])))?(?:[:=](?P<count>\d{1,6}))?",
    re.ASCII,
)
_TIME = re.compile(r"(?:(?P<days>\d{1,6})-)?(?P<clock>\d{1,6}(?::\d{1,2}){0,2})", re.ASCII)
_TASKS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?(?::(\d{1,9}))?", re.ASCII)
_WAITING, _RUNNING = {"PENDING"}, {"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING"}
#: States (by prefix) in which a node has jobs or takes them.
_IN_USE = ("alloc", "mix", "idle", "comp", "plan")
#: Times that are none.
_UNLIMITED = frozenset({"UNLIMITED", "NOT_SET", "PARTITION_LIMIT"})
_UNKNOWN = frozenset({"INVALID", "N/A", ""})
_MIB = 2**20
#: Seconds of a job in a partition without a limit.
UNLIMITED_S = 7 * 86_400.0


def read_slurm_snapshot(queue: Path, machines: Path) -> QueueSnapshot:
    """Reads both files. Raises ConfigError that names file and line of text that is no such listing."""
    snapshot = QueueSnapshot()
    seen: set[str] = set()
    for row in _rows(machines, _NODE_COLUMNS, SINFO_COMMAND):
        _add_node(snapshot, row, seen)
    for row in _rows(queue, _QUEUE_COLUMNS, SQUEUE_COMMAND):
        _add_jobs(snapshot, row)
    return snapshot


class _Row(dict[str, str]):
    """Cells by their title; `where` is the file and the line."""

    where: str = ""


def _rows(path: Path, required: tuple[str, ...], command: str) -> Iterator[_Row]:
    lines = read_snapshot_text(path).splitlines()
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
    name = name_or_none(row["NODELIST"])
    if name is None:
        raise ConfigError(f"{row.where}: NODELIST is {row['NODELIST'][:40]!r}", fix="correct the line")
    if name in seen:
        return  # a node has a line for each of its partitions
    seen.add(name)
    if len(seen) > SNAPSHOT_NODES_MAX:
        raise ConfigError(f"{row.where}: more than {SNAPSHOT_NODES_MAX:,} machines", fix="is it one cluster?")
    state = row["STATE"].lower().rstrip("*~#!%$@^-+")
    if not state.startswith(_IN_USE):
        snapshot.skip(f"machine {name} is {state}")
        return
    held = _accelerators(row["GRES"])
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
        what = "accelerators of several types" if asked else "no accelerator"
        if not asked and "TRES_PER_JOB" not in row:
            what += f" per machine; what --gpus asks for is told by: {SQUEUE_COMMAND}"
        snapshot.skip(f"job {number[:60]} asks for {what}")
        return
    ((accelerator, gang),) = asked.items()
    is_running = state in _RUNNING
    left_s = _seconds(row, "TIME_LEFT") if is_running and row.get("TIME_LEFT", "").upper() not in _UNKNOWN else None
    left_s = _seconds(row, "TIME_LIMIT") if left_s is None else left_s
    title = name_or_none(row.get("NAME", "")) or "job"
    tasks = _tasks(row, number)
    if len(snapshot.jobs) + tasks > SNAPSHOT_JOBS_MAX:
        raise ConfigError(f"{row.where}: more than {SNAPSHOT_JOBS_MAX:,} jobs", fix="is it a queue?")
    job = SnapshotJob(
        name=f"{number.split('_')[0].split('[')[0]} {title}"[:200],
        gang=gang,
        left_s=left_s,
        is_running=is_running,
        user=name_or_none(row["USER"]) or "",
        project=name_or_none(row.get("ACCOUNT", "")) or "default",
        accelerator="" if accelerator == UNKNOWN_TYPE else accelerator,
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


def _accelerators(text: str) -> dict[str, int]:
    """Returns the numbers by type of `gpu:a100:4(S:0-1),gpu:v100:2`, `gres/gpu=8`, `gpu:2`; empty without any."""
    held: dict[str, int] = {}
    for part in re.sub(r"\([^)]*\)", "", text).split(","):
        found = _GPU.fullmatch(part.strip())
        if found is not None and int(found["count"] or 1):
            accelerator = type_named(found["type"] or "")
            held[accelerator] = held.get(accelerator, 0) + int(found["count"] or 1)
    # Slurm lists a total (gres/gpu=4) beside the types of it (gres/gpu:a100=4).
    if len(held) > 1 and held.get(UNKNOWN_TYPE) == sum(held.values()) - held.get(UNKNOWN_TYPE, 0):
        del held[UNKNOWN_TYPE]
    return held


def _whole(row: _Row, column: str) -> int:
    """Returns a number that Slurm may follow with `+` or a unit of memory."""
    found = re.match(r"\d{1,12}", row[column]) if column in row else None
    if found is None:
        raise ConfigError(f"{row.where}: {column} is {row.get(column, '')[:40]!r}", fix="give a whole number")
    return int(found[0])


def _seconds(row: _Row, column: str) -> float:
    """Returns the seconds of `1-12:00:00`, `12:00:00`, `30:00` or `30` (minutes)."""
    text = row[column].upper()
    if text in _UNLIMITED or text in _UNKNOWN:
        return UNLIMITED_S
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
