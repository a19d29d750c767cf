"""A market kept up to date: what it states after every event, against the market rebuilt from nothing."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_pass import numpy_engine
from scipy import optimize, sparse

from optimizer.classes.class_problem import ClassProblem, MaxMin, MaxSum, NashWelfare, Objective
from optimizer.lp.dual_newton.dual_bound import compiled_engine
from optimizer.lp.dual_newton.incremental_update import (
    ArrivingMember,
    ClassMembers,
    IncrementalSolver,
    proportional_level,
)
from tests.support.markets import ConvexTargets, exact, market_of, markets, rows_of

_CLOSE = 1e-8


@dataclass
class Plain:
    """The same market kept the slow way: a list of jobs by handle."""

    form: str
    capacity: np.ndarray
    jobs: dict[int, tuple[ArrivingMember, float]] = field(default_factory=dict)

    def rebuilt(self) -> tuple[ClassProblem, Objective]:
        """Everybody's columns, laid end to end."""
        jobs = [self.jobs[handle] for handle in sorted(self.jobs)]
        columns = [
            [
                [(int(one.use_row[u]), float(one.use_count[u])) for u in range(one.use_first[c], one.use_first[c + 1])]
                for c in range(len(one.worth))
            ]
            for one, _ in jobs
        ]
        market, _ = market_of([size for _, size in jobs], columns, list(self.capacity))
        worth = np.concatenate([one.worth for one, _ in jobs])
        value = np.concatenate([one.value for one, _ in jobs])
        return market, _objective(self.form, market, worth, value, np.array([one.goal for one, _ in jobs]))


def _objective(form: str, market: ClassProblem, worth: np.ndarray, value: np.ndarray, goal: np.ndarray) -> Objective:
    if form == "level":
        return proportional_level(market, worth, goal)
    if form == "nash":
        return NashWelfare(worth, goal)
    return MaxSum(value, worth, goal)


def _optimum(market: ClassProblem, objective: Objective) -> float:
    """By a general solver; -inf where nothing is feasible."""
    if not isinstance(objective, MaxMin):
        best = exact(market, objective).objective
        return -np.inf if best is None else best
    rows, k, c = rows_of(market, objective.worth), market.classes, market.columns
    rate = objective.targets.at(1.0)[0]
    if not rate.any():
        return 0.0
    level = sparse.csr_array(rate[:, None])
    found = optimize.linprog(
        np.append(np.zeros(c), -1.0),
        A_ub=sparse.vstack(
            [
                sparse.hstack([rows.time, sparse.csr_array((k, 1))]),
                sparse.hstack([rows.load, sparse.csr_array((market.rows, 1))]),
                sparse.hstack([-rows.worth, level]),
            ]
        ),
        b_ub=np.concatenate([np.ones(k), market.capacity, np.zeros(k)]),
        method="highs",
    )
    assert found.status == 0, found.message
    return -float(found.fun)


def _goals(form: str, best: float) -> st.SearchStrategy[float]:
    if form == "total":
        return st.just(0.0)
    if form == "floors":
        return st.sampled_from([0.0, 0.0, 0.02 * best, 0.1 * best])
    return st.sampled_from([1.0, 1.0, 2.0, 0.5])


@st.composite
def _values(draw: st.DrawFn, columns: int) -> np.ndarray:
    """Some may be losses, the first earns: where nobody earns anything, prices have no scale."""
    value = np.array([draw(st.integers(-4, 40)) / 4 for _ in range(columns)], dtype=float)
    value[:1] = np.maximum(value[:1], 0.25)
    return value


@st.composite
def entrants(draw: st.DrawFn, form: str, rows: int) -> ArrivingMember:
    """A job with up to four columns, one of them worth something."""
    use = st.tuples(st.integers(0, rows - 1), st.sampled_from([1.0, 2.0, 4.0]))
    columns = draw(
        st.lists(st.lists(use, min_size=1, max_size=2, unique_by=lambda one: one[0]), min_size=1, max_size=4)
    )
    worth = np.array([draw(st.integers(1, 40)) / 4 for _ in columns])
    return ArrivingMember(
        np.concatenate(([0], np.cumsum([len(c) for c in columns]))),
        np.array([row for c in columns for row, _ in c], dtype=np.int32),
        np.array([count for c in columns for _, count in c]),
        worth,
        draw(_values(len(columns))),
        draw(_goals(form, float(worth.max()))),
    )


@st.composite
def beginnings(draw: st.DrawFn, form: str) -> tuple[ClassProblem, Objective]:
    """A market to begin with."""
    market, worth = draw(markets(filled=True))
    value = draw(_values(len(worth)))
    best = [float(worth[a:b].max()) for a, b in zip(market.first[:-1], market.first[1:], strict=True)]
    goal = np.array([draw(_goals(form, most)) for most in best])
    return market, _objective(form, market, worth, value, goal)


def _check(standing: IncrementalSolver, plain: Plain) -> None:
    """The shares of all jobs fit the rebuilt market and reach what is stated; nothing can reach more than the bound."""
    market, objective = plain.rebuilt()
    stated = standing.certificate
    best = _optimum(market, objective)
    scale = 1e-12 + (float(market.size @ objective.weight) if isinstance(objective, NashWelfare) else abs(best))
    # The reference for logarithms is an interior point method's.
    close = 1e-6 if isinstance(objective, NashWelfare) else _CLOSE
    assert np.isinf(best) or stated.bound >= best - close * scale
    if stated.reached == -np.inf:
        return
    x = np.concatenate([standing.shares_of(handle) for handle in sorted(plain.jobs)])
    rows = rows_of(market, objective.worth)
    assert (x >= 0).all()
    assert (rows.time @ x <= 1 + 1e-12).all()
    assert (rows.load @ x <= market.capacity * (1 + 1e-12)).all()
    reached = _reached(market, objective, rows.worth @ x, x)
    assert reached >= stated.reached - _CLOSE * scale
    assert stated.reached <= best + close * scale


def _reached(market: ClassProblem, objective: Objective, worth: np.ndarray, x: np.ndarray) -> float:
    match objective:
        case MaxSum():
            # Where softness is small beside the values, floors are met to fewer digits than capacities.
            assert (worth >= objective.floor * (1 - 1e-6)).all()
            return float((np.repeat(market.size, np.diff(market.first)) * objective.value) @ x)
        case NashWelfare():
            return float((market.size * objective.weight) @ np.log(worth))
        case MaxMin():
            rate = objective.targets.at(1.0)[0]
            return float((worth / rate).min())


def _play(data: st.DataObject, form: str, events: int, *, numpy: bool = False) -> tuple[IncrementalSolver, Plain]:
    """Random events, everything stated being checked after each of them."""
    market, objective = data.draw(beginnings(form))
    standing = IncrementalSolver(market, objective, engine=numpy_engine() if numpy else compiled_engine())
    plain = Plain("total" if form == "floors" else form, market.capacity)
    roster = ClassMembers(market, objective)
    for handle in range(market.classes):
        one = roster.entrant(handle)
        value = one.value if len(one.value) else np.zeros(len(one.worth))
        plain.jobs[handle] = (
            ArrivingMember(one.use_first, one.use_row, one.use_count, one.worth, value, one.goal),
            float(market.size[handle]),
        )
    _check(standing, plain)
    for _ in range(events):
        what = data.draw(st.sampled_from(["arrive", "arrive", "leave", "leave", "leave", "certify"]))
        if what == "arrive" or len(plain.jobs) == 1:
            one = data.draw(entrants(form, market.rows))
            plain.jobs[standing.arrive(one)] = (one, 1.0)
        elif what == "leave":
            handle = data.draw(st.sampled_from(sorted(plain.jobs)))
            one, size = plain.jobs.pop(handle)
            if size > 1:
                plain.jobs[handle] = (one, size - 1)
            standing.leave(handle)
        else:
            standing.recertify()
        _check(standing, plain)
    return standing, plain


@pytest.mark.slow
@pytest.mark.parametrize("form", ["level", "total", "floors"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_after_every_event_the_bound_holds_and_the_shares_reach_what_is_stated(form: str, data: st.DataObject) -> None:
    """Whoever came and went: nothing is above the bound, and the shares fit and reach what is stated."""
    _play(data, form, 12)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_after_every_event_what_is_stated_of_logarithms_holds(data: st.DataObject) -> None:
    """Logarithms too: nothing is above the bound, and the shares fit and reach what is stated."""
    _play(data, "nash", 6)


@pytest.mark.parametrize("form", ["level", "total", "nash"])
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_numpy_alone_keeps_the_same_promise(form: str, data: st.DataObject) -> None:
    """Without numba everything stated holds as well."""
    _play(data, form, 4, numpy=True)


@pytest.mark.parametrize("form", ["level", "total", "nash"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_the_arrays_are_those_of_the_market_rebuilt(form: str, data: st.DataObject) -> None:
    """What is laid out anew after events is the market as it is, with the shares that single jobs are told."""
    standing, plain = _play(data, form, 5)
    market, objective = plain.rebuilt()
    assert list(standing.handles) == sorted(plain.jobs)
    for name in ("size", "first", "use_first", "use_row", "use_count", "capacity"):
        np.testing.assert_array_equal(getattr(standing.problem, name), getattr(market, name))
    np.testing.assert_array_equal(standing.objective.worth, objective.worth)
    if np.isfinite(standing.certificate.reached):
        single = np.concatenate([standing.shares_of(handle) for handle in standing.handles])
        np.testing.assert_allclose(standing.dense(), single, atol=1e-12)


@pytest.mark.parametrize("form", ["level", "total", "floors", "nash"])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_everybody_may_leave_and_others_may_come(form: str, data: st.DataObject) -> None:
    """An empty market is certified, and so is the first who comes to it."""
    standing, plain = _play(data, form, 2)
    for handle in sorted(plain.jobs):
        for _ in range(int(plain.jobs[handle][1])):
            standing.leave(handle)
    assert standing.recertify().gap == 0
    plain.jobs.clear()
    one = data.draw(entrants(form, len(plain.capacity)))
    plain.jobs[standing.arrive(one)] = (one, 1.0)
    _check(standing, plain)
    standing.recertify()
    _check(standing, plain)


def _many(form: str, jobs: int) -> tuple[ClassProblem, Objective]:
    """Jobs that all differ, on four pools."""
    rng = np.random.default_rng(0)
    columns = [[[(row, 1.0)] for row in range(4)] for _ in range(jobs)]
    market, _ = market_of([1.0] * jobs, columns, [0.04 * jobs] * 4)
    worth = rng.lognormal(0, 0.5, market.columns)
    goal = np.zeros(jobs) if form == "total" else rng.choice([1.0, 2.0], jobs)
    return market, _objective(form, market, worth, worth, goal)


@pytest.mark.parametrize("form", ["level", "total", "nash"])
def test_the_gap_stays_small_among_many_jobs_and_recertifying_closes_it(form: str) -> None:
    """Fifty of two thousand leave and fifty come: the certificate stays useful, and a solve makes it tight again."""
    market, objective = _many(form, 2000)
    standing = IncrementalSolver(market, objective)
    others = ClassMembers(*_many(form, 2100))
    for event in range(50):
        standing.leave(7 * event)
        standing.arrive(others.entrant(2000 + event))
    assert standing.certificate.gap < 1e-3
    assert standing.recertify().gap <= 1e-4
    for event in range(50):
        standing.leave(7 * event + 1)
        if standing.certificate.gap > 1e-3:
            assert standing.recertify().gap <= 1e-4


def test_targets_that_are_not_proportional_are_refused() -> None:
    """A mixture of targets that bend need not reach the mixture of their levels."""
    market, objective = _many("level", 3)
    bent = ConvexTargets(np.ones(3), np.full(3, 0.5), 1.0)
    with pytest.raises(ValueError, match="proportional"):
        IncrementalSolver(market, MaxMin(objective.worth, bent))


def test_nobody_leaves_twice() -> None:
    """Who has left, or never came, is not there."""
    market, objective = _many("total", 3)
    standing = IncrementalSolver(market, objective)
    standing.leave(1)
    for handle in (1, 3, -1):
        with pytest.raises(KeyError):
            standing.leave(handle)
        with pytest.raises(KeyError):
            standing.shares_of(handle)
    assert list(standing.handles) == [0, 2]
