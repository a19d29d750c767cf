"""When each job will start and end: many rollouts, their quantiles, and what experience says of such quantiles.

A question goes to a process of its own (`forecast_jobs`); its answer is made of raw quantiles. `IntervalCalibration`
lives with whoever asks: it compares what was said with what came, and widens, narrows or shifts what is said next, so
that four intervals in five hold.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log
from time import process_time

from scheduler.core.events import Event
from scheduler.forecast.core_copy import CoreCopy, CoreSnapshot
from scheduler.forecast.past_jobs import DrawnLengths, PastJobs
from scheduler.forecast.rollout import Rollout, RolloutLimits
from walras.job_request import JobId

#: The quantiles that are told.
LEVELS = (0.1, 0.5, 0.9)
#: The quantile that an end is promised by.
PROMISED = 0.95
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
    """When a job starts (None: it runs) and ends, and the instant by which an end could be promised."""

    start: Interval | None
    end: Interval
    end_by: float = inf


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
    #: The one job that is asked about: each future ends with it, and nothing is told of others. None: all.
    only: JobId | None = None


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
    lengths = DrawnLengths(question.past.ended, snapshot.open_lengths())
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
        rollout.run(limits, until_ended=question.only)
        draws += 1
        for job_id, rolled in rollout.jobs.items():
            if question.only not in (None, job_id):
                continue
            starts.setdefault(job_id, []).append(rolled.starts_at)
            ends.setdefault(job_id, []).append(rolled.ends_at)
    told = {}
    for job_id, seen in ends.items():
        start = None if job_id in running else quantiles(starts[job_id])
        told[job_id] = JobForecast(start, quantiles(seen), promised_quantile(seen))
    return ForecastAnswer(snapshot.at, told, draws, process_time() - began_s)


def quantiles(values: Sequence[float]) -> Interval:
    """p10, p50, p90, between the values that are nearest."""
    ordered = sorted(values)
    return Interval(*(_quantile(ordered, level) for level in LEVELS))


def promised_quantile(values: Sequence[float]) -> float:
    """The quantile `PROMISED`; beyond all values where these are few.

    There the upper half of the values counts as exponential: the largest of n lies where 1 in n is beyond.
    """
    ordered, many = sorted(values), len(values)
    if many < 3 or PROMISED * (many + 1) <= many or ordered[-1] == inf:
        return _quantile(ordered, PROMISED)
    middle = _quantile(ordered, 0.5)
    return middle + (ordered[-1] - middle) * log(0.5 / (1.0 - PROMISED)) / log(0.5 * many)


def _quantile(ordered: Sequence[float], level: float) -> float:
    # As for a value still to come: of n values, the next lies below the k-th with probability k / (n + 1).
    place = level * (len(ordered) + 1) - 1
    low = min(max(int(place), 0), len(ordered) - 1)
    high = min(low + 1, len(ordered) - 1)
    if ordered[low] == inf or ordered[high] == inf:
        return ordered[low] if place <= low else inf
    return ordered[low] + (ordered[high] - ordered[low]) * min(max(place - low, 0.0), 1.0)


#: Slack of each half of an interval: seconds, and a part of how far ahead its middle lies.
_SLACK_S, _SLACK_PART = 30.0, 0.01
#: Outcomes remembered, and jobs that must have come before any of them is believed.
_OUTCOMES_MAX, _JOBS_LEAST = 400, 10
#: So many jobs are believed by half: what came and what was said count alike.
_HALF_BELIEVED = 10
#: Forecasts that wait for their outcome.
_PENDING_MAX = 20_000
#: What has not come counts once it is no more than a half of its interval early.
_EARLY = -1.0


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How far before and after the middle something came, in halves of the interval that was said."""

    job_id: JobId
    low: float
    high: float


class IntervalCalibration:
    """Corrects intervals by how former ones fared. One for starts and one for ends: they err differently.

        before = (p50 - came) / (p50 - p10 + slack)     after = (came - p50) / (p90 - p50 + slack)
        told     p50 - q(before) (p50 - p10 + slack)  to  p50 + q(after) (p90 - p50 + slack)

    q is the quantile of nine in ten of former outcomes: conformal prediction, an interval's own halves being its scale.
    A wide one is corrected by as much of itself as a narrow one, and far ones by what near ones showed. What has not
    come counts as at least as late as it is now (Kaplan and Meier): else only what came early would be known while a
    queue grows. Few jobs say little: q is drawn towards 1.
    """

    def __init__(self) -> None:
        self._outcomes: deque[_Outcome] = deque(maxlen=_OUTCOMES_MAX)
        #: By job: (said at, what was said) of forecasts whose outcome is awaited.
        self._pending: dict[JobId, list[tuple[float, Interval]]] = {}
        #: What was worked out last, and of which instant and how many outcomes.
        self._known: tuple[float, int, float, float] | None = None
        self._came = 0

    def corrected(self, at: float, said: Interval) -> Interval:
        """The interval to tell; in order, and never before `at`."""
        if said.p50 == inf:
            return said
        before, after = self._factors(at)
        low_s, high_s = _halves(at, said)
        p10, p90 = max(said.p50 - before * low_s, at), max(said.p50 + after * high_s, at)
        p10, p90 = min(p10, p90), max(p10, p90)
        return Interval(p10, min(max(said.p50, p10), p90), p90)

    def promised(self, at: float, said: Interval, end_by: float) -> float:
        """The instant to promise an end by: `end_by` is the quantile `PROMISED` of the futures of this interval."""
        if said.p90 == inf or end_by == inf:
            return inf
        high_s = _halves(at, said)[1]
        drawn = (end_by - said.p50) / high_s + 1.0
        came = quantile_with_open([each.high for each in self._outcomes], self._open_late(at), PROMISED)
        part = self._belief()
        return max(said.p50 + (drawn + (came - drawn) * part) * high_s, self.corrected(at, said).p90)

    def _factors(self, at: float) -> tuple[float, float]:
        """Of the lower and the upper half."""
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
        """How far outcomes are believed: 0 of few jobs, towards 1 of many."""
        jobs = len({each.job_id for each in self._outcomes})
        return 0.0 if jobs < _JOBS_LEAST else jobs / (jobs + _HALF_BELIEVED)

    def _open_late(self, at: float) -> list[float]:
        """How late those are that have not come, at least."""
        late = ((at - raw.p50) / _halves(said_at, raw)[1] for told in self._pending.values() for said_at, raw in told)
        return [each for each in late if each > _EARLY]

    def said(self, job_id: JobId, at: float, raw: Interval) -> None:
        """Remember what was forecast, before correction: at most once while the job's wait has not doubled."""
        if raw.p90 == inf or (job_id not in self._pending and len(self._pending) >= _PENDING_MAX):
            return
        former = self._pending.setdefault(job_id, [])
        if not former or (len(former) < 4 and at - former[-1][0] > former[-1][0] - former[0][0] + 60.0):
            former.append((at, raw))

    def came(self, job_id: JobId, at: float) -> None:
        """What was forecast of this job has come."""
        for said_at, raw in self._pending.pop(job_id, ()):
            low_s, high_s = _halves(said_at, raw)
            self._outcomes.append(_Outcome(job_id, (raw.p50 - at) / low_s, (at - raw.p50) / high_s))
            self._came += 1

    def forget(self, job_id: JobId) -> None:
        """It will not come: the job was cancelled, or held."""
        self._pending.pop(job_id, None)


def _halves(at: float, said: Interval) -> tuple[float, float]:
    """Seconds from p10 to p50 and from there to p90, with slack."""
    slack_s = _SLACK_S + _SLACK_PART * max(said.p50 - at, 0.0)
    return said.p50 - said.p10 + slack_s, said.p90 - said.p50 + slack_s


def quantile_with_open(values: Sequence[float], at_least: Sequence[float], level: float) -> float:
    """The quantile of values, some of which are only known to be at least so much (Kaplan and Meier).

    The largest value where even that many are not known to be below anything.
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
