"""A recorded run simulated again: the same workload in a world with the costs that the run showed.

Two live runs of one workload differ: who waits a second longer is decided by milliseconds, and one decision leads to
the next. So the run is simulated with several seeds, each drawing how long starts and exits take around what was
measured; a job's forecast is the median over seeds, and the range says how much of it is chance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from optimizer.policy import PolicySpec
from scheduler.core.commands import JobTransitioned
from scheduler.core.events import JobSubmitted
from scheduler.core.rules import RoundRules
from simulator.attempts import WorldModel
from simulator.engine import SolveClock, SolveTime
from simulator.measured import MeasuredCosts
from simulator.measuring import Recorded, measure
from simulator.simulate import Scenario, simulate
from simulator.workload import Experiment, workload_experiment
from walras.config import ClusterConfig, Workload
from walras.ids import JobId

SEEDS = 9
#: As agents and in-job clients do it: word at every heartbeat, speeds over windows of half a second after two steps.
_HEARTBEAT_S = 5.0
_HEARTBEATS_PER_LEASE = 10.0
_WINDOW_S = 0.5
_UNMEASURED_STEPS = 2.0


@dataclass(frozen=True, slots=True)
class JobAgain:
    """Completion times of one job, seconds."""

    job_id: JobId
    run_s: float
    #: Median over seeds, the least and the most.
    simulated_s: float
    least_s: float
    most_s: float

    @property
    def error(self) -> float:
        """|simulated - run| / run."""
        return abs(self.simulated_s - self.run_s) / self.run_s


def simulate_again(
    recorded: Sequence[Recorded],
    workload: Workload,
    cluster: ClusterConfig,
    policy: tuple[PolicySpec, RoundRules],
    *,
    seeds: int = SEEDS,
) -> list[JobAgain]:
    """The jobs that ended in the run, by number, each with what the simulations of it say.

    Like the run, a simulation begins without knowing any speed and learns them from reports.
    """
    run_s, costs = completion_times(recorded), measure(recorded)
    simulated: dict[JobId, list[float]] = {job_id: [] for job_id in run_s}
    for seed in range(seeds):
        experiment = workload_experiment(workload, cluster, costs)
        result = simulate(experiment.jobs, scenario_again(experiment, costs, cluster, policy, seed))
        for job in result.jobs:
            if job.job_id in simulated:
                simulated[job.job_id].append(job.jct_s)
    return [
        JobAgain(job_id, run_s[job_id], median(seen), min(seen), max(seen))
        for job_id, seen in sorted(simulated.items())
        if seen and run_s[job_id] > 0
    ]


def completion_times(recorded: Sequence[Recorded]) -> dict[JobId, float]:
    """Submission to end of every job that ended, seconds."""
    submitted_at: dict[JobId, float] = {}
    took_s: dict[JobId, float] = {}
    for event, commands in recorded:
        if isinstance(event, JobSubmitted):
            submitted_at[event.job.job_id] = event.at
        for command in commands:
            if isinstance(command, JobTransitioned) and command.state.is_final:
                took_s[command.job_id] = event.at - submitted_at[command.job_id]
    return took_s


def scenario_again(
    experiment: Experiment,
    costs: MeasuredCosts,
    cluster: ClusterConfig,
    policy: tuple[PolicySpec, RoundRules],
    seed: int,
) -> Scenario:
    """The world of a live cluster, as far as its configuration and the measured costs tell."""
    spec, rules = policy
    return Scenario(
        experiment.pools,
        experiment.truth,
        spec,
        rules,
        world=world_again(costs, rules, cluster.lease),
        incidents=experiment.incidents,
        solve_time=SolveTime(SolveClock.FIXED, costs.solve_s),
        seed=seed,
        oracle=False,
    )


def world_again(costs: MeasuredCosts, rules: RoundRules, lease_s: float | None = None) -> WorldModel:
    """How jobs and agents of a live cluster with such leases (None: the usual ones) talk to its server."""
    return WorldModel(
        report_s=_HEARTBEAT_S if lease_s is None else min(_HEARTBEAT_S, lease_s / _HEARTBEATS_PER_LEASE),
        # The server passes progress on once a round, or sooner where a profiling lease is shorter.
        tell_s=min([length for length in (rules.round_s, rules.profiling_s) if length > 0], default=1.0),
        window_s=_WINDOW_S,
        unmeasured_steps=_UNMEASURED_STEPS,
        cost_noise=costs.cost_noise,
    )
