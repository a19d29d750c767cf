"""The same workload in the simulator, with the costs that the run showed: both completion times side by side."""

from collections.abc import Sequence
from statistics import median

from rich.markup import escape
from rich.table import Table

from scheduler.live.records.replay import read_run
from simulator.again import JobAgain, simulate_again
from simulator.measuring import measure
from simulator.shipped import load_policy
from walras.demo.recording import Recording
from walras.demo.stage import Stage


def simulated_again(stage: Stage) -> list[JobAgain]:
    """Every job of the run beside its simulations; leaves what was measured in the folder, for `walras simulate`."""
    recorded = list(read_run(stage.server))
    stage.measured_path.write_text(measure(recorded).model_dump_json(indent=1))
    return simulate_again(recorded, stage.workload, stage.cluster, load_policy(str(stage.policy_path)))


def comparison_table(recording: Recording, compared: Sequence[JobAgain]) -> Table:
    middle = f"{median(job.error for job in compared):.1%}" if compared else "-"
    table = Table(title=f"completion times, run and simulated: median error {middle} (goal 15 %)", title_justify="left")
    table.add_column("job", justify="right")
    table.add_column("name")
    for name in ("run s", "simulated s", "least", "most", "error"):
        table.add_column(name, justify="right")
    for job in compared:
        seconds = [f"{length_s:.1f}" for length_s in (job.run_s, job.simulated_s, job.least_s, job.most_s)]
        name = recording.jobs[job.job_id].name if job.job_id in recording.jobs else ""
        table.add_row(str(job.job_id), escape(name), *seconds, f"{job.error:.0%}")
    return table
