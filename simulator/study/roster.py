"""What is true of every job of a run whatever the scheduler does: its work, its gang, its speed on every pool.

Noted while the jobs go by on their way into the simulation; memory is a few numbers per job.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf, nan

import numpy as np

from scheduler.core.ledger.fleet import split
from simulator.bounds.instance import FloatArray, Instance
from simulator.job import SimulatedJob
from simulator.machines import PoolModel
from simulator.truth import Truth
from walras.ids import JobId
from walras.request import ANY_ACCELERATOR, JobRequest


class Roster:
    """The jobs of one run. Pools count with all they could ever hold: owned machines, and the quota of rented ones."""

    def __init__(self, pools: Sequence[PoolModel], truth: Truth, alone_s: Mapping[JobId, float] | None = None) -> None:
        """`alone_s`: how long each job takes alone, where that does not follow from steps and speeds."""
        self._types = [model.pool.shape.accelerator for model in pools]
        self._capacity = np.array(
            [max(model.machines, model.pool.quota) * model.pool.shape.accelerators for model in pools], dtype=float
        )
        self._machine_size = [model.pool.shape.accelerators for model in pools]
        self._truth = truth
        self._alone_s = alone_s
        self._ways: dict[object, int] = {}
        #: Of every way to be run: steps per second on each pool, and accelerators.
        self._speeds: list[list[float]] = []
        self._gangs: list[int] = []
        #: How many such gangs its parts may be at once.
        self._forks: list[int] = []
        self._row: dict[JobId, int] = {}
        self._arrival: list[float] = []
        self._steps: list[float] = []
        self._way: list[int] = []
        self._deadline: list[float] = []
        self._names: list[str] = []

    def watched(self, jobs: Iterable[SimulatedJob]) -> Iterator[SimulatedJob]:
        """The same jobs, each noted as it passes."""
        for job in jobs:
            request = job.request
            self._row[request.job_id] = len(self._arrival)
            self._arrival.append(job.at)
            self._steps.append(job.steps)
            self._way.append(self._way_of(request))
            self._deadline.append(request.deadline_at)
            self._names.append(job.name)
            yield job

    def __len__(self) -> int:
        return len(self._row)

    def _way_of(self, request: JobRequest) -> int:
        key = (request.kind, request.demands, request.sizes, request.fork_max)
        way = self._ways.get(key)
        if way is None:
            way = self._ways[key] = len(self._gangs)
            self._gangs.append(min((*request.sizes, *(demand.count for demand in request.demands))))
            self._forks.append(request.fork_max)
            if self._alone_s is None:
                self._speeds.append([self._speed(request, pool) for pool in range(len(self._types))])
        return way

    def _speed(self, request: JobRequest, pool: int) -> float:
        """Of the fastest gang that the job accepts there; 0 where none fits."""
        here = self._types[pool]
        counts = {
            count
            for demand in request.demands
            for count in (demand.count, *request.sizes)
            if demand.accelerator in (here, ANY_ACCELERATOR) and count <= self._capacity[pool]
        }
        parts = (tuple(split(count, request.nodes, self._machine_size[pool])) for count in sorted(counts))
        return max((self._truth.fastest(request.kind, here, each) for each in parts), default=0.0)

    # -- of one job

    def name(self, job_id: JobId) -> str:
        """As its workload calls it; "" if it does not."""
        return self._names[self._row[job_id]]

    def gang(self, job_id: JobId) -> int:
        """Accelerators that it takes, the fewest where that depends on the type."""
        return self._gangs[self._way[self._row[job_id]]]

    def alone_s(self, job_id: JobId) -> float:
        """How long it takes on its fastest pool, with nobody else there and nothing lost; nan if it runs nowhere."""
        if self._alone_s is not None:
            return self._alone_s[job_id]
        row = self._row[job_id]
        best = max(self._speeds[self._way[row]])
        return self._steps[row] / best if best > 0 else nan

    def deadline_at(self, job_id: JobId) -> float:
        """inf: it has none."""
        return self._deadline[self._row[job_id]]

    def has_deadlines(self) -> bool:
        """Whether any job has one."""
        return any(deadline < inf for deadline in self._deadline)

    # -- of all

    def instance(self, job_ids: Iterable[JobId]) -> Instance:
        """These jobs as the lower bounds see them. A gang whose size depends on the type counts with its smallest.

        A job that may be forked counts as one gang of all its parts, as fast as they together: no fork of it is faster,
        and on no accelerator does it come further. Of a mixed gang nothing is more than of one in its fastest pool.
        Not where `alone_s` was given: no bound holds there.
        """
        assert self._alone_s is None, "no lower bound holds where speeds do not say how long a job takes"
        rows = np.array([self._row[job_id] for job_id in job_ids], dtype=np.int64)
        ways = np.array(self._way, dtype=np.int64)[rows]
        forks = np.array(self._forks, dtype=float)[ways]
        speeds: FloatArray = np.array(self._speeds, dtype=float)[ways] * forks[:, None]
        there = self._capacity > 0
        return Instance(
            np.array(self._arrival)[rows],
            np.array(self._steps)[rows],
            np.array(self._gangs, dtype=float)[ways] * forks,
            np.ascontiguousarray(speeds[:, there]),
            self._capacity[there],
        )
