"""Problems and plans as documents: they come back the same, and what is wrong in them is named."""

import json
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from problems import Setting, build
from strategies_documents import problems

from optimizer.answer import answer_problem
from optimizer.check.certificate import check_decision
from optimizer.decision import Plan
from optimizer.documents.answer_conversion import answer_of, decision_of
from optimizer.documents.answer_document import AnswerDocument
from optimizer.documents.problem_document import (
    ProblemDocument,
    plain_document,
    problem_document_of,
    problem_from_document,
)
from optimizer.policy import PolicySpec
from optimizer.problem import Entities, Problem
from optimizer.registry import make
from optimizer.validate import validate_problem
from walras.errors import ConfigError
from walras.spec.file_model import check_model

SMALL: dict[str, Any] = {
    "pools": {"v100": {"capacity": 2}, "a100": {"capacity": 4, "accelerator": "a100-40gb"}},
    "jobs": [
        {"id": 9, "configurations": [{"pool": "a100", "accelerators": 4, "steps_per_s": 12}]},
        {"id": 3, "configurations": [{"uses": {"a100": 2, "v100": 2}, "steps_per_s": 9}], "weight": 2},
    ],
}


def read(**changes: Any) -> Problem:
    return problem_from_document(check_model(ProblemDocument, SMALL | changes, source="problem.json"))


def flat(value: object, name: str = "") -> dict[str, Any]:
    """Every array of a problem under its path; entities' empty arrays as the defaults that they stand for."""
    if isinstance(value, Entities):
        k = len(value)
        defaults = {"parent": -1, "guaranteed": 0.0, "limit": 1.0, "borrows": True, "fifo": False}
        filled = {key: getattr(value, key) for key in defaults}
        arrays = {key: array if len(array) else np.full(k, defaults[key]) for key, array in filled.items()}
        return {f"{name}.{key}": array for key, array in {**arrays, "name": value.name, "weight": value.weight}.items()}
    if is_dataclass(value):
        return {k: v for f in fields(value) for k, v in flat(getattr(value, f.name), f"{name}.{f.name}").items()}
    return {name: value}


def assert_same(one: Problem, other: Problem) -> None:
    first, second = flat(one), flat(other)
    assert first.keys() == second.keys()
    for name, value in first.items():
        if name == ".pools.rented":
            np.testing.assert_array_equal(one.pools.held, other.pools.held)
        elif isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, second[name], err_msg=name)
        else:
            assert value == second[name], name


def test_rows_are_in_order_of_ids_and_configurations_as_listed():
    """Pools and jobs are sorted by id, whatever the order of the document."""
    problem = read()
    assert problem.pools.pool_id == ("a100", "v100")
    assert problem.pools.accelerator == ("a100-40gb", "v100")
    assert problem.jobs.job_id.tolist() == [3, 9]
    assert problem.jobs.gang.tolist() == [4, 4]
    assert problem.columns.job.tolist() == [0, 1]
    assert problem.columns.use_count.tolist() == [2, 2, 4]
    assert np.isinf(problem.jobs.remaining_steps).all()
    assert np.isnan(problem.jobs.value_usd_per_h).all()
    validate_problem(problem)


def test_jobs_are_numbered_where_nobody_did():
    """From 1, in the order of the document."""
    jobs = [{key: value for key, value in job.items() if key != "id"} for job in SMALL["jobs"]]
    assert read(jobs=jobs).jobs.job_id.tolist() == [1, 2]


def test_projects_and_users_make_a_tree():
    """Named by the jobs alone, they share equally; listed, a child may stand before its parent."""
    jobs = [{**job, "project": "vision", "user": user} for job, user in zip(SMALL["jobs"], ["ada", "bob"], strict=True)]
    implied = read(jobs=jobs)
    assert implied.entities.name == ("vision", "vision/ada", "vision/bob")
    assert implied.entities.parent.tolist() == [-1, 0, 0]
    assert implied.jobs.entity.tolist() == [2, 1]
    listed = {"vision/bob": {"parent": "vision", "weight": 3}, "vision": {}, "vision/ada": {"parent": "vision"}}
    assert read(jobs=jobs, entities=listed).entities.name == ("vision", "vision/bob", "vision/ada")


@given(problems())
@settings(deadline=None)
def test_a_problem_reads_back_from_its_document(problem: Problem):
    """Every array, through JSON text."""
    validate_problem(problem)
    written = json.loads(json.dumps(plain_document(problem_document_of(problem))))
    assert_same(problem, problem_from_document(check_model(ProblemDocument, written, source="written")))


def changed(path: str, value: Any) -> dict[str, Any]:
    """The small document with one place changed."""
    document = json.loads(json.dumps(SMALL))
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place = document
    for part in parents:
        place = place[part]
    place[last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "field", "told"),
    [
        ("jobs.0.configurations.0.steps_per_s", -1, "jobs[0].configurations[0].steps_per_s", "give 0 or more"),
        ("jobs.0.configurations.0.steps_per_s", float("nan"), "jobs[0].configurations[0].steps_per_s", "finite"),
        ("jobs.0.configurations.0.steps_per_s", "12", "jobs[0].configurations[0].steps_per_s", "without quotes"),
        ("jobs.0.configurations.0.steps_per_s", True, "jobs[0].configurations[0].steps_per_s", "write a number"),
        ("jobs.0.configurations.0.steps_per_s", 1e300, "jobs[0].configurations[0].steps_per_s", "or less"),
        ("jobs.0.configurations.0.pool", "a10", "jobs[0].configurations[0].pool", "did you mean 'a100'?"),
        ("jobs.0.configurations.0.accelerators", 0, "jobs[0].configurations[0].accelerators", "above 0"),
        ("jobs.0.configurations.0.uses", {"v100": 1}, "jobs[0].configurations[0].pool", "remove one"),
        ("jobs.1.configurations.0.uses", {}, "jobs[1].configurations[0].uses", "not be empty"),
        ("jobs.0.configurations.0", {"steps_per_s": 1}, "jobs[0].configurations[0].pool", "name the pool"),
        ("jobs.0.wieght", 2, "jobs[0].wieght", "did you mean `jobs[0].weight`?"),
        ("jobs.0.deadline", 2, "jobs[0].deadline", "here it is called `jobs[0].deadline_at`"),
        ("jobs.0.id", 3, "jobs[1].id", "change one"),
        ("jobs.0.id", None, "jobs[1].id", "number all or none"),
        ("jobs.0.user", "ada", "jobs[0].user", "name the project"),
        ("jobs.0.project", "vision", "jobs[1].project", "name its project"),
        ("pools.a100.rented", 9, "pools.a100.rented", "raise the capacity"),
        ("pools.a100.capacity", None, "pools.a100.capacity", ""),
        ("entities", {"x": {"parent": "y"}, "y": {"parent": "x"}}, "entities.x.parent", "one of them at the top"),
        ("entities", {"x": {"parent": "z"}}, "entities.x.parent", "known: x"),
        ("entities", {"x": {}}, "jobs[0].project", "name its project"),
        ("entities", {"x": {"limit": 2}}, "entities.x.limit", "give 1 or less"),
        ("pairs", [{"first": "a", "second": "b", "pool": "c", "first_factor": 1, "second_factor": 1}], "pairs[0].pool",
         "known: v100, a100"),
        ("schema_version", 2, "schema_version", "choose 1"),
        ("jobs", 3, "jobs", ""),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_field_and_a_fix(path: str, value: Any, field: str, told: str):
    """Never a traceback, never a silent correction."""
    with pytest.raises(ConfigError) as refusal:
        check_model(ProblemDocument, changed(path, value), source="problem.json")
    assert refusal.value.field == field
    assert told in refusal.value.fix
    assert str(refusal.value).startswith(f"problem.json: {field}")


def test_a_pair_said_twice_is_refused():
    """In either order of its kinds."""
    pair = {"first": "a", "second": "b", "pool": "a100", "first_factor": 0.5, "second_factor": 0.5}
    with pytest.raises(ConfigError, match="again what pairs"):
        read(pairs=[pair, {**pair, "first": "b", "second": "a"}])
    assert read(pairs=[pair]).pairs.first.tolist() == [0]


def test_jobs_hang_on_leaves():
    """A project with users has no jobs of its own."""
    first, second = SMALL["jobs"]
    with pytest.raises(ConfigError, match="has members"):
        read(jobs=[{**first, "project": "x"}, {**second, "project": "x", "user": "ada"}])


def test_entities_of_one_name_are_told_apart_by_their_parents():
    """A user of two projects is two entities."""
    problem = read()
    entities = Entities(("a", "b", "u", "u"), np.ones(4), np.array([-1, -1, 0, 1]))
    jobs = type(problem.jobs)(
        **{f.name: getattr(problem.jobs, f.name) for f in fields(problem.jobs)} | {"entity": np.array([2, 3])}
    )
    again = problem_from_document(problem_document_of(Problem(0.0, jobs, problem.columns, problem.pools, entities)))
    assert again.entities.name == ("a", "b", "a/u", "b/u")


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
