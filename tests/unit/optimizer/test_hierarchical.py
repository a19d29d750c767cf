"""Each property of the tree, on fleets where it can be checked by hand: one pool, gangs of one, speed 1."""

from dataclasses import replace

import numpy as np
import pytest
from problems import Setting, build, rates_of

from optimizer.decision import Shares, Status
from optimizer.policy import PolicySpec
from optimizer.problem import Entities, Problem
from optimizer.registry import make
from optimizer.validate import ProblemError
from walras.errors import ConfigError


def fleet(
    jobs: list[int], capacity: float, parents: list[int], names: list[str] | None = None, **setting: object
) -> Problem:
    """One pool; `jobs[j]` is the entity of job j, `parents[e]` the parent of entity e; all of weight 1."""
    problem = build(Setting([[1.0]] * len(jobs), [capacity], entity=jobs, entity_weights=[1] * len(parents), **setting))
    tree = Entities(tuple(names or [f"e{e}" for e in range(len(parents))]), np.ones(len(parents)), np.array(parents))
    return replace(problem, entities=tree)


def decide(problem: Problem, **projects: dict[str, object]) -> Shares:
    policy = make(PolicySpec("hierarchical", {"projects": projects}))
    shares, memory = policy.decide(problem, None)
    assert memory is None or memory["columns"] == len(problem.columns)
    assert shares.certificate.status in (Status.OPTIMAL, Status.EMPTY)
    assert shares.certificate.violation <= 1e-9
    return shares


def held(problem: Problem, shares: Shares) -> np.ndarray:
    """Accelerators of each entity, on one pool where each job uses one."""
    return np.bincount(problem.jobs.entity, weights=shares.x, minlength=len(problem.entities))


@pytest.mark.parametrize("others", [1, 10, 100])
def test_a_guarantee_holds_under_any_load_of_others(others: int):
    """Half of 8 accelerators, against any number of projects of any weight."""
    problem = fleet([0] * 8 + list(range(1, others + 1)) * 8, 8, [-1] * (others + 1))
    shares = decide(problem, e0={"guaranteed": 0.5, "weight": 0.01}, e1={"weight": 100})
    assert held(problem, shares)[0] == pytest.approx(4)


def test_a_guarantee_is_part_of_the_share_and_not_on_top_of_it():
    """Of 8, a project with 2 guaranteed and equal weight has 4, as it would have anyway."""
    problem = fleet([0] * 8 + [1] * 8, 8, [-1, -1])
    assert held(problem, decide(problem, e0={"guaranteed": 0.25})) == pytest.approx([4, 4])


def test_an_unused_guarantee_is_lent():
    """One job cannot use half of 8: the others have the other 7."""
    problem = fleet([0] + [1] * 8, 8, [-1, -1])
    assert held(problem, decide(problem, e0={"guaranteed": 0.5})) == pytest.approx([1, 7])


def test_a_users_guarantee_is_filled_from_its_projects():
    """A quarter of 8 for one of two users of a project that has half of 8 guaranteed."""
    problem = fleet([1] * 30 + [2] * 8 + [3] * 8, 8, [-1, -1, 0, 0], ["p", "q", "p/a", "p/b"])
    terms = {"guaranteed": 0.5, "weight": 0.001, "users": {"a": {"guaranteed": 0.375, "weight": 0.001}}}
    assert held(problem, decide(problem, p=terms)) == pytest.approx([0, 4, 3, 1])


def test_a_limit_is_never_exceeded_even_on_an_idle_fleet():
    """A quarter of 8, with nobody else there."""
    problem = fleet([0] * 8, 8, [-1])
    shares = decide(problem, e0={"limit": 0.25})
    assert held(problem, shares) == pytest.approx([2])
    assert len(shares.stages[0].prices) == 2
    assert len(shares.quote.prices) == 1


def test_a_gang_larger_than_the_limit_never_runs():
    """It could not run at any moment without exceeding it; the project's other job does."""
    problem = fleet([0, 0], 8, [-1], gangs=[4, 1])
    shares = decide(problem, e0={"limit": 0.25})
    assert shares.x == pytest.approx([0, 1])
    assert shares.unplaceable.tolist() == [0]


def test_who_does_not_borrow_stays_at_its_own_part_on_an_idle_fleet():
    """Weight 1 of 4 of 8 accelerators is 2, though nobody else has a job; idle siblings count."""
    problem = fleet([0] * 8, 8, [-1])
    shares = decide(problem, e0={"borrows": False}, other={"weight": 3})
    assert held(problem, shares) == pytest.approx([2])


def test_who_does_not_borrow_still_lends():
    """Its unused part goes to the others."""
    problem = fleet([0] + [1] * 8, 8, [-1, -1])
    assert held(problem, decide(problem, e0={"borrows": False})) == pytest.approx([1, 7])


def test_in_order_the_first_has_all_it_can_use_then_the_next():
    """A project with 2.5 of 5 served in order of submission, which is not that of the rows."""
    problem = fleet([0] * 4 + [1] * 9, 5, [-1, -1], submitted_at=[3, 1, 4, 2] + [0] * 9)
    shares = decide(problem, e0={"inside": "fifo"})
    assert shares.x[:4] == pytest.approx([0.5, 1, 0, 1])


def test_a_project_served_in_order_looks_across_its_users():
    """Users inside such a project have no part of their own."""
    problem = fleet([1, 2, 1, 2], 2, [-1, 0, 0], submitted_at=[0, 1, 2, 3])
    assert decide(problem, e0={"inside": "fifo"}).x == pytest.approx([1, 1, 0, 0])


def test_weightless_entities_have_what_others_leave():
    """Weight 0 has nothing while others are hungry, and the rest of the fleet once they are not."""
    problem = fleet([0] * 4 + [1] * 4, 3, [-1, -1])
    assert held(problem, decide(problem, e0={"weight": 0})) == pytest.approx([0, 3])
    problem = fleet([0] * 4 + [1] * 4, 6, [-1, -1])
    assert held(problem, decide(problem, e0={"weight": 0})) == pytest.approx([2, 4])


def test_parts_are_counted_in_accelerators_of_average_speed_for_the_job():
    """A project of jobs that gain from the fast pool and one that does not: each has one unit of utility of two."""
    problem = build(Setting([[3, 1]] * 4 + [[1, 1]] * 4, [1, 1], entity=[0] * 4 + [1] * 4, entity_weights=[1, 1]))
    shares = decide(problem)
    utility = rates_of(problem, shares.x) / np.array([2.0] * 4 + [1.0] * 4)
    per_project = np.bincount(problem.jobs.entity, weights=utility)
    assert per_project[0] == pytest.approx(per_project[1])
    assert per_project[0] > 1


def test_names_that_have_no_job_now_are_allowed():
    """A configuration outlives the jobs."""
    problem = fleet([0], 1, [-1])
    assert decide(problem, nobody={"weight": 3, "users": {"ghost": {"limit": 0.5}}}).x == pytest.approx([1])


@pytest.mark.parametrize(
    ("terms", "field"),
    [
        ({"a": {"guaranteed": 0.5, "limit": 0.25}}, "projects"), ({"a": {"limit": 1.5}}, "projects"),
        ({"a": {"weight": -1}}, "projects"), ({"a/b": {"weight": 1}}, "projects"),
        ({"a": {"users": {"u": {"users": {}}}}}, "projects"),
    ],
)  # fmt: skip
def test_impossible_terms_are_refused_by_name(terms: dict[str, object], field: str):
    """The error says which parameter."""
    with pytest.raises(ConfigError) as caught:
        make(PolicySpec("hierarchical", {"projects": terms}))
    assert field in caught.value.field


def test_promises_beyond_the_fleet_are_refused():
    """Guarantees of siblings add up to at most their parent's."""
    with pytest.raises(ProblemError, match="whole fleet"):
        decide(fleet([0], 1, [-1, -1]), e0={"guaranteed": 0.6}, e1={"guaranteed": 0.6})
    with pytest.raises(ProblemError, match=r"entities\[0\]"):
        decide(fleet([1], 1, [-1, 0], ["p", "p/u"]), p={"guaranteed": 0.2, "users": {"u": {"guaranteed": 0.3}}})


def test_without_entities_it_is_water_filling():
    """Jobs then stand at the top themselves."""
    problem = build(Setting([[1]] * 4, [2], weights=[3, 1, 1, 1]))
    assert decide(problem).x == pytest.approx([1, 1 / 3, 1 / 3, 1 / 3])


def test_the_documented_example():
    """The figures of docs/policies.md, with 8 accelerators."""
    names = ["vision", "text", "batch", "vision/ada", "vision/bob"]
    problem = fleet([3] * 9 + [4] * 9 + [1] * 9 + [2] * 9, 8, [-1, -1, -1, 0, 0], names)
    terms = {"vision": {"weight": 2, "users": {"ada": {"weight": 2}}}, "batch": {"guaranteed": 0.375}}
    assert held(problem, decide(problem, **terms)) == pytest.approx([0, 5 / 3, 3, 20 / 9, 10 / 9])
