"""What the recent past tells of what nobody knows yet: how long jobs turn out to be, and which jobs will come.

A job that states its length is as long as it says, times a ratio that ended jobs showed. One that states none is as
long as ended jobs were, given that it has run so long already. Those that have not ended count as longer than they have
run so far (the estimate of Kaplan and Meier): else a young cluster would take all jobs for short, for only short ones
have ended. Jobs of the same user and kind count for more than others. Arrivals are those of past hours once more:
bursts stay bursts.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from random import Random

from walras.job_request import JobId, JobRequest

#: Jobs remembered of each sort.
REMEMBERED_MAX = 2000
#: So much more does a job of the same user and kind count than any other; and one of the same user.
_ALIKE, _SAME_USER = 30.0, 6.0
#: Spread of lengths about what was said or seen: speeds are not known exactly. Standard deviation of the logarithm.
_SPEED_NOISE = 0.03
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

    def __init__(self, ended: Iterable[EndedJob], open_jobs: Iterable[EndedJob] = ()) -> None:
        """`open_jobs`: those without a stated length that have not ended, as long as they have run so far."""
        self._ended, self._open = list(ended), list(open_jobs)
        self._lengths: dict[tuple[str, str], _Weighted] = {}
        self._ratios: dict[tuple[str, str], _Weighted] = {}

    def ratio(self, request: JobRequest, least: float, chance: Random) -> float:
        """True work over stated work; above `least`, which has been done already."""
        known = self._table(self._ratios, request, is_ratio=True)
        noise = chance.lognormvariate(0.0, _SPEED_NOISE)
        if known is None:
            return max(1.0, least) * noise if least < 1.0 else _beyond(least, chance)
        return known.draw(least, chance) * (noise if least <= 0.0 else 1.0)

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
            seen = [(each.ratio if is_ratio else each.ran_s, _alike(each, request)) for each in self._ended]
            known = [(value, weight) for value, weight in seen if value is not None and value > 0]
            longer = [] if is_ratio else [(each.ran_s, _alike(each, request)) for each in self._open if each.ran_s > 0]
            tables[key] = _Weighted(known, longer)
        return tables[key] if tables[key].is_known else None


def _alike(job: EndedJob, request: JobRequest) -> float:
    """How much more a job says of this request than one of anybody's."""
    is_same = job.user == request.user
    return _ALIKE if is_same and job.kind == request.kind else _SAME_USER if is_same else 1.0


def _beyond(least: float, chance: Random) -> float:
    """A value above `least` where nothing that large was seen: as likely above twice as below."""
    return least / max(1.0 - chance.random(), 0.02)


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
            return _beyond(max(least, seen), chance)
        at = bisect_left(self._sums, below + chance.random() * above)
        value = self._values[min(max(at, first), len(self._values) - 1)] * chance.lognormvariate(0.0, _SPEED_NOISE)
        return max(value, least * 1.0001)


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
