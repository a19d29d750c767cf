"""The same workload in the simulator, with the costs that the run showed: both completion times side by side."""

from collections.abc import Sequence
from statistics import median
from types import ModuleType
from typing import Protocol

from rich.markup import escape
from rich.table import Table

from walras.demo.recording import Recording
from walras.demo.stage import Stage


class Load(Protocol):
    """Imports one of our own modules by name, after checking that the name leads to ours."""

    def __call__(self, name: str) -> ModuleType: ...


class Compared(Protocol):
    """A job as `simulator.again` compares it: completion times in seconds."""

    job_id: int
    run_s: float
    #: Median over seeds, the least and the most.
    simulated_s: float
    least_s: float
    most_s: float
    error: float


def simulated_again(stage: Stage, load: Load) -> list[Compared]:
    """Every job of the run beside its simulations; leaves what was measured in the folder, for `walras simulate`."""
    recorded = list(load("scheduler.live.records.replay").read_run(stage.server))
    stage.measured_path.write_text(load("simulator.measuring").measure(recorded).model_dump_json(indent=1))
    policy = load("simulator.main").load_policy(str(stage.policy_path))
    compared: list[Compared] = load("simulator.again").simulate_again(recorded, stage.workload, stage.cluster, policy)
    return compared


def comparison_table(recording: Recording, compared: Sequence[Compared]) -> Table:
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
