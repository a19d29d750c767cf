"""Schedules of jobs that ask to be admitted: what each may hold round by round, and the best one at prices.

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
class AdmissionInstance:
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
class RoundOptions:
    """What a job can hold in one round, besides nothing."""

    #: Workers in each pool (o, p).
    use: IntArray
    #: Steps per second of the whole gang (o,).
    steps_per_s: FloatArray

    def __len__(self) -> int:
        return len(self.steps_per_s)


@dataclass(frozen=True, slots=True, eq=False)
class BookedSchedule:
    """What one job holds over time."""

    #: Workers by round and pool (R, p).
    use: IntArray
    #: Rounds until its end: the last used round is `finish` - 1.
    finish: int
    utility: float


def options_of(instance: AdmissionInstance, job: Applicant) -> RoundOptions:
    """Every gang that the empty pools could hold, pool by pool ascending, the last pool's part largest first."""
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
    """The first round that begins when the job is there."""
    return max(0, ceil(job.arrived_at / instance.round_s - 1e-9))


def fastest_s(job: Applicant) -> float:
    """Seconds that the job takes alone on its best pool."""
    return job.work_steps / (job.gang * max(job.steps_per_s))


def schedule_utility(instance: AdmissionInstance, job: Applicant, finish: int) -> float:
    """Worth of ending with round `finish` - 1: time alone over time in the system, in 0..1.

    Normalised, because steps of different models are not comparable.
    """
    return fastest_s(job) / (finish * instance.round_s - job.arrived_at)


def work_is_done(job: Applicant, steps: float) -> bool:
    """Whether that much work ends the job."""
    return steps >= job.work_steps * _DONE


def round_steps(instance: AdmissionInstance, options: RoundOptions, option: int, before: int) -> float:
    """Work of one round in an option when the round before was spent in `before` (-1: in none)."""
    lost_s = 0.0 if option == before else instance.restart_s
    return float(options.steps_per_s[option]) * max(0.0, instance.round_s - lost_s)


#: No option: the job holds nothing in that round.
_IDLE = -1


@dataclass(frozen=True, slots=True)
class _Label:
    steps: float
    cost: float
    option: int
    before: "_Label | None"


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleChoice:
    """The best schedule of a job, and what it is worth beyond its price; -inf and None where the job has none."""

    payoff: float
    schedule: BookedSchedule | None


def best_schedule(
    instance: AdmissionInstance, job: Applicant, prices: FloatArray, free: IntArray | None = None
) -> ScheduleChoice:
    """The schedule with the largest utility - price, over all schedules of the job.

    Args:
        instance: pools and rounds.
        job: one of its applicants.
        prices: of one accelerator for one round, >= 0 (R, p).
        free: accelerators not booked yet (R, p); None: schedules may overbook, as a bound on all of them needs.

    Returns:
        the best one, however bad; of equals the one that ends first.
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
            # Whatever ends later is worth less than this, and costs no less: it cannot win any more.
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
    """Whether an option fits in a round (R, o)."""
    if free is None:
        return np.ones((rounds, len(options)), dtype=np.bool_)
    fits: BoolArray = np.all(options.use[None, :, :] <= free[:, None, :], axis=2)
    return fits


def _undominated(labels: list[_Label]) -> list[_Label]:
    """Labels that no other with the same last option beats in work and cost; the first of equals."""
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
    """All schedules that stop when the work is done: exponentially many in the rounds.

    A schedule that went on would cost more and be worth the same, so an optimum loses nothing by these.
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
    """The most that one accelerator of each slot can be worth to the job: utility per accelerator held there (R, p).

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
    """Rounds after which the work is done at the earliest, from the work done by the end of `rounds`."""
    while not work_is_done(job, max(reached.values())):
        if rounds == instance.rounds:
            return None
        reached, rounds = _most(instance, options, reached), rounds + 1
    return rounds


def _most(instance: AdmissionInstance, options: RoundOptions, reached: dict[int, float]) -> dict[int, float]:
    """The most work one round later, by the option held last."""
    later = {_IDLE: max(reached.values())}
    for option in range(len(options)):
        later[option] = max(steps + round_steps(instance, options, option, b) for b, steps in reached.items())
    return later
