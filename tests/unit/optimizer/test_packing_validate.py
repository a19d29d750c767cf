from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from problems import Setting, build

from optimizer.problem import Pairs, Problem
from optimizer.validate import ProblemError, validate_problem

PAIRS = Pairs(
    kind=np.array([0, 1, -1]),
    first=np.array([0, 0, 1]),
    second=np.array([1, 0, 0]),
    pool=np.array([0, 0, 1]),
    first_factor=np.array([0.5, 0.6, 0.7]),
    second_factor=np.array([0.8, 0.6, 0.0]),
)
GOOD = replace(build(Setting([[1, 2], [3, 4], [5, 6]], [1, 1])), pairs=PAIRS)


def spoil(name: str, value: Any) -> Problem:
    return replace(GOOD, pairs=replace(PAIRS, **{name: value}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kind", np.array([0, 1])),
        ("kind", np.array([0, 1, -2])),
        ("first", np.array([0, -1, 1])),
        ("second", np.array([1, 0])),
        ("second", np.array([0, 0, 0])),
        ("second", np.array([1, 0, -1])),
        ("pool", np.array([0, 0, 2])),
        ("pool", np.array([0, 0, 0])),
        ("first_factor", np.array([0.5, 0.6, np.nan])),
        ("first_factor", np.array([0.5, 0.6, -0.1])),
        ("first_factor", np.array([1.01, 0.6, 0.5])),
        ("second_factor", np.array([0.5, 0.6, np.inf])),
        ("second_factor", np.array([0.5])),
        ("second_factor", np.array([0.8, 0.7, 0.0])),
    ],
)
def test_malformed_pairs_are_an_error_that_names_the_array(name: str, value: Any):
    """Shapes, ranges, and the same two kinds twice in one pool, in whichever order."""
    with pytest.raises(ProblemError) as caught:
        validate_problem(spoil(name, value))
    assert caught.value.field.startswith("pairs.")


def test_good_pairs_pass():
    """Kinds without a job, kinds with themselves, factors of 0, and no pairs at all are allowed."""
    validate_problem(GOOD)
    validate_problem(spoil("kind", np.array([5, -1, -1])))
    none = np.zeros(0, dtype=np.int64)
    validate_problem(replace(GOOD, pairs=Pairs(PAIRS.kind, none, none, none, np.zeros(0), np.zeros(0))))
