"""The grounds of the benches: jobs, a cluster, policies and seeds, and published results for the same jobs.

`small` needs only shipped data. Its generated grounds have the jobs of Gavel's generator on twelve machines of each of
three types; a load is stated as a part of what the fleet can just sustain. `full` adds the recorded workloads of other
systems, from a folder of the user's, each in the world in which their recorded runs are reproduced or under Walras's
own mechanism. A ground whose files are missing is left out and named.

The grounds with scores are variants of Frontier-CS `cant_be_late`, a job with a deadline on spot machines. Nothing is
simulated there but the bill of one job, window by window (`simulator.workloads.spot_windows`). The bound is the exact
optimum of every window, for a policy that knows it.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log
from pathlib import Path
from statistics import fmean
from typing import Any

import walras
from optimizer.planning.deadline_job import GreedySpotPolicy, SpotPolicy, UniformProgress
from optimizer.planning.slack_grid import SlackPlans
from simulator.reports.baselines import BoundsChoice
from simulator.reports.bench_ground import AnyGround, BenchGround, PublishedRow, ScoredGround
from simulator.reports.repeated_runs import RunMetrics
from simulator.reports.run_spec import SCHEMA, GeneratorOptions, RunSpec, RunWatcher, WorkloadSource
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
from simulator.workloads.trace_source import ReadOptions


def _mean_of_power(low: float, high: float) -> float:
    """Returns the mean of 10^U(low, high)."""
    return float((10**high - 10**low) / ((high - low) * log(10)))


#: Mean hours of a job of Gavel's generator on a V100, its mean gang, and the fleet's size in V100.
_JOB_H = (0.8 * _mean_of_power(1.5, 3) + 0.2 * _mean_of_power(3, 4)) / 60
_MEAN_GANG = 0.7 * 1 + 0.1 * 2 + 0.15 * 4 + 0.05 * 8
_WORTH_V100 = 12 * (3 + 2 + 1) / 3

_MAIN = ("walras", "max_min_fairness", "finish_time_fairness", "allox", "hadar", "tiresias", "las", "srtf", "fifo")
_AT_EVENTS = ("walras", "allox", "srtf", "tiresias", "las", "fifo")
_IN_ROUNDS = ("max_min_fairness_perf", "max_min_fairness", "allox", "fifo_perf", "fifo", "isolated")
#: Gavel's AlloX knows no gangs.
_GANGS_IN_ROUNDS = tuple(policy for policy in _IN_ROUNDS if policy != "allox")
_ORDERS = ("walras", "srtf", "tiresias", "las", "fifo")
_ELASTIC = ("walras", "sia", "pollux", "max_min_fairness", "las", "fifo")
_ARENA_POLICIES = ("walras", "fcfs")
_PAID = ("walras", "throughput_per_dollar", "max_min_fairness", "edf", "las", "fifo")


def generated_ground(
    load: float, jobs: int, policies: Sequence[str], seeds: Sequence[int], *, gangs: bool = False
) -> BenchGround:
    """Returns a ground with jobs of Gavel's generator at this part of the sustainable load; 0: all arrive at once."""
    rate = load * _WORTH_V100 / (_JOB_H * (_MEAN_GANG if gangs else 1.0))
    source = WorkloadSource("generate:gavel", made=GeneratorOptions(jobs, round(rate, 4), gangs))
    what = f"load {load:g}" if load else "all at once"
    name = f"{'gangs' if gangs else 'singles'}-{f'{load:g}' if load else 'static'}"
    about = f"{jobs} jobs of Gavel's generator, {'gangs of 1 to 8' if gangs else 'one accelerator each'}, {what}"
    run = RunSpec(source, "gavel-12-12-12", policies[0], bounds=BoundsChoice.ALL)
    return BenchGround(name, about, run, tuple(policies), tuple(seeds))


def small_bench() -> tuple[BenchGround, ...]:
    """Returns the grounds of the small bench, which takes at most five minutes on two cores."""
    seeds = tuple(range(5))
    elastic = RunSpec(WorkloadSource("adaptive"), "sia-64", "walras", bounds=BoundsChoice.ALL)
    paid = RunSpec(WorkloadSource("deadlines"), "mixed-cloud", "walras", bounds=BoundsChoice.ALL)
    return (
        *(generated_ground(load, 60, _MAIN, seeds) for load in (0.6, 0.8, 1.0)),
        generated_ground(0.8, 60, _MAIN, seeds, gangs=True),
        generated_ground(0.0, 60, _MAIN, seeds),
        BenchGround("elastic", "adaptive jobs that choose batch and gang, 64 accelerators", elastic, _ELASTIC, (0,)),
        BenchGround(
            "spot",
            "deadlines and budgets over owned, rented and spot machines; prices move, machines are taken back",
            replace(paid, conditions="spot-market"),
            _PAID,
            seeds,
        ),
    )


_NO_BOUND_ADAPTIVE = (
    "speeds are measured point by point over batch, gang and layout; no least time of a job follows from them"
)
_NO_BOUND_BATCHES = (
    "a change of batch counts the epoch that has begun as done, so the work depends on the rounds in which a job runs"
)
_GAVEL = "Gavel's own simulator, recorded"
_SHOCKWAVE = "Shockwave's artifact, simulated"
_POLLUX = "Pollux's artifact, simulated"


def _gavel_grounds(data: Path) -> list[BenchGround]:
    """Gavel's traces in its own world, and under our mechanism at events; metrics cover the jobs that it measured."""
    rows = (
        ("gavel-static", "static_single_seed0_n60", None, 59_362.72, "60 jobs at once, one accelerator each"),
        ("gavel-continuous", "single_small_seed0_rate1.67", "301-500", 53_607.42, "1.67 jobs/h, one accelerator each"),
        ("gavel-gangs", "multi_small_seed0_rate0.5", "201-400", 50_826.93, "0.5 jobs/h, gangs of 1 to 8"),
    )
    grounds = []
    for name, trace, window, jct_s, about in rows:
        source = WorkloadSource(str(data / "gavel" / "traces" / f"{trace}.tsv"))
        run = RunSpec(source, "gavel-12-12-12", "walras", window=window)
        published = (PublishedRow("max_min_fairness_perf", _GAVEL, {"avg_jct_s": jct_s}),)
        grounds.append(BenchGround(name, f"Gavel's trace: {about}", run, _AT_EVENTS, (0,), published))
        theirs = replace(run, world="gavel")
        about = f"the same in Gavel's rounds, which reproduce the recorded run: {about}"
        policies = _GANGS_IN_ROUNDS if name == "gavel-gangs" else _IN_ROUNDS
        grounds.append(BenchGround(f"{name}-rounds", about, theirs, policies, (0,), published))
    return grounds


def _elastic_grounds(data: Path) -> list[BenchGround]:
    """Workloads of elastic jobs and of jobs that change their batch, each in its authors' world."""
    pollux, shockwave, restricted = data / "golden" / "pollux", data / "golden" / "shockwave", data / "restricted"
    recorded = {"pollux": 2446.13125, "tiresias": 3469.69375, "optimus": 5301.875}
    pollux_run = RunSpec(
        WorkloadSource(str(pollux / "workloads" / "workload-6.csv"), speeds=str(pollux / "profiles")),
        "pollux-64", "walras", bounds=BoundsChoice.NONE, world="pollux",
    )  # fmt: skip
    sia_run = RunSpec(
        WorkloadSource(
            str(restricted / "sia_workloads" / "philly" / "workload-1.csv"),
            speeds=str(restricted / "sia_profiles"),
            learning=str(pollux / "profiles"),
        ),
        "sia-64", "walras", bounds=BoundsChoice.NONE, world="sia",
    )  # fmt: skip
    shockwave_run = RunSpec(
        WorkloadSource(
            str(shockwave / "trace_tacc32_120jobs.tsv"), "shockwave", speeds=str(shockwave / "tacc_throughputs.json")
        ),
        "shockwave-32", "walras", bounds=BoundsChoice.NONE, world="shockwave",
    )  # fmt: skip
    return [
        BenchGround(
            "pollux", "Pollux's workload 6: 160 elastic jobs on 64 T4", pollux_run,
            ("walras", "pollux", "sia", "tiresias", "optimus"), (0,),
            tuple(PublishedRow(policy, _POLLUX, {"avg_jct_s": jct_s}) for policy, jct_s in recorded.items()),
            no_bound=_NO_BOUND_ADAPTIVE,
        ),
        BenchGround(
            "sia", "Sia's philly-1: 160 elastic jobs on 64 accelerators of three types", sia_run,
            ("walras", "sia", "pollux", "gavel"), (0,),
            (PublishedRow("sia", "Sia's artifact, over the 158 jobs that it had finished", {"avg_jct_s": 1617.0}),),
            no_bound=_NO_BOUND_ADAPTIVE,
        ),
        BenchGround(
            "shockwave", "Shockwave's 120 jobs with changing batches on 32 V100", shockwave_run,
            ("walras", "shockwave", "max_min_fairness", "min_total_duration", "gandiva_fair"), (0,),
            (
                PublishedRow("shockwave", _SHOCKWAVE, {"avg_jct_s": 9958.49, "makespan_s": 24197.42}),
                PublishedRow("max_min_fairness", _SHOCKWAVE, {"avg_jct_s": 11274.12, "makespan_s": 33207.66}),
                PublishedRow("min_total_duration", _SHOCKWAVE, {"avg_jct_s": 19806.73, "makespan_s": 24204.82}),
                PublishedRow("gandiva_fair", _SHOCKWAVE, {"avg_jct_s": 12574.27, "makespan_s": 32367.43}),
            ),
            no_bound=_NO_BOUND_BATCHES,
        ),
    ]  # fmt: skip


#: Starts and changes of place cost all recorded policies but Arena's own up to 600 s, as they do ours.
_ARENA = "Arena's artifact, its first 453 rounds"
_ARENA_TUNED = f"{_ARENA}; starts cost it at most 40 s"


def _arena_grounds(data: Path) -> list[BenchGround]:
    """Arena's jobs in its world: what had finished before its round 453, and all jobs to the end."""
    source = WorkloadSource(str(data / "arena" / "jobs_philly.csv.gz"), speeds=str(data / "arena" / "places.csv.gz"))
    run = RunSpec(source, "arena-1280", "walras", world="arena", bounds=BoundsChoice.ALL)
    recorded = (
        ("crius", _ARENA_TUNED, 181.0, 16_328.0),
        ("sia", _ARENA, 154.0, 18_060.4),
        ("gavel", _ARENA, 123.0, 24_131.7),
        ("fcfs", _ARENA, 68.0, 23_448.5),
    )
    first = tuple(
        PublishedRow(policy, told, {"finished": count, "avg_jct_s": jct_s}) for policy, told, count, jct_s in recorded
    )
    about = "Arena's 1,938 Philly jobs, 1,280 accelerators of four types"
    return [
        BenchGround(
            "arena-453-rounds", f"{about}: those that had finished before its round 453, however many",
            replace(run, until_s=453 * 300.0 - 1.0), _ARENA_POLICIES, (0,), first,
        ),
        BenchGround("arena", f"{about}: all to the end", run, _ARENA_POLICIES, (0,)),
    ]  # fmt: skip


def full_bench(data: Path | None) -> tuple[AnyGround, ...]:
    """Returns the small bench, higher loads, Hadar's jobs, and the recorded workloads of the folder `data`."""
    hadar = WorkloadSource("generate:hadar-60", made=GeneratorOptions(240, 1.2))
    grounds: list[AnyGround] = [
        *small_bench(),
        *(generated_ground(load, 120, _MAIN, (0, 1, 2)) for load in (0.9, 1.2)),
        BenchGround(
            "hadar", "240 jobs of Hadar's generator on 60 accelerators, 1.2 an hour",
            RunSpec(hadar, "hadar-60", "walras"), ("walras", "hadar", "tiresias", "las", "fifo"), (0, 1, 2),
        ),
    ]  # fmt: skip
    if data is not None:
        philly = WorkloadSource(
            str(data / "jobs" / "philly_2017.csv.gz"), reading=ReadOptions(skip_bad_rows=True, first=1000)
        )
        run = RunSpec(philly, "philly-512", "walras")
        grounds += _gavel_grounds(data)
        grounds.append(BenchGround("philly", "the first 1,000 jobs of Philly, 512 accelerators", run, _ORDERS, (0,)))
        grounds += _elastic_grounds(data)
        grounds += _arena_grounds(data)
        grounds += spot_grounds(data)
    return tuple(grounds)


#: By the name that the command takes; each gets the folder of recorded workloads, or None.
BENCHES: Mapping[str, Callable[[Path | None], tuple[AnyGround, ...]]] = {
    "small": lambda data: small_bench(),
    "full": full_bench,
}


SCORE_METRICS: tuple[MetricDefinition, ...] = (
    MetricDefinition("score", "score", "", lower_is_better=False),
    MetricDefinition("mean_bill_usd", "mean bill", "USD"),
    MetricDefinition("late", "late", "windows"),
    MetricDefinition("score_bound", "score of the optimum", "", None),
    MetricDefinition("score_gap", "below that", "points"),
)
_SPOT_WINDOWS = "spot/cant_be_late_windows.csv.gz"
_FRONTIER = "Frontier-CS, its own program, recorded"
#: Recorded scores by variant: greedy, Uniform Progress and the exact optimum.
_SPOT_RECORDED: Mapping[str, tuple[float, float, float]] = {
    "high_availability_tight_deadline_small_overhead": (8.33, 20.97, 30.63),
    "high_availability_tight_deadline_large_overhead": (4.70, 7.43, 21.39),
    "high_availability_loose_deadline_small_overhead": (24.59, 38.73, 42.77),
    "high_availability_loose_deadline_large_overhead": (17.38, 24.21, 33.10),
}
_SPOT_POLICIES: Mapping[str, Callable[[], Callable[[], SpotPolicy]]] = {
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
        digest = hashlib.sha256((Path(self.data) / _SPOT_WINDOWS).read_bytes()).hexdigest()
        named = {"variant": self.variant, "policy": self.policy, "windows": digest}
        return {"schema": SCHEMA, "walras": walras.__version__, "ground": "cant_be_late", **named}

    def execute(self, watch: RunWatcher | None) -> RunMetrics:
        """Returns the policy's score and bill, beside the optimum's. Nothing is watched: it takes seconds."""
        job, every = window_job(self.variant), windows(Path(self.data))
        judged = judge(job, every, _SPOT_POLICIES[self.policy]())
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
    for variant, (greedy, uniform, optimum) in _SPOT_RECORDED.items():
        deadline_h, restart_h = VARIANTS[variant]
        words = variant.split("_")
        about = (
            f"cant_be_late: 48 h of work on spot machines, done within {deadline_h} h; a restart takes {restart_h:g} h;"
            " 0: all on demand, 100: all on spot"
        )
        rows = {"greedy": greedy, "uniform_progress": uniform, "exact optimum": optimum}
        published = tuple(PublishedRow(name, _FRONTIER, {"score": value, "late": 0.0}) for name, value in rows.items())
        cell = partial(SpotCell, str(data), variant)
        name = f"spot-{words[2]}-{words[4]}"
        files = (str(data / _SPOT_WINDOWS),)
        grounds.append(ScoredGround(name, about, tuple(_SPOT_POLICIES), cell, SCORE_METRICS, files, published))
    return grounds
