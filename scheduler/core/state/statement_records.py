"""How what users state of their jobs compares with what became of these: records of lengths and weights, by user.

**Lengths.** The factor by which later statements of length are corrected:

    said_g = sum_i a_i log r_i / sum_i a_i        factor_g = exp(said_g (n / (n + 1) + 1 / sqrt(n + 1)))

r is a job's true length over the stated one, a its accelerator-seconds, n the number of such jobs; old jobs decay with
the half-life of use. The weight a means that trivial jobs cannot improve a record. A running job that has exceeded its
statement counts with the ratio reached so far; one that ended counts if it succeeded, or had exceeded its statement.
Jobs shorter than stated offset longer ones, but no statement is shortened: a user who states too much harms nobody
else.

A statement within a factor of `KEPT` of the truth counts as true, so users who know the lengths of their jobs are
planned exactly by what they state. For others the factor is the mean, with one true statement as prior, plus a standard
error: the mean itself, which is how far statements are off, over the root of the number. While jobs are few it goes
beyond the mean, the more the larger that is: what a user gained before there was a record is paid back by the next
jobs. The first jobs of a user, until they exceed what they state, are planned by it: that gain is bounded by them.

**Weights.** The weight that each user usually states, so that a plan can see which of the user's own jobs matter more:

    log usual_g = (sum_i a_i log w_i) / (sum_i a_i)

w is the weight that a job states, a its accelerator-seconds (of a running job: had and still needed; of a waiting one:
had); ended jobs decay with the half-life of use. A user who gives all jobs weight ten distinguishes none of them, and a
single job has its user's usual weight. A job of nearly no weight lowers the usual weight only while it holds machines,
and as if it weighed a tenth of the user's heaviest job.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log, sqrt

import numpy as np

from optimizer.problem import FloatArray, IntArray
from scheduler.core.events import RememberedLengths, RememberedWeights

#: A statement counts as true while the job needs at most this many times what it stated.
KEPT = 1.1
#: Ratios are clipped to [1 / this, this]: a job that was given up says little.
_MOST = 16.0
#: Lower bound of weights.
_LEAST = 1e-6
#: A weight below this part of the user's heaviest active job counts as that part.
_SPAN = 10.0


@dataclass(slots=True)
class _Record:
    """Record of one user in one project, decayed until `at`."""

    at: float
    used_s: float = 0.0
    said_s: float = 0.0
    jobs: float = 0.0

    def bring_to(self, at: float, half_life_s: float) -> None:
        if at > self.at:
            kept = 0.5 ** ((at - self.at) / half_life_s)
            self.used_s, self.said_s, self.jobs = self.used_s * kept, self.said_s * kept, self.jobs * kept
            self.at = at

    def add(self, used_s: float, said: float) -> None:
        self.used_s += used_s
        self.said_s += used_s * said
        self.jobs += 1.0

    @property
    def factor(self) -> float:
        """Returns the factor by which stated lengths are corrected."""
        if self.said_s <= 0.0 or self.used_s <= 0.0:
            return 1.0
        said, jobs = self.said_s / self.used_s, self.jobs + 1.0
        found = exp(said * (self.jobs / jobs + 1.0 / sqrt(jobs)))
        return found if found > KEPT else 1.0


def _most_used(ended: Mapping[str, _Record], most: int) -> list[tuple[str, _Record]]:
    """Returns the records of at most `most` users, those with most use first."""
    return sorted(ended.items(), key=lambda each: (-each[1].used_s, each[0]))[:most]


# ------------------------------------------------------------------------------------------------ lengths


def _log_ratio(ratio: float) -> float:
    """Returns the clipped logarithm of a ratio; 0 if the statement came true."""
    return 0.0 if 1.0 / KEPT <= ratio <= KEPT else log(min(max(ratio, 1.0 / _MOST), _MOST))


@dataclass(slots=True)
class LengthRecords:
    """Records by user, named as entities are ("project/user")."""

    #: Changes whenever a factor may have changed, so that results computed with it are void.
    version: int = 0
    #: False: stated lengths are used as they are.
    is_used: bool = True
    half_life_s: float = 7 * 86_400.0
    _ended: dict[str, _Record] = field(default_factory=dict)
    #: The records including running jobs that have exceeded what they stated.
    _now: dict[str, _Record] = field(default_factory=dict)
    #: Whether `_now` counts such jobs.
    _beyond: bool = False

    def ended(self, name: str, used_s: float, ratio: float, at: float) -> None:
        """Records an ended job of this user: its accelerator-seconds, and its true over its stated length."""
        if used_s <= 0.0 or ratio <= 0.0:
            return
        record = self._ended.setdefault(name, _Record(at))
        record.bring_to(at, self.half_life_s)
        record.add(used_s, _log_ratio(ratio))
        self._now[name] = replace(record)
        self.version += 1

    def running(self, beyond: Mapping[str, Sequence[tuple[float, float]]], at: float) -> None:
        """Replaces the running jobs that exceeded their statements: by user, accelerator-seconds and ratio of each."""
        if not beyond and not self._beyond:
            return
        before = {name: record.factor for name, record in self._now.items()}
        self._now = {name: replace(record) for name, record in self._ended.items()}
        self._beyond = bool(beyond)
        for name, jobs in beyond.items():
            record = self._now.setdefault(name, _Record(at))
            record.bring_to(at, self.half_life_s)
            for used_s, ratio in jobs:
                record.add(used_s, _log_ratio(ratio))
        if before != {name: record.factor for name, record in self._now.items()}:
            self.version += 1

    @property
    def counts_running(self) -> bool:
        """Returns whether running jobs have a part in the records, which then change with time."""
        return self._beyond

    def factor(self, name: str) -> float:
        """Returns the factor, at least 1, by which a length that this user states is multiplied."""
        record = self._now.get(name)
        return 1.0 if record is None or not self.is_used else record.factor

    def factors(self, names: Iterable[str], entity: IntArray) -> FloatArray:
        """Returns `factor` of the users in these rows of `names` (n,)."""
        if not self.is_used or not any(record.said_s > 0.0 for record in self._now.values()):
            return np.ones(len(entity))
        known, by_row = list(names), np.ones(len(entity))
        for row in np.unique(entity).tolist():
            if (factor := self.factor(known[row])) != 1.0:
                by_row[entity == row] = factor
        return by_row

    def jobs_of(self, name: str) -> float:
        """Returns the number of jobs in the record, old ones decayed; 0.0 for an unknown user."""
        record = self._now.get(name)
        return 0.0 if record is None else record.jobs

    def remembered(self, most: int) -> tuple[RememberedLengths, ...]:
        """Returns the records of at most `most` users, those with most use first, each as of its last ended job."""
        found = _most_used(self._ended, most)
        return tuple(RememberedLengths(name, each.at, each.used_s, each.said_s, each.jobs) for name, each in found)

    def recall(self, remembered: Iterable[RememberedLengths]) -> None:
        """Restores what a former core knew."""
        self._ended = {each.name: _Record(*each[1:]) for each in remembered}
        self._now = {name: replace(record) for name, record in self._ended.items()}
        self.version += 1


# ------------------------------------------------------------------------------------------------ weights


@dataclass(slots=True)
class WeightRecords:
    """Records by user, named as entities are ("project/user")."""

    half_life_s: float = 7 * 86_400.0
    #: False: weights count as they are stated.
    is_used: bool = True
    _ended: dict[str, _Record] = field(default_factory=dict)
    #: Usual weights as of the last `ask`, for jobs that arrive before the next.
    _usual: dict[str, float] = field(default_factory=dict)

    def ended(self, name: str, used_s: float, weight: float, at: float) -> None:
        """Records an ended job of this user: its accelerator-seconds, and the weight that it stated."""
        if used_s > 0.0:
            record = self._ended.setdefault(name, _Record(at))
            record.bring_to(at, self.half_life_s)
            record.add(used_s, log(max(weight, _LEAST)))

    def differ(self, entity: IntArray, weight: FloatArray) -> bool:
        """Returns whether these jobs are of several users, and any weight is stated or was."""
        if not self.is_used or not len(entity) or bool((entity == entity[0]).all()):
            return False
        return bool((weight != 1.0).any()) or any(each.said_s for each in self._ended.values())

    def unused(self) -> FloatArray:
        """Forgets the usual weights, because they do not matter now, and returns none."""
        self._usual = {}
        return np.zeros(0)

    def ask(
        self, names: Sequence[str], entity: IntArray, weight: FloatArray, needs_s: FloatArray, at: float
    ) -> FloatArray:
        """Returns the usual weight of each job's user (n,); empty if there is one user only, or no weights are stated.

        `entity` are rows of `names`; `needs_s` are accelerator-seconds of each job: had, and those that a
        running job still needs (n,).
        """
        if not self.differ(entity, weight):
            return self.unused()
        users = np.unique(entity)
        heaviest = np.full(len(names), _LEAST)
        np.maximum.at(heaviest, entity, weight)
        stated = np.log(np.maximum(weight, heaviest[entity] / _SPAN))
        used_s, said_s = np.zeros(len(names)), np.zeros(len(names))
        np.add.at(used_s, entity, needs_s)
        np.add.at(said_s, entity, needs_s * stated)
        for user in users.tolist():
            if (record := self._ended.get(names[user])) is not None:
                record.bring_to(at, self.half_life_s)
                used_s[user] += record.used_s
                said_s[user] += record.said_s
        idle = used_s <= 0.0  # users of whom nothing has run yet: the mean of what waits
        np.add.at(used_s, entity, idle[entity].astype(np.float64))
        np.add.at(said_s, entity, np.where(idle[entity], stated, 0.0))
        usual = np.exp(np.divide(said_s, used_s, out=np.zeros(len(names)), where=used_s > 0))
        self._usual = {names[user]: float(usual[user]) for user in users.tolist()}
        found: FloatArray = usual[entity]
        return found

    def usual(self, name: str, weight: float) -> float:
        """Returns the user's usual weight as of the last `ask`; for a user without jobs then, the given weight."""
        return self._usual.get(name, weight) if self._usual else 1.0

    def remembered(self, most: int) -> tuple[RememberedWeights, ...]:
        """Returns the records of at most `most` users, those with most use first, each as of its last update."""
        found = _most_used(self._ended, most)
        return tuple(RememberedWeights(name, each.at, each.used_s, each.said_s) for name, each in found if each.said_s)

    def recall(self, remembered: Iterable[RememberedWeights]) -> None:
        """Restores what a former core knew."""
        self._ended = {each.name: _Record(*each[1:]) for each in remembered}
