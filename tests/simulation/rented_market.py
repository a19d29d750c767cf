"""Rented machines of one accelerator in virtual time: pools, jobs of so many hours, and runs of the real core."""

from collections.abc import Callable, Mapping, Sequence
from math import inf

from optimizer.policy import PolicySpec
from scheduler.core.commands import Command
from scheduler.core.core import SchedulerCore
from scheduler.core.events import Event
from scheduler.core.rules import RoundRules
from scheduler.providers.simulated_cloud import RentalTerms
from scheduler.world.attempts import AttemptCosts, SimulatedJob
from scheduler.world.engine import RunLimits
from scheduler.world.machines import PoolModel
from simulator.faults import Incident
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.simulation import Scenario, Simulation, SimulationResult
from walras.cluster import Market, Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind

KIND = Kind("cnn")
HOUR_S = 3600.0
BOX = Shape("box", "gpu", 1, 8.0, 2**33)
SPOT = Pool(PoolId("box/spot/z"), BOX, Market.SPOT, "z", 1.0, 4, notice_s=30.0, boot_s=60.0)
SURE = Pool(PoolId("box/on_demand/z"), BOX, Market.ON_DEMAND, "z", 3.0, 4, boot_s=100.0)
COSTS = AttemptCosts(10.0, 5.0, 300.0)


def job(
    number: int, hours: float, at: float = 0.0, *, due_h: float = inf, gang: int = 1, types: str = "gpu", **more: object
) -> SimulatedJob:
    """`due_h`: hours after it came; `types`: words."""
    request = JobRequest(
        JobId(number), KIND, demands=tuple(Demand(name, gang) for name in types.split()), steps=hours * HOUR_S,
        deadline_at=at + due_h * HOUR_S, **more,
    )  # type: ignore[arg-type]  # fmt: skip
    return SimulatedJob(at, request, hours * HOUR_S)


def rented(pool: Pool, **terms: float) -> PoolModel:
    return PoolModel(pool, terms=RentalTerms(pool.boot_s, pool.minimum_billing_s, **terms))


def scenario(
    *pools: PoolModel,
    rules: RoundRules,
    incidents: Sequence[Incident] = (),
    policy: str = "walras",
    costs: AttemptCosts = COSTS,
    speeds: Mapping[SpeedKey, float] | None = None,
    until_h: float = 80.0,
) -> Scenario:
    """`speeds`: one step a second, if not given."""
    truth = GroundTruth(speeds or {SpeedKey(KIND, "gpu"): 1.0}, {KIND: costs})
    limits = RunLimits(until_h * HOUR_S, max_events=200_000)
    return Scenario(pools, truth, PolicySpec(policy), rules, incidents=tuple(incidents), limits=limits)


def run(
    told: Scenario,
    jobs: Sequence[SimulatedJob],
    watch: Callable[[Event, list[Command]], None] | None = None,
    core: SchedulerCore | None = None,
) -> SimulationResult:
    """Whatever the order of the jobs; nothing in it breaks a rule of the world."""
    result = Simulation(told, core=core or SchedulerCore()).run(sorted(jobs, key=lambda each: each.at), watch)
    assert result.violations == []
    return result
