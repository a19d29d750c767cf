"""How much work each revocation without notice costs a job that saves by itself at an interval.

Jobs on spot machines that are taken back without a word, simulated under the default policy. What a job had done since
its last checkpoint is lost when its machine goes; the books are the simulator's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from optimizer.policy import PolicySpec
from scheduler.core.commands import AttemptTransitioned, Command
from scheduler.core.events import Event, NodeLost
from scheduler.core.rules import RoundRules
from scheduler.providers.simulated_cloud import RentalTerms
from scheduler.world.attempts import AttemptCosts, SimAttempt, SimulatedJob
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.simulation import Scenario, Simulation
from walras.cluster import Market, Placement, Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind

_KIND, _STEPS_PER_S = Kind("cnn"), 2.0


@dataclass(frozen=True, slots=True)
class Weather:
    """Jobs, and how long their machines live."""

    jobs: int
    work_s: float
    mean_life_s: float
    costs: AttemptCosts


@dataclass(slots=True)
class _Watch:
    """Keeps what each job lost to each machine that was taken from it, seconds of work."""

    lost_s: list[float] = field(default_factory=list)
    _held: dict[JobId, Placement] = field(default_factory=dict)
    #: Taken back since its last start: what it had lost before then, steps.
    _before: dict[JobId, float] = field(default_factory=dict)
    _known: dict[JobId, float] = field(default_factory=dict)

    def record(self, event: Event, commands: Sequence[Command]) -> None:
        """An event that the core has handled, and what it commanded."""
        if isinstance(event, NodeLost):
            for job_id, placement in self._held.items():
                if any(part.node_id == event.node_id for part in placement.parts):
                    self._before.setdefault(job_id, self._known.get(job_id, 0.0))
        for command in commands:
            if isinstance(command, AttemptTransitioned):
                if command.placement is not None:
                    self._held[command.job_id] = command.placement
                elif command.state.is_final:
                    self._held.pop(command.job_id, None)

    def begun(self, _: float, run: SimAttempt) -> None:
        """An attempt begins: what the one before it lost is in the job's books now."""
        job_id, lost = run.job.plan.request.job_id, run.job.lost_steps
        before = self._before.pop(job_id, None)
        if before is not None:
            self.lost_s.append((lost - before) / _STEPS_PER_S)
        self._known[job_id] = lost


def losses(weather: Weather, seed: int = 0) -> list[float]:
    """Seconds of work that each revocation cost, in order of the starts after them."""
    shape = Shape("one", "v100", 1, 8.0, 2**33)
    pool = Pool(PoolId("spot"), shape, Market.SPOT, "a", 1.0, weather.jobs, notice_s=0.0, boot_s=60.0)
    model = PoolModel(pool, terms=RentalTerms(60.0), mean_life_s=weather.mean_life_s)
    steps = weather.work_s * _STEPS_PER_S
    jobs = [
        SimulatedJob(float(number), JobRequest(JobId(number), _KIND, demands=(Demand("v100", 1),), steps=steps), steps)
        for number in range(1, weather.jobs + 1)
    ]
    truth = GroundTruth({SpeedKey(_KIND, "v100"): _STEPS_PER_S}, default_costs=weather.costs)
    rules = RoundRules(resolve_min_s=1.0, delay_usd_per_h=10.0)
    simulation, watch = Simulation(Scenario((model,), truth, PolicySpec("walras"), rules, seed=seed)), _Watch()
    simulation.world.on_begin.append(watch.begun)
    result = simulation.run(jobs, watch.record)
    assert not result.violations, result.violations
    assert not result.unfinished, "every job ends"
    return watch.lost_s
