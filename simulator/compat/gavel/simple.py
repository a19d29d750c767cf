"""Gavel's other policies without a program: isolated, AlloX, Gandiva."""

from dataclasses import dataclass
from random import Random

import numpy as np

from optimizer.decision import Memory
from optimizer.problem import FloatArray
from simulator.compat.gavel.policy import Allocation, GavelPolicy
from simulator.compat.gavel.problem import GavelProblem
from simulator.compat.gavel.rounds import PairSpeeds

#: Stands for a speed of 0 in AlloX.
_NO_SPEED = 1e-10


def equal_split(problem: GavelProblem, count: FloatArray) -> FloatArray:
    """An equal part of every type for each of these units, no unit above all of its time."""
    x = problem.total / len(count) / count[:, None]
    split: FloatArray = x / np.maximum(1.0, x.sum(axis=1))[:, None]
    return split


@dataclass(frozen=True, slots=True)
class Isolated(GavelPolicy):
    """Every job has 1/M of each type, whatever its gang."""

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[Allocation, Memory]:
        return Allocation(equal_split(problem, problem.count.astype(float))), None


@dataclass(frozen=True, slots=True)
class AlloX(GavelPolicy):
    """Whoever is matched to the last place before a free accelerator runs there until it completes."""

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[Allocation, Memory]:
        from scipy.optimize import linear_sum_assignment

        assert (problem.count == 1).all(), "AlloX knows no gangs"
        row_of = {job_id: row for row, job_id in enumerate(problem.jobs.job_id.tolist())}
        placed = {job_id: type_ for job_id, type_ in (memory or ()) if job_id in row_of}
        left = [int(total) for total in problem.total]
        for type_ in placed.values():
            left[type_] -= 1
        free = [type_ for type_, count in enumerate(left) for _ in range(count)]
        waiting = [row for job_id, row in row_of.items() if job_id not in placed]
        waiting.sort(key=lambda row: problem.jobs.submitted_at[row])
        if waiting and free:
            speed = np.maximum(problem.speed, _NO_SPEED)[waiting][:, free]
            length_s = problem.jobs.remaining_steps[waiting][:, None] / speed
            waited_s = (problem.at - problem.jobs.submitted_at[waiting])[:, None]
            costs = np.hstack([k * length_s + waited_s for k in range(1, len(waiting) + 1)])
            chosen, position = linear_sum_assignment(costs)
            last: dict[int, tuple[int, int]] = {}
            for place, row in zip(position.tolist(), chosen.tolist(), strict=True):
                last[place % len(free)] = max(last.get(place % len(free), (-1, -1)), (place, row))
            for gpu, (_, row) in last.items():
                placed[int(problem.jobs.job_id[waiting[row]])] = free[gpu]
        x = np.zeros_like(problem.speed)
        for job_id, type_ in placed.items():
            x[row_of[job_id], type_] = 1.0
        return Allocation(x), list(placed.items())


@dataclass(frozen=True, slots=True)
class Gandiva(GavelPolicy):
    """An equal split over units: single jobs, and pairs drawn by chance while there is not room for all."""

    pairs: PairSpeeds
    seed: int = 0

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[Allocation, Memory]:
        random = Random(self.seed)
        units: list[tuple[int, int]] = []
        row_of = {job_id: row for row, job_id in enumerate(problem.jobs.job_id.tolist())}
        if memory is not None:
            version, state, gauss = memory["random"]
            random.setstate((version, tuple(state), gauss))
            units = [(a, b) for a, b in memory["pairs"] if a in row_of and b in row_of]
            units = [(a, b) for a, b in units if self._is_worth_it(problem, row_of[a], row_of[b])]
        if problem.count.sum() <= problem.total.sum():
            x, remembered = equal_split(problem, problem.count.astype(float)), units
            return Allocation(x), {"pairs": remembered, "random": random.getstate()}
        paired = {job_id for unit in units for job_id in unit}
        todo = [job_id for job_id in row_of if job_id not in paired]
        singles = []
        for _ in range(len(todo)):
            if len(todo) < 2:
                break
            one, two = random.sample(todo, 2)
            if problem.count[row_of[one]] == problem.count[row_of[two]]:
                units.append((min(one, two), max(one, two)))
                todo.remove(one)
                todo.remove(two)
        singles = [row_of[job_id] for job_id in todo]
        rows = [*singles, *(row_of[a] for a, _ in units)]
        split = equal_split(problem, problem.count[rows].astype(float))
        x = np.zeros_like(problem.speed)
        x[singles] = split[: len(singles)]
        packed = tuple(
            (row_of[a], row_of[b], type_, float(share))
            for (a, b), shares in zip(units, split[len(singles) :], strict=True)
            for type_, share in enumerate(shares)
        )
        return Allocation(x, packed), {"pairs": units, "random": random.getstate()}

    def _is_worth_it(self, problem: GavelProblem, one: int, two: int) -> bool:
        """Whether both run everywhere, and together keep one speed, summed over the types (not their mean)."""
        names = [problem.pools.accelerator[row] for row in problem.pool_row.tolist()]
        kept = 0.0
        for a, b in ((one, two), (two, one)):
            for type_, accelerator in enumerate(names):
                speed = self.pairs.beside(problem.kind[a], problem.kind[b], accelerator, int(problem.count[a]))
                if speed <= 0:
                    return False
                kept += speed / problem.speed[a, type_]
        return kept >= 1.0
