import numpy as np
import pytest
from policies import with_times
from problems import Setting, build, rates_of

from optimizer.check.certificate import check_decision
from optimizer.decision import Shares, Status
from optimizer.policies.throughput import CostWithSlos
from optimizer.policy import PolicySpec
from optimizer.problem import Problem


def decide(
    setting: Setting, remaining: list[float], left: list[float | None], **parameters: object
) -> tuple[Problem, Shares]:
    problem = with_times(build(setting), remaining, [0.0] * len(remaining), left)
    shares, _ = CostWithSlos(**parameters).decide(problem, None)
    assert check_decision(problem, PolicySpec("cost_with_slos", parameters), shares).complaints == ()
    return problem, shares


def test_a_deadline_takes_what_it_needs_and_no_more():
    """100 steps in 200 s are half a step per second, though the other job is worth twice as much."""
    problem, shares = decide(Setting([[1], [1]], [1], weights=[1, 2]), [100, 100], [200, None])
    assert rates_of(problem, shares.x) == pytest.approx([0.5, 0.5])
    assert shares.relaxed.size == 0


def test_the_least_money_runs_only_what_a_deadline_needs():
    """Cheap and slow does for the deadline; the job without one waits."""
    setting = Setting([[2, 1], [2, 1]], [1, 1], usd_per_h=[5, 1])
    problem, shares = decide(setting, [100, 100], [200, None], goal="cost")
    assert rates_of(problem, shares.x) == pytest.approx([0.5, 0])
    assert shares.certificate.objective == pytest.approx(0.5)
    assert not shares.certificate.maximise


def test_a_deadline_that_cannot_be_met_is_given_up_alone():
    """Past, too near, or of unknown length: the job is listed, and the other's deadline is held."""
    setting = Setting([[1]] * 4, [1], weights=[9, 9, 9, 1])
    problem, shares = decide(setting, [100, 100, np.inf, 100], [-5, 50, 500, 125])
    assert shares.relaxed.tolist() == [0, 1, 2]
    assert rates_of(problem, shares.x)[3] == pytest.approx(0.8)


def test_deadlines_that_are_too_much_together_keep_the_largest_part():
    """Two of three fit (.5 + .5 of one accelerator); one job is short, the others are not."""
    problem, shares = decide(Setting([[1], [1], [1]], [1], weights=[1, 2, 3]), [100] * 3, [200, 200, 190])
    assert len(shares.relaxed) == 1
    held = np.delete(rates_of(problem, shares.x), shares.relaxed)
    needed = np.delete(np.array([0.5, 0.5, 100 / 190]), shares.relaxed)
    assert (held >= needed * (1 - 1e-6)).all()
    assert shares.certificate.status is Status.OPTIMAL


def test_a_job_that_is_done_has_no_deadline():
    """Nothing left to do is no promise broken."""
    _, shares = decide(Setting([[1]], [1]), [0], [-5])
    assert shares.relaxed.size == 0


def test_no_deadlines_at_all_is_throughput_per_dollar():
    """Or, where the least money is sought, nothing."""
    problem, shares = decide(Setting([[1], [2]], [1]), [100, 100], [None, None])
    assert rates_of(problem, shares.x).sum() > 0
    problem, shares = decide(Setting([[1], [2]], [1]), [100, 100], [None, None], goal="cost")
    assert not shares.x.any()
    assert shares.certificate.objective == 0
