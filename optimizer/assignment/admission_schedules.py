"""Schedules of jobs that ask to be admitted: what a job may hold in each round, and its best schedule at prices.

Jobs arrive over time; pools have rounds that they may book, one pool per accelerator type. A job books whole gangs
round by round; a gang may be mixed, and is then paced by its slowest worker. A *schedule* is what a job holds in every
round, with the round in which it ends.

Shapes: R rounds, p pools, o options. Rounds are counted from 0; round t lasts from t to t + 1 times `round_s`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, inf

import numpy as np

from optimizer.problem import BoolArray, FloatArray, IntArray

#: Relative slack by which steps may fall short of the work that a job has to do: sums over rounds are rounded.
_DONE = 1 - 1e-12


@dataclass(frozen=True, slots=True)
class Applicant:
    """A job that asks once, on arrival, to be admitted."""

    job_id: int
    arrived_at: float
    #: The workers of the gang, one accelerator each; the gang runs with all of them or not at all.
    gang: int
    work_steps: float
    #: Steps per second of one worker on each pool (p,); 0 where it cannot run.
    steps_per_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class AdmissionInstance:
    """Pools that can be booked round by round, and the jobs that ask for them."""

    rounds: int
    round_s: float
    #: Seconds of a round that a job loses when it does not hold the accelerators that it held in the round before.
    restart_s: float
    #: Accelerators of each pool, in every round (p,).
    capacity: tuple[int, ...]
    applicants: tuple[Applicant, ...]
    #: If False, all workers of a gang sit in one pool.
    mixed: bool = True

    def in_order(self) -> list[Applicant]:
        """Returns the applicants in the order in which they are judged: by arrival, then by id."""
        return sorted(self.applicants, key=lambda job: (job.arrived_at, job.job_id))


@dataclass(frozen=True, slots=True, eq=False)
class RoundOptions:
    """The gangs that a job can hold in one round (besides none at all)."""

    #: Workers in each pool (o, p).
    use: IntArray
    #: Steps per second of the whole gang (o,).
    steps_per_s: FloatArray

    def __len__(self) -> int:
        return len(self.steps_per_s)


@dataclass(frozen=True, slots=True, eq=False)
class BookedSchedule:
    """The booking of one job: what it holds in every round."""

    #: Workers by round and pool (R, p).
    use: IntArray
    #: The number of rounds until the job ends: it uses round `finish` - 1 last.
    finish: int
    utility: float


def options_of(instance: AdmissionInstance, job: Applicant) -> RoundOptions:
    """Returns every gang that the empty pools could hold, pool by pool ascending, the last pool's part
    largest first.
    """
    use = [
        parts for parts in _splits(job, instance.capacity) if instance.mixed or sum(count > 0 for count in parts) == 1
    ]
    pace = [min(speed for speed, count in zip(job.steps_per_s, parts, strict=True) if count) for parts in use]
    return RoundOptions(
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


def first_round(instance: AdmissionInstance, job: Applicant) -> int:
    """Returns the index of the first round that begins at or after the arrival of the job."""
    return max(0, ceil(job.arrived_at / instance.round_s - 1e-9))


def fastest_s(job: Applicant) -> float:
    """Returns the seconds that the job takes alone on its fastest pool."""
    return job.work_steps / (job.gang * max(job.steps_per_s))


def schedule_utility(instance: AdmissionInstance, job: Applicant, finish: int) -> float:
    """Returns the worth of ending with round `finish` - 1: time alone over time in the system, in 0..1.

    The utility is a ratio of times, because steps of different models are not comparable.
    """
    return fastest_s(job) / (finish * instance.round_s - job.arrived_at)


def work_is_done(job: Applicant, steps: float) -> bool:
    """Returns whether this many steps are all the work of the job, up to rounding."""
    return steps >= job.work_steps * _DONE


def round_steps(instance: AdmissionInstance, options: RoundOptions, option: int, before: int) -> float:
    """Returns the steps that the job makes in one round with an option, given its option in the round before (-1:
    none).
    """
    lost_s = 0.0 if option == before else instance.restart_s
    return float(options.steps_per_s[option]) * max(0.0, instance.round_s - lost_s)


#: Index of an option that stands for none: the job holds nothing in that round.
_IDLE = -1


@dataclass(frozen=True, slots=True)
class _Label:
    steps: float
    cost: float
    option: int
    before: "_Label | None"


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleChoice:
    """The best schedule of a job, and its utility minus its price; None and -inf where the job has no schedule."""

    payoff: float
    schedule: BookedSchedule | None


def best_schedule(
    instance: AdmissionInstance, job: Applicant, prices: FloatArray, free: IntArray | None = None
) -> ScheduleChoice:
    """Returns the schedule with the largest utility - price, over all schedules of the job.

    Args:
        instance: pools and rounds.
        job: one of its applicants.
        prices: of one accelerator for one round, >= 0 (R, p).
        free: accelerators not booked yet (R, p); None: schedules may overbook, as a bound on all of them needs.

    Returns:
        the schedule with the largest difference, even a negative one; among equals, the one that ends first.
    """
    options = options_of(instance, job)
    cost = prices @ options.use.T.astype(np.float64)
    fits = _options_that_fit(options, free, instance.rounds)
    first, best, chosen, finish = first_round(instance, job), -inf, None, 0
    labels = [_Label(0.0, 0.0, _IDLE, None)]
    for now in range(first, instance.rounds):
        worth = schedule_utility(instance, job, now + 1)
        grown = []
        for label in labels:
            # A schedule that ends later has less utility than this and costs no less, so it cannot be better.
            if worth - label.cost <= best:
                continue
            grown.append(_Label(label.steps, label.cost, _IDLE, label))
            for option in np.flatnonzero(fits[now]).tolist():
                steps = label.steps + round_steps(instance, options, option, label.option)
                paid = label.cost + float(cost[now, option])
                reached = _Label(steps, paid, option, label)
                if not work_is_done(job, steps):
                    grown.append(reached)
                elif worth - paid > best:
                    best, chosen, finish = worth - paid, reached, now + 1
        labels = _undominated(grown)
    if chosen is None:
        return ScheduleChoice(-inf, None)
    return ScheduleChoice(
        best, BookedSchedule(_use(instance, options, chosen, finish), finish, schedule_utility(instance, job, finish))
    )


def _options_that_fit(options: RoundOptions, free: IntArray | None, rounds: int) -> BoolArray:
    """Returns whether each option fits into what is free in each round (R, o)."""
    if free is None:
        return np.ones((rounds, len(options)), dtype=np.bool_)
    fits: BoolArray = np.all(options.use[None, :, :] <= free[:, None, :], axis=2)
    return fits


def _undominated(labels: list[_Label]) -> list[_Label]:
    """Returns the labels that no other label with the same last option beats in both work and cost; of equals, the
    first.
    """
    kept = []
    last, least = None, inf
    for label in sorted(labels, key=lambda label: (label.option, -label.steps, label.cost)):
        if label.option != last:
            last, least = label.option, inf
        if label.cost < least:
            kept.append(label)
            least = label.cost
    return kept


def _use(instance: AdmissionInstance, options: RoundOptions, label: _Label, finish: int) -> IntArray:
    use = np.zeros((instance.rounds, len(instance.capacity)), dtype=np.int64)
    at: _Label | None = label
    now = finish - 1
    while at is not None and at.before is not None:
        if at.option != _IDLE:
            use[now] = options.use[at.option]
        at, now = at.before, now - 1
    return use


def every_schedule(instance: AdmissionInstance, job: Applicant) -> Iterator[BookedSchedule]:
    """Yields all schedules that stop when the work is done: their number is exponential in the rounds.

    A schedule that went on would cost more at the same utility, so an optimum over these is an optimum over all.
    """
    options = options_of(instance, job)
    use = np.zeros((instance.rounds, len(instance.capacity)), dtype=np.int64)

    def go_on(now: int, steps: float, before: int) -> Iterator[BookedSchedule]:
        if now == instance.rounds:
            return
        yield from go_on(now + 1, steps, _IDLE)
        for option in range(len(options)):
            reached = steps + round_steps(instance, options, option, before)
            use[now] = options.use[option]
            if work_is_done(job, reached):
                yield BookedSchedule(use.copy(), now + 1, schedule_utility(instance, job, now + 1))
            else:
                yield from go_on(now + 1, reached, option)
            use[now] = 0

    return go_on(first_round(instance, job), 0.0, _IDLE)


def slot_values_of(instance: AdmissionInstance, job: Applicant) -> FloatArray:
    """Returns the most that one accelerator of each slot can be worth to the job: utility per accelerator held there
    (R, p).

    A slot is a pool in a round. The best schedule through a slot is the fastest one that holds an option there, so no
    prices are needed: the most work by the end of each round decides.
    """
    options = options_of(instance, job)
    worth = np.zeros((instance.rounds, len(instance.capacity)))
    start = {_IDLE: 0.0}
    for now in range(first_round(instance, job), instance.rounds):
        for option in range(len(options)):
            reached = {option: max(steps + round_steps(instance, options, option, b) for b, steps in start.items())}
            finish = _earliest(instance, job, options, reached, now + 1)
            if finish is not None:
                used = options.use[option] > 0
                share = schedule_utility(instance, job, finish) / options.use[option][used]
                worth[now, used] = np.maximum(worth[now, used], share)
        start = _most(instance, options, start)
    return worth


def _earliest(
    instance: AdmissionInstance, job: Applicant, options: RoundOptions, reached: dict[int, float], rounds: int
) -> int | None:
    """Returns after how many rounds the work is done at the earliest, given the steps done by the end of `rounds` for
    each last option; None where the rounds do not suffice.
    """
    while not work_is_done(job, max(reached.values())):
        if rounds == instance.rounds:
            return None
        reached, rounds = _most(instance, options, reached), rounds + 1
    return rounds


def _most(instance: AdmissionInstance, options: RoundOptions, reached: dict[int, float]) -> dict[int, float]:
    """Returns, for each option of the next round, the most steps that the job can have done by its end."""
    later = {_IDLE: max(reached.values())}
    for option in range(len(options)):
        later[option] = max(steps + round_steps(instance, options, option, b) for b, steps in reached.items())
    return later
