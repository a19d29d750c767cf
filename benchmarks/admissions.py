"""Random instances of online admission, small enough that every schedule can be listed."""

from dataclasses import dataclass

import numpy as np

from optimizer.assignment.admission_schedules import AdmissionInstance, Applicant

_ROUND_S = 360.0
_RESTART_S = 10.0


@dataclass(frozen=True, slots=True)
class Size:
    """Rounds, accelerators of each of two pools, jobs, and the largest gang."""

    rounds: int
    capacity: int
    jobs: int
    gang: int


def instance_of(size: Size, seed: int) -> AdmissionInstance:
    """Jobs of half a round to four rounds on their best pool, that come over the first half of the rounds."""
    rng = np.random.default_rng(seed)
    gangs = [2**power for power in range(4) if 2**power <= size.gang]
    applicants = []
    for number in range(size.jobs):
        gang = int(rng.choice(gangs))
        speeds = rng.uniform(0.3, 1.0, 2)
        rounds = rng.uniform(0.5, 4.0)
        applicants.append(
            Applicant(
                job_id=number,
                arrived_at=float(rng.integers(0, max(1, size.rounds // 2))) * _ROUND_S,
                gang=gang,
                work_steps=float(rounds * _ROUND_S * gang * speeds.max()),
                steps_per_s=(float(speeds[0]), float(speeds[1])),
            )
        )
    return AdmissionInstance(size.rounds, _ROUND_S, _RESTART_S, (size.capacity, size.capacity), tuple(applicants))
