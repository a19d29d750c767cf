"""Reads the text of `squeue` and `sinfo` as a snapshot. The user runs `SQUEUE_COMMAND` and `SINFO_COMMAND`.

Lines are cells separated by `|` under a header with Slurm's own titles. Accelerators are the number of `gpu` in `gres`
or `tres` per machine, times the machines of the job. A waiting job array counts as one job per remaining task.
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

SQUEUE_COMMAND = "squeue -a -o '%i|%j|%u|%a|%T|%D|%b|%C|%m|%l|%L|%Q' > squeue.txt"
SINFO_COMMAND = "sinfo -a -N -o '%N|%G|%c|%m|%T' > sinfo.txt"
_QUEUE_COLUMNS = ("JOBID", "USER", "STATE", "NODES", "TRES_PER_NODE", "TIME_LIMIT")
_NODE_COLUMNS = ("NODELIST", "GRES", "CPUS", "MEMORY", "STATE")
_LONGEST_LINE = 64 * 1024
_GPU = re.compile(r"(?:gres[:/])?gpu(?:[:/](?P<type>[A-Za-z][A-Za-z0-9_.-]*))?(?:[:=](?P<count>\d{1,6}))?", re.ASCII)
_TIME = re.compile(r"(?:(?P<days>\d{1,6})-)?(?P<clock>\d{1,6}(?::\d{1,2}){0,2})", re.ASCII)
_TASKS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?(?::(\d{1,9}))?", re.ASCII)
_WAITING, _RUNNING = {"PENDING"}, {"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING"}
#: States (by prefix) in which a node is left out.
_OUT_OF_USE = ("down", "drain", "fail", "maint", "unknown", "power", "boot", "reserved", "future")
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
        cells = [cell.strip() for cell in line.split("|")]
        if len(line) > _LONGEST_LINE or len(cells) != len(titles):
            raise ConfigError(
                f"{path}:{number}: {len(cells)} cells, {len(titles)} expected",
                fix=f"a name may hold no `|`; write it with: {command}",
            )
        row = _Row(zip(titles, cells, strict=True))
        row.where = f"{path}:{number}"
        yield row


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
    if state.startswith(_OUT_OF_USE):
        snapshot.skip(f"machine {name} is {state}")
        return
    accelerator, count = _accelerators(row["GRES"])
    if count:
        cpus, memory = _whole(row, "CPUS"), _whole(row, "MEMORY")
        snapshot.nodes.append(SnapshotNode(name, accelerator, count, float(max(1, cpus)), max(1, memory) * _MIB))


def _add_jobs(snapshot: QueueSnapshot, row: _Row) -> None:
    state, number = row["STATE"].upper(), row["JOBID"]
    if state not in _WAITING | _RUNNING:
        snapshot.skip(f"job {number[:60]} is {state[:30]}")
        return
    nodes = max(1, _whole(row, "NODES"))
    accelerator, count = _accelerators(row["TRES_PER_NODE"])
    if not count:
        snapshot.skip(f"job {number[:60]} asks for no accelerator")
        return
    is_running = state in _RUNNING
    left_s = _seconds(row, "TIME_LEFT" if is_running and row.get("TIME_LEFT") else "TIME_LIMIT")
    gang = nodes * count
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


def _accelerators(text: str) -> tuple[str, int]:
    """Returns type and number of `gpu:a100:4(S:0-1)`, `gres/gpu=8`, `gpu:2`; 0 where there are none."""
    for part in re.sub(r"\([^)]*\)", "", text).split(","):
        found = _GPU.fullmatch(part.strip())
        if found is not None:
            return type_named(found["type"] or ""), int(found["count"] or 1)
    return UNKNOWN_TYPE, 0


def _whole(row: _Row, column: str) -> int:
    """Returns a number that Slurm may follow with `+` or a unit of memory."""
    found = re.match(r"\d{1,12}", row[column]) if column in row else None
    if found is None:
        raise ConfigError(f"{row.where}: {column} is {row.get(column, '')[:40]!r}", fix="give a whole number")
    return int(found[0])


def _seconds(row: _Row, column: str) -> float:
    """Returns the seconds of `1-12:00:00`, `12:00:00`, `30:00` or `30` (minutes)."""
    text = row[column].upper()
    if text in ("UNLIMITED", "INVALID", "NOT_SET", "PARTITION_LIMIT", "N/A"):
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
