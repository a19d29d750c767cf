"""Parallel plans of one training job over accelerators of two types: the fastest for every number of each.

A plan says how many stages the pipeline has, how many replicas hold each stage, on which type, with which degree of
tensor parallelism, and how large a micro-batch is. Its time is that of the slowest stage for every micro-batch but one,
one way through the pipeline, and the longest exchange of gradients. All plans of this form are compared: one type holds
the stages at both ends, the other those between, and at most one stage beside them is held by replicas of both; each
type has one degree everywhere, higher only where a stage would not fit. Then a pair of counts (first type, second) is
worth having if no plan with as few of both is as fast.

Decides from measured layers alone; prices play no part, so a menu holds whatever accelerators cost.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from optimizer.planning.layer_profiles import Link, LinkEnds, ModelProfile, cut_layers, exchange_s, fits, stage_sums
from optimizer.problem import FloatArray, IntArray

#: Who holds a stage: replicas on the first type, on the second, on both.
FIRST, SECOND, BOTH = 0, 1, 2
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """One stage of a pipeline."""

    layers: int
    #: Replicas on each type, and the accelerators of one replica there.
    replicas: tuple[int, int]
    degrees: tuple[int, int]


@dataclass(frozen=True, slots=True)
class MixedPlan:
    """The fastest plan on so many accelerators of the two types."""

    accelerators: tuple[int, int]
    steps_per_s: float
    micro_batch: int
    stages: tuple[PlannedStage, ...]


def plan_mixes(profile: ModelProfile, most: tuple[int, int]) -> list[MixedPlan]:
    """The plan of every useful pair of counts up to `most`, by the first count, then the second; empty: none fits.

    Args:
        profile: measured layers on one type or two; with one, the second count is always 0.
        most: accelerators of each type that there are.
    """
    search = _Search(most)
    for micro_batch in sorted({size for kind in profile.types for size, _ in kind.pass_s}):
        for stages in range(1, profile.layers + 1):
            family = _family(profile, micro_batch, stages, most)
            if family is not None:
                for times in family.plans():
                    search.add(times)
    return search.useful()


def thinned(menu: Sequence[MixedPlan], multiple: int, part: float) -> list[MixedPlan]:
    """Few plans of a menu, in its order, that hold accelerators of each type in multiples, used or not.

    For each pair of such counts one that is kept holds no more and is at most `part` of the speed slower than the menu.
    """
    counts = np.array([plan.accelerators for plan in menu], dtype=np.int64).reshape(-1, 2)
    rate = np.array([plan.steps_per_s for plan in menu])
    takes = -(-counts // multiple)
    # Of equal counts the fastest; of those left, the ones that no fewer are as fast as.
    order = np.lexsort((-rate, takes[:, 1], takes[:, 0]))
    order = order[np.diff(takes[order], axis=0, prepend=-1).any(axis=1)]
    takes, rate = takes[order], rate[order]
    no_more = (takes[:, None] <= takes[None]).all(axis=2)
    best = np.where(no_more, rate[:, None], 0.0).max(axis=0, initial=0.0)
    useful = (no_more & (rate[:, None] >= rate[None])).sum(axis=0) == 1  # but itself
    serves = no_more & (rate[:, None] >= (1.0 - part) * best[None])
    serves = serves[np.ix_(useful, useful)]
    score, kept = np.count_nonzero(serves, axis=1), []
    while int(score.max(initial=0)):
        chosen = int(np.argmax(score))
        kept.append(chosen)
        closed = np.flatnonzero(serves[chosen])
        score = score - np.count_nonzero(serves[:, closed], axis=1)
        serves[:, closed] = False
    chosen_rows = np.sort(np.flatnonzero(useful)[kept])
    return [
        replace(menu[order[row]], accelerators=(int(first) * multiple, int(second) * multiple))
        for row, (first, second) in zip(chosen_rows.tolist(), takes[chosen_rows].tolist(), strict=True)
    ]


# ------------------------------------------------------------------------------------------------ plans of one shape


@dataclass(frozen=True, slots=True, eq=False)
class _Times:
    """Plans with one micro-batch, one pipeline and one choice of degrees: k ways to hold the stages, r replicas."""

    micro_batch: int
    cuts: IntArray
    #: Degree of each stage on each type (2, s); 0: it fits with none.
    degree: IntArray
    #: Who holds each stage (k, s).
    holders: IntArray
    replicas: IntArray
    #: Seconds of a step (k, r); inf where it does not fit.
    step_s: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class _Family:
    """All plans with one micro-batch and one number of stages."""

    profile: ModelProfile
    micro_batch: int
    cuts: IntArray
    replicas: IntArray
    #: Accelerators of each type that there are.
    most: tuple[int, int]
    #: Seconds of a message between two ends, by its bytes; inf: no such link was measured.
    _sent: dict[tuple[LinkEnds, float], float] = field(default_factory=dict)

    def plans(self) -> Iterator[_Times]:
        """The plans by the degrees of the two types."""
        kinds = self.profile.types
        holders = _ways_to_hold(len(self.cuts) - 1, len(kinds))
        seen = set()
        schedules = [self._schedules(row) for row in range(len(kinds))]
        alone = np.zeros(len(self.cuts) - 1, dtype=np.int64)
        for first in schedules[0]:
            for second in schedules[1] if len(kinds) > 1 else [alone]:
                degree = np.stack([first, second])
                if degree.tobytes() not in seen and degree.any(axis=0).all():
                    seen.add(degree.tobytes())
                    yield self._times(degree, holders)

    def _schedules(self, row: int) -> list[IntArray]:
        """For each least degree: that of each stage on the type, the lowest with which it fits; 0: none (s,)."""
        kind = self.profile.types[row]
        known = [each for each in self.profile.degrees(kind.name) if (self.micro_batch, each) in kind.pass_s]
        held = {each: fits(self.profile, kind, each, self.micro_batch, self.cuts) for each in known}
        found = []
        for least in known or [0]:
            lowest = np.zeros(len(self.cuts) - 1, dtype=np.int64)
            for each in reversed([each for each in known if each >= least]):
                lowest = np.where(held[each], each, lowest)
            found.append(lowest)
        return found

    def _times(self, degree: IntArray, holders: IntArray) -> _Times:
        takes = np.stack([np.where(holders == row, degree[row], 0).sum(axis=1) for row in (FIRST, SECOND)], axis=1)
        compute, send = self._compute(degree), self._send(degree)
        place = np.arange(len(self.cuts) - 1)
        fitting = np.isfinite(compute[holders, place]).all(axis=1) & (takes <= self.most).all(axis=1)
        holders = holders[fitting]
        own = compute[holders, place]
        sent, received = np.zeros_like(own), np.zeros_like(own)
        sent[:, :-1] = send[holders[:, :-1], holders[:, 1:], place[:-1]]
        received[:, 1:] = sent[:, :-1]
        slowest = (own + sent + received).max(axis=1)
        waves = np.ceil(self.profile.batch / (self.micro_batch * self.replicas)) - 1.0
        exchange = np.zeros((len(holders), len(self.replicas)))
        for stage, known in enumerate(self._exchange(degree).transpose(1, 0, 2)):
            np.maximum(exchange, known[holders[:, stage]], out=exchange)
        step_s = (own.sum(axis=1) + 2.0 * sent.sum(axis=1))[:, None] + waves * slowest[:, None] + exchange
        if len(place) == 1:  # in a longer pipeline the update of a stage hides behind the others
            step_s += self._update(degree)[holders[:, 0], None]
        return _Times(self.micro_batch, self.cuts, degree, holders, self.replicas, step_s)

    def _compute(self, degree: IntArray) -> FloatArray:
        """Seconds of a micro-batch in each stage by who holds it (3, s); inf: it does not fit."""
        found = np.full((3, degree.shape[1]), np.inf)
        for row, kind in enumerate(self.profile.types):
            for each in np.unique(degree[row][degree[row] > 0]).tolist():
                sums = stage_sums(kind.pass_s[self.micro_batch, each], self.cuts)
                found[row] = np.where(degree[row] == each, sums, found[row])
        found[BOTH] = np.maximum(found[FIRST], found[SECOND])
        return found

    def _update(self, degree: IntArray) -> FloatArray:
        found = np.zeros(3)
        for row, kind in enumerate(self.profile.types):
            found[row] = kind.update_s.get((self.micro_batch, int(degree[row, 0])), 0.0)
        found[BOTH] = found.max()
        return found

    def _send(self, degree: IntArray) -> FloatArray:
        """Seconds from each stage to the next by who holds them, the first type's replicas first (3, 3, s - 1)."""
        size = self.micro_batch * self.profile.sizes[1].output[self.cuts[1:-1] - 1]
        one = np.full((2, 2, len(size)), np.inf)
        kinds = self.profile.types
        for sender, kind in enumerate(kinds):
            for receiver, other in enumerate(kinds):
                for stage, message in enumerate(size.tolist()):
                    ends = (kind.name, int(degree[sender, stage]), other.name, int(degree[receiver, stage + 1]))
                    one[sender, receiver, stage] = self._message_s(ends, message)
        found = np.full((3, 3, len(size)), np.inf)
        found[:2, :2] = one
        found[:2, BOTH] = one.max(axis=1)
        found[BOTH, :2] = one.max(axis=0)
        return found

    def _message_s(self, ends: LinkEnds, message: float) -> float:
        if (ends, message) not in self._sent:
            link = self.profile.links.get(ends)
            self._sent[ends, message] = np.inf if link is None else float(link.seconds(np.array(message)))
        return self._sent[ends, message]

    def _exchange(self, degree: IntArray) -> FloatArray:
        """Seconds of the exchange of gradients by who holds the stage (3, s, r): over the slowest link among them."""
        total = stage_sums(self.profile.sizes[1].parameters, self.cuts)
        found = np.full((3, len(total), len(self.replicas)), np.inf)
        known: dict[tuple[int, int, float], FloatArray] = {}
        for stage, size in enumerate(total.tolist()):
            ways = [(row, int(degree[row, stage])) for row in range(len(self.profile.types)) if degree[row, stage]]
            for row, each in ways:
                found[row, stage] = self._ring(known, row, each, size)
            if len(ways) > 1:
                slow = min(ways, key=lambda way: self._link(*way).most_bytes_per_s)[0]
                found[BOTH, stage] = self._ring(known, slow, min(each for _, each in ways), size)
        return found

    def _link(self, row: int, degree: int) -> Link:
        name = self.profile.types[row].name
        return self.profile.links[name, degree, name, degree]

    def _ring(self, known: dict[tuple[int, int, float], FloatArray], row: int, degree: int, size: float) -> FloatArray:
        key = (row, degree, size)
        if key not in known:
            known[key] = exchange_s(self._link(row, degree), size, self.replicas.astype(np.float64))
        return known[key]


def _family(profile: ModelProfile, micro_batch: int, stages: int, most: tuple[int, int]) -> _Family | None:
    """All plans of so many stages, with the fewest replicas for each number of micro-batches; None: none has room."""
    waves = np.ceil(profile.batch / (micro_batch * np.arange(1, sum(most) // stages + 1)))
    replicas = np.flatnonzero(np.diff(waves, prepend=np.inf)) + 1
    if not len(replicas):
        return None
    return _Family(profile, micro_batch, cut_layers(profile.layers, stages), replicas, most)


def _ways_to_hold(stages: int, types: int) -> IntArray:
    """Who holds each stage, in every way that is compared; once each (k, s)."""
    if types == 1:
        return np.zeros((1, stages), dtype=np.int64)
    found = set()
    for outer, inner in ((FIRST, SECOND), (SECOND, FIRST)):
        for begin in range(stages + 1):
            for end in range(begin, stages + 1):
                way = [outer] * begin + [inner] * (end - begin) + [outer] * (stages - end)
                found.add(tuple(way))
                for place in {begin, end} - {stages}:
                    found.add((*way[:place], BOTH, *way[place + 1 :]))
    return np.array(sorted(found), dtype=np.int64)


# ------------------------------------------------------------------------------------------------ all pairs of counts


def _by_use(times: _Times) -> tuple[IntArray, IntArray, IntArray]:
    """Accelerators by type of a replica alone and in the stage held by both (g, 4); ways by these; where each begins.

    Plans that take the same differ in their time alone, so only the fastest of them matters.
    """
    alone = [np.where(times.holders == row, times.degree[row], 0).sum(axis=1) for row in (FIRST, SECOND)]
    shared = [np.where(times.holders == BOTH, times.degree[row], 0).sum(axis=1) for row in (FIRST, SECOND)]
    takes = np.stack([*alone, *shared], axis=1)
    order = np.lexsort(takes.T)
    begins = np.flatnonzero(np.diff(takes[order], axis=0, prepend=-1).any(axis=1))
    return takes[order[begins]], order, begins


class _Search:
    """The fastest plan of each pair of counts, kept as plans come."""

    def __init__(self, most: tuple[int, int]) -> None:
        self._most = most
        self._step_s = np.full((most[0] + 1) * (most[1] + 1), np.inf)
        #: The plan of each pair: its place among all that came, those of `_known[i]` from `_first[i]`.
        self._plan = np.full(len(self._step_s), -1, dtype=np.int64)
        self._known: list[_Times] = []
        self._first = [0]

    def add(self, times: _Times) -> None:
        """Weigh these plans against those that came before, for the accelerators that each takes."""
        if not len(times.holders):
            return
        takes, order, begins = _by_use(times)
        sorted_s = times.step_s[order]
        step_s = np.minimum.reduceat(sorted_s, begins)
        group = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(order)))
        row, column = np.nonzero(sorted_s == step_s[group])
        plan = np.zeros(step_s.shape, dtype=np.int64)
        plan[group[row], column] = self._first[-1] + order[row] * len(times.replicas) + column
        self._known.append(times)
        self._first.append(self._first[-1] + times.step_s.size)
        mixed = takes[:, 2] > 0
        counts = takes[~mixed, :2, None] * times.replicas
        self._offer(counts[:, 0], counts[:, 1], step_s[~mixed], plan[~mixed])
        shared, place = takes[mixed].T[:, :, None], np.repeat(np.arange(len(times.replicas)), times.replicas - 1)
        replicas = times.replicas[place]
        on_first = 1 + np.arange(len(place)) - np.searchsorted(place, place)
        first = shared[0] * replicas + shared[2] * on_first
        second = shared[1] * replicas + shared[3] * (replicas - on_first)
        self._offer(first, second, step_s[mixed][:, place], plan[mixed][:, place])

    def _offer(self, first: IntArray, second: IntArray, step_s: FloatArray, plan: IntArray) -> None:
        """Keep what is faster for its pair of counts than what was known (equal shapes)."""
        within_most = (first <= self._most[0]) & (second <= self._most[1])
        cell, step_s, plan = (first * (self._most[1] + 1) + second)[within_most], step_s[within_most], plan[within_most]
        better = step_s < self._step_s[cell]
        cell, step_s, plan = cell[better], step_s[better], plan[better]
        np.minimum.at(self._step_s, cell, step_s)
        kept = step_s == self._step_s[cell]
        self._plan[cell[kept]] = plan[kept]

    def useful(self) -> list[MixedPlan]:
        """The plans of pairs than which no pair with as few of both is as fast."""
        step_s = self._step_s.reshape(self._most[0] + 1, self._most[1] + 1)
        fewer = np.full((2, *step_s.shape), np.inf)
        at_most = np.minimum.accumulate(np.minimum.accumulate(step_s, axis=0), axis=1)
        fewer[0, 1:], fewer[1, :, 1:] = at_most[:-1], at_most[:, :-1]
        pairs = np.argwhere(step_s < fewer.min(axis=0) * (1.0 - _ROUNDING))
        return [self._described(first, second) for first, second in pairs.tolist()]

    def _described(self, first: int, second: int) -> MixedPlan:
        cell = first * (self._most[1] + 1) + second
        number = int(self._plan[cell])
        source = bisect_right(self._first, number) - 1
        times = self._known[source]
        way, place = divmod(number - self._first[source], len(times.replicas))
        replicas, holders = int(times.replicas[place]), times.holders[way]
        on_first = replicas
        for stage in np.flatnonzero(holders == BOTH).tolist():
            left = first - replicas * int(times.degree[FIRST][holders == FIRST].sum())
            on_first = left // int(times.degree[FIRST, stage])
        split = {FIRST: (replicas, 0), SECOND: (0, replicas), BOTH: (on_first, replicas - on_first)}
        stages = tuple(
            PlannedStage(int(layers), split[holder], (int(degree[FIRST]), int(degree[SECOND])))
            for layers, holder, degree in zip(np.diff(times.cuts), holders.tolist(), times.degree.T, strict=True)
        )
        return MixedPlan((first, second), 1.0 / float(self._step_s[cell]), times.micro_batch, stages)
