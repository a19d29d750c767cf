"""Whom Sia's Gavel lets run on which type, and on which accelerators.

Accelerators of a type are numbered, machine by machine.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from optimizer.problem import FloatArray
from walras.ids import JobId


class Service:
    """Time received by every job on every type, against that of all jobs: never reset, jobs that ended included."""

    def __init__(self, types: int, prior_s: float) -> None:
        self._prior_s = prior_s
        self._received_s: dict[JobId, FloatArray] = {}
        self._all_s: FloatArray = np.zeros(types)

    def admit(self, job_id: JobId) -> None:
        """A job is there from now on, as if it had run for half a round everywhere."""
        self._received_s[job_id] = np.full(len(self._all_s), self._prior_s)
        self._all_s += self._prior_s

    def forget(self, job_id: JobId) -> None:
        """The job has ended; what all have received stays."""
        del self._received_s[job_id]

    def credit(self, job_id: JobId, type_: int, time_s: float) -> None:
        """The job runs for so long."""
        self._received_s[job_id][type_] += time_s
        self._all_s[type_] += time_s

    def ranked(self, shares: Mapping[JobId, FloatArray]) -> list[tuple[JobId, int]]:
        """Jobs on types: most share for time received first, then most share, then type by type in the jobs' order."""
        priority = {
            job_id: np.where(share > 0, share / (self._received_s[job_id] / self._all_s), 0.0)
            for job_id, share in shares.items()
        }
        cells = [(job_id, type_) for type_ in range(len(self._all_s)) for job_id in shares]
        return sorted(cells, key=lambda cell: (-priority[cell[0]][cell[1]], -shares[cell[0]][cell[1]]))


def pick(ranked: Sequence[tuple[JobId, int]], count: Mapping[JobId, int], free: Sequence[int]) -> dict[JobId, int]:
    """The type of each job that runs, in order of picking; who does not fit is passed over, share or no share."""
    left, chosen = list(free), {}
    for job_id, type_ in ranked:
        if job_id not in chosen and count[job_id] <= left[type_]:
            left[type_] -= count[job_id]
            chosen[job_id] = type_
    return chosen


def number(
    picked: Sequence[JobId], count: Mapping[JobId, int], before: Mapping[JobId, tuple[int, ...]]
) -> dict[JobId, tuple[int, ...]]:
    """The accelerators of one type that each picked job gets, ascending; larger gangs first.

    Among gangs of one size those that ran there keep theirs if all of them are still free (`before`); the others take
    the lowest that are, beyond what such gangs have taken or passed over before.
    """
    used: set[int] = set()
    numbers: dict[JobId, tuple[int, ...]] = {}
    lowest = 0
    for size in sorted({count[job_id] for job_id in picked}, reverse=True):
        group = [job_id for job_id in picked if count[job_id] == size]
        for job_id in group:
            if job_id in before and used.isdisjoint(before[job_id]):
                numbers[job_id] = before[job_id]
                used.update(before[job_id])
        for job_id in group:
            if job_id in numbers:
                continue
            taken: list[int] = []
            while len(taken) < size:
                if lowest not in used:
                    taken.append(lowest)
                lowest += 1
            numbers[job_id] = tuple(taken)
            used.update(taken)
    return numbers
