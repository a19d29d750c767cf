"""A problem job by job: what fits, how fast, and who is entitled to what. Plain loops, as the definitions read.

Symbols: T[c] steps/s of column c, N[p] accelerators of pool p, s[m] accelerators of job m's gang.

    equal[m]   = sum_p T[m,p] N[p] / sum_p N[p]      steps/s if m's time were split over the pools by their size
    speed[c]   = T[c], or, blind to speeds, equal[m] accelerators[c] / s[m]
    utility[c] = s[m] speed[c] / equal[m]            in accelerators of the fleet's average speed for m
"""

import numpy as np

from optimizer.checking.responses import Menu
from optimizer.problem import FloatArray, Problem

#: Slack for counts that went through float arithmetic.
_WHOLE = 1e-9


class Facts:
    """What follows from the problem alone, once it is known how much is rented."""

    def __init__(self, problem: Problem, rent: FloatArray, *, aware: bool) -> None:
        columns = problem.columns
        self.problem = problem
        self.capacity = problem.pools.capacity - problem.pools.held + rent
        self.uses: list[dict[int, float]] = [{} for _ in columns.job]
        for column, pool, count in zip(columns.use_column, columns.use_pool, columns.use_count, strict=True):
            self.uses[column][int(pool)] = self.uses[column].get(int(pool), 0.0) + float(count)
        self.columns_of: list[list[int]] = [[] for _ in problem.jobs.job_id]
        for column, job in enumerate(columns.job):
            self.columns_of[job].append(column)
        self.accelerators = np.array([sum(uses.values()) for uses in self.uses], dtype=np.float64)
        self.usable = np.array([self._fits(column) for column in range(len(self.uses))], dtype=np.bool_)
        self.alone = [self._alone(mine) for mine in self.columns_of]
        self.equal = np.array([self._equal(job) for job in range(len(self.columns_of))], dtype=np.float64)
        speed = columns.steps_per_s
        if not aware:
            speed = (self.equal / problem.jobs.gang)[columns.job] * self.accelerators
        self.speed = np.where(self.usable, speed, 0.0)
        per_step = np.divide(problem.jobs.gang, self.equal, out=np.zeros(len(self.equal)), where=self.equal > 0)
        self.utility = per_step[columns.job] * self.speed
        self.weight = self._entitlements()

    @property
    def jobs(self) -> int:
        """n."""
        return len(self.columns_of)

    @property
    def placeable(self) -> np.ndarray:
        """Jobs that have a usable column (n,)."""
        return np.array([any(self.usable[c] for c in mine) for mine in self.columns_of], dtype=np.bool_)

    def best(self, worth: FloatArray) -> FloatArray:
        """The most that each job's columns are worth, at least 0 (n,)."""
        return np.array([max((worth[c] for c in mine), default=0.0) for mine in self.columns_of], dtype=np.float64)

    def summed(self, values: FloatArray) -> FloatArray:
        """The sum over each job's columns (n,)."""
        return np.array([sum(values[c] for c in mine) for mine in self.columns_of], dtype=np.float64)

    def cost(self, prices: FloatArray) -> FloatArray:
        """What each column pays at the prices (c,)."""
        return np.array([sum(n * prices[p] for p, n in uses.items()) for uses in self.uses], dtype=np.float64)

    def menu(self, worth: FloatArray, cost: FloatArray) -> Menu:
        """The usable columns of all jobs as a table, idleness first."""
        width = 1 + max((len(mine) for mine in self.columns_of), default=0)
        worths, costs = np.zeros((self.jobs, width)), np.zeros((self.jobs, width))
        for job, mine in enumerate(self.columns_of):
            usable = [c for c in mine if self.usable[c]]
            worths[job, 1 : 1 + len(usable)] = worth[usable]
            costs[job, 1 : 1 + len(usable)] = cost[usable]
        return Menu(worths, costs)

    def _fits(self, column: int) -> bool:
        makes_progress = bool(self.problem.columns.steps_per_s[column] > 0)
        return makes_progress and all(n <= self.capacity[p] + _WHOLE for p, n in self.uses[column].items())

    def _alone(self, mine: list[int]) -> dict[int, int]:
        """The column that stands for a job in each pool: its smallest usable gang there, the fastest of equals."""
        chosen: dict[int, tuple[float, float, int]] = {}
        for column in mine:
            if self.usable[column] and len(self.uses[column]) == 1:
                [(pool, count)] = self.uses[column].items()
                entry = (count, -float(self.problem.columns.steps_per_s[column]), column)
                chosen[pool] = min(chosen.get(pool, entry), entry)
        return {pool: column for pool, (_, _, column) in chosen.items()}

    def _equal(self, job: int) -> float:
        """A job without a pool of its own (mixed gangs only) is compared with its own best speed."""
        speeds = self.problem.columns.steps_per_s
        whole = max(float(self.capacity.sum()), 1.0)
        equal = sum(float(speeds[column] * self.capacity[pool]) / whole for pool, column in self.alone[job].items())
        return equal or max((float(speeds[c]) for c in self.columns_of[job] if self.usable[c]), default=0.0)

    def _entitlements(self) -> FloatArray:
        """Weights, after projects with something to run have divided theirs among their jobs."""
        jobs, entities = self.problem.jobs, self.problem.entities
        own = np.where(self.placeable, jobs.weight, 0.0)
        if not len(entities):
            return own
        project = jobs.entity.copy()
        for parent, row in reversed(list(zip(entities.parent, range(len(entities)), strict=False))):
            project[project == row] = row if parent < 0 else parent
        present = [e for e in range(len(entities)) if own[project == e].sum() > 0]
        total = sum(float(entities.weight[e]) for e in present)
        entitled = np.zeros(len(own))
        for entity in present:
            members = project == entity
            if total > 0:
                part = float(entities.weight[entity]) / total
                entitled[members] = own.sum() * part * own[members] / own[members].sum()
        return entitled
