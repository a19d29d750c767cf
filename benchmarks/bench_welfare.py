"""What it is worth to users that the scheduler knows what their jobs are worth, and what one gains who says it falsely.

    python -m benchmarks welfare --row values

Eight users of one project on twelve accelerators of three types; each job has a value drawn by user and by job
(lognormal), which its `weight` states. `values`: the mean completion time weighed by value under `walras`, against the
policy `priority` where each job has the class (low, normal, high) that is the third of its value, all told truly. Two
more rows: one user states `false-value` (ten times as much as true, or a tenth) or `false-length` (half of the steps or
a quarter), the others the truth; what is told is how much sooner his own jobs end, weighed by their true values, in the
same workload. A user's seeds are told apart, for luck is as large as what is gained: the mean over all is the figure.
"""

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from statistics import fmean, stdev

from benchmarks.forecast_runs import generated_run
from benchmarks.tables import Measured
from optimizer.policy import PolicySpec
from scheduler.world.attempts import SimulatedJob
from simulator.metrics import JobMetrics
from simulator.simulation import Scenario, simulate
from walras.job_request import JobId

ROWS = ("values", "false-value", "false-length")
_SEEDS, _JOBS, _USERS = (61, 62, 63, 64), 80, 8
_RATE_PER_H, _STRETCH = 10.0, 0.1
#: Spread of values between users and between jobs of one, of their logarithms; and what a role may state at most.
_OF_USERS, _OF_JOBS, _LEAST, _MOST = 0.5, 0.8, 0.1, 10.0
_FALSE_VALUES, _FALSE_LENGTHS = (10.0, 0.1), (0.5, 0.25)
_LIARS = 3
#: Priorities of the three classes.
_CLASSES = (20, 50, 80)
_WELFARE, _GAINED = 10.0, 1.0


def workload(seed: int, jobs: int) -> tuple[Scenario, list[SimulatedJob], dict[JobId, float]]:
    """Jobs that state their true values, and these."""
    scenario, made = generated_run("gavel", "walras", seed, jobs, (_RATE_PER_H, _STRETCH))
    chance = Random(f"welfare/{seed}")
    of_user = [chance.lognormvariate(0.0, _OF_USERS) for _ in range(_USERS)]
    values, found = dict[JobId, float](), []
    for job in made:
        user = chance.randrange(_USERS)
        value = min(max(of_user[user] * chance.lognormvariate(0.0, _OF_JOBS), _LEAST), _MOST)
        values[job.request.job_id] = value
        found.append(replace(job, request=replace(job.request, user=f"u{user}", project="all", weight=value)))
    return scenario, found, values


def weighed_jct_s(jobs: Iterable[JobMetrics], values: dict[JobId, float], user: str = "") -> float:
    """Mean completion time weighed by value, of one user or (empty) of all."""
    mine = [each for each in jobs if user in ("", each.user)]
    return sum(values[each.job_id] * each.jct_s for each in mine) / sum(values[each.job_id] for each in mine)


def _by_class(jobs: list[SimulatedJob], values: dict[JobId, float]) -> list[SimulatedJob]:
    """The same jobs with the priority of the third that their value is in, and no weight."""
    ordered = sorted(values.values())
    thirds = ordered[len(ordered) // 3], ordered[2 * len(ordered) // 3]
    found = []
    for job in jobs:
        place = sum(values[job.request.job_id] >= bound for bound in thirds)
        found.append(replace(job, request=replace(job.request, priority=_CLASSES[place], weight=1.0)))
    return found


def _values(measured: Measured, jobs: int) -> None:
    gained, plainly = [], []
    for seed in _SEEDS:
        scenario, made, values = workload(seed, jobs)
        ours = weighed_jct_s(simulate(made, scenario).jobs, values)
        ranked = replace(scenario, policy=PolicySpec("priority"))
        theirs = weighed_jct_s(simulate(_by_class(made, values), ranked).jobs, values)
        unsaid = [replace(job, request=replace(job.request, weight=1.0)) for job in made]
        plain = weighed_jct_s(simulate(unsaid, scenario).jobs, values)
        gained.append(100.0 * (1.0 - ours / theirs))
        plainly.append(100.0 * (1.0 - ours / plain))
    measured.add("welfare over fixed priorities, mean", fmean(gained), "%", at_least=_WELFARE)
    measured.add("the same, worst seed", min(gained), "%")
    measured.add("over `walras` that is told no values, mean", fmean(plainly), "%")
    measured.add("the same, worst seed", min(plainly), "%")


def _lied(jobs: list[SimulatedJob], user: str, *, value: float = 1.0, length: float = 1.0) -> list[SimulatedJob]:
    found = []
    for job in jobs:
        request = job.request
        if request.user == user:
            steps = None if request.steps is None else request.steps * length
            request = replace(request, weight=min(max(request.weight * value, _LEAST), _MOST), steps=steps)
        found.append(replace(job, request=request))
    return found


def _gains(measured: Measured, jobs: int, lies: dict[str, dict[str, float]]) -> None:
    gained: dict[str, list[float]] = {name: [] for name in lies}
    for seed in _SEEDS:
        scenario, made, values = workload(seed, jobs)
        truth = simulate(made, scenario).jobs
        for liar in range(_LIARS):
            user = f"u{liar}"
            before = weighed_jct_s(truth, values, user)
            for name, lie in lies.items():
                after = weighed_jct_s(simulate(_lied(made, user, **lie), scenario).jobs, values, user)
                gained[name].append(100.0 * (1.0 - after / before))
    for name, found in gained.items():
        measured.add(f"{name}: gained, mean of {len(found)}", fmean(found), "%", at_most=_GAINED)
        measured.add(f"{name}: standard error", stdev(found) / len(found) ** 0.5, "%")
        measured.add(f"{name}: most", max(found), "%")


def measure(scale: float, row: str) -> list[Measured]:
    """One table of a row."""
    jobs = max(40, round(_JOBS * scale))
    measured = Measured(f"welfare, {row}", f"{jobs} jobs of {_USERS} users, seeds {_SEEDS}")
    if row == "values":
        _values(measured, jobs)
    elif row == "false-value":
        _gains(measured, jobs, {f"value x {by:g}": {"value": by} for by in _FALSE_VALUES})
    else:
        _gains(measured, jobs, {f"length x {by:g}": {"length": by} for by in _FALSE_LENGTHS})
    return [measured]
