"""The same workload in the simulator, with the costs that the run showed: both completion times side by side."""

from statistics import median
from types import ModuleType
from typing import Protocol

from rich.markup import escape
from rich.table import Table

from walras.demo.recording import Recording
from walras.demo.stage import Stage

#: As the in-job client does it: progress twice a second, speeds over windows of half a second.
REPORT_S = 0.5


class Load(Protocol):
    """Imports one of our own modules by name, after checking that the name leads to ours."""

    def __call__(self, name: str) -> ModuleType: ...


def simulated_jcts(stage: Stage, load: Load) -> dict[int, float]:
    """Completion time by job number, in seconds; the simulator numbers jobs by arrival, as the server did."""
    costs = load("simulator.measured").load_measured(stage.measured_path)
    experiment = load("simulator.workload").load_experiment(stage.workload_path, stage.cluster_path, measured=costs)
    policy, rules = load("simulator.main").load_policy(str(stage.policy_path))
    simulate = load("simulator.simulate")
    scenario = simulate.Scenario(
        experiment.pools,
        experiment.truth,
        policy,
        rules,
        world=load("simulator.attempts").WorldModel(report_s=REPORT_S, window_s=REPORT_S),
        incidents=experiment.incidents,
        oracle=False,
    )
    result = simulate.simulate(experiment.jobs, scenario)
    return {int(job.job_id): float(job.jct_s) for job in result.jobs}


def errors_of(recording: Recording, simulated: dict[int, float]) -> dict[int, float]:
    """|simulated - real| / real, by job."""
    real = {job_id: recording.summary(job_id).jct_s for job_id in recording.jobs}
    return {
        job_id: abs(simulated[job_id] - real[job_id]) / real[job_id]
        for job_id in sorted(real)
        if job_id in simulated and real[job_id] > 0
    }


def comparison_table(recording: Recording, simulated: dict[int, float]) -> Table:
    errors = errors_of(recording, simulated)
    middle = f"{median(errors.values()):.1%}" if errors else "-"
    table = Table(title=f"completion times, run and simulated: median error {middle} (goal 15 %)", title_justify="left")
    table.add_column("job", justify="right")
    table.add_column("name")
    for name in ("run s", "simulated s", "error"):
        table.add_column(name, justify="right")
    for job_id, error in errors.items():
        summary = recording.summary(job_id)
        cells = (f"{summary.jct_s:.1f}", f"{simulated[job_id]:.1f}", f"{error:.0%}")
        table.add_row(str(job_id), escape(summary.job.name), *cells)
    return table
