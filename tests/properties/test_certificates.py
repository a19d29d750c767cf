"""The checker on random problems: honest answers of every share policy hold, doctored ones do not."""

from typing import Any

import pytest
from checking import SPECS, answer, spec_id
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.check.certificate import check_decision
from optimizer.documents.problem_document import ProblemDocument, problem_from_document
from optimizer.policy import PolicySpec
from optimizer.problem import Problem
from walras.spec.file_model import check_model as checked

_SPEEDS = st.integers(1, 60).map(lambda quarters: quarters / 4)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Up to six jobs on up to three pools: gangs of all sizes, mixed gangs, deadlines, lengths, prices, projects."""
    pools = {
        f"pool-{row}": {"capacity": draw(st.integers(0, 5)), "usd_per_h": draw(st.sampled_from([0, 0.5, 1, 3]))}
        for row in range(draw(st.integers(1, 3)))
    }
    projects = draw(st.integers(0, 2))
    jobs = [draw(_jobs(list(pools), projects)) for _ in range(draw(st.integers(1, 6)))]
    document = {"at": 1000, "pools": pools, "jobs": jobs}
    return problem_from_document(checked(ProblemDocument, document, source="drawn"))


@st.composite
def _jobs(draw: st.DrawFn, pools: list[str], projects: int) -> dict[str, Any]:
    configurations: list[dict[str, Any]] = []
    gang = draw(st.sampled_from([1, 1, 2]))
    for pool in pools:
        if draw(st.integers(0, 4)):
            configurations.append({"pool": pool, "accelerators": gang, "steps_per_s": draw(_SPEEDS)})
            if draw(st.integers(0, 3)) == 0:
                larger = {
                    "pool": pool, "accelerators": 2 * gang, "steps_per_s": 1.7 * configurations[-1]["steps_per_s"],
                }  # fmt: skip
                configurations.append(larger)
    if len(pools) > 1 and draw(st.integers(0, 3)) == 0:
        configurations.append({"uses": {pools[0]: gang, pools[1]: gang}, "steps_per_s": draw(_SPEEDS)})
    return {
        "configurations": configurations,
        "weight": draw(st.sampled_from([1, 1, 2, 0.5, 0])),
        "remaining_steps": draw(st.sampled_from([None, 0, 500, 4000, 20_000])),
        "submitted_at": draw(st.sampled_from([0, 400, 990])),
        "deadline_at": draw(st.sampled_from([None, None, 500, 2000, 9000])),
        "project": f"project-{draw(st.integers(1, projects))}" if projects else None,
    }


@pytest.mark.parametrize("spec", SPECS, ids=spec_id)
@given(problem=problems())
@settings(deadline=None, max_examples=12)
def test_honest_answers_hold(spec: PolicySpec, problem: Problem):
    """Whatever the problem, the checker finds what the policy states."""
    assert check_decision(problem, spec, answer(spec, problem)).complaints == ()
