"""First come, first served, as Gavel has it: three policies, one of them with its shipped defect."""

from dataclasses import dataclass
from random import Random

import numpy as np

from optimizer.decision import Memory
from optimizer.problem import FloatArray
from simulator.compat.gavel.policy import Allocation, GavelPolicy
from simulator.compat.gavel.problem import GavelProblem
from simulator.compat.gavel.rounds import PairSpeeds

#: Two jobs share accelerators if together they keep more than this of their own speeds.
_WORTH_PACKING = 1.5


@dataclass(slots=True)
class _Free:
    """Accelerators left by type, and the types that are still offered."""

    count: list[int]
    offered: list[int]

    def with_room(self, count: int) -> list[int]:
        """Offered types with room for a gang."""
        return [t for t in self.offered if self.count[t] >= count]

    def take(self, type_: int, count: int, listed: int) -> None:
        """Use a type; if that leaves exactly nothing, the type `listed` is offered no more."""
        self.count[type_] -= count
        if self.count[type_] == 0:
            self.offered.remove(listed)


@dataclass(frozen=True, slots=True)
class Fifo(GavelPolicy):
    """A job keeps the type it was given until it completes, and hands it to the head of the queue.

    As shipped (`fixed` False) a type is drawn and then not used: the job goes to the last type on offer, with room or
    without.
    """

    seed: int = 0
    fixed: bool = False

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[Allocation, Memory]:
        random = Random(self.seed)
        placed: dict[int, int] = {}
        if memory is not None:
            placed = dict(memory["placed"])
            version, state, gauss = memory["random"]
            random.setstate((version, tuple(state), gauss))
        row_of = {job_id: row for row, job_id in enumerate(problem.jobs.job_id.tolist())}
        queue = [job_id for job_id in row_of if job_id not in placed]
        free = [int(total) for total in problem.total]
        self._hand_over(problem, row_of, placed, queue, free)
        self._serve(problem, row_of, placed, queue, _Free(free, [t for t, n in enumerate(free) if n > 0]), random)
        x = np.zeros_like(problem.speed)
        for job_id, type_ in placed.items():
            x[row_of[job_id], type_] = 1.0
        return Allocation(x), {"placed": list(placed.items()), "random": random.getstate()}

    def _hand_over(
        self, problem: GavelProblem, row_of: dict[int, int], placed: dict[int, int], queue: list[int], free: list[int]
    ) -> None:
        """In order of id; who comes later has not been counted yet, so a type may be promised more than once."""
        for job_id, type_ in sorted(placed.items()):
            if job_id in row_of:
                free[type_] -= int(problem.count[row_of[job_id]])
                continue
            del placed[job_id]
            if queue:
                head = row_of[queue[0]]
                if problem.count[head] <= free[type_] and problem.speed[head, type_] > 0:
                    free[type_] -= int(problem.count[head])
                    placed[queue.pop(0)] = type_

    def _serve(
        self,
        problem: GavelProblem,
        row_of: dict[int, int],
        placed: dict[int, int],
        queue: list[int],
        free: _Free,
        random: Random,
    ) -> None:
        for job_id in queue:
            row = row_of[job_id]
            candidates = free.with_room(int(problem.count[row]))
            if not candidates:
                return
            drawn = candidates[random.randrange(len(candidates))]
            type_ = drawn if self.fixed else free.offered[-1]
            if problem.speed[row, type_] > 0:
                placed[job_id] = type_
                free.take(type_, int(problem.count[row]), listed=drawn)


def _fastest_first(problem: GavelProblem) -> tuple[FloatArray, list[int]]:
    """In order of arrival, each job its fastest type with room, from scratch. Returns the shares and who is left."""
    count = [int(total) for total in problem.total]
    free = _Free(count, [t for t, n in enumerate(count) if n > 0])
    x = np.zeros_like(problem.speed)
    for row in range(len(problem.jobs)):
        candidates = free.with_room(int(problem.count[row]))
        if not candidates:
            return x, list(range(row, len(problem.jobs)))
        best = max(candidates, key=problem.speed[row].__getitem__)
        if problem.speed[row, best] > 0:
            x[row, best] = 1.0
            free.take(best, int(problem.count[row]), listed=best)
    return x, []


@dataclass(frozen=True, slots=True)
class FifoPerf(GavelPolicy):
    """Each job the fastest type with room, decided anew at every solve: a running job may be moved."""

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[Allocation, Memory]:
        x, _ = _fastest_first(problem)
        return Allocation(x), None


@dataclass(frozen=True, slots=True)
class FifoPacked(GavelPolicy):
    """`FifoPerf`, and whoever finds no room joins the placed job with which it loses least."""

    pairs: PairSpeeds

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[Allocation, Memory]:
        x, queue = _fastest_first(problem)
        names = [problem.pools.accelerator[row] for row in problem.pool_row.tolist()]
        on = {row: int(type_) for row, type_ in zip(*np.nonzero(x), strict=True)}
        packed: list[tuple[int, int, int, float]] = []
        for row in queue:
            together = {
                other: self._together(problem, row, other, type_, names[type_])
                for other, type_ in on.items()
                if problem.count[other] == problem.count[row]
            }
            best = max(together, key=together.__getitem__, default=None)
            if best is None or together[best] <= _WORTH_PACKING:
                break
            type_ = on.pop(best)
            x[best, type_] = 0.0
            packed.append((min(row, best), max(row, best), type_, 1.0))
        return Allocation(x, tuple(packed)), None

    def _together(self, problem: GavelProblem, one: int, two: int, type_: int, accelerator: str) -> float:
        """Sum of what both keep of their own speed there."""
        kept = (
            self.pairs.beside(problem.kind[a], problem.kind[b], accelerator, int(problem.count[a]))
            / problem.speed[a, type_]
            for a, b in ((one, two), (two, one))
            if problem.speed[a, type_] > 0
        )
        return float(sum(kept))
