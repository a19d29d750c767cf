"""`walras` where little is known and restarts cost: what that adds to the mean completion time (needs `WALRAS_DATA`).

    WALRAS_DATA=... python -m benchmarks grounds_conditions

Gavel's continuous traces at events. Lengths are wrong by a factor that is log-normal (deviation .5 of the logarithm),
cut off at .5 and 2, one draw a job. Noisy speeds vary by 10 % from attempt to attempt, and the policy hears of the
mean: that changes what there is to do, too, and the mean of a few seeds may fall. Speeds told wrong are off by 10 % in
every cell of the table, for good, and nothing else changes. Below a scale of 1 there is one seed instead of three.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from random import Random
from statistics import fmean

from benchmarks.bench_grounds_traces import AWARE, TRACES, Recorded, source_of
from benchmarks.grounds import Served, as_shipped, as_told, reference_b, serve
from benchmarks.tables import Measured
from optimizer.policy import PolicySpec
from simulator.job import SimulatedJob
from simulator.simulate import Scenario
from simulator.truth import Costs

#: Seconds to start, and how much more the mean may be with it.
STARTS = {30.0: 0.5, 60.0: 1.0, 180.0: 3.0}
_SPREAD, _LEAST, _MOST, _NOISE = 0.5, 0.5, 2.0, 0.1
_LESS_KNOWN, _MOVES, _SLOWDOWN = 1.0, 2.0, 4.0


def measure(scale: float) -> list[Measured]:
    """A table for each of the traces."""
    names = ("single_small_seed0_rate1.67", "single_small_prio_seed0_rate1.67", "multi_small_seed0_rate0.5")
    seeds = range(3 if scale >= 1 else 1)
    return [_on(trace, seeds) for trace in TRACES if trace.name in names]


def _on(trace: Recorded, seeds: Iterable[int]) -> Measured:
    measured = Measured(f"walras under conditions, {trace.name}", "at events; % are more mean completion time")
    known = _run(trace)
    measured.add("nothing costs, all is known: JCT", known.mean_s, "s")
    for start_s, most in STARTS.items():
        served = _run(trace, change=partial(_starting, start_s=start_s))
        measured.add(f"a start takes {start_s:g} s", _more(served, known), "%", at_most=most)
        measured.add(f"a start takes {start_s:g} s: moves per job", served.moves, "", None if trace.gangs else _MOVES)
    wrong = [_run(trace, retell=partial(told_wrong, seed=seed)) for seed in seeds]
    measured.add("lengths wrong", fmean(_more(served, known) for served in wrong), "%", at_most=_LESS_KNOWN)
    noisy = [_run(trace, seed=seed, change=_noisy) for seed in seeds]
    measured.add("speeds noisy", fmean(_more(served, known) for served in noisy), "%", at_most=_LESS_KNOWN)
    misled = [_run(trace, hearsay=partial(_misled, seed=seed)) for seed in seeds]
    measured.add("speeds told wrong", fmean(_more(served, known) for served in misled), "%", at_most=_LESS_KNOWN)
    blind, reference = _run(trace, change=_blind), serve(source_of(trace), trace.cluster, AWARE, change=reference_b)
    measured.add("no lengths: JCT", blind.mean_s, "s", at_most=reference.mean_s)
    measured.add("no lengths: worst slowdown", max(blind.slowdowns), "", at_most=_SLOWDOWN)
    return measured


def _run(
    trace: Recorded,
    *,
    seed: int = 0,
    change: Callable[[Scenario], Scenario] = as_shipped,
    retell: Callable[[Iterable[SimulatedJob]], Iterable[SimulatedJob]] = as_told,
    hearsay: Callable[[Scenario], Scenario] = as_shipped,
) -> Served:
    source = source_of(trace)
    return serve(source, trace.cluster, "walras", seed=seed, change=change, retell=retell, hearsay=hearsay)


def _more(served: Served, known: Served) -> float:
    return 100.0 * (served.mean_s / known.mean_s - 1.0)


def _starting(scenario: Scenario, start_s: float) -> Scenario:
    return replace(scenario, truth=replace(scenario.truth, default_costs=Costs(start_s=start_s)))


def _noisy(scenario: Scenario) -> Scenario:
    return replace(scenario, world=replace(scenario.world, speed_noise=_NOISE))


def _misled(scenario: Scenario, seed: int) -> Scenario:
    random = Random(f"{seed}/speeds")
    truth = scenario.truth
    wrong = {key: random.lognormvariate(0.0, _NOISE) for key in truth.speeds}
    speeds = {key: speed * wrong[key] for key, speed in truth.speeds.items()}
    spread = {key: speed * wrong.get(key, 1.0) for key, speed in truth.spread.items()}
    return replace(scenario, truth=replace(truth, speeds=speeds, spread=spread))


def _blind(scenario: Scenario) -> Scenario:
    return replace(scenario, policy=PolicySpec("walras", {"hide_lengths": True}))


def told_wrong(jobs: Iterable[SimulatedJob], seed: int) -> Iterator[SimulatedJob]:
    """The same jobs, that say they are as much longer or shorter as they happen to believe."""
    random = Random(f"{seed}/lengths")
    for job in jobs:
        wrong = min(_MOST, max(_LEAST, random.lognormvariate(0.0, _SPREAD)))
        assert job.request.steps is not None
        yield replace(job, request=replace(job.request, steps=job.request.steps * wrong))
