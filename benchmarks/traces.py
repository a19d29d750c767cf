"""Recorded traces through the simulator: each case in a process of its own, so that its time and memory are its own.

The traces are in the reference data (`WALRAS_DATA`). A case is run whole, or at a smaller scale with the first part of
its jobs; its targets hold for the whole.
"""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time

from benchmarks.needs import reference_data
from benchmarks.tables import Measured
from optimizer.policy import PolicySpec
from scheduler.core.commands import Command, Solve
from scheduler.core.events import Event, Proposal, RoundEnded
from scheduler.core.rules import RoundRules
from scheduler.world.attempts import AttemptCosts, SimulatedJob
from scheduler.world.engine import RunOutcome
from scheduler.world.machines import PoolModel
from simulator.experiment import pool_models
from simulator.ground_truth import GroundTruth
from simulator.metrics import JobMetrics
from simulator.reports.baselines import BoundsChoice
from simulator.reports.run_spec import RunSpec, WorkloadSource, prepare_run
from simulator.shipped_configs import find_cluster
from simulator.simulation import Scenario, simulate
from simulator.workloads.formats import read_trace
from simulator.workloads.trace_binding import TraceBinding, read_throughput_table, with_seeded_speeds
from simulator.workloads.trace_source import TraceJob
from simulator.worlds.gavel.gavel_scenario import gavel_scenario
from walras.cluster import Pool, PoolId, Shape
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import load_yaml

#: Three types: machines, accelerators of each, and the nominal speed that the seeded rule begins with.
THREE_TYPES = {"v100": (43, 4, 4.0), "p100": (85, 2, 2.0), "k80": (85, 2, 1.0)}
#: What Gavel's own simulator took for the run on a machine like ours (reference data, gavel/runs.json), seconds.
GAVEL_RECORDED_S = 25.86
_MEMORY_MIB = 1.5e9 / 2**20
_GAVEL = ("single_big_seed0_rate3.0", {"v100": 36, "p100": 36, "k80": 36})
_GANGS = ("multi_small_seed0_rate0.5", "gavel-12-12-12")
_PATIENCE_S = 1800.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """Jobs and scenario of a case."""

    jobs: Iterable[SimulatedJob]
    scenario: Scenario


@dataclass(frozen=True, slots=True)
class Case:
    """A trace, a cluster, a policy, and how long it may take."""

    title: str
    setting: str
    prepare: Callable[[Path, float], Prepared]
    at_most_s: float | None = None
    #: Part of the jobs that must have waited: else the run is too easy to mean anything.
    waited: float | None = None
    #: Seconds that another simulator took for the same run.
    recorded_s: float | None = None
    #: Part of the jobs that is run before, unmeasured, so that compiled code is there: where no earlier run has left
    #: it, compiling takes longer than the case.
    warm_up: float = 0.0


# ------------------------------------------------------------------------------------------------ what is run


def _philly(data: Path, scale: float) -> list[TraceJob]:
    rows = read_trace(data / "jobs" / "philly_2017.csv.gz").jobs
    return list(islice(rows, max(1, round(len(rows) * scale))))


def _philly_512(machines: int | None = None) -> tuple[PoolModel, ...]:
    models = pool_models(load_yaml(find_cluster("philly-512"), ClusterConfig))
    return models if machines is None else tuple(replace(model, machines=machines) for model in models)


def _case(
    rows: Iterable[TraceJob], pools: tuple[PoolModel, ...], spec: PolicySpec, rules: RoundRules, restart_s: float = 0.0
) -> Prepared:
    placing = TraceBinding({model.pool.shape.accelerator: model.pool.shape.nominal_speed for model in pools})
    jobs = list(placing.jobs(rows))
    truth = GroundTruth(placing.speeds, default_costs=AttemptCosts(start_s=restart_s))
    return Prepared(jobs, Scenario(pools, truth, spec, rules))


def _fifo(data: Path, scale: float) -> Prepared:
    return _case(_philly(data, scale), _philly_512(), PolicySpec("fifo", {"strict": True}), RoundRules())


def _las(data: Path, scale: float) -> Prepared:
    rules = RoundRules(round_s=360.0)
    return _case(_philly(data, scale), _philly_512(), PolicySpec("las"), rules, restart_s=60.0)


def _backfill(data: Path, scale: float) -> Prepared:
    pools = _philly_512(machines=128)
    return _case(_philly(data, scale), pools, PolicySpec("fifo", {"strict": False}), RoundRules())


def _max_min(data: Path, scale: float) -> Prepared:
    return on_three_types(_philly(data, scale), RoundRules(round_s=360.0, resolve_min_s=360.0))


def on_three_types(rows: Iterable[TraceJob], rules: RoundRules) -> Prepared:
    """Jobs of Philly on half a thousand accelerators of three types, by max-min fairness with speeds."""
    pools = tuple(
        PoolModel(Pool(PoolId(name), Shape(name, name, size, 64.0, 2**39, nominal_speed=speed)), machines=machines)
        for name, (machines, size, speed) in THREE_TYPES.items()
    )
    rows = with_seeded_speeds(rows, {name: speed for name, (_, _, speed) in THREE_TYPES.items()})
    return _case(rows, pools, PolicySpec("max_min_fairness", {"aware": True}), rules, restart_s=60.0)


def _gavel(data: Path, scale: float) -> Prepared:
    trace, counts = _GAVEL
    truth = GroundTruth(read_throughput_table(data / "gavel" / "throughputs" / "simulation_throughputs.json"))
    pools = tuple(
        PoolModel(Pool(PoolId(name), Shape(name, name, 1, 8.0, 2**36)), machines=count)
        for name, count in counts.items()
    )
    rows = read_trace(data / "gavel" / "traces" / f"{trace}.tsv", "gavel").jobs
    some = islice(rows, max(1, round(len(rows) * scale)))
    jobs = list(TraceBinding(dict.fromkeys(counts, 1.0), table=truth.speeds).jobs(some))
    return Prepared(jobs, gavel_scenario(pools, truth, "max_min_fairness_perf"))


def _gangs(data: Path, scale: float) -> Prepared:
    gavel = data / "gavel"
    table = str(gavel / "throughputs" / "simulation_throughputs.json")
    source = WorkloadSource(str(gavel / "traces" / f"{_GANGS[0]}.tsv"), speeds=table)
    ready = prepare_run(RunSpec(source, _GANGS[1], "walras", bounds=BoundsChoice.NONE))
    jobs = list(ready.jobs)
    return Prepared(jobs[: max(1, round(len(jobs) * scale))], ready.scenario)


CASES = {
    "fifo": Case("Philly, strict first come first served", "64 machines of 8", _fifo, 30.0, waited=0.9),
    "las": Case("Philly, least attained service", "64 machines of 8, rounds of 360 s, restart 60 s", _las, 30.0),
    "backfill": Case("Philly, first come first served with backfill", "128 machines of 8", _backfill, 20.0),
    "max_min": Case(
        "Philly, aware max-min re-solved every 360 s at most",
        "172:170:170 of three types, restart 60 s, speeds by simulator/workloads/trace_binding.py, 26 kinds, seed 0",
        _max_min,
        200.0,
    ),
    "gangs": Case("walras, gangs of one to eight", f"{_GANGS[0]} on 12:12:12", _gangs, 10.0, waited=0.05, warm_up=0.1),
    "gavel": Case("Gavel's mechanism, aware max-min", f"{_GAVEL[0]} on 36:36:36", _gavel, recorded_s=GAVEL_RECORDED_S),
}


# ------------------------------------------------------------------------------------------------ one run


class _Watch:
    """Counts what comes of a run and keeps none of it."""

    def __init__(self) -> None:
        self.ended = self.waited = self.rounds = 0
        self.jct_s = self.solver_s = 0.0

    def took(self, measure: JobMetrics) -> None:
        self.ended += 1
        self.jct_s += measure.jct_s
        self.waited += measure.queueing_s > 0

    def heard(self, event: Event, _: list[Command]) -> None:
        self.rounds += type(event) is RoundEnded

    def timed(self, solver: Callable[[Solve], Proposal]) -> Callable[[Solve], Proposal]:
        def solve(command: Solve) -> Proposal:
            began = process_time()
            proposal = solver(command)
            self.solver_s += process_time() - began
            return proposal

        return solve


def run(name: str, scale: float = 1.0) -> dict[str, float]:
    """One case in this process: its figures, and proof that it did the work."""
    case, data = CASES[name], reference_data()
    if case.warm_up:
        before = case.prepare(data, case.warm_up)
        simulate(before.jobs, before.scenario)
    prepared = case.prepare(data, scale)
    watch, scenario = _Watch(), prepared.scenario
    wiring = replace(scenario.wiring, solver=watch.timed(scenario.wiring.solver))
    began_s, began_cpu_s = perf_counter(), process_time()
    result = simulate(prepared.jobs, replace(scenario, wiring=wiring), sink=watch.took, recorder=watch.heard)
    cpu_s, wall_s = process_time() - began_cpu_s, perf_counter() - began_s
    assert result.outcome is RunOutcome.COMPLETE, result.outcome
    assert not result.violations, result.violations[:3]
    return {
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "solver_s": watch.solver_s,
        "solves": result.solves.solves,
        "events": result.events,
        "rounds": watch.rounds,
        "jobs": watch.ended,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "avg_jct_s": watch.jct_s / watch.ended,
        "waited": watch.waited / watch.ended,
    }


def in_a_process_of_its_own(call: str, patience_s: float) -> dict[str, float]:
    """The figures that `call` (module.function(...)) returns; raises RuntimeError if it fails."""
    module = call.partition("(")[0].rpartition(".")[0]
    done = subprocess.run(
        [sys.executable, "-c", f"import json, {module}; print(json.dumps({call}))"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=patience_s,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{call} failed:\n{done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


# ------------------------------------------------------------------------------------------------ figures


def measure(scale: float) -> Iterator[Measured]:
    """All cases; none without the reference data."""
    if not os.environ.get("WALRAS_DATA"):
        yield Measured("recorded traces", "not measured: WALRAS_DATA is not set")
        return
    for name, case in CASES.items():
        figures = in_a_process_of_its_own(f"benchmarks.traces.run({name!r}, {scale!r})", _PATIENCE_S)
        measured = Measured(case.title, f"{figures['jobs']:,.0f} jobs, {case.setting}")
        _add(measured, case, figures, whole=scale >= 1)
        yield measured


def _add(measured: Measured, case: Case, figures: dict[str, float], *, whole: bool) -> None:
    measured.add("the run", figures["wall_s"], "s", case.at_most_s if whole else None)
    measured.add("  of which on the processor", figures["cpu_s"], "s")
    measured.add("  processor time per event, solver apart", _us_per_event(figures), "us")
    measured.add("peak memory", figures["peak_mib"], "MiB", _MEMORY_MIB)
    measured.add("jobs that waited", 100 * figures["waited"], "%", at_least=_percent(case.waited) if whole else None)
    measured.add("average completion time", figures["avg_jct_s"], "s")
    if figures["solves"]:
        measured.add("solver", figures["solver_s"], "s")
        measured.add("solves", figures["solves"], "")
    if case.recorded_s is not None:
        faster = case.recorded_s / figures["wall_s"]
        outside_ms = 1e3 * (figures["cpu_s"] - figures["solver_s"]) / figures["rounds"]
        measured.add("faster than recorded", faster, "times", at_least=5.0 if whole else None)
        measured.add("outside the solver, per round", outside_ms, "ms", 0.5 if whole else None)


def _us_per_event(figures: dict[str, float]) -> float:
    return 1e6 * (figures["cpu_s"] - figures["solver_s"]) / figures["events"]


def _percent(part: float | None) -> float | None:
    return None if part is None else 100 * part
