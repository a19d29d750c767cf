"""What became of what users state of their jobs: records of lengths and of weights, by user and project.

**Lengths.** How far what each user's jobs state of their length came true, and by how much what is stated next is
corrected.

    said_g = sum_i a_i log r_i / sum_i a_i        factor_g = exp(said_g n / (n + 1) + min(said_g, 1/2) / sqrt(n + 1))

r is what a job turned out to need over what it stated, a the accelerator-seconds that it had, n the number of such
jobs; old jobs count half after the half-life of use. Weighing by what a job has had makes a record that trivial jobs
cannot whiten. A job that has gone beyond its statement is counted while it runs, by as much as it has gone beyond; one
that ended is counted if it succeeded, or had gone beyond. Jobs that needed less than they stated are set against others
that needed more, but nobody's statement is shortened: who states too much harms nobody but himself.

A statement that came true within `KEPT` counts as true: users who know the lengths of their jobs are planned by what
they say, to the bit. Of others the factor is the mean, with one job before it that kept its word, and a standard error
above that (half a unit of the logarithm over the root of the number): what was gained before anything was known is paid
for later, so that who states half of what he knows gains nothing by it.

**Weights.** How heavy each user's jobs usually are by what he states, so that a plan can see which of his own he means.

    log usual_g = (sum_i a_i log w_i) / (sum_i a_i)

w is the weight that a job states, a the accelerator-seconds that it had, or of an active one has had and still needs;
ended jobs count half after the half-life of use. Who says that all his jobs weigh ten says nothing of any of them, and
one job alone is as heavy as its user's usual one. No job counts for more than it states, or 1: a long job of next to no
weight, left to wait for ever, moves up none of its user's others beyond what the caps of roles let them state.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log, sqrt

import numpy as np

from optimizer.problem import FloatArray, IntArray
from scheduler.core.share_events import RememberedLengths, RememberedWeights

#: What a job needs may exceed what it stated so many times before the statement counts as untrue.
KEPT = 1.1
#: Ratios beyond this, either way, count as this: a job that was given up says little.
_MOST = 16.0
#: How much ratios of one user's jobs differ, at most: standard deviation of their logarithm.
_SPREAD = 0.5
#: Lighter than this a weight counts as this.
_LEAST = 1e-6


# ------------------------------------------------------------------------------------------------ lengths


@dataclass(slots=True)
class _LengthRecord:
    """Of one user in one project, until `at`."""

    at: float
    used_s: float = 0.0
    said_s: float = 0.0
    jobs: float = 0.0

    def bring_to(self, at: float, half_life_s: float) -> None:
        if at > self.at:
            kept = 0.5 ** ((at - self.at) / half_life_s)
            self.used_s, self.said_s, self.jobs = self.used_s * kept, self.said_s * kept, self.jobs * kept
            self.at = at

    def add(self, used_s: float, ratio: float) -> None:
        self.used_s += used_s
        self.said_s += used_s * _log_ratio(ratio)
        self.jobs += 1.0

    @property
    def factor(self) -> float:
        if self.said_s <= 0.0 or self.used_s <= 0.0:
            return 1.0
        said, jobs = self.said_s / self.used_s, self.jobs + 1.0
        found = exp(said * self.jobs / jobs + min(said, _SPREAD) / sqrt(jobs))
        return found if found > KEPT else 1.0


def _log_ratio(ratio: float) -> float:
    """Of a ratio that counts; 0 of one that is a statement come true."""
    return 0.0 if 1.0 / KEPT <= ratio <= KEPT else log(min(max(ratio, 1.0 / _MOST), _MOST))


@dataclass(slots=True)
class LengthRecords:
    """Records by user, named as entities are ("project/user")."""

    #: Changes whenever a factor may have: what was worked out with it holds no longer.
    version: int = 0
    #: False: everybody is believed.
    is_used: bool = True
    half_life_s: float = 7 * 86_400.0
    _ended: dict[str, _LengthRecord] = field(default_factory=dict)
    #: The same with jobs that run and have gone beyond what they stated.
    _now: dict[str, _LengthRecord] = field(default_factory=dict)
    #: Such jobs are counted there.
    _beyond: bool = False

    def ended(self, name: str, used_s: float, ratio: float, at: float) -> None:
        """A job of this user has ended: what it had, accelerator-seconds, and true over stated length."""
        if used_s <= 0.0 or ratio <= 0.0:
            return
        record = self._ended.setdefault(name, _LengthRecord(at))
        record.bring_to(at, self.half_life_s)
        record.add(used_s, ratio)
        self._now[name] = replace(record)
        self.version += 1

    def running(self, beyond: Mapping[str, Sequence[tuple[float, float]]], at: float) -> None:
        """These jobs alone run and have gone beyond: by user, what each has had, and how far it came over stated."""
        if not beyond and not self._beyond:
            return
        before = {name: record.factor for name, record in self._now.items()}
        self._now = {name: replace(record) for name, record in self._ended.items()}
        self._beyond = bool(beyond)
        for name, jobs in beyond.items():
            record = self._now.setdefault(name, _LengthRecord(at))
            record.bring_to(at, self.half_life_s)
            for used_s, ratio in jobs:
                record.add(used_s, ratio)
        if before != {name: record.factor for name, record in self._now.items()}:
            self.version += 1

    def factor(self, name: str) -> float:
        """By what a length that this user states is multiplied, at least 1."""
        record = self._now.get(name)
        return 1.0 if record is None or not self.is_used else record.factor

    def factors(self, names: Iterable[str], entity: IntArray) -> FloatArray:
        """`factor` of the users in these rows of `names` (n,)."""
        if not self.is_used or not any(record.said_s > 0.0 for record in self._now.values()):
            return np.ones(len(entity))
        known, by_row = list(names), np.ones(len(entity))
        for row in np.unique(entity).tolist():
            if (factor := self.factor(known[row])) != 1.0:
                by_row[entity == row] = factor
        return by_row

    def jobs_of(self, name: str) -> float:
        """How many jobs the record is of, old ones counting less."""
        record = self._now.get(name)
        return 0.0 if record is None else record.jobs

    def remembered(self, most: int) -> tuple[RememberedLengths, ...]:
        """Of so many users, those with most use first: what ended jobs showed, as of when the last of them ended."""
        found = sorted(self._ended.items(), key=lambda each: (-each[1].used_s, each[0]))[:most]
        return tuple(RememberedLengths(name, each.at, each.used_s, each.said_s, each.jobs) for name, each in found)

    def recall(self, remembered: Iterable[RememberedLengths]) -> None:
        """Take in what a former core knew."""
        self._ended = {each.name: _LengthRecord(each.at, each.used_s, each.said_s, each.jobs) for each in remembered}
        self._now = {name: replace(record) for name, record in self._ended.items()}
        self.version += 1


# ------------------------------------------------------------------------------------------------ weights


def _at_most_as_stated(usual: FloatArray, weight: FloatArray) -> FloatArray:
    """Usual weights over which no job counts for more than the larger of what it states and 1 (n,)."""
    found: FloatArray = np.maximum(usual, np.minimum(weight, 1.0))
    return found


@dataclass(slots=True)
class _WeightRecord:
    """Of one user in one project, until `at`."""

    at: float
    used_s: float = 0.0
    said_s: float = 0.0

    def bring_to(self, at: float, half_life_s: float) -> None:
        if at > self.at:
            kept = 0.5 ** ((at - self.at) / half_life_s)
            self.used_s, self.said_s, self.at = self.used_s * kept, self.said_s * kept, at


@dataclass(slots=True)
class WeightRecords:
    """Records by user, named as entities are ("project/user")."""

    half_life_s: float = 7 * 86_400.0
    #: False: weights count as they are stated.
    is_used: bool = True
    _ended: dict[str, _WeightRecord] = field(default_factory=dict)
    #: Usual weights as of the last question, for jobs that come before the next.
    _usual: dict[str, float] = field(default_factory=dict)

    def ended(self, name: str, used_s: float, weight: float, at: float) -> None:
        """A job of this user has ended: what it had, accelerator-seconds, and the weight that it stated."""
        if used_s > 0.0:
            record = self._ended.setdefault(name, _WeightRecord(at))
            record.bring_to(at, self.half_life_s)
            record.used_s += used_s
            record.said_s += used_s * log(max(weight, _LEAST))

    def ask(
        self, names: Sequence[str], entity: IntArray, weight: FloatArray, needs_s: FloatArray, at: float
    ) -> FloatArray:
        """The usual weight of each active job's user (n,); empty where all is of one user, or nobody states a weight.

        `entity`: rows of `names`; `needs_s`: accelerator-seconds of each job, had and to come (n,).
        """
        self._usual = {}
        users = np.unique(entity)
        if (
            not self.is_used
            or len(users) < 2
            or not (np.any(weight != 1.0) or any(each.said_s for each in self._ended.values()))
        ):
            return np.zeros(0)
        used_s, said_s = np.zeros(len(names)), np.zeros(len(names))
        np.add.at(used_s, entity, needs_s)
        np.add.at(said_s, entity, needs_s * np.log(np.maximum(weight, _LEAST)))
        for user in users.tolist():
            if (record := self._ended.get(names[user])) is not None:
                record.bring_to(at, self.half_life_s)
                used_s[user] += record.used_s
                said_s[user] += record.said_s
        usual = np.exp(np.divide(said_s, used_s, out=np.zeros(len(names)), where=used_s > 0))
        self._usual = {names[user]: float(usual[user]) for user in users.tolist()}
        return _at_most_as_stated(usual[entity], weight)

    def usual(self, name: str, weight: float) -> float:
        """The usual weight of a user as of the last question; of one who had no job then, that of the job he has."""
        if not self._usual:
            return 1.0
        return float(_at_most_as_stated(np.array([self._usual.get(name, weight)]), np.array([weight]))[0])

    def remembered(self, most: int) -> tuple[RememberedWeights, ...]:
        """Of so many users, those with most use first, as of when the last of their jobs ended, or later."""
        found = sorted(self._ended.items(), key=lambda each: (-each[1].used_s, each[0]))[:most]
        return tuple(RememberedWeights(name, each.at, each.used_s, each.said_s) for name, each in found if each.said_s)

    def recall(self, remembered: Iterable[RememberedWeights]) -> None:
        """Take in what a former core knew."""
        self._ended = {each.name: _WeightRecord(each.at, each.used_s, each.said_s) for each in remembered}
