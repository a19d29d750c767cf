"""The timeline of a run: each pool's accelerators over time, the prices of every solve, the lifetime of every attempt.

A `Timeline` is the recorder of a simulation: it receives each event with its commands. Memory is linear in the number
of events, so one is made only on request. Attempts are kept up to a limit; further ones are only counted. The jobs of a
run one by one, and its levels over time, which figures and resampling use, are computed on request too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite, nan

import numpy as np

from optimizer.bounds.instance import FloatArray
from scheduler.core.commands import AttemptTransitioned, Command, JobTransitioned, ReleaseNode, Rent
from scheduler.core.events import (
    Event,
    JobCancelled,
    JobSubmitted,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    NodeUnreachable,
    PolicyChanged,
    PoolDeclared,
    Solved,
)
from simulator.metrics import JobMetrics
from simulator.reports.run_spec import CompletedRun, RunSpec, RunWatcher, execute_run, parse_window
from simulator.reports.run_summary import finish_time_fairness
from walras.cluster import NodeId, Placement, Pool, PoolId
from walras.job_request import JobId
from walras.states import AttemptState, JobState

SPANS_MAX = 20_000
_BINS = 400


@dataclass(slots=True)
class StepSeries:
    """A piecewise constant quantity: instants, and its value from each of them on."""

    at: list[float] = field(default_factory=list)
    value: list[float] = field(default_factory=list)

    def set(self, at: float, value: float) -> None:
        """Sets the value from `at` on. The last of several values at one instant counts."""
        if self.at and self.at[-1] == at:
            self.value[-1] = value
        elif not self.value or self.value[-1] != value:
            self.at.append(at)
            self.value.append(value)

    @property
    def now(self) -> float:
        """Returns the last value; 0 before the first."""
        return self.value[-1] if self.value else 0.0

    def add(self, at: float, change: float) -> None:
        """Changes the value by `change` from `at` on."""
        self.set(at, self.now + change)


def series_means(level: StepSeries, until_at: float) -> tuple[FloatArray, FloatArray]:
    """Returns the series itself if it has few changes, else exact means over equal intervals: (begin, value)."""
    if len(level.at) > _BINS:
        return binned_means(level, until_at)
    at = np.array([*level.at, max(until_at, level.at[-1] if level.at else 0.0)])
    return at, np.array([*level.value, level.now])


def binned_means(level: StepSeries, until_at: float) -> tuple[FloatArray, FloatArray]:
    """Returns exact means over equal intervals of the run: (begin, mean); 0 before the first value."""
    until_at = max(until_at, 1e-9)
    at = np.array([0.0, *level.at, max(until_at, level.at[-1] if level.at else 0.0)])
    passed = np.concatenate([[0.0], np.cumsum(np.array([0.0, *level.value]) * np.diff(at))])
    edges = np.linspace(0.0, until_at, _BINS + 1)
    return edges[:-1], np.diff(np.interp(edges, at, passed)) / np.diff(edges)


@dataclass(slots=True)
class PoolTrack:
    """Time series of one pool, in accelerators."""

    pool: Pool
    there: StepSeries = field(default_factory=StepSeries)
    held: StepSeries = field(default_factory=StepSeries)
    running: StepSeries = field(default_factory=StepSeries)
    #: The optimizer's price of one accelerator, in `Timeline.price_unit`.
    price: StepSeries = field(default_factory=StepSeries)
    #: The market price of one machine, USD/h.
    usd_per_h: StepSeries = field(default_factory=StepSeries)


@dataclass(slots=True)
class AttemptSpan:
    """One attempt in one of its pools. Instants are nan for events that did not happen."""

    job_id: JobId
    attempt: int
    pool_id: PoolId
    accelerators: int
    leased_at: float
    running_at: float = nan
    #: Instant at which it was asked to stop; it may still hold its accelerators.
    stopping_at: float = nan
    ended_at: float = nan
    state: str = ""

    @property
    def is_up(self) -> bool:
        """Returns whether all its ranks are running and it was not asked to stop."""
        return isfinite(self.running_at) and not isfinite(self.stopping_at)


#: A row of the events' table: instant, event, job, attempt, place, details.
EventRow = tuple[float, str, str, str, str, str]
_NODE_EVENTS = {
    NodeJoined: "node joined",
    NodeLost: "node lost",
    NodeLeaving: "node leaving",
    NodeUnreachable: "node unreachable",
}


class Timeline:
    """A simulation's recorder is `record`. `write_row` receives each row of the events' table as it happens."""

    def __init__(self, write_row: Callable[[EventRow], object] | None = None) -> None:
        self.pools: dict[PoolId, PoolTrack] = {}
        #: Attempts in order of lease, the first `SPANS_MAX`.
        self.spans: list[AttemptSpan] = []
        self.spans_left_out = 0
        #: Jobs in the system that hold no accelerator.
        self.waiting = StepSeries()
        self.price_unit = ""
        self.ended_at = 0.0
        self._write_row = write_row
        self._active = 0
        self._pool_of: dict[NodeId, PoolId] = {}
        self._open: dict[JobId, list[AttemptSpan]] = {}
        #: Pools of each open attempt's machines, and the accelerators that it holds on each.
        self._parts: dict[JobId, dict[NodeId, tuple[PoolId, int]]] = {}

    def record(self, event: Event, commands: list[Command]) -> None:
        """Records one event and the scheduler's commands."""
        self.ended_at = event.at
        self._event(event)
        for command in commands:
            self._command(event.at, command)
        self.waiting.set(event.at, self._active - len(self._open))
        if self._write_row is not None:
            for row in _event_rows(event, commands):
                self._write_row(row)

    def _event(self, event: Event) -> None:
        if isinstance(event, PoolDeclared):
            track = self.pools.setdefault(event.pool.pool_id, PoolTrack(event.pool))
            track.usd_per_h.set(event.at, event.pool.usd_per_h)
        elif isinstance(event, NodeJoined):
            self._pool_of[event.node_id] = event.pool_id
            track = self.pools[event.pool_id]
            track.there.add(event.at, track.pool.shape.accelerators)
        elif isinstance(event, NodeLost):
            self._lost(event)
        elif isinstance(event, JobSubmitted):
            self._active += 1
        elif isinstance(event, Solved):
            self.price_unit = event.proposal.price_unit or self.price_unit
            for pool_id, price in zip(event.proposal.pools, event.proposal.prices, strict=False):
                self.pools[pool_id].price.set(event.at, price)

    def _lost(self, event: NodeLost) -> None:
        track = self.pools[self._pool_of.pop(event.node_id)]
        track.there.add(event.at, -track.pool.shape.accelerators)
        for job_id, parts in self._parts.items():
            part = parts.pop(event.node_id, None)
            if part is not None:
                track.held.add(event.at, -part[1])
                if self._open[job_id][0].is_up:
                    track.running.add(event.at, -part[1])

    def _command(self, at: float, command: Command) -> None:
        if isinstance(command, JobTransitioned):
            self._active -= command.state.is_final
        elif isinstance(command, AttemptTransitioned):
            self._attempt(at, command)

    def _attempt(self, at: float, command: AttemptTransitioned) -> None:
        placement, state = command.placement, command.state
        if state is AttemptState.LEASED and placement is not None:
            self._leased(at, command, placement)
        for opened in self._open.get(command.job_id, ()):
            self._changed(at, command, opened)
        if state.is_final and command.job_id in self._open:
            del self._open[command.job_id], self._parts[command.job_id]

    def _leased(self, at: float, command: AttemptTransitioned, placement: Placement) -> None:
        self._parts[command.job_id] = {
            part.node_id: (part.pool_id or placement.pool_id, len(part.devices)) for part in placement.parts
        }
        self._open[command.job_id] = []
        for pool_id, accelerators in placement.by_pool.items():
            span = AttemptSpan(command.job_id, command.attempt, pool_id, accelerators, at)
            self._open[command.job_id].append(span)
            self.pools[pool_id].held.add(at, accelerators)
            if len(self.spans) < SPANS_MAX:
                self.spans.append(span)
            else:
                self.spans_left_out += 1

    def _changed(self, at: float, command: AttemptTransitioned, opened: AttemptSpan) -> None:
        track, state = self.pools[opened.pool_id], command.state
        held = sum(count for pool_id, count in self._parts[command.job_id].values() if pool_id == opened.pool_id)
        if state is AttemptState.RUNNING:
            opened.running_at = at
            track.running.add(at, held)
        elif state is AttemptState.STOPPING:
            if opened.is_up:
                track.running.add(at, -held)
            opened.stopping_at = at
        elif state.is_final:
            if opened.is_up:
                track.running.add(at, -held)
            track.held.add(at, -held)
            opened.ended_at, opened.state = at, state.value


def _event_rows(event: Event, commands: list[Command]) -> Iterator[EventRow]:
    """Generates rows about jobs, attempts, machines, prices and policies; none about timers."""
    at = event.at
    if isinstance(event, JobSubmitted):
        yield at, "job submitted", str(event.job.job_id), "", "", event.job.kind
    elif isinstance(event, JobCancelled):
        yield at, "job cancelled", str(event.job_id), "", "", event.by
    elif isinstance(event, PoolDeclared):
        yield at, "pool", "", "", event.pool.pool_id, f"{event.pool.usd_per_h:g} USD/h, quota {event.pool.quota}"
    elif isinstance(event, PolicyChanged):
        yield at, "policy", "", "", "", event.policy.name
    elif isinstance(event, Solved):
        proposal = event.proposal
        prices = " ".join(f"{pool}={price:.6g}" for pool, price in zip(proposal.pools, proposal.prices, strict=False))
        yield at, "solved", "", "", "", f"{proposal.status} gap {proposal.gap:.3g} prices {prices}"
    elif isinstance(event, NodeJoined | NodeLost | NodeLeaving | NodeUnreachable):
        yield at, _NODE_EVENTS[type(event)], "", "", event.node_id, ""
    for command in commands:
        row = _command_row(at, command)
        if row is not None:
            yield row


def _command_row(at: float, command: Command) -> EventRow | None:
    if isinstance(command, JobTransitioned):
        reason = command.reason.value if command.reason is not None else ""
        return at, f"job {command.state.value}", str(command.job_id), "", "", reason
    if isinstance(command, AttemptTransitioned):
        reason = command.reason.value if command.reason is not None else ""
        where = ""
        if command.placement is not None:
            parts = "+".join(f"{part.node_id}:{len(part.devices)}" for part in command.placement.parts)
            where = f"{command.placement.pool_id} {parts}"
        return at, f"attempt {command.state.value}", str(command.job_id), str(command.attempt), where, reason
    if isinstance(command, Rent):
        return at, "rent", "", "", command.pool_id, str(command.machines)
    if isinstance(command, ReleaseNode):
        return at, "release", "", "", command.node_id, command.detail
    return None


class RunDepth(StrEnum):
    """What is kept of a run beside its metrics."""

    JOBS = "jobs"
    #: Its jobs and its levels.
    LEVELS = "levels"


@dataclass(frozen=True, slots=True)
class JobOutcomes:
    """The jobs that count in the metrics, in order of arrival; nan for values that do not exist."""

    job_id: tuple[int, ...]
    project: tuple[str, ...]
    #: For jobs that succeeded: completion time, and its ratios to the time alone and to that in an equal share
    #: (Themis).
    jct_s: tuple[float, ...]
    slowdown: tuple[float, ...]
    rho: tuple[float, ...]
    queueing_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LevelCurve:
    """A level over time: its value from each instant on, or its mean until the next instant."""

    at: tuple[float, ...]
    value: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RunLevels:
    """Levels over time, by pool if there are several."""

    ended_at: float
    #: Jobs in the system that hold no accelerator.
    waiting: LevelCurve
    #: Accelerators that exist, and accelerators that are held.
    there: dict[str, LevelCurve]
    held: dict[str, LevelCurve]
    #: The optimizer's price of an accelerator, in `price_unit`, and the market price of a machine, USD/h.
    price: dict[str, LevelCurve]
    usd_per_h: dict[str, LevelCurve]
    price_unit: str
    usd_by_market: dict[str, float]
    #: By pool, in order of lease: job, accelerators, start, end.
    attempts: dict[str, tuple[tuple[int, int, float, float], ...]] = field(default_factory=dict)
    #: All attempts that were leased before this instant are included.
    attempts_until: float = 0.0


@dataclass(frozen=True, slots=True)
class RunDetail:
    """The jobs of a run, and its levels if they were requested."""

    jobs: JobOutcomes
    levels: RunLevels | None = None


#: Largest number of values that are kept of a distribution.
SPREAD_POINTS = 201
#: Largest number of attempts that are kept of a run.
ATTEMPTS_KEPT = 4_000
#: The distributions that are kept of a run.
SPREADS = ("jct_s", "slowdown", "rho", "queueing_s")


def spread_of(values: Sequence[float]) -> tuple[float, ...]:
    """Returns the finite values sorted; if there are many, their quantiles, the least and largest included."""
    known = np.sort(np.array([value for value in values if isfinite(value)]))
    if len(known) > SPREAD_POINTS:
        known = np.quantile(known, np.linspace(0.0, 1.0, SPREAD_POINTS))
    return tuple(float(f"{value:.6g}") for value in known.tolist())


def job_spreads(jobs: JobOutcomes) -> dict[str, tuple[float, ...]]:
    """Returns the distributions of the jobs, by name."""
    return {name: spread_of(getattr(jobs, name)) for name in SPREADS}


def execute_in_detail(run: RunSpec, depth: RunDepth, watch: RunWatcher | None = None) -> tuple[CompletedRun, RunDetail]:
    """Simulates a run and keeps more than the metrics. Raises what `execute_run` raises."""
    if depth is not RunDepth.LEVELS:
        ran = execute_run(run, watch=watch)
        return ran, RunDetail(_job_outcomes(ran))
    timeline = Timeline()
    ran = execute_run(run, timeline.record, watch)
    return ran, RunDetail(_job_outcomes(ran), _run_levels(timeline, ran.summary.usd_by_market))


def _job_outcomes(ran: CompletedRun) -> JobOutcomes:
    jobs = [*ran.result.jobs, *ran.result.unfinished]
    rho = finish_time_fairness(ran.result, jobs, ran.baselines)
    window = parse_window(ran.spec.window)
    counted = [job for job in jobs if window is None or window[0] <= job.job_id <= window[1]]
    counted.sort(key=lambda job: job.job_id)

    def of_done(value: Callable[[JobMetrics], float]) -> tuple[float, ...]:
        return tuple(value(job) if job.state is JobState.SUCCEEDED else nan for job in counted)

    return JobOutcomes(
        tuple(int(job.job_id) for job in counted),
        tuple(job.project for job in counted),
        of_done(lambda job: job.jct_s),
        of_done(lambda job: job.jct_s / ran.baselines.alone_s(job.job_id)),
        of_done(lambda job: rho.get(job.job_id, nan)),
        tuple(job.queueing_s for job in counted),
    )


def _run_levels(timeline: Timeline, usd_by_market: Mapping[str, float]) -> RunLevels:
    def curves(name: str) -> dict[str, LevelCurve]:
        series = {str(pool_id): getattr(track, name) for pool_id, track in timeline.pools.items()}
        return {pool: thinned_curve(each, timeline.ended_at) for pool, each in series.items() if each.at}

    return RunLevels(
        timeline.ended_at,
        thinned_curve(timeline.waiting, timeline.ended_at),
        curves("there"),
        curves("held"),
        curves("price"),
        curves("usd_per_h"),
        timeline.price_unit,
        dict(usd_by_market),
        _attempts_by_pool(timeline.spans[:ATTEMPTS_KEPT], timeline.ended_at),
        timeline.spans[ATTEMPTS_KEPT].leased_at if len(timeline.spans) > ATTEMPTS_KEPT else timeline.ended_at,
    )


def _attempts_by_pool(
    spans: Sequence[AttemptSpan], ended_at: float
) -> dict[str, tuple[tuple[int, int, float, float], ...]]:
    found: dict[str, list[tuple[int, int, float, float]]] = {}
    for span in spans:
        until = span.ended_at if isfinite(span.ended_at) else ended_at
        row = (int(span.job_id), span.accelerators, span.leased_at, until)
        found.setdefault(str(span.pool_id), []).append(row)
    return {pool: tuple(rows) for pool, rows in found.items()}


def thinned_curve(series: StepSeries, until_at: float) -> LevelCurve:
    """Returns the series with few points: means over equal intervals if it has many, starting with its first value."""
    at, value = series_means(series, until_at)
    known = [(a, v) for a, v in zip(at.tolist(), value.tolist(), strict=True) if isfinite(v) and a >= series.at[0]]
    return LevelCurve(tuple(a for a, _ in known), tuple(v for _, v in known))
