"""The page of a comparison or a sweep: policies side by side, in one HTML file that needs no network; and the table of
a comparison in LaTeX, for papers (`booktabs`, policies as rows, metrics with intervals as columns).

Names may come from untrusted files: all text goes through `html_text` or is escaped for LaTeX, and the charts' text is
never markup. Where runs were kept with their levels, a slider shows what each policy did at one time; its data are
JSON, where nothing is markup, and the content security policy allows its script, the page's only one, by hash
(`walras.output.html_page`).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import Any

from simulator.reports.charts import svg_element
from simulator.reports.comparison_charts import (
    COMPARISON_FIGURES,
    FigureBook,
    FigureSetting,
    policy_labels,
    write_figures,
)
from simulator.reports.policy_comparison import (
    ComparedMetric,
    PolicyComparison,
    format_estimate,
    format_number,
    metric_title,
)
from simulator.reports.repeated_runs import MeanEstimate
from simulator.reports.run_detail import LevelCurve, RunLevels
from simulator.reports.run_summary import RUN_METRICS, MetricDefinition
from walras.errors import system_refusals
from walras.output.html_page import html_document, html_paragraphs, html_section, html_table, html_text, write_page

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
