"""Use of the fleet by projects and users: declared shares, and recorded use with a half-life.

    used_g(t) = integral of factor x accelerators that the jobs of g hold, halved every `half_life_s`

A spot accelerator counts with `spot_factor`. Use is also counted in fair-share units: an accelerator of a pool is worth
to a job its speed there over the job's mean speed over the fleet, pools weighted by size. So an A100 is many units to a
job that is much faster on it, and one to a job with the same speed everywhere. Units are fixed when the job starts;
speeds learnt later count from its next start on.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import log

import numpy as np

from optimizer.assignment.fair_standing import entitlements
from optimizer.problem import Entities, EntityLimits, FloatArray
from scheduler.core.events import FLEET, EntityShare, RememberedUse, scope_covers
from scheduler.core.state.fleet import PoolState
from scheduler.core.state.job_classes import PoolParts
from scheduler.core.state.owned_places import OwnedPlaces
from walras.cluster import Market, Pool
from walras.job_request import JobId, JobRequest

#: Seconds of its share in which an entity makes up what it is behind; and the largest factor, either way, by which its
#: weight changes for that.
_MADE_UP_S, _MOST_MADE_UP = 4 * 3600.0, 2.0


@dataclass(slots=True)
class _Meter:
    """Use of one project or user, as of `at`."""

    at: float
    used_s: float = 0.0
    units_s: float = 0.0
    #: Accelerators held now, spot at its factor; the same in units.
    held: float = 0.0
    units: float = 0.0
    #: Decayed accelerator-seconds that it was entitled to and did not receive; accelerators that it is entitled to now,
    #: None where that is not counted.
    behind_s: float = 0.0
    entitled: float | None = None

    def bring_to(self, at: float, half_life_s: float) -> None:
        passed_s = at - self.at
        if passed_s <= 0.0:
            return
        kept = 0.5 ** (passed_s / half_life_s)
        grown_s = (1.0 - kept) * half_life_s / log(2.0)
        self.used_s = self.used_s * kept + self.held * grown_s
        self.units_s = self.units_s * kept + self.units * grown_s
        self.behind_s *= kept
        if self.entitled is not None:
            self.behind_s += (self.entitled - self.held) * grown_s
        self.at = at


@dataclass(slots=True)
class ShareUsage:
    """Declared shares by name, and the meters of every project and user that ever held something."""

    shares: dict[str, EntityShare] = field(default_factory=dict)
    half_life_s: float = 7 * 86_400.0
    spot_factor: float = 1.0
    #: Whether the policy in force divides time by weights, so that an entity that is behind gets a larger weight.
    makes_up: bool = False
    #: What projects own by type or pool.
    owned: OwnedPlaces = field(default_factory=OwnedPlaces)
    _meters: dict[str, _Meter] = field(default_factory=dict)
    #: What each running job adds to the meters: accelerators, units.
    _running: dict[JobId, tuple[float, float]] = field(default_factory=dict)

    def declare(self, shares: Iterable[EntityShare]) -> None:
        """Replaces all declared shares by these."""
        self.shares = {each.name: each for each in shares}
        self.owned.declare(self.shares.values())

    def count_by(self, half_life_s: float, spot_factor: float, at: float) -> None:
        """Sets half-life and spot factor from now on; running jobs on spot keep the factor of their start."""
        for meter in self._meters.values():
            meter.bring_to(at, self.half_life_s)
        self.half_life_s, self.spot_factor = half_life_s, spot_factor

    def started(self, request: JobRequest, held: PoolParts, units: float, pools: list[PoolState], at: float) -> None:
        """Begins to count what the job holds; `units` is its worth to the job in fair-share units."""
        counted = sum(count * self.factor(pools[pool]) for pool, count in held)
        plain = sum(count for _, count in held)
        added = (counted, units * counted / plain if plain else 0.0)
        self._running[request.job_id] = added
        self.owned.changes += 1
        self._change(request, *added, at)

    def ended(self, request: JobRequest, at: float) -> None:
        """Stops counting for a job that holds nothing any more."""
        accelerators, units = self._running.pop(request.job_id, (0.0, 0.0))
        self.owned.changes += 1
        self._change(request, -accelerators, -units, at)

    def scale(self, request: JobRequest, by: float, at: float) -> None:
        """Scales what a running job counts, such as by a half for each of two jobs on one accelerator."""
        accelerators, units = self._running[request.job_id]
        self._running[request.job_id] = (by * accelerators, by * units)
        self._change(request, (by - 1.0) * accelerators, (by - 1.0) * units, at)

    def factor(self, state: PoolState) -> float:
        """Returns the factor with which one accelerator of the pool counts."""
        return self.spot_factor if state.pool.market is Market.SPOT else 1.0

    def _change(self, request: JobRequest, accelerators: float, units: float, at: float) -> None:
        for name in request.owners:
            meter = self._meters.get(name)
            if meter is None:
                meter = self._meters[name] = _Meter(at)
            meter.bring_to(at, self.half_life_s)
            meter.held += accelerators
            meter.units += units

    def used(self, name: str, at: float) -> tuple[float, float]:
        """Returns decayed accelerator-seconds and unit-seconds used until `at`."""
        meter = self._meters.get(name)
        if meter is None:
            return 0.0, 0.0
        meter = _Meter(meter.at, meter.used_s, meter.units_s, meter.held, meter.units)
        meter.bring_to(at, self.half_life_s)
        return meter.used_s, meter.units_s

    def held(self, name: str) -> tuple[float, float]:
        """Returns the accelerators that a project or user holds (a spot one counts at its factor), and its units."""
        meter = self._meters.get(name)
        return (0.0, 0.0) if meter is None else (meter.held, meter.units)

    def names(self) -> Iterable[str]:
        """Returns all projects and users with recorded use."""
        return self._meters

    def remembered(self) -> Iterable[RememberedUse]:
        """Yields every meter as of its last change."""
        for name, meter in self._meters.items():
            found = RememberedUse(name, meter.at, meter.used_s, meter.units_s, meter.held, meter.units)
            if meter.entitled is not None:
                rate = meter.entitled - meter.held
                found = found._replace(behind_at=meter.at, behind_s=meter.behind_s, behind_rate=rate)
            yield found

    def recall(self, remembered: Iterable[RememberedUse], at: float) -> None:
        """Restores what a former core had counted, assuming that what was held then was held until now.

        Jobs that hold accelerators now are counted when they are restored.
        """
        for each in self.owned.recall(remembered, self.half_life_s, at):
            meter = _Meter(each.at, each.used_s, each.units_s, each.held, each.units)
            if self.makes_up and (each.behind_s or each.behind_rate):
                meter.behind_s, meter.entitled = each.behind_s, each.held + each.behind_rate
            meter.bring_to(at, self.half_life_s)
            meter.held = meter.units = 0.0
            self._meters[each.name] = meter

    # ---------------------------------------------------------------- entitled and not received

    def make_up_from(self, makes_up: bool, at: float) -> None:
        """Sets whether entities that are behind get larger weights; if not, what they are behind is dropped."""
        for meter in self._meters.values():
            meter.bring_to(at, self.half_life_s)
            if not makes_up:
                meter.behind_s, meter.entitled = 0.0, None
        self.makes_up = makes_up

    def made_up(self, entities: Entities, demand: FloatArray, capacity: float, at: float) -> Entities:
        """Returns the entities with weights by which each makes up what it is behind, or ahead, of its siblings.

        From now on each is entitled to its share of `capacity`, given what its jobs ask for, `demand` (g,). An entity
        that has had less than its siblings, relative to its entitlement, gets a weight with which it catches up in
        `_MADE_UP_S`.
        """
        entitled = entitlements(entities, demand, capacity)
        here = dict(zip(entities.name, entitled.tolist(), strict=True))
        for name in dict.fromkeys((*self._meters, *here)):
            meter = self._meters.setdefault(name, _Meter(at))
            meter.bring_to(at, self.half_life_s)
            meter.entitled = here.get(name, 0.0)
        behind = np.array([self._meters[name].behind_s for name in entities.name])
        parent, weight = np.asarray(entities.parent), np.array(entities.weight, dtype=np.float64)
        for above in np.unique(parent[entitled > 0]):
            family = np.flatnonzero((parent == above) & (entitled > 0))
            if len(family) > 1:
                part_s = behind[family] / entitled[family] - behind[family].sum() / entitled[family].sum()
                weight[family] *= np.clip(1.0 + part_s / _MADE_UP_S, 1.0 / _MOST_MADE_UP, _MOST_MADE_UP)
        return replace(entities, weight=weight)

    # ---------------------------------------------------------------- for problems

    def entities(self, names: Iterable[str], parents: list[int], capacity: float) -> Entities:
        """Returns a problem's entities with their declared shares; fleet limits are fractions of `capacity`."""
        known = tuple(names)
        parent = np.array(parents, dtype=np.int64)
        if not self.shares:
            return Entities(known, np.ones(len(known)), parent)
        shares = [self.shares.get(name, EntityShare(name)) for name in known]
        weight = np.array([each.weight for each in shares])
        limit = np.array([_fleet_limit(each, capacity) for each in shares])
        guaranteed = np.minimum([each.guaranteed for each in shares], limit)
        for row in np.flatnonzero(parent < 0):
            inside = parent == row
            promised = float(guaranteed[inside].sum())
            if promised > guaranteed[row]:  # guarantees of users are part of their project's guarantee
                guaranteed[inside] *= guaranteed[row] / promised
        top = float(guaranteed[parent < 0].sum())
        if top > 1.0:
            guaranteed /= top
        return Entities(known, weight, parent, guaranteed, limit)

    def limits(self, names: Iterable[str], pools: Sequence[Pool]) -> EntityLimits | None:
        """Returns the declared limits of these entities; None if there are none."""
        found = [
            (row, limit)
            for row, name in enumerate(names)
            for limit in (self.shares[name].limits if name in self.shares else ())
        ]
        if not found:
            return None
        covered = [[scope_covers(limit.scope, pool) for pool in pools] for _, limit in found]
        return EntityLimits(
            np.array([row for row, _ in found], dtype=np.int64),
            np.array([float(limit.accelerators) for _, limit in found]),
            np.array(covered, dtype=np.bool_).reshape(len(found), len(pools)),
        )


def _fleet_limit(share: EntityShare, capacity: float) -> float:
    """Returns the fraction of the fleet that it may hold."""
    most = [each.accelerators for each in share.limits if each.scope == FLEET]
    return min(1.0, min(most) / capacity) if most and capacity > 0 else 1.0
