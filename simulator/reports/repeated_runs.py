"""Execution of many runs in this process, in processes of this machine or on a Dask cluster, and means over their
seeds.

Results arrive as they are ready, and do not depend on where they were computed.
"""

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from math import isfinite, nan, sqrt
from typing import TYPE_CHECKING

from simulator.reports.run_spec import RunSpec, RunWatcher, execute_run
from simulator.reports.run_summary import TIME_METRICS, metric_values
from walras.errors import ConfigError, UserError

if TYPE_CHECKING:
    from simulator.reports.timeline import RunDepth, RunDetail

#: Largest number of runs of one sweep or comparison.
RUNS_MAX = 100_000
_SEED_MAX = 2**31 - 1


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parses `0-4`, `7` or `1,3,5-8` into seeds in that order, each once.

    Raises ConfigError for other text, because pydantic would drop the fix of a ValueError.
    """
    seeds: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isascii() and first.isdigit() and (not dash or (last.isascii() and last.isdigit()))):
            raise ConfigError(f"seeds {text!r}", field="seeds", fix="write 0-4 or 1,3,5")
        low, high = int(first), int(last) if dash else int(first)
        if not low <= high <= _SEED_MAX or high - low >= RUNS_MAX:
            raise ConfigError(f"seeds {text!r}", field="seeds", fix="write a range of few seeds, the lower one first")
        seeds.update(dict.fromkeys(range(low, high + 1)))
    return tuple(seeds)


@dataclass(frozen=True, slots=True)
class ParallelWorkers:
    """The number of concurrent runs, and the address of the Dask scheduler that has them executed; empty: here.

    `watch` is called with each run that is executed in this process.
    """

    jobs: int = 1
    address: str = ""
    watch: RunWatcher | None = None


@dataclass(frozen=True, slots=True)
class RunMetrics:
    values: dict[str, float]
    #: Seconds by the clock of the machine that ran it.
    costs: dict[str, float]
    outcome: str
    violations: tuple[str, ...]
    #: Whether another seed could give other metrics.
    depends_on_seed: bool = True
    #: Its jobs and levels, if they were requested.
    detail: "RunDetail | None" = None
    #: Distributions of its jobs by name, of few numbers each; only if jobs were requested.
    spreads: dict[str, tuple[float, ...]] = field(default_factory=dict)


def execute_for_metrics(cell: RunSpec, watch: RunWatcher | None = None, depth: "RunDepth | None" = None) -> RunMetrics:
    """Executes one run and returns its metrics. `depth`: what else is kept of the run; None: nothing."""
    detail, spreads = None, {}
    if depth is None:
        ran = execute_run(cell, watch=watch)
    else:
        from simulator.reports.timeline import execute_in_detail, job_spreads

        ran, detail = execute_in_detail(cell, depth, watch)
        spreads = job_spreads(detail.jobs)
    summary = ran.summary
    values, costs = metric_values(summary), metric_values(summary, TIME_METRICS)
    return RunMetrics(values, costs, summary.outcome, summary.violations, ran.depends_on_seed, detail, spreads)


def execute_runs(
    cells: Sequence[RunSpec], workers: ParallelWorkers, depths: "Sequence[RunDepth | None] | None" = None
) -> Iterator[tuple[int, RunMetrics]]:
    """Yields (position in `cells`, metrics) as runs complete. Raises what a run raises.

    `depths`: what is kept of each run beside its metrics; None: nothing of any.
    """
    wanted = depths if depths is not None else [None] * len(cells)
    runs = [partial(execute_for_metrics, cell, depth=depth) for cell, depth in zip(cells, wanted, strict=True)]
    yield from execute_cells(runs, workers)


def execute_cells(
    runs: Sequence[Callable[[RunWatcher | None], RunMetrics]], workers: ParallelWorkers
) -> Iterator[tuple[int, RunMetrics]]:
    """Yields (position in `runs`, metrics) as runs complete. Raises what a run raises.

    A run is a function that another process can load; it is called with what watches it, None in other processes.
    """
    if not workers.address and workers.jobs == 1:
        for position, run in enumerate(runs):
            yield position, run(workers.watch)
        return
    from joblib import Parallel, delayed

    with ExitStack() as stack:
        if workers.address:
            _connect_dask(workers, stack)
        # A Dask cluster runs as many at a time as it has threads.
        jobs = -1 if workers.address else workers.jobs
        parallel = Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)
        yield from parallel(delayed(_execute_numbered)(position, run) for position, run in enumerate(runs))


def _execute_numbered(position: int, run: Callable[[RunWatcher | None], RunMetrics]) -> tuple[int, RunMetrics]:
    return position, run(None)


def _connect_dask(workers: ParallelWorkers, stack: ExitStack) -> None:
    """Connects to the Dask cluster until the stack is closed."""
    from joblib import parallel_config

    try:
        distributed = importlib.import_module("distributed")
    except ModuleNotFoundError:
        raise UserError(
            "a Dask cluster needs dask, which is not installed",
            field="jobs",
            fix="pip install 'walras[dask]', or give a number",
        ) from None
    try:
        stack.enter_context(distributed.Client(workers.address, timeout="20s"))
    except OSError as error:
        raise UserError(
            f"no Dask scheduler answers at {workers.address}: {error}", field="jobs", fix="check the address"
        ) from None
    stack.enter_context(parallel_config(backend="dask"))


LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class MeanEstimate:
    """A mean with its 95 % confidence interval, for approximately normal values."""

    mean: float
    #: nan with fewer than two values.
    low: float
    high: float
    n: int

    @property
    def half(self) -> float:
        """Half the interval's width; nan without one."""
        return (self.high - self.low) / 2.0

    @property
    def is_centred(self) -> bool:
        """Whether the mean lies in the middle of the interval."""
        return abs(self.low + self.high - 2 * self.mean) <= 1e-6 * (self.high - self.low)

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval excludes zero: the sign of a difference is significant."""
        return isfinite(self.low) and (self.low > 0.0 or self.high < 0.0)


def estimate_mean(values: Sequence[float]) -> MeanEstimate:
    """Returns the mean with Student's interval; nan if any run lacks the value (nan)."""
    n = len(values)
    if n == 0 or not all(isfinite(value) for value in values):
        return MeanEstimate(nan, nan, nan, n)
    mean = sum(values) / n
    if n < 2:
        return MeanEstimate(mean, nan, nan, n)
    from scipy.special import stdtrit  # the quantile of Student's t, without all other distributions

    deviation = sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    half = float(stdtrit(n - 1, 0.5 + LEVEL / 2.0)) * deviation / sqrt(n)
    return MeanEstimate(mean, mean - half, mean + half, n)


def paired_difference(values: Sequence[float], against: Sequence[float]) -> MeanEstimate:
    """Returns the mean of pairwise differences, for runs with the same jobs and the same random draws."""
    return estimate_mean([value - other for value, other in zip(values, against, strict=True)])
