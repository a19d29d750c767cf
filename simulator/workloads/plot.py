"""A trace in four pictures: arrivals, gangs, lengths, accelerators wanted. Here alone matplotlib is loaded."""

from pathlib import Path
from typing import TYPE_CHECKING

from simulator.workloads.describe import accelerators_wanted
from simulator.workloads.job import Trace
from walras.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ENDINGS = (".png", ".svg")
_BINS = 60


def plot_trace(trace: Trace, path: str | Path) -> None:
    """Write the pictures as PNG or SVG. Equal traces give equal files. Raises ConfigError for another ending."""
    if Path(path).suffix.lower() not in _ENDINGS:
        raise ConfigError(f"{path}: plots are written as {' or '.join(_ENDINGS)}", field="plot", fix="change the name")
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "walras", "font.size": 9}):
        figure = Figure(figsize=(10, 6.5), layout="constrained")
        arrivals, gangs, durations, wanted = figure.subplots(2, 2).flat
        _arrivals(arrivals, trace)
        _gangs(gangs, trace)
        _durations(durations, trace)
        _wanted(wanted, trace)
        figure.suptitle(f"{Path(trace.source).name}: {len(trace.jobs):,} jobs", parse_math=False)
        # No date in the file, and no name of the program's version.
        metadata = {"Date": None} if Path(path).suffix.lower() == ".svg" else {"Software": None}
        try:
            figure.savefig(path, metadata=metadata)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}", field="plot", fix="check the path") from None


def _arrivals(axes: "Axes", trace: Trace) -> None:
    hours = [job.at / 3600.0 for job in trace.jobs]
    width_h = (hours[-1] - hours[0]) / _BINS
    axes.hist(hours, bins=_BINS, color="tab:blue")
    axes.set(title="Arrivals", xlabel="time (h)", ylabel=f"jobs per {width_h:.3g} h" if width_h else "jobs")


def _gangs(axes: "Axes", trace: Trace) -> None:
    sizes = sorted({job.gang for job in trace.jobs})
    counts = [sum(job.gang == size for job in trace.jobs) for size in sizes]
    axes.bar([str(size) for size in sizes], counts, color="tab:green")
    axes.set(title="Gangs", xlabel="accelerators", ylabel="jobs")


def _durations(axes: "Axes", trace: Trace) -> None:
    seconds = sorted(job.duration_s for job in trace.jobs if job.duration_s is not None)
    label = "run time (h)"
    values = [value / 3600.0 for value in seconds]
    if not values:
        label, values = "steps", sorted(job.steps for job in trace.jobs if job.steps is not None)
    if values:
        axes.plot(values, [rank / len(values) for rank in range(1, len(values) + 1)], color="tab:red")
        axes.set_xscale("log")
    axes.set(title="Length", xlabel=label, ylabel="part of the jobs", ylim=(0, 1))


def _wanted(axes: "Axes", trace: Trace) -> None:
    curve = accelerators_wanted(trace.jobs)
    if curve:
        axes.step([at / 3600.0 for at, _ in curve], [busy for _, busy in curve], where="post", color="tab:purple")
    axes.set(title="Accelerators, if no job waited", xlabel="time (h)", ylabel="accelerators")
