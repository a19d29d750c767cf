"""A ground of the bench with scores: one variant of Frontier-CS `cant_be_late`, a job with a deadline on spot machines.

Nothing is simulated here but the bill of one job, window by window (`simulator.workloads.spot_windows`). The bound is
the exact optimum of every window, for a policy that knows it.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import walras
from optimizer.planning.deadline_job import GreedySpotPolicy, SpotPolicy, UniformProgress
from optimizer.planning.slack_grid import SlackPlans
from simulator.reports.bench_ground import PublishedRow, ScoredGround
from simulator.reports.repeated_runs import RunMetrics
from simulator.reports.run_spec import SCHEMA, RunWatcher
from simulator.reports.run_summary import MetricDefinition
from simulator.workloads.spot_windows import (
    VARIANTS,
    ScheduledSlack,
    cheapest_bills,
    judge,
    score,
    window_job,
    windows,
)

SCORE_METRICS: tuple[MetricDefinition, ...] = (
    MetricDefinition("score", "score", "", lower_is_better=False),
    MetricDefinition("mean_bill_usd", "mean bill", "USD"),
    MetricDefinition("late", "late", "windows"),
    MetricDefinition("score_bound", "score of the optimum", "", None),
    MetricDefinition("score_gap", "below that", "points"),
)
_FILE = "spot/cant_be_late_windows.csv.gz"
_SOURCE = "Frontier-CS, its own program, recorded"
#: Recorded scores by variant: greedy, Uniform Progress and the exact optimum.
_RECORDED: Mapping[str, tuple[float, float, float]] = {
    "high_availability_tight_deadline_small_overhead": (8.33, 20.97, 30.63),
    "high_availability_tight_deadline_large_overhead": (4.70, 7.43, 21.39),
    "high_availability_loose_deadline_small_overhead": (24.59, 38.73, 42.77),
    "high_availability_loose_deadline_large_overhead": (17.38, 24.21, 33.10),
}
_POLICIES: Mapping[str, Callable[[], Callable[[], SpotPolicy]]] = {
    "walras": lambda: partial(ScheduledSlack, SlackPlans()),
    "uniform_progress": lambda: UniformProgress,
    "greedy": lambda: GreedySpotPolicy,
}


@dataclass(frozen=True, slots=True)
class SpotCell:
    """One policy on all windows of one variant. `data`: the folder of recorded workloads."""

    data: str
    variant: str
    policy: str

    def describe(self) -> dict[str, Any]:
        """Returns everything that determines the metrics."""
        digest = hashlib.sha256((Path(self.data) / _FILE).read_bytes()).hexdigest()
        named = {"variant": self.variant, "policy": self.policy, "windows": digest}
        return {"schema": SCHEMA, "walras": walras.__version__, "ground": "cant_be_late", **named}

    def execute(self, watch: RunWatcher | None) -> RunMetrics:
        """Returns the policy's score and bill, beside the optimum's. Nothing is watched: it takes seconds."""
        job, every = window_job(self.variant), windows(Path(self.data))
        judged = judge(job, every, _POLICIES[self.policy]())
        optimum = score(cheapest_bills(job, every))
        values = {
            "score": judged.score,
            "mean_bill_usd": fmean(judged.costs),
            "late": float(judged.late),
            "score_bound": optimum,
            "score_gap": optimum - judged.score,
        }
        return RunMetrics(values, {}, "complete", (), depends_on_seed=False)


def spot_grounds(data: Path) -> list[ScoredGround]:
    """Returns a ground for every variant with recorded scores."""
    grounds = []
    for variant, (greedy, uniform, optimum) in _RECORDED.items():
        deadline_h, restart_h = VARIANTS[variant]
        words = variant.split("_")
        about = (
            f"cant_be_late: 48 h of work on spot machines, done within {deadline_h} h; a restart takes {restart_h:g} h;"
            " 0: all on demand, 100: all on spot"
        )
        rows = {"greedy": greedy, "uniform_progress": uniform, "exact optimum": optimum}
        published = tuple(PublishedRow(name, _SOURCE, {"score": value, "late": 0.0}) for name, value in rows.items())
        cell = partial(SpotCell, str(data), variant)
        name = f"spot-{words[2]}-{words[4]}"
        files = (str(data / _FILE),)
        grounds.append(ScoredGround(name, about, tuple(_POLICIES), cell, SCORE_METRICS, files, published))
    return grounds
