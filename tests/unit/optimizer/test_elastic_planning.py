"""What all elastic policies keep: classes one after the other, and a policy file that loads."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from elastic_problems import Elastic, places_of, problem_of

from optimizer.policy import PlanPolicy, PolicySpec
from optimizer.registry import make

POLICIES = ["elasticflow", "optimus", "pollux", "shockwave", "sia"]
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_higher_class_is_served_before_a_lower_one(policy: str) -> None:
    """However little it gains."""
    problem = problem_of(Elastic([{(0, 1): 9.0, (0, 2): 18.0}, {(0, 1): 1.0}], [1], remaining_steps=[50.0, 5000.0]))
    problem = replace(problem, jobs=replace(problem.jobs, priority_class=np.array([0, 2])))
    planner = make(PolicySpec(policy))
    assert isinstance(planner, PlanPolicy)
    assert places_of(problem, planner.decide(problem, None)[0]) == [None, (0, 1)]


@pytest.mark.parametrize("policy", POLICIES)
def test_its_policy_file_makes_it(policy: str) -> None:
    """As a server and the simulator read it."""
    stated = yaml.safe_load((ROOT / "configs" / "policies" / f"{policy}.yaml").read_text())["policy"]
    assert stated["name"] == policy
    assert isinstance(make(PolicySpec(stated["name"], stated.get("parameters", {}))), PlanPolicy)
