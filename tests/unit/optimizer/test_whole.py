"""What whole gangs can reach at most, beside what fluid shares promise."""

from dataclasses import replace

import numpy as np
import pytest
from problems import Setting, build

from optimizer.answer import answer_problem
from optimizer.assignment.whole_gang_bound import LARGEST_FLEET, best_integral_packing, integral_bound
from optimizer.classes.class_problem import ClassProblem
from optimizer.decision import Decision
from optimizer.policy import PolicySpec
from optimizer.problem import Entities, Problem
from optimizer.registry import make

#: Two gangs of three that want the same four accelerators.
THREES = Setting([[1.0], [1.0]], [4], gangs=[3, 3], remaining_steps=[100, 100], usd_per_h=[1.0])


def solved(problem: Problem, name: str, **parameters: object) -> tuple[PolicySpec, Decision]:
    spec = PolicySpec(name, parameters)
    return spec, answer_problem(make(spec), problem, None, 0.0)[0]


def bound(problem: Problem, name: str, **parameters: object) -> float | None:
    return integral_bound(problem, *solved(problem, name, **parameters))


@pytest.mark.parametrize(
    ("name", "fluid", "whole"),
    [
        ("max_min_fairness", 2.0, 1.5), ("water_filling", 2.0, 1.5), ("hierarchical", 2.0, 1.5),
        ("proportional_fairness", 2.0, 1.5), ("throughput", 4.0, 3.0), ("throughput_per_dollar", 4 / 3, 1.0),
        ("makespan", 150.0, 200.0), ("finish_time_fairness", 1.0, 4 / 3),
    ],
)  # fmt: skip
def test_two_gangs_of_three_on_four_accelerators_reach_three_quarters(name: str, fluid: float, whole: float):
    """Fluid: both run two thirds of the time, and no gap is left. Whole: by turns."""
    problem = build(THREES)
    spec, decision = solved(problem, name)
    assert decision.certificate.objective == pytest.approx(fluid, rel=1e-6)
    assert decision.certificate.gap < 1e-6
    assert integral_bound(problem, spec, decision) == pytest.approx(whole, rel=1e-6)


def test_gangs_that_fill_the_pool_reach_what_is_promised():
    """Two gangs of two on four accelerators: nothing is lost by being whole."""
    assert bound(build(replace(THREES, gangs=[2, 2])), "max_min_fairness") == pytest.approx(2.0)


def test_rented_machines_count():
    """With two more accelerators rented both gangs run at once."""
    problem = build(replace(THREES, rentable=[2], machine_size=[2], values=[100.0, 100.0], remaining_steps=[]))
    spec = PolicySpec("max_min_fairness")
    decision, _, rental = answer_problem(make(spec), problem, None, 0.0)
    assert rental is not None
    assert decision.rent.tolist() == [2]
    assert integral_bound(problem, spec, decision) == pytest.approx(decision.certificate.bound)


def test_a_limit_holds_on_average_and_not_in_every_packing():
    """A project held to half of the fleet may take all of it half of the time, so only its price counts."""
    held = Setting([[1.0], [1.0]], [4], gangs=[2, 2], entity=[0, 0], entity_weights=[1.0])
    problem = build(held)
    entities = Entities(
        problem.entities.name, problem.entities.weight, np.array([-1]), limit=np.array([0.5]), guaranteed=np.zeros(1)
    )
    spec, decision = solved(replace(problem, entities=entities), "hierarchical")
    assert decision.certificate.objective == pytest.approx(2.0)
    assert integral_bound(replace(problem, entities=entities), spec, decision) == pytest.approx(2.0)


def test_there_is_none_for_what_is_not_bounded_by_prices():
    """Orders, formulas, large fleets, and problems that nothing fits, say nothing."""
    problem = build(THREES)
    large = build(replace(THREES, capacity=[LARGEST_FLEET + 1]))
    assert bound(problem, "fifo") is None
    assert bound(problem, "isolated") is None
    assert bound(large, "max_min_fairness") is None
    assert bound(build(replace(THREES, capacity=[2])), "max_min_fairness") is None


def test_whole_numbers_of_members_share_a_pool():
    """Five gangs of two on seven accelerators: three run."""
    market = ClassProblem(
        size=np.array([5.0]), first=np.array([0, 1]), use_first=np.array([0, 1]), use_row=np.zeros(1, dtype=np.int32),
        use_count=np.array([2.0]), capacity=np.array([7.0]),
    )  # fmt: skip
    assert best_integral_packing(market, np.array([1.0])) == pytest.approx(3.0)
