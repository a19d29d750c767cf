"""Confidence intervals of metrics by resampling the jobs, for runs in which nothing is random.

A run without randomness has one outcome, and other seeds repeat it. The moving-block bootstrap says what its mean tells
of other jobs like these: blocks of consecutive arrivals, which met the same contention, are drawn with replacement
until there are as many jobs as before. The interval of a metric contains 95 % of such draws (percentiles). The same
jobs are drawn for all policies, so their differences are paired. Nothing is simulated again, so the interval does not
cover how the drawn jobs would have affected each other. Metrics that are not a mean or percentile over jobs have no
interval.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite, nan

import numpy as np
from numpy.typing import NDArray

from optimizer.bounds.instance import FloatArray
from simulator.reports.baselines import ROUNDING
from simulator.reports.repeated_runs import LEVEL, MeanEstimate
from simulator.reports.run_detail import JobOutcomes

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

    def __init__(self, outcomes: Mapping[str, JobOutcomes]) -> None:
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
