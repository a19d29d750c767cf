"""Time that jobs on spot machines lose and write when the scheduler plans their checkpoints, and the least possible.

Jobs run on machines of one spot pool that are taken without a word, at ages drawn from a law. The scheduler either is
told the law or learns it from the machines that ended. The least that any schedule comes to is found by dynamic
programming on a fine grid, which shares no code with the scheduler, and applied to the same lives. Of both, a life
counts with what it wrote and with the mean loss, by the law, of an end within the segment in which it ended: where in
it is chance, which would need thousands of lives to cancel out.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from optimizer.policy import PolicySpec
from optimizer.renting.lifetime_laws import Lifetime, lifetime_of
from scheduler.core.commands import CheckpointEvery, Command, Start
from scheduler.core.events import AttemptEnded, CheckpointRecorded, Event, NodeJoined, NodeLost
from scheduler.core.rules import RoundRules
from scheduler.providers.simulated_cloud import RentalTerms
from scheduler.world.attempts import AttemptCosts, SimulatedJob
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.simulation import Scenario, simulate
from walras.cluster import Market, NodeId, Pool, PoolId, Shape, parse_lifetime
from walras.contract import SECONDS_PER_HOUR
from walras.job_request import Demand, JobId, JobRequest, Kind

_KIND = Kind("cnn")
#: Parts of a checkpoint that the grid of the optimum tells apart, and how long its segments may be, checkpoints.
_PARTS, _LONGEST = 5, 600


@dataclass(frozen=True, slots=True)
class CheckpointScene:
    """Jobs at a time, work of each, the law of their machines as text, and the time that writing takes."""

    jobs: int
    work_h: float
    lifetime: str
    write_s: float
    #: The pool states the law; False: the scheduler learns it.
    is_stated: bool
    #: Seconds between checkpoints that the job files state; None: as the scheduler plans.
    every_s: float | None = None


@dataclass(frozen=True, slots=True)
class CheckpointOutcome:
    """Hours over all machines that were taken, and how many those are."""

    lived_h: float
    #: Lost and written, and the least of it that a schedule comes to on these lives.
    wasted_h: float
    least_h: float
    lives: int

    @property
    def excess(self) -> float:
        """By which part more was wasted than need be."""
        return self.wasted_h / self.least_h - 1.0


@dataclass(slots=True)
class _Run:
    """A job on a machine."""

    joined_at: float
    saved_at: float
    every_s: float
    saves: int = 0


@dataclass(slots=True)
class _Lives:
    """Watches machines from joining to their end: (age, checkpoints, age at the last one, age at the next)."""

    write_s: float
    joined_at: dict[NodeId, float] = field(default_factory=dict)
    held: dict[JobId, NodeId] = field(default_factory=dict)
    runs: dict[NodeId, _Run] = field(default_factory=dict)
    ended: list[tuple[float, int, float, float]] = field(default_factory=list)

    def record(self, event: Event, commands: Sequence[Command]) -> None:
        """An event that the core has handled, and what it commanded."""
        match event:
            case NodeJoined():
                self.joined_at[event.node_id] = event.at
            case CheckpointRecorded() if event.job_id in self.held:
                run = self.runs[self.held[event.job_id]]
                run.saves, run.saved_at = run.saves + 1, event.at
            case AttemptEnded():
                self.runs.pop(self.held.pop(event.job_id, NodeId("")), None)
            case NodeLost() if event.node_id in self.runs:
                run = self.runs.pop(event.node_id)
                due_at = run.saved_at + run.every_s + self.write_s
                ages = (event.at, run.saved_at, due_at)
                age, saved, due = ((at - run.joined_at) / SECONDS_PER_HOUR for at in ages)
                self.ended.append((age, run.saves, saved, due))
        for command in commands:
            if isinstance(command, Start):
                self.held[command.job_id] = node_id = command.placement.parts[0].node_id
                every_s = command.checkpoint_every_s or inf
                self.runs[node_id] = _Run(self.joined_at[node_id], event.at, every_s)
            elif isinstance(command, CheckpointEvery):
                self.runs[self.held[command.job_id]].every_s = command.every_s


def run_checkpoints(scene: CheckpointScene, seed: int) -> CheckpointOutcome:
    """One run of the scheduler in the simulator."""
    shape = Shape("one", "v100", 1, 8.0, 2**33)
    lifetime = scene.lifetime if scene.is_stated else ""
    pool = Pool(PoolId("spot"), shape, Market.SPOT, "a", 1.0, scene.jobs, boot_s=0.0, lifetime=lifetime)
    model = PoolModel(pool, terms=RentalTerms(0.0), lifetime=scene.lifetime)
    steps = scene.work_h * SECONDS_PER_HOUR
    terms: dict[str, Any] = {"preemptible": False, "checkpoint_every_s": scene.every_s}
    jobs = [
        SimulatedJob(0.0, JobRequest(JobId(number), _KIND, demands=(Demand("v100", 1),), steps=steps, **terms), steps)
        for number in range(1, scene.jobs + 1)
    ]
    costs = AttemptCosts(checkpoint_s=scene.write_s, checkpoint_every_s=None)
    truth = GroundTruth({SpeedKey(_KIND, "v100"): 1.0}, default_costs=costs)
    rules = RoundRules(resolve_min_s=1.0, round_s=SECONDS_PER_HOUR, delay_usd_per_h=10.0, rent_keep_s=3e4)
    lives, write_h = _Lives(scene.write_s), scene.write_s / SECONDS_PER_HOUR
    result = simulate(jobs, Scenario((model,), truth, PolicySpec("walras"), rules, seed=seed), recorder=lives.record)
    assert not result.violations, result.violations
    assert not result.unfinished, "every job ends"
    law, lived = lifetime_of(parse_lifetime(scene.lifetime)), [age for age, *_ in lives.ended]
    wasted_h = sum(saves * write_h + _mean_loss(law, saved, due) for _, saves, saved, due in lives.ended)
    ends, least_h = _best_segments(law, write_h, max(lived)), 0.0
    for age in lived:
        row = bisect_right(ends, age) - 1
        due = ends[row + 1] if row + 1 < len(ends) else inf
        least_h += row * write_h + _mean_loss(law, ends[row], due)
    return CheckpointOutcome(sum(lived), wasted_h, least_h, len(lived))


def _mean_loss(law: Lifetime, saved_h: float, due_h: float) -> float:
    """Mean hours since the last checkpoint of machines that end between these ages."""
    until = min(due_h, saved_h + 200.0)
    ages = np.linspace(saved_h, until, 200)
    survival = np.array([law.survival(age) for age in ages.tolist()])
    ended = survival[0] - survival[-1]
    lost = float(np.trapezoid(survival, ages)) - float(survival[-1]) * (until - saved_h)
    return lost / float(ended) if ended > 1e-9 else until - saved_h


def _best_segments(law: Lifetime, write_h: float, until_h: float) -> list[float]:
    """Ages at which the segments of an unbroken life end, for the most saved work in the mean."""
    step = write_h / _PARTS
    survival = np.array([law.survival(number * step) for number in range(int(until_h / step) + _PARTS + 2)])
    saved, chosen = np.zeros(len(survival)), np.zeros(len(survival), dtype=int)
    for row in range(len(survival) - _PARTS - 2, -1, -1):
        if survival[row] > 1e-9:
            ends = np.arange(row + _PARTS + 1, min(row + _PARTS * (_LONGEST + 1), len(survival)))
            worth = survival[ends] / survival[row] * ((ends - row - _PARTS) * step + saved[ends])
            saved[row], chosen[row] = worth.max(), ends[worth.argmax()]
    found, row = [0.0], 0
    while chosen[row]:
        row = int(chosen[row])
        found.append(row * step)
    return found
