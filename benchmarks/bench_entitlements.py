"""A simulated week in which projects of unlike weight always ask for more than there is: does each get its share?

    python -m benchmarks entitlements --row hierarchical/21

Sixteen accelerators of two types; four projects of weights 4, 2, 1, 1 with two users each, gangs of 1, 2 and 4. Three
always have work; the fourth is away from the second to the fourth day. What each holds and what it is entitled to (by
weight among those with work, never more than it asks for) are integrated by this file's own arithmetic, old parts
halved every seven days. Target: within 2 % at the end of the week for each project, in every seed, under `walras` and
`hierarchical`; a row is a seed. What fairness costs in completion time is measured on a workload that the fleet can
serve (the rows `jct`).
"""

from dataclasses import dataclass, field
from math import log
from random import Random
from statistics import fmean

import numpy as np

from benchmarks.tables import Measured
from optimizer.policy import PolicySpec
from scheduler.core.commands import Command
from scheduler.core.core import SchedulerCore
from scheduler.core.events import EntityShare, Event
from scheduler.core.rules import RoundRules
from scheduler.world.attempts import AttemptCosts, SimulatedJob
from scheduler.world.engine import RunLimits
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.simulation import Scenario, Simulation, simulate
from walras.cluster import Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind

_HOUR_S, _DAY_S = 3600.0, 86_400.0
HALF_LIFE_S = 7 * _DAY_S
_WEIGHTS = {"vision": 4.0, "speech": 2.0, "robots": 1.0, "guests": 1.0}
_AWAY = ("guests", 1 * _DAY_S, 4 * _DAY_S)
_KINDS = {Kind("cnn"): (4.0, 1.0), Kind("rnn"): (2.0, 1.5)}
_PER_MACHINE, _MACHINES = 4, 2
_ACCELERATORS = 2 * _PER_MACHINE * _MACHINES
_RESTART_S = 30.0
_OFF, SEEDS, _JCT = 2.0, (21, 22, 23), "jct"
#: The policies that must keep shares, and what each is compared with in completion times.
POLICIES = {
    "walras": (PolicySpec("walras"), PolicySpec("walras", {"fairness": 0.0})),
    "hierarchical": (PolicySpec("hierarchical"), PolicySpec("max_min_fairness")),
}
ROWS = tuple(f"{name}/{what}" for name in POLICIES for what in (*SEEDS, _JCT))


def week_of(seed: int, load: float, until_s: float) -> list[SimulatedJob]:
    """Jobs of all projects in order of arrival; `load`: what each asks for, as a multiple of its share by weight."""
    random, made = Random(f"week/{seed}/{load:g}"), []
    for project, weight in _WEIGHTS.items():
        share = weight / sum(_WEIGHTS.values()) * _ACCELERATORS
        at = 0.0
        backlog = 2.0 * share * _HOUR_S * 12 if load > 1 else 0.0
        while at < until_s:
            kind = random.choice(tuple(_KINDS))
            gang = random.choices((1, 2, 4), (60, 25, 15))[0]
            length_s = random.uniform(0.5, 5.0) * _HOUR_S  # on an accelerator of the fleet's average speed
            steps = float(round(length_s * fmean(_KINDS[kind]) * gang))
            away = project == _AWAY[0] and _AWAY[1] <= at < _AWAY[2]
            if not away:
                request = JobRequest(
                    JobId(0), kind, demands=(Demand("*", gang),), steps=steps, user=random.choice(("ada", "bob")),
                    project=project,
                )  # fmt: skip
                made.append((at, request, steps))
            if backlog > 0:
                backlog -= length_s * gang
                continue
            at += random.expovariate(load * share / (2.75 * _HOUR_S * 1.7))
    made.sort(key=lambda each: each[0])
    return [SimulatedJob(at, _numbered(request, number), steps) for number, (at, request, steps) in enumerate(made, 1)]


def _numbered(request: JobRequest, number: int) -> JobRequest:
    return JobRequest(
        JobId(number), request.kind, demands=request.demands, steps=request.steps, user=request.user,
        project=request.project,
    )  # fmt: skip


def shared_fleet(policy: PolicySpec, until_s: float, *, weighted: bool = True) -> Scenario:
    """Two machines of four fast accelerators, two of four slow ones."""
    pools = tuple(
        PoolModel(Pool(PoolId(name), Shape(name, name, _PER_MACHINE, 32.0, 2**36)), _MACHINES)
        for name in ("fast", "slow")
    )
    speeds = {
        SpeedKey(kind, name, count): told[at] * count
        for kind, told in _KINDS.items()
        for at, name in enumerate(("fast", "slow"))
        for count in (1, 2, 4)
    }
    rules = RoundRules(round_s=360.0, resolve_min_s=60.0, restart_default_s=_RESTART_S)
    shares = tuple(EntityShare(name, weight) for name, weight in _WEIGHTS.items()) if weighted else ()
    truth = GroundTruth(speeds, {}, AttemptCosts(start_s=_RESTART_S))
    return Scenario(pools, truth, policy, rules, limits=RunLimits(until_at=until_s), shares=shares)


@dataclass
class Watch:
    """Integrates what projects hold, and what they are entitled to, between events."""

    core: SchedulerCore
    at: float = 0.0
    held: dict[str, float] = field(default_factory=dict)
    entitled: dict[str, float] = field(default_factory=dict)
    #: The integrals, old parts halved.
    had_s: dict[str, float] = field(default_factory=dict)
    due_s: dict[str, float] = field(default_factory=dict)

    def __call__(self, event: Event, commands: list[Command]) -> None:
        """After an event: what held until now is added, then looked at anew."""
        self.bring_to(event.at)
        ledger = self.core.ledger
        active = ledger.columns.active
        demand = dict.fromkeys(_WEIGHTS, 0.0)
        self.held = dict.fromkeys(_WEIGHTS, 0.0)
        names = list(ledger.entities)
        for slot in np.flatnonzero(active).tolist():
            project = names[ledger.entity_parents[int(ledger.columns.entity[slot])]]
            demand[project] += float(ledger.columns.gang[slot])
            self.held[project] += float(ledger.columns.count[slot])
        self.entitled = _by_weight(demand, _ACCELERATORS)

    def bring_to(self, at: float) -> None:
        """Time passes."""
        passed_s = at - self.at
        kept = 0.5 ** (passed_s / HALF_LIFE_S)
        grown_s = (1.0 - kept) * HALF_LIFE_S / log(2.0)
        for total, now in ((self.had_s, self.held), (self.due_s, self.entitled)):
            for name in _WEIGHTS:
                total[name] = total.get(name, 0.0) * kept + now.get(name, 0.0) * grown_s
        self.at = at


def _by_weight(demand: dict[str, float], room: float) -> dict[str, float]:
    """Shares by weight among those with work, nobody more than it asks for."""
    given = dict.fromkeys(demand, 0.0)
    open_ = {name for name, wanted in demand.items() if wanted > 0}
    while open_ and room > 1e-9:
        level = room / sum(_WEIGHTS[name] for name in open_)
        full = {name for name in open_ if demand[name] <= _WEIGHTS[name] * level}
        if not full:
            return given | {name: _WEIGHTS[name] * level for name in open_}
        for name in full:
            given[name] = demand[name]
            room -= demand[name]
        open_ -= full
    return given


def off_by(seed: int, policy: PolicySpec, until_s: float) -> dict[str, float]:
    """How far each project's decayed use is from its decayed entitlement at the end, percent of that."""
    simulation = Simulation(shared_fleet(policy, until_s))
    assert isinstance(simulation.core, SchedulerCore)
    watch = Watch(simulation.core)
    result = simulation.run(week_of(seed, 1.4, until_s), watch)
    assert not result.violations, result.violations
    watch.bring_to(until_s)
    return {name: 100.0 * (watch.had_s[name] / watch.due_s[name] - 1.0) for name in _WEIGHTS}


def mean_jct_s(seed: int, policy: PolicySpec, until_s: float, *, weighted: bool) -> float:
    """The mean seconds to completion of a workload that the fleet can serve."""
    scenario = shared_fleet(policy, 4 * until_s, weighted=weighted)
    result = simulate(week_of(seed, 0.8, until_s), scenario)
    assert not result.unfinished
    return fmean(each.jct_s for each in result.jobs)


def measure(scale: float, row: str) -> list[Measured]:
    """One table of a policy: a seed's shares, or what fairness costs."""
    until_s = 7 * _DAY_S * min(scale, 1.0)
    name, what = row.split("/")
    policy, base = POLICIES[name]
    measured = Measured(f"entitlements, {row}", f"{until_s / _DAY_S:g} days, {_ACCELERATORS} accelerators")
    if what != _JCT:
        bound = _OFF if scale >= 1 else None
        found = off_by(int(what), policy, until_s)
        for project, off in found.items():
            measured.add(f"{project}: off by", off, "%")
        measured.add("the project that is furthest off", max(map(abs, found.values())), "%", at_most=bound)
        return [measured]
    pairs = [
        (mean_jct_s(seed, policy, until_s / 2, weighted=True), mean_jct_s(seed, base, until_s / 2, weighted=False))
        for seed in SEEDS
    ]
    costs = [100.0 * (fair / plain - 1.0) for fair, plain in pairs]
    measured.add(
        f"JCT against {base.name} {dict(base.parameters) or ''}, mean of {len(SEEDS)} seeds", fmean(costs), "%"
    )
    measured.add("the same, worst seed", max(costs), "%")
    return [measured]
