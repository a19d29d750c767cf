"""Two jobs on one accelerator: what a cluster gains by it, by measured speeds of pairs, and what one live pair gains.

    WALRAS_DATA=FOLDER python -m benchmarks co_location [--row simulated live]

Simulated: jobs of Gavel's generator (one accelerator each, 3.0 an hour), made anew from three seeds, on 16 V100, in the
scheduler's own mechanism; every job agrees to share and states that it keeps the device busy for .6 of the time, which
is wrong for most. What a pair of kinds truly reaches is Gavel's table of co-located throughputs on a V100; that two do
not fit into its memory together is the memory that each states, the smallest that excludes every such pair. The
scheduler learns pairs from reports; the same jobs without sharing stand beside.

Live: two PyTorch jobs under a server and an agent with one emulated accelerator, which does one thing at a time
(`tests/support/shared_job.py`). Once a pair in which each waits for its data for most of its time, once a pair that
throws each other's state out with every step, though both state to need the device for half of the time: it is
separated. The figure is the sum of the parts of their speeds alone that they keep; 1 is one after the other.
"""

import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
from scipy.optimize import linprog

from benchmarks.needs import reference_data
from benchmarks.tables import Measured
from optimizer.policy import PolicySpec
from scheduler.core.rules import RoundRules
from scheduler.world.attempts import AttemptCosts, SimulatedJob, WorldParameters
from simulator.experiment import trace_experiment
from simulator.ground_truth import SpeedKey
from simulator.simulation import Scenario, SimulationResult, simulate
from simulator.workloads.generators import gavel_jobs, generator_request
from simulator.workloads.trace_binding import read_pair_speeds, read_throughput_table
from simulator.workloads.trace_source import Trace
from tests.support.real_server import A, RealServer
from tests.support.shared_job import SCRIPT, THRASHING, WAITING
from tests.support.waiting import wait_for
from walras.job_request import DeviceShare, Kind
from walras.spec.cluster_file import ClusterConfig

ROWS = ("simulated", "live")
JOBS, V100 = 120, 16
_SEEDS = (101, 102, 103)
_BUSY = 0.6
_POLICIES = ("fifo", "las", "max_min_fairness", "walras")
#: Memory of the device in the units of `_memories`.
_WHOLE = 16 * 10**9


def measure(scale: float, row: str) -> list[Measured]:
    """The figures of one row."""
    return _simulated(scale) if row == "simulated" else [_live()]


# ------------------------------------------------------------------------------------------------ simulated


def _simulated(scale: float) -> list[Measured]:
    data = reference_data()
    jobs = int(JOBS * scale)
    measured = Measured("Two jobs on one accelerator", f"{jobs} jobs of each of {len(_SEEDS)} seeds, {V100} V100")
    for policy in _POLICIES:
        alone, shared = (
            [_run(data / "gavel", policy, jobs, seed, shares=shares) for seed in _SEEDS] for shares in (False, True)
        )
        assert not any(each.violations for each in (*alone, *shared)), [each.violations for each in (*alone, *shared)]
        hours = [[_mean_jct_s(each) / 3600.0 for each in runs] for runs in (alone, shared)]
        measured.add(f"{policy}: mean completion alone", float(np.mean(hours[0])), "h")
        measured.add(f"{policy}: mean completion, sharing", float(np.mean(hours[1])), "h")
        _tell_ratios(measured, f"{policy}: sharing against alone", *hours)
        spans = [[each.last_ended_at - each.first_submitted_at for each in runs] for runs in (alone, shared)]
        _tell_ratios(measured, f"{policy}: last end, sharing against alone", *spans)
    return [measured]


def _tell_ratios(measured: Measured, what: str, alone: list[float], shared: list[float]) -> None:
    """Ratios seed by seed: their mean, and the worst."""
    ratios = [after / before for before, after in zip(alone, shared, strict=True)]
    measured.add(what, float(np.mean(ratios)), "x", at_most=1.0)
    measured.add(f"{what}, worst seed", max(ratios), "x", at_most=1.0)


def _run(folder: Path, policy: str, jobs: int, seed: int, *, shares: bool) -> SimulationResult:
    table = folder / "throughputs" / "simulation_throughputs.json"
    pool = {"shape": "v100", "accelerator": "v100", "accelerators": 1, "cpus": 8, "memory": "64GB", "machines": V100}
    cluster = ClusterConfig.model_validate({"pools": [pool | {"accelerator_memory": "16GB"}]})
    asked = generator_request("gavel", jobs=jobs, rate_per_h=3.0, seed=seed, gangs=False)
    made = list(gavel_jobs(asked, read_throughput_table(table)))
    experiment = trace_experiment(Trace("gavel", "generated", made), cluster, table)
    pairs = {pair: speed for pair, speed in read_pair_speeds(table, ["v100"]).items() if pair[0].count == 1}
    memories = _memories(pairs)
    scenario = Scenario(
        pools=experiment.pools,
        truth=replace(
            experiment.truth,
            pairs={pair: speed for pair, speed in pairs.items() if speed > 0},
            default_costs=AttemptCosts(start_s=20.0, checkpoint_s=5.0, checkpoint_every_s=600.0, warm_up_s=10.0),
        ),
        policy=PolicySpec(policy, {}),
        rules=RoundRules(round_s=360.0),
        world=WorldParameters(report_s=600.0, forward_every_s=600.0, window_s=10.0),
    )
    return simulate([_willing(job, memories) if shares else job for job in experiment.jobs], scenario)


def _willing(job: SimulatedJob, memories: dict[Kind, int]) -> SimulatedJob:
    """The job as one that agrees to share its accelerator."""
    shared = DeviceShare(memories.get(job.request.kind, _WHOLE), _BUSY)
    return replace(job, request=replace(job.request, shared=shared))


def _memories(pairs: dict[tuple[SpeedKey, Kind], float]) -> dict[Kind, int]:
    """The least memory by kind for which no two kinds fit together that do not fit by the table."""
    kinds = sorted({key.kind for key, _ in pairs})
    barred = [
        (kinds.index(one), kinds.index(two))
        for one, two in combinations_with_replacement(kinds, 2)
        if not (pairs.get((SpeedKey(one, "v100", 1), two)) and pairs.get((SpeedKey(two, "v100", 1), one)))
    ]
    rows = np.zeros((len(barred), len(kinds)))
    for row, both in enumerate(barred):
        for kind in both:
            rows[row, kind] -= 1.0
    found = linprog(np.ones(len(kinds)), rows, np.full(len(barred), -1.001), bounds=(0.01, 1.0))
    return {kind: int(part * _WHOLE) for kind, part in zip(kinds, found.x, strict=True)}


def _mean_jct_s(result: SimulationResult) -> float:
    return sum(job.ended_at - job.submitted_at for job in result.jobs) / len(result.jobs)


# ------------------------------------------------------------------------------------------------ live


def _live() -> Measured:
    measured = Measured("A pair of PyTorch jobs on one emulated accelerator", "live, one run each")
    pool = A | {"accelerator_memory": "16GB"}
    policy = {"policy": {"name": "fifo", "parameters": {"strict": False}}, "rules": {"round_s": 5, "backoff_s": 1}}
    for name, envs in (("waiting for data", WAITING), ("thrashing", THRASHING)):
        with tempfile.TemporaryDirectory() as folder:
            server = RealServer(Path(folder), [pool], policy).start()
            try:
                server.start_agent(pool=pool)
                kept, is_apart = _pair(server, envs)
            finally:
                server.close()
        pays = envs is WAITING
        measured.add(f"{name}: sum of the parts kept", kept, "x", at_least=1.3 if pays else None)
        measured.add(
            f"{name}: separated (1: yes)", float(is_apart), "", at_least=float(not pays), at_most=float(not pays)
        )
    return measured


def _pair(server: RealServer, envs: dict[str, str]) -> tuple[float, bool]:
    """The sum of the parts of their speeds that both keep, and whether they were separated."""

    def speed(kind: str) -> float:
        return next((found for name, found in server.rows("SELECT kind, steps_per_s FROM speeds") if name == kind), 0.0)

    def submit(kind: str) -> int:
        return server.submit(
            name=kind, profile=kind, run=[sys.executable, "-c", SCRIPT], checkpoint={"interval": "1h"},
            envs=envs | {"DEVICE": str(server.folder / "device")},
            resources={"accelerators": "a:1", "shared": {"memory": "8GB", "busy": 0.5}},
        )  # fmt: skip

    for kind in ("two", "one"):
        host = submit(kind)
        wait_for(partial(speed, kind), 120, f"{kind} is measured alone")
        time.sleep(20.0)  # a median over forty windows
        if kind == "two":
            server.call("POST", f"/jobs/{host}/cancel")
            server.until_state(host, "CANCELLED", 60)
    guest = submit("two")
    server.until_running(guest, timeout_s=60)
    wait_for(lambda: speed("one beside two") and speed("two beside one"), 180, "both are measured")
    kept = speed("one beside two") / speed("one") + speed("two beside one") / speed("two")
    time.sleep(10.0)
    return kept, server.state(guest) != "RUNNING"
