"""A comparison as a LaTeX table with intervals, for papers: `booktabs`, policies as rows, metrics as columns.

Names from files are escaped, so none of them is run as a command.
"""

from collections.abc import Sequence
from math import isfinite
from pathlib import Path

from simulator.reports.figure_book import policy_labels
from simulator.reports.policy_comparison import ComparedMetric, PolicyComparison, format_number
from simulator.reports.run_summary import RUN_METRICS, MetricDefinition
from walras.errors import ConfigError

#: Metrics of the table, each with its divisor and the resulting unit.
_COLUMNS: tuple[tuple[str, float, str], ...] = (
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
        for name, divisor, unit in _COLUMNS
        if _is_worth_showing(compared := comparison.compared(by_name[name]))
    ]
    labels = policy_labels(comparison.policies)
    heads = [_head(measure, unit) for measure, _, unit, _ in shown]
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
        cells = [_cell(compared[row], divisor) for _, divisor, _, compared in shown]
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
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", field="latex", fix="choose another path") from None


def latex_text(text: str) -> str:
    """Returns text without LaTeX commands; characters that fonts lack become question marks."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return "".join(_ESCAPED.get(letter, letter) for letter in shown)


def _is_worth_showing(compared: Sequence[ComparedMetric]) -> bool:
    return any(isfinite(each.value.mean) and each.value.mean != 0.0 for each in compared)


def _head(measure: MetricDefinition, unit: str) -> str:
    return latex_text(f"{measure.title} ({unit})" if unit else measure.title)


def _cell(each: ComparedMetric, divisor: float) -> str:
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
