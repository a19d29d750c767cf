"""Parallel plans of one training job over accelerators of two types: the fastest plan for every number of each.

A plan states how many stages the pipeline has, how many replicas hold each stage, on which type, with which degree of
tensor parallelism, and how large a micro-batch is. The time of a step is the time of the slowest stage for every
micro-batch but one, plus one pass through the whole pipeline, plus the longest all-reduce of gradients. The search
compares all plans of the following form: one type holds the stages at both ends, the other type holds those between,
and replicas of both types hold at most one further stage. A type uses the same degree for all stages, and a higher
degree only for a stage that does not fit otherwise. A pair of counts (first type, second type) is useful if no plan
with at most as many of both is as fast.

The search reads only measured layers. Prices play no part, so a menu of plans stays valid when prices change.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from benchmarks.seeds.sailor_profiles import Link, LinkEnds, ModelProfile, cut_layers, exchange_s, fits, stage_sums
from optimizer.problem import FloatArray, IntArray

#: What holds a stage: replicas on the first type, on the second type, or on both.
FIRST, SECOND, BOTH = 0, 1, 2
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """One stage of a pipeline."""

    layers: int
    #: Replicas on each type, and accelerators per replica on that type.
    replicas: tuple[int, int]
    degrees: tuple[int, int]


@dataclass(frozen=True, slots=True)
class MixedPlan:
    """The fastest plan on a pair of counts of accelerators of the two types."""

    accelerators: tuple[int, int]
    steps_per_s: float
    micro_batch: int
    stages: tuple[PlannedStage, ...]


def plan_mixes(profile: ModelProfile, most: tuple[int, int]) -> list[MixedPlan]:
    """Returns the plan of every useful pair of counts up to `most`, sorted by both counts; empty if no plan fits.

    Args:
        profile: measured layers on one type or two; with one, the second count is always 0.
        most: accelerators of each type that exist.
    """
    search = _Search(most)
    for micro_batch in sorted({size for kind in profile.types for size, _ in kind.pass_s}):
        for stages in range(1, profile.layers + 1):
            family = _family(profile, micro_batch, stages, most)
            if family is not None:
                for times in family.plans():
                    search.add(times)
    return search.useful()


# ------------------------------------------------------------------------------------------------ plans of one shape


@dataclass(frozen=True, slots=True, eq=False)
class _Times:
    """Step times of plans that share the micro-batch, the stages and the degrees: k ways to hold the stages, r
    replicas.
    """

    micro_batch: int
    cuts: IntArray
    #: Tensor-parallel degree of each stage on each type (2, s); 0 where the stage fits with no degree.
    degree: IntArray
    #: What holds each stage (k, s).
    holders: IntArray
    replicas: IntArray
    #: Seconds of a step (k, r); inf where the plan does not fit.
    step_s: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class _Family:
    """All plans with one micro-batch size and one number of stages."""

    profile: ModelProfile
    micro_batch: int
    cuts: IntArray
    replicas: IntArray
    #: Number of accelerators of each type that exist.
    most: tuple[int, int]
    #: Seconds of a message between two ends, by its bytes; inf where no such link was measured.
    _sent: dict[tuple[LinkEnds, float], float] = field(default_factory=dict)

    def plans(self) -> Iterator[_Times]:
        """Generates the step times for every combination of degrees on the two types."""
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
        """For each least degree, the lowest degree from there on with which each stage fits on the type; 0 where none
        does (s,).
        """
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
        if len(place) == 1:  # in a longer pipeline the other stages' work hides the update of a stage
            step_s += self._update(degree)[holders[:, 0], None]
        return _Times(self.micro_batch, self.cuts, degree, holders, self.replicas, step_s)

    def _compute(self, degree: IntArray) -> FloatArray:
        """Seconds of a micro-batch in each stage, by what holds the stage (3, s); inf where it does not fit."""
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
        """Seconds from each stage to the next, by what holds the sending and the receiving stage (3, 3, s - 1)."""
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
        """Seconds of the gradients' all-reduce, by what holds the stage (3, s, r); the slowest link among replicas
        counts.
        """
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
    """Returns all plans of so many stages; None if there are fewer accelerators than stages.

    Only the fewest replicas for each number of micro-batches are tried: more would not be faster.
    """
    waves = np.ceil(profile.batch / (micro_batch * np.arange(1, sum(most) // stages + 1)))
    replicas = np.flatnonzero(np.diff(waves, prepend=np.inf)) + 1
    if not len(replicas):
        return None
    return _Family(profile, micro_batch, cut_layers(profile.layers, stages), replicas, most)


def _ways_to_hold(stages: int, types: int) -> IntArray:
    """Returns every assignment of stages to types that is compared, each once (k, s)."""
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
    """Groups plans by the accelerators that they use, because only the fastest plan of a group matters.

    Returns accelerators per type of a replica alone and within the stage held by both (g, 4), the plans sorted by
    group, and the first index of each group.
    """
    alone = [np.where(times.holders == row, times.degree[row], 0).sum(axis=1) for row in (FIRST, SECOND)]
    shared = [np.where(times.holders == BOTH, times.degree[row], 0).sum(axis=1) for row in (FIRST, SECOND)]
    takes = np.stack([*alone, *shared], axis=1)
    order = np.lexsort(takes.T)
    begins = np.flatnonzero(np.diff(takes[order], axis=0, prepend=-1).any(axis=1))
    return takes[order[begins]], order, begins


class _Search:
    """Keeps the fastest plan of each pair of counts while plans arrive."""

    def __init__(self, most: tuple[int, int]) -> None:
        self._most = most
        self._step_s = np.full((most[0] + 1) * (most[1] + 1), np.inf)
        #: Index of each pair's plan among all plans added; plans of `_known[i]` start at `_first[i]`.
        self._plan = np.full(len(self._step_s), -1, dtype=np.int64)
        self._known: list[_Times] = []
        self._first = [0]

    def add(self, times: _Times) -> None:
        """Adds plans, each under the number of accelerators that it uses."""
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
        """Keeps the plans that are faster than the known plan of their pair of counts (arrays of equal shape)."""
        within_most = (first <= self._most[0]) & (second <= self._most[1])
        cell, step_s, plan = (first * (self._most[1] + 1) + second)[within_most], step_s[within_most], plan[within_most]
        better = step_s < self._step_s[cell]
        cell, step_s, plan = cell[better], step_s[better], plan[better]
        np.minimum.at(self._step_s, cell, step_s)
        kept = step_s == self._step_s[cell]
        self._plan[cell[kept]] = plan[kept]

    def useful(self) -> list[MixedPlan]:
        """Returns the plans of useful pairs: those that no pair with at most as many of both matches in speed."""
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
