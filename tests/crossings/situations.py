"""Situations: which kind of each feature, drawn so that every three kinds meet, and the run that follows from them.

A row names one kind of every feature. `covering_rows` chooses the rows; `situation_of` makes a row and a seed into
jobs, a simulated cluster and the acts of people (bookings, drains, changes of the policy or of a job).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, permutations, product
from math import inf
from random import Random
from typing import Any

import numpy as np

from optimizer.policy import PolicySpec
from optimizer.problem import BoolArray, IntArray
from scheduler.core.budget_limits import Budget
from scheduler.core.events import (
    FLEET,
    NOBODY,
    Booking,
    BookingsDeclared,
    EntityShare,
    Event,
    JobDeadlineChanged,
    JobReprioritised,
    NodeLeaving,
    NodePrivate,
    NodeTools,
    NodeUncordoned,
    PolicyChanged,
    ShareLimit,
    SharesDeclared,
)
from scheduler.core.rules import RoundRules, StatedValue
from scheduler.providers.simulated_cloud import RentalTerms
from scheduler.world.attempts import AttemptCosts, PlannedFailure, SimulatedJob, WorldParameters
from scheduler.world.engine import RunLimits
from scheduler.world.machines import PoolModel
from simulator.faults import FaultModel, Incident, MarketChange, NodeSlowdown, PoolRevocation
from simulator.ground_truth import GroundTruth, LengthEstimates, SpeedKey
from simulator.simulation import Scenario
from tests.simulation.random_scenarios import drawn_roles, racked
from walras.cluster import Market, NodeId, Pool, PoolId, Shape
from walras.job_request import (
    ANY_ACCELERATOR,
    Demand,
    DeviceShare,
    GangRequest,
    JobId,
    JobRequest,
    Kind,
    RetryRule,
    group_fields,
)
from walras.spec.roles import gang_of_roles
from walras.states import Reason

#: The kinds of each feature. The first is the plain one.
FEATURES: dict[str, tuple[str, ...]] = {
    "policy": ("walras", "fifo", "srtf", "max_min_fairness", "hadar"),
    "fleet": ("one type", "two types", "three types", "one machine"),
    "load": ("few", "burst", "many short", "behind a gang"),
    "gangs": ("single", "small", "wide", "elastic", "roles"),
    "people": ("one", "two projects", "users"),
    "shares": ("equal", "weights", "limit", "limit of a type", "guarantee", "owned"),
    "classes": ("one", "several"),
    "values": ("none", "some", "below the price"),
    "market": ("none", "on demand", "spot", "zones", "refusing"),
    "deadlines": ("none", "loose", "tight"),
    "lengths": ("known", "unknown", "wrong"),
    "stops": ("may be stopped", "some may not", "do not save"),
    "bookings": ("none", "project", "maintenance"),
    "drains": ("none", "machine", "gentle"),
    "budgets": ("none", "project", "job"),
    "limits": ("none", "run time", "queue time"),
    "faults": ("none", "deaths", "cut off", "slow"),
    "sharing": ("none", "pairs"),
    "failures": ("none", "crashes", "cancelled"),
    "changes": ("none", "policy", "priority", "deadline", "limit"),
    "machines": ("plain", "private", "tools"),
    "switches": ("none", "racks"),
    "order": ("independent", "dependencies"),
}
Row = dict[str, str]

HOUR_S = 3600.0
#: Faults and acts of people end here; what is unfinished then must finish.
BUSY_UNTIL_AT = 2400.0
#: What a limited project may hold: the largest gang of a row with limits, so that two jobs meet it.
_LIMIT = 2
#: Of so many situations one protects each start for a while.
_PROTECTED_OF = 4
#: In one of so many a booking begins soon after the arrival of a job, and a drain soon before that of another.
_SOON_OF = 2
#: In one of so many that can rent, what is rented is faster than what is owned.
_SLOW_OF = 3
#: Rows that are drawn for each that is taken.
_TRIED_ROWS = 3
KINDS = (Kind("cnn"), Kind("rnn"), Kind("bert"))
_ROLES = Kind("rl")
_TOOLS = (("container",),)
_TYPES = ("a100", "v100", "k80")
_SPEED = {"a100": 4.0, "v100": 2.0, "k80": 1.0}
_POLICIES = {name: PolicySpec(name) for name in FEATURES["policy"]}


@cache
def covering_rows(seed: int, most: int) -> list[Row]:
    """At most `most` rows in which every three kinds of different features meet; fewer if that takes fewer."""
    random = Random(seed)
    kinds = [(name, kind) for name, of_it in FEATURES.items() for kind in of_it]
    features = [[row for row, (each, _) in enumerate(kinds) if each == name] for name in FEATURES]
    #: All triples, ascending (3, t), and whether three kinds, in any order, have yet to meet (k, k, k).
    missing = np.array(sorted(triple for some in combinations(features, 3) for triple in product(*some))).T
    apart = np.zeros((len(kinds),) * 3, dtype=np.bool_)
    apart[_in_any_order(missing)] = True
    rows = list[Row]()
    while len(rows) < most and missing.shape[1]:
        drawn = [_drawn_row(random, features, missing, apart) for _ in range(_TRIED_ROWS)]
        chosen = max(drawn, key=lambda row: int(apart[_triples_of(row)].sum()))
        apart[_in_any_order(np.array(_triples_of(chosen)))] = False
        missing = missing[:, apart[tuple(missing)]]
        rows.append(dict(kinds[each] for each in chosen))
    return rows


def _triples_of(row: list[int]) -> tuple[IntArray, ...]:
    """The places of the row's triples in a table of three kinds."""
    return tuple(np.array(list(combinations(row, 3))).T)


def _in_any_order(triples: IntArray) -> tuple[IntArray, ...]:
    """The places of these triples (3, t) in a table of three kinds, each in all its orders."""
    return tuple(np.concatenate([triples[list(order)] for order in permutations(range(3))], axis=1))


def _drawn_row(random: Random, features: list[list[int]], missing: IntArray, apart: BoolArray) -> list[int]:
    """A row around one of the triples `missing`, of the kinds that meet most pairs that they have yet to meet."""
    many = missing.shape[1]
    chosen = min(missing[:, each].tolist() for each in random.sample(range(many), min(many, 3)))
    rest = [kinds for kinds in features if not set(kinds) & set(chosen)]
    random.shuffle(rest)
    for kinds in rest:
        pairs = apart[kinds][:, chosen][:, :, chosen].sum(axis=(1, 2)).tolist()
        chosen.append(max((met, random.random(), kind) for met, kind in zip(pairs, kinds, strict=True))[2])
    return sorted(chosen)


def missed_triples(rows: Sequence[Row]) -> int:
    """How many three kinds of different features meet in none of these rows."""
    names = list(FEATURES)
    met = {
        triple
        for row in rows
        for triple in combinations([(f, FEATURES[name].index(row[name])) for f, name in enumerate(names)], 3)
    }
    kinds = [len(FEATURES[name]) for name in names]
    return sum(a * b * c for a, b, c in combinations(kinds, 3)) - len(met)


@dataclass(frozen=True)
class Situation:
    """A run that has not begun: its recipe, jobs, world, and what people do meanwhile."""

    row: Row
    seed: int
    jobs: tuple[SimulatedJob, ...]
    scenario: Scenario
    acts: tuple[Event, ...]

    @property
    def recipe(self) -> str:
        """How to make it again."""
        plain = {name: kinds[0] for name, kinds in FEATURES.items()}
        kinds = ", ".join(f"{name}={kind}" for name, kind in self.row.items() if kind != plain[name])
        return f"seed {self.seed}: {kinds}"


def situation_of(row: Row, seed: int) -> Situation:
    """The situation of a row; a function of the row and the seed. Roles, and owners who also rent, are for `walras`."""
    return _Drawn({**row, "policy": "walras"} if row["gangs"] == "roles" or _owner_pays(row) else row, seed).situation()


def _owner_pays(row: Row) -> bool:
    """Whether a project that owns accelerators pays for rented machines of that type besides."""
    may_pay = row["market"] != "none" and row["values"] == "some" and row["changes"] != "policy"
    return row["shares"] == "owned" and may_pay and row["load"] != "behind a gang"


class _Drawn:
    def __init__(self, row: Row, seed: int) -> None:
        self.row, self.seed, self.random = row, seed, Random(f"{seed}/crossing")
        one_machine = row["fleet"] == "one machine"
        is_behind = row["load"] == "behind a gang"
        #: Jobs share accelerators only where there are not enough.
        is_scarce = row["sharing"] == "pairs" and not is_behind
        machine = 8 if one_machine else 4 if is_behind else self.random.choice((2, 4))
        machine = min(machine, 2) if is_scarce else machine
        types = {"one type": 1, "two types": 2, "three types": 3, "one machine": 1}[row["fleet"]]
        names = _TYPES[::-1] if row["market"] != "none" and seed % _SLOW_OF == 0 else _TYPES
        self.owned = tuple(
            PoolModel(
                Pool(PoolId(f"{name}/owned/default"), Shape(name, name, machine, 64.0, 2**36, 1.0, False, 2**34)),
                machines=1
                if one_machine or (is_scarce and row["machines"] != "tools") or (is_behind and not number)
                else max(self.random.randint(1, 3), 2 if row["machines"] == "tools" else 1),
            )
            for number, name in enumerate(names[:types])
        )
        if row["switches"] == "racks":
            self.owned = racked(self.owned, seed)
        self.rented = self._rented()
        self.rules = self._rules()

    def situation(self) -> Situation:
        row, random = self.row, self.random
        jobs = self._jobs()
        costs = AttemptCosts(random.choice((2.0, 10.0)), None if row["stops"] == "do not save" else 1.0, 60.0)
        names = sorted({model.pool.shape.accelerator for model in (*self.owned, *self.rented)})
        speeds = {SpeedKey(kind, name): _SPEED[name] * random.uniform(0.7, 1.3) for kind in KINDS for name in names}
        scenario = Scenario(
            (*self.owned, *self.rented),
            GroundTruth(speeds, dict.fromkeys((*KINDS, _ROLES), costs), gradient_bytes={KINDS[0]: 1e9}),
            _POLICIES[row["policy"]],
            self.rules,
            WorldParameters(report_s=60.0, speed_noise=0.0, prepare_s=0.2),
            self._faults(),
            incidents=self._incidents(),
            lengths=LengthEstimates(row["lengths"] != "unknown", 0.7 if row["lengths"] == "wrong" else 0.0),
            limits=RunLimits(until_at=2e6, max_events=60_000, quiet_wakes_max=110),
            seed=self.seed,
            shares=self._shares(),
        )
        acts = self._acts(jobs)
        return Situation(row, self.seed, tuple(self._come_to_booking(jobs, acts)), scenario, tuple(acts))

    def _rented(self) -> tuple[PoolModel, ...]:
        market, name = self.row["market"], self.random.choice(_TYPES[:2])
        if self.row["shares"] == "owned":  # of the type that a project owns
            name = self.owned[0].pool.shape.accelerator
        zones = {"none": (), "zones": ("a", "b")}.get(market, ("a",))
        kind = Market.ON_DEMAND if market in ("on demand", "refusing") else Market.SPOT
        return tuple(
            PoolModel(
                Pool(
                    PoolId(f"{name}/{kind}/{zone}"), Shape(f"{name}-rented", name, 2, 64.0, 2**36), kind, zone,
                    usd_per_h=2.0 * (1.2 if zone == "b" else 1.0), quota=self.random.choice((1, 3)),
                    notice_s=30.0 if kind is Market.SPOT else 0.0, boot_s=60.0,
                ),
                terms=RentalTerms(boot_s=60.0, capacity=1.0 if market == "refusing" else inf),
                mean_life_s=1200.0 if kind is Market.SPOT else inf,
                reprice_every_s=300.0 if market == "zones" else inf,
                price_noise=0.5 if market == "zones" else 0.0,
            )
            for zone in zones
        )  # fmt: skip

    def _rules(self) -> RoundRules:
        payer = "two" if _owner_pays(self.row) or (self.row["people"] != "one" and self.seed % 4 > 1) else "one"
        values = {"none": (), "some": (StatedValue(payer, 12.0),), "below the price": (StatedValue(payer, 0.4),)}
        budgets = (Budget("one", accelerator_h=0.4),) if self.row["budgets"] == "project" else ()
        protected_s = 60.0 if self.seed % _PROTECTED_OF == 0 else 0.0
        return RoundRules(
            round_s=60.0, resolve_min_s=5.0 if self.row["policy"] == "walras" else 30.0, restart_default_s=5.0,
            min_runtime_s=20.0, protected_s=protected_s, profiling_s=20.0, backoff_s=1.0, rent_keep_s=60.0,
            rent_backoff_s=10.0, rent_backoff_max_s=120.0, values=values[self.row["values"]], budgets=budgets,
        )  # fmt: skip

    def _faults(self) -> FaultModel:
        fault = self.row["faults"]
        return FaultModel(
            death_every_s=1500.0 if fault == "deaths" else inf, cut_off_every_s=900.0 if fault == "cut off" else inf,
            cut_off_s=30.0, notice_silence_s=5.0, lease_s=60.0, repair_s=120.0, uncordon_s=60.0, until_at=BUSY_UNTIL_AT,
        )  # fmt: skip

    def _incidents(self) -> tuple[Incident, ...]:
        found: list[Incident] = []
        if self.row["faults"] == "slow":
            found.append(NodeSlowdown(self.random.uniform(100, 1000), self.owned[0].pool.pool_id, 0, 0.3))
        for model in self.rented:
            at = self.random.uniform(600, 1500)
            if self.row["market"] == "refusing":
                found += [MarketChange(at, model.pool.pool_id, capacity=0.0)]
                found += [MarketChange(at + 900, model.pool.pool_id, capacity=2.0)]
            elif self.row["market"] == "spot":
                found.append(PoolRevocation(at, model.pool.pool_id, 1))
        return tuple(found)

    def _shares(self) -> tuple[EntityShare, ...]:
        shares = self.row["shares"]
        half = max(2, sum(model.machines * model.pool.shape.accelerators for model in self.owned) // 2)
        first = self.owned[0]
        of_type = (ShareLimit(first.pool.shape.accelerator, _LIMIT),)
        size = first.machines * first.pool.shape.accelerators  # one is nobody's: for jobs that may not be stopped
        own_type = (ShareLimit(first.pool.shape.accelerator, min(half, size - 1)),)
        own_pool = (ShareLimit(first.pool.pool_id, max(1, (size - 1) // 2)),)
        by_both = (EntityShare("one", owned=own_pool), EntityShare("two", owned=own_pool))
        limited = "two" if self.row["load"] != "behind a gang" and self.seed % 2 else "one"
        return {
            "equal": (),
            "weights": (EntityShare("one", 3.0), EntityShare("two", 1.0)),
            "limit": (EntityShare(limited, limits=(ShareLimit(FLEET, _LIMIT),)),),
            "limit of a type": (EntityShare("two", limits=of_type), EntityShare("one", limits=of_type)),
            "guarantee": (EntityShare("two", guaranteed=0.5),),
            "owned": (EntityShare("two", owned=own_type),) if self.seed % 2 else by_both,
        }[shares]

    def _jobs(self) -> list[SimulatedJob]:
        loads = {"few": (5, 80.0), "burst": (8, 0.0), "many short": (12, 15.0), "behind a gang": (7, 10.0)}
        count, between_s = loads[self.row["load"]]
        at, found = 0.0, list[SimulatedJob]()
        for number in range(1, count + 1):
            at += self.random.expovariate(1 / between_s) if between_s else 0.0
            found.append(self._job(number, at))
        if self.row["load"] == "behind a gang":
            return self._behind_a_gang(found)
        return self._beside_own(found) if _owner_pays(self.row) else found

    def _beside_own(self, jobs: list[SimulatedJob]) -> list[SimulatedJob]:
        """The jobs, of which the first is an owner's and only rented machines will do for it.

        Those of the other project may not have for good what the owner leaves, and so wait if they may not be stopped.
        """
        on_rented = replace(
            jobs[0].request, kind=KINDS[0], demands=(Demand(ANY_ACCELERATOR, 2),), sizes=(), plans=(), project="two",
            tools=(), pools=tuple(model.pool.pool_id for model in self.rented), shared=None, deadline_at=inf,
            budget_usd=inf,
        )  # fmt: skip
        lasting = self.row["stops"] != "may be stopped"
        alone: dict[str, Any] = {"demands": (Demand(ANY_ACCELERATOR, 1),), "sizes": (), "preemptible": False}
        rest = [
            replace(job, request=replace(job.request, **alone))
            if lasting and job.request.project == "one" and not job.request.has_roles else job
            for job in jobs[1:]
        ]  # fmt: skip
        return [replace(jobs[0], request=on_rented), *rest]

    def _come_to_booking(self, jobs: list[SimulatedJob], acts: Sequence[Event]) -> list[SimulatedJob]:
        """The jobs; if a project has booked a machine, the last of them is the project's and comes while it has it.

        If that machine lacks tools, the job needs them.
        """
        windows = [each for act in acts if isinstance(act, BookingsDeclared) for each in act.bookings if each.project]
        last = jobs[-1]
        if not windows or self.row["people"] == "one" or self.row["load"] == "behind a gang" or last.request.has_roles:
            return jobs
        later_s = max(windows[0].from_at + Random(f"{self.seed}/comes").uniform(5, 60) - last.at, 0.0)
        request = replace(last.request, project=windows[0].project, deadline_at=last.request.deadline_at + later_s)
        if self.row["machines"] == "tools":
            request = replace(request, demands=(Demand(ANY_ACCELERATOR, 1),), sizes=(), tools=_TOOLS)
        return [*jobs[:-1], replace(last, at=last.at + later_s, request=request, cancel_at=last.cancel_at + later_s)]

    def _behind_a_gang(self, jobs: list[SimulatedJob]) -> list[SimulatedJob]:
        """The jobs as a queue whose head reserves one machine as a whole, while its project and others hold it.

        Project two has the gang and the first of those behind it, which may not be stopped; project one has as much as
        its limit allows, and those that could borrow next.
        """
        shape, shares = self.owned[0].pool.shape, self.row["shares"]
        size, name = shape.accelerators, shape.accelerator
        gang = _LIMIT if shares == "limit of a type" else size
        counts = (min(max(size - _LIMIT - 1, 1), gang), _LIMIT, gang, *(1 for _ in jobs[3:]))
        projects = ("two", "one", "two", "two", *("one" for _ in jobs[4:]))
        return [
            job if job.request.has_roles else
            replace(
                job,
                request=replace(
                    job.request, demands=(Demand(name, count),), sizes=job.request.sizes if number > 3 else (),
                    project=project, tools=(),
                    preemptible=number != 3 and (job.request.preemptible or shares == "owned"),
                    shared=job.request.shared if count == 1 else None, depends_on=(),
                ),
            )
            for number, (job, count, project) in enumerate(zip(jobs, counts, projects, strict=True))
        ]  # fmt: skip

    def _job(self, number: int, at: float) -> SimulatedJob:
        row, random = self.row, self.random
        model = random.choice(self.owned)
        most = max(each.machines * each.pool.shape.accelerators for each in self.owned)
        half = _LIMIT if row["shares"] in ("limit", "limit of a type") else most
        small, wide = random.choice((1, 2)), random.choice((1, 2, half))
        gang = min({"small": small, "wide": wide, "roles": small}.get(row["gangs"], 1), most, half)
        name = model.pool.shape.accelerator if random.random() < 0.3 else ANY_ACCELERATOR
        if name != ANY_ACCELERATOR:
            gang = min(gang, model.machines * model.pool.shape.accelerators)
        length_s = random.uniform(20, 90) if row["load"] == "many short" else random.uniform(60, 600)
        steps = length_s * 2.0
        may_be_stopped = row["stops"] != "some may not" or random.random() < 0.5
        if row["shares"] == "owned" and not may_be_stopped:
            gang = 1
        project = "one" if row["people"] == "one" or random.random() < 0.5 else "two"
        deadline = {"none": inf, "loose": at + 20 * length_s, "tight": at + 2 * length_s}[row["deadlines"]]
        has_deadline = random.random() < 0.5
        shared = row["sharing"] == "pairs" and gang == 1 and random.random() < 0.7
        request = JobRequest(
            JobId(number),
            random.choice(KINDS),
            demands=(Demand(name, gang),),
            sizes=tuple(size for size in (1, 2, 4) if size <= most) if row["gangs"] == "elastic" else (),
            project=project,
            user=random.choice(("ada", "bob")) if row["people"] == "users" else "ada",
            priority=random.choice((20, 50, 80)) if row["classes"] == "several" else 50,
            deadline_at=deadline if has_deadline else inf,
            steps=steps,
            preemptible=may_be_stopped,
            retry=RetryRule(1 + self.seed % 2),
            depends_on=(JobId(random.randrange(1, number)),)
            if row["order"] == "dependencies" and number > 1 and random.random() < 0.4
            else (),
            depends_on_any_end=True,
            grace_s=random.choice((5.0, 30.0)),
            budget_usd=(0.5, 0.1)[self.seed % 2] if row["budgets"] == "job" and random.random() < 0.5 else inf,
            max_runtime_s=(2.5, 1.2)[self.seed % 2] * length_s if row["limits"] == "run time" else inf,
            max_queue_s=6000.0 if row["limits"] == "queue time" else inf,
            tools=_TOOLS if row["machines"] == "tools" and gang == 1 and name == ANY_ACCELERATOR else (),
            shared=DeviceShare(2**33, 0.4) if shared else None,
        )
        if row["gangs"] == "roles" and (row["load"] != "behind a gang" or number > 4) and random.random() < 0.5:
            request = self._with_roles(request)
        job = SimulatedJob(at, request, steps)
        if row["failures"] == "crashes" and random.random() < 0.4:
            job = replace(job, failures=(PlannedFailure(steps / 2, 3, 1),))
        if row["failures"] == "cancelled" and random.random() < 0.4:
            job = replace(job, cancel_at=at + random.uniform(1, 900))
        return job

    def _with_roles(self, request: JobRequest) -> JobRequest:
        """The job as one of roles that owned machines hold, within what its project may have."""
        limited = self.row["shares"] in ("limit", "limit of a type")
        roles = drawn_roles(self.random, self.owned, _LIMIT if limited else 8)
        gang = gang_of_roles(GangRequest(demands=()), roles, 2.0)
        may_be_stopped = request.preemptible or self.row["shares"] == "owned"
        return replace(request, kind=_ROLES, shared=None, preemptible=may_be_stopped, **group_fields(gang, GangRequest))

    def _acts(self, jobs: Sequence[SimulatedJob]) -> list[Event]:
        row, random, found = self.row, self.random, list[Event]()
        shapes = [model.pool.shape.name for model in self.owned for _ in range(model.machines)]
        machines = [NodeId(f"{name}-{number}") for number, name in enumerate(shapes, start=1)]  # in order of joining
        some, soon = random.choice(machines), Random(f"{self.seed}/soon")
        at = random.uniform(50, 1200)
        if row["bookings"] != "none":
            project = NOBODY if row["bookings"] == "maintenance" else "two"
            from_at, length_s = at + 300, random.uniform(200, 1200)
            if self.seed % _SOON_OF == 0:  # soon after a job has come, which must be gone by then
                from_at = max(soon.choice(jobs).at + soon.uniform(10, 90), 301.0)
            found.append(BookingsDeclared(from_at - 300, (Booking(1, project, (some,), from_at, from_at + length_s),)))
        if row["drains"] != "none":
            at = random.uniform(50, 1500)
            if self.seed % _SOON_OF == 0:  # just before a job comes, which must not start there
                at = max(soon.choice(jobs).at - soon.uniform(1, 30), 1.0)
            reason, gentle = Reason.INFRA_NODE_LOST, row["drains"] == "gentle"
            found.append(NodeLeaving(at, some, inf, reason, gentle))
            found.append(NodeUncordoned(at + random.uniform(100, 900), some))
        if row["machines"] == "private":
            found.append(NodePrivate(1.0, some, True))
        if row["machines"] == "tools":
            lacks = some if len(machines) > 1 else None
            found += [NodeTools(1.0, node_id, () if node_id == lacks else ("container",)) for node_id in machines]
        job = jobs[2] if row["load"] == "behind a gang" else random.choice(jobs)
        after = job.at + random.uniform(1, 60 if row["changes"] == "limit" else 600)
        if row["changes"] == "policy":
            found.append(PolicyChanged(after, _POLICIES[random.choice(list(_POLICIES))], self.rules))
        if row["changes"] == "priority":
            priority = random.choice((10, 90))
            changed = [job]
            if row["load"] != "behind a gang" and self.seed % 2:  # half of the queue, while others wait behind it
                priority, after = 10, jobs[len(jobs) // 2].at + min(after - job.at, 60.0)
                changed = [each for each in jobs[::2] if each.at < after]
            found += [JobReprioritised(after, each.request.job_id, priority) for each in changed]
        if row["changes"] == "deadline":
            left_s = random.uniform(60, 3000)
            if row["market"] != "none":  # soon, and for one that may not be stopped to move where it would be in time
                job = next((each for each in jobs if not each.request.preemptible), job)
                after, left_s = job.at + min(after - job.at, 60.0), left_s / 10
            found.append(JobDeadlineChanged(after, job.request.job_id, after + left_s))
        if row["changes"] == "limit":
            declared = self._shares()
            project = "two" if row["shares"] == "owned" else job.request.project  # the owner
            share = next((each for each in declared if each.name == project), EntityShare(project))
            lower = replace(share, limits=(ShareLimit(FLEET, 1),))
            lowered = (*(each for each in declared if each is not share), lower)
            found += [SharesDeclared(after, lowered), SharesDeclared(after + random.uniform(200, 600), declared)]
        return found
