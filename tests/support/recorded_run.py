"""A run that is recorded event by event, to be measured and simulated again."""

from optimizer.policy import PolicySpec
from scheduler.core.rules import RoundRules
from simulator.again import scenario_again
from simulator.measured import MeasuredCosts
from simulator.measuring import Recorded
from simulator.simulate import simulate
from simulator.workload import workload_experiment
from walras.config import ClusterConfig, Workload


def recorded_run(
    workload: Workload, cluster: ClusterConfig, policy: tuple[PolicySpec, RoundRules], true: MeasuredCosts
) -> list[Recorded]:
    """One run of the workload in a world where things cost what `true` says."""
    recorded: list[Recorded] = []
    experiment = workload_experiment(workload, cluster, true)
    scenario = scenario_again(experiment, true, cluster, policy, seed=0)
    simulate(experiment.jobs, scenario, recorder=lambda event, commands: recorded.append((event, list(commands))))
    return recorded
