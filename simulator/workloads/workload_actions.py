"""`walras simulate workload generate|convert|describe`: from names and paths to files and tables, which the CLI prints.

Workloads by name are those shipped with Walras, and those that others publish under a licence to redistribute. A
published one is fetched from its publisher over https, at the commit of the recorded hash, and kept only if its hash is
the recorded one. Workloads without a licence are not listed.

A trace is described by its job counts, arrival rate, gangs, lengths and load on a cluster, also as four plots;
matplotlib is imported only when something is plotted.
"""

import hashlib
import os
import shutil
import ssl
import tempfile
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from http.client import HTTPException
from math import isfinite
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from simulator.goodput import GoodputLaws, is_law_file, read_goodput_laws
from simulator.ground_truth import GroundTruth, SpeedKey, largest_by_type
from simulator.shipped_configs import find_cluster, find_workload
from simulator.workloads.formats import FORMATS, WORKLOAD_FILE, WRITERS, check_convertible, read_trace, write_trace
from simulator.workloads.generators import GENERATORS, generate_jobs, generator_request
from simulator.workloads.trace_binding import (
    TraceBinding,
    machine_sizes,
    most_machines,
    nominal_speeds,
    read_throughput_table,
    with_seeded_speeds,
)
from simulator.workloads.trace_source import ConvertSettings, DescribeSettings, SkippedRows, Trace, TraceJob
from walras.contract import SECONDS_PER_HOUR
from walras.errors import ConfigError, ServerUnreachable, system_refusals
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import load_yaml, nearest_or_all
from walras.spec.shipped_files import shipped_files
from walras.units import format_length

if TYPE_CHECKING:
    from matplotlib.axes import Axes


QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
_MOST_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution: how many values there are, their mean, and the quantiles of `QUANTILES`."""

    count: int
    mean: float
    quantiles: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ClusterLoad:
    """The load of a trace on a cluster, if each job ran alone on the fastest type that it accepts there."""

    #: Owned accelerators, and rented ones at the full quota.
    accelerators: int
    accelerator_h: float
    #: Run time of a job, seconds.
    duration_s: Distribution
    #: Accelerators requested ÷ accelerators of the cluster, over the span of arrivals. None: all jobs arrive at once.
    offered_load: float | None
    #: Least seconds in which the cluster could do the work if it were perfectly divisible.
    drained_after_h: float
    #: Jobs larger than every pool: they could never start.
    too_large: int


@dataclass(frozen=True, slots=True)
class TraceDescription:
    """The contents of `walras simulate workload describe`."""

    source: str
    format: str
    jobs: int
    skipped: int
    first_at: float
    last_at: float
    #: Seconds between the first and the last arrival. None: all arrive at once.
    jobs_per_h: float | None
    gangs: Mapping[int, int]
    #: Of jobs that state it; None: no job does.
    duration_s: Distribution | None
    steps: Distribution | None
    #: Over jobs that state a duration.
    accelerator_h: float
    kinds: Mapping[str, int]
    types: Mapping[str, int]
    users: Mapping[str, int]
    projects: Mapping[str, int]
    weights: Mapping[float, int]
    with_deadline: int
    elastic: int
    #: Number of jobs with dependencies, of jobs that users cancel, and of jobs that fail.
    dependent: int
    cancelled: int
    failing: int
    load: ClusterLoad | None = None


def describe_trace(
    trace: Trace,
    cluster: ClusterConfig | None = None,
    table: Mapping[SpeedKey, float] | None = None,
    laws: GoodputLaws | None = None,
) -> TraceDescription:
    """Describes a trace in numbers. With a cluster, raises ConfigError for a job that cannot run there."""
    jobs = trace.jobs
    first_at, last_at = jobs[0].at, jobs[-1].at
    durations = [job.duration_s for job in jobs if job.duration_s is not None]
    steps = [job.steps for job in jobs if job.steps is not None]
    return TraceDescription(
        source=trace.source,
        format=trace.format,
        jobs=len(jobs),
        skipped=trace.skipped.count,
        first_at=first_at,
        last_at=last_at,
        jobs_per_h=(len(jobs) - 1) * SECONDS_PER_HOUR / (last_at - first_at) if last_at > first_at else None,
        gangs=dict(sorted(Counter(job.gang for job in jobs).items())),
        duration_s=_distribution(durations),
        steps=_distribution(steps),
        accelerator_h=sum(job.gang * job.duration_s for job in jobs if job.duration_s is not None) / SECONDS_PER_HOUR,
        kinds=_counts_by_value(job.kind for job in jobs),
        types=_counts_by_value("|".join(job.types) or "any" for job in jobs),
        users=_counts_by_value(job.user for job in jobs if job.user),
        projects=_counts_by_value(job.project for job in jobs),
        weights=dict(sorted(Counter(job.weight for job in jobs).items())),
        with_deadline=sum(job.slo is not None or isfinite(job.deadline_at) for job in jobs),
        elastic=sum(bool(job.sizes) for job in jobs),
        dependent=sum(bool(job.depends_on) for job in jobs),
        cancelled=sum(isfinite(job.cancel_at) for job in jobs),
        failing=sum(bool(job.failures) for job in jobs),
        load=None if cluster is None else _cluster_load(trace, cluster, table, laws),
    )


def _cluster_load(
    trace: Trace, cluster: ClusterConfig, table: Mapping[SpeedKey, float] | None, laws: GoodputLaws | None
) -> ClusterLoad:
    placing = TraceBinding(
        nominal_speeds(cluster),
        declared=cluster.speeds,
        table=table,
        laws=laws,
        machines=machine_sizes(cluster),
        source=trace.source,
    )
    truth = GroundTruth(placing.speeds, laws={} if laws is None else laws.of)
    capacities = [(entry.accelerator, most_machines(entry) * entry.accelerators) for entry in cluster.pools]
    largest, accelerators = largest_by_type(capacities), sum(count for _, count in capacities)
    durations: list[float] = []
    accelerator_s, too_large = 0.0, 0
    for job in placing.jobs(trace.jobs):
        kind, demands = job.request.kind, job.request.demands
        durations.append(
            min(
                truth.run_time_s(kind, each.accelerator, placing.parts(each.accelerator, each.count), job.steps)
                for each in demands
            )
        )
        accelerator_s += durations[-1] * demands[0].count
        too_large += all(each.count > largest[each.accelerator] for each in demands)
    span_s, there = trace.jobs[-1].at - trace.jobs[0].at, max(1, accelerators)
    spread = _distribution(durations)
    assert spread is not None, "a trace has at least one job"
    return ClusterLoad(
        accelerators=accelerators,
        accelerator_h=accelerator_s / SECONDS_PER_HOUR,
        duration_s=spread,
        offered_load=accelerator_s / (there * span_s) if span_s > 0 else None,
        drained_after_h=accelerator_s / there / SECONDS_PER_HOUR,
        too_large=too_large,
    )


def _distribution(values: Sequence[float]) -> Distribution | None:
    if not values:
        return None
    ordered = sorted(values)
    last = len(ordered) - 1
    # The nearest rank, so that it is a value of some job.
    return Distribution(
        len(ordered), sum(ordered) / len(ordered), tuple(ordered[round(quantile * last)] for quantile in QUANTILES)
    )


def _counts_by_value(values: Any) -> dict[str, int]:
    """Counts each value, most frequent first, ties by name."""
    return dict(sorted(Counter(values).items(), key=lambda pair: (-pair[1], pair[0])))


def trace_description_json(description: TraceDescription) -> dict[str, Any]:
    """Returns the description as JSON data; keys of counts are text."""
    data = asdict(description)
    data["quantiles"] = list(QUANTILES)
    for name in ("gangs", "weights"):
        data[name] = {f"{key:g}": count for key, count in data[name].items()}
    return data


def count_shares(counts: Mapping[Any, int], total: int) -> list[tuple[str, int, float]]:
    """Returns (value, jobs, part of all) of the most frequent values, and the rest together."""
    shown = [(str(key), count, count / total) for key, count in list(counts.items())[:_MOST_SHOWN]]
    rest = sum(list(counts.values())[_MOST_SHOWN:])
    more = len(counts) - _MOST_SHOWN
    return [*shown, (f"({more} more)", rest, rest / total)] if more > 0 else shown


def accelerator_demand(jobs: Sequence[TraceJob]) -> list[tuple[float, int]]:
    """Returns accelerators that would be busy from each instant on, if every job with a duration started at its
    arrival.
    """
    changes = [(job.at, job.gang) for job in jobs if job.duration_s is not None]
    changes += [(job.at + job.duration_s, -job.gang) for job in jobs if job.duration_s is not None]
    busy, curve = 0, []
    for at, change in sorted(changes):
        busy += change
        curve.append((at, busy))
    return curve


_ENDINGS = (".png", ".svg")
_BINS = 60


def plot_trace(trace: Trace, path: str | Path) -> None:
    """Writes the plots as PNG or SVG. Equal traces give equal files. Raises ConfigError for another ending."""
    if Path(path).suffix.lower() not in _ENDINGS:
        raise ConfigError(f"{path}: plots are written as {' or '.join(_ENDINGS)}", field="plot", fix="change the name")
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "walras", "font.size": 9}):
        figure = Figure(figsize=(10, 6.5), layout="constrained")
        arrivals, gangs, durations, wanted = figure.subplots(2, 2).flat
        _plot_arrivals(arrivals, trace)
        _plot_gangs(gangs, trace)
        _plot_durations(durations, trace)
        _plot_demand(wanted, trace)
        figure.suptitle(f"{Path(trace.source).name}: {len(trace.jobs):,} jobs", parse_math=False)
        # Neither date nor program version is in the file.
        metadata = {"Date": None} if Path(path).suffix.lower() == ".svg" else {"Software": None}
        with system_refusals(path, fix="check the path", field="plot"):
            figure.savefig(path, metadata=metadata)


def _plot_arrivals(axes: "Axes", trace: Trace) -> None:
    hours = [job.at / SECONDS_PER_HOUR for job in trace.jobs]
    width_h = (hours[-1] - hours[0]) / _BINS
    axes.hist(hours, bins=_BINS, color="tab:blue")
    axes.set(title="Arrivals", xlabel="time (h)", ylabel=f"jobs per {width_h:.3g} h" if width_h else "jobs")


def _plot_gangs(axes: "Axes", trace: Trace) -> None:
    sizes = sorted({job.gang for job in trace.jobs})
    counts = [sum(job.gang == size for job in trace.jobs) for size in sizes]
    axes.bar([str(size) for size in sizes], counts, color="tab:green")
    axes.set(title="Gangs", xlabel="accelerators", ylabel="jobs")


def _plot_durations(axes: "Axes", trace: Trace) -> None:
    seconds = sorted(job.duration_s for job in trace.jobs if job.duration_s is not None)
    label = "run time (h)"
    values = [value / SECONDS_PER_HOUR for value in seconds]
    if not values:
        label, values = "steps", sorted(job.steps for job in trace.jobs if job.steps is not None)
    if values:
        axes.plot(values, [rank / len(values) for rank in range(1, len(values) + 1)], color="tab:red")
        axes.set_xscale("log")
    axes.set(title="Length", xlabel=label, ylabel="part of the jobs", ylim=(0, 1))


def _plot_demand(axes: "Axes", trace: Trace) -> None:
    curve = accelerator_demand(trace.jobs)
    if curve:
        axes.step(
            [at / SECONDS_PER_HOUR for at, _ in curve], [busy for _, busy in curve], where="post", color="tab:purple"
        )
    axes.set(title="Accelerators, if no job waited", xlabel="time (h)", ylabel="accelerators")


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
