"""`walras` where little is known and restarts cost: what that adds to the mean completion time (needs `WALRAS_DATA`).

    WALRAS_DATA=... python -m benchmarks grounds_conditions [--row static-noise small-lengths ...]

Gavel's traces at events, a row for each trace and condition. Lengths are wrong by a factor that is log-normal
(deviation .5 of the logarithm), cut off at .5 and 2, one draw a job. Noise of speeds is 10 %, in four ways:

* from attempt to attempt, and the policy hears of the mean. That changes what there is to do, and by much more than
  what not knowing costs: a mean over jobs of unlike lengths is that of a few long ones. It is told, with its interval;
* from job to job, the same draws once known to the policy and once not: the difference is what not knowing costs;
* in what jobs report, from which the scheduler learns speeds (told none), against exact reports;
* in every cell of the table, for good, and nobody ever measures: told wrong.

Below a scale of 1 there is one seed instead of five (three where runs are long).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from random import Random
from statistics import fmean

from benchmarks.bench_grounds_traces import AWARE, TRACES, Recorded, source_of
from benchmarks.grounds import Served, as_shipped, as_told, reference_b, serve
from benchmarks.tables import Measured
from optimizer.policy import PolicySpec
from scheduler.world.attempts import AttemptCosts, SimulatedJob
from simulator.reports.repeated_runs import estimate_mean
from simulator.simulation import Scenario

#: Seconds to start, and how much more the mean may be with it.
STARTS = {30.0: 0.5, 60.0: 1.0, 180.0: 3.0}
_SPREAD, _LEAST, _MOST, _NOISE, _REPORT_S = 0.5, 0.5, 2.0, 0.1, 60.0
_LESS_KNOWN, _MOVES, _SLOWDOWN = 1.0, 2.0, 4.0
_NAMES = {
    "static": "static_single_seed0_n60",
    "small": "single_small_seed0_rate1.67",
    "weighted": "single_small_prio_seed0_rate1.67",
    "gangs": "multi_small_seed0_rate0.5",
}
_CONDITIONS = ("starts", "lengths", "noise", "learnt", "misled", "hidden")
#: Rows that can be measured alone.
ROWS = tuple(f"{name}-{condition}" for name in _NAMES for condition in _CONDITIONS)


def measure(scale: float, row: str | None = None) -> list[Measured]:
    """A table for each trace and condition, or for one."""
    return [_row(name, scale) for name in ([row] if row else ROWS)]


def _row(name: str, scale: float) -> Measured:
    short, condition = name.split("-")
    trace = next(trace for trace in TRACES if trace.name == _NAMES[short])
    seeds = range(1 if scale < 1 else 5 if short == "static" else 3)
    measured = Measured(f"walras, {condition}, {trace.name}", "at events; % are more mean completion time")
    _MEASURES[condition](measured, trace, seeds)
    return measured


@cache
def _known(trace: Recorded) -> Served:
    return _run(trace)


def _starts(measured: Measured, trace: Recorded, _: Iterable[int]) -> None:
    for start_s, most in STARTS.items():
        served = _run(trace, change=partial(_starting, start_s=start_s))
        measured.add(f"a start takes {start_s:g} s", _more(served, _known(trace)), "%", at_most=most)
        measured.add(f"a start takes {start_s:g} s: moves per job", served.moves, "", None if trace.gangs else _MOVES)


def _lengths(measured: Measured, trace: Recorded, seeds: Iterable[int]) -> None:
    wrong = [_run(trace, retell=partial(told_wrong, seed=seed)) for seed in seeds]
    _mean(measured, "lengths wrong", [_more(served, _known(trace)) for served in wrong], _LESS_KNOWN)


def _noise(measured: Measured, trace: Recorded, seeds: Iterable[int]) -> None:
    by_attempt = [_more(_run(trace, seed=seed, change=_noisy), _known(trace)) for seed in seeds]
    _mean(measured, "speeds vary from attempt to attempt", by_attempt, None)
    alone, known, unknown = [], [], []
    for seed in seeds:
        runs = [_run(trace, retell=partial(paced, seed=seed, told=told)) for told in (True, False)]
        known.append(_more(runs[0], _known(trace)))
        unknown.append(_more(runs[1], runs[0]))
        slower = islice(slowness(seed), len(runs[0].alone_s))
        alone_s = fmean(each * alone_s for each, alone_s in zip(slower, runs[0].alone_s, strict=True))
        alone.append(100.0 * (alone_s / runs[0].no_contention_s - 1.0))
    _mean(measured, "speeds vary from job to job: no contention", alone, None)
    _mean(measured, "speeds vary from job to job, and are known", known, None)
    _mean(measured, "not known, against known", unknown, _LESS_KNOWN)


def _learnt(measured: Measured, trace: Recorded, seeds: Iterable[int]) -> None:
    exact = _run(trace, change=partial(_learning, noise=0.0))
    measured.add("speeds learnt from exact reports", _more(exact, _known(trace)), "%")
    noisy = [_run(trace, seed=seed, change=partial(_learning, noise=_NOISE)) for seed in seeds]
    _mean(measured, "from noisy ones, against exact ones", [_more(served, exact) for served in noisy], _LESS_KNOWN)


def _told_speeds(measured: Measured, trace: Recorded, seeds: Iterable[int]) -> None:
    wrong = [_run(trace, hearsay=partial(_misled, seed=seed)) for seed in seeds]
    _mean(measured, "speeds told wrong", [_more(served, _known(trace)) for served in wrong], _LESS_KNOWN)


def _hidden(measured: Measured, trace: Recorded, _: Iterable[int]) -> None:
    blind, reference = _run(trace, change=_blind), serve(source_of(trace), trace.cluster, AWARE, change=reference_b)
    measured.add("no lengths: JCT", blind.mean_s, "s", at_most=reference.mean_s)
    measured.add("no lengths: worst slowdown", max(blind.slowdowns), "", at_most=_SLOWDOWN)


_MEASURES: dict[str, Callable[[Measured, Recorded, Iterable[int]], None]] = dict(
    zip(_CONDITIONS, (_starts, _lengths, _noise, _learnt, _told_speeds, _hidden), strict=True)
)


def _mean(measured: Measured, what: str, percent: list[float], most: float | None) -> None:
    """The mean over seeds, and its interval where there are several."""
    found = estimate_mean(percent)
    measured.add(f"{what}, mean of {found.n}", fmean(percent), "%", at_most=most)
    if found.n > 1:
        measured.add(f"{what}: half of the 95 % interval", found.half, "%")


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
    return replace(scenario, truth=replace(scenario.truth, default_costs=AttemptCosts(start_s=start_s)))


def _noisy(scenario: Scenario) -> Scenario:
    return replace(scenario, world=replace(scenario.world, speed_noise=_NOISE))


def _learning(scenario: Scenario, noise: float) -> Scenario:
    return replace(scenario, oracle=False, world=replace(scenario.world, report_s=_REPORT_S, report_noise=noise))


def _misled(scenario: Scenario, seed: int) -> Scenario:
    random = Random(f"{seed}/speeds")
    truth = scenario.truth
    wrong = {key: random.lognormvariate(0.0, _NOISE) for key in truth.speeds}
    speeds = {key: speed * wrong[key] for key, speed in truth.speeds.items()}
    spread = {key: speed * wrong.get(key, 1.0) for key, speed in truth.multi_machine_speeds.items()}
    return replace(scenario, truth=replace(truth, speeds=speeds, multi_machine_speeds=spread))


def _blind(scenario: Scenario) -> Scenario:
    return replace(scenario, policy=PolicySpec("walras", {"hide_lengths": True}))


def told_wrong(jobs: Iterable[SimulatedJob], seed: int) -> Iterator[SimulatedJob]:
    """The same jobs, that say they are as much longer or shorter as they happen to believe."""
    random = Random(f"{seed}/lengths")
    for job in jobs:
        wrong = min(_MOST, max(_LEAST, random.lognormvariate(0.0, _SPREAD)))
        assert job.request.steps is not None
        yield replace(job, request=replace(job.request, steps=job.request.steps * wrong))


def paced(jobs: Iterable[SimulatedJob], seed: int, told: bool) -> Iterator[SimulatedJob]:
    """The same jobs, each slower or faster everywhere than its kind: as much more or less work at its kind's speed."""
    for job, slower in zip(jobs, slowness(seed), strict=False):
        assert job.request.steps is not None
        request = replace(job.request, steps=job.request.steps * slower) if told else job.request
        yield replace(job, steps=job.steps * slower, request=request)


def slowness(seed: int) -> Iterator[float]:
    """How many times as long as its kind each job takes, one after the other without end."""
    random = Random(f"{seed}/paces")
    while True:
        yield 1.0 / random.lognormvariate(0.0, _NOISE)
