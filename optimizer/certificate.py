"""An independent opinion on shares: recomputes everything from the problem, trusts no number and shares no code.

What the policies' own modules do with sparse matrices and classes is done here job by job, as the definitions read:
slowly, and by another road. Decides only whether a decision is what it claims to be; every disagreement is a complaint.

Symbols as in `optimizer.utility` and `optimizer.levels`: u utilities, w entitlements, y and l the quoted dual values.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from optimizer.decision import Shares, Stage, StageKind, Status
from optimizer.policy import PolicySpec
from optimizer.problem import BoolArray, FloatArray, Problem

#: What may differ between two honest computations: constraints; everything that went through a solver.
_FEASIBLE = 1e-9
_SAME = 1e-6
#: A larger gap is not called optimal.
_OPTIMAL = 1e-4
#: As declared in `optimizer.utility`: who is within this part of its cap is full.
_FULL = 1e-9
#: Sums of dual values that agree to this part are equal.
_ROUNDING = 1e-10
#: As declared in `optimizer.quoting`.
_SCARCE = 1e-9


@dataclass(frozen=True, slots=True)
class CheckedCertificate:
    """What the shares are really worth. No complaints: they are what they claim to be."""

    objective: float
    bound: float
    gap: float
    violation: float
    complaints: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """True: nothing to complain about."""
        return not self.complaints


def check(problem: Problem, policy: PolicySpec, shares: Shares) -> CheckedCertificate:
    """Check shares against the problem they answer.

    Args:
        problem: as it was asked (before a rental: `shares.rent` says what was counted on).
        policy: the policy that answered; those of this package that answer with shares are known here.
        shares: the answer.
    """
    facts = _Facts(problem, shares.rent, aware=bool(policy.parameters.get("aware", True)))
    complaints: list[str] = []
    violation = _violation(facts, shares.x)
    if violation > _FEASIBLE:
        complaints.append(f"a constraint is violated by {violation:.3g}")
    if np.any(shares.x[~facts.usable] > 0):
        complaints.append("a configuration that cannot run has a share")
    if not np.array_equal(shares.unplaceable, np.flatnonzero(facts.best == 0)):
        complaints.append("the jobs without any configuration are not those listed")
    utility = facts.utility_of(shares.x)
    if shares.certificate.status is Status.EMPTY:
        objective, bound = 0.0, 0.0
        if facts.usable.any():
            complaints.append("called empty, but something can run")
    elif shares.stages:
        objective, bound = _check_stages(facts, shares, utility, complaints)
        _check_quote(facts, shares, complaints)
    else:
        objective = facts.level(utility, facts.weight, facts.best)
        bound = _check_formula(facts, shares, complaints)
    gap = abs(bound - objective) / max(1e-12, abs(bound))
    _compare(shares, objective, bound, gap, violation, complaints)
    return CheckedCertificate(objective, bound, gap, violation, tuple(complaints))


class _Facts:
    """The problem, job by job."""

    def __init__(self, problem: Problem, rent: FloatArray, *, aware: bool) -> None:
        pools, columns = problem.pools, problem.columns
        self.problem = problem
        rented = pools.rented if len(pools.rented) else np.zeros(len(pools.capacity))
        self.capacity = pools.capacity - rented + rent
        self.uses: list[dict[int, float]] = [{} for _ in columns.job]
        for column, pool, count in zip(columns.use_column, columns.use_pool, columns.use_count, strict=True):
            self.uses[column][int(pool)] = self.uses[column].get(int(pool), 0.0) + float(count)
        self.usable = np.array(
            [
                columns.steps_per_s[c] > 0 and all(n <= self.capacity[p] + 1e-9 for p, n in uses.items())
                for c, uses in enumerate(self.uses)
            ],
            dtype=bool,
        )
        self.columns_of: list[list[int]] = [[] for _ in problem.jobs.job_id]
        for column, job in enumerate(columns.job):
            self.columns_of[job].append(column)
        self.worth = np.zeros(len(columns.job))
        for job, mine in enumerate(self.columns_of):
            for column in mine:
                if self.usable[column]:
                    self.worth[column] = self._worth(job, column, mine) if aware else sum(self.uses[column].values())
        self.best = np.array([max((self.worth[c] for c in mine), default=0.0) for mine in self.columns_of])
        self.weight = self._entitlements()

    def _worth(self, job: int, column: int, mine: list[int]) -> float:
        columns = self.problem.columns
        equal = 0.0
        for pool, size in enumerate(self.capacity):
            alone = [c for c in mine if self.usable[c] and list(self.uses[c]) == [pool]]
            if alone:
                smallest = min(self.uses[c][pool] for c in alone)
                fastest = max(columns.steps_per_s[c] for c in alone if self.uses[c][pool] == smallest)
                equal += float(fastest * size / max(self.capacity.sum(), 1.0))
        if equal == 0:
            equal = float(max(columns.steps_per_s[c] for c in mine if self.usable[c]))
        return float(self.problem.jobs.gang[job] * columns.steps_per_s[column] / equal)

    def _entitlements(self) -> FloatArray:
        jobs, entities = self.problem.jobs, self.problem.entities
        own = np.array([w if best > 0 else 0.0 for w, best in zip(jobs.weight, self.best, strict=True)])
        if not len(entities.name):
            return own
        present = [e for e in range(len(entities.name)) if own[jobs.entity == e].sum() > 0]
        total = sum(float(entities.weight[e]) for e in present)
        entitled = np.zeros(len(own))
        for entity in present:
            members = jobs.entity == entity
            if total > 0:
                entitled[members] = own.sum() * (entities.weight[entity] / total) * own[members] / own[members].sum()
        return entitled

    def utility_of(self, x: FloatArray) -> FloatArray:
        """What the shares give each job (n,)."""
        return np.array([sum(self.worth[c] * x[c] for c in mine) for mine in self.columns_of], dtype=np.float64)

    def cost(self, column: int, prices: FloatArray) -> float:
        """Price of a column."""
        return sum(count * float(prices[pool]) for pool, count in self.uses[column].items())

    def level(self, utility: FloatArray, weight: FloatArray, cap: FloatArray) -> float:
        """Largest z with u >= min(w z, cap); the level that fills the last job where all are full."""
        entitled = [j for j in range(len(utility)) if weight[j] > 0]
        short = [utility[j] / weight[j] for j in entitled if utility[j] < cap[j] * (1 - _FULL)]
        return float(min([*short, max((cap[j] / weight[j] for j in entitled), default=0.0)]))

    def income(self, stage: Stage, direct: float) -> float:
        """All that pools and jobs' time can earn at the stage's dual values: the dual objective."""
        earned = float(self.capacity @ stage.prices)
        for job, mine in enumerate(self.columns_of):
            rate = direct + float(stage.multiplier[job])
            gains = (rate * self.worth[c] - self.cost(c, stage.prices) for c in mine if self.usable[c])
            earned += max(0.0, max(gains, default=0.0))
        return earned


def _violation(facts: _Facts, x: FloatArray) -> float:
    worst = max(0.0, float(-x.min(initial=0.0)))
    used = np.zeros(len(facts.capacity))
    for mine in facts.columns_of:
        worst = max(worst, float(sum(x[c] for c in mine)) - 1.0)
        for column in mine:
            for pool, count in facts.uses[column].items():
                used[pool] += count * x[column]
    for pool, size in enumerate(facts.capacity):
        worst = max(worst, float(used[pool] - size) / (float(size) if size > 0 else 1.0))
    return worst


def _check_stages(facts: _Facts, shares: Shares, utility: FloatArray, complaints: list[str]) -> tuple[float, float]:
    """Every stage reaches what it says, no better is possible by its own dual values, and the stages fit together."""
    left = _Left(facts.weight > 0, np.zeros(len(utility)), np.zeros(len(facts.capacity), dtype=bool))
    first: tuple[float, float] | None = None
    for number, stage in enumerate(shares.stages, start=1):
        name = f"stage {number} ({stage.kind.value})"
        if np.any(stage.prices < 0) or np.any(stage.multiplier < 0):
            complaints.append(f"{name}: a dual value is negative")
        if np.any(utility < stage.floor - _SAME * np.maximum(stage.floor, 1e-12)):
            complaints.append(f"{name}: a job has less than the floor it was to keep")
        if stage.kind is StageKind.LEVEL:
            complaints.extend(f"{name}: {complaint}" for complaint in _check_succession(facts, stage, left))
            objective = facts.level(utility, np.where(stage.active, facts.weight, 0.0), stage.cap)
            bound = _level_bound(facts, stage)
            left = _after(facts, stage, left, objective)
        else:
            if np.any(stage.floor < left.kept * (1 - _SAME)):
                complaints.append(f"{name}: a floor is below what the levels gave")
            objective = float(utility.sum())
            bound = facts.income(stage, 1.0) - float(stage.multiplier @ stage.floor)
        _close(f"{name}: objective", stage.objective, objective, complaints)
        _close(f"{name}: bound", stage.bound, bound, complaints)
        if abs(bound - objective) > _OPTIMAL * max(abs(bound), 1e-12):
            complaints.append(f"{name}: its dual values prove {bound:.9g}, its shares reach {objective:.9g}")
        first = first or (objective, bound)
    assert first is not None, "called with at least one stage"
    waiting = left.active.any() or np.any((facts.weight == 0) & (facts.best > 0))
    if waiting and shares.stages[-1].kind is not StageKind.SUM and shares.certificate.status is Status.OPTIMAL:
        complaints.append("some jobs may still rise, and no stage tells what became of the leftover")
    return first


@dataclass(frozen=True, slots=True, eq=False)
class _Left:
    """What earlier levels left: jobs that may rise (n,), utilities to be kept (n,), pools used up (p,)."""

    active: BoolArray
    kept: FloatArray
    gone: BoolArray


def _check_succession(facts: _Facts, stage: Stage, left: _Left) -> Iterator[str]:
    """A level raises those whom earlier levels left, caps them by the pools that are left, and protects the rest."""
    if not np.array_equal(stage.active, left.active):
        yield "it raises other jobs than those that earlier levels left"
    if np.any(np.abs(stage.floor - np.where(left.active, 0.0, left.kept)) > _SAME * np.maximum(left.kept, 1e-12)):
        yield "a floor is not what earlier levels gave"
    for job in np.flatnonzero(left.active):
        live = [c for c in facts.columns_of[job] if not any(left.gone[pool] for pool in facts.uses[c])]
        cap = max(max((float(facts.worth[c]) for c in live), default=0.0), float(left.kept[job]))
        if abs(stage.cap[job] - cap) > _SAME * cap:
            yield f"cap of job row {job}: stated {stage.cap[job]:.9g}, found {cap:.9g}"


def _after(facts: _Facts, stage: Stage, left: _Left, level: float) -> _Left:
    """What a level leaves: full jobs and those that its prices bind have settled, priced pools are used up."""
    target = np.minimum(facts.weight * level, stage.cap)
    paid = stage.multiplier * target
    settled = (target >= stage.cap * (1 - _FULL)) | (paid > _SCARCE * max(float(paid.sum()), 1e-300))
    return _Left(
        active=stage.active & ~settled,
        kept=np.where(stage.active, target, left.kept),
        gone=left.gone | _scarce(facts, stage.prices),
    )


def _level_bound(facts: _Facts, stage: Stage) -> float:
    """The smallest level that the dual values prove to be out of reach, by bisection on what its targets cost."""
    raised = [j for j in range(len(facts.weight)) if stage.active[j] and facts.weight[j] > 0]
    highest = max((float(stage.cap[j] / facts.weight[j]) for j in raised), default=0.0)
    kept = float(stage.multiplier @ np.where(stage.active, 0.0, stage.floor))
    income = (facts.income(stage, 0.0) - kept) * (1 + _ROUNDING)
    weight, cap, pay = facts.weight[raised], stage.cap[raised], stage.multiplier[raised]

    def cost(z: float) -> float:
        return float(pay @ np.minimum(weight * z, cap))

    if cost(highest) <= income:
        return highest
    low, high = 0.0, highest
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if cost(middle) <= income else (low, middle)
    return high


def _check_quote(facts: _Facts, shares: Shares, complaints: list[str]) -> None:
    """Quoted prices and surpluses follow from the stages' dual values."""
    problem = facts.problem
    prices = np.zeros(len(facts.capacity))
    for stage in shares.stages:
        for pool in np.flatnonzero(_scarce(facts, stage.prices)):
            if prices[pool] == 0:
                paying = [
                    y for y in stage.multiplier[stage.active] if y > _SCARCE * stage.multiplier[stage.active].max()
                ]
                mean = sum(paying) / len(paying) if paying else np.inf
                prices[pool] = stage.prices[pool] / (1.0 if stage.kind is StageKind.SUM else mean)
    for name, stated, price in zip(problem.pools.pool_id, shares.quote.prices, prices, strict=True):
        _close(f"quoted price of {name}", float(stated), float(price), complaints)
    weights = [w for w, best in zip(problem.jobs.weight, facts.best, strict=True) if w > 0 and best > 0]
    exchange = len(weights) / sum(weights) if weights else 1.0
    _close("exchange", shares.quote.exchange, exchange, complaints)
    for job, mine in enumerate(facts.columns_of):
        gain = exchange * problem.jobs.weight[job]
        surplus = max((gain * facts.worth[c] - facts.cost(c, prices) for c in mine if facts.usable[c]), default=0.0)
        if abs(max(surplus, 0.0) - shares.surplus[job]) > _SAME * max(1.0, abs(surplus), gain * facts.best[job]):
            complaints.append(f"surplus of job row {job}: stated {shares.surplus[job]:.9g}, found {surplus:.9g}")


def _check_formula(facts: _Facts, shares: Shares, complaints: list[str]) -> float:
    """Shares by formula: an equal part of every pool. Their bound is another policy's and taken as stated, if valid."""
    alone_somewhere = [bool(facts.usable[c] and len(uses) == 1) for c, uses in enumerate(facts.uses)]
    sharers = [j for j, mine in enumerate(facts.columns_of) if any(alone_somewhere[c] for c in mine)]
    for job in sharers:
        expected: dict[int, float] = {}
        for pool, size in enumerate(facts.capacity):
            alone = [c for c in facts.columns_of[job] if facts.usable[c] and list(facts.uses[c]) == [pool]]
            if alone:
                smallest = min(facts.uses[c][pool] for c in alone)
                speed = facts.problem.columns.steps_per_s
                column = max((c for c in alone if facts.uses[c][pool] == smallest), key=lambda c: (speed[c], -c))
                expected[column] = float(size) / (len(sharers) * smallest)
        total = max(1.0, sum(expected.values()))
        if any(abs(shares.x[c] - expected.get(c, 0.0) / total) > _SAME for c in facts.columns_of[job]):
            complaints.append(f"job row {job} does not have its equal part")
    if shares.certificate.bound < facts.level(facts.utility_of(shares.x), facts.weight, facts.best) * (1 - _SAME):
        complaints.append("the bound is below what the shares reach")
    return shares.certificate.bound


def _compare(
    shares: Shares, objective: float, bound: float, gap: float, violation: float, complaints: list[str]
) -> None:
    """What the certificate says against what was found."""
    stated = shares.certificate
    _close("objective", stated.objective, objective, complaints)
    _close("bound", stated.bound, bound, complaints)
    if abs(stated.gap - gap) > 2 * _SAME * max(1.0, gap):
        complaints.append(f"gap: stated {stated.gap:.3g}, found {gap:.3g}")
    if violation > stated.violation + _FEASIBLE:
        complaints.append(f"violation: stated {stated.violation:.3g}, found {violation:.3g}")
    if stated.status is Status.OPTIMAL and gap > _OPTIMAL:
        complaints.append(f"called optimal with a gap of {gap:.3g}")


def _scarce(facts: _Facts, prices: FloatArray) -> BoolArray:
    paid = prices * facts.capacity
    return np.asarray(paid > _SCARCE * max(float(paid.sum()), 1e-300))


def _close(what: str, stated: float, found: float, complaints: list[str]) -> None:
    if not abs(stated - found) <= _SAME * max(abs(found), abs(stated), 1e-9):
        complaints.append(f"{what}: stated {stated:.9g}, found {found:.9g}")
