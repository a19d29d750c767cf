"""The bench of policies: every figure beside the lower bound for every scheduler, and beside published results.

The result is plain data: the hash of each run's inputs, its figures, and means with intervals over the seeds. It
contains no measured times, so the same inputs give the same bytes.

A *ground* has cells to execute, metrics to show, published results, and a bound or why there is none. `BenchGround` is
simulated: each cell is a run, of jobs on a cluster under a policy with a seed. `ScoredGround` has cells of another
kind, with metrics of their own.

`small` needs only shipped data. Its generated grounds have the jobs of Gavel's generator on twelve machines of each of
three types; a load is stated as a part of what the fleet can just sustain. `full` adds the recorded workloads of other
systems, from a folder of the user's, each in the world in which their recorded runs are reproduced or under Walras's
own mechanism. A ground whose files are missing is left out and named.

The grounds with scores are variants of Frontier-CS `cant_be_late`, a job with a deadline on spot machines. Nothing is
simulated there but the bill of one job, window by window (`simulator.workloads.spot_markets`). The bound is the exact
optimum of every window, for a policy that knows it.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import isnan, log, nan
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from rich.table import Table
from rich.text import Text

import walras
from optimizer.planning.deadline_job import GreedySpotPolicy, SpotPolicy, UniformProgress
from optimizer.planning.slack_policy import SlackPlans
from scheduler.world.engine import RunOutcome
from simulator.reports.baselines import BoundsChoice
from simulator.reports.policy_comparison import format_estimate, format_number, metric_title
from simulator.reports.repeated_runs import (
    MeanEstimate,
    ParallelWorkers,
    RunMetrics,
    estimate_mean,
    execute_cells,
    execute_for_metrics,
)
from simulator.reports.run_spec import (
    SCHEMA,
    GeneratorOptions,
    RunSpec,
    RunWatcher,
    WorkloadSource,
    describe_run,
    run_key,
)
from simulator.reports.run_summary import RUN_METRICS, MetricDefinition, nonfinite_to_none
from simulator.workloads.spot_markets import (
    VARIANTS,
    ScheduledSlack,
    cheapest_bills,
    judge,
    score,
    window_job,
    windows,
)
from simulator.workloads.trace_source import ReadOptions
from walras.errors import UserError, system_refusals

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
    def policy(self) -> str: ...

    def describe(self) -> dict[str, Any]:
        """Returns everything that determines the metrics. Raises ConfigError for a file or policy that is missing."""
        ...

    def execute(self, watch: RunWatcher | None) -> RunMetrics:
        """Returns the metrics. Raises ConfigError for errors in the input."""
        ...


@dataclass(frozen=True, slots=True)
class RunCell:
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
    return [each for each in ground.files if not Path(each).exists()]


def sort_key(ground: AnyGround, means: Mapping[str, float]) -> tuple[bool, float]:
    """Returns the key by which rows are sorted: by the first metric shown, best first, rows without it last."""
    first = next(metric for metric in ground.metrics if metric.name == ground.shown[0])
    value = means.get(first.name, nan)
    return isnan(value), -value if first.lower_is_better is False else value


#: Schema number of the result file.
_SCHEMA = 3
#: How the outcome of a run begins that ended with an error; the error follows.
FAILED = "failed"
_REASON_MAX = 300


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Every ground with the runs of each policy, in the order of its seeds."""

    grounds: tuple[AnyGround, ...]
    rows: dict[str, dict[str, list[RunMetrics]]]

    def estimate(self, ground: str, policy: str, metric: str) -> MeanEstimate:
        """Returns the mean of one metric over the seeds, with its interval."""
        return estimate_mean([row.values[metric] for row in self.rows[ground][policy]])

    @property
    def unexpected_outcomes(self) -> list[str]:
        """Returns the outcomes of runs that did not end as their ground says."""
        return [
            row.outcome
            for ground in self.grounds
            for rows in self.rows[ground.name].values()
            for row in rows
            if row.outcome != ground.outcome
        ]

    @property
    def violations(self) -> list[str]:
        """Returns the violated conservation laws, each with its ground and policy."""
        return [
            f"{ground}, {policy}: {violation}"
            for ground, policies in self.rows.items()
            for policy, rows in policies.items()
            for row in rows
            for violation in row.violations
        ]


def run_bench(
    grounds: Sequence[AnyGround],
    workers: ParallelWorkers,
    on_progress: Callable[[int, int], None] = lambda done, runs: None,
) -> BenchResult:
    """Runs every ground. Calls `on_progress(done, all)` first and after each run.

    A run that fails has no figures, and its outcome says why; the others keep theirs.
    """
    cells = [(ground, cell) for ground in grounds for cell in ground.cells()]
    found: dict[int, RunMetrics] = {}
    on_progress(0, len(cells))
    for position, row in execute_cells([partial(_execute, cell, ground.metrics) for ground, cell in cells], workers):
        found[position] = row
        on_progress(len(found), len(cells))
    rows: dict[str, dict[str, list[RunMetrics]]] = {}
    for position, (ground, cell) in enumerate(cells):
        rows.setdefault(ground.name, {}).setdefault(cell.policy, []).append(found[position])
    return BenchResult(tuple(grounds), rows)


def _execute(cell: BenchCell, metrics: Sequence[MetricDefinition], watch: RunWatcher | None) -> RunMetrics:
    try:
        return cell.execute(watch)
    except Exception as error:  # whatever it is: the other runs of the bench are worth hours
        why = f"{type(error).__name__}: {error}".splitlines()[0][:_REASON_MAX]
        return RunMetrics({metric.name: nan for metric in metrics}, {}, f"{FAILED}: {why}", ())


def bench_json(result: BenchResult) -> dict[str, Any]:
    """Returns the result as plain data: the hash of each run's inputs, its figures, means and intervals."""
    return {
        "schema": _SCHEMA,
        "grounds": [
            {
                "name": ground.name,
                "about": ground.about,
                "seeds": list(ground.seeds),
                "published": [asdict(row) for row in ground.published],
                "sorted_by": ground.shown[0],
                "ends": ground.outcome,
                "no_bound": ground.no_bound,
                "policies": {policy: _policy_json(result, ground, policy) for policy in ground.policies},
            }
            for ground in result.grounds
        ],
    }


def _policy_json(result: BenchResult, ground: AnyGround, policy: str) -> dict[str, Any]:
    rows = result.rows[ground.name][policy]
    return {
        "inputs": [run_key(_description(cell)) for cell in ground.cells() if cell.policy == policy],
        "runs": [nonfinite_to_none(row.values) for row in rows],
        "outcomes": [row.outcome for row in rows],
        "metrics": nonfinite_to_none(
            {measure.name: asdict(result.estimate(ground.name, policy, measure.name)) for measure in ground.metrics}
        ),
    }


def _description(cell: BenchCell) -> dict[str, Any]:
    """Returns everything that determines the cell's metrics; for a cell that cannot run, why it cannot."""
    try:
        return cell.describe()
    except UserError as error:
        return {"policy": cell.policy, "refused": str(error)}


def write_bench(path: Path, result: BenchResult) -> None:
    """Writes the result file. Raises ConfigError for a path that cannot be written."""
    text = json.dumps(bench_json(result), indent=1, sort_keys=True) + "\n"
    with system_refusals(path, fix="choose another path", field="out"):
        path.write_text(text, encoding="utf-8")


def bench_tables(result: BenchResult) -> list[Table]:
    """Returns one table for each ground, best first by its first metric."""
    return [_ground_table(result, ground) for ground in result.grounds]


def _ground_table(result: BenchResult, ground: AnyGround) -> Table:
    titles = {measure.name: measure for measure in ground.metrics}
    table = Table(
        title=f"{ground.name}: {ground.about}; {_seeds_text(len(ground.seeds))}", caption=_remarks(result, ground)
    )
    table.add_column("policy")
    for name in ground.shown:
        table.add_column(metric_title(titles[name]), justify="right")
    rows = []
    for policy in ground.policies:
        estimates = {name: result.estimate(ground.name, policy, name) for name in ground.shown}
        means = {name: each.mean for name, each in estimates.items()}
        rows.append((sort_key(ground, means), policy, [format_estimate(each) for each in estimates.values()]))
    for row in ground.published:
        cells = [format_number(row.metrics[name]) if name in row.metrics else "" for name in ground.shown]
        rows.append((sort_key(ground, row.metrics), f"{row.policy} ({row.source})", cells))
    for _, name, cells in sorted(rows, key=lambda row: row[0]):
        table.add_row(Text(name), *cells)
    return table


def _remarks(result: BenchResult, ground: AnyGround) -> Text | None:
    """Returns why a ground has no bound, and why runs failed."""
    lines = [f"no bound: {ground.no_bound}"] if ground.no_bound else []
    for policy, rows in result.rows[ground.name].items():
        failed = sorted({row.outcome for row in rows if row.outcome.startswith(FAILED)})
        lines += [f"{policy} {outcome}" for outcome in failed]
    return Text("\n".join(lines)) if lines else None


def _seeds_text(seeds: int) -> str:
    return "one run" if seeds == 1 else f"{seeds} seeds, ± 95 %"


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
