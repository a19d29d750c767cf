"""What the recent past tells of what nobody knows yet: how long jobs turn out to be, and which jobs will come.

A job that states its length is as long as it says, times a ratio that ended jobs showed. One that states none is as
long as ended jobs were, given that it has run so long already. Those that have not ended count as longer than they have
run so far (the estimate of Kaplan and Meier): else a young cluster would take all jobs for short, for only short ones
have ended. Jobs of the same user and kind count for more than others. Arrivals are those of past hours once more:
bursts stay bursts.

How jobs are distributed is itself only known as far as jobs were seen. Futures that all drew from what was seen would
agree on a wait for thirty jobs, for thirty draws average out, while a mean of twenty lengths may well be wrong by half:
so each future weighs the past anew (Rubin's Bayesian bootstrap), and all its jobs by the same weights.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import exp, inf, log, sqrt
from random import Random

from walras.job_request import JobId, JobRequest

#: Jobs remembered of each sort.
REMEMBERED_MAX = 2000
#: So much more does a job of the same user and kind count than any other; and one of the same user.
_ALIKE, _SAME_USER = 30.0, 6.0
#: Spread of lengths about what was said or seen: speeds are not known exactly. Standard deviation of the logarithm;
#: less where many jobs were seen that hardly differ.
_SPEED_NOISE = 0.03
#: How far beyond all that was seen a value lies that is: of its logarithm, in units of their spread, exponential. The
#: spread is taken as 1 before anything was seen, which counts as much as one value.
_SPREAD_BEFORE = 1.0
#: The past is weighed anew for each future as long as it is no more than this: of more, the weights say little.
_WEIGHED_MOST = 400
#: Where nothing has ended yet: an hour, give or take.
_FIRST_GUESS_S, _FIRST_SPREAD = 3600.0, 1.5
#: Past arrivals are repeated in pieces of this length.
_PIECE_S = 3600.0
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class EndedJob:
    """How long a job was, seconds of running with its whole gang."""

    user: str
    kind: str
    ran_s: float
    #: What it turned out to be over what it had stated; None where it stated nothing.
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job that was submitted."""

    at: float
    request: JobRequest


@dataclass(slots=True)
class PastJobs:
    """The newest jobs that ended, and that were submitted; ascending in time."""

    ended: deque[EndedJob] = field(default_factory=lambda: deque(maxlen=REMEMBERED_MAX))
    arrivals: deque[Arrival] = field(default_factory=lambda: deque(maxlen=REMEMBERED_MAX))
    #: Since when arrivals are known; inf: none are.
    since_at: float = inf

    def arrived(self, at: float, request: JobRequest) -> None:
        """Note a submitted job."""
        if len(self.arrivals) == self.arrivals.maxlen:
            self.since_at = self.arrivals[0].at
        self.since_at = min(self.since_at, at)
        self.arrivals.append(Arrival(at, request))


class DrawnLengths:
    """Draws lengths, each given what is known of its job."""

    def __init__(self, ended: Iterable[EndedJob], open_jobs: Iterable[EndedJob] = (), luck: str = "") -> None:
        """`open_jobs`: those without a stated length that have not ended, as long as they have run so far.

        `luck`: names the future that weighs them; empty: each counts alike.
        """
        self._ended, self._open = list(ended), list(open_jobs)
        many, chance = len(self._ended) + len(self._open), Random(f"{luck}/past")
        drawn = [chance.expovariate(1.0) if luck else 1.0 for _ in range(many)]
        self._weights, self._open_weights = drawn[: len(self._ended)], drawn[len(self._ended) :]
        self._lengths: dict[tuple[str, str], _Weighted] = {}
        self._ratios: dict[tuple[str, str], _Weighted] = {}

    def of_future(self, luck: str) -> "DrawnLengths":
        """The same past as one future weighs it."""
        is_short = len(self._ended) + len(self._open) <= _WEIGHED_MOST
        return DrawnLengths(self._ended, self._open, luck) if is_short else self

    def ratio(self, request: JobRequest, least: float, chance: Random) -> float:
        """True work over stated work; above `least`, which has been done already."""
        known = self._table(self._ratios, request, is_ratio=True)
        if known is None:
            return chance.lognormvariate(0.0, _SPEED_NOISE) if least < 1.0 else _beyond(least, chance)
        return known.draw(least, chance)

    def length_s(self, request: JobRequest, had_s: float, chance: Random) -> float:
        """Seconds of running in all of a job that states no length; above `had_s`."""
        known = self._table(self._lengths, request, is_ratio=False)
        if known is None:
            middle_s = request.duration_s or _FIRST_GUESS_S
            drawn = middle_s * chance.lognormvariate(0.0, _FIRST_SPREAD)
            return drawn if drawn > had_s else _beyond(had_s, chance)
        return known.draw(had_s, chance)

    def _table(
        self, tables: "dict[tuple[str, str], _Weighted]", request: JobRequest, *, is_ratio: bool
    ) -> "_Weighted | None":
        key = request.user, request.kind
        if key not in tables:
            weighed = [(job, part * _alike(job, request)) for job, part in zip(self._ended, self._weights, strict=True)]
            seen = [(job.ratio if is_ratio else job.ran_s, weight) for job, weight in weighed]
            known = [(value, weight) for value, weight in seen if value is not None and value > 0]
            active = [] if is_ratio else zip(self._open, self._open_weights, strict=True)
            longer = [(job.ran_s, part * _alike(job, request)) for job, part in active if job.ran_s > 0]
            tables[key] = _Weighted(known, longer)
        return tables[key] if tables[key].is_known else None


def _alike(job: EndedJob, request: JobRequest) -> float:
    """How much more a job says of this request than one of anybody's."""
    is_same = job.user == request.user
    return _ALIKE if is_same and job.kind == request.kind else _SAME_USER if is_same else 1.0


def _beyond(least: float, chance: Random, spread: float = 1.0) -> float:
    """A value above `least` where nothing that large was seen: with `spread` 1 as likely above twice as below."""
    return least * exp(-spread * log(max(1.0 - chance.random(), 0.02)))


class _Weighted:
    """A distribution: values with weights, drawn from above a bound.

    `longer`: lower bounds of values that nobody knows yet. Each gives its weight to what is above it, in proportion;
    where nothing is, to what was never seen.
    """

    def __init__(self, weighted: list[tuple[float, float]], longer: list[tuple[float, float]]) -> None:
        self._values: list[float] = []
        self._sums: list[float] = []
        whole = at_risk = sum(weight for _, weight in (*weighted, *longer))
        left, total = 1.0, 0.0
        # At equal values one that is known comes first: the other is longer.
        known, unknown = ((value, False, weight) for value, weight in weighted), ((v, True, w) for v, w in longer)
        for value, is_open, weight in sorted([*known, *unknown]):
            if not is_open:
                part = left * weight / at_risk
                left -= part
                total += part * whole
                self._values.append(value)
                self._sums.append(total)
            at_risk -= weight
        #: Weight of what is above all that was seen, and the bounds that it lies above.
        self._rest = max(left, 0.0) * whole if longer else 0.0
        self._spread, self._noise = _spread_of([value for value, _ in (*weighted, *longer)])
        self._bounds = [bound for bound, _ in longer if not self._values or bound >= self._values[-1]]

    @property
    def is_known(self) -> bool:
        return bool(self._values)

    def draw(self, least: float, chance: Random) -> float:
        """One value above `least`; a little beyond what was seen is always possible."""
        first = bisect_left(self._values, least * 1.0000001)
        below = self._sums[first - 1] if first else 0.0
        above = self._sums[-1] - below
        # One more than was seen may be longer than all of them.
        if above <= 0.0 or chance.random() < (1.0 + self._rest) / (1.0 + self._rest + above):
            seen = self._values[-1] if above > 0.0 else 0.0
            if self._bounds and chance.random() * (1.0 + self._rest) < self._rest:
                seen = max(seen, self._bounds[chance.randrange(len(self._bounds))])
            return _beyond(max(least, seen), chance, self._spread if above > 0.0 else 1.0)
        at = bisect_left(self._sums, below + chance.random() * above)
        value = self._values[min(max(at, first), len(self._values) - 1)] * chance.lognormvariate(0.0, self._noise)
        return max(value, least * 1.0001)


def _spread_of(values: list[float]) -> tuple[float, float]:
    """How far beyond them a value may lie, and how far from each: both of the logarithm.

    The former is their standard deviation with one value of spread 1 before them, at most 1. The latter is the width
    of a kernel (Silverman), and what is left of `_SPEED_NOISE` after so many.
    """
    if not values:
        return 1.0, _SPEED_NOISE
    logs, many = [log(value) for value in values], len(values)
    middle = sum(logs) / many
    squares = sum((each - middle) ** 2 for each in logs)
    noise = 1.06 * sqrt(squares / many) * many**-0.2 + _SPEED_NOISE / sqrt(1 + many)
    return min(sqrt((_SPREAD_BEFORE**2 + squares) / (1 + many)), 1.0), min(noise, _SPEED_NOISE)


def drawn_arrivals(past: PastJobs, now: float, chance: Random) -> Iterator[Arrival]:
    """Jobs to come, for ever, ascending in time: hours of the past by chance, of the same hour of the day if known.

    Numbers and dependencies are those of the past; nothing where no job ever came.
    """
    known = list(past.arrivals)
    span_s = now - past.since_at
    if not known or span_s <= 0:
        return
    piece_s = min(_PIECE_S, span_s)
    instants, begins_at = [each.at for each in known], now
    while True:
        if span_s >= 2 * _DAY_S:
            back_s = _DAY_S * chance.randint(1, int(span_s // _DAY_S))
            source_at = begins_at - back_s - _DAY_S * max(0.0, (begins_at - now) // _DAY_S)
            source_at = max(source_at, past.since_at)
        else:
            source_at = past.since_at + chance.random() * (span_s - piece_s)
        source_at = min(source_at, now - piece_s)
        for index in range(bisect_left(instants, source_at), bisect_left(instants, source_at + piece_s)):
            arrival = known[index]
            yield Arrival(begins_at + max(arrival.at - source_at, 0.0), arrival.request)
        begins_at += piece_s


def as_newcomer(arrival: Arrival, job_id: JobId) -> JobRequest:
    """The request of a job that will come as that one did."""
    request, later_s = arrival.request, 0.0
    deadline_at = request.deadline_at
    return replace(
        request,
        job_id=job_id,
        depends_on=(),
        held=False,
        not_before_at=-inf,
        deadline_at=deadline_at if deadline_at == inf else arrival.at + later_s + _DAY_S,
    )
