"""A solved market in which one job comes or goes: a certified answer at once, without asking the others again.

The points of the last solve stay, and with them what every class does there. A job that comes or goes changes the sums
at each point by its own response, and the mixture of the points is chosen anew (see `stored`): work that does not grow
with the number of jobs. Shares are told for whom they are asked. The bound stays nearly sharp; what the mixture loses
grows as prices move away from the points, until `recertify` solves from where things stand. Decides nothing else.

Levels must be proportional (`Linear`): a mixture of other targets need not reach the mixture of their levels.
"""

from dataclasses import dataclass, replace

import numpy as np

from optimizer.market.market import Market
from optimizer.market.objective import Level, Objective
from optimizer.prices import stored
from optimizer.prices.engine import Engine, best_engine
from optimizer.prices.newton import Point, look
from optimizer.prices.roster import Entrant, Linear, Roster
from optimizer.prices.softened import SCALARS, TARGET, Wants, supply_of, width_of
from optimizer.prices.solve import Limits, response_of, settle
from optimizer.prices.standing import Standing
from optimizer.prices.stored import Mixer, Mixture, Points
from optimizer.prices.task import Task, task_of
from optimizer.problem import FloatArray, IntArray

#: By which part of itself a price, or the level, of a probe is off; and probes made anew when a market is certified.
_PROBE = 0.04
_RENEWED = 3
#: A newcomer whose shares miss its goal by more than this part makes a point useless.
_MISSED = 1e-10


@dataclass(frozen=True, slots=True)
class Certificate:
    """What the shares reach, what nobody can exceed, and by which part that is more."""

    reached: float
    bound: float
    gap: float


class StandingMarket:
    """A market and its objective with everything that is certified about them, while jobs come and go."""

    def __init__(
        self, market: Market, objective: Objective, limits: Limits | None = None, engine: Engine | None = None
    ) -> None:
        """Solve the market.

        Args:
            market, objective: classes get the handles 0, 1, ... in their order; targets of a Level are `Linear`.
            limits: of every solve.
        """
        if isinstance(objective, Level) and not isinstance(objective.targets, Linear):
            raise ValueError("only targets proportional to the level can be kept up to date")
        self._limits, self._engine, self._mixer = limits or Limits(), engine or best_engine(), Mixer()
        self._roster = Roster(market, objective)
        self._standing: Standing | None = None
        #: Probes first, of which the oldest first.
        self._points, self._probes = stored.no_points(market.rows), 0
        #: The probe to be made next.
        self._turn = 0
        self._mixture: Mixture | None = None
        self.recertify()

    def arrive(self, entrant: Entrant) -> int:
        """Let a job in; returns its handle."""
        handle = self._roster.enter(entrant)
        self._change(entrant, 1.0)
        return handle

    def leave(self, handle: int) -> None:
        """Let one member of a class go. Raises KeyError if none is there."""
        self._change(self._roster.remove(handle), -1.0)

    @property
    def certificate(self) -> Certificate:
        """What the present shares reach and what is proved of them; the gap is infinite where no shares are known."""
        asked = self._roster.asked()
        reached, bound = self._mixed().reached, stored.bound_of(self._points, asked)
        bound = max(bound, reached)
        if not np.isfinite(reached) or not np.isfinite(bound):
            return Certificate(reached, bound, np.inf)
        scale = max(abs(bound), abs(reached), 1e-12) if asked.weight is None else asked.weight
        return Certificate(reached, bound, (bound - reached) / max(scale, 1e-300))

    def shares_of(self, handle: int) -> FloatArray:
        """Shares of time of one member in each of its columns. Raises KeyError if none is there."""
        market, wants = self._roster.alone(self._roster.entrant(handle))
        shares: FloatArray = self._mixed().weight @ _responses(self._engine, market, wants, self._points)[1]
        return shares

    def dense(self) -> FloatArray:
        """Shares of one member of each class, in the order of `market` (C,)."""
        market, objective, _ = self._roster.compacted()
        task, points, weight = task_of(market, objective), self._points, self._mixed().weight
        shares, one = np.zeros(market.columns), np.zeros(market.columns)
        for k in np.flatnonzero(weight > 0):
            one[:] = 0.0
            self._engine.sums(market, task.wants(points.z[k]), points.prices[k], points.softness[k], one)
            shares += weight[k] * one
        return shares

    @property
    def market(self) -> Market:
        """As it is now: those who left are gone, those who came stand last."""
        return self._roster.compacted()[0]

    @property
    def objective(self) -> Objective:
        """Of that market."""
        return self._roster.compacted()[1]

    @property
    def handles(self) -> IntArray:
        """Of the classes of that market, in their order."""
        return self._roster.compacted()[2]

    def recertify(self) -> Certificate:
        """Solve again, from where things stand. Work that grows with the number of jobs."""
        start = self._start()
        market, objective, _ = self._roster.compacted()
        self._standing = settle(market, objective, self._limits, start, self._engine).standing
        self._points, self._mixture = self._renewed(task_of(market, objective)), None
        return self.certificate

    def _start(self) -> Standing | None:
        """Where the mixture's prices are: close to what has become of those of the last solve."""
        weight = self._mixed().weight
        if self._standing is None or not weight.any():
            return self._standing
        part, at = weight / weight.sum(), self._standing.at
        z = min(float(part @ self._points.z), self._roster.asked().highest)
        return replace(self._standing, at=replace(at, prices=part @ self._points.prices, z=z))

    def _renewed(self, task: Task) -> Points:
        """Where the last solve went, and probes beside its end: the first time all, then a few of them anew."""
        rows, every, had = task.market.rows, 2 * (task.market.rows + 1), self._probes
        if self._standing is None:
            self._probes = 0
            return stored.no_points(rows) if task.market.columns else stored.idle(task.market.capacity)
        at, renew = self._standing.at, every - had or _RENEWED
        beside = [look(self._engine, task, _probe(task, at, (self._turn + n) % every)) for n in range(renew)]
        self._turn, self._probes = (self._turn + renew) % every, every
        seen = [response_of(one) for one in beside] + list(self._standing.responses[-rows:])
        kept = self._points.take(slice(had + renew - every, had))
        return stored.both(kept, stored.points_of(seen, rows, level=task.is_level))

    def _change(self, entrant: Entrant, members: float) -> None:
        market, wants = self._roster.alone(entrant)
        sums, shares = _responses(self._engine, market, wants, self._points)
        self._points.sums[:] += members * sums
        if wants.kind == TARGET and members > 0:
            # Softness far below the prices that a newcomer compares leaves too few digits for its goal.
            goal = np.minimum(entrant.goal * self._points.z, entrant.worth.max(initial=0.0))
            self._points.spoiled[:] |= shares @ entrant.worth < goal * (1.0 - _MISSED)
        self._mixture = None

    def _mixed(self) -> Mixture:
        if self._mixture is None:
            self._mixture = self._mixer.mix(self._points, self._roster.asked())
        return self._mixture


def _probe(task: Task, at: Point, turn: int) -> Point:
    """A point beside another: in turn less and more is wanted of each row, and at last of all."""
    row, down = divmod(turn, 2)
    part = -_PROBE if down else _PROBE
    if row < len(at.prices):
        prices = at.prices.copy()
        prices[row] += part * max(prices[row], at.reference[row])
        return replace(at, prices=np.maximum(prices, 0.0))
    return replace(at, z=at.z * (1.0 - part)) if task.is_level else replace(at, prices=at.prices * (1.0 + part))


def _responses(engine: Engine, market: Market, wants: Wants, points: Points) -> tuple[FloatArray, FloatArray]:
    """What the classes of a small market do at every point: sums (K, r + SCALARS), and shares (K, C)."""
    rows, shares = market.rows, np.zeros((len(points), market.columns))
    if engine.name == "numba":
        from optimizer.prices import update_kernels

        totals = np.zeros((len(points), width_of(rows)))
        at = update_kernels.AtPoints(points.prices, points.softness, points.z)
        update_kernels.run(supply_of(market), wants, at, totals, shares)
        return np.hstack([totals[:, :rows], totals[:, -SCALARS:]]), shares
    found = np.zeros((len(points), rows + SCALARS))
    for k in range(len(points)):
        asked = wants._replace(goal=wants.goal * points.z[k])
        sums = engine.sums(market, asked, points.prices[k], points.softness[k], shares[k])
        found[k, :rows] = sums.demand
        found[k, rows:] = sums.exact_cost, sums.exact_slope, sums.value, sums.soft_cost, sums.unreached
    return found, shares
