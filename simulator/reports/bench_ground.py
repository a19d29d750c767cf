"""A ground of the bench: cells to execute, metrics to show, published results, and a bound or why there is none.

`BenchGround` is simulated: each cell is a run. `ScoredGround` has cells of another kind, with metrics of their own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import isnan, nan
from pathlib import Path
from typing import Any, Protocol

from simulator.engine import RunOutcome
from simulator.reports.repeated_runs import RunMetrics, execute_for_metrics
from simulator.reports.run_spec import RunSpec, RunWatcher, describe_run
from simulator.reports.run_summary import RUN_METRICS, MetricDefinition

#: Metrics in the table of a simulated ground; the result file has all of them.
_SHOWN = (
    "avg_jct_s", "p95_jct_s", "p99_jct_s", "makespan_s", "jct_bound_s", "jct_gap", "unfair", "preemptions", "usd",
)  # fmt: skip
#: The same of a ground whose runs end before their jobs have.
_SHOWN_LIMITED = ("finished", "avg_jct_s", "p95_jct_s", "jct_bound_s", "jct_gap", "unfair", "preemptions")


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """A published or recorded result: metrics under Walras's names."""

    policy: str
    #: The source, and how its setting differs from our runs.
    source: str
    metrics: dict[str, float] = field(default_factory=dict)


class BenchCell(Protocol):
    """One policy on one ground with one seed. It is a value that another process can load."""

    @property
    def policy(self) -> str:
        """Returns the name of the policy."""
        ...

    def describe(self) -> dict[str, Any]:
        """Returns everything that determines the metrics. Raises ConfigError for a file or policy that is missing."""
        ...

    def execute(self, watch: RunWatcher | None) -> RunMetrics:
        """Returns the metrics. Raises ConfigError for errors in the input."""
        ...


@dataclass(frozen=True, slots=True)
class RunCell:
    """A cell that is a simulated run."""

    run: RunSpec

    @property
    def policy(self) -> str:
        return self.run.policy

    def describe(self) -> dict[str, Any]:
        return describe_run(self.run)

    def execute(self, watch: RunWatcher | None) -> RunMetrics:
        return execute_for_metrics(self.run, watch)


@dataclass(frozen=True, slots=True)
class BenchGround:
    """Jobs, a cluster and conditions on which policies are compared."""

    name: str
    about: str
    #: Template of the runs; its policy and seed are replaced.
    run: RunSpec
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    #: Published results for the same jobs on the same machines.
    published: tuple[PublishedRow, ...] = ()
    #: Why no bound holds for every scheduler; "" where one is computed.
    no_bound: str = ""

    @property
    def metrics(self) -> tuple[MetricDefinition, ...]:
        """Returns the metrics in the result file."""
        return RUN_METRICS

    @property
    def shown(self) -> tuple[str, ...]:
        """Returns the names of the metrics in the table."""
        return _SHOWN if self.run.until_s is None else _SHOWN_LIMITED

    @property
    def outcome(self) -> str:
        """Returns how its runs end."""
        return (RunOutcome.COMPLETE if self.run.until_s is None else RunOutcome.TIME_LIMIT).value

    @property
    def files(self) -> tuple[str, ...]:
        """Returns the user's files and folders that the runs need."""
        source = self.run.source
        wanted = (source.name, source.speeds, source.learning)
        return tuple(each for each in wanted if each is not None and Path(each).is_absolute())

    def runs(self) -> list[RunSpec]:
        """Returns the runs: every policy with every seed."""
        return [replace(self.run, policy=policy, seed=seed) for policy in self.policies for seed in self.seeds]

    def cells(self) -> list[BenchCell]:
        """Returns the same as cells."""
        return [RunCell(run) for run in self.runs()]


@dataclass(frozen=True, slots=True)
class ScoredGround:
    """A ground whose cells are no simulated runs."""

    name: str
    about: str
    policies: tuple[str, ...]
    #: Makes the cell of a policy.
    cell: Callable[[str], BenchCell]
    metrics: tuple[MetricDefinition, ...]
    files: tuple[str, ...]
    published: tuple[PublishedRow, ...] = ()
    seeds: tuple[int, ...] = (0,)
    no_bound: str = ""

    @property
    def shown(self) -> tuple[str, ...]:
        """Returns the names of the metrics in the table."""
        return tuple(metric.name for metric in self.metrics)

    @property
    def outcome(self) -> str:
        """Returns how its cells end."""
        return RunOutcome.COMPLETE.value

    def cells(self) -> list[BenchCell]:
        """Returns the cell of every policy."""
        return [self.cell(policy) for policy in self.policies]


AnyGround = BenchGround | ScoredGround


def missing_files(ground: AnyGround) -> list[str]:
    """Returns the missing files and folders of a ground."""
    return [each for each in ground.files if not Path(each).exists()]


def sort_key(ground: AnyGround, means: Mapping[str, float]) -> tuple[bool, float]:
    """Returns the key by which rows are sorted: by the first metric shown, best first, rows without it last."""
    first = next(metric for metric in ground.metrics if metric.name == ground.shown[0])
    value = means.get(first.name, nan)
    return isnan(value), -value if first.lower_is_better is False else value
