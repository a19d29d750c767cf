"""The charts of one run: completion times, queueing, utilisation, prices, money, fairness, and its attempts."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from optimizer.bounds.instance import FloatArray
from simulator.reports.chart_output import Chart, chart_of
from simulator.reports.run_summary import ProjectSummary
from simulator.reports.timeline import PoolTrack, StepSeries, Timeline
from walras.contract import SECONDS_PER_HOUR

if TYPE_CHECKING:
    from matplotlib.axes import Axes


#: Largest numbers of jobs and of attempts for which the Gantt chart is drawn.
GANTT_JOBS_MAX, GANTT_SPANS_MAX = 120, 4000
_BARS_MAX = 30
_BINS = 400
#: Colours of curves, in order of use.
CHART_COLORS = (
    "#3b6fb6", "#d1762d", "#4c9a5a", "#b5483f", "#7d62a8", "#8a6d5a", "#c774a8", "#6f6f6f", "#9a9a2f", "#3aa0ad",
)  # fmt: skip


def jct_cdf_chart(jct_s: Sequence[float]) -> Chart:
    """The distribution of completion times."""

    def draw(axes: "Axes") -> None:
        hours = sorted(max(length_s, 1e-3) / SECONDS_PER_HOUR for length_s in jct_s)
        axes.step(hours, [rank / len(hours) for rank in range(1, len(hours) + 1)], where="post", color=CHART_COLORS[0])
        if hours[-1] > 20 * hours[0]:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter("")
        axes.set(xlabel="completion time (h)", ylabel="part of the jobs", ylim=(0, 1.02))

    return chart_of(draw)


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

    def draw(axes: "Axes") -> None:
        for color, (name, track) in _coloured_pools(pools):
            at, held = binned_means(track.held, until_at)
            _, there = binned_means(track.there, until_at)
            part = np.divide(held, there, out=np.full_like(held, np.nan), where=there > 0)
            axes.step(at / SECONDS_PER_HOUR, part, where="post", color=color, label=name)
        axes.set(xlabel="time (h)", ylabel="held / there", ylim=(0, 1.05))
        draw_legend(axes)

    return chart_of(draw)


def price_chart(pools: Mapping[str, PoolTrack], until_at: float) -> Chart:
    """The optimizer's price of one accelerator in every pool, from solve to solve."""

    def draw(axes: "Axes") -> None:
        for color, (name, track) in _coloured_pools(pools):
            if track.price.at:
                at, price = series_means(track.price, until_at)
                seen = at >= track.price.at[0]
                axes.step(at[seen] / SECONDS_PER_HOUR, price[seen], where="post", color=color, label=name)
        axes.set(xlabel="time (h)", ylabel="price", ylim=(0, None))
        draw_legend(axes)

    return chart_of(draw)


def market_price_chart(pools: Mapping[str, PoolTrack], until_at: float) -> Chart:
    """The market price of a machine in every pool."""

    def draw(axes: "Axes") -> None:
        for color, (name, track) in _coloured_pools(pools):
            at, price = series_means(track.usd_per_h, until_at)
            axes.step(at / SECONDS_PER_HOUR, price, where="post", color=color, label=name)
        axes.set(xlabel="time (h)", ylabel="USD/h of a machine", ylim=(0, None))
        draw_legend(axes)

    return chart_of(draw)


def money_chart(usd_by_market: Mapping[str, float]) -> Chart:
    """Cost in USD by market."""
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
        axes.set_yticks(range(len(jobs)))
        _tick_labels(axes, [shortened_name(names.get(job_id, str(job_id))) for job_id in jobs])
        axes.set(xlabel="time (h)", ylim=(len(jobs) - 0.4, -0.6))
        draw_legend(axes)

    return chart_of(draw, 0.9 + 0.17 * max(4, len(jobs)))


# ---------------------------------------------------------------------------------------------------------- the parts


def series_means(level: StepSeries, until_at: float) -> tuple[FloatArray, FloatArray]:
    """Returns the series itself if it has few changes, else exact means over equal intervals: (begin, value)."""
    if len(level.at) > _BINS:
        return binned_means(level, until_at)
    at = np.array([*level.at, max(until_at, level.at[-1] if level.at else 0.0)])
    return at, np.array([*level.value, level.now])


def binned_means(level: StepSeries, until_at: float) -> tuple[FloatArray, FloatArray]:
    """Returns exact means over equal intervals of the run: (begin, mean); 0 before the first value."""
    until_at = max(until_at, 1e-9)
    at = np.array([0.0, *level.at, max(until_at, level.at[-1] if level.at else 0.0)])
    passed = np.concatenate([[0.0], np.cumsum(np.array([0.0, *level.value]) * np.diff(at))])
    edges = np.linspace(0.0, until_at, _BINS + 1)
    return edges[:-1], np.diff(np.interp(edges, at, passed)) / np.diff(edges)


def _coloured_pools(pools: Mapping[str, PoolTrack]) -> list[tuple[str, tuple[str, PoolTrack]]]:
    return [(CHART_COLORS[row % len(CHART_COLORS)], item) for row, item in enumerate(list(pools.items())[:_BARS_MAX])]


def _draw_bars(axes: "Axes", rows: Sequence[tuple[str, float]], label: str) -> None:
    axes.barh(range(len(rows)), [value for _, value in rows], color=CHART_COLORS[0], height=0.65)
    for row, (_, value) in enumerate(rows):
        axes.text(value, row, f" {value:,.4g}", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)))
    _tick_labels(axes, [shortened_name(name) for name, _ in rows])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set(xlabel=label)


def _tick_labels(axes: "Axes", names: Sequence[str]) -> None:
    axes.set_yticklabels(names, fontsize=7.5)


def draw_legend(axes: "Axes") -> None:
    """Draws the legend beside the axes."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)


def shortened_name(name: str, longest: int = 28) -> str:
    """Returns a name that fits beside a chart."""
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def fits_gantt_chart(timeline: Timeline, jobs: int) -> bool:
    """Returns whether the chart is small enough to draw every attempt."""
    return not timeline.spans_left_out and jobs <= GANTT_JOBS_MAX and len(timeline.spans) <= GANTT_SPANS_MAX
