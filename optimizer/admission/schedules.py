"""Schedules of one job: the best one at given prices, exactly, and all of them where they are few.

The best schedule is found by labels: a label says what has been done and paid by the end of a round, and which option
was held last. Of two labels with the same last option, one that has done no more and paid no less can never lead to a
better schedule, and goes. What is left is exact for mixed gangs and restarts alike; with one type per round there are
as many last options as types.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import numpy as np

from optimizer.admission.instance import (
    Applicant,
    Instance,
    Options,
    Schedule,
    first_round,
    gain_steps,
    is_done,
    options_of,
    utility,
)
from optimizer.problem import BoolArray, FloatArray, IntArray

#: No option: the job holds nothing in that round.
_IDLE = -1


@dataclass(frozen=True, slots=True)
class _Label:
    steps: float
    cost: float
    option: int
    before: "_Label | None"


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The best schedule of a job, and what it is worth beyond its price; -inf and None where the job has none."""

    payoff: float
    schedule: Schedule | None


def best_schedule(instance: Instance, job: Applicant, prices: FloatArray, free: IntArray | None = None) -> Choice:
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
    room = _room(options, free, instance.rounds)
    first, best, chosen, finish = first_round(instance, job), -inf, None, 0
    labels = [_Label(0.0, 0.0, _IDLE, None)]
    for now in range(first, instance.rounds):
        worth = utility(instance, job, now + 1)
        grown = []
        for label in labels:
            # Whatever ends later is worth less than this, and costs no less: it cannot win any more.
            if worth - label.cost <= best:
                continue
            grown.append(_Label(label.steps, label.cost, _IDLE, label))
            for option in np.flatnonzero(room[now]).tolist():
                steps = label.steps + gain_steps(instance, options, option, label.option)
                paid = label.cost + float(cost[now, option])
                reached = _Label(steps, paid, option, label)
                if not is_done(job, steps):
                    grown.append(reached)
                elif worth - paid > best:
                    best, chosen, finish = worth - paid, reached, now + 1
        labels = _undominated(grown)
    if chosen is None:
        return Choice(-inf, None)
    return Choice(best, Schedule(_use(instance, options, chosen, finish), finish, utility(instance, job, finish)))


def _room(options: Options, free: IntArray | None, rounds: int) -> BoolArray:
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


def _use(instance: Instance, options: Options, label: _Label, finish: int) -> IntArray:
    use = np.zeros((instance.rounds, len(instance.capacity)), dtype=np.int64)
    at: _Label | None = label
    now = finish - 1
    while at is not None and at.before is not None:
        if at.option != _IDLE:
            use[now] = options.use[at.option]
        at, now = at.before, now - 1
    return use


def every_schedule(instance: Instance, job: Applicant) -> Iterator[Schedule]:
    """All schedules that stop when the work is done: exponentially many in the rounds.

    A schedule that went on would cost more and be worth the same, so an optimum loses nothing by these.
    """
    options = options_of(instance, job)
    use = np.zeros((instance.rounds, len(instance.capacity)), dtype=np.int64)

    def go_on(now: int, steps: float, before: int) -> Iterator[Schedule]:
        if now == instance.rounds:
            return
        yield from go_on(now + 1, steps, _IDLE)
        for option in range(len(options)):
            reached = steps + gain_steps(instance, options, option, before)
            use[now] = options.use[option]
            if is_done(job, reached):
                yield Schedule(use.copy(), now + 1, utility(instance, job, now + 1))
            else:
                yield from go_on(now + 1, reached, option)
            use[now] = 0

    return go_on(first_round(instance, job), 0.0, _IDLE)


def worth_of_slots(instance: Instance, job: Applicant) -> FloatArray:
    """The most that one accelerator of each slot can be worth to the job: utility per accelerator held there (R, p).

    A slot is a pool in a round. The best schedule through a slot is the fastest one that holds an option there, so no
    prices are needed: the most work by the end of each round decides.
    """
    options = options_of(instance, job)
    worth = np.zeros((instance.rounds, len(instance.capacity)))
    start = {_IDLE: 0.0}
    for now in range(first_round(instance, job), instance.rounds):
        for option in range(len(options)):
            reached = {option: max(steps + gain_steps(instance, options, option, b) for b, steps in start.items())}
            finish = _earliest(instance, job, options, reached, now + 1)
            if finish is not None:
                used = options.use[option] > 0
                share = utility(instance, job, finish) / options.use[option][used]
                worth[now, used] = np.maximum(worth[now, used], share)
        start = _most(instance, options, start)
    return worth


def _earliest(
    instance: Instance, job: Applicant, options: Options, reached: dict[int, float], rounds: int
) -> int | None:
    """Rounds after which the work is done at the earliest, from the work done by the end of `rounds`."""
    while not is_done(job, max(reached.values())):
        if rounds == instance.rounds:
            return None
        reached, rounds = _most(instance, options, reached), rounds + 1
    return rounds


def _most(instance: Instance, options: Options, reached: dict[int, float]) -> dict[int, float]:
    """The most work one round later, by the option held last."""
    later = {_IDLE: max(reached.values())}
    for option in range(len(options)):
        later[option] = max(steps + gain_steps(instance, options, option, b) for b, steps in reached.items())
    return later
