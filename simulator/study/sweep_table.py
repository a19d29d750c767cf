"""A sweep for people and for programs: means over the seeds of every setting. The rows themselves are in the CSV."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from simulator.report import finite
from simulator.study.compare import number, titled
from simulator.study.measures import MEASURES
from simulator.study.statistics import Estimate, estimate
from simulator.study.sweep import Sweep, settings

#: Figures of the table; all of them are in the CSV and in JSON.
_SHOWN = ("avg_jct_s", "p99_jct_s", "makespan_s", "rho_mean", "utilisation", "usd", "preemptions", "deadline_misses")


def sweep_table(swept: Sweep) -> Table:
    """A line per workload, cluster, rate and policy."""
    by_setting = settings(swept)
    with_rates = any(rate is not None for _, _, rate, _ in by_setting)
    table = Table(title=f"{len(swept.rows)} runs, {swept.ran} of them now; means over seeds, ± 95 % interval")
    for title in ("workload", "cluster", *(("jobs/h",) if with_rates else ()), "policy"):
        table.add_column(title)
    shown = [measure for measure in MEASURES if measure.name in _SHOWN]
    for measure in ("seeds", *(titled(measure) for measure in shown)):
        table.add_column(measure, justify="right")
    for (workload, cluster, rate, policy), rows in by_setting.items():
        words = [Path(workload).name, Path(cluster).name, *([f"{rate:g}" if rate is not None else "-"] * with_rates)]
        figures = [_cell(estimate([row.values[measure.name] for row in rows])) for measure in shown]
        table.add_row(*(Text(word) for word in (*words, Path(policy).name)), str(len(rows)), *figures)
    return table


def _cell(value: Estimate) -> str:
    return number(value.mean) + (f" ± {number(value.half)}" if value.low == value.low else "")


def sweep_json(swept: Sweep) -> dict[str, Any]:
    """Every setting with every figure's mean and interval."""
    body = {
        "runs": len(swept.rows),
        "ran": swept.ran,
        "rejected": swept.rejected,
        "settings": [
            {
                "workload": workload,
                "cluster": cluster,
                "rate_per_h": rate,
                "policy": policy,
                "measures": {
                    measure.name: asdict(estimate([row.values[measure.name] for row in rows])) for measure in MEASURES
                },
            }
            for (workload, cluster, rate, policy), rows in settings(swept).items()
        ],
    }
    data: dict[str, Any] = finite(body)
    return data
