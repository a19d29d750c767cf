"""A run that was recorded (a server's journal), simulated again: under its own policy, or under another one.

The jobs are those that were submitted, with the work that they turned out to be and the costs that the run showed. The
simulation starts empty, as ignorant of speeds as the run did. What users did (holding, releasing, cancelling, changing
priorities) happens again at the same instants; machines that the market took back are taken back; machines that died
by themselves are not. Until another policy takes over, the run's own policies decide: history is simulated, not copied.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan
from statistics import median

from optimizer.policy import PolicySpec
from scheduler.cloud.simulated import RentalTerms
from scheduler.core.books import JobBudgetChanged
from scheduler.core.events import Event, JobHeld, JobReleased, JobReprioritised, PolicyChanged
from scheduler.core.rules import RoundRules
from simulator.again import world_again
from simulator.engine import SolveClock, SolveTime
from simulator.faults import Revocation
from simulator.machines import PoolModel
from simulator.simulate import Result, Scenario, Simulation
from simulator.study.recording import Recording
from simulator.truth import ANY_COUNT, SpeedKey, Truth
from walras.ids import JobId, Kind, PoolId

Happened = PolicyChanged | JobHeld | JobReleased | JobReprioritised | JobBudgetChanged


@dataclass(frozen=True, slots=True)
class ReplayedJob:
    """Completion times of one job, seconds."""

    job_id: JobId
    kind: str
    recorded_s: float
    #: Median over the seeds, the least and the most.
    simulated_s: float
    least_s: float
    most_s: float


@dataclass(frozen=True, slots=True)
class Replayed:
    """What the simulations of a recording say."""

    jobs: tuple[ReplayedJob, ...]
    results: tuple[Result, ...]

    @property
    def median_error(self) -> float:
        """Of |simulated - recorded| / recorded over the jobs; nan without any."""
        errors = [abs(job.simulated_s - job.recorded_s) / job.recorded_s for job in self.jobs if job.recorded_s > 0]
        return median(errors) if errors else nan


def another_policy(recording: Recording, spec: PolicySpec, rules: RoundRules, from_s: float) -> Recording:
    """The run under its own policies until `from_s` after its first submission, and under this one from then on."""
    from_at = recording.jobs[0].at + from_s if from_s > 0 else 0.0
    before = [change for change in recording.header.policies if change.at < from_at]
    return recording.under((*before, PolicyChanged(from_at, spec, rules)))


def replay(recording: Recording, seeds: Sequence[int]) -> Replayed:
    """Simulate it once per seed. Jobs that did not end in the run, or in every simulation, are not compared."""
    simulated: dict[JobId, list[float]] = {}
    results = []
    for seed in seeds:
        result = _simulated(recording, seed)
        results.append(result)
        for ended in result.jobs:
            simulated.setdefault(ended.job_id, []).append(ended.jct_s)
    jobs = []
    for job in recording.jobs:
        seen = simulated.get(job.request.job_id, [])
        if isfinite(job.jct_s) and len(seen) == len(results):
            times = (job.jct_s, median(seen), min(seen), max(seen))
            jobs.append(ReplayedJob(job.request.job_id, job.request.kind, *times))
    return Replayed(tuple(jobs), tuple(results))


def _simulated(recording: Recording, seed: int) -> Result:
    header, costs = recording.header, recording.header.costs
    first, *later = header.policies
    boots = {pool.pool_id: pool.boot_s for pool in costs.pools}
    pools = tuple(
        PoolModel(each.pool, each.machines, RentalTerms(boots.get(each.pool.pool_id, 0.0))) for each in header.pools
    )
    scenario = Scenario(
        pools,
        completed(recording),
        first.policy,
        first.rules,
        world=world_again(costs, first.rules),
        incidents=tuple(Revocation(seen.at + costs.begins_at, PoolId(seen.pool_id)) for seen in costs.revocations),
        solve_time=SolveTime(SolveClock.FIXED, costs.solve_s),
        seed=seed,
        oracle=False,
    )
    simulation = Simulation(scenario)
    acts = header.acts
    happened: tuple[Happened, ...] = (*later, *acts.held, *acts.released, *acts.reprioritised, *acts.rebudgeted)
    for event in happened:
        simulation.engine.schedule(event.at, _again, event)
    return simulation.run(job.simulated() for job in recording.jobs)


def completed(recording: Recording) -> Truth:
    """The speeds that were measured, and a guess for every way to run a job that nobody tried.

    The guess: what was measured elsewhere, times the ratios of the types' nominal speeds and of the gangs' sizes; the
    median where the kind was measured in several places.
    """
    truth = recording.header.costs.truth()
    nominal: dict[str, float] = {}
    for each in recording.header.pools:
        shape = each.pool.shape
        nominal[shape.accelerator] = max(shape.nominal_speed, nominal.get(shape.accelerator, 0.0))
    measured: dict[Kind, list[SpeedKey]] = {}
    for key in truth.speeds:
        if key.accelerator in nominal and key.count != ANY_COUNT:
            measured.setdefault(key.kind, []).append(key)
    guessed: dict[SpeedKey, float] = {}
    for job in recording.jobs:
        kind = job.request.kind
        for accelerator, count in truth.accelerators_of(job.request, nominal):
            wanted = SpeedKey(kind, accelerator, count)
            if wanted in truth.speeds or wanted in guessed or kind not in measured:
                continue
            guessed[wanted] = median(
                truth.speeds[key] * nominal[accelerator] / nominal[key.accelerator] * count / key.count
                for key in measured[kind]
            )
    return replace(truth, speeds={**truth.speeds, **guessed})


def _again(at: float, event: Event) -> Iterable[Event]:
    return (event,)
