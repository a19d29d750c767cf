"""A simulated world with a scripted scheduler in front of it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from scheduler.core.commands import Command, JobTransitioned, Prepare, Revoke, Start
from scheduler.core.events import Event
from scheduler.providers.simulated_cloud import RentalTerms
from scheduler.world.attempts import AttemptCosts, SimulatedJob, WorldParameters
from scheduler.world.engine import Engine, RandomStreams, RunOutcome
from scheduler.world.machines import PoolModel, SimulatedMachines
from scheduler.world.world import SimulatedWorld
from simulator.faults import FaultInjector, FaultModel
from simulator.ground_truth import GroundTruth, SpeedKey, TruePhysics
from simulator.metrics import JobMetrics, MetricsCollector
from walras.cluster import Market, NodeId, NodeShare, Placement, Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind
from walras.states import JobState

KIND = Kind("k")


class Bench:
    """Two owned machines of two accelerators and a spot pool; the test is the scheduler.

    It says beforehand what is commanded when; every event is kept in `heard`.
    """

    def __init__(self, costs: AttemptCosts, model: WorldParameters, faults: FaultModel, truth: GroundTruth) -> None:
        owned = Pool(PoolId("own"), Shape("own", "a100", 2, 8.0, 2**30))
        spot = Pool(
            PoolId("spot"), Shape("spot", "v100", 1, 8.0, 2**30), Market.SPOT, usd_per_h=3.6, quota=2, notice_s=10.0
        )
        self.heard: list[Event] = []
        self.ended: list[JobMetrics] = []
        self.engine = Engine(self, lambda solve: pytest.fail("no solve is expected"))
        streams = RandomStreams(1)
        self.metrics = MetricsCollector(self.engine, self.ended.append)
        self.machines = SimulatedMachines(
            self.engine, [PoolModel(owned, machines=2), PoolModel(spot, terms=RentalTerms(boot_s=5.0))]
        )
        speeds = {SpeedKey(KIND, "a100"): 2.0, SpeedKey(KIND, "v100"): 1.0}
        truth = replace(truth, speeds={**speeds, **truth.speeds}, default_costs=costs)
        physics = TruePhysics(truth, self.machines, model, streams)
        self.world = SimulatedWorld(self.machines, physics, model, streams)
        self.faults = FaultInjector(self.machines, self.world, faults, streams)
        self.engine.on_command[JobTransitioned] = self._transitioned
        self.machines.begin(0.0)

    def _transitioned(self, now: float, command: JobTransitioned) -> None:
        self.world.transitioned(now, command)
        self.metrics.job(now, command)

    def handle(self, event: Event) -> list[Command]:
        self.heard.append(replace(event))
        return []

    def at(self, at: float, *commands: Command) -> None:
        """Carry these commands out at that instant."""

        def carry_out(now: float, _: object) -> tuple[()]:
            for command in commands:
                self.engine.on_command[type(command)](now, command)
            return ()

        self.engine.schedule(at, carry_out)

    def submit(self, *jobs: SimulatedJob) -> None:
        self.world.feed(jobs, lambda at, request: ())

    def start(
        self, at: float, job_id: int, attempt: int, nodes: dict[str, tuple[int, ...]], steps: float = 0.0
    ) -> None:
        """Grant the accelerators and start."""
        pool = PoolId("spot" if any(node.startswith("spot") for node in nodes) else "own")
        parts = tuple(NodeShare(NodeId(node), devices) for node, devices in nodes.items())
        placement = Placement(pool, parts)
        self.at(at, Start(JobId(job_id), attempt, placement, None, steps, False))

    def started(self, plan: SimulatedJob) -> "Bench":
        """Submit the job, and start it at 0 on an accelerator of the first machine."""
        self.submit(plan)
        self.start(0.0, 1, 1, {"own-1": (0,)})
        return self

    def prepare(self, at: float, job_id: int, attempt: int, nodes: dict[str, tuple[int, ...]]) -> None:
        parts = tuple(NodeShare(NodeId(node), devices) for node, devices in nodes.items())
        self.at(at, Prepare(JobId(job_id), attempt, Placement(PoolId("own"), parts)))

    def revoke(self, at: float, job_id: int, attempt: int, reason: object, grace_s: float = 30.0) -> None:
        self.at(at, Revoke(JobId(job_id), attempt, reason, grace_s))  # type: ignore[arg-type]

    def transition(self, at: float, job_id: int, state: JobState) -> None:
        self.at(at, JobTransitioned(JobId(job_id), state, None))

    def run(self) -> RunOutcome:
        outcome = self.engine.run()
        self.metrics.settle(self.engine.now)
        return outcome

    def told(self, *types: type) -> list[Event]:
        """The events of these types that the scheduler heard."""
        return [event for event in self.heard if isinstance(event, types)]


def a_job(number: int = 1, steps: float = 100.0, at: float = 0.0, **more: object) -> SimulatedJob:
    request = JobRequest(JobId(number), KIND, demands=(Demand("a100", 1),), steps=steps)
    return SimulatedJob(at, request, steps, **more)  # type: ignore[arg-type]


@pytest.fixture
def job() -> Callable[..., SimulatedJob]:
    return a_job


@pytest.fixture
def bench() -> Callable[..., Bench]:
    """Makes a bench: costs, world model, fault model and more of the truth as given."""

    def make(
        costs: AttemptCosts | None = None,
        model: WorldParameters | None = None,
        faults: FaultModel | None = None,
        truth: GroundTruth | None = None,
    ) -> Bench:
        return Bench(
            costs or AttemptCosts(), model or WorldParameters(), faults or FaultModel(), truth or GroundTruth({})
        )

    return make
