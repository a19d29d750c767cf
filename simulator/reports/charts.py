"""The charts of one run: completion times, queueing, utilisation, prices, money, fairness, and its attempts.

Writes a chart as an SVG element of a page, or as a file. Matplotlib is imported only when one is drawn.

Text from a trace is never interpreted as mathematics. The SVG element refers to nothing outside itself. Its identifiers
are prefixed with a key, so that several charts can stand on one page. Its lines and letters have the page's own text
colour, so that it is readable on a dark page too.
"""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from optimizer.bounds.instance import FloatArray
from simulator.reports.run_summary import ProjectSummary
from simulator.reports.timeline import PoolTrack, StepSeries, Timeline, binned_means, series_means
from walras.contract import SECONDS_PER_HOUR
from walras.errors import ConfigError, system_refusals

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


#: File types of a plot.
PLOT_ENDINGS = (".png", ".svg", ".pdf")
CHART_HEIGHT_IN = 2.7
_WIDTH_IN, _DOTS_PER_IN = 8.6, 200
_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_BLACK = "#000000"


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of one or several axes, one below the other, and the function that draws it."""

    draw: "Callable[[list[Axes]], None]"
    height_in: float = CHART_HEIGHT_IN
    rows: int = 1


def chart_of(draw: "Callable[[Axes], None]", height_in: float = CHART_HEIGHT_IN) -> Chart:
    return Chart(lambda axes: draw(axes[0]), height_in)


def svg_element(chart: Chart, key: str) -> str:
    """Returns the chart as an element of a page. The same chart and key give the same text."""
    import matplotlib

    with matplotlib.rc_context(_style(key) | {"figure.facecolor": "none", "axes.facecolor": "none"}):
        text = io.StringIO()
        metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        _drawn(chart).savefig(text, format="svg", metadata=metadata, transparent=True)
    return _inline(text.getvalue(), key)


def save_chart(chart: Chart, path: Path) -> None:
    """Writes the chart as a file, by the path's ending. The same chart gives the same bytes.

    Raises ConfigError that names `out` for another ending, and for a path that cannot be written.
    """
    ending = path.suffix.lower()
    if ending not in PLOT_ENDINGS:
        known = ", ".join(PLOT_ENDINGS)
        raise ConfigError(f"{path}: figures are written as {known}", field="out", fix="change the file's ending")
    import matplotlib

    # Neither date nor program is written, so that equal figures are equal files.
    metadata = {
        ".png": {"Software": None},
        ".svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
        ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    }[ending]
    with matplotlib.rc_context(_style("walras")), system_refusals(path, fix="choose another file", field="out"):
        _drawn(chart).savefig(path, dpi=_DOTS_PER_IN, metadata=metadata)


def _drawn(chart: Chart) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH_IN, chart.height_in), layout="constrained")
    chart.draw(list(figure.subplots(chart.rows, 1, squeeze=False, sharex=True)[:, 0]))
    return figure


def _style(key: str) -> dict[Any, Any]:
    # Names may contain a dollar sign, which would start mathematics.
    return {
        "text.parse_math": False,
        "svg.hashsalt": key,
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }


def _inline(svg: str, key: str) -> str:
    """Returns the chart as an element of a page: without namespaces and metadata, identifiers prefixed with the key."""
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        for child in [child for child in element if child.tag == f"{_SVG}metadata"]:
            element.remove(child)
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        link = element.attrib.pop(_LINK, None)
        if link is not None:
            element.attrib["href"] = link.replace("#", f"#{key}-", 1)
        for name, value in element.attrib.items():
            if name == "id":
                element.attrib[name] = f"{key}-{value}"
            elif "url(#" in value:
                element.attrib[name] = value.replace("url(#", f"url(#{key}-")
            elif name == "style":
                element.attrib[name] = value.replace(_BLACK, "currentColor")
    root.attrib.update({"role": "img", "width": "100%", "fill": "currentColor"})
    root.attrib.pop("height", None)
    return ElementTree.tostring(root, encoding="unicode")


#: Largest numbers of jobs and of attempts for which the Gantt chart is drawn.
GANTT_JOBS_MAX, GANTT_SPANS_MAX = 120, 4000
_BARS_MAX, _NAME_MAX = 30, 28
#: Colours of curves, in order of use.
CHART_COLORS = (
    "#3b6fb6", "#d1762d", "#4c9a5a", "#b5483f", "#7d62a8", "#8a6d5a", "#c774a8", "#6f6f6f", "#9a9a2f", "#3aa0ad",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Curve:
    """Levels from instants on (seconds), or a distribution's sorted values, with a label and matplotlib's style."""

    label: str
    style: Mapping[str, Any]
    value: FloatArray
    at: FloatArray = field(default_factory=lambda: np.zeros(0))


def distribution_chart(curves: Sequence[Curve], label: str) -> Chart:
    """The part of the jobs at or below each value."""

    def draw(axes: "Axes") -> None:
        for curve in curves:
            parts = np.arange(1, len(curve.value) + 1) / len(curve.value)
            axes.step(curve.value, parts, where="post", label=curve.label, **curve.style)
        if max(curve.value[-1] for curve in curves) > 20 * min(curve.value[0] for curve in curves):
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter("")
        axes.set(xlabel=label, ylabel="part of the jobs", ylim=(0, 1.02))
        draw_legend(axes)

    return chart_of(draw)


def levels_chart(curves: Sequence[Curve], label: str, highest: float | None = None) -> Chart:
    """Levels over time."""

    def draw(axes: "Axes") -> None:
        draw_levels(axes, curves)
        axes.set(xlabel="time (h)", ylabel=label, ylim=(0, highest))
        draw_legend(axes)

    return chart_of(draw)


def draw_levels(axes: "Axes", curves: Iterable[Curve]) -> None:
    for curve in curves:
        axes.step(curve.at / SECONDS_PER_HOUR, curve.value, where="post", label=curve.label, **curve.style)


def jct_cdf_chart(jct_s: Sequence[float]) -> Chart:
    """The distribution of completion times."""
    hours = np.maximum(np.sort(np.array(jct_s)), 1e-3) / SECONDS_PER_HOUR
    return distribution_chart([Curve("", {"color": CHART_COLORS[0]}, hours)], "completion time (h)")


def queueing_chart(waiting: StepSeries, until_at: float) -> Chart:
    """Jobs without accelerators, over time."""

    def draw(axes: "Axes") -> None:
        at, mean = series_means(waiting, until_at)
        axes.fill_between(at / SECONDS_PER_HOUR, mean, step="post", color=CHART_COLORS[1], alpha=0.35, linewidth=0)
        axes.step(at / SECONDS_PER_HOUR, mean, where="post", color=CHART_COLORS[1])
        axes.set(xlabel="time (h)", ylabel="jobs that wait", ylim=(0, None))

    return chart_of(draw)


def utilisation_chart(pools: Mapping[str, PoolTrack], until_at: float) -> Chart:
    """Utilisation of every pool over time: held accelerators / existing accelerators."""

    def part(track: PoolTrack) -> tuple[FloatArray, FloatArray]:
        (at, held), (_, there) = binned_means(track.held, until_at), binned_means(track.there, until_at)
        return at, np.divide(held, there, out=np.full_like(held, np.nan), where=there > 0)

    return levels_chart(_pool_curves(pools, part), "held / there", 1.05)


def price_chart(pools: Mapping[str, PoolTrack], timeline: Timeline) -> Chart:
    """The optimizer's price of one accelerator in every pool, from solve to solve."""

    def price(track: PoolTrack) -> tuple[FloatArray, FloatArray] | None:
        if not track.price.at:
            return None
        at, price = series_means(track.price, timeline.ended_at)
        seen = at >= track.price.at[0]
        return at[seen], price[seen]

    unit = timeline.price_unit or "the policy's own unit"
    return levels_chart(_pool_curves(pools, price), f"price in {unit}")


def market_price_chart(pools: Mapping[str, PoolTrack], until_at: float) -> Chart:
    """The market price of a machine in every pool."""
    curves = _pool_curves(pools, lambda track: series_means(track.usd_per_h, until_at))
    return levels_chart(curves, "USD/h of a machine")


def money_chart(usd_by_market: Mapping[str, float]) -> Chart:
    return chart_of(lambda axes: _draw_bars(axes, list(usd_by_market.items()), "USD"), 1.6)


def fairness_chart(projects: Sequence[ProjectSummary]) -> Chart:
    """Mean finish-time fairness of every project (the highest ones, if there are many)."""
    known = sorted(
        ((each.project, each.rho_mean) for each in projects if isfinite(each.rho_mean)), key=lambda row: -row[1]
    )
    rows = known[:_BARS_MAX]

    def draw(axes: "Axes") -> None:
        _draw_bars(axes, rows, "mean finish-time fairness rho (below 1: better than an equal share)")
        axes.axvline(1.0, color="#444444", linewidth=0.8, linestyle="--")

    return chart_of(draw, 0.7 + 0.28 * max(2, len(rows)))


def gantt_chart(timeline: Timeline, names: Mapping[int, str], until_at: float) -> Chart:
    """A row per job: pale while accelerators are held, full while ranks run; the colour is the pool."""
    spans = [span for span in timeline.spans if span.pool_id in timeline.pools]
    color = {pool: CHART_COLORS[row % len(CHART_COLORS)] for row, pool in enumerate(timeline.pools)}
    pools = [pool for pool in color if any(span.pool_id == pool for span in spans)]
    jobs = list(dict.fromkeys(span.job_id for span in sorted(spans, key=lambda span: (span.leased_at, span.job_id))))
    row_of = {job_id: row for row, job_id in enumerate(jobs)}

    def draw(axes: "Axes") -> None:
        for span in spans:
            ended_at = span.ended_at if isfinite(span.ended_at) else until_at
            for begin_at, alpha in ((span.leased_at, 0.3), (span.running_at, 1.0)):
                if isfinite(begin_at) and ended_at > begin_at:
                    bar = [(begin_at / SECONDS_PER_HOUR, (ended_at - begin_at) / SECONDS_PER_HOUR)]
                    axes.broken_barh(
                        bar, (row_of[span.job_id] - 0.4, 0.8), color=color[span.pool_id], alpha=alpha, linewidth=0
                    )
        for pool in pools:
            axes.plot([], [], color=color[pool], linewidth=5, label=pool)
        name_rows(axes, [names.get(job_id, str(job_id)) for job_id in jobs])
        axes.set(xlabel="time (h)", ylim=(len(jobs) - 0.4, -0.6))
        draw_legend(axes)

    return chart_of(draw, 0.9 + 0.17 * max(4, len(jobs)))


# ---------------------------------------------------------------------------------------------------------- the parts


def pool_style(row: int) -> dict[str, Any]:
    return {"color": CHART_COLORS[row % len(CHART_COLORS)]}


def _pool_curves(
    pools: Mapping[str, PoolTrack], levels: Callable[[PoolTrack], tuple[FloatArray, FloatArray] | None]
) -> list[Curve]:
    """Returns the curves of pools that have levels; a pool has one colour in all charts of a page."""
    curves = []
    for row, (name, track) in enumerate(list(pools.items())[:_BARS_MAX]):
        if (found := levels(track)) is not None:
            at, value = found
            curves.append(Curve(name, pool_style(row), value, at))
    return curves


def _draw_bars(axes: "Axes", rows: Sequence[tuple[str, float]], label: str) -> None:
    axes.barh(range(len(rows)), [value for _, value in rows], color=CHART_COLORS[0], height=0.65)
    for row, (_, value) in enumerate(rows):
        axes.text(value, row, f" {value:,.4g}", va="center", fontsize=8)
    name_rows(axes, [name for name, _ in rows])
    axes.margins(x=0.12)
    axes.set(xlabel=label)


def name_rows(axes: "Axes", names: Iterable[str]) -> None:
    """Writes names beside rows 0, 1, ..., the first at the top."""
    shown = [shortened_name(name) for name in names]
    axes.set_yticks(range(len(shown)), shown, fontsize=7.5)
    axes.invert_yaxis()


def draw_legend(axes: "Axes") -> None:
    """Draws the legend of what is labelled, beside the axes."""
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)


def shortened_name(name: str) -> str:
    """Returns a name that fits beside a chart."""
    return name if len(name) <= _NAME_MAX else f"{name[: _NAME_MAX - 1]}…"


def fits_gantt_chart(timeline: Timeline, jobs: int) -> bool:
    """Returns whether the chart is small enough to draw every attempt."""
    return not timeline.spans_left_out and jobs <= GANTT_JOBS_MAX and len(timeline.spans) <= GANTT_SPANS_MAX
