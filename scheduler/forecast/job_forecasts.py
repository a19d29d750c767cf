"""When each job will start and end: quantiles over many rollouts, corrected by how earlier forecasts turned out.

A question goes to a process of its own (`forecast_jobs`); its answer has raw quantiles. `IntervalCalibration` stays
with the caller: it compares forecasts with outcomes, and widens, narrows or shifts later intervals so that four in five
contain the outcome.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, log
from time import process_time

from scheduler.core.events import Event
from scheduler.forecast.core_copy import CoreCopy, CoreSnapshot, known_lengths
from scheduler.forecast.past_jobs import PastJobs
from scheduler.forecast.rollout import Rollout, RolloutLimits
from walras.job_request import JobId

#: Quantiles of a forecast interval.
LEVELS = (0.1, 0.5, 0.9)
#: Quantile by which an end is promised.
PROMISED = 0.95
#: Minimum of futures from which p10 and p90 are computed.
_DRAWS_LEAST = 5


@dataclass(frozen=True, slots=True)
class Interval:
    """p10, p50 and p90 of an instant; inf: later than the rollouts looked ahead."""

    p10: float
    p50: float
    p90: float


@dataclass(frozen=True, slots=True)
class PromiseBasis:
    """What an end is promised from: ends of which those that no future reached are late guesses.

    `end_by` is their quantile `PROMISED`.
    """

    end: Interval
    end_by: float


@dataclass(frozen=True, slots=True)
class JobForecast:
    """When a job starts (None: it runs) and ends, and from what an end could be promised."""

    start: Interval | None
    end: Interval
    promise: PromiseBasis
    #: Instants by which nine futures in ten had not reached the start, and the end, however early they were given up.
    starts_after: float = -inf
    ends_after: float = -inf


@dataclass(frozen=True, slots=True)
class ForecastQuestion:
    """A state, and how much may be spent on its future."""

    snapshot: CoreSnapshot
    past: PastJobs
    draws: int = 40
    #: Processor time, seconds.
    cpu_s: float = 10.0
    seed: int = 0
    #: Events at the beginning of the future: a job that is tried, a changed one, more machines.
    told: tuple[Event, ...] = ()
    #: The one job that is asked about: each future stops at its end, and only it has a forecast. None: all jobs.
    only: JobId | None = None


@dataclass(frozen=True, slots=True)
class ForecastAnswer:
    """Forecasts as of the question's instant, for every active job that is not held."""

    at: float
    jobs: dict[JobId, JobForecast]
    draws: int
    cpu_s: float


def forecast_jobs(question: ForecastQuestion) -> ForecastAnswer:
    """Rolls the state forward until all draws are made or the processor time is spent. Returns the forecasts."""
    began_s, snapshot = process_time(), question.snapshot
    lengths = known_lengths(snapshot, question.past.ended)
    starts: dict[JobId, list[float]] = {}
    ends: dict[JobId, list[float]] = {}
    late_ends: dict[JobId, list[float]] = {}
    not_before: dict[JobId, list[tuple[float, float]]] = {}
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
        # A single future may use all time that is left per draw, so that the minimum of draws is made.
        limits = RolloutLimits(cpu_until_s=began_s + question.cpu_s * max(draw + 1, _DRAWS_LEAST) / _DRAWS_LEAST)
        rollout.run(limits, until_ended=question.only)
        draws += 1
        for job_id, rolled in rollout.jobs.items():
            if question.only not in (None, job_id):
                continue
            starts.setdefault(job_id, []).append(rolled.starts_at)
            ends.setdefault(job_id, []).append(rolled.ends_at)
            late_ends.setdefault(job_id, []).append(rolled.late_end_at)
            instants = min(rolled.starts_at, rolled.open_until), min(rolled.ends_at, rolled.open_until)
            not_before.setdefault(job_id, []).append(instants)
    told = {}
    for job_id, seen in ends.items():
        start = None if job_id in running else quantiles(starts[job_id])
        starts_after, ends_after = (quantiles(each).p10 for each in zip(*not_before[job_id], strict=True))
        told[job_id] = JobForecast(start, quantiles(seen), promise_basis(late_ends[job_id]), starts_after, ends_after)
    return ForecastAnswer(snapshot.at, told, draws, process_time() - began_s)


def quantiles(values: Sequence[float]) -> Interval:
    """Returns p10, p50 and p90, interpolated between values."""
    ordered = sorted(values)
    return Interval(*(_quantile(ordered, level) for level in LEVELS))


def promise_basis(late_ends: Sequence[float]) -> PromiseBasis:
    """Returns what an end is promised from; `late_ends` are those of the futures (`RolledJob.late_end_at`)."""
    return PromiseBasis(quantiles(late_ends), promised_quantile(late_ends))


def promised_quantile(values: Sequence[float]) -> float:
    """Returns the quantile `PROMISED`, extrapolated beyond all values if these are few.

    Then the upper half of the values is taken as exponential, with the largest of n values at probability 1/n of being
    exceeded.
    """
    ordered, many = sorted(values), len(values)
    if many < 3 or PROMISED * (many + 1) <= many or ordered[-1] == inf:
        return _quantile(ordered, PROMISED)
    middle = _quantile(ordered, 0.5)
    return middle + (ordered[-1] - middle) * log(0.5 / (1.0 - PROMISED)) / log(0.5 * many)


def _quantile(ordered: Sequence[float], level: float) -> float:
    # As for a future value: of n values, the next one lies below the k-th with probability k / (n + 1).
    place = level * (len(ordered) + 1) - 1
    low = min(max(int(place), 0), len(ordered) - 1)
    high = min(low + 1, len(ordered) - 1)
    if ordered[low] == inf or ordered[high] == inf:
        return ordered[low] if place <= low else inf
    return ordered[low] + (ordered[high] - ordered[low]) * min(max(place - low, 0.0), 1.0)


#: Slack of each half of an interval: seconds, and a fraction of how far ahead its middle lies.
_SLACK_S, _SLACK_PART = 30.0, 0.01
#: Maximum of outcomes kept, and number of jobs that must have an outcome before any is used.
_OUTCOMES_MAX, _JOBS_LEAST = 400, 10
#: Number of separate spans of time at which outcomes and raw forecast have equal weight.
_HALF_BELIEVED = 10
#: Maximum of jobs whose forecasts await their outcome: their quantiles are computed while a server waits.
_PENDING_MAX = 2_000
#: An event that has not happened counts once its time is within one half-interval before the middle.
_EARLY = -1.0


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How far before and after the middle an event happened, in halves of the forecast interval."""

    job_id: JobId
    low: float
    high: float
    said_at: float
    came_at: float


class IntervalCalibration:
    """Corrects intervals by the errors of earlier ones. Starts and ends have one each, because their errors differ.

        before = (p50 - came) / (p50 - p10 + slack)     after = (came - p50) / (p90 - p50 + slack)
        told     p50 - q(before) (p50 - p10 + slack)  to  p50 + q(after) (p90 - p50 + slack)

    q is the 0.9 quantile of earlier outcomes: conformal prediction, scaled by the interval's own halves. So wide
    intervals are corrected in proportion to their width, and far ones by the outcomes of near ones. An event that has
    not happened counts as at least as late as now (right-censored; Kaplan-Meier): otherwise only early events would be
    known while a queue grows.

    q is drawn towards 1 while the outcomes are few. They are counted by spans of time that do not overlap: one job that
    lasts long is the error of all that wait behind it, so a hundred outcomes of one hour are about one.
    """

    def __init__(self) -> None:
        self._outcomes: deque[_Outcome] = deque(maxlen=_OUTCOMES_MAX)
        #: By job: (instant, interval) of forecasts whose outcome is awaited.
        self._pending: dict[JobId, list[tuple[float, Interval]]] = {}
        #: The last factors, with the instant and the number of outcomes for which they were computed.
        self._known: tuple[float, int, float, float] | None = None
        self._came = 0

    def corrected(self, at: float, said: Interval) -> Interval:
        """Returns the corrected interval, in ascending order and never before `at`."""
        if said.p50 == inf:
            return said
        before, after = self._factors(at)
        low_s, high_s = _halves(at, said)
        p10, p90 = max(said.p50 - before * low_s, at), max(said.p50 + after * high_s, at)
        p10, p90 = min(p10, p90), max(p10, p90)
        return Interval(p10, min(max(said.p50, p10), p90), p90)

    def promised(self, at: float, forecast: JobForecast) -> float:
        """Returns the instant by which to promise an end; inf if none can be promised.

        Half of the futures must have reached the end: what none of them reaches may never come.
        """
        said, end_by = forecast.promise.end, forecast.promise.end_by
        if forecast.end.p50 == inf or said.p90 == inf or end_by == inf:
            return inf
        high_s = _halves(at, said)[1]
        drawn = (end_by - said.p50) / high_s + 1.0
        came = quantile_with_open([each.high for each in self._outcomes], self._open_late(at), PROMISED)
        part = self._belief()
        return max(said.p50 + (drawn + (came - drawn) * part) * high_s, self.corrected(at, said).p90)

    def _factors(self, at: float) -> tuple[float, float]:
        """Returns the factors of the lower and the upper half."""
        if self._known is None or self._known[:2] != (at, self._came):
            self._known = (at, self._came, *self._quantiles(at))
        return self._known[2:]

    def _quantiles(self, at: float) -> tuple[float, float]:
        part = self._belief()
        if part <= 0.0:
            return 1.0, 1.0
        before = quantile_with_open([each.low for each in self._outcomes], (), LEVELS[2])
        after = quantile_with_open([each.high for each in self._outcomes], self._open_late(at), LEVELS[2])
        return 1.0 + (before - 1.0) * part, 1.0 + (after - 1.0) * part

    def _belief(self) -> float:
        """Returns the weight of outcomes: 0 with few jobs, towards 1 with many separate spans."""
        if len({each.job_id for each in self._outcomes}) < _JOBS_LEAST:
            return 0.0
        spans = separate_spans((each.said_at, each.came_at) for each in self._outcomes)
        return spans / (spans + _HALF_BELIEVED)

    def _open_late(self, at: float) -> list[float]:
        """Returns lower bounds on the lateness of events that have not happened, in halves of their intervals."""
        late = ((at - raw.p50) / _halves(said_at, raw)[1] for told in self._pending.values() for said_at, raw in told)
        return [each for each in late if each > _EARLY]

    def said(self, job_id: JobId, at: float, raw: Interval) -> None:
        """Records a raw forecast; a job's next one is only recorded once its wait has doubled."""
        if raw.p90 == inf or (job_id not in self._pending and len(self._pending) >= _PENDING_MAX):
            return
        former = self._pending.setdefault(job_id, [])
        if not former or (len(former) < 4 and at - former[-1][0] > former[-1][0] - former[0][0] + 60.0):
            former.append((at, raw))

    def came(self, job_id: JobId, at: float) -> None:
        """Records that the forecast event of this job happened at `at`."""
        for said_at, raw in self._pending.pop(job_id, ()):
            low_s, high_s = _halves(said_at, raw)
            self._outcomes.append(_Outcome(job_id, (raw.p50 - at) / low_s, (at - raw.p50) / high_s, said_at, at))
            self._came += 1

    def forget(self, job_id: JobId) -> None:
        """Drops the job's forecasts, because it was cancelled or held."""
        self._pending.pop(job_id, None)


def _halves(at: float, said: Interval) -> tuple[float, float]:
    """Returns the seconds from p10 to p50 and from there to p90, each plus slack."""
    slack_s = _SLACK_S + _SLACK_PART * max(said.p50 - at, 0.0)
    return said.p50 - said.p10 + slack_s, said.p90 - said.p50 + slack_s


def separate_spans(spans: Iterable[tuple[float, float]]) -> int:
    """Returns the maximum number of these spans (from, until) of which no two overlap."""
    many, until_at = 0, -inf
    for since_at, ends_at in sorted(spans, key=lambda span: span[1]):
        if since_at >= until_at:
            many, until_at = many + 1, ends_at
    return many


def quantile_with_open(values: Sequence[float], at_least: Sequence[float], level: float) -> float:
    """Returns the quantile of values of which some (`at_least`) are only lower bounds (Kaplan-Meier).

    Returns the largest known value if the estimated distribution does not reach the level.
    """
    above, at_risk, reached = 1.0, len(values) + len(at_least), 0.0
    known, unknown = [(value, False) for value in values], [(value, True) for value in at_least]
    for value, is_open in sorted([*known, *unknown]):
        if not is_open:
            above -= above / at_risk
            reached = value
            if 1.0 - above >= level:
                break
        at_risk -= 1
    return reached
