"""Comparing policies from Python: the same runs as `walras simulate compare`, as a table that one can work with."""

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optimizer.registry import is_policy_file, name_in_file
from simulator.reports.baselines import BoundsChoice
from simulator.reports.comparison_charts import comparison_book, write_comparison_page
from simulator.reports.policy_comparison import PolicyComparison, compare_policies, comparison_tables
from simulator.reports.repeated_runs import ParallelWorkers
from simulator.reports.run_spec import GeneratorOptions, RunSpec, WorkloadSource
from simulator.reports.run_summary import RUN_METRICS
from walras.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

#: Columns of a table on a screen or in a notebook.
_WIDTH = 160


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several policies on the same jobs and the same random draws, seed by seed. It prints itself as a table."""

    found: PolicyComparison
    #: The names of the policies as they were given.
    labels: dict[str, str]

    def records(self) -> list[dict[str, Any]]:
        """Returns one row for each policy and seed: `policy`, `seed`, and every metric by its name
        (docs/simulator.md).
        """
        found = self.found
        return [
            {"policy": self.labels[policy], "seed": seed, **row.values}
            for policy in found.policies
            for seed, row in zip(found.seeds, found.rows[policy], strict=True)
        ]

    def mean(self, metric: str) -> dict[str, float]:
        """Returns the mean over the seeds by policy, such as `mean("avg_jct_s")`. Raises ConfigError for no metric."""
        measures = {each.name: each for each in RUN_METRICS}
        if metric not in measures:
            raise ConfigError(f"no metric {metric!r}", field="metric", fix=f"one of {', '.join(measures)}")
        return {self.labels[each.policy]: each.value.mean for each in self.found.compared(measures[metric])}

    def to_pandas(self) -> "pd.DataFrame":
        """Returns the records as a pandas table. pandas has to be installed."""
        import pandas as pd

        return pd.DataFrame.from_records(self.records())

    def __str__(self) -> str:
        from rich.console import Console

        written = StringIO()
        shown = replace(
            self.found,
            policies=tuple(self.labels[each] for each in self.found.policies),
            rows={self.labels[each]: rows for each, rows in self.found.rows.items()},
        )
        for table in comparison_tables(shown):
            Console(file=written, width=_WIDTH).print(table)
        return written.getvalue()

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


def compare(
    policies: Iterable[str | type[Any]],
    *,
    on: str,
    cluster: str,
    seeds: Sequence[int] = (0,),
    jobs: int | None = None,
    rate_per_h: float | None = None,
    conditions: str | None = None,
    processes: int = 1,
    out: Path | str | None = None,
) -> Comparison:
    """Run every policy with every seed, on the same jobs.

    Args:
        policies: classes of `walras.lab`, written in a file; `my_policies.py[:Name]`; policy files; names.
        on: a workload file, a trace, a shipped workload's name, or `generate:NAME`, which is drawn from the seed.
        cluster: a cluster file, or a shipped cluster's name.
        jobs: number of jobs, with `generate:NAME`.
        rate_per_h: arrivals per hour, with `generate:NAME`; 0: all at once.
        conditions: costs, noise and faults: a file or a shipped name. None: starts cost nothing and nothing fails.
        processes: runs at the same time.
        out: a folder that gets `compare.html`, the page of `walras simulate compare --out`, and its data.

    Raises ConfigError for what cannot be read, and for a policy that fails: its method and line are named.
    """
    named = dict(_named(each) for each in policies)
    made = GeneratorOptions(jobs=jobs, rate_per_h=rate_per_h)
    template = RunSpec(
        WorkloadSource(on, made=made), cluster, next(iter(named), ""), bounds=BoundsChoice.CHEAP, conditions=conditions
    )
    workers = ParallelWorkers(processes)
    found = compare_policies(template, tuple(named), tuple(seeds), workers, with_levels=out is not None)
    if out is not None:
        write_comparison_page(Path(out), comparison_book(found, template))
    return Comparison(found, named)


def _named(policy: str | type[Any]) -> tuple[str, str]:
    """Returns what the simulator calls the policy, and what people do."""
    if isinstance(policy, str):
        is_own = is_policy_file(policy)
        return policy, name_in_file(policy).rpartition(":")[2] if is_own else policy
    path = inspect.getsourcefile(policy)
    if path is None or not path.endswith(".py"):
        raise ConfigError(
            f"{policy.__name__} was not written in a file", field="policies", fix="save it as my_policies.py"
        )
    return f"{path}:{policy.__name__}", policy.__name__
