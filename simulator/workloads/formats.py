"""The formats that can be read, which one a file is in, and writing the two that are ours.

A new format is one file with a function from `Source` to jobs, and one line in `FORMATS`.
"""

import gzip
import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from simulator.workloads import elasticflow, openb, own, philly, pollux
from simulator.workloads.elasticflow import read_elasticflow
from simulator.workloads.gavel import read_gavel
from simulator.workloads.job import Trace, TraceJob
from simulator.workloads.openb import read_openb
from simulator.workloads.own_csv import read_own_csv, write_own_csv
from simulator.workloads.own_jsonl import read_own_jsonl, write_own_jsonl
from simulator.workloads.own_yaml import read_workload_file
from simulator.workloads.philly import read_philly
from simulator.workloads.pollux import read_pollux
from simulator.workloads.shockwave import read_shockwave
from simulator.workloads.source import Reading, Source, cut_csv, opened_text, whole
from simulator.workloads.swf import read_swf
from walras.checking import nearest
from walras.errors import ConfigError

Reader = Callable[[Source], Iterator[TraceJob]]


@dataclass(frozen=True, slots=True)
class Format:
    """One way in which jobs are written down."""

    name: str
    about: str
    read: Reader
    #: File name endings (`.gz` may follow).
    endings: tuple[str, ...]
    #: CSV with a header: the columns that have to be in it.
    header: tuple[str, ...] = ()
    #: Without a header: cells between tabs.
    tabs: int = 0


#: Name of the format of workload files, which say more than a trace can.
WORKLOAD_FILE = "workload"

FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        Format("csv", "Walras' own, CSV", read_own_csv, (".csv",), header=own.REQUIRED),
        Format("jsonl", "Walras' own, JSON lines", read_own_jsonl, (".jsonl", ".ndjson")),
        Format(WORKLOAD_FILE, "a Walras workload file (YAML)", read_workload_file, (".yaml", ".yml")),
        Format("gavel", "Gavel traces", read_gavel, (".tsv", ".trace"), tabs=10),
        Format("shockwave", "Shockwave traces", read_shockwave, (".tsv", ".trace"), tabs=12),
        Format("philly", "Philly and its kin, CSV", read_philly, (".csv",), header=philly.REQUIRED),
        Format("pollux", "Pollux and Sia workloads", read_pollux, (".csv",), header=pollux.REQUIRED),
        Format("elasticflow", "ElasticFlow traces", read_elasticflow, (".csv",), header=elasticflow.REQUIRED),
        Format("openb", "Alibaba 2023 (openb) pods", read_openb, (".csv",), header=openb.REQUIRED),
        Format("swf", "Standard Workload Format", read_swf, (".swf",)),
    )
}
WRITERS: dict[str, Callable[[Trace, TextIO], None]] = {"csv": write_own_csv, "jsonl": write_own_jsonl}


def read_workload(path: str | Path, format: str | None = None, reading: Reading | None = None) -> Trace:
    """The trace in a file, plain or gzip. Raises ConfigError naming file, line and column of what is wrong.

    `format` is a name in `FORMATS`; None: it is told by the file's ending and its first line.
    """
    known = format_named(format) if format is not None else format_of(path)
    source = Source(path, reading or Reading())
    jobs = list(known.read(source))
    if source.reading.sort:
        jobs.sort(key=lambda job: job.at)
    if not jobs:
        only = f" of {source.reading.only!r}" if source.reading.only else ""
        raise ConfigError(f"{path}: no job{only} can be read in it", fix="is it the right file and format?")
    _check_dependencies(path, jobs)
    return Trace(str(path), known.name, jobs, source.skipped)


def _check_dependencies(path: str | Path, jobs: Sequence[TraceJob]) -> None:
    """A job may wait for jobs above it only: so nobody waits for himself, round about."""
    wanted = {name for job in jobs for name in job.depends_on}
    above: set[str] = set()
    for job in jobs:
        missing = next((name for name in job.depends_on if name not in above), None)
        if missing is not None:
            raise ConfigError(
                f"{path}:{job.line}: depends_on names {missing!r}, and no job above it is called that",
                field="depends_on",
                fix="name jobs that arrive earlier, or stand above it in the file",
            )
        if job.name in wanted:
            above.add(job.name)


def format_named(name: str) -> Format:
    """The format of that name. Raises ConfigError naming the nearest."""
    if name not in FORMATS:
        meant = nearest(name, FORMATS)
        raise ConfigError(
            f"no trace format {name!r}",
            field="format",
            fix=f"did you mean {meant!r}?" if meant else f"known: {', '.join(FORMATS)}",
        )
    return FORMATS[name]


def format_of(path: str | Path) -> Format:
    """What the file seems to be. Raises ConfigError where it is nothing that is known."""
    ending = _ending(path)
    candidates = [each for each in FORMATS.values() if ending in each.endings]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        with opened_text(path) as file, whole(f"{path}: broken off in its first line"):
            line = file.readline(4096).rstrip("\r\n")
        for each in candidates:
            if (each.header and set(each.header) <= _titles(line)) or (each.tabs and line.count("\t") + 1 == each.tabs):
                return each
        if any(each.tabs for each in candidates):
            return candidates[0]  # its reader says what is wrong with the row
    raise ConfigError(
        f"{path}: in no format that is known by its ending and first line",
        field="format",
        fix=f"name it (--from or --format): {', '.join(FORMATS)}",
    )


def _titles(line: str) -> set[str]:
    return {title.strip() for title in cut_csv(line.replace('"', ""))}


def _ending(path: str | Path) -> str:
    return Path(str(path).lower().removesuffix(".gz")).suffix


def write_trace(trace: Trace, path: str | Path, *, force: bool = False) -> None:
    """Write it in the format of the path's ending (`.csv`, `.jsonl`, each also `.gz`): whole, or not at all.

    Raises ConfigError for another ending, and for a file that exists unless `force`.
    """
    target = Path(path)
    writer = WRITERS.get(_ending(path).removeprefix("."))
    if writer is None:
        endings = ", ".join(f".{name}" for name in WRITERS)
        raise ConfigError(f"{path}: traces are written as {endings} (or with .gz)", field="out", fix="change the name")
    if target.exists() and not force:
        raise ConfigError(f"{path} exists", field="out", fix="choose another name, or --force")
    half = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with ExitStack() as files:
            if target.suffix.lower() == ".gz":
                # No name and no time in the header: the same jobs give the same bytes.
                raw = files.enter_context(half.open("wb"))
                packed = files.enter_context(gzip.GzipFile("", "wb", fileobj=raw, mtime=0))
                text: TextIO = files.enter_context(io.TextIOWrapper(packed, encoding="utf-8", newline=""))
            else:
                text = files.enter_context(half.open("w", encoding="utf-8", newline=""))
            writer(trace, text)
        half.replace(target)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", fix="check the path and its permissions") from None
    finally:
        half.unlink(missing_ok=True)
