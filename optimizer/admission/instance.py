"""What online admission decides about: jobs that arrive over time, and pools whose rounds they may book.

One pool per accelerator type. A job books whole gangs round by round; a gang may be mixed, and is then paced by its
slowest worker. A *schedule* is what a job holds in every round, with the round in which it ends. Nothing is decided
here.

Shapes: R rounds, p pools, o options. Rounds are counted from 0; round t lasts from t to t + 1 times `round_s`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import numpy as np

from optimizer.problem import FloatArray, IntArray

#: Relative slack of "the work is done": sums of rounds are rounded.
_DONE = 1 - 1e-12


@dataclass(frozen=True, slots=True)
class Applicant:
    """A job that asks to be admitted, once, on arrival."""

    job_id: int
    arrived_at: float
    #: Workers, one accelerator each, all or none.
    gang: int
    work_steps: float
    #: Steps per second of one worker on each pool (p,); 0 where it cannot run.
    steps_per_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Instance:
    """Pools with booked-out rounds, and the applicants."""

    rounds: int
    round_s: float
    #: Seconds of a round lost when a job does not hold what it held in the round before.
    restart_s: float
    #: Accelerators of each pool, in every round (p,).
    capacity: tuple[int, ...]
    applicants: tuple[Applicant, ...]
    #: False: all workers of a gang sit in one pool.
    mixed: bool = True

    def in_order(self) -> list[Applicant]:
        """By arrival, then by id: the order in which they are judged."""
        return sorted(self.applicants, key=lambda job: (job.arrived_at, job.job_id))


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    """What a job can hold in one round, besides nothing."""

    #: Workers in each pool (o, p).
    use: IntArray
    #: Steps per second of the whole gang (o,).
    steps_per_s: FloatArray

    def __len__(self) -> int:
        return len(self.steps_per_s)


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """What one job holds over time."""

    #: Workers by round and pool (R, p).
    use: IntArray
    #: Rounds until its end: the last used round is `finish` - 1.
    finish: int
    utility: float


def options_of(instance: Instance, job: Applicant) -> Options:
    """Every gang that the empty pools could hold, pool by pool ascending, the last pool's part largest first."""
    use = [
        parts for parts in _splits(job, instance.capacity) if instance.mixed or sum(count > 0 for count in parts) == 1
    ]
    pace = [min(speed for speed, count in zip(job.steps_per_s, parts, strict=True) if count) for parts in use]
    return Options(
        np.array(use, dtype=np.int64).reshape(len(use), len(instance.capacity)),
        job.gang * np.array(pace, dtype=np.float64),
    )


def _splits(job: Applicant, capacity: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    def fill(pool: int, left: int) -> Iterator[tuple[int, ...]]:
        if pool == len(capacity):
            if left == 0:
                yield ()
            return
        most = min(left, capacity[pool]) if job.steps_per_s[pool] > 0 else 0
        for count in range(most + 1):
            yield from ((count, *rest) for rest in fill(pool + 1, left - count))

    return fill(0, job.gang)


def first_round(instance: Instance, job: Applicant) -> int:
    """The first round that begins when the job is there."""
    return max(0, ceil(job.arrived_at / instance.round_s - 1e-9))


def best_s(job: Applicant) -> float:
    """Seconds that the job takes alone on its best pool."""
    return job.work_steps / (job.gang * max(job.steps_per_s))


def utility(instance: Instance, job: Applicant, finish: int) -> float:
    """Worth of ending with round `finish` - 1: time alone over time in the system, in 0..1.

    Normalised, because steps of different models are not comparable.
    """
    return best_s(job) / (finish * instance.round_s - job.arrived_at)


def is_done(job: Applicant, steps: float) -> bool:
    """Whether that much work ends the job."""
    return steps >= job.work_steps * _DONE


def gain_steps(instance: Instance, options: Options, option: int, before: int) -> float:
    """Work of one round in an option when the round before was spent in `before` (-1: in none)."""
    lost_s = 0.0 if option == before else instance.restart_s
    return float(options.steps_per_s[option]) * max(0.0, instance.round_s - lost_s)
