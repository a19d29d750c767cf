"""When each job will start and end: quantiles over many rollouts, corrected by how earlier forecasts turned out.

A question goes to a process of its own (`forecast_jobs`); its answer has raw quantiles. `IntervalCalibration` stays
with the caller: it compares forecasts with outcomes, and widens, narrows or shifts later intervals so that four in five
contain the outcome.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import inf, log

from scheduler.core.events import Event
from scheduler.forecast.core_copy import CoreCopy, CoreSnapshot, known_lengths
from scheduler.forecast.past_jobs import PastJobs
from scheduler.forecast.rollout import DRAWS_LEAST, DrawTime, RolledJob, Rollout
from walras.job_request import JobId

#: Quantiles of a forecast interval.
LEVELS = (0.1, 0.5, 0.9)
#: Quantile by which an end is promised.
PROMISED = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """p10, p50 and p90 of an instant; inf: later than the rollouts looked ahead."""

    p10: float
    p50: float
    p90: float
    #: Before this instant it cannot come.
    least: float = -inf


@dataclass(frozen=True, slots=True)
class JobForecast:
    """When a job starts (None: it runs) and ends, and the quantile `PROMISED` of its end; inf: none is told."""

    start: Interval | None
    end: Interval
    end_by: float = inf
    #: Instants by which nine futures in ten had not reached the start, and the end, however early they were given up.
    starts_after: float = -inf
    ends_after: float = -inf


@dataclass(frozen=True, slots=True)
class ForecastQuestion:
    """A state, and how much may be spent on its future."""

    snapshot: CoreSnapshot
    past: PastJobs
    draws: int = 40
    #: Processor time, and how long somebody waits, seconds.
    cpu_s: float = 10.0
    within_s: float = inf
    seed: int = 0
    #: Events at the beginning of the future: a job that is tried, a changed one, more machines.
    told: tuple[Event, ...] = ()
    #: The one job that is asked about: each future stops at its end, and only it has a forecast. None: all jobs.
    only: JobId | None = None
    #: Whether it gives way to a question for which somebody waits (`yield_when_awaited`).
    yields: bool = False


@dataclass(frozen=True, slots=True)
class ForecastAnswer:
    """Forecasts as of the question's instant, for every active job that is not held."""

    at: float
    jobs: dict[JobId, JobForecast]
    draws: int
    cpu_s: float


def forecast_jobs(question: ForecastQuestion) -> ForecastAnswer:
    """Rolls the state forward until all draws are made or the processor time is spent. Returns the forecasts.

    Without a job and a draw if it gave way before there were enough.
    """
    time, snapshot = DrawTime(question.cpu_s, question.within_s, yields=question.yields), question.snapshot
    lengths = known_lengths(snapshot, question.past.ended)
    futures: dict[JobId, list[RolledJob]] = {}
    running = {job.job.job_id for job in snapshot.jobs if job.placement is not None}
    draws = 0
    for draw in range(question.draws):
        if time.is_over(draw):
            break
        copy = CoreCopy(snapshot)
        for event in question.told:
            copy.tell(event)
        rollout = Rollout(copy, question.past, lengths, f"{question.seed}/{draw}")
        rollout.run(time.limits(draw), until_ended=question.only)
        if time.has_yielded:
            break
        draws += 1
        for job_id, rolled in rollout.jobs.items():
            if question.only in (None, job_id):
                futures.setdefault(job_id, []).append(rolled)
    if time.has_yielded and draws < DRAWS_LEAST:
        return ForecastAnswer(snapshot.at, {}, 0, time.spent_s)
    told = {job_id: forecast_of(rolled, waits=job_id not in running) for job_id, rolled in futures.items()}
    return ForecastAnswer(snapshot.at, told, draws, time.spent_s)


def forecast_of(futures: Sequence[RolledJob], *, waits: bool = True) -> JobForecast:
    """Returns what these futures of a job tell.

    Where at least half of them reached its end, the others count with the late guess (`RolledJob.late_end_at`): what
    none of them reaches may never come.
    """
    least = max(each.least_at for each in futures)
    end, end_by = foretold([each.ends_at for each in futures], least), inf
    if end.p50 < inf:
        late = [each.late_end_at for each in futures]
        end, end_by = foretold(late, least), promised_quantile(late)
    return JobForecast(
        foretold([each.starts_at for each in futures], least) if waits else None,
        end,
        end_by,
        foretold([min(each.starts_at, each.open_until) for each in futures]).p10,
        foretold([min(each.ends_at, each.open_until) for each in futures]).p10,
    )


def still_true(told: JobForecast, now: float, started_at: float = inf) -> JobForecast | None:
    """Returns what of a told forecast what has happened since does not contradict; None: nothing.

    `started_at` is when the job got its place; inf: it waits. An instant that has not come is told until its middle
    has passed: until then at least four in five of those cases come by p90. A job that got its place earlier or later
    than was told ends at another time too.
    """
    start, waits = told.start, started_at == inf
    if waits and (start is None or start.p50 < now):
        return None  # it ran when the forecast was made, or should have started
    if told.end.p50 < now or not (waits or start is None or start.p10 <= started_at <= start.p90):
        return None
    start = None if start is None or not waits else replace(start, p10=max(start.p10, now))
    return replace(told, start=start, end=replace(told.end, p10=max(told.end.p10, now)))


def quantiles(values: Sequence[float]) -> Interval:
    """Returns p10, p50 and p90, interpolated between values."""
    ordered = sorted(values)
    return Interval(*(_quantile(ordered, level) for level in LEVELS))


def foretold(values: Sequence[float], least: float = -inf) -> Interval:
    """Returns p10, p50 and p90 of the next value; beyond all values if these are too few to have it between them, but
    none below `least`.

    Of n values the next one lies outside on each side with probability 1 / (n + 1), which is above a tenth below nine.
    Both halves are taken as exponential then.
    """
    ordered, many = sorted(values), len(values)
    found = replace(quantiles(ordered), least=least)
    reach = log(0.5 / LEVELS[0]) / log(0.5 * (many + 1)) if many > 2 else 1.0
    if reach <= 1.0 or found.p50 == inf:
        return found
    p10, p90 = (found.p50 + reach * (edge - found.p50) for edge in (ordered[0], ordered[-1]))
    return replace(found, p10=max(p10, least), p90=p90)


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


#: What is added to each half of an interval where it is compared with what came: seconds, and a fraction of how far
#: ahead its middle lies.
_SLACK_S, _SLACK_PART = 30.0, 0.01
#: Until outcomes tell more, each half of an interval is at least this part of the slack: no cost is known exactly.
_LEAST_SLACK = 0.5
#: Maximum of outcomes kept, and number of jobs that must have an outcome before any is used.
_OUTCOMES_MAX, _JOBS_LEAST = 400, 10
#: Number of independent outcomes at which these and the raw forecast have equal weight; and the most that an error
#: counts for, in halves of its interval.
_HALF_BELIEVED, _ERROR_MOST = 7, 3.0
#: Maximum of jobs whose forecasts await their outcome: their quantiles are computed while a server waits.
_PENDING_MAX = 2_000
#: An event that has not happened counts once its time is within one half-interval before the middle.
_EARLY = -1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How far before and after the middle an event happened, in halves of the forecast interval."""

    job_id: JobId
    low: float
    high: float
    said_at: float
    came_at: float

    @property
    def error(self) -> float:
        """Returns how late it was, in halves of the interval; negative: early."""
        return max(min(self.high if self.high > 0 else -self.low, _ERROR_MOST), -_ERROR_MOST)


class IntervalCalibration:
    """Corrects intervals by the errors of earlier ones. Starts and ends have one each, because their errors differ.

        before = (p50 - came) / (p50 - p10 + slack)     after = (came - p50) / (p90 - p50 + slack)
        learnt   p50 - q(before) (p50 - p10 + slack)  to  p50 + q(after) (p90 - p50 + slack)

    q is the 0.9 quantile of earlier outcomes: conformal prediction, scaled by the interval's own halves. So wide
    intervals are corrected in proportion to their width, and far ones by the outcomes of near ones. An event that has
    not happened counts as at least as late as now (right-censored; Kaplan-Meier): otherwise only early events would be
    known while a queue grows.

    What is told goes over from the raw interval to the learnt one with the number of outcomes. One job that lasts long
    is the error of all that wait behind it: a hundred outcomes of one hour may be about one. So they count by their
    design effect (`independent_outcomes`).
    """

    def __init__(self) -> None:
        self._outcomes: deque[Outcome] = deque(maxlen=_OUTCOMES_MAX)
        #: By job: (instant, interval) of forecasts whose outcome is awaited.
        self._pending: dict[JobId, list[tuple[float, Interval]]] = {}
        #: The last factors, with the instant and the number of outcomes for which they were computed.
        self._known: tuple[float, int, float, float, float] | None = None
        self._came = 0

    def corrected(self, at: float, said: Interval) -> Interval:
        """Returns the corrected interval, in ascending order, never before `at` nor before it can come."""
        if said.p50 == inf:
            return said
        earliest = max(at, said.least)
        part, before, after = self._factors(at)
        low_s, high_s = _halves(at, said)
        least_s = least_half_s(at, said)
        raw_p10, raw_p90 = min(said.p10, said.p50 - least_s), max(said.p90, said.p50 + least_s)
        p10 = max(_between(raw_p10, said.p50 - before * low_s, part), earliest)
        p90 = max(_between(raw_p90, said.p50 + after * high_s, part), earliest)
        p10, p90 = min(p10, p90), max(p10, p90)
        return replace(said, p10=p10, p50=min(max(said.p50, p10), p90), p90=p90)

    def promised(self, at: float, forecast: JobForecast) -> float:
        """Returns the instant by which to promise an end; inf if none can be promised."""
        said, end_by = forecast.end, forecast.end_by
        if said.p90 == inf or end_by == inf:
            return inf
        came = quantile_with_open([each.high for each in self._outcomes], self._open_late(at), PROMISED)
        learnt = said.p50 + came * _halves(at, said)[1]
        return max(_between(end_by, learnt, self._factors(at)[0]), self.corrected(at, said).p90)

    def _factors(self, at: float) -> tuple[float, float, float]:
        """Returns the weight of what is learnt, 0 from few jobs, and the factors of the lower and the upper half."""
        if self._known is None or self._known[:2] != (at, self._came):
            many = independent_outcomes(self._outcomes)
            part, before, after = many / (many + _HALF_BELIEVED), 1.0, 1.0
            if len({each.job_id for each in self._outcomes}) < _JOBS_LEAST:
                part = 0.0
            else:
                before = quantile_with_open([each.low for each in self._outcomes], (), LEVELS[2])
                after = quantile_with_open([each.high for each in self._outcomes], self._open_late(at), LEVELS[2])
            self._known = at, self._came, part, before, after
        return self._known[2:]

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
            self._outcomes.append(Outcome(job_id, (raw.p50 - at) / low_s, (at - raw.p50) / high_s, said_at, at))
            self._came += 1

    def forget(self, job_id: JobId) -> None:
        """Drops the job's forecasts, because it was cancelled or held."""
        self._pending.pop(job_id, None)


def _between(raw: float, learnt: float, part: float) -> float:
    return raw if raw == inf else raw + part * (learnt - raw)


def least_half_s(at: float, said: Interval) -> float:
    """Returns the least seconds from p10 to p50, and from there to p90, that are told until outcomes tell more."""
    return _LEAST_SLACK * (_SLACK_S + _SLACK_PART * max(said.p50 - at, 0.0))


def _halves(at: float, said: Interval) -> tuple[float, float]:
    """Returns the seconds from p10 to p50 and from there to p90, each plus slack."""
    slack_s = _SLACK_S + _SLACK_PART * max(said.p50 - at, 0.0)
    return said.p50 - said.p10 + slack_s, said.p90 - said.p50 + slack_s


def independent_outcomes(outcomes: Collection[Outcome]) -> float:
    """Returns how many independent outcomes these are worth: their number over the design effect of their errors.

        effect = sum over groups of (sum of errors)^2 / sum of error^2

    A group are those that came before the first of them that was foretold after the group's first had come.
    """
    groups, until_at = list[float](), -inf
    for each in sorted(outcomes, key=lambda each: each.came_at):
        if each.said_at >= until_at:
            until_at = each.came_at
            groups.append(0.0)
        groups[-1] += each.error
    alone = sum(each.error**2 for each in outcomes)
    together = sum(each * each for each in groups)
    return max(len(outcomes) * alone / together if together > alone else len(outcomes), len(groups))


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
