"""When each job will start and end: many rollouts, their quantiles, and what experience says of such quantiles.

A question goes to a process of its own (`forecast_jobs`); its answer is made of raw quantiles. `IntervalCalibration`
lives with whoever asks: it compares what was said with what came, and widens, narrows or shifts what is said next, so
that four intervals in five hold.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, inf, log
from time import process_time

from scheduler.core.events import Event
from scheduler.forecast.core_copy import CoreCopy, CoreSnapshot
from scheduler.forecast.past_jobs import DrawnLengths, PastJobs
from scheduler.forecast.rollout import Rollout, RolloutLimits
from walras.job_request import JobId

#: The quantiles that are told.
LEVELS = (0.1, 0.5, 0.9)
#: Fewer futures say nothing of p10 and p90.
_DRAWS_LEAST = 5


@dataclass(frozen=True, slots=True)
class Interval:
    """p10, p50 and p90 of an instant; inf: later than was looked ahead."""

    p10: float
    p50: float
    p90: float


@dataclass(frozen=True, slots=True)
class JobForecast:
    """When a job starts (None: it runs) and ends."""

    start: Interval | None
    end: Interval


@dataclass(frozen=True, slots=True)
class ForecastQuestion:
    """A state, and how much may be spent on its future."""

    snapshot: CoreSnapshot
    past: PastJobs
    draws: int = 40
    #: Processor time, seconds.
    cpu_s: float = 10.0
    seed: int = 0
    #: What else is so when the future begins: a job that is tried, a changed one, more machines.
    told: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class ForecastAnswer:
    """Forecasts as of the question's instant, of every active job that is not held."""

    at: float
    jobs: dict[JobId, JobForecast]
    draws: int
    cpu_s: float


def forecast_jobs(question: ForecastQuestion) -> ForecastAnswer:
    """Roll forward until the draws are made or the time is spent."""
    began_s, snapshot = process_time(), question.snapshot
    lengths = DrawnLengths(question.past.ended)
    starts: dict[JobId, list[float]] = {}
    ends: dict[JobId, list[float]] = {}
    running = {job.job.job_id for job in snapshot.jobs if job.placement is not None}
    draws = 0
    for draw in range(question.draws):
        spent_s = process_time() - began_s
        if draw >= _DRAWS_LEAST and spent_s + spent_s / draw > question.cpu_s:
            break
        copy = CoreCopy(snapshot)
        for event in question.told:
            copy.tell(event)
        rollout = Rollout(snapshot, copy, question.past, lengths, f"{question.seed}/{draw}")
        # One future may take what is left for it, if the fewest are to be made.
        limits = RolloutLimits(cpu_until_s=began_s + question.cpu_s * max(draw + 1, _DRAWS_LEAST) / _DRAWS_LEAST)
        rollout.run(limits)
        draws += 1
        for job_id, rolled in rollout.jobs.items():
            starts.setdefault(job_id, []).append(rolled.starts_at)
            ends.setdefault(job_id, []).append(rolled.ends_at)
    told = {}
    for job_id, seen in ends.items():
        start = None if job_id in running else quantiles(starts[job_id])
        told[job_id] = JobForecast(start, quantiles(seen))
    return ForecastAnswer(snapshot.at, told, draws, process_time() - began_s)


def quantiles(values: Sequence[float]) -> Interval:
    """p10, p50, p90, between the values that are nearest."""
    ordered = sorted(values)
    return Interval(*(_quantile(ordered, level) for level in LEVELS))


def _quantile(ordered: Sequence[float], level: float) -> float:
    # As for a value still to come: of n values, the next lies below the k-th with probability k / (n + 1).
    place = level * (len(ordered) + 1) - 1
    low = min(max(int(place), 0), len(ordered) - 1)
    high = min(low + 1, len(ordered) - 1)
    if ordered[low] == inf or ordered[high] == inf:
        return ordered[low] if place <= low else inf
    return ordered[low] + (ordered[high] - ordered[low]) * min(max(place - low, 0.0), 1.0)


#: Times are compared by their ratio; differences below this are nothing, seconds.
_NOTHING_S = 30.0
#: Outcomes remembered of each sort, and needed before they are believed by themselves.
_OUTCOMES_MAX, _OUTCOMES_LEAST = 400, 25
#: Until then: intervals are wider by this factor on either side.
_WIDER = 1.3
#: Forecasts that wait for their outcome.
_PENDING_MAX = 20_000


@dataclass(slots=True)
class _Outcomes:
    """log of (what came over what was said), for p10 and for p90."""

    low: deque[float] = field(default_factory=lambda: deque(maxlen=_OUTCOMES_MAX))
    high: deque[float] = field(default_factory=lambda: deque(maxlen=_OUTCOMES_MAX))

    def correction(self) -> tuple[float, float] | None:
        """Factors of p10 and p90, as logarithms; None: too few outcomes."""
        if len(self.low) < _OUTCOMES_LEAST:
            return None
        return _quantile(sorted(self.low), LEVELS[0]), _quantile(sorted(self.high), LEVELS[2])


class IntervalCalibration:
    """Corrects intervals by how former ones fared. One for starts and one for ends: they err differently.

    Outcomes are sorted by how far ahead the middle lay; where a sort has few, those of all count.
    """

    _BOUNDS_S = (600.0, 3600.0, 6 * 3600.0, 86_400.0)

    def __init__(self) -> None:
        self._sorts = [_Outcomes() for _ in range(len(self._BOUNDS_S) + 1)]
        self._all = _Outcomes()
        #: By job: (said at, what was said) of forecasts whose outcome is awaited.
        self._pending: dict[JobId, list[tuple[float, Interval]]] = {}

    def _sort_of(self, ahead_s: float) -> _Outcomes:
        return self._sorts[sum(ahead_s > bound for bound in self._BOUNDS_S)]

    def corrected(self, at: float, said: Interval) -> Interval:
        """The interval to tell; in order, and never before `at`."""
        if said.p50 == inf:
            return said
        known = self._sort_of(said.p50 - at).correction() or self._all.correction()
        low, high = known if known is not None else (-log(_WIDER), log(_WIDER))
        p10 = at + max(_scaled(said.p10 - at, low), 0.0)
        p90 = at + max(_scaled(said.p90 - at, high), 0.0)
        p10, p90 = min(p10, p90), max(p10, p90)
        return Interval(p10, min(max(said.p50, p10), p90), p90)

    def said(self, job_id: JobId, at: float, raw: Interval) -> None:
        """Remember what was forecast, before correction: at most once while the job's wait has not doubled."""
        if raw.p50 == inf or (job_id not in self._pending and len(self._pending) >= _PENDING_MAX):
            return
        former = self._pending.setdefault(job_id, [])
        if not former or (len(former) < 4 and at - former[-1][0] > former[-1][0] - former[0][0] + 60.0):
            former.append((at, raw))

    def came(self, job_id: JobId, at: float) -> None:
        """What was forecast of this job has come."""
        for said_at, raw in self._pending.pop(job_id, ()):
            for outcomes in (self._sort_of(raw.p50 - said_at), self._all):
                outcomes.low.append(_log_ratio(at - said_at, raw.p10 - said_at))
                outcomes.high.append(_log_ratio(at - said_at, raw.p90 - said_at))

    def forget(self, job_id: JobId) -> None:
        """It will not come: the job was cancelled, or held."""
        self._pending.pop(job_id, None)


def _log_ratio(came_s: float, said_s: float) -> float:
    return log((max(came_s, 0.0) + _NOTHING_S) / (min(max(said_s, 0.0), 1e9) + _NOTHING_S))


def _scaled(said_s: float, by: float) -> float:
    return (max(said_s, 0.0) + _NOTHING_S) * exp(by) - _NOTHING_S
