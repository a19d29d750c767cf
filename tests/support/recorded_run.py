"""A run that is recorded event by event, to be measured and simulated again."""

from optimizer.policy import PolicySpec
from scheduler.core.rules import RoundRules
from simulator.experiment import workload_experiment
from simulator.measured_costs import MeasuredCosts, RecordedEvent
from simulator.reports.recorded_runs import resimulation_scenario
from simulator.simulation import simulate
from walras.spec.cluster_file import ClusterConfig
from walras.spec.workload_file import WorkloadFile


def recorded_run(
    workload: WorkloadFile, cluster: ClusterConfig, policy: tuple[PolicySpec, RoundRules], true: MeasuredCosts
) -> list[RecordedEvent]:
    """One run of the workload in a world where things cost what `true` says."""
    recorded: list[RecordedEvent] = []
    experiment = workload_experiment(workload, cluster, true)
    scenario = resimulation_scenario(experiment, true, cluster, policy, seed=0)
    simulate(experiment.jobs, scenario, recorder=lambda event, commands: recorded.append((event, list(commands))))
    return recorded
