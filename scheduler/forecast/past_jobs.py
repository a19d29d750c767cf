"""What past jobs tell about unknown quantities: how long jobs turn out to be, and which jobs will arrive.

A job that states its length, in steps or as a guess of its duration, is as long as stated, times a ratio drawn from
ended jobs that stated theirs so. One that states none is as long as ended jobs were, conditional on having done so much
already. Lengths are seconds at a job's own best speed: counted in seconds on the machines that they had, jobs that ran
on slow ones would make all others many times as long as they are. Jobs that have not ended are right-censored at what
they have done (Kaplan-Meier): otherwise a young cluster would underestimate lengths, because only short jobs have
ended. Arrivals repeat past hours, so bursts remain bursts.

Jobs of the same user and kind weigh more than others, by as much as they were closer to each other than any two:

    weight = V / D     V = var(log length)     D = mean of (log a - log b)^2 / 2 over pairs that are alike

An assumed weight would make the distribution of a hundred jobs that of the three that are alike, though these may tell
nothing. Of n jobs the next one is as likely to be longer than all, or shorter than all, as to have any other rank: its
probability is 1 / (n + 1) for each gap between them. So the drawn job is counted among those at risk, with the mean
weight of a job, sum w^2 / sum w: where all but a few jobs still run, the longest that has ended says little of what is
longest (Coolen and Yan's estimator: Kaplan-Meier's with 1 / (k + 1) in place of 1 / k). A value that many had to the
last digit, as the ratio 1 of all who state their length truly, may come again: a value is a new one with probability
(values that were seen once + 1) / (n + 1) (Good and Turing).

The distribution of jobs is itself only estimated. Futures that all drew from the same estimate would agree too closely
about a wait for thirty jobs, because thirty draws average out, while a mean of twenty lengths may well be wrong by
half. So each future weights the past anew (Rubin's Bayesian bootstrap), with the same weights for all its jobs; and
likewise the past pieces of time, because how often jobs arrive, and how large they are, is estimated too.

Nor are jobs of one project, user and kind independent: those that are submitted together often have one length, which
may be a new one. So in each future such a job takes, with probability p, the length of an active job of its group as it
was drawn, or of one that ended lately, times a lognormal factor of spread s (a Polya urn). With D of jobs that ended
one after the other in their group:

    p = 1 - D / V           s = sqrt(D / 2)
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from itertools import accumulate
from math import ceil, exp, inf, log, sqrt
from random import Random
from typing import Any

from walras.job_request import JobId, JobRequest

#: Maximum of ended jobs, and of arrivals, that are kept.
REMEMBERED_MAX = 2000
#: Maximum of the weight of an ended job that is alike, relative to any other.
_ALIKE_MAX = 30.0
#: Spread of lengths about the drawn value, because speeds are not known exactly: standard deviation of the logarithm;
#: less if many jobs were seen that hardly differ.
_SPEED_NOISE = 0.01
#: Values beyond all that was seen: their logarithm exceeds it by an exponential variable in units of the spread. This
#: is the prior spread, with the weight of one value.
_SPREAD_BEFORE = 1.0
#: Maximum of past jobs up to which each future weights them anew; with more, weights change little.
_WEIGHED_MOST = 400
#: Median seconds, and spread of the logarithm, if no job has ended yet: about those of published traces. And the
#: spread about guessed durations until one has ended: half are within 1.6 times the guess.
_FIRST_GUESS_S, _FIRST_SPREAD, _GUESS_SPREAD = 900.0, 2.0, 0.7
#: Stated steps are believed as if so many jobs had ended exactly as they stated.
_TRUE_BEFORE = 4
#: Maximum of a group's ended jobs whose lengths its active jobs may take; prior probability of that, and the number of
#: ended jobs that the prior counts as.
_LATELY, _TOGETHER, _TOGETHER_JOBS = 8, 0.8, 2.0
#: Greatest length in seconds of the pieces in which past arrivals are repeated.
_PIECE_S = 3600.0
#: Least number of pieces: with fewer, futures would agree too closely about the rate.
_PIECES_LEAST = 24
#: The least and the greatest time of which a server's first jobs may be all.
_BURST_S, _PAUSE_S = 600.0, 6 * 3600.0
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class EndedJob:
    """Length of an ended job, in seconds of running with its whole gang at its best speed."""

    user: str
    kind: str
    #: Seconds on the machines that it had: the length, unless `steps` and `request` give it.
    ran_s: float
    #: True over stated length; None if it stated none.
    ratio: float | None = None
    #: Steps that it made; 0: it reported none.
    steps: float = 0.0
    #: What it asked for, from which its best speed is known.
    request: JobRequest | None = None
    project: str = "default"
    #: Whether it was stopped by someone before its end, so that it is longer than what it ran.
    is_cut: bool = False
    #: Guess of its duration, seconds; None if it gave none.
    guess_s: float | None = None

    @property
    def group(self) -> tuple[str, str, str]:
        """Its project, user and kind."""
        return self.project, self.user, self.kind

    def value(self, of: "_Drawn") -> float:
        """Returns the value of this kind; 0 if it has none."""
        if of is _Drawn.RATIO:
            return self.ratio or 0.0
        if of is _Drawn.GUESS:
            return self.ran_s / self.guess_s if self.guess_s else 0.0
        return self.ran_s


class _Drawn(Enum):
    """What is drawn of a job: its length, or its true work as a multiple of its stated steps or its guessed length."""

    LENGTH = auto()
    RATIO = auto()
    GUESS = auto()


@dataclass(frozen=True, slots=True)
class Arrival:
    """A submitted job."""

    at: float
    request: JobRequest


@dataclass(slots=True)
class PastJobs:
    """The newest jobs that ended, and that were submitted; ascending in time."""

    ended: deque[EndedJob] = field(default_factory=lambda: deque(maxlen=REMEMBERED_MAX))
    arrivals: deque[Arrival] = field(default_factory=lambda: deque(maxlen=REMEMBERED_MAX))
    #: Instant since when arrivals are known; inf: none are.
    since_at: float = inf

    def arrived(self, at: float, request: JobRequest) -> None:
        """Records a submitted job."""
        if len(self.arrivals) == self.arrivals.maxlen:
            self.since_at = self.arrivals[0].at
        self.since_at = min(self.since_at, at)
        self.arrivals.append(Arrival(at, request))


class DrawnLengths:
    """Draws lengths of jobs, conditional on what is known of each."""

    def __init__(self, ended: Iterable[EndedJob], open_jobs: Iterable[EndedJob] = ()) -> None:
        """`ended` have their length as `ran_s`; `open_jobs` are those without a stated length that have not ended,
        with what they have done so far.
        """
        self._ended, self._open = list(ended), list(open_jobs)
        self._lately: dict[tuple[str, str, str], list[float]] = {}
        for job in self._ended:
            self._lately.setdefault(job.group, []).append(job.ran_s)
        self._like = {
            of: _Likeness([(job, value) for job in self._ended if (value := job.value(of)) > 0]) for of in _Drawn
        }
        self._together, self._apart = self._like[_Drawn.LENGTH].together, self._like[_Drawn.LENGTH].apart
        self._weigh(lambda: 1.0)
        #: In a future, by group: lengths that its next job may have.
        self._drawn: dict[tuple[str, str, str], list[float]] = {}

    def _weigh(self, draw: Callable[[], float]) -> None:
        """Draws the weight of each past job, and of one more."""
        self._weights, self._open_weights = [draw() for _ in self._ended], [draw() for _ in self._open]
        self._one = draw()
        self._tables: dict[tuple[_Drawn, str, str, str], _Weighted] = {}

    def of_future(self, luck: str) -> "DrawnLengths":
        """Returns the same past with the weights of one future, in which jobs of a group have lengths in common."""
        future = copy(self)
        if len(self._ended) + len(self._open) <= _WEIGHED_MOST:
            chance = Random(f"{luck}/past")
            future._weigh(lambda: chance.expovariate(1.0))
        future._drawn = {group: values[-_LATELY:] for group, values in self._lately.items()}
        return future

    def ratio(self, request: JobRequest, least: float, chance: Random) -> float:
        """Returns a drawn ratio of true to stated work, above `least`, the ratio done already."""
        known = self._table(_Drawn.RATIO, request)
        if known is None:
            return chance.lognormvariate(0.0, _SPEED_NOISE) if least < 1.0 else _beyond(least, chance)
        return known.draw(least, chance)

    def length_s(self, request: JobRequest, had_s: float, chance: Random, *, joins: bool = False) -> float:
        """Returns the drawn length of a job that states no steps, seconds at its best speed, above `had_s`.

        If it `joins`, later jobs of its group may take its length in this future.
        """
        if request.duration_s is not None:
            return self._drawn_alone_s(request, had_s, chance)
        group, drawn = (request.project, request.user, request.kind), 0.0
        of_group = self._drawn.get(group, ())
        if of_group and chance.random() < self._together:
            drawn = of_group[chance.randrange(len(of_group))] * chance.lognormvariate(0.0, self._apart)
        if drawn <= had_s:
            drawn = self._drawn_alone_s(request, had_s, chance)
        if joins:
            self._drawn.setdefault(group, []).append(drawn)
        return drawn

    def steps_left(
        self, request: JobRequest, done: tuple[float, float], best: float, chance: Random, *, joins: bool = False
    ) -> float:
        """Returns the drawn steps left of a job that has done (steps, seconds of its whole gang at its best speed).

        `best` is that speed, steps per second; `joins` as for `length_s`.
        """
        steps, had_s = done
        if request.steps is not None and request.steps > 0:
            part = steps / request.steps
            return max(self.ratio(request, part, chance) - part, 1e-6) * request.steps
        return max(self.length_s(request, had_s, chance, joins=joins) - had_s, 1.0) * best

    def _drawn_alone_s(self, request: JobRequest, had_s: float, chance: Random) -> float:
        of, unit_s, first_s, spread = _Drawn.LENGTH, 1.0, _FIRST_GUESS_S, _FIRST_SPREAD
        if request.duration_s is not None:
            of, unit_s, first_s, spread = _Drawn.GUESS, request.duration_s, request.duration_s, _GUESS_SPREAD
        known = self._table(of, request)
        if known is not None:
            return unit_s * known.draw(had_s / unit_s, chance)
        drawn = first_s * chance.lognormvariate(0.0, spread)
        return drawn if drawn > had_s else _beyond(had_s, chance, min(spread, 1.0))

    def _table(self, of: _Drawn, request: JobRequest) -> "_Weighted | None":
        key = of, request.project, request.user, request.kind
        if key not in self._tables:
            like = self._like[of]
            seen = ((self._ended, self._weights), (self._open, self._open_weights))
            known, longer = (
                [
                    (value, part, like.weight(job, request))
                    for job, part in zip(jobs, parts, strict=True)
                    if (value := job.value(of)) > 0
                ]
                for jobs, parts in seen
            )
            weights = [weight for _, _, weight in (*known, *longer)]
            one = sum(each * each for each in weights) / max(sum(weights), 1e-9)
            if of is _Drawn.RATIO and known:
                known += [(1.0, 1.0, 1.0)] * _TRUE_BEFORE
            below, above = ([(value, part * weight) for value, part, weight in each] for each in (known, longer))
            self._tables[key] = _Weighted(below, above, one * self._one)
        return self._tables[key] if self._tables[key].values else None


class _Likeness:
    """How much closer to each other values of jobs are that are alike, and how much these weigh therefore."""

    def __init__(self, seen: list[tuple[EndedJob, float]]) -> None:
        """`seen` are ended jobs with the value in question, in the order in which they ended."""
        logs = [log(max(value, 1e-3)) for _, value in seen]
        of_group: dict[tuple[str, str, str], float] = {}
        of_user: dict[tuple[str, str], tuple[str, float]] = {}
        alike, of_same_user = list[float](), list[float]()
        for (job, _), value in zip(seen, logs, strict=True):
            if job.group in of_group:
                alike.append(0.5 * (value - of_group[job.group]) ** 2)
            kind, former = of_user.get((job.project, job.user), (job.kind, 0.0))
            if kind != job.kind:
                of_same_user.append(0.5 * (value - former) ** 2)
            of_group[job.group], of_user[job.project, job.user] = value, (job.kind, value)
        #: The probability that a job has the value of another of its group, and the spread of the logarithm then.
        self.together, self.apart = _togetherness(logs, alike)
        self._alike = min(1.0 / max(1.0 - self.together, 1e-9), _ALIKE_MAX)
        self._same_user = min(1.0 / max(1.0 - _togetherness(logs, of_same_user)[0], 1e-9), self._alike)

    def weight(self, job: EndedJob, request: JobRequest) -> float:
        """Returns the weight of an ended job for this request, relative to a job of another user."""
        if job.user != request.user or job.project != request.project:
            return 1.0
        return self._alike if job.kind == request.kind else self._same_user


def _togetherness(logs: list[float], pairs: list[float]) -> tuple[float, float]:
    """Returns the probability that a job has the value of another one of a pair, and the spread of the logarithm then.

    `logs` are the logarithms of all values, `pairs` half of the squared differences of those that are alike.
    """
    middle = sum(logs) / max(len(logs), 1)
    whole = (sum((each - middle) ** 2 for each in logs) + _TOGETHER_JOBS) / (len(logs) + _TOGETHER_JOBS)
    prior = _TOGETHER_JOBS * (1.0 - _TOGETHER) * whole
    apart = min((sum(pairs) + prior) / (len(pairs) + _TOGETHER_JOBS), whole)
    return 1.0 - apart / whole, sqrt(0.5 * apart)


def _beyond(least: float, chance: Random, spread: float = 1.0) -> float:
    """Draws a value above `least` where none that large was seen.

    With `spread` 1 it is above twice `least` with probability 1/2.
    """
    return least * exp(-spread * log(max(1.0 - chance.random(), 0.02)))


class _Weighted:
    """A distribution of weighted values, drawn from above a bound.

    A drawn value is one more of those that were seen: it is one of them, or lies between two neighbours, above all or
    below all, with probabilities that follow from its being at risk with them. `longer` are right-censored values: each
    gives its weight to what lies above it, in proportion, and to values beyond all that were seen. (Without censoring,
    and with equal weights, each of the n + 1 gaps has the same probability.)
    """

    def __init__(self, weighted: list[tuple[float, float]], longer: list[tuple[float, float]], one: float) -> None:
        """`one` is the weight of a drawn value."""
        self.values: list[float] = []
        #: Probability of being below each value.
        self._sums: list[float] = []
        once = sum(many == 1 for many in Counter(value for value, _ in weighted).values())
        self._new = (once + 1.0) / (len(weighted) + 1.0)
        self._one = one * self._new
        at_risk, left = self._one + sum(weight for _, weight in (*weighted, *longer)), 1.0
        # Among equal values the known one comes first, because the censored one is longer.
        known, unknown = ((value, False, weight) for value, weight in weighted), ((v, True, w) for v, w in longer)
        for value, is_open, weight in sorted([*known, *unknown]):
            if not is_open:
                left *= 1.0 - weight / at_risk
                self.values.append(value)
                self._sums.append(1.0 - left)
            at_risk -= weight
        self._spread, self._noise = _spread_of([value for value, _ in (*weighted, *longer)], len(weighted))
        #: Censored values above all known ones, and the part of what lies beyond these that each of them makes likely.
        self._bounds = [(bound, weight) for bound, weight in longer if not self.values or bound >= self.values[-1]]
        self._of_bounds = sum(weight for _, weight in self._bounds)

    def draw(self, least: float, chance: Random) -> float:
        """Draws a value above `least`; values beyond all that were seen are always possible."""
        first = bisect_left(self.values, least * 1.0000001)
        if first == len(self.values):
            return _beyond(max(least, self._bound(chance)), chance)
        below = self._below(first) + self._part_below(first, least) * (self._sums[first] - self._below(first))
        place = below + chance.random() * (1.0 - below)
        if place > self._sums[-1]:
            return _beyond(max(self.values[-1], self._bound(chance)), chance, self._spread)
        at = max(bisect_left(self._sums, place), first)
        part = max((place - self._below(at)) / max(self._sums[at] - self._below(at), 1e-12), 1e-12)
        if self._new < 1.0 and chance.random() >= self._new:
            part = 1.0  # the value itself
        short_by = exp((part - 1.0) * self._step(at) if at else self._spread * log(part))
        return max(self.values[at] * short_by * chance.lognormvariate(0.0, self._noise), least * 1.0001)

    def _below(self, at: int) -> float:
        return self._sums[at - 1] if at else 0.0

    def _step(self, at: int) -> float:
        """Returns how much the logarithm of a value exceeds that of the one before it."""
        return log(self.values[at] / self.values[at - 1])

    def _part_below(self, at: int, least: float) -> float:
        """Returns the part of the gap below a value that is below `least`; in a gap the logarithm is uniform."""
        if least <= 0.0:
            return 0.0
        if not at:
            return exp(log(least / self.values[0]) / self._spread)
        step = self._step(at)
        return max(log(least / self.values[at - 1]), 0.0) / step if step > 0.0 else 0.0

    def _bound(self, chance: Random) -> float:
        """Draws which censored value a value beyond all known ones is above; 0: none."""
        place = chance.random() * (self._one + self._of_bounds)
        for bound, weight in self._bounds:
            place -= weight
            if place < 0.0:
                return bound
        return 0.0


def _spread_of(values: list[float], known: int) -> tuple[float, float]:
    """Returns spreads of the logarithm: of values beyond these, and about each of these.

    The first is their standard deviation with one prior value of spread 1, at most 1; only `known` of them count as
    values, for a censored one is at least as far from the others as it seems. The second is the bandwidth of a kernel
    (Silverman) plus the part of `_SPEED_NOISE` that remains with so many values.
    """
    if not values:
        return 1.0, _SPEED_NOISE
    logs, many = [log(value) for value in values], len(values)
    middle = sum(logs) / many
    squares = sum((each - middle) ** 2 for each in logs)
    noise = 1.06 * sqrt(squares / many) * many**-0.2 + _SPEED_NOISE / sqrt(1 + many)
    return min(sqrt((_SPREAD_BEFORE**2 + squares) / (1 + known)), 1.0), min(noise, _SPEED_NOISE)


def drawn_arrivals(past: PastJobs, now: float, chance: Random) -> Iterator[Arrival]:
    """Yields future arrivals without end, ascending: random past pieces, of the same hour of the day if known.

    How often each piece or day comes is drawn once. Their job ids and dependencies are those of the past. Yields
    nothing if no job arrived before now.
    """
    known = list(past.arrivals)
    if not known or past.since_at >= now:
        return
    since_at, span_s = past.since_at, now - past.since_at
    if span_s < _PIECE_S:
        yield from _as_in_first_hour(known, now, max(span_s, _BURST_S), chance)
    instants, begins_at = [each.at for each in known], now
    before_now = bisect_left(instants, now)
    if bisect_left(instants, since_at) == before_now:
        return
    days = int(span_s // _DAY_S) if span_s >= 2 * _DAY_S else 0
    if bisect_left(instants, now - days * _DAY_S) == before_now:
        days = 0  # Nobody came in the last whole days: no such piece holds an arrival, but others reach further back.
    pieces = max(ceil(span_s / _PIECE_S), _PIECES_LEAST)
    piece_s = _PIECE_S if days else span_s / pieces
    sums = list(accumulate(chance.expovariate(1.0) for _ in range(days or pieces)))
    while True:
        drawn = bisect_left(sums, chance.random() * sums[-1])
        if days:
            back_s = _DAY_S * (1 + drawn + max(0.0, (begins_at - now) // _DAY_S))
            source_at = min(max(begins_at - back_s, since_at), now - piece_s)
        else:
            source_at = since_at + drawn * piece_s
        for index in range(bisect_left(instants, source_at), bisect_left(instants, source_at + piece_s)):
            arrival = known[index]
            yield Arrival(begins_at + max(arrival.at - source_at, 0.0), arrival.request)
        begins_at += piece_s


def _as_in_first_hour(known: Sequence[Arrival], now: float, span_s: float, chance: Random) -> Iterator[Arrival]:
    """Yields future arrivals without end where less than an hour is known, from `now - span_s` on.

    Whether the jobs of a server's first minutes are a rate or a burst with a quiet hour around it is unknown. So they
    are all that come within a drawn time between the known span and `_PAUSE_S`, uniform in its logarithm.
    """
    every_s, begins_at = span_s * (_PAUSE_S / span_s) ** chance.random(), now
    while True:
        turned_s = every_s * chance.random()
        again = ((begins_at + (arrival.at - now + turned_s) % every_s, arrival.request) for arrival in known)
        yield from (Arrival(*each) for each in sorted(again, key=lambda each: each[0]))
        begins_at += every_s


def as_newcomer(arrival: Arrival, job_id: JobId) -> JobRequest:
    """Returns the request of a future job like that past arrival."""
    deadline_at = inf if arrival.request.deadline_at == inf else arrival.at + _DAY_S
    changed: dict[str, Any] = {"depends_on": (), "held": False, "not_before_at": -inf, "deadline_at": deadline_at}
    return replace(arrival.request, job_id=job_id, **changed)
