"""The least that a job with a deadline could have cost, had its trace been known: the yardstick of every policy.

Exact under the rules of `deadline_job.run`, by dynamic programming over slots, slack and what is held.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.cloud.deadline_job import DeadlineJob, Held, Standing
from scheduler.cloud.slack_value import FloatArray, Mode, after_the_deadline, lost_spot, moves, step


@dataclass(slots=True)
class Omniscient:
    """Follows the plan that is best for one known trace."""

    #: Expected value after the slot with so many left, by slack and mode after it.
    _ahead: list[FloatArray]

    @classmethod
    def of(cls, job: DeadlineJob, available: Sequence[bool]) -> "Omniscient":
        """Plan for a trace from the start of the job on."""
        value = after_the_deadline(job, 1)
        ahead: list[FloatArray] = [value]
        for slots_left in range(1, job.slots + 1):
            index = job.slots - slots_left
            value = step(job, slots_left, value, np.array([available[index]]))
            if not available[index]:
                value = value[:, lost_spot(job)]
            ahead.append(value)
        return cls(ahead)

    def hold(self, job: DeadlineJob, now: Standing) -> Held:
        """See `SpotPolicy`."""
        slots_left = now.time_left // job.slot
        here = moves(job, Mode(now.held, now.pending))
        worth = {}
        for move in here:
            if move.held is Held.SPOT and not now.spot:
                continue
            paid = float(move.usd(job, np.array([float(now.work_left)]))[0])
            done = move.held is not Held.NOTHING and now.work_left <= move.work
            if done:
                worth[move.held] = paid
            elif now.slack >= move.slack:
                worth[move.held] = paid + float(self._ahead[slots_left - 1][now.slack - move.slack, move.mode, 0])
        return min(worth, key=lambda held: worth[held])
