"""Who pays, who rides, and what is rented, on cases made anew from seeds: mean and worst of eight.

    python -m benchmarks grounds_market

Machines of one accelerator: owned ones, spot at 1 USD/h and on demand at 3, a boot of 100 s. Payers say 5 USD/h, riders
nothing. Jobs are 12 minutes to an hour and a half long.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from statistics import mean

from benchmarks.tables import Measured
from optimizer.policy import PolicySpec
from scheduler.core.commands import Command, Start
from scheduler.core.core import SchedulerCore
from scheduler.core.events import EntityShare, Event, JobSubmitted
from scheduler.core.rules import RoundRules
from scheduler.core.state.fleet import MachineCondition
from scheduler.providers.simulated_cloud import RentalTerms
from scheduler.world.attempts import AttemptCosts, SimulatedJob
from scheduler.world.engine import RunLimits
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.simulation import Scenario, Simulation, SimulationResult
from walras.cluster import Market, Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind

ROWS = ("fallback", "riders", "idle", "arrivals", "guarantee")

_SEEDS = 8
_HOUR_S = 3600.0
_KIND = Kind("cnn")
_BOX = Shape("box", "gpu", 1, 8.0, 2**33)
_SPOT = Pool(PoolId("box/spot/a"), _BOX, Market.SPOT, "a", 1.0, 12, boot_s=100.0, notice_s=120.0)
_SURE = Pool(PoolId("box/on_demand/a"), _BOX, Market.ON_DEMAND, "a", 3.0, 12, boot_s=100.0)
_OWNED = Pool(PoolId("own/owned/a"), replace(_BOX, name="own"), Market.OWNED, "a", 0.0, 0)
_RULES = RoundRules(round_s=300.0, resolve_min_s=1.0, restart_default_s=5.0)
#: The number of the first rider.
_FIRST_RIDER = 1000

Watch = Callable[[Event, list[Command]], None]


def measure(scale: float, row: str) -> list[Measured]:
    """One row; targets hold for the whole size."""
    seeds = range(max(2, round(_SEEDS * scale)))
    measured = Measured(f"one market: {row}", f"{len(seeds)} seeds, policy walras")
    rows = {
        "fallback": _fallback,
        "riders": _riders,
        "idle": _idle,
        "arrivals": _arrivals,
        "guarantee": _guarantee,
    }
    rows[row](measured, seeds)
    return [measured]


def _fallback(measured: Measured, seeds: range) -> None:
    """Spot has nothing: how much longer payers take than they run."""
    added: list[float] = []
    for seed in seeds:
        jobs = _jobs(Random(seed), 12, 1, 5.0, within_h=4.0)
        result = _run(jobs, _rented(_SPOT, capacity=0.0), _rented(_SURE))
        length_s = {each.request.job_id: each.request.steps or 0.0 for each in jobs}
        added += [each.jct_s - length_s[each.job_id] for each in result.jobs]
    measured.add("wait and restarts of a payer, mean", mean(added), "s", at_most=300.0)
    measured.add("worst", max(added), "s", at_most=900.0)


def _riders(measured: Measured, seeds: range) -> None:
    """Payers beside sixty riders against payers alone, without owned machines and with two."""
    for owned in (0, 2):
        ratios, billed, bills = list[float](), 0.0, list[float]()
        for seed in seeds:
            random = Random(seed)
            payers = _jobs(random, 24, 1, 5.0, within_h=6.0)
            riders = _jobs(random, 60, _FIRST_RIDER, None, within_h=3.0)
            pools = (PoolModel(_OWNED, machines=owned), _rented(_SURE))
            alone, beside = _run(payers, *pools), _run([*payers, *riders], *pools)
            ratios.append(_payers_mean_s(beside) / _payers_mean_s(alone))
            bills.append(beside.bills[_SURE.pool_id] / max(alone.bills[_SURE.pool_id], 1e-9))
            billed += sum(each.usd for each in beside.jobs if each.job_id >= _FIRST_RIDER)
        where = f"{owned} owned machines"
        measured.add(f"{where}: payers' mean completion time, against alone, mean", mean(ratios), "x", at_most=1.05)
        measured.add(f"{where}: worst", max(ratios), "x")
        measured.add(f"{where}: rented, against alone, mean", mean(bills), "x")
        measured.add(f"{where}: billed to riders", billed, "USD", at_most=0.0)


def _idle(measured: Measured, seeds: range) -> None:
    """Part of the paid time of rented machines that were idle while a job waited that fits them."""
    for step_s in (0.0, _HOUR_S):
        parts: list[float] = []
        for seed in seeds:
            random = Random(seed)
            jobs = _jobs(random, 12, 1, 5.0, within_h=6.0) + _jobs(random, 40, _FIRST_RIDER, None, within_h=3.0)
            meter = _IdleMeter()
            result = _run(jobs, PoolModel(_OWNED, machines=1), _rented(replace(_SURE, billing_step_s=step_s)), meter)
            there_h = result.bills[_SURE.pool_id] / _SURE.usd_per_h
            parts.append(meter.idle_s / _HOUR_S / max(there_h, 1e-9))
        billed = "hour" if step_s else "second"
        measured.add(f"billed by the {billed}: idle while a job waits, mean", mean(parts), "of paid", at_most=0.02)
        measured.add(f"billed by the {billed}: worst", max(parts), "of paid", at_most=0.05)


def _arrivals(measured: Measured, seeds: range) -> None:
    """Part of the arrivals that start in the step in which they come, of those who find a free machine."""
    parts: list[float] = []
    for seed in seeds:
        meter = _ArrivalMeter()
        _run(_jobs(Random(seed), 60, 1, None, within_h=10.0), PoolModel(_OWNED, machines=6), meter)
        parts.append(meter.admitted / max(meter.room, 1))
    measured.add("admitted at prices, mean", mean(parts), "of those with room", at_least=0.5)
    measured.add("worst", min(parts), "of those with room")


def _guarantee(measured: Measured, seeds: range) -> None:
    """Eight owned machines, 120 jobs of a crowd, and eight of a project of weight .1 that is guaranteed a quarter."""
    short, costs = list[float](), list[float]()
    for seed in seeds:
        random = Random(f"guarantee/{seed}")
        crowd = _jobs(random, 120, 1, None, within_h=6.0)
        few = [_lengthened(each, 4.0) for each in _jobs(random, 8, _FIRST_RIDER, 0.0, within_h=2.0)]
        pool, shares = PoolModel(_OWNED, machines=8), (EntityShare("payer", 0.1, guaranteed=0.25),)
        meter = _ShortMeter(2)
        kept = _run([*crowd, *few], pool, meter, shares=shares)
        without = _run([*crowd, *few], pool, shares=(EntityShare("payer", 0.1),))
        short.append(meter.short_s / meter.wanted_s)
        costs.append(100.0 * (_mean_s(kept) / _mean_s(without) - 1.0))
    measured.add("has less than its guarantee, of the time in which it wants more, mean", mean(short), "", at_most=0.02)
    measured.add("worst", max(short), "")
    measured.add("mean completion time of all, against no guarantee, mean", mean(costs), "%")
    measured.add("mean completion time of all, against no guarantee, worst", max(costs), "%")


# ------------------------------------------------------------------------------------------------ runs


class _IdleMeter:
    """Seconds of idle rented machines while a job waits; of as many as there are such jobs."""

    def __init__(self) -> None:
        self.core = SchedulerCore()
        self.idle_s = 0.0
        self._at, self._idle = 0.0, 0

    def __call__(self, event: Event, commands: list[Command]) -> None:
        """Look at the state that holds until the next event."""
        self.idle_s += self._idle * (event.at - self._at)
        machines = [each for each in self.core.ledger.fleet.machines if each is not None]
        idle = sum(bool(each.token) and each.condition is MachineCondition.UP and not each.holders for each in machines)
        self._at, self._idle = event.at, min(idle, sum(job.waits for job in self.core.ledger))


class _ArrivalMeter:
    """How many find a free machine as they come, and how many of these start at once."""

    def __init__(self) -> None:
        self.core = SchedulerCore()
        self.room = self.admitted = 0

    def __call__(self, event: Event, commands: list[Command]) -> None:
        """Count a submission."""
        if isinstance(event, JobSubmitted):
            starts = any(isinstance(each, Start) and each.job_id == event.job.job_id for each in commands)
            self.room += starts or any(state.free for state in self.core.ledger.fleet.pools)
            self.admitted += starts


class _ShortMeter:
    """Seconds in which a project has a job that waits, and in which it has less than so many accelerators then."""

    def __init__(self, guaranteed: int) -> None:
        self.core = SchedulerCore()
        self.short_s = self.wanted_s = 0.0
        self._guaranteed = guaranteed
        self._at, self._wants, self._lacks = 0.0, False, False

    def __call__(self, event: Event, commands: list[Command]) -> None:
        """Look at the state that holds until the next event."""
        self.wanted_s += self._wants * (event.at - self._at)
        self.short_s += self._lacks * (event.at - self._at)
        jobs = [job for job in self.core.ledger if job.job_id >= _FIRST_RIDER]
        self._at, self._wants = event.at, any(job.waits for job in jobs)
        self._lacks = self._wants and sum(job.holds for job in jobs) < self._guaranteed


Part = PoolModel | _IdleMeter | _ArrivalMeter | _ShortMeter


def _run(jobs: list[SimulatedJob], *parts: Part, shares: tuple[EntityShare, ...] = ()) -> SimulationResult:
    """Until the last payer, or without payers the last job, has ended; riders may wait then."""
    truth = GroundTruth({SpeedKey(_KIND, "gpu"): 1.0}, {_KIND: AttemptCosts(2.0, 1.0, 600.0)})
    meter = next((each for each in parts if not isinstance(each, PoolModel)), None)
    pools = tuple(each for each in parts if isinstance(each, PoolModel))
    told = Scenario(pools, truth, PolicySpec("walras"), _RULES, limits=RunLimits(30 * _HOUR_S), shares=shares)
    core = SchedulerCore() if meter is None else meter.core
    ordered = sorted(jobs, key=lambda each: each.at)
    return Simulation(told, core=core).run(ordered, meter) if meter else Simulation(told, core=core).run(ordered)


def _jobs(random: Random, count: int, first: int, value: float | None, within_h: float) -> list[SimulatedJob]:
    found = []
    for number in range(first, first + count):
        steps, at = random.uniform(0.2, 1.5) * _HOUR_S, random.uniform(0.0, within_h * _HOUR_S)
        request = JobRequest(
            JobId(number), _KIND, demands=(Demand("gpu", 1),), steps=steps, value_usd_per_h=value,
            project="rider" if value is None else "payer",
        )  # fmt: skip
        found.append(SimulatedJob(at, request, steps))
    return found


def _rented(pool: Pool, **terms: float) -> PoolModel:
    return PoolModel(pool, terms=RentalTerms(pool.boot_s, pool.minimum_billing_s, **terms))


def _lengthened(job: SimulatedJob, times: float) -> SimulatedJob:
    steps = times * job.steps
    return replace(job, request=replace(job.request, steps=steps), steps=steps)


def _mean_s(result: SimulationResult) -> float:
    return mean(each.jct_s for each in result.jobs)


def _payers_mean_s(result: SimulationResult) -> float:
    return mean(each.jct_s for each in result.jobs if each.job_id < _FIRST_RIDER)
