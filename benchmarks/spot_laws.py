"""The best plan for one law of spot spells, by age: what a policy of `cant_be_late` can reach that knows no more.

A law is the chance that availability changes after a tick, by what it is and for how long it has been so, up to
`_AGES` ticks. The plan for it is exact: dynamic programming over ticks, slack, what is held, and the age, each tick
paid whole as the benchmark does. Told the law of the very market on which it is judged, its score is above that of
any policy that goes by the present and the age of its spell, but for the luck of some windows.

`better_regimes` fits what the scheduler believes of one zone: a few kinds of market that turn into each other unseen.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import gcd

import numpy as np
from numpy.typing import NDArray

from optimizer.planning.deadline_job import DeadlineJob, DeadlineState, HeldMachine
from optimizer.planning.slack_policy import (
    AGE_CLASSES,
    HeldMode,
    age_class,
    held_modes,
    modes_after_revocation,
    slot_choices,
)

FloatArray = NDArray[np.float64]

#: Ticks of a spell that are told apart; older spells are one class.
_AGES = 40
#: The age of the spell in which a window begins, which nobody saw begin.
_UNKNOWN_AGE = 4
#: Ticks that the chance of all ages together counts for at each age.
_PRIOR_TICKS = 6.0
_RAREST = 1e-4
#: USD of a state that may miss the deadline: times the rarest change more than any bill.
_NEVER = 1e9


def spell_law(traces: Iterable[Sequence[bool]]) -> FloatArray:
    """Chance that availability changes after a tick, by what it is now (0, 1) and its age (2, ages).

    Spells that were under way when a trace began are left out.
    """
    changes, ticks = np.zeros((2, _AGES)), np.zeros((2, _AGES))
    for trace in traces:
        age = 0
        for now, later in pairwise(trace):
            if age:
                ticks[int(now), min(age, _AGES) - 1] += 1
                changes[int(now), min(age, _AGES) - 1] += now != later
            age = 1 if now != later else age + (age > 0)
    usual = (changes.sum(axis=1) + 0.5) / (ticks.sum(axis=1) + 1.0)
    found = (changes + _PRIOR_TICKS * usual[:, None]) / (ticks + _PRIOR_TICKS)
    clipped: FloatArray = np.clip(found, _RAREST, 1 - _RAREST)
    return clipped


@dataclass(frozen=True, slots=True, eq=False)
class LawPlan:
    """What to hold under one law."""

    job: DeadlineJob
    #: Minutes of the judged job in a unit of `job`.
    unit: int
    #: `HeldMachine` by ticks left less one, slack, mode, available or not, and age.
    choices: NDArray[np.int8]


def plan_for_law(job: DeadlineJob, law: FloatArray, spot_usd: float) -> LawPlan:
    """The plan that costs least in the mean where availability follows the law; `spot_usd`: of a tick on spot."""
    unit = gcd(job.slot, gcd(job.changeover, gcd(job.work, job.deadline)))
    job = replace(
        job,
        slot=job.slot // unit,
        work=job.work // unit,
        deadline=job.deadline // unit,
        changeover=job.changeover // unit,
    )
    modes, lost = held_modes(job), modes_after_revocation(job)
    many = job.deadline - job.work + 1
    slack = np.arange(many)
    value = np.zeros((many, len(modes), 2, _AGES))
    choices = np.zeros((job.slots, many, len(modes), 2, _AGES), dtype=np.int8)
    usd = (0.0, spot_usd, spot_usd * job.on_demand_price)
    for ticks_left in range(1, job.slots + 1):
        ahead, value = _expected(value, law), np.full_like(value, _NEVER)
        work_left = ticks_left * job.slot - slack
        for place, mode in enumerate(modes):
            for move in slot_choices(job, mode):
                to_come = np.full_like(value[:, place], _NEVER)
                to_come[move.slack :] = ahead[: many - move.slack, move.mode]
                if move.held is not HeldMachine.NOTHING:
                    to_come[work_left <= move.work] = 0.0
                    to_come += usd[move.held]
                if move.held is HeldMachine.SPOT:
                    to_come[:, 0] = np.inf
                better = to_come < value[:, place]
                value[:, place][better] = to_come[better]
                choices[ticks_left - 1, :, place][better] = move.held
        value[work_left <= 0] = 0.0
        value[:, :, 0] = value[:, lost, 0]
    return LawPlan(job, unit, choices)


def _expected(value: FloatArray, law: FloatArray) -> FloatArray:
    """After a tick, by the market's state in it."""
    older = np.concatenate((value[..., 1:], value[..., -1:]), axis=-1)
    after: FloatArray = law * value[:, :, ::-1, :1] + (1 - law) * older
    return after


class LawPolicy:
    """A plan played on one window."""

    def __init__(self, plan: LawPlan) -> None:
        self._plan = plan
        self._places = {mode: place for place, mode in enumerate(held_modes(plan.job))}
        self._spot: bool | None = None
        self._age = _UNKNOWN_AGE

    def hold(self, job: DeadlineJob, now: DeadlineState) -> HeldMachine:
        """See `SpotPolicy`."""
        if self._spot is not None:
            self._age = 1 if now.spot != self._spot else self._age + 1
        self._spot = now.spot
        unit, place = self._plan.unit, self._places[HeldMode(now.held, now.pending // self._plan.unit)]
        age = min(self._age, _AGES) - 1
        chosen = self._plan.choices[now.time_left // job.slot - 1, now.slack // unit, place, int(now.spot), age]
        return HeldMachine(int(chosen))


#: Ticks at the pooled rate in each class of a regime, and turns from each regime to any.
_REGIME_TICKS, _REGIME_TURNS = 4.0, 0.5


def better_regimes(
    change: FloatArray, turns: FloatArray, traces: Sequence[Sequence[bool]]
) -> tuple[FloatArray, FloatArray, float]:
    """One step of expectation maximisation (Baum and Welch); repeated from random starts, the likeliest end is kept.

    Args:
        change: chance that availability changes after a tick, by regime, availability and age class (K, 2, CLASSES).
        turns: chance after a tick that each regime becomes another, by rows (K, K).

    Returns both anew, and the log likelihood of the traces under the old ones.
    """
    many, longest = len(change), max(map(len, traces)) - 1
    state = np.zeros((longest, len(traces)), dtype=np.intp)
    moved, real = np.zeros(state.shape, dtype=np.bool_), np.zeros(state.shape, dtype=np.bool_)
    for place, trace in enumerate(traces):
        ticks, age = len(trace) - 1, _UNKNOWN_AGE
        for tick, (now, later) in enumerate(pairwise(trace)):
            state[tick, place] = now * AGE_CLASSES + age_class(age)
            age = 1 if now != later else age + 1
        moved[:ticks, place], real[:ticks, place] = np.diff(np.array(trace, dtype=np.int8)) != 0, True
    chance = change.reshape(many, -1)[:, state].transpose(1, 2, 0)
    likely = np.where(moved[..., None], chance, 1 - chance)
    likely[~real] = 1.0
    before, after, scale = np.empty_like(likely), np.ones_like(likely), np.empty(state.shape)
    belief = np.full((len(traces), many), 1 / many)
    for tick in range(longest):
        belief = belief @ turns * likely[tick]
        scale[tick] = belief.sum(axis=1)
        before[tick] = belief = belief / scale[tick][:, None]
    for tick in range(longest - 2, -1, -1):
        after[tick] = (likely[tick + 1] * after[tick + 1]) @ turns.T / scale[tick + 1][:, None]
    found = before * after * real[..., None]
    ticks_in, changes = np.zeros((2 * AGE_CLASSES, many)), np.zeros((2 * AGE_CLASSES, many))
    np.add.at(ticks_in, state, found)
    np.add.at(changes, state[moved], found[moved])
    pooled = (changes.sum(axis=1) + 0.5) / (ticks_in.sum(axis=1) + 1.0)
    new = (changes + _REGIME_TICKS * pooled[:, None]) / (ticks_in + _REGIME_TICKS)
    goes = np.where(real[1:, :, None], likely[1:] * after[1:] / scale[1:, :, None], 0.0)
    turned = turns * np.einsum("tmk,tml->kl", before[:-1], goes) + _REGIME_TURNS / many
    better = np.clip(new.T.reshape(change.shape), _RAREST, 1 - _RAREST)
    return better, turned / turned.sum(axis=1, keepdims=True), float(np.log(scale).sum())
