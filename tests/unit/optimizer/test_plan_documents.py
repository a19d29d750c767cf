"""A plan as a document: it comes back the same, and the checker sees what is impossible."""

import json
from dataclasses import replace

import numpy as np
import pytest
from problems import Setting, build

from optimizer.answer import answer_problem
from optimizer.check.certificate import check_decision
from optimizer.decision import Plan
from optimizer.documents.answer_document import AnswerDocument
from optimizer.documents.answer_reading import decision_of
from optimizer.documents.answer_writing import answer_of
from optimizer.policy import PolicySpec
from optimizer.problem import Problem
from optimizer.registry import make
from walras.errors import ConfigError

WALRAS = PolicySpec("walras")


def planned() -> tuple[Problem, Plan]:
    problem = build(
        Setting([[2.0, 1.0], [2.0, 1.5], [1.0, None]], [2, 1], gangs=[2.0, 1.0, 1.0], remaining_steps=[9.0, 5.0, 70.0])
    )
    plan, _, _ = answer_problem(make(WALRAS), problem, None, 0.0)
    assert isinstance(plan, Plan)
    return problem, plan


def test_a_plan_comes_back_from_its_document() -> None:
    """Written and read again, nothing is lost."""
    problem, plan = planned()
    document = AnswerDocument.model_validate_json(answer_of(problem, WALRAS, plan, {"overdue": []}).model_dump_json())
    policy, found = decision_of(document, problem)
    assert policy == WALRAS
    assert isinstance(found, Plan)
    np.testing.assert_array_equal(found.column, plan.column)
    np.testing.assert_array_equal(found.rows, plan.rows)
    np.testing.assert_allclose(found.quote.prices, plan.quote.prices)
    np.testing.assert_allclose(found.surplus, plan.surplus)
    assert found.yardstick == plan.yardstick


def test_a_plan_for_another_configuration_is_refused() -> None:
    """What a place uses is repeated, so that a mix-up is seen."""
    problem, plan = planned()
    told = answer_of(problem, WALRAS, plan, None).model_dump(mode="json")
    placed = next(job for job in told["plan"]["jobs"] if job["configuration"] is not None)
    placed["uses"] = {"pool-0": 99.0}
    with pytest.raises(ConfigError, match="uses something else"):
        decision_of(AnswerDocument.model_validate_json(json.dumps(told)), problem)


def test_the_checker_sees_what_cannot_be() -> None:
    """Two jobs in one place, a job in another's configuration, a job left out, a value above the bound."""
    problem, plan = planned()
    assert check_decision(problem, WALRAS, plan).holds
    everywhere = replace(plan, column=np.searchsorted(problem.columns.job, np.arange(3)))
    assert any("are planned" in text for text in check_decision(problem, WALRAS, everywhere).complaints)
    foreign = replace(plan, column=plan.column[::-1].copy())
    assert not check_decision(problem, WALRAS, foreign).holds
    assert not check_decision(problem, WALRAS, replace(plan, rows=plan.rows[:2])).holds
    assert plan.yardstick is not None
    boastful = replace(plan, yardstick=replace(plan.yardstick, objective=99.0))
    assert any("above its bound" in text for text in check_decision(problem, WALRAS, boastful).complaints)
