"""Computes the report of a period from rows of the tables: a pure function, run in a process of its own.

The bound needs the capacity of the past: owned machines count for the whole period, because the row of one that
returned does not show its earlier stay; rented ones count while they were paid for; and capacity is never less than
what jobs held. An owned machine that was forgotten meanwhile counts while jobs held it.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from optimizer.bounds.hindsight import PastCapacity, PastJob, hindsight_bound
from optimizer.bounds.instance import FloatArray
from scheduler.live.store.event_journal import parse_request
from scheduler.live.store.usage_sums import (
    INTERRUPTED,
    PastAttemptRow,
    PastJobRow,
    PastMachineRow,
    PastRentRow,
    PastRows,
    PastSpeedRow,
    PastUseRow,
)
from walras.contract import SECONDS_PER_HOUR
from walras.job_request import ANY_ACCELERATOR, JobRequest, Kind, kind_within
from walras.resources.money import ClusterReport, RegretView, ReportRow, TypeUse
from walras.spec.accelerator_names import covers
from walras.states import JobState

#: The most projects with a bound of their own: those with most jobs.
_BOUNDED_PROJECTS = 50
_Speeds = Mapping[str, Mapping[str, Mapping[int, float]]]


@dataclass(frozen=True, slots=True)
class ReportQuestion:
    """Rows of the period to report on. Instants are seconds since the cluster's epoch, which is at `epoch_unix_s`."""

    since_at: float
    until_at: float
    epoch_unix_s: float
    rows: PastRows
    #: Use and rentals that are not in the ledger yet.
    open_uses: tuple[PastUseRow, ...]
    open_rents: tuple[PastRentRow, ...]
    #: By pool: accelerator type, and accelerators per machine.
    shapes: Mapping[str, tuple[str, int]]
    partial: bool


@dataclass(slots=True)
class _Sums:
    """Figures of one project, or of all."""

    jobs: list[PastJobRow] = field(default_factory=list)
    bounded: list[PastJob] = field(default_factory=list)
    preemptions: int = 0
    losses: int = 0
    lost_s: float = 0.0
    accelerator_s: float = 0.0
    usd: float = 0.0
    on_demand_usd: float = 0.0


def report_past(question: ReportQuestion) -> bytes:
    """Returns a `ClusterReport` as JSON."""
    jobs = [PastJobRow(*row) for row in _rows(question.rows.jobs)]
    attempts: dict[int, list[PastAttemptRow]] = defaultdict(list)
    for row in _rows(question.rows.attempts):
        attempts[row[0]].append(PastAttemptRow(*row))
    speeds: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for speed in (PastSpeedRow(*row) for row in _rows(question.rows.speeds)):
        speeds[speed.kind][speed.accelerator][speed.accelerators] = speed.steps_per_s
    fleet = _Fleet(question, [each for those in attempts.values() for each in those])
    projects: dict[str, _Sums] = defaultdict(_Sums)
    total, left_out = _Sums(), dict[str, int]()
    sharing = _co_located(each for those in attempts.values() for each in those)
    for job in jobs:
        those = attempts.get(job.job_id, [])
        past: PastJob | str = "submitted before"
        if job.submitted_at >= question.since_at:
            past = _past_job(job, those, speeds, sharing, fleet.capacity.types)
        for sums in (projects[job.project], total):
            sums.jobs.append(job)
            if isinstance(past, PastJob):
                sums.bounded.append(past)
            _count_interrupted(sums, those)
        if isinstance(past, str):
            left_out[past] = left_out.get(past, 0) + 1
    for use in (*(PastUseRow(*row) for row in _rows(question.rows.uses)), *question.open_uses):
        for sums in (projects[use.project], total):
            sums.accelerator_s += use.accelerator_s
            sums.usd += use.usd
            sums.on_demand_usd += use.on_demand_usd
    largest = sorted(projects, key=lambda name: (-len(projects[name].bounded), name))[:_BOUNDED_PROJECTS]
    made = _RowMaker(question.since_at, attempts, fleet.capacity)
    report = ClusterReport(
        since=question.since_at + question.epoch_unix_s,
        until=question.until_at + question.epoch_unix_s,
        total=made.row("", total, is_bounded=True),
        projects=[made.row(name, sums, is_bounded=name in largest) for name, sums in sorted(projects.items())],
        types=[] if question.partial else fleet.types(),
        left_out=dict(sorted(left_out.items())),
        partial=question.partial,
    )
    return report.model_dump_json().encode()


def _rows(pieces: Iterable[str]) -> Iterable[list]:  # type: ignore[type-arg]
    return (row for piece in pieces for row in json.loads(piece))


# ------------------------------------------------------------------------------------------ jobs


def _co_located(attempts: Iterable[PastAttemptRow]) -> set[int]:
    """Returns the jobs whose attempts held the same accelerators as another job's at the same time."""
    by_place: dict[str, list[PastAttemptRow]] = defaultdict(list)
    for attempt in attempts:
        by_place[attempt.placement].append(attempt)
    found: set[int] = set()
    for those in by_place.values():
        those.sort(key=lambda each: each.leased_at)
        last, last_ends = those[0], -inf
        for each in those:
            if each.leased_at < last_ends and each.job_id != last.job_id:
                found |= {each.job_id, last.job_id}
            ends = inf if each.ended_at is None else each.ended_at
            if ends > last_ends:
                last, last_ends = each, ends
    return found


def _past_job(
    job: PastJobRow,
    attempts: Sequence[PastAttemptRow],
    speeds: _Speeds,
    sharing: set[int],
    types: Sequence[str],
) -> PastJob | str:
    """Returns the job as the bound takes it, or the reason why it is left out."""
    if job.state != JobState.SUCCEEDED:
        return "not ended" if job.ended_at is None else "ended without success"
    if job.request is None or not attempts:
        return "not known any more"
    request = parse_request(job.request)
    if request.sizes:
        return "elastic"
    if request.spreads:
        return "mixed or forked"
    if job.job_id in sharing:
        return "co-located"
    counts = _counts(request, types)
    held_s: dict[str, float] = defaultdict(float)
    for each in attempts:
        if each.ended_at is not None:
            held_s[each.accelerator] += each.ended_at - each.leased_at
            counts.setdefault(each.accelerator, each.accelerators)
    assert job.ended_at is not None
    last, kind = attempts[-1], kind_within(job.project, Kind(job.kind))
    measured: dict[str, float | None] = {
        name: speeds.get(kind, {}).get(name, {}).get(size) for name, size in counts.items()
    }
    if job.steps_per_s and job.steps_per_s > (measured[last.accelerator] or 0.0):
        measured[last.accelerator] = job.steps_per_s
    steps = job.steps
    if steps <= 0 or not any(measured.values()):
        # If steps or speeds are unknown, its work is the running time of its last attempt, on that attempt's type.
        began = last.leased_at if last.started_at is None else last.started_at
        steps = max((last.ended_at or began) - began, 1e-3)
        measured = dict.fromkeys(counts) | {last.accelerator: 1.0}
    gang = min(*counts.values(), *(each.accelerators for each in attempts))
    return PastJob(job.project, job.submitted_at, job.ended_at, gang, steps, measured, dict(held_s))


def _counts(request: JobRequest, types: Sequence[str]) -> dict[str, int]:
    """Returns the gang's size by accelerator type that the job accepts."""
    named = {each.accelerator: each.count for each in request.demands if each.accelerator != ANY_ACCELERATOR}
    here = {name: demand.count for name in types if (demand := request.demand_on(name)) is not None}
    # Types that the fleet does not have stay: a job of the past may have run on one.
    return {name: count for name, count in named.items() if not any(covers(name, each) for each in here)} | here


def _count_interrupted(sums: _Sums, attempts: Sequence[PastAttemptRow]) -> None:
    saved = 0.0
    for each in attempts:
        began = saved
        saved = max(saved, each.checkpoint_step or 0.0)
        if each.state not in INTERRUPTED:
            continue
        sums.preemptions += each.state == "PREEMPTED"
        sums.losses += each.state != "PREEMPTED"
        if each.started_at is None or each.ended_at is None:
            continue
        part = 1.0 if saved <= began else 0.0
        if each.reached is not None and each.reached > began:
            part = min(1.0, max(0.0, each.reached - saved) / (each.reached - began))
        sums.lost_s += part * (each.ended_at - each.started_at) * each.accelerators


@dataclass(frozen=True, slots=True)
class _RowMaker:
    since_at: float
    attempts: Mapping[int, Sequence[PastAttemptRow]]
    capacity: PastCapacity

    def row(self, project: str, sums: _Sums, *, is_bounded: bool) -> ReportRow:
        done = [job for job in sums.jobs if job.state == JobState.SUCCEEDED]
        completion = [job.ended_at - job.submitted_at for job in done if job.ended_at is not None]
        waiting = [self._first_start(job) - job.submitted_at for job in done]
        waiting = [wait_s for wait_s in waiting if wait_s < inf]
        found = hindsight_bound(sums.bounded, self.capacity) if is_bounded else None
        regret = None
        if found is not None and found.jobs:
            regret = RegretView(
                jobs=found.jobs,
                achieved_s=found.achieved_s,
                bound_s=found.bound_s,
                alone_s=found.alone_s,
                assumed=found.assumed,
            )
        return ReportRow(
            project=project,
            submitted=sum(job.submitted_at >= self.since_at for job in sums.jobs),
            ended=sum(job.ended_at is not None for job in sums.jobs),
            succeeded=len(done),
            completion_s=float(np.mean(completion)) if completion else None,
            waiting_s=float(np.mean(waiting)) if waiting else None,
            regret=regret,
            preemptions=sums.preemptions,
            losses=sums.losses,
            lost_h=sums.lost_s / SECONDS_PER_HOUR,
            accelerator_h=sums.accelerator_s / SECONDS_PER_HOUR,
            usd=sums.usd,
            on_demand_usd=sums.on_demand_usd,
        )

    def _first_start(self, job: PastJobRow) -> float:
        starts = (each.started_at for each in self.attempts.get(job.job_id, ()) if each.started_at is not None)
        return min(starts, default=inf)


# ------------------------------------------------------------------------------------------ machines


class _Fleet:
    """The accelerators that were there and that jobs held, by type."""

    def __init__(self, question: ReportQuestion, attempts: Sequence[PastAttemptRow]) -> None:
        since_at, until_at = question.since_at, question.until_at
        owned: dict[str, float] = defaultdict(float)
        self._there_s: dict[str, float] = defaultdict(float)
        held: dict[str, list[tuple[float, float]]] = defaultdict(list)
        known: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for machine in (PastMachineRow(*row) for row in _rows(question.rows.machines)):
            accelerator, count = question.shapes.get(machine.pool_id, ("", 0))
            if count and machine.joined_at < until_at:
                owned[accelerator] += count
                if machine.state in ("up", "unreachable"):
                    self._there_s[accelerator] += count * (until_at - max(machine.joined_at, since_at))
        for rent in (*(PastRentRow(*row) for row in _rows(question.rows.rents)), *question.open_rents):
            first, last = max(rent.since_at, since_at), min(rent.until_at, until_at)
            if last > first and rent.accelerators:
                known[rent.accelerator] += [(first, rent.accelerators), (last, -rent.accelerators)]
                self._there_s[rent.accelerator] += rent.accelerators * (last - first)
        for each in attempts:
            first, last = max(each.leased_at, since_at), until_at if each.ended_at is None else each.ended_at
            held[each.accelerator] += [(first, each.accelerators), (min(last, until_at), -each.accelerators)]
        self.capacity = _capacity(since_at, owned, known, held)
        self._held_s = {name: _integral(changes) for name, changes in held.items()}

    def types(self) -> list[TypeUse]:
        most = self.capacity.accelerators.max(axis=0, initial=0.0)
        return [
            TypeUse(
                accelerator=name,
                most=float(most[place]),
                there_h=max(self._there_s[name], self._held_s.get(name, 0.0)) / SECONDS_PER_HOUR,
                held_h=self._held_s.get(name, 0.0) / SECONDS_PER_HOUR,
            )
            for place, name in enumerate(self.capacity.types)
        ]


def _integral(changes: Sequence[tuple[float, float]]) -> float:
    return -sum(at * change for at, change in changes)


def _capacity(
    since_at: float,
    owned: Mapping[str, float],
    known: Mapping[str, Sequence[tuple[float, float]]],
    held: Mapping[str, Sequence[tuple[float, float]]],
) -> PastCapacity:
    """Returns the capacity at every instant: the known machines, and no fewer accelerators than jobs held."""
    types = tuple(sorted(owned.keys() | known.keys() | held.keys()))
    instants = {at for changes in (*known.values(), *held.values()) for at, _ in changes}
    knots = np.array(sorted({since_at, *instants}))
    columns = [
        np.maximum(owned.get(name, 0.0) + _levels(knots, known.get(name, ())), _levels(knots, held.get(name, ())))
        for name in types
    ]
    return PastCapacity(types, knots, np.column_stack(columns) if columns else np.zeros((len(knots), 0)))


def _levels(knots: FloatArray, changes: Sequence[tuple[float, float]]) -> FloatArray:
    """Returns the number of accelerators from each instant of `knots` on."""
    steps = np.zeros(len(knots))
    if changes:
        at, change = np.array(changes).T
        np.add.at(steps, np.searchsorted(knots, at), change)
    return np.cumsum(steps)
