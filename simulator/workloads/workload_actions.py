"""`walras simulate workload generate|convert|describe`: from names and paths to files and tables, which the CLI prints.

Workloads by name are those shipped with Walras, and those that others publish under a licence to redistribute. A
published one is fetched from its publisher over https, at the commit of the recorded hash, and kept only if its hash is
the recorded one. Workloads without a licence are not listed.
"""

import hashlib
import os
import shutil
import ssl
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any

from simulator.goodput.laws import is_law_file, read_goodput_laws
from simulator.shipped_configs import find_cluster, find_workload
from simulator.workloads.formats import FORMATS, WORKLOAD_FILE, WRITERS, check_convertible, read_trace, write_trace
from simulator.workloads.generators import GENERATORS, generate_jobs, generator_request
from simulator.workloads.trace_binding import nominal_speeds, read_throughput_table, with_seeded_speeds
from simulator.workloads.trace_source import ConvertSettings, DescribeSettings, SkippedRows, Trace
from simulator.workloads.trace_statistics import (
    QUANTILES,
    Distribution,
    TraceDescription,
    count_shares,
    describe_trace,
    plot_trace,
)
from walras.errors import ConfigError, ServerUnreachable, system_refusals
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import load_yaml, nearest_or_all
from walras.spec.shipped_files import shipped_files
from walras.units import format_length


@dataclass(frozen=True, slots=True)
class WrittenTrace:
    """A trace that was written, and the rows that were left out."""

    jobs: int
    format: str
    skipped: SkippedRows


@dataclass(frozen=True, slots=True)
class DescriptionTable:
    """One table of a description: a title, the titles of its columns, and rows."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def generate_trace(name: str, out: Path, *, speeds: str | None, force: bool, **options: Any) -> WrittenTrace:
    """Generates and writes a trace. `options` are those of `generator_request`."""
    jobs = list(generate_jobs(name, generator_request(name, **options), speeds))
    write_trace(Trace(name, "generated", jobs), out, force=force)
    return WrittenTrace(len(jobs), "generated", SkippedRows())


def convert_trace(path: str | Path, out: Path, settings: ConvertSettings, *, force: bool) -> WrittenTrace:
    """Reads a trace in any format, and writes it in one of ours, with drawn speeds if a cluster for them is named."""
    found = find_workload(str(path))
    trace = read_trace(found, settings.format, settings.reading())
    if trace.format == WORKLOAD_FILE:
        check_convertible(str(found))
    jobs = trace.jobs
    if settings.seeded_speeds is not None:
        nominal = nominal_speeds(load_yaml(find_cluster(settings.seeded_speeds), ClusterConfig))
        jobs = list(with_seeded_speeds(jobs, nominal, kinds=settings.kinds, seed=settings.seed))
    write_trace(Trace(trace.source, trace.format, jobs), out, force=force)
    return WrittenTrace(len(jobs), trace.format, trace.skipped)


def describe_trace_file(
    path: str | Path, settings: DescribeSettings, *, cluster: str | None = None, plot: Path | None = None
) -> tuple[TraceDescription, SkippedRows]:
    """Describes a trace, and plots it if a file for that is given."""
    found = find_workload(str(path))
    trace = read_trace(found, settings.format, settings.reading())
    config = load_yaml(find_cluster(cluster), ClusterConfig) if cluster is not None else None
    speeds = None if settings.speeds is None else Path(settings.speeds)
    law_file = found if trace.format == WORKLOAD_FILE else speeds
    laws = read_goodput_laws(law_file) if law_file is not None and is_law_file(law_file) else None
    table = read_throughput_table(speeds) if speeds is not None and not is_law_file(speeds) else None
    description = describe_trace(trace, config, table, laws)
    if plot is not None:
        plot_trace(trace, plot)
    return description, trace.skipped


def trace_description_tables(description: TraceDescription) -> list[DescriptionTable]:
    summary = [("jobs", f"{description.jobs:,}")]
    if description.skipped:
        summary.append(("rows skipped", f"{description.skipped:,}"))
    summary += [
        ("format", description.format),
        ("span", format_length(description.last_at - description.first_at)),
        ("arrivals", "all at once" if description.jobs_per_h is None else f"{description.jobs_per_h:.4g} per hour"),
        ("kinds", f"{len(description.kinds):,}"),
        ("projects", f"{len(description.projects):,}"),
    ]
    if description.users:
        summary.append(("users", f"{len(description.users):,}"))
    if len(description.weights) > 1:
        summary.append(("weights", ", ".join(f"{w:g}: {count:,}" for w, count in description.weights.items())))
    special = {
        "with a deadline": description.with_deadline, "elastic": description.elastic,
        "wait for others": description.dependent, "cancelled": description.cancelled, "fail": description.failing,
    }  # fmt: skip
    summary += [(what, f"{count:,}") for what, count in special.items() if count]
    if description.duration_s is not None and description.load is None:
        summary.append(("work", f"{description.accelerator_h:,.0f} accelerator hours, as stated"))
    parts = [DescriptionTable("", ("", ""), [*summary, *_load_rows(description)])]
    spreads = [
        ("duration (stated)", description.duration_s, format_length),
        ("steps", description.steps, "{:.4g}".format),
    ]
    if description.load is not None:
        spreads.append(("run time (fastest type)", description.load.duration_s, format_length))
    rows = [_distribution_row(name, spread, form) for name, spread, form in spreads if spread is not None]
    if rows:
        titles = (
            "",
            "jobs",
            "mean",
            *("least" if q == 0 else "most" if q == 1 else f"p{100 * q:g}" for q in QUANTILES),
        )
        parts.append(DescriptionTable("Length", titles, rows))
    for title, counts in (
        ("Gangs", description.gangs), ("Kinds", description.kinds), ("Types", description.types),
        ("Projects", description.projects),
    ):  # fmt: skip
        if len(counts) > 1 or title == "Gangs":
            parts.append(_count_table(title, count_shares(counts, description.jobs)))
    return parts


def _load_rows(description: TraceDescription) -> list[tuple[str, str]]:
    load = description.load
    if load is None:
        return []
    offered = "all jobs arrive at once" if load.offered_load is None else f"{load.offered_load:.3f}"
    rows = [
        ("accelerators", f"{load.accelerators:,}"),
        ("work", f"{load.accelerator_h:,.0f} accelerator hours, each job on its fastest type"),
        ("offered load", offered),
        ("done no sooner than", f"{load.drained_after_h:,.1f} h with all accelerators busy"),
    ]
    return [*rows, ("too large for it", f"{load.too_large:,} jobs")] if load.too_large else rows


def _distribution_row(name: str, spread: Distribution, form: Callable[[float], str]) -> tuple[str, ...]:
    return (name, f"{spread.count:,}", form(spread.mean), *(form(value) for value in spread.quantiles))


def _count_table(title: str, rows: Iterable[tuple[str, int, float]]) -> DescriptionTable:
    cells: list[tuple[str, ...]] = [(value, f"{count:,}", f"{100 * part:.1f} %") for value, count, part in rows]
    return DescriptionTable(title, (title.lower(), "jobs", "part"), cells)


def format_catalogue() -> list[tuple[str, str, str]]:
    """Returns (what, name, about) of every format and generator."""
    formats = [
        ("format, read and written" if each.name in WRITERS else "format, read", each.name, each.about)
        for each in FORMATS.values()
    ]
    return [*formats, *(("generator", name, each.about) for name, each in GENERATORS.items())]


_OURS = "Apache-2.0"
_GITHUB_RAW = "https://raw.githubusercontent.com"
_TIMEOUT_S = 30.0
_PIECE_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class CatalogWorkload:
    """One workload. `address`: its URL; empty: it is shipped with Walras."""

    name: str
    about: str
    licence: str
    #: Format of the trace, as `--set format=` takes it.
    format: str
    ending: str
    source: str = "Walras"
    address: str = ""
    sha256: str = ""
    #: Exact size in bytes.
    size_bytes: int = 0


_PUBLISHED = (
    CatalogWorkload(
        "pollux-6",
        "160 elastic jobs of Pollux's evaluation (OSDI 2021), its workload 6",
        "Apache-2.0",
        "pollux",
        ".csv",
        "github.com/petuum/adaptdl",
        f"{_GITHUB_RAW}/petuum/adaptdl/de25dcc90c350b8ade3a710e437a651a8d2efae6/simulator/workloads/workload-6.csv",
        "d6517c4d57c72e4f362f9e99f285e4f7fee0348913287033f11f02f5cb88f074",
        4_821,
    ),
    CatalogWorkload(
        "shockwave-120",
        "120 jobs on 32 accelerators of Shockwave's evaluation (NSDI 2023), with changing batches",
        "MIT",
        "shockwave",
        ".trace",
        "github.com/uw-mad-dash/shockwave",
        f"{_GITHUB_RAW}/uw-mad-dash/shockwave/e07dd205c52afe9981a4f092051c1d0f844ebf3d/scheduler/traces/reproduce/"
        "120_0.2_5_100_40_25_0,0.5,0.5_0.6,0.3,0.09,0.01_multigpu_dynamic.trace",
        "f5728b8c038c330d21b98bc5930949d21769bd956e2ad457a4eb167dd33f34d6",
        18_720,
    ),
    CatalogWorkload(
        "elasticflow-philly",
        "jobs with deadlines of ElasticFlow's evaluation (ASPLOS 2023), after one cluster of Philly",
        "Apache-2.0",
        "elasticflow",
        ".csv",
        "github.com/pkusys/ElasticFlow",
        f"{_GITHUB_RAW}/pkusys/ElasticFlow/5c5a634d57adff1c0985ee6c02b68c2460d37db9/ElasticFlow/"
        "traces_for_ElasticFlow/philly_103959.csv",
        "1ee30d2cc87e4161521c19dc7508945b90f9c5c0e10811eec9b804753657f792",
        51_054,
    ),
)
_FORMAT_OF_ENDING = {".yaml": "workload", ".csv": "csv", ".jsonl": "jsonl"}


def workload_catalog() -> dict[str, CatalogWorkload]:
    """Returns every workload by its name, shipped ones first."""
    ours = (
        CatalogWorkload(name, "comes with Walras", _OURS, _FORMAT_OF_ENDING[path.suffix], path.suffix)
        for name, path in shipped_files("workloads").items()
    )
    return {each.name: each for each in (*ours, *_PUBLISHED)}


def get_workload(name: str, folder: Path, *, force: bool = False) -> tuple[CatalogWorkload, Path]:
    """Copies or fetches a workload into the folder; returns its entry and its file, named NAME with its ending.

    Raises ConfigError for an unknown name (with the nearest), a file that exists already unless `force`, and content
    with another hash; ServerUnreachable where the publisher cannot be reached.
    """
    known = workload_catalog()
    if name not in known:
        fix = nearest_or_all(name, known, "one of ")
        raise ConfigError(f"no workload {name[:60]!r} is in the catalog", field="NAME", fix=fix)
    wanted = known[name]
    path = folder / f"{wanted.name}{wanted.ending}"
    if path.exists() and not force:
        raise ConfigError(f"{path} exists already", field="--to", fix="name another folder, or give --force")
    with system_refusals(path, fix="name another folder", field="--to"):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".workload-", delete=False) as file:
            try:
                _write_content(wanted, file)
                file.flush()
                os.chmod(file.name, 0o644)
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    return wanted, path


def _write_content(wanted: CatalogWorkload, file: IO[bytes]) -> None:
    if not wanted.address:
        with shipped_files("workloads")[wanted.name].open("rb") as shipped:
            shutil.copyfileobj(shipped, file)
        return
    digest, size = hashlib.sha256(), 0
    try:
        with _opener().open(wanted.address, timeout=_TIMEOUT_S) as answer:
            while size <= wanted.size_bytes and (piece := answer.read(_PIECE_BYTES)):
                size += len(piece)
                digest.update(piece)
                file.write(piece)
    except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError, ssl.SSLError) as error:
        why = str(getattr(error, "reason", "") or error or type(error).__name__)[:200]
        raise ServerUnreachable(
            f"{wanted.name} cannot be fetched from {wanted.address} ({why}); without a network, take the file there by"
            " other means, or a workload that comes with Walras"
        ) from None
    if size != wanted.size_bytes or digest.hexdigest() != wanted.sha256:
        raise ConfigError(
            f"{wanted.address} answered with something else than the recorded file: {size:,} bytes, SHA-256"
            f" {digest.hexdigest()[:16]}…, not {wanted.size_bytes:,} bytes, {wanted.sha256[:16]}…",
            fix="nothing was kept; a proxy in between, or ask its publisher",
        )


class _SecureRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects only to https addresses."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
        if not newurl.lower().startswith("https://"):
            raise urllib.error.URLError(f"it points to {newurl[:100]!r}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """Returns what opens https addresses alone; certificates are checked."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPSHandler(context=ssl.create_default_context()),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _SecureRedirects(),
    ):
        opener.add_handler(handler)
    return opener
