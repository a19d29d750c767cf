"""Problems at the edge: every policy answers them, or refuses them by name. None of them is a solver's error."""

from dataclasses import replace

import numpy as np
import pytest
from policies import SPECS, name_of
from problems import Setting, build

from optimizer.decision import Shares, Status
from optimizer.policy import PolicySpec
from optimizer.problem import Problem
from optimizer.registry import make
from optimizer.validate import ProblemError

POLICIES = pytest.mark.parametrize(
    "spec", [*SPECS, PolicySpec("isolated"), PolicySpec("max_min_fairness"), PolicySpec("water_filling")], ids=name_of
)


def decide(problem: Problem, spec: PolicySpec) -> Shares:
    policy = make(spec)
    shares = policy.decide(problem, None)[0]
    assert isinstance(shares, Shares)
    return shares


@POLICIES
@pytest.mark.parametrize(
    "setting",
    [Setting([], [4]), Setting([], []), Setting([[1], [2]], [0]), Setting([[0], [0]], [4]), Setting([[None]], [4])],
    ids=["no jobs", "nothing at all", "no capacity", "no speed", "no columns"],
)
def test_nothing_to_decide_is_an_answer(spec: PolicySpec, setting: Setting):
    """Status empty, no share, and every job listed as one that fits nowhere."""
    shares = decide(build(setting), spec)
    assert shares.certificate.status is Status.EMPTY
    assert not shares.x.any()
    assert shares.unplaceable.tolist() == list(range(len(setting.speeds)))


@POLICIES
@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_a_speed_that_is_no_speed_is_named(spec: PolicySpec, bad: float):
    """Not a number, infinite or negative: the error says which array."""
    problem = build(Setting([[1], [2]], [1]))
    columns = replace(problem.columns, steps_per_s=np.array([1.0, bad]))
    with pytest.raises(ProblemError, match=r"columns\.steps_per_s\[1\]"):
        decide(replace(problem, columns=columns), spec)


@POLICIES
def test_a_job_that_fits_nowhere_is_listed_and_disturbs_nobody(spec: PolicySpec):
    """The others share as if it were not there."""
    shares = decide(build(Setting([[None, None], [1, 2], [3, 1]], [1, 1])), spec)
    assert shares.unplaceable.tolist() == [0]
    assert shares.certificate.status in (Status.OPTIMAL, Status.DEFINED)
    assert shares.certificate.violation <= 1e-9


@POLICIES
@pytest.mark.parametrize("weights", [[0, 0], [0, 1]], ids=["all", "one"])
def test_weight_zero_is_an_answer(spec: PolicySpec, weights: list[float]):
    """Jobs without weight are feasible company for those with some, and alone."""
    shares = decide(build(Setting([[1, 2], [3, 1]], [1, 1], weights=weights)), spec)
    assert shares.certificate.status in (Status.OPTIMAL, Status.DEFINED)
    assert np.isfinite(shares.certificate.objective)
    assert shares.unplaceable.size == 0


#: Filling a tree asks no outside solver.
ASKING = [s for s in SPECS if s.parameters.get("then") != "nothing" and s.name != "hierarchical"]


@pytest.mark.parametrize("spec", ASKING, ids=name_of)
def test_no_answer_from_any_solver_falls_back_to_equal_shares(spec: PolicySpec, monkeypatch: pytest.MonkeyPatch):
    """If all solvers give up, shares are still fair and feasible; the certificate says FAILED with a valid bound."""
    import cvxpy
    import highspy

    def give_up(*_: object, **__: object) -> None:
        raise cvxpy.SolverError("no")

    monkeypatch.setattr(cvxpy.Problem, "solve", give_up)
    monkeypatch.setattr(highspy.Highs, "run", lambda _: None)
    shares = decide(build(Setting([[3, 1]] * 4, [1, 1], usd_per_h=[1, 1])), spec)
    if spec.parameters.get("goal") == "cost":  # no deadline, nothing to do: no solver is asked
        assert shares.certificate.status is Status.OPTIMAL
        return
    assert shares.certificate.status is Status.FAILED
    assert shares.x == pytest.approx([0.25] * 8)
    better = 1 if shares.certificate.maximise else -1
    assert better * shares.certificate.bound >= better * shares.certificate.objective * (1 - 1e-9)
