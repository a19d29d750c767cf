"""The figures of a comparison or a sweep: their data, charts, page and table.

The data are written beside the page. A book has settings (one for a comparison; every workload, cluster and rate for a
sweep), a setting has policies, and a policy has its metrics with intervals, the distributions of its jobs over all
seeds, and the levels of its first seed if they were kept. `walras simulate plot` reads the data and draws one figure of
a run, a comparison or a sweep, by its name, as a file (PNG, SVG or PDF).

The page is one HTML file that needs no network; the table of a comparison in LaTeX is for papers (`booktabs`, policies
as rows, metrics with intervals as columns). Names may come from untrusted files: all text goes through `html_text` or
is escaped for LaTeX, and the charts' text is never markup. Where runs were kept with their levels, a slider shows what
each policy did at one time; its data are JSON, where nothing is markup, and the content security policy allows its
script, the page's only one, by hash (`walras.output.html_page`).
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import TypeAdapter

from optimizer.bounds.instance import FloatArray
from optimizer.registry import is_policy_file, name_in_file
from simulator.file_access import bounded_bytes, damaged_file
from simulator.reports.charts import (
    CHART_COLORS,
    CHART_HEIGHT_IN,
    Chart,
    Curve,
    chart_of,
    distribution_chart,
    draw_legend,
    draw_levels,
    levels_chart,
    name_rows,
    pool_style,
    save_chart,
    shortened_name,
    svg_element,
)
from simulator.reports.policy_comparison import (
    ComparedMetric,
    PolicyComparison,
    format_estimate,
    format_number,
    metric_title,
)
from simulator.reports.repeated_runs import MeanEstimate, RunMetrics, estimate_mean
from simulator.reports.report_page import RUN_FIGURES, SUMMARY_FILE, read_report
from simulator.reports.run_spec import RunSpec
from simulator.reports.run_summary import RUN_METRICS, MetricDefinition, none_to_nan, nonfinite_to_none
from simulator.reports.sweep import SweepResult, runs_by_setting
from simulator.reports.timeline import SPREADS, LevelCurve, RunLevels, spread_of
from simulator.worlds.world_registry import WALRAS
from walras.contract import SECONDS_PER_HOUR
from walras.errors import ConfigError, system_refusals
from walras.output.html_page import html_document, html_paragraphs, html_section, html_table, html_text, write_page
from walras.spec.file_model import nearest_or_all

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURES_FILE = "figures.json"
#: Schema number of the file; files of another number are rejected.
FIGURES_SCHEMA = 1
_BYTES_MAX = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    policy: str
    metrics: dict[str, MeanEstimate]
    #: Distributions by name (`simulator.reports.repeated_runs.SPREADS`): sorted values that stand for equally many jobs
    #: each.
    spreads: dict[str, tuple[float, ...]]
    levels: RunLevels | None = None


@dataclass(frozen=True, slots=True)
class FigureSetting:
    """The same jobs on the same cluster for every policy. `rate_per_h` is nan unless the workload is generated."""

    name: str
    workload: str
    cluster: str
    policies: tuple[PolicyFigures, ...]
    rate_per_h: float = nan


@dataclass(frozen=True, slots=True)
class FigureBook:
    """The contents of all figures of one page."""

    title: str
    #: Notes for the reader: seeds, intervals, conditions.
    notes: tuple[str, ...]
    settings: tuple[FigureSetting, ...]


_BOOK = TypeAdapter(FigureBook)


def comparison_book(comparison: PolicyComparison, run: RunSpec) -> FigureBook:
    """Returns the book of a comparison whose runs were kept with their levels."""
    workload, cluster = Path(run.source.name).name, Path(run.cluster).name
    labels = policy_labels(comparison.policies)
    compared = {measure.name: comparison.compared(measure) for measure in RUN_METRICS}
    policies = []
    for row, policy in enumerate(comparison.policies):
        runs = comparison.rows[policy]
        metrics = {name: each[row].value for name, each in compared.items()}
        levels = runs[0].detail.levels if runs[0].detail is not None else None
        policies.append(PolicyFigures(labels[policy], metrics, _pooled(runs), levels))
    setting = FigureSetting(f"{workload} on {cluster}", workload, cluster, tuple(policies))
    return FigureBook(f"{workload} on {cluster}", tuple(_notes(comparison, run)), (setting,))


def _notes(comparison: PolicyComparison, run: RunSpec) -> list[str]:
    notes = []
    if run.world != WALRAS:
        notes.append(f"In the world of {run.world}.")
    if run.conditions is not None:
        notes.append(f"Conditions: {Path(run.conditions).name}.")
    jobs = comparison.resampling
    if len(comparison.seeds) > 1:
        notes.append(
            f"Means over {len(comparison.seeds)} seeds with 95 % intervals; every policy meets the same jobs and the"
            " same random draws."
        )
    elif jobs is not None:
        notes.append(
            f"Nothing is random: one run of each policy. 95 % intervals by drawing its {jobs.jobs:,} jobs again, in"
            f" blocks of {jobs.block}."
        )
    else:
        notes.append(f"One run of each policy, seed {comparison.seeds[0]}.")
    return [*notes, *(f"Conservation violated: {each}" for each in comparison.violations)]


def sweep_book(swept: SweepResult, title: str) -> FigureBook:
    """Returns the book of a sweep: a setting for each workload, cluster and rate."""
    grouped: dict[tuple[str, str, float | None], dict[str, list[RunMetrics]]] = {}
    for (workload, cluster, rate, policy), rows in runs_by_setting(swept).items():
        grouped.setdefault((workload, cluster, rate), {})[policy] = rows
    settings = []
    for (workload, cluster, rate), by_policy in grouped.items():
        labels = policy_labels(tuple(by_policy))
        policies = tuple(
            PolicyFigures(
                labels[policy],
                {name: _estimate(rows, name) for name in _METRIC_NAMES},
                _pooled(rows),
                swept.levels.get((workload, cluster, rate, policy)),
            )
            for policy, rows in by_policy.items()
        )
        names = (Path(workload).name, Path(cluster).name)
        name = f"{names[0]} on {names[1]}" + (f", {rate:g} jobs/h" if rate is not None else "")
        settings.append(FigureSetting(name, *names, policies, nan if rate is None else rate))
    seeds = len({place.seed for place in swept.places})
    notes = (f"{len(swept.rows):,} runs, {seeds} {'seed' if seeds == 1 else 'seeds'} of each; 95 % intervals.",)
    return FigureBook(title, notes, tuple(settings))


_METRIC_NAMES = tuple(measure.name for measure in RUN_METRICS)


def _estimate(rows: Sequence[RunMetrics], name: str) -> MeanEstimate:
    return estimate_mean([row.values[name] for row in rows])


def _pooled(rows: Sequence[RunMetrics]) -> dict[str, tuple[float, ...]]:
    return {name: spread_of([value for row in rows for value in row.spreads.get(name, ())]) for name in SPREADS}


def policy_labels(policies: Sequence[str]) -> dict[str, str]:
    """Returns a short name for each policy: for a file its base name, or the whole path if two files share it."""
    short = {
        policy: name_in_file(policy).rpartition(":")[2]
        if is_policy_file(policy)
        else Path(policy).name.removesuffix(".yaml").removesuffix(".yml") or policy
        for policy in policies
    }
    taken = list(short.values())
    return {policy: name if taken.count(name) == 1 else policy for policy, name in short.items()}


def write_figures(folder: Path, book: FigureBook) -> None:
    """Writes the data of the figures. Raises ConfigError where the folder cannot be written."""
    body = {"schema": FIGURES_SCHEMA, **nonfinite_to_none(asdict(book))}
    with system_refusals(folder, fix="choose another folder", field="out"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FIGURES_FILE).write_text(json.dumps(body) + "\n", encoding="utf-8")


def read_figures(folder: Path) -> FigureBook:
    """Reads what `write_figures` wrote. Raises ConfigError that names a missing or damaged file."""
    path = folder / FIGURES_FILE
    content = bounded_bytes(
        path,
        _BYTES_MAX,
        refused="give a folder that `simulate run`, `compare` or `sweep` wrote with --out",
        too_large="give the folder of a comparison or a sweep",
        field="from",
    )
    try:
        body = json.loads(content)
        if not isinstance(body, dict) or body.pop("schema", None) != FIGURES_SCHEMA:
            raise ValueError(f"it is not of schema {FIGURES_SCHEMA}")
        return _BOOK.validate_python(none_to_nan(body, {"levels"}))
    except (ValueError, RecursionError) as error:
        raise damaged_file(path, error, " is not what a comparison left", "compare again with --out") from None


#: Largest number of curves in one chart: more are hard to tell apart.
CURVES_MAX = 20
_LINES = ("-", "--")
_POINTS = 400


@dataclass(frozen=True, slots=True)
class ComparisonFigure:
    """A figure over policies: its texts, and the function that draws it from settings; None where there is nothing to
    show.
    """

    title: str
    caption: str
    draw: Callable[[Sequence[FigureSetting]], Chart | None]


def _in_setting(draw: Callable[[FigureSetting], Chart | None]) -> Callable[[Sequence[FigureSetting]], Chart | None]:
    """Turns a figure of one setting into one of several, by drawing the first."""
    return lambda settings: draw(settings[0]) if settings else None


def _distribution(name: str, label: str, divisor: float = 1.0) -> Callable[[FigureSetting], Chart | None]:
    def chart(setting: FigureSetting) -> Chart | None:
        shown = [each for each in setting.policies if each.spreads.get(name)]
        curves = [
            Curve(shortened_name(each.policy), style, np.maximum(np.array(each.spreads[name]) / divisor, 1e-6))
            for style, each in _styled(shown)
        ]
        return distribution_chart(curves, label) if curves else None

    return chart


def _means(setting: FigureSetting) -> Chart | None:
    """Bars of the mean completion time with their intervals, and the lower bound for every scheduler."""
    rows = [(each.policy, each.metrics["avg_jct_s"]) for each in setting.policies]
    rows = [(policy, value) for policy, value in rows if isfinite(value.mean)]
    if not rows:
        return None
    bounds = [each.metrics["jct_bound_s"].mean for each in setting.policies]

    def draw(axes: "Axes") -> None:
        hours = [value.mean / SECONDS_PER_HOUR for _, value in rows]
        axes.barh(range(len(rows)), hours, color=CHART_COLORS[0], height=0.6, alpha=0.85)
        for row, (_, value) in enumerate(rows):
            if isfinite(value.low):
                axes.plot(_hours(value), [row, row], color="#000000", linewidth=1.2)
        if all(isfinite(bound) for bound in bounds):
            axes.axvline(min(bounds) / SECONDS_PER_HOUR, color=CHART_COLORS[3], linestyle="--", linewidth=1.0,
                         label="no scheduler's mean is below")  # fmt: skip
            draw_legend(axes)
        name_rows(axes, [policy for policy, _ in rows])
        axes.set(xlabel="mean completion time (h)", xlim=(0, None))

    return chart_of(draw, 0.8 + 0.28 * max(2, len(rows)))


def _hours(value: MeanEstimate) -> list[float]:
    return [value.low / SECONDS_PER_HOUR, value.high / SECONDS_PER_HOUR]


def _loads(settings: Sequence[FigureSetting]) -> Chart | None:
    """Mean completion time by rate of arrivals, for the settings that differ only in the rate."""
    first = next((each for each in settings if isfinite(each.rate_per_h)), None)
    if first is None:
        return None
    same = [each for each in settings if (each.workload, each.cluster) == (first.workload, first.cluster)]
    rates = sorted((each for each in same if isfinite(each.rate_per_h)), key=lambda each: each.rate_per_h)
    if len(rates) < 2:
        return None

    def draw(axes: "Axes") -> None:
        for style, policy in _styled(first.policies):
            points = [
                (each.rate_per_h, found.metrics["avg_jct_s"])
                for each in rates
                for found in each.policies
                if found.policy == policy.policy and isfinite(found.metrics["avg_jct_s"].mean)
            ]
            hours = [value.mean / SECONDS_PER_HOUR for _, value in points]
            axes.plot([x for x, _ in points], hours, marker="o", markersize=3,
                      label=shortened_name(policy.policy), **style)  # fmt: skip
            for x, value in points:
                if isfinite(value.low):
                    axes.plot([x, x], _hours(value), color=style["color"], linewidth=1.0)
        axes.set(xlabel="arrivals per hour", ylabel="mean completion time (h)", ylim=(0, None))
        draw_legend(axes)

    return chart_of(draw)


def _waiting(setting: FigureSetting) -> Chart | None:
    return _over_time(setting, "jobs that wait", lambda each: None if each.levels is None else each.levels.waiting)


def _utilisation(setting: FigureSetting) -> Chart | None:
    def held_part(each: PolicyFigures) -> LevelCurve | None:
        levels = each.levels
        if levels is None or levels.ended_at <= 0:
            return None
        at = np.linspace(0.0, levels.ended_at, _POINTS)
        held, there = _sum_at(levels.held, at), _sum_at(levels.there, at)
        part = np.divide(held, there, out=np.zeros(_POINTS), where=there > 0)
        return LevelCurve(tuple(at.tolist()), tuple(part.tolist()))

    return _over_time(setting, "held / there", held_part)


def _sum_at(curves: Mapping[str, LevelCurve], at: FloatArray) -> FloatArray:
    """Returns the sum of the curves' levels at these instants."""
    total = np.zeros(len(at))
    for curve in curves.values():
        index = np.searchsorted(curve.at, at, side="right") - 1
        total += np.where(index >= 0, np.array(curve.value)[np.maximum(index, 0)], 0.0)
    return total


def _over_time(
    setting: FigureSetting, label: str, curve_of: Callable[[PolicyFigures], LevelCurve | None]
) -> Chart | None:
    found = [(each, curve) for each in setting.policies if (curve := curve_of(each)) is not None and curve.at]
    by_policy = {each.policy: curve for each, curve in found}
    curves = [_curve_of(by_policy[each.policy], each.policy, style) for style, each in _styled([e for e, _ in found])]
    return levels_chart(curves, label) if curves else None


def _curve_of(curve: LevelCurve, name: str, style: Mapping[str, Any]) -> Curve:
    return Curve(shortened_name(name), style, np.array(curve.value), np.array(curve.at))


def _prices(setting: FigureSetting) -> Chart | None:
    """One chart below the other, because the units of prices differ between policies."""
    shown = [each for each in setting.policies if each.levels is not None and each.levels.price][:CURVES_MAX]
    if not shown:
        return None

    def draw(rows: "list[Axes]") -> None:
        pools = sorted({pool for each in shown if each.levels is not None for pool in each.levels.price})
        for axes, each in zip(rows, shown, strict=True):
            assert each.levels is not None  # chosen above
            price, rows_of = each.levels.price, enumerate(pools[:CURVES_MAX])
            draw_levels(axes, [_curve_of(price[pool], pool, pool_style(row)) for row, pool in rows_of if pool in price])
            unit = each.levels.price_unit or "its own unit"
            axes.set_title(f"{shortened_name(each.policy)}, in {unit}", fontsize=9, loc="left")
            axes.set(ylabel="price", ylim=(0, None))
        rows[-1].set_xlabel("time (h)")
        draw_legend(rows[0])

    return Chart(draw, 0.5 + 1.7 * len(shown), len(shown))


def _market_prices(setting: FigureSetting) -> Chart | None:
    """The market is the same for every policy, so the prices are those of the first policy that has them."""
    levels = next((each.levels for each in setting.policies if each.levels is not None), None)
    moved = {} if levels is None else {pool: c for pool, c in levels.usd_per_h.items() if len(set(c.value)) > 1}
    shown = list(moved.items())[:CURVES_MAX]
    curves = [_curve_of(curve, pool, pool_style(row)) for row, (pool, curve) in enumerate(shown)]
    return levels_chart(curves, "USD/h of a machine") if curves else None


def _money(setting: FigureSetting) -> Chart | None:
    """Cost by policy, divided by market where that was kept."""
    bills = {
        each.policy: each.levels.usd_by_market if each.levels is not None else {"all": each.metrics["usd"].mean}
        for each in setting.policies
    }
    if not any(usd > 0 for bill in bills.values() for usd in bill.values()):
        return None

    def draw(axes: "Axes") -> None:
        markets = sorted({market for bill in bills.values() for market in bill})
        left = np.zeros(len(bills))
        for row, market in enumerate(markets):
            usd = np.array([bill.get(market, 0.0) for bill in bills.values()])
            axes.barh(range(len(bills)), usd, left=left, height=0.6, label=market, **pool_style(row))
            left += usd
        name_rows(axes, bills)
        axes.set(xlabel="USD")
        draw_legend(axes)

    return chart_of(draw, max(0.8 + 0.28 * max(2, len(bills)), CHART_HEIGHT_IN / 2))


def _styled(policies: Sequence[PolicyFigures]) -> "list[tuple[dict[str, Any], PolicyFigures]]":
    """Returns the policies with the colour and line style that each has in every chart of the page."""
    n = len(CHART_COLORS)
    return [
        ({"color": CHART_COLORS[row % n], "linestyle": _LINES[row // n % len(_LINES)]}, each)
        for row, each in enumerate(policies[:CURVES_MAX])
    ]


#: By the name that `walras simulate plot` takes, in the order of the page.
COMPARISON_FIGURES: Mapping[str, ComparisonFigure] = {
    "loads": ComparisonFigure("Completion time by load", "Mean completion time, with 95 % intervals.", _loads),
    "means": ComparisonFigure("Mean completion times", "With 95 % intervals where there are.", _in_setting(_means)),
    "jct": ComparisonFigure(
        "Completion times",
        "Distribution over the jobs that succeeded, of all seeds.",
        _in_setting(_distribution("jct_s", "completion time (h)", SECONDS_PER_HOUR)),
    ),
    "slowdown": ComparisonFigure(
        "Slowdowns",
        "Completion time over the time that the job takes alone on its fastest pool.",
        _in_setting(_distribution("slowdown", "slowdown")),
    ),
    "fairness": ComparisonFigure(
        "Fairness",
        "Finish-time fairness of every job: below 1 it ended sooner than in an equal share of the fleet.",
        _in_setting(_distribution("rho", "finish-time fairness")),
    ),
    "waiting": ComparisonFigure(
        "Jobs that wait", "Jobs in the system that hold no accelerator, of the first seed.", _in_setting(_waiting)
    ),
    "utilisation": ComparisonFigure(
        "Utilisation", "Accelerators held, as a part of those there; first seed.", _in_setting(_utilisation)
    ),
    "prices": ComparisonFigure(
        "Prices", "What each policy asks for one accelerator of every pool; first seed.", _in_setting(_prices)
    ),
    "market-prices": ComparisonFigure(
        "Market prices", "What the market asks for a machine, of the first seed.", _in_setting(_market_prices)
    ),
    "money": ComparisonFigure("Money", "The bill of all machines, by market, of the first seed.", _in_setting(_money)),
}


def plot_figure(figure: str, folder: Path, out: Path, setting: str | None = None) -> None:
    """Draws a figure of the folder of a run, a comparison or a sweep into a file.

    `setting` names the setting of a sweep as its page does; None: the first one. Raises ConfigError that names the
    figures that exist.
    """
    is_run = not (folder / FIGURES_FILE).exists() and (folder / SUMMARY_FILE).exists()
    known = list(RUN_FIGURES if is_run else COMPARISON_FIGURES)
    if figure not in known:
        fix = nearest_or_all(figure, known, "name one of ")
        raise ConfigError(f"{'a run' if is_run else 'a comparison'} has no figure {figure!r}", field="figure", fix=fix)
    if is_run:
        chart = RUN_FIGURES[figure].draw(read_report(folder))
    else:
        book = read_figures(folder)
        settings = book.settings if setting is None else (_find_setting(book, setting),)
        chart = COMPARISON_FIGURES[figure].draw(settings)
    if chart is None:
        raise ConfigError(f"{folder} has nothing to show as {figure!r}", field="figure", fix="draw another figure")
    save_chart(chart, out)


def _find_setting(book: FigureBook, name: str) -> FigureSetting:
    found = next((each for each in book.settings if each.name == name), None)
    if found is None:
        names = "; ".join(each.name for each in book.settings)
        raise ConfigError(f"no setting {name!r}", field="setting", fix=f"name one of: {names}"[:1000])
    return found


COMPARISON_PAGE = "compare.html"
#: Number of settings whose distributions are drawn; the others are only in the tables.
SETTINGS_DRAWN = 12
#: Metrics in the table of a setting, in this order, where some policy has them.
_SHOWN = (
    "avg_jct_s", "p95_jct_s", "p99_jct_s", "slowdown_mean", "slowdown_max", "makespan_s", "avg_queueing_s", "rho_mean",
    "unfair", "utilisation", "usd", "preemptions", "losses", "overhead", "deadline_misses", "unfinished", "jct_bound_s",
    "jct_gap",
)  # fmt: skip


def write_comparison_page(folder: Path, book: FigureBook) -> Path:
    """Writes the data of the figures and the page into the folder, and returns the page's path. Raises UserError."""
    write_figures(folder, book)
    path = folder / COMPARISON_PAGE
    write_page(path, comparison_html(book), "out")
    return path


def comparison_html(book: FigureBook) -> str:
    parts = [f"<h1>{html_text(book.title)}</h1>", html_paragraphs(book.notes)]
    loads = COMPARISON_FIGURES["loads"]
    for number, settings in enumerate(_by_load(book.settings)):
        chart = loads.draw(settings)
        if chart is not None:
            name = f"{loads.title}: {settings[0].workload} on {settings[0].cluster}"
            parts.append(html_section(name, loads.caption, svg_element(chart, f"loads{number}")))
    for number, setting in enumerate(book.settings):
        parts += _setting_html(setting, number, len(book.settings) > 1)
    is_over_time = any(each.levels is not None for setting in book.settings for each in setting.policies)
    return html_document(book.title, parts, script=slider_script() if is_over_time else "")


def _by_load(settings: Sequence[FigureSetting]) -> list[list[FigureSetting]]:
    grouped: dict[tuple[str, str], list[FigureSetting]] = {}
    for setting in settings:
        grouped.setdefault((setting.workload, setting.cluster), []).append(setting)
    return list(grouped.values())


def _setting_html(setting: FigureSetting, number: int, is_one_of_many: bool) -> Iterable[str]:
    before = f"{setting.name}: " if is_one_of_many else ""
    yield html_section(f"{before}Figures", "", _metrics_html(setting))
    if number >= SETTINGS_DRAWN:
        return
    if slider := slider_html(setting):
        yield html_section(before + _HEADING, _CAPTION, slider)
    for name, figure in COMPARISON_FIGURES.items():
        chart = None if name == "loads" else figure.draw([setting])
        if chart is not None:
            yield html_section(before + figure.title, figure.caption, svg_element(chart, f"{name}{number}"))


def _metrics_html(setting: FigureSetting) -> str:
    """Returns a table with a row for each metric and a column for each policy, as in the terminal."""
    by_name = {measure.name: measure for measure in RUN_METRICS}
    shown = [by_name[name] for name in _SHOWN if _is_worth_showing(each.metrics[name] for each in setting.policies)]
    rows = [
        (metric_title(measure), *(format_estimate(each.metrics[measure.name]) for each in setting.policies))
        for measure in shown
    ]
    return html_table(("figure", *(each.policy for each in setting.policies)), rows)


def _is_worth_showing(values: Iterable[MeanEstimate]) -> bool:
    return any(isfinite(each.mean) and each.mean != 0.0 for each in values)


#: Largest number of policies side by side; the others are only in the charts.
_POLICIES_MOST = 8
#: Digits of levels and instants, of which the page has thousands.
_DIGITS = 6
_HEADING = "At one time"
_CAPTION = (
    "Move the slider (arrow keys, Page Up and Down, Home and End), or go from change to change. A cell is an"
    " accelerator in the colour of its job; jobs by number, with how many accelerators they hold there. First seed."
)
_WITHOUT = "This part of the page needs its script, which this browser does not run."


@cache
def slider_script() -> str:
    """Returns the script that moves every slider of a page."""
    return files("simulator.reports").joinpath("time_slider.js").read_text(encoding="utf-8")


def slider_html(setting: FigureSetting) -> str:
    """Returns the slider of a setting, as markup; empty where no policy has levels over time."""
    data = slider_data(setting)
    if data is None:
        return ""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    # Inside a script element only the start of another tag, or of a comment, could be read as markup.
    text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return (
        f'<noscript><p>{_WITHOUT}</p></noscript><div class="time-slider">'
        f'<script type="application/json">{text}</script></div>'
    )


def slider_data(setting: FigureSetting) -> dict[str, Any] | None:
    """Returns the script's data: the levels and attempts of every policy, in seconds; None if no policy has any."""
    policies = [
        _policy(each.policy, each.levels) for each in setting.policies if each.levels and each.levels.ended_at > 0
    ][:_POLICIES_MOST]
    return {"until": max(each["until"] for each in policies), "policies": policies} if policies else None


def _policy(name: str, levels: RunLevels) -> dict[str, Any]:
    curves: Mapping[str, Mapping[str, LevelCurve]] = {
        "there": levels.there,
        "held": levels.held,
        "price": levels.price,
        "usd_per_h": levels.usd_per_h,
    }
    pools: dict[str, dict[str, Any]] = {
        pool: {kind: _curve(of_pool[pool]) for kind, of_pool in curves.items() if pool in of_pool}
        for pool in sorted(levels.there)
    }
    for pool, attempts in levels.attempts.items():
        rows = [(job, count, _short(start), _short(end)) for job, count, start, end in attempts]
        pools.setdefault(pool, {})["attempts"] = rows
    return {
        "name": name,
        "until": levels.ended_at,
        "named_until": levels.attempts_until,
        "unit": levels.price_unit,
        "waiting": _curve(levels.waiting),
        "pools": pools,
    }


def _curve(curve: LevelCurve) -> tuple[list[float], list[float]]:
    return [_short(at) for at in curve.at], [_short(value) for value in curve.value]


def _short(value: float) -> float:
    """Rounds seconds to thousandths and levels to six digits, because invisible digits would be most of the page."""
    return round(float(value), 3) if abs(value) >= 1.0 else float(f"{value:.{_DIGITS}g}")


#: Metrics of the table, each with its divisor and the resulting unit.
_LATEX_COLUMNS: tuple[tuple[str, float, str], ...] = (
    ("avg_jct_s", 3600.0, "h"),
    ("p99_jct_s", 3600.0, "h"),
    ("makespan_s", 3600.0, "h"),
    ("slowdown_mean", 1.0, ""),
    ("rho_mean", 1.0, ""),
    ("unfair", 0.01, "%"),
    ("preemptions", 1.0, ""),
    ("deadline_misses", 1.0, "jobs"),
    ("usd", 1.0, "USD"),
)
_ESCAPED = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    '"': "''",
}  # fmt: skip


def latex_table(comparison: PolicyComparison, caption: str) -> str:
    r"""Returns the table. It needs `\usepackage{booktabs}` and nothing else; the best of a column is bold."""
    by_name = {measure.name: measure for measure in RUN_METRICS}
    shown = [
        (by_name[name], divisor, unit, compared)
        for name, divisor, unit in _LATEX_COLUMNS
        for compared in (comparison.compared(by_name[name]),)
        if _is_worth_showing(each.value for each in compared)
    ]
    labels = policy_labels(comparison.policies)
    heads = [_latex_head(measure, unit) for measure, _, unit, _ in shown]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex_text(caption)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(shown)}}}",
        r"\toprule",
        " & ".join(["policy", *heads]) + r" \\",
        r"\midrule",
    ]
    for row, policy in enumerate(comparison.policies):
        cells = [_latex_cell(compared[row], divisor) for _, divisor, _, compared in shown]
        lines.append(" & ".join([latex_text(labels[policy]), *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def latex_caption(comparison: PolicyComparison, workload: str, cluster: str) -> str:
    """Returns the caption: what the table shows, and what its intervals are over."""
    if len(comparison.seeds) > 1:
        intervals = f" Means over {len(comparison.seeds)} seeds with 95 % intervals."
    elif comparison.resampling is not None:
        intervals = f" One run; 95 % intervals by drawing its {comparison.resampling.jobs} jobs again in blocks."
    else:
        intervals = " One run."
    return f"{workload} on {cluster}.{intervals}"


def write_latex(path: Path, text: str) -> None:
    """Writes the table. Raises ConfigError where the path cannot be written."""
    with system_refusals(path, fix="choose another path", field="latex"):
        path.write_text(text, encoding="utf-8")


def latex_text(text: str) -> str:
    """Returns text without LaTeX commands; characters that fonts lack become question marks."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return "".join(_ESCAPED.get(letter, letter) for letter in shown)


def _latex_head(measure: MetricDefinition, unit: str) -> str:
    return latex_text(f"{measure.title} ({unit})" if unit else measure.title)


def _latex_cell(each: ComparedMetric, divisor: float) -> str:
    value = each.value
    if not isfinite(value.mean):
        return "--"
    mean = format_number(value.mean / divisor)
    text = rf"\textbf{{{mean}}}" if each.best else mean
    if not isfinite(value.low):
        return text
    if value.is_centred:
        return rf"{text} $\pm$ {format_number(value.half / divisor)}"
    return f"{text} ({format_number(value.low / divisor)}--{format_number(value.high / divisor)})"
