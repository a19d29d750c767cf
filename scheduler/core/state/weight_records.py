"""The weight that each user usually states, so that a plan can see which of the user's own jobs matter more.

    log usual_g = (sum_i a_i log w_i) / (sum_i a_i)

w is the weight that a job states, a its accelerator-seconds, for an active job had and still needed; ended jobs decay
with the half-life of use. A user who gives all jobs weight ten distinguishes none of them, and a single job has its
user's usual weight. No job counts for more than it states, or 1: so a long job of nearly no weight, left waiting for
ever, lifts none of its user's other jobs beyond what the caps of roles let them state.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import log

import numpy as np

from optimizer.problem import FloatArray, IntArray
from scheduler.core.share_events import RememberedWeights

#: Lower bound of weights.
_LEAST = 1e-6


def _at_most_as_stated(usual: FloatArray, weight: FloatArray) -> FloatArray:
    """Returns usual weights relative to which no job counts for more than the larger of its weight and 1 (n,)."""
    found: FloatArray = np.maximum(usual, np.minimum(weight, 1.0))
    return found


@dataclass(slots=True)
class _Record:
    """Record of one user in one project, decayed until `at`."""

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
    _ended: dict[str, _Record] = field(default_factory=dict)
    #: Usual weights as of the last `ask`, for jobs that arrive before the next.
    _usual: dict[str, float] = field(default_factory=dict)

    def ended(self, name: str, used_s: float, weight: float, at: float) -> None:
        """Records an ended job of this user: its accelerator-seconds, and the weight that it stated."""
        if used_s > 0.0:
            record = self._ended.setdefault(name, _Record(at))
            record.bring_to(at, self.half_life_s)
            record.used_s += used_s
            record.said_s += used_s * log(max(weight, _LEAST))

    def ask(
        self, names: Sequence[str], entity: IntArray, weight: FloatArray, needs_s: FloatArray, at: float
    ) -> FloatArray:
        """Returns the usual weight of each job's user (n,); empty if there is one user only, or no weights are stated.

        `entity` are rows of `names`; `needs_s` are accelerator-seconds of each job, had and to come (n,).
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
        """Returns the user's usual weight as of the last `ask`; for a user without jobs then, the given weight."""
        if not self._usual:
            return 1.0
        return float(_at_most_as_stated(np.array([self._usual.get(name, weight)]), np.array([weight]))[0])

    def remembered(self, most: int) -> tuple[RememberedWeights, ...]:
        """Returns the records of at most `most` users, those with most use first, each as of its last update."""
        found = sorted(self._ended.items(), key=lambda each: (-each[1].used_s, each[0]))[:most]
        return tuple(RememberedWeights(name, each.at, each.used_s, each.said_s) for name, each in found if each.said_s)

    def recall(self, remembered: Iterable[RememberedWeights]) -> None:
        """Restores what a former core knew."""
        self._ended = {each.name: _Record(each.at, each.used_s, each.said_s) for each in remembered}
