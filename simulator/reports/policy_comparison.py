"""Several policies on the same jobs with the same random draws, seed by seed, with confidence intervals.

If a run draws no random number, other seeds would repeat it. It is then run once, and intervals come from its jobs by
the moving-block bootstrap, which says what its mean tells of other jobs like these: blocks of consecutive arrivals,
which met the same contention, are drawn with replacement until there are as many jobs as before. The interval of a
metric contains 95 % of such draws (percentiles). The same jobs are drawn for all policies, so their differences are
paired. Nothing is simulated again, so the interval does not cover how the drawn jobs would have affected each other.
Metrics that are not a mean or percentile over jobs have no interval.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import isfinite, nan
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from optimizer.bounds.instance import FloatArray
from simulator.reports.baselines import ROUNDING
from simulator.reports.repeated_runs import (
    LEVEL,
    MeanEstimate,
    ParallelWorkers,
    RunMetrics,
    estimate_mean,
    execute_runs,
    paired_difference,
)
from simulator.reports.run_spec import RunSpec, may_be_without_chance
from simulator.reports.run_summary import (
    RUN_METRICS,
    TIME_METRICS,
    MetricDefinition,
    nonfinite_to_none,
)
from walras.errors import ConfigError

if TYPE_CHECKING:
    from simulator.reports.timeline import JobOutcomes, RunDepth

#: Means that differ by less than this part count as equally good.
_TIE = 1e-9


@dataclass(frozen=True, slots=True)
class ComparedMetric:
    """One metric of one policy, over the seeds, or over the jobs of the only run if seeds change nothing."""

    policy: str
    value: MeanEstimate
    #: Difference from the first policy in pairs; None for the first policy itself.
    difference: MeanEstimate | None
    #: True if no other policy has a better mean.
    best: bool


@dataclass(frozen=True)
class PolicyComparison:
    """Results of several policies. `rows[policy]` are that policy's runs, in the order of the seeds."""

    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    rows: dict[str, list[RunMetrics]]
    #: Number of requested seeds, if they change nothing; each policy has one run then.
    unused_seeds: tuple[int, ...] = ()

    def compared(self, measure: MetricDefinition) -> list[ComparedMetric]:
        """Returns one metric, policy by policy."""
        values = {policy: [_metric_value(row, measure) for row in self.rows[policy]] for policy in self.policies}
        means = {policy: self._estimate(policy, measure, of) for policy, of in values.items()}
        best = _best([each.mean for each in means.values()], measure.lower_is_better)
        first = self.policies[0]
        return [
            ComparedMetric(
                policy,
                means[policy],
                None if policy == first else self._difference(policy, measure, values),
                best is not None and abs(means[policy].mean - best) <= _TIE * max(1.0, abs(best)),
            )
            for policy in self.policies
        ]

    def _estimate(self, policy: str, measure: MetricDefinition, values: Sequence[float]) -> MeanEstimate:
        if self.resampling is None:
            return estimate_mean(values)
        return self.resampling.estimate(policy, measure.name, values[0])

    def _difference(
        self, policy: str, measure: MetricDefinition, values: Mapping[str, Sequence[float]]
    ) -> MeanEstimate:
        first = self.policies[0]
        if self.resampling is None:
            return paired_difference(values[policy], values[first])
        return self.resampling.difference(policy, first, measure.name, values[policy][0] - values[first][0])

    @cached_property
    def resampling(self) -> "JobResampling | None":
        """The bootstrap over jobs; None where seeds give the intervals, or where there are none."""
        details = {policy: self.rows[policy][0].detail for policy in self.policies}
        if not self.unused_seeds or any(detail is None for detail in details.values()):
            return None
        return JobResampling({policy: detail.jobs for policy, detail in details.items() if detail is not None})

    @property
    def violations(self) -> list[str]:
        """Returns the violated conservation laws, each with its run."""
        return [
            f"{policy}, seed {seed}: {violation}"
            for policy in self.policies
            for seed, row in zip(self.seeds, self.rows[policy], strict=True)
            for violation in row.violations
        ]

    @property
    def metrics(self) -> tuple[MetricDefinition, ...]:
        return (*RUN_METRICS, *TIME_METRICS)

    @property
    def nothing_random(self) -> bool:
        """Returns whether several seeds were requested and change nothing."""
        return bool(self.unused_seeds)


def compare_policies(
    template: RunSpec,
    policies: Sequence[str],
    seeds: Sequence[int],
    workers: ParallelWorkers,
    on_run: Callable[[], None] = lambda: None,
    *,
    with_levels: bool = False,
) -> PolicyComparison:
    """Runs every policy with every seed that matters. Calls `on_run` for each requested run, executed or not.

    `with_levels`: keeps every run's jobs, and the levels of runs with the first seed. Raises ConfigError, and what a
    run raises.
    """
    if len(set(policies)) != len(policies):
        raise ConfigError("a policy is named twice", field="policy", fix="name each policy once")
    first, others, is_unsure = seeds[0], seeds[1:], may_be_without_chance(template)
    found: dict[tuple[str, int], RunMetrics] = {}

    def run(pairs: Sequence[tuple[str, int]]) -> None:
        cells = [replace(template, policy=policy, seed=seed) for policy, seed in pairs]
        depths = [_depth(with_levels, seed == first, bool(others)) for _, seed in pairs]
        for position, row in execute_runs(cells, workers, depths):
            found[pairs[position]] = row
            on_run()

    run([(policy, seed) for policy in policies for seed in ((first,) if is_unsure else seeds)])
    if is_unsure:
        run([(policy, seed) for policy in policies if found[policy, first].depends_on_seed for seed in others])
    rows: dict[str, list[RunMetrics]] = {}
    for policy in policies:
        rows[policy] = [found.get((policy, seed), found[policy, first]) for seed in seeds]
        for _ in range(sum((policy, seed) not in found for seed in seeds)):
            on_run()
    if others and all(str(row.values) == str(each[0].values) for each in rows.values() for row in each):
        rows = {policy: each[:1] for policy, each in rows.items()}
        return PolicyComparison(tuple(policies), (first,), rows, tuple(others))
    return PolicyComparison(tuple(policies), tuple(seeds), rows)


def _depth(with_levels: bool, is_first: bool, has_others: bool) -> "RunDepth | None":
    """Returns what is kept of a run: its jobs where seeds may change nothing, or where figures are drawn."""
    if not with_levels and not (is_first and has_others):
        return None
    from simulator.reports.timeline import RunDepth

    return RunDepth.LEVELS if with_levels and is_first else RunDepth.JOBS


def _metric_value(row: RunMetrics, measure: MetricDefinition) -> float:
    return row.values[measure.name] if measure.name in row.values else row.costs[measure.name]


def _best(means: Sequence[float], lower_is_better: bool | None) -> float | None:
    known = [mean for mean in means if isfinite(mean)]
    if lower_is_better is None or not known:
        return None
    best = min(known) if lower_is_better else max(known)
    # If all means are equal, none is marked as best.
    return None if len(known) > 1 and max(known) - min(known) <= _TIE * max(1.0, abs(best)) else best


# ------------------------------------------------------------------------------------------------------ for people


def comparison_tables(comparison: PolicyComparison) -> list[Table]:
    """Returns tables of the metrics with their intervals, and of the differences to the first policy."""
    shown = [measure for measure in comparison.metrics if _worth_showing(comparison, measure)]
    figures = Table(title=f"{_title(comparison)}; * best")
    figures.add_column("figure")
    for policy in comparison.policies:
        figures.add_column(Text(policy), justify="right")
    for measure in shown:
        cells = [_mean_cell(each) for each in comparison.compared(measure)]
        figures.add_row(metric_title(measure), *cells)
    has_intervals = len(comparison.seeds) > 1 or comparison.resampling is not None
    if not has_intervals or len(comparison.policies) < 2:
        return [figures]
    sure = "its sign is sure" if comparison.resampling is None else "its interval excludes 0"
    differences = Table(
        title=f"difference to {comparison.policies[0]} on the same jobs and chance, 95 % interval; ! {sure}"
    )
    differences.add_column("figure")
    for policy in comparison.policies[1:]:
        differences.add_column(Text(policy), justify="right")
    for measure in shown:
        if measure.lower_is_better is not None:
            rest = [each.difference for each in comparison.compared(measure) if each.difference is not None]
            differences.add_row(metric_title(measure), *(_difference_cell(each) for each in rest))
    return [figures, differences]


def _title(comparison: PolicyComparison) -> str:
    if len(comparison.seeds) > 1:
        return f"mean over {len(comparison.seeds)} seeds, 95 % interval"
    jobs = comparison.resampling
    if jobs is None:
        return "one seed"
    return f"one run; 95 % interval by drawing {jobs.jobs:,} jobs again, in blocks of {jobs.block}"


def _worth_showing(comparison: PolicyComparison, measure: MetricDefinition) -> bool:
    """Returns whether the metric exists, and is not 0, for some run."""
    values = [_metric_value(row, measure) for rows in comparison.rows.values() for row in rows]
    return any(isfinite(value) and value != 0.0 for value in values)


def metric_title(measure: MetricDefinition) -> str:
    """Returns a metric's title with its unit."""
    return f"{measure.title} ({measure.unit})" if measure.unit not in ("", "part") else measure.title


def _mean_cell(each: ComparedMetric) -> Text:
    mark = " *" if each.best else ""
    return Text(f"{format_estimate(each.value)}{mark}", style="bold" if each.best else "")


def _difference_cell(value: MeanEstimate) -> str:
    if not isfinite(value.mean):
        return "-"
    sign, mark = "+" if value.mean > 0 else "", " !" if value.excludes_zero else ""
    return f"{sign}{format_estimate(value)}{mark}"


def format_estimate(value: MeanEstimate) -> str:
    """Formats a mean with half its interval's width, or the interval's ends where the mean is not centred."""
    mean = format_number(value.mean)
    if not isfinite(value.low):
        return mean
    if value.is_centred:
        return f"{mean} ± {format_number(value.half)}"
    return f"{mean} ({format_number(value.low)} to {format_number(value.high)})"


def format_number(value: float) -> str:
    """Formats with four significant digits, and all digits before the point; `-` for nan and inf."""
    if not isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


# ---------------------------------------------------------------------------------------------------- for programs


def comparison_json(comparison: PolicyComparison) -> dict[str, Any]:
    """Returns every metric with its interval, its difference to the first policy, and the value of each seed."""
    measures: dict[str, Any] = {}
    for measure in comparison.metrics:
        measures[measure.name] = {
            "unit": measure.unit,
            "policies": {
                each.policy: {
                    **asdict(each.value),
                    "difference": None if each.difference is None else asdict(each.difference),
                    "best": each.best,
                    "values": [_metric_value(row, measure) for row in comparison.rows[each.policy]],
                }
                for each in comparison.compared(measure)
            },
        }
    return nonfinite_to_none(
        {
            "policies": list(comparison.policies),
            "seeds": list(comparison.seeds),
            "nothing_random": comparison.nothing_random,
            "unused_seeds": list(comparison.unused_seeds),
            "intervals_over": _intervals_over(comparison),
            "outcomes": {policy: [row.outcome for row in rows] for policy, rows in comparison.rows.items()},
            "violations": comparison.violations,
            "measures": measures,
        }
    )


def _intervals_over(comparison: PolicyComparison) -> str | None:
    """Returns what the intervals are over: `seeds`, `jobs`, or None without intervals."""
    if len(comparison.seeds) > 1:
        return "seeds"
    return None if comparison.resampling is None else "jobs"


#: Number of draws, and the smaller number for traces with more jobs than this.
_DRAWS, _DRAWS_OF_LARGE, _LARGE = 1000, 400, 5_000
_SEED = 1
#: Fewest jobs for a meaningful interval, and most jobs for which it is computed within minutes.
_JOBS_MIN, _JOBS_MAX = 10, 200_000


@dataclass(frozen=True, slots=True)
class _JobStatistic:
    """A metric as a function of one number per job."""

    column: str
    #: The function, over the jobs that have the number.
    over: Callable[[FloatArray], float]


def _percentile(q: float) -> Callable[[FloatArray], float]:
    return lambda values: float(np.percentile(values, q))


def _mean(values: FloatArray) -> float:
    return float(values.mean())


def _geometric_mean(values: FloatArray) -> float:
    return float(np.exp(np.log(values).mean()))


def _part_unfair(values: FloatArray) -> float:
    return float((values > 1.0 + ROUNDING).mean())


_STATISTICS: Mapping[str, _JobStatistic] = {
    "avg_jct_s": _JobStatistic("jct_s", _mean),
    "median_jct_s": _JobStatistic("jct_s", _percentile(50)),
    "p95_jct_s": _JobStatistic("jct_s", _percentile(95)),
    "p99_jct_s": _JobStatistic("jct_s", _percentile(99)),
    "geometric_jct_s": _JobStatistic("jct_s", _geometric_mean),
    "slowdown_mean": _JobStatistic("slowdown", _mean),
    "avg_queueing_s": _JobStatistic("queueing_s", _mean),
    "p99_queueing_s": _JobStatistic("queueing_s", _percentile(99)),
    "rho_mean": _JobStatistic("rho", _mean),
    "unfair": _JobStatistic("rho", _part_unfair),
}


class JobResampling:
    """Bootstrap draws of the same jobs for several policies."""

    def __init__(self, outcomes: "Mapping[str, JobOutcomes]") -> None:
        """`outcomes`: the same jobs in the same order for each policy; otherwise there are no intervals."""
        ids = {each.job_id for each in outcomes.values()}
        self._outcomes = dict(outcomes)
        self.jobs = len(next(iter(ids))) if len(ids) == 1 else 0
        #: Jobs per block: the cube root of their number, which is usual for means of dependent values.
        self.block = max(1, round(self.jobs ** (1 / 3)))
        self._drawn: dict[tuple[str, str], FloatArray] = {}

    def estimate(self, policy: str, metric: str, value: float) -> MeanEstimate:
        """Returns the metric of a policy, `value`, with its interval; without one if the metric is not a function of
        jobs.
        """
        return self._interval(value, lambda: self._draws(policy, metric), metric)

    def difference(self, policy: str, against: str, metric: str, value: float) -> MeanEstimate:
        """Returns the difference of a metric between two policies, `value`, with its interval."""
        return self._interval(value, lambda: self._draws(policy, metric) - self._draws(against, metric), metric)

    def _interval(self, value: float, draws: Callable[[], FloatArray], metric: str) -> MeanEstimate:
        if metric not in _STATISTICS or not _JOBS_MIN <= self.jobs <= _JOBS_MAX or not isfinite(value):
            return MeanEstimate(value, nan, nan, 1)
        found = draws()
        if not np.isfinite(found).all():
            return MeanEstimate(value, nan, nan, 1)
        tail = 50.0 * (1.0 - LEVEL)
        low, high = np.percentile(found, [tail, 100.0 - tail])
        return MeanEstimate(value, float(low), float(high), self.jobs)

    def _draws(self, policy: str, metric: str) -> FloatArray:
        """Returns the metric of every draw; nan for a draw in which no job has the number."""
        known = self._drawn.get((policy, metric))
        if known is None:
            statistic = _STATISTICS[metric]
            values = np.array(getattr(self._outcomes[policy], statistic.column), dtype=float)
            drawn = (values[order] for order in self._orders())
            found = (each[np.isfinite(each)] for each in drawn)
            known = np.array([statistic.over(each) if len(each) else nan for each in found])
            self._drawn[policy, metric] = known
        return known

    def _orders(self) -> Iterator[NDArray[np.int64]]:
        """Generates the jobs of every draw, the same for all metrics and policies.

        A block can start anywhere, and continues at the first job after the last.
        """
        chance, n = np.random.default_rng(_SEED), self.jobs
        within = np.arange(self.block)
        for _ in range(_DRAWS if n <= _LARGE else _DRAWS_OF_LARGE):
            begins = chance.integers(0, n, -(-n // self.block))
            yield (begins[:, None] + within).ravel()[:n] % n
