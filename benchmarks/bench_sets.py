"""An elastic job with a deadline, of which nobody says what an hour is worth: how many spot machines, or how many on
demand, it holds is planned and planned again.

    python -m benchmarks sets

Eight hours of work on one machine, a gang of 1, 2, 4 or 8 (n machines are n^.8 as fast), on a made-up market: spot
machines at 1 USD an hour whose price moves every half hour (lognormal, .3) and of which 0 to 8 are to be had (another
number after 40 minutes in the mean), beside eight on demand at 3 USD. The same seeds with machines on demand alone, on
spot alone (taken at any price), with the gang of the first plan kept for good, and with the gang kept that was the
cheapest in time in hindsight.
"""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from random import Random
from statistics import fmean

from benchmarks.tables import Measured
from optimizer.policy import PolicySpec
from scheduler.core.commands import AttemptTransitioned, Command
from scheduler.core.events import Event
from scheduler.core.rules import RoundRules
from scheduler.providers.simulated_cloud import RentalTerms
from scheduler.world.attempts import AttemptCosts, SimulatedJob
from scheduler.world.engine import RunLimits
from scheduler.world.machines import PoolModel
from simulator.faults import MarketChange
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.simulation import Scenario, Simulation
from walras.cluster import Market, Pool, PoolId, Shape
from walras.contract import SECONDS_PER_HOUR
from walras.job_request import Demand, JobId, JobRequest, Kind
from walras.states import AttemptState

_SEEDS, _FIRST_SEED = 10, 900
_KIND, _SIZES, _SCALING = Kind("net"), (1, 2, 4, 8), 0.8
_WORK_H = 8.0
#: Hours until the deadline.
_DEADLINES = {"loose": 12.0, "middle": 6.0, "tight": 3.0}
ROWS = tuple(_DEADLINES)
_MACHINE = Shape("one", "v100", 1, 8.0, 2**33)
_SURE = Pool(PoolId("on-demand"), _MACHINE, Market.ON_DEMAND, "z", 3.0, 8, boot_s=60.0)
_SPOT = Pool(PoolId("spot"), _MACHINE, Market.SPOT, "z", 1.0, 8, notice_s=60.0, boot_s=60.0)
_COSTS = AttemptCosts(start_s=20.0, checkpoint_s=5.0, checkpoint_every_s=600.0, warm_up_s=10.0, exit_s=1.0)
_CHANGES_EVERY_S = 2400.0
#: An hour of the job where there is nothing but spot: it takes whatever there is.
_ANY_PRICE = 100.0


@dataclass(frozen=True, slots=True)
class _Run:
    usd: float
    is_late: bool
    attempts: int
    first_gang: int


def _market(seed: int) -> Iterator[MarketChange]:
    random, at = Random(f"market {seed}"), 0.0
    while at < 3 * max(_DEADLINES.values()) * SECONDS_PER_HOUR:
        yield MarketChange(at, _SPOT.pool_id, capacity=float(random.choice((0, 0, 1, 2, 4, 6, 8))))
        at += random.expovariate(1 / _CHANGES_EVERY_S)


def _run(seed: int, deadline_h: float, sizes: tuple[int, ...], pools: str) -> _Run:
    """One job. `pools`: `both`, `on demand` or `spot`."""
    spot = PoolModel(_SPOT, terms=RentalTerms(60.0), reprice_every_s=1800.0, price_noise=0.3)
    sure = PoolModel(_SURE, terms=RentalTerms(60.0))
    truth = GroundTruth({SpeedKey(_KIND, "v100", size): size**_SCALING for size in _SIZES}, {_KIND: _COSTS})
    scenario = Scenario(
        {"both": (sure, spot), "on demand": (sure,), "spot": (spot,)}[pools],
        truth,
        PolicySpec("walras"),
        RoundRules(delay_usd_per_h=_ANY_PRICE if pools == "spot" else 0.0, rent_keep_s=60.0, restart_default_s=60.0),
        incidents=() if pools == "on demand" else tuple(_market(seed)),
        limits=RunLimits(until_at=4 * deadline_h * SECONDS_PER_HOUR),
        seed=seed,
    )
    request = JobRequest(
        JobId(1), _KIND, demands=(Demand("v100", sizes[0]),), sizes=sizes if len(sizes) > 1 else (),
        steps=_WORK_H * SECONDS_PER_HOUR, deadline_at=deadline_h * SECONDS_PER_HOUR, grace_s=30.0,
    )  # fmt: skip
    gangs: list[int] = []

    def watch(event: Event, commands: list[Command]) -> None:
        for each in commands:
            if isinstance(each, AttemptTransitioned) and each.state is AttemptState.LEASED and each.placement:
                gangs.append(sum(len(part.devices) for part in each.placement.parts))

    found = Simulation(scenario).run([SimulatedJob(0.0, request, _WORK_H * SECONDS_PER_HOUR)], watch)
    assert not found.violations, found.violations
    job = (*found.jobs, *found.unfinished)[0]
    late = not job.ended_at <= deadline_h * SECONDS_PER_HOUR
    return _Run(sum(found.bills.values()), late, len(gangs), gangs[0] if gangs else 0)


def _seed(seed: int, deadline_h: float) -> dict[str, _Run]:
    """Every way of this seed, by name."""
    found = {
        "planned": _run(seed, deadline_h, _SIZES, "both"),
        "on demand alone": _run(seed, deadline_h, _SIZES, "on demand"),
        "spot alone": _run(seed, deadline_h, _SIZES, "spot"),
    }
    kept = {size: _run(seed, deadline_h, (size,), "both") for size in _SIZES}
    in_time = [each for each in kept.values() if not each.is_late]
    found["the first gang kept"] = kept[found["planned"].first_gang]
    found["the best gang kept, in hindsight"] = min(in_time, key=lambda each: each.usd)
    return found


def measure(scale: float, row: str) -> list[Measured]:
    """One table for each deadline."""
    deadline_h = _DEADLINES[row]
    seeds = [_FIRST_SEED + number for number in range(max(2, round(_SEEDS * scale)))]
    with ProcessPoolExecutor() as pool:
        runs = list(pool.map(_seed, seeds, [deadline_h] * len(seeds)))
    usd = fmean(run["on demand alone"].usd for run in runs)
    measured = Measured(
        f"a planned set, {_WORK_H:g} h of work on one machine in {deadline_h:g} h",
        f"{len(seeds)} seeds; on demand alone {usd:.1f} USD",
    )
    for name in (each for each in runs[0] if each != "on demand alone"):
        cost = [run[name].usd / run["on demand alone"].usd for run in runs]
        is_ours = name == "planned"
        measured.add(f"{name}: cost of on demand alone, mean", fmean(cost), "x", at_most=1.0 if is_ours else None)
        measured.add("   worst seed", max(cost), "x")
        measured.add("   late", sum(run[name].is_late for run in runs), "jobs", at_most=0 if is_ours else None)
        measured.add("   starts, mean", fmean(run[name].attempts for run in runs), "")
    return [measured]
