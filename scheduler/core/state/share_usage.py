"""What projects and users have of the fleet: declared shares, and use that is remembered with a half-life.

    used_g(t) = integral of factor x accelerators that the jobs of g hold, old parts halved every `half_life_s`

A spot accelerator counts at `spot_factor`. Beside accelerators the same is counted in fair-share units: an accelerator
of a pool is worth to a job its speed there against the job's mean speed over the fleet, pools weighted by their size,
so that an A100 is many units to a job that flies on it and one to a job that does not care. A unit is valued when the
job starts; what is learned of its speed later counts from its next start on.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import log

import numpy as np

from optimizer.assignment.fair_standing import entitlements
from optimizer.problem import Entities, EntityLimits, FloatArray
from scheduler.core.share_events import FLEET, EntityShare, RememberedUse, scope_covers
from scheduler.core.state.fleet import PoolState
from scheduler.core.state.job_classes import PoolParts
from walras.cluster import Market, Pool
from walras.job_request import JobId, JobRequest

#: What somebody is behind of what it is entitled to is made up in about this time, seconds of its share; by a weight
#: that is at most so many times its own, or so little of it.
_MADE_UP_S, _MOST_MADE_UP = 4 * 3600.0, 2.0


@dataclass(slots=True)
class _Meter:
    """Use of one project or user until `at`."""

    at: float
    used_s: float = 0.0
    units_s: float = 0.0
    #: Held now, spot at its factor; the same in units.
    held: float = 0.0
    units: float = 0.0
    #: Accelerator-seconds of what it was entitled to that it did not have, old parts halved; and what it is entitled to
    #: now. None: nobody counts that.
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
    """Declared shares by name, and the meters of everybody who ever held something."""

    shares: dict[str, EntityShare] = field(default_factory=dict)
    half_life_s: float = 7 * 86_400.0
    spot_factor: float = 1.0
    #: The policy in force gives time by weights: what somebody is behind raises its weight.
    makes_up: bool = False
    _meters: dict[str, _Meter] = field(default_factory=dict)
    #: What each running job adds to the meters: accelerators, units.
    _running: dict[JobId, tuple[float, float]] = field(default_factory=dict)

    def declare(self, shares: Iterable[EntityShare]) -> None:
        """These hold from now on, in place of all before."""
        self.shares = {each.name: each for each in shares}

    def count_by(self, half_life_s: float, spot_factor: float, at: float) -> None:
        """Count like this from now on; what runs on spot goes on as it was counted when it started."""
        for meter in self._meters.values():
            meter.bring_to(at, self.half_life_s)
        self.half_life_s, self.spot_factor = half_life_s, spot_factor

    def started(self, request: JobRequest, held: PoolParts, units: float, pools: list[PoolState], at: float) -> None:
        """The job holds this from now on; `units`: what that is worth to it."""
        counted = sum(count * self.factor(pools[pool]) for pool, count in held)
        plain = sum(count for _, count in held)
        added = (counted, units * counted / plain if plain else 0.0)
        self._running[request.job_id] = added
        self._change(request, *added, at)

    def ended(self, request: JobRequest, at: float) -> None:
        """The job holds nothing any more."""
        accelerators, units = self._running.pop(request.job_id, (0.0, 0.0))
        self._change(request, -accelerators, -units, at)

    def scale(self, request: JobRequest, by: float, at: float) -> None:
        """From now on what the running job holds counts so many times as much: two on one accelerator, half each."""
        accelerators, units = self._running[request.job_id]
        self._running[request.job_id] = (by * accelerators, by * units)
        self._change(request, (by - 1.0) * accelerators, (by - 1.0) * units, at)

    def factor(self, state: PoolState) -> float:
        """What one accelerator of the pool counts."""
        return self.spot_factor if state.pool.market is Market.SPOT else 1.0

    def _change(self, request: JobRequest, accelerators: float, units: float, at: float) -> None:
        for name in request.owners:
            meter = self._meters.setdefault(name, _Meter(at))
            meter.bring_to(at, self.half_life_s)
            meter.held += accelerators
            meter.units += units

    def used(self, name: str, at: float) -> tuple[float, float]:
        """Accelerator-seconds and unit-seconds used by now, old parts halved."""
        meter = self._meters.get(name)
        if meter is None:
            return 0.0, 0.0
        meter = _Meter(meter.at, meter.used_s, meter.units_s, meter.held, meter.units)
        meter.bring_to(at, self.half_life_s)
        return meter.used_s, meter.units_s

    def held(self, name: str) -> tuple[float, float]:
        """What it holds now as it is counted: accelerators (spot at its factor), and units."""
        meter = self._meters.get(name)
        return (0.0, 0.0) if meter is None else (meter.held, meter.units)

    def names(self) -> Iterable[str]:
        """Everybody who used something that is remembered."""
        return self._meters

    def remembered(self) -> Iterable[RememberedUse]:
        """Every meter as it stood when it last changed."""
        for name, meter in self._meters.items():
            found = RememberedUse(name, meter.at, meter.used_s, meter.units_s, meter.held, meter.units)
            if meter.entitled is not None:
                rate = meter.entitled - meter.held
                found = found._replace(behind_at=meter.at, behind_s=meter.behind_s, behind_rate=rate)
            yield found

    def recall(self, remembered: Iterable[RememberedUse], at: float) -> None:
        """Take in what a former core had counted. What was held then was held until now; who holds it now is told."""
        for each in remembered:
            meter = _Meter(each.at, each.used_s, each.units_s, each.held, each.units)
            if self.makes_up and (each.behind_s or each.behind_rate):
                meter.behind_s, meter.entitled = each.behind_s, each.held + each.behind_rate
            meter.bring_to(at, self.half_life_s)
            meter.held = meter.units = 0.0
            self._meters[each.name] = meter

    # ---------------------------------------------------------------- what somebody is behind

    def make_up_from(self, makes_up: bool, at: float) -> None:
        """Whether what is behind raises weights from now on; under another policy it is forgotten."""
        for meter in self._meters.values():
            meter.bring_to(at, self.half_life_s)
            if not makes_up:
                meter.behind_s, meter.entitled = 0.0, None
        self.makes_up = makes_up

    def made_up(self, entities: Entities, demand: FloatArray, capacity: float, at: float) -> Entities:
        """The entities with weights by which each makes up what it is behind, or ahead, of its siblings.

        From now on each is entitled to its share of `capacity` by what its jobs ask for (g,). Who has had less than its
        siblings, as a part of what it is entitled to, has so much more that it has caught up after `_MADE_UP_S`.
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
        """The entities of a problem with what was declared of them; a limit of the fleet as a part of what is there."""
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
            if promised > guaranteed[row]:  # users are promised a part of what their project is
                guaranteed[inside] *= guaranteed[row] / promised
        top = float(guaranteed[parent < 0].sum())
        if top > 1.0:
            guaranteed /= top
        return Entities(known, weight, parent, guaranteed, limit)

    def limits(self, names: Iterable[str], pools: Sequence[Pool]) -> EntityLimits | None:
        """The limits that were declared of those who are there; None where nobody has any."""
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
    """Fraction of the fleet that it may hold."""
    most = [each.accelerators for each in share.limits if each.scope == FLEET]
    return min(1.0, min(most) / capacity) if most and capacity > 0 else 1.0
