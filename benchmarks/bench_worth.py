"""What one more accelerator is worth by the plans of `walras`, against a replay with it added.

    python -m benchmarks worth

A trace is 80 jobs of three kinds on one accelerator each, lengths lognormal around 90 minutes, at a load drawn between
.6 and 1.1 of the fleet, each with a value of its own between .5 and 3 USD/h; a fleet is two types, one 1.7 to 4 times
as fast as the other. The estimate of a pool is what plans say (`Proposal.worth_usd`, `walras cloud prices --worth`),
summed over the run. The truth is the run again with one accelerator more there: by how much sooner the jobs end, each
hour at the job's value. Pairs in which that is under a thousandth of the whole time in the system, at its value, count
for the rank correlation alone. Targets: rank correlation .9, median error 25 %.
"""

from dataclasses import dataclass, replace
from math import log
from random import Random
from statistics import fmean, median

import numpy as np
from scipy.stats import spearmanr

from benchmarks.tables import Measured
from optimizer.policy import PolicySpec
from scheduler.core.commands import Command
from scheduler.core.events import Event, Solved
from scheduler.core.rules import RoundRules
from scheduler.world.attempts import AttemptCosts, SimulatedJob
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.simulation import Scenario, SimulationResult, simulate
from walras.cluster import Pool, PoolId, Shape
from walras.contract import SECONDS_PER_HOUR
from walras.job_request import Demand, JobId, JobRequest, Kind

TYPES = ("fast", "slow")
FLEETS = ((2, 4), (4, 2), (4, 4), (6, 3), (3, 6), (8, 4), (4, 8), (6, 6))
TRACES, JOBS = 20, 80
_KINDS = {Kind("cnn"): (4.0, 1.0), Kind("rnn"): (2.0, 1.2), Kind("lm"): (3.0, 1.5)}
_LENGTH_S, _RESTART_S, _SLOW = 5400.0, 20.0, 0.4
_LEAST_GAIN = 1e-3
_LEAST_RANK, _MOST_ERROR = 0.9, 25.0


@dataclass(frozen=True, slots=True)
class WorthPair:
    """One pool of one fleet under one trace, USD over the run."""

    fleet: tuple[int, ...]
    estimate: float
    gain: float
    #: Time in the system of all jobs, at their values.
    cost: float

    @property
    def error(self) -> float:
        """Of the estimate, relative."""
        return abs(self.estimate - self.gain) / self.gain


def trace_of(seed: int, fleet: tuple[int, ...], jobs: int = JOBS) -> list[SimulatedJob]:
    """Jobs that arrive at random, at a load that is the trace's own."""
    random = Random(f"worth/{seed}/{fleet}")
    load = random.uniform(0.6, 1.1) * (fleet[0] + _SLOW * fleet[1])
    at, made = 0.0, []
    for number in range(1, jobs + 1):
        at += random.expovariate(load / _LENGTH_S)
        kind = random.choice(tuple(_KINDS))
        length_s = min(8 * SECONDS_PER_HOUR, max(300.0, random.lognormvariate(log(_LENGTH_S) - 0.5, 1.0)))
        steps = float(round(length_s * _KINDS[kind][0]))
        request = JobRequest(JobId(number), kind, demands=(Demand("*", 1),), steps=steps, user="u", project="p")
        made.append(SimulatedJob(at, replace(request, value_usd_per_h=random.uniform(0.5, 3.0)), steps))
    return made


def two_types(fleet: tuple[int, ...]) -> Scenario:
    """So many machines of one accelerator of each type."""
    pools = tuple(
        PoolModel(Pool(PoolId(name), Shape(name, name, 1, 8.0, 2**33)), count)
        for name, count in zip(TYPES, fleet, strict=True)
    )
    speeds = {SpeedKey(kind, name): told[at] for kind, told in _KINDS.items() for at, name in enumerate(TYPES)}
    rules = RoundRules(round_s=360.0, resolve_min_s=1.0, restart_default_s=_RESTART_S)
    return Scenario(pools, GroundTruth(speeds, {}, AttemptCosts(start_s=_RESTART_S)), PolicySpec("walras"), rules)


class WorthRecorder:
    """Adds up what the plans say that one more of each pool is worth, USD."""

    def __init__(self) -> None:
        self.usd = dict.fromkeys(TYPES, 0.0)
        self._since, self._rate = 0.0, dict.fromkeys(TYPES, 0.0)

    def record(self, event: Event, _: list[Command]) -> None:
        """A recorder of a simulation."""
        self.pass_time(event.at)
        if isinstance(event, Solved):
            told = dict(zip(event.proposal.pools, event.proposal.worth_usd, strict=False))
            self._rate = {name: told.get(PoolId(name), 0.0) for name in TYPES}

    def pass_time(self, until: float) -> None:
        """Count what was said last until this instant."""
        for name, usd_per_h in self._rate.items():
            self.usd[name] += usd_per_h * (until - self._since) / SECONDS_PER_HOUR
        self._since = until


def _cost_usd(result: SimulationResult, jobs: list[SimulatedJob]) -> float:
    """Time in the system at the jobs' values."""
    value = {job.request.job_id: job.request.value_usd_per_h or 0.0 for job in jobs}
    assert not result.unfinished, result.unfinished
    return sum(value[each.job_id] * each.jct_s for each in result.jobs) / SECONDS_PER_HOUR


def worth_pairs(seed: int, fleet: tuple[int, ...], jobs: int = JOBS) -> list[WorthPair]:
    """Estimate and truth of each pool."""
    made, recorder = trace_of(seed, fleet, jobs), WorthRecorder()
    base = _cost_usd(simulate(made, two_types(fleet), recorder=recorder.record), made)
    found = []
    for row, name in enumerate(TYPES):
        more = tuple(count + (row == other) for other, count in enumerate(fleet))
        gain = base - _cost_usd(simulate(made, two_types(more)), made)
        found.append(WorthPair(fleet, recorder.usd[name], gain, base))
    return found


def measure(scale: float) -> list[Measured]:
    """One table over all traces and fleets."""
    traces = max(2, round(TRACES * scale))
    by_fleet = {fleet: [worth_pairs(seed, fleet) for seed in range(traces)] for fleet in FLEETS}
    pairs = [pair for runs in by_fleet.values() for run in runs for pair in run]
    measured = Measured("worth of one more", f"{traces} traces x {len(FLEETS)} fleets x 2 pools, {JOBS} jobs each")

    def rank(of: list[WorthPair]) -> float:
        return float(spearmanr([each.estimate for each in of], [each.gain for each in of])[0])

    def errors(of: list[WorthPair]) -> list[float]:
        return [100.0 * each.error for each in of if each.gain > _LEAST_GAIN * each.cost]

    measured.add("rank correlation with replay", rank(pairs), "", at_least=_LEAST_RANK)
    ranks = [rank([pair for run in runs for pair in run]) for runs in by_fleet.values()]
    measured.add("rank correlation, worst fleet", min(ranks), "")
    measured.add("pairs that gain", len(errors(pairs)), f"of {len(pairs)}")
    measured.add("error, median", median(errors(pairs)), "%", at_most=_MOST_ERROR)
    worst = max(median(errors([pair for run in runs for pair in run])) for runs in by_fleet.values())
    measured.add("error, median of the worst fleet", worst, "%")
    measured.add("error, 90th percentile", float(np.quantile(errors(pairs), 0.9)), "%")
    for row, name in enumerate(TYPES):
        told = [run[row] for runs in by_fleet.values() for run in runs]
        gaining = [each for each in told if each.gain > _LEAST_GAIN * each.cost]
        measured.add(f"{name}: error, median", median(errors(told)), "%")
        measured.add(f"{name}: estimate over gain, mean", fmean(each.estimate / each.gain for each in gaining), "x")
    return [measured]
