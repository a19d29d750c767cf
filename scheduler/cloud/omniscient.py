"""The least that a job with a deadline could have cost, had its traces been known: the yardstick of every policy.

Exact under the rules of `deadline_job.run`, by dynamic programming over slots, slack, what is held, and in which zone.
From whatever is held a job may go on as if nothing were, in any zone: a change of zone is a start like any other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.cloud.deadline_job import DeadlineJob, Going, Held, Outcome, Standing
from scheduler.cloud.slack_value import FloatArray, Mode, after_the_deadline, lost_spot, moves, step


@dataclass(slots=True)
class Omniscient:
    """Follows the plan that is best for one known trace."""

    _ahead: list[FloatArray]

    @classmethod
    def of(cls, job: DeadlineJob, available: Sequence[bool]) -> "Omniscient":
        """Plan for a trace from the start of the job on."""
        return cls(_values(job, [available]))

    def hold(self, job: DeadlineJob, now: Standing) -> Held:
        """See `SpotPolicy`."""
        return _cheapest(job, self._ahead[now.time_left // job.slot - 1], now, 0, [now.spot])[0]


def run_knowing(job: DeadlineJob, zones: Sequence[Sequence[bool]]) -> Outcome:
    """The best run over zones whose traces are known."""
    values, going, at = _values(job, zones), Going(job, job.work), 0
    for index in range(job.slots):
        if going.left == 0:
            break
        there = [zone[index] for zone in zones]
        if going.held is Held.SPOT and not there[at]:
            going.lose()
        held, zone = _cheapest(job, values[job.slots - index - 1], going.standing(index, any(there)), at, there)
        if held is Held.SPOT and going.held is Held.SPOT and zone != at:
            going.lose()
        at = zone if held is Held.SPOT else at
        going.spend(held)
    return going.outcome()


def _values(job: DeadlineJob, zones: Sequence[Sequence[bool]]) -> list[FloatArray]:
    """Costs to go with so many slots left, by slack, mode, and zone of the spot machine where one is held."""
    value, lost = after_the_deadline(job, len(zones)), lost_spot(job)
    values = [value]
    for slots_left in range(1, job.slots + 1):
        there = np.array([zone[job.slots - slots_left] for zone in zones])
        value = step(job, slots_left, value, there)
        value = np.where(there, value, value[:, lost])
        value = np.minimum(value, value[:, 0].min(axis=1)[:, None, None])
        values.append(value)
    return values


def _cheapest(job: DeadlineJob, ahead: FloatArray, now: Standing, at: int, there: Sequence[bool]) -> tuple[Held, int]:
    """What to hold, and in which zone: from what is held in zone `at`, with the costs to go after the slot."""
    worth: dict[tuple[Held, int], float] = {}
    for zone, has in enumerate(there):
        elsewhere = now.held is Held.SPOT and zone != at
        mode = Mode(Held.NOTHING, 0) if elsewhere else Mode(now.held, now.pending)
        for move in moves(job, mode):
            if move.held is Held.SPOT and not has:
                continue
            paid = float(move.usd(job, np.array([float(now.work_left)]))[0])
            done = move.held is not Held.NOTHING and now.work_left <= move.work
            if done:
                worth[move.held, zone] = paid
            elif now.slack >= move.slack:
                worth[move.held, zone] = paid + float(ahead[now.slack - move.slack, move.mode, zone])
    return min(worth, key=lambda choice: worth[choice])
