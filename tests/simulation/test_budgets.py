"""Budgets in virtual time: what is spent stays under the limit and what stopping costs, whatever prices do."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from scheduler.core.budget_limits import Budget
from scheduler.core.commands import AttemptTransitioned, BudgetWarned, Command, JobTransitioned
from scheduler.core.core import SchedulerCore
from scheduler.core.events import Event, MoneyRestated, PolicyChanged, PoolDeclared
from scheduler.core.explain.pending_reasons import pending_reasons
from scheduler.core.rules import RoundRules
from scheduler.providers.simulated_cloud import RentalTerms
from scheduler.world.attempts import AttemptCosts, SimulatedJob
from scheduler.world.engine import RunLimits
from scheduler.world.machines import PoolModel
from simulator.faults import Incident, MarketChange
from simulator.simulation import Scenario, Simulation
from tests.simulation import rented_market
from tests.simulation.rented_market import HOUR_S, KIND
from walras.cluster import Market, Placement, Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest
from walras.states import AttemptState, JobState, Reason

STOP_MARGIN_S = 60.0
BOX = Shape("box", "gpu", 2, 8.0, 2**33)


@dataclass
class Meter:
    """Counts the money of attempts by itself, from what everybody can see: commands, and events about prices."""

    requests: dict[JobId, JobRequest]
    price: dict[PoolId, Pool] = field(default_factory=dict)
    dearest: dict[PoolId, float] = field(default_factory=dict)
    held: dict[JobId, Placement] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)
    per_job: dict[JobId, float] = field(default_factory=dict)
    at: float = 0.0

    def rate(self, job_id: JobId, usd_per_h: float | None = None) -> float:
        pool = self.price[self.held[job_id].pool_id]
        price = pool.usd_per_h if usd_per_h is None else usd_per_h
        return price * self.held[job_id].accelerators / pool.shape.accelerators

    def take(self, event: Event, commands: list[Command]) -> None:
        for job_id in self.held:
            usd = self.rate(job_id) * (event.at - self.at) / HOUR_S
            project = self.requests[job_id].project
            self.spent[project] = self.spent.get(project, 0.0) + usd
            self.per_job[job_id] = self.per_job.get(job_id, 0.0) + usd
        self.at = event.at
        if isinstance(event, PoolDeclared):
            pool_id = event.pool.pool_id
            self.price[pool_id] = event.pool
            self.dearest[pool_id] = max(self.dearest.get(pool_id, 0.0), event.pool.usd_per_h)
        for command in commands:
            if isinstance(command, AttemptTransitioned):
                if command.state is AttemptState.LEASED:
                    assert command.placement is not None
                    self.held[command.job_id] = command.placement
                elif command.state.is_final:
                    self.held.pop(command.job_id, None)

    def stopping_usd(self, jobs: Iterable[JobId]) -> float:
        """Σ over its machines of rate × (grace + notice + 60 s), at the dearest price there ever was."""
        total = 0.0
        for job_id in jobs:
            pool_id = self.held[job_id].pool_id
            stop_s = self.requests[job_id].grace_s + self.price[pool_id].notice_s + STOP_MARGIN_S
            total += self.rate(job_id, self.dearest[pool_id]) * stop_s / HOUR_S
        return total


def pools(*, owned: int = 0, spot: int = 0, on_demand: int = 0, minimum_s: float = 0.0) -> tuple[PoolModel, ...]:
    found = [PoolModel(Pool(PoolId("box/owned/z"), BOX, usd_per_h=1.0), owned)] if owned else []
    for market, quota, usd_per_h in ((Market.SPOT, spot, 1.0), (Market.ON_DEMAND, on_demand, 3.0)):
        pool = Pool(
            PoolId(f"box/{market}/z"), BOX, market, "z", usd_per_h, quota, 10.0 if market is Market.SPOT else 0.0, 20.0,
            minimum_s,
        )  # fmt: skip
        if quota:
            found.append(PoolModel(pool, terms=RentalTerms(20.0, minimum_s)))
    return tuple(found)


def scenario(
    models: tuple[PoolModel, ...], policy: str, budgets: tuple[Budget, ...], incidents: Sequence[Incident] = ()
) -> Scenario:
    rules = RoundRules(
        round_s=60.0, resolve_min_s=5.0, restart_default_s=5.0, min_runtime_s=10.0, delay_usd_per_h=100.0,
        rent_keep_s=60.0, rent_backoff_s=10.0, budgets=budgets,
    )  # fmt: skip
    costs, until_h = AttemptCosts(2.0, 1.0, 5.0), 15_000.0 / HOUR_S
    return rented_market.scenario(
        *models, rules=rules, incidents=incidents, policy=policy, costs=costs, until_h=until_h
    )


def job(number: int, at: float, steps: float, *, gang: int = 1, project: str = "one", **more: object) -> SimulatedJob:
    demand = (Demand("gpu", gang),)
    request = JobRequest(JobId(number), KIND, demands=demand, project=project, steps=steps)
    return SimulatedJob(at, replace(request, **more), steps)  # type: ignore[arg-type]


def workload(random: Random, count: int, *, own_budgets: bool = True) -> list[SimulatedJob]:
    at, made = 0.0, []
    for number in range(1, count + 1):
        at += random.expovariate(1 / 60.0)
        own = {"budget_usd": random.uniform(0.05, 2.0)} if own_budgets and random.random() < 0.3 else {}
        made.append(
            job(number, at, round(random.uniform(50.0, 4000.0)), gang=random.choice((1, 1, 2)),
                project=random.choice(("one", "two")), grace_s=random.choice((2.0, 30.0)), **own)
        )  # fmt: skip
    return made


def prices(random: Random, models: tuple[PoolModel, ...]) -> list[Incident]:
    """0, 100 times, and all between."""
    at, found = 0.0, []
    for _ in range(12):
        at += random.expovariate(1 / 300.0)
        found.append(MarketChange(at, random.choice(models).pool.pool_id, random.choice((0.0, 0.5, 2.0, 5.0, 100.0))))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fifo", "max_min_fairness", "walras"])
@pytest.mark.parametrize("seed", range(4))
def test_projects_and_jobs_never_pass_their_limit_and_what_stopping_costs(seed: int, policy: str) -> None:
    """spent <= limit + Σ over its machines of rate x (grace + notice + 60 s); once it is spent nothing starts."""
    random = Random(f"{seed}/budgets")
    models = pools(owned=3, spot=2 if policy == "walras" else 0, minimum_s=60.0)
    limit = {"one": random.uniform(0.1, 6.0), "two": random.uniform(0.1, 6.0)}
    budgets = tuple(Budget(project, usd=usd) for project, usd in limit.items())
    told = scenario(models, policy, budgets, prices(random, models))
    jobs = workload(random, 14)
    meter = Meter({each.request.job_id: each.request for each in jobs})
    at_limit: dict[object, float] = {}
    log: list[str] = []

    def watch(event: Event, commands: list[Command]) -> None:
        meter.take(event, [])
        ran = set(meter.held)
        for key, spent, most, members in accounts():
            if spent >= most and key not in at_limit:
                at_limit[key] = meter.stopping_usd(ran & members)
        meter.take(event, commands)
        for key, spent, most, members in accounts():
            allowed = most + at_limit.get(key, 0.0) + 1e-6
            assert spent <= allowed, f"{key} at {event.at}: {spent} > {allowed}"
            if key in at_limit:
                assert not (set(meter.held) - ran) & members, f"{key} started something at {event.at}"
        log.append(repr(commands))

    def accounts() -> Iterable[tuple[object, float, float, set[JobId]]]:
        for project, most in limit.items():
            members = {job_id for job_id, request in meter.requests.items() if request.project == project}
            yield project, meter.spent.get(project, 0.0), most, members
        for job_id, request in meter.requests.items():
            if request.budget_usd < float("inf"):
                yield job_id, meter.per_job.get(job_id, 0.0), request.budget_usd, {job_id}

    core = SchedulerCore()
    result = Simulation(told, core=core).run(jobs, watch)
    assert result.violations == []
    assert at_limit, "no budget was ever spent: this test shows nothing"
    for left in core.ledger.jobs.values():
        (line, *_) = pending_reasons(core, left.job_id)
        assert line.reason in (Reason.HOLD_BUDGET, Reason.WAIT_BUDGET), line
    again: list[str] = []
    Simulation(told).run(jobs, lambda event, commands: again.append(repr(commands)))
    assert again == log


@pytest.mark.parametrize("seed", range(4))
def test_the_cluster_never_passes_its_limit_rented_machines_included(seed: int) -> None:
    """The whole bill, idle machines and minimum billing too: limit + what those machines cost until they are gone."""
    random = Random(f"{seed}/cluster")
    minimum_s = random.choice((0.0, 60.0, 600.0))
    models = pools(spot=3, on_demand=2, minimum_s=minimum_s)
    limit = random.uniform(0.5, 5.0)
    told = scenario(models, "walras", (Budget(usd=limit),), prices(random, models))
    jobs = workload(random, 14, own_budgets=False)
    core = SchedulerCore()
    simulation = Simulation(told, core=core)
    machines = simulation.machines
    allowed: list[float] = []
    dearest = {model.pool.pool_id: model.pool.usd_per_h for model in models}

    def bill(at: float) -> float:
        return sum(machines.usd(model.pool.pool_id, at) for model in models)

    def watch(event: Event, commands: list[Command]) -> None:
        if isinstance(event, PoolDeclared):
            dearest[event.pool.pool_id] = max(dearest[event.pool.pool_id], event.pool.usd_per_h)
        if bill(event.at) >= limit and not allowed:
            # Those that boot are given back when they come, and cost their minimum.
            rows = [state for state in core.ledger.fleet.pools for _ in range(state.machines)]
            rows += [state for state in core.ledger.fleet.pools for _ in range(sum(state.awaited.values()))]
            top = {model.pool.pool_id: max(100.0, dearest[model.pool.pool_id]) for model in models}
            stop_s = 30.0 + 10.0 + STOP_MARGIN_S + minimum_s
            allowed.append(sum(top[state.pool.pool_id] for state in rows) * stop_s / HOUR_S)
        assert bill(event.at) <= limit + (allowed[0] if allowed else 0.0) + 1e-6, event

    result = simulation.run(jobs, watch)
    assert result.violations == []
    assert all(state.machines == 0 for state in core.ledger.fleet.pools) or not core.cycle.spending.everything.closed


def test_the_cores_accounts_are_the_bill() -> None:
    """What the core counts, by project and in all, is what the simulated cloud asks for and the owned use costs."""
    random = Random(5)
    models = pools(owned=1, spot=2, on_demand=1, minimum_s=120.0)
    told = scenario(models, "walras", (), prices(random, models))
    jobs = workload(random, 12, own_budgets=False)
    core = SchedulerCore()
    simulation = Simulation(told, core=core)
    meter = Meter({each.request.job_id: each.request for each in jobs})
    simulation.run(jobs, meter.take)
    spending, now = core.cycle.spending, simulation.engine.now
    for project in ("one", "two"):
        account = spending._project(project)
        account.settle(now)
        assert account.used == pytest.approx(meter.spent[project], abs=1e-6)
    rented = sum(simulation.machines.usd(m.pool.pool_id, now) for m in models if m.pool.market is not Market.OWNED)
    spending.everything.settle(now)
    running = sum(each.usd_per_h * max(0.0, each.until_at - now) / HOUR_S for each in spending._rented.values())
    owned = sum(meter.spent.values()) - _use_of_rented(told, jobs)
    assert spending.everything.used + running == pytest.approx(rented + owned, abs=1e-6)


def _use_of_rented(told: Scenario, jobs: list[SimulatedJob]) -> float:
    """What attempts held of rented machines, from a second run."""
    meter = Meter({each.request.job_id: each.request for each in jobs})
    free: dict[str, float] = {}

    def take(event: Event, commands: list[Command]) -> None:
        rented = [job_id for job_id in meter.held if "owned" not in meter.held[job_id].pool_id]
        seen = sum(meter.rate(job_id) for job_id in rented) * (event.at - meter.at) / HOUR_S
        meter.take(event, commands)
        free["usd"] = free.get("usd", 0.0) + seen

    Simulation(told).run(jobs, take)
    return free["usd"]


def test_a_job_is_warned_about_held_and_goes_on_with_the_next_month() -> None:
    """80 % warns once; the limit stops and holds; the numbers are told; a new month lets it go on."""
    core = SchedulerCore()
    log: list[tuple[Event, list[Command]]] = []
    told = scenario(pools(owned=1), "fifo", (Budget("one", month_usd=0.5),))
    simulation = Simulation(replace(told, limits=RunLimits(until_at=5600.0)), core=core)
    simulation.engine.schedule(4000.0, lambda at, _: (MoneyRestated(at, (("one", 0.5, 0.0), ("", 0.5, 0.0))),))
    told_at: dict[str, float] = {}

    def watch(event: Event, commands: list[Command]) -> None:
        log.append((event, commands))
        for command in commands:
            if isinstance(command, JobTransitioned):
                told_at.setdefault(command.state.value, event.at)
        if event.at == 4000.0:
            return
        if JobState.HELD.value in told_at and "why" not in told_at:
            told_at["why"] = event.at
            (line,) = pending_reasons(core, JobId(1))
            assert line.reason is Reason.HOLD_BUDGET
            assert "one: 0.50 of 0.50 USD spent this month" in line.detail
            assert "rules.budgets" in line.fix

    simulation.run([job(1, 0.0, 1e9, gang=2)], watch)
    warned = [
        (event.at, command) for event, commands in log for command in commands if isinstance(command, BudgetWarned)
    ]
    assert [command.account for _, command in warned] == ["one", "one"]
    assert warned[0][0] == pytest.approx(0.4 * HOUR_S)
    assert told_at[JobState.PREEMPTING.value] == pytest.approx(0.5 * HOUR_S)
    assert told_at[JobState.HELD.value] <= 0.5 * HOUR_S + 60.0
    assert core.ledger.jobs[JobId(1)].state is JobState.RUNNING
    assert core.ledger.jobs[JobId(1)].attempt == 2


def test_a_larger_budget_lets_held_jobs_go_on() -> None:
    """A policy change with other budgets counts at once; what was spent stays spent."""
    core = SchedulerCore()
    told = scenario(pools(owned=1), "fifo", (Budget("one", usd=0.1),))
    simulation = Simulation(replace(told, limits=RunLimits(until_at=3000.0)), core=core)
    more = replace(told.rules, budgets=(Budget("one", usd=100.0),))
    simulation.engine.schedule(2000.0, lambda at, _: (PolicyChanged(at, told.policy, more),))
    simulation.run([job(1, 0.0, 1e9, gang=2), job(2, 1.0, 1e9, gang=2, project="two", budget_usd=0.05)])
    assert core.ledger.jobs[JobId(1)].state is JobState.RUNNING
    held = core.ledger.jobs[JobId(2)]
    assert held.state is JobState.HELD
    (line,) = pending_reasons(core, JobId(2))
    assert "job 2: 0.0" in line.detail
    assert "walras update 2 --budget" in line.fix
