"""Small simulated clusters whose jobs have ended, as the bound in hindsight sees them."""

import numpy as np

from optimizer.bounds.hindsight import PastCapacity, PastJob
from simulator.reports.baselines import BoundsChoice
from simulator.reports.run_spec import CompletedRun, GeneratorOptions, RunSpec, WorkloadSource, execute_run
from walras.states import JobState


def past_of(ran: CompletedRun, *, known_everywhere: bool) -> tuple[list[PastJob], PastCapacity]:
    """The run's succeeded jobs with their speeds as measured where they ran, or as they truly are on every type."""
    done = [each for each in ran.result.jobs if each.state is JobState.SUCCEEDED]
    instance = ran.baselines.instance(each.job_id for each in done)
    types = [meter.pool.shape.accelerator for meter in ran.result.pools]
    assert len(set(types)) == len(types) == len(instance.capacity)
    past = []
    for row, each in enumerate(done):
        gang = int(instance.gang[row])
        held_s = {name: seconds / gang for name, seconds in each.accelerator_s.items()}
        true = {name: float(speed) for name, speed in zip(types, instance.steps_per_s[row], strict=True) if speed > 0}
        speeds = {name: speed if known_everywhere or name in held_s else None for name, speed in true.items()}
        past.append(
            PastJob(each.project, each.submitted_at, each.ended_at, gang, float(instance.steps[row]), speeds, held_s)
        )
    return past, PastCapacity(tuple(types), np.zeros(1), instance.capacity[None])


def run_of(generator: str, policy: str, seed: int, jobs: int = 12) -> CompletedRun:
    source = WorkloadSource(f"generate:{generator}", made=GeneratorOptions(jobs=jobs, rate_per_h=240.0, stretch=0.05))
    return execute_run(RunSpec(source, "hadar-60", policy, seed, BoundsChoice.NONE))
