from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from problems import Setting, build

from optimizer import validate as validating
from optimizer.policies.fairness import MaxMinFairness
from optimizer.problem import Problem
from optimizer.validate import ProblemError, validate_problem

GOOD = build(Setting([[1, 2], [3, 4]], [1, 1], entity=[0, 1], entity_weights=[1, 1]))


def spoil(part: str, name: str, value: Any) -> Problem:
    return replace(GOOD, **{part: replace(getattr(GOOD, part), **{name: value})})


@pytest.fixture(params=["plain", "compiled"])
def way(request, monkeypatch):
    """Columns are looked at array by array, or all at once."""
    monkeypatch.setattr(validating, "_COMPILED_FROM", 0 if request.param == "compiled" else 10**12)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("columns", "steps_per_s", np.array([1, np.nan, 1, 1])),
        ("columns", "steps_per_s", np.array([1, np.inf, 1, 1])), ("columns", "steps_per_s", np.array([1, -1.0, 1, 1])),
        ("columns", "use_count", np.array([1, 0.0, 1, 1])), ("columns", "use_count", np.array([1, np.nan, 1, 1])),
        ("columns", "use_pool", np.array([0, 1, 0, 2])), ("columns", "use_column", np.array([0, 1, 1, 2])),
        ("columns", "use_column", np.array([0, 2, 1, 3])), ("columns", "job", np.array([0, 1, 0, 1])),
        ("columns", "job", np.array([0, 0, 1, 2])), ("columns", "job", np.array([-1, 0, 1, 1])),
        ("columns", "use_pool", np.array([0, -1, 0, 1])), ("columns", "use_column", np.array([1, 1, 2, 3])),
        ("columns", "use_column", np.array([0, 1, 2, 4])), ("columns", "use_count", np.array([1, np.inf, 1, 1])),
        ("columns", "running", np.zeros(3, dtype=bool)), ("jobs", "weight", np.array([1, np.nan])),
        ("jobs", "weight", np.array([1, -1.0])), ("jobs", "weight", np.ones(3)), ("jobs", "gang", np.array([1, 0.0])),
        ("jobs", "entity", np.array([0, 2])), ("jobs", "value_usd_per_h", np.array([np.inf, 1.0])),
        ("pools", "capacity", np.array([1, np.nan])), ("pools", "capacity", np.array([1, -1.0])),
        ("pools", "rented", np.array([0, 2.0])), ("pools", "usd_per_h", np.array([np.inf, 0])),
        ("entities", "weight", np.array([1, -1.0])),
    ],
)  # fmt: skip
def test_a_malformed_problem_is_an_error_that_names_the_array(part: str, name: str, value: Any):
    """No solver ever sees it: the policy raises, and `field` says where."""
    with pytest.raises(ProblemError) as caught:
        MaxMinFairness().decide(spoil(part, name, value), None)
    assert caught.value.field.startswith(f"{part}.{name}")


@pytest.mark.usefixtures("way")
def test_a_good_problem_passes():
    """Unknown values (nan) and unknown ends (inf) are allowed where they mean something."""
    validate_problem(GOOD)
    validate_problem(spoil("jobs", "value_usd_per_h", np.array([np.nan, 0.0])))
