"""How spot machines come and go, guessed: markets fitted on other traces, weighed by what this one has shown.

A market is a semi-Markov chain: the chance that availability changes after a slot depends on how long it has been as
it is. Each trace that was recorded earlier is one hypothesis; `Belief` weighs them by Bayes' rule with what is seen.
Fitting draws each trace towards all of them, so that nothing is held impossible.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from scheduler.cloud.slack_value import BoolArray, FloatArray

#: First slot of each class of ages, and how long each lasts in the mean; the last has no end.
_CLASS_STARTS = (1, 2, 4, 10, 28)
_CLASS_SLOTS = (1, 2, 6, 18)
CLASSES = len(_CLASS_STARTS)
#: Available or not, and the class of how long it has been so.
STATES = 2 * CLASSES
#: The class of an age that is not known, at the start of a job.
_UNKNOWN_AGE = 4
#: Slots that the pooled traces count for, in each class of a trace of its own.
_PRIOR_SLOTS = 6.0
_RAREST = 1e-4


def age_class(slots: int) -> int:
    """The class of an age in slots, from 0."""
    return sum(slots >= start for start in _CLASS_STARTS) - 1


@dataclass(frozen=True, slots=True)
class SpotMarket:
    """Chance that availability changes after a slot, by what it is now (0, 1) and its age's class (2, CLASSES)."""

    change: FloatArray

    def transitions(self) -> FloatArray:
        """Between states `available * CLASSES + class`, row by row (STATES, STATES)."""
        matrix = np.zeros((STATES, STATES))
        for available in range(2):
            for place in range(CLASSES):
                here = available * CLASSES + place
                change = self.change[available, place]
                older = 1.0 / _CLASS_SLOTS[place] if place < CLASSES - 1 else 0.0
                matrix[here, (1 - available) * CLASSES] += change
                matrix[here, here] += (1 - change) * (1 - older)
                if older:
                    matrix[here, here + 1] += (1 - change) * older
        return matrix

    def remaining(self) -> FloatArray:
        """Slots until availability changes, in the mean, by what it is now and its age's class (2, CLASSES)."""
        found = np.zeros((2, CLASSES))
        for available in range(2):
            here = slice(available * CLASSES, (available + 1) * CLASSES)
            found[available] = np.linalg.solve(np.eye(CLASSES) - self.transitions()[here, here], np.ones(CLASSES))
        return found


def fit_markets(traces: Sequence[Sequence[bool]]) -> tuple[SpotMarket, ...]:
    """One market per trace, each drawn towards all of them where it shows little."""
    counts = [_counts(trace) for trace in traces]
    changes, slots = (sum((part[index] for part in counts), np.zeros((2, CLASSES))) for index in range(2))
    pooled = (changes + 0.5) / (slots + 1.0)
    return tuple(
        SpotMarket(np.clip((own + _PRIOR_SLOTS * pooled) / (seen + _PRIOR_SLOTS), _RAREST, 1 - _RAREST))
        for own, seen in counts
    )


def _counts(trace: Sequence[bool]) -> tuple[FloatArray, FloatArray]:
    """Changes and slots of a trace, by availability and class."""
    changes, slots = np.zeros((2, CLASSES)), np.zeros((2, CLASSES))
    age = _UNKNOWN_AGE
    for now, later in pairwise(trace):
        slots[int(now), age_class(age)] += 1
        changes[int(now), age_class(age)] += now != later
        age = 1 if now != later else age + 1
    return changes, slots


class Belief:
    """Which of some markets this is, from the slots that were seen."""

    def __init__(self, markets: Sequence[SpotMarket]) -> None:
        #: (hypotheses, 2, CLASSES)
        self._change = np.array([market.change for market in markets])
        self._remaining = np.array([market.remaining() for market in markets])
        self._log = np.zeros(len(markets))
        self._available: bool | None = None
        self._age = _UNKNOWN_AGE

    def see(self, available: bool) -> None:
        """Take in the slot that begins."""
        if self._available is None:
            # Nothing is known of how long it has been so: only how usual it is.
            off, on = (1.0 / self._change[:, state].mean(axis=1) for state in range(2))
            self._log += np.log((on if available else off) / (on + off))
        else:
            changed = self._change[:, int(self._available), age_class(self._age)]
            self._log += np.log(changed if available != self._available else 1 - changed)
            self._age = 1 if available != self._available else self._age + 1
        self._available = available

    @property
    def weights(self) -> FloatArray:
        """Of the markets, summing to 1 (hypotheses,)."""
        shifted = np.exp(self._log - self._log.max())
        return np.asarray(shifted / shifted.sum(), dtype=np.float64)

    @property
    def remaining(self) -> float:
        """Slots until availability changes, in the mean over the markets."""
        return float(self.weights @ self._remaining[:, int(bool(self._available)), age_class(self._age)])

    @property
    def state(self) -> int:
        """The market's state, as `SpotMarket.transitions` numbers them."""
        return int(bool(self._available)) * CLASSES + age_class(self._age)


def spot_states() -> BoolArray:
    """In which states a spot machine can be held (STATES,)."""
    return np.arange(STATES) >= CLASSES
