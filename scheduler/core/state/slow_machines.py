"""Machines that are slower than others of their pool, by what jobs of one kind report on them and elsewhere.

A report counts if the whole gang is on one machine. A job's pace there is the median of its newest reports divided by
the median of what other jobs of its kind, on as many accelerators of the same pool, reported last on other machines. A
machine is slow once the newest two jobs with a pace were both slower by more than `SLOW` and by more than three times
the usual deviation of the others. One job alone proves nothing, because it may be another program under the same name;
and the next two jobs at the usual pace end the mark.

What a project's jobs report makes a machine slow for that project: the scheduler places its gangs on other machines of
the pool if these have room, and does not count reports from there for its kinds. For all it is slow only once it is so
for each project that has jobs. A restarted core, and a copy of a core, know the same machines as slow, and the paces
that count for or against it; the reports with which others are compared are collected anew.
"""

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from math import inf
from statistics import median

from scheduler.core.events import RememberedPace
from scheduler.core.state.fleet import SLOW_ENDING, Fleet
from walras.cluster import NodeId, Placement, PoolId
from walras.job_request import DEFAULT_PROJECT, JobId, JobRequest, Kind, project_of

#: Minimum fraction by which a slow machine is slower than others.
SLOW = 0.15
#: Maximum and minimum of a job's newest reports that are compared.
_OWN_MOST, _OWN_LEAST = 9, 5
#: Maximum of newest reports of a kind in a pool, and minimum of those from other machines to compare with.
_OTHERS_MOST, _OTHERS_LEAST = 64, 5
#: Minimum of other jobs from which those come.
_OTHER_JOBS = 2
#: Number of jobs whose paces make a machine slow.
_JOBS = 2
#: A pace must be this many usual deviations of the others' reports below them.
_DEVIATIONS = 3.0
#: Maximum of cells kept; the oldest are dropped.
_MOST = 20_000

#: Kind, row of the pool, accelerators.
Cell = tuple[Kind, int, int]


@dataclass(slots=True)
class SlowMachines:
    """Paces of machines, from reports of jobs."""

    #: Pace of each slow machine relative to others of its pool, by the project whose jobs found it slow.
    slow: dict[NodeId, dict[str, float]] = field(default_factory=dict)
    #: Row of the pool of slow machines by that of the declared pool (`cycle.slow_pools`).
    pools: dict[int, int] = field(default_factory=dict)
    #: Whether machines are to be sorted into these pools, or out of them, before jobs are placed again.
    is_due: bool = False
    #: Projects with jobs when that was done last.
    met: set[str] = field(default_factory=set)
    #: By machine and project: job -> its pace, and whether that is significantly slow; the newest jobs last.
    _paces: dict[tuple[NodeId, str], dict[JobId, tuple[float, bool]]] = field(default_factory=dict)
    #: Those with such a pace.
    _suspected: set[tuple[NodeId, str]] = field(default_factory=set)
    #: By active job: the machine and cell of its newest reports, and their speeds. Dropped as the job ends; what they
    #: told of its machine stays.
    own: dict[JobId, tuple[NodeId, Cell, deque[float]]] = field(default_factory=dict)
    #: By cell: machine, job and speed of the newest reports.
    _seen: dict[Cell, deque[tuple[NodeId, JobId, float]]] = field(default_factory=dict)

    def saw(self, job_id: JobId, node_id: NodeId, cell: Cell, steps_per_s: float) -> None:
        """Records a report of a job whose gang is on one machine."""
        if not 0.0 < steps_per_s < inf:
            return
        known = self.own.pop(job_id, None)
        if known is None or known[:2] != (node_id, cell):
            known = node_id, cell, deque(maxlen=_OWN_MOST)
        self.own[job_id] = known
        known[2].append(steps_per_s)
        seen = self._seen.setdefault(cell, deque(maxlen=_OTHERS_MOST))
        self._judge(job_id, (node_id, project_of(cell[0])), known[2], [each for each in seen if each[0] != node_id])
        seen.append((node_id, job_id, steps_per_s))
        if len(self._seen) > _MOST:
            del self._seen[next(iter(self._seen))]

    def took_in(self, request: JobRequest, pool: int, place: Placement, steps_per_s: float) -> bool:
        """Records a report. Returns whether a machine of the place is slow, so that it tells nothing of the kind."""
        if len(place.parts) == 1:
            cell = request.kind, pool, place.accelerators
            self.saw(request.job_id, place.parts[0].node_id, cell, steps_per_s)
        return self.any_slow(place, project_of(request.kind))

    def _judge(
        self, job_id: JobId, place: tuple[NodeId, str], own: deque[float], others: list[tuple[NodeId, JobId, float]]
    ) -> None:
        jobs = {other for _, other, _ in others} - {job_id}
        speeds = [speed for _, other, speed in others if other != job_id]
        if len(own) < _OWN_LEAST or len(speeds) < _OTHERS_LEAST or len(jobs) < _OTHER_JOBS:
            return
        usual = median(speeds)
        deviation = median(abs(speed / usual - 1.0) for speed in speeds)
        pace = median(own) / usual
        paces = self._paces.setdefault(place, {})
        paces.pop(job_id, None)
        paces[job_id] = pace, pace < 1.0 - max(SLOW, _DEVIATIONS * deviation)
        while len(paces) > _JOBS:
            del paces[next(iter(paces))]
        beyond_doubt = [is_slow for _, is_slow in paces.values()]
        self._suspect(place, any(beyond_doubt))
        if len(paces) < _JOBS:
            return
        node_id, project = place
        slow_for = self.slow.get(node_id, {})
        before = project in slow_for
        if all(beyond_doubt):
            slow_for = self.slow.setdefault(node_id, {})
            slow_for[project] = median(pace for pace, _ in paces.values())
        elif before and not any(beyond_doubt):
            self._unmark(place)
        self.is_due = self.is_due or before != (project in slow_for)

    def _unmark(self, place: tuple[NodeId, str]) -> None:
        node_id, project = place
        del self.slow[node_id][project]
        if not self.slow[node_id]:
            del self.slow[node_id]

    def forget_machine(self, node_id: NodeId) -> None:
        """Drops a machine that has left."""
        self.slow.pop(node_id, None)
        for place in [each for each in self._paces if each[0] == node_id]:
            del self._paces[place]
            self._suspect(place, False)

    def _suspect(self, place: tuple[NodeId, str], is_suspected: bool) -> None:
        if is_suspected:
            self._suspected.add(place)
        else:
            self._suspected.discard(place)

    def slow_for_all(self, projects: Collection[str]) -> list[NodeId]:
        """Returns the machines that are slow for each of these projects; none without a project."""
        return [node_id for node_id, by in self.slow.items() if projects and by.keys() >= set(projects)]

    def meet(self, project: str) -> None:
        """Notes that the project has a job: what is slow for others is not to be apart any more."""
        self.is_due |= project not in self.met and any(project not in by for by in self.slow.values())

    def pace(self, node_id: NodeId) -> float:
        """Returns the pace of a slow machine: the median over the projects that found it slow."""
        return median(self.slow[node_id].values())

    def remembered(self, fleet: Fleet) -> tuple[RememberedPace, ...]:
        """Returns what a successor needs to know the same machines as slow; paces are rounded to hundredths.

        A machine without any slow pace is left out: the two paces that make it slow are still to come.
        """
        found = list[RememberedPace]()
        marked = {(node_id, project) for node_id, by in self.slow.items() for project in by}
        for node_id, project in sorted(marked | self._suspected):
            machine, pace = fleet.machine(node_id), self.slow.get(node_id, {}).get(project)
            if machine is not None:
                is_apart = fleet.pools[machine.pool].slow_of is not None
                paces = self._paces.get((node_id, project), {}).items()
                jobs = tuple((job_id, round(its, 2), is_slow) for job_id, (its, is_slow) in paces)
                found.append((node_id, None if pace is None else round(pace, 2), is_apart, jobs, project))
        return tuple(found)

    def recall(self, told: Iterable[RememberedPace], fleet: Fleet) -> None:
        """Takes over what the core before this one knew of machines that are still here."""
        for node_id, pace, _, jobs, *project in told:
            if fleet.machine(node_id) is None:
                continue
            place = node_id, next(iter(project), DEFAULT_PROJECT)  # the release before did not note projects
            if pace is not None:
                self.slow.setdefault(node_id, {})[place[1]] = pace
            self._paces[place] = {job_id: (its, is_slow) for job_id, its, is_slow in jobs}
            self._suspect(place, any(is_slow for _, _, is_slow in jobs))

    def any_slow(self, place: Placement, project: str) -> bool:
        """Returns whether one of the machines of the place is slow for the project."""
        return bool(self.slow) and any(project in self.slow.get(part.node_id, ()) for part in place.parts)

    def rows(self, fleet: Fleet, pool: int, project: str) -> frozenset[int]:
        """Returns the rows of the machines of a pool that are slow for the project."""
        machines = (fleet.machine(node_id) for node_id, by in self.slow.items() if project in by)
        return frozenset(each.row for each in machines if each is not None and each.pool == pool)

    def row_named(self, fleet: Fleet, name: PoolId, *, or_declared: bool = False) -> int | None:
        """Returns the row of the pool of this name in problems (`PoolState.name`); None if it is gone.

        `or_declared`: if so, the row of the pool to which its machines have gone back.
        """
        row = fleet.pool_row(name)
        if row is None:
            row = next((row for row in self.pools.values() if fleet.pools[row].name == name), None)
        return fleet.pool_row(PoolId(name.removesuffix(SLOW_ENDING))) if row is None and or_declared else row

    def told(self, node_id: NodeId) -> str:
        """Returns what `walras nodes` states of the machine; empty if it is not known to be slow."""
        if node_id not in self.slow:
            return ""
        return f"{100 * (1.0 - self.pace(node_id)):.0f} % slower than others of its pool, by what jobs report"
