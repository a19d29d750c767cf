import numpy as np
import pytest
from policies import with_times
from problems import Setting, build, rates_of

from optimizer.decision import Shares
from optimizer.policies.finish_times import Makespan
from optimizer.problem import Problem


def decide(setting: Setting, remaining: list[float], policy: Makespan | None = None) -> tuple[Problem, Shares]:
    n = len(setting.speeds)
    problem = with_times(build(setting), remaining, [0.0] * n, [None] * n)
    return problem, (policy or Makespan()).decide(problem, None)[0]


def test_all_end_together_when_that_is_earliest():
    """300 and 100 steps on one accelerator of 2 steps/s: 200 s, in parts of 3 to 1."""
    problem, shares = decide(Setting([[2], [2]], [1]), [300, 100])
    assert shares.certificate.objective == pytest.approx(200)
    assert shares.certificate.bound == pytest.approx(200)
    assert not shares.certificate.maximise
    assert rates_of(problem, shares.x) == pytest.approx([1.5, 0.5])


def test_a_long_job_does_not_make_the_short_ones_wait():
    """The last end is that of a job that is as fast as can be; the others go as fast as there is room all the same."""
    problem, shares = decide(Setting([[1, None], [None, 1], [None, 1]], [1, 1]), [1000, 10, 10])
    assert shares.certificate.objective == pytest.approx(1000)
    assert rates_of(problem, shares.x) == pytest.approx([1, 0.5, 0.5])


def test_a_job_of_unknown_length_counts_like_the_mean_of_the_others():
    """100 s and 300 s at equal-split speed are known, so 200 s is believed of the third."""
    problem, shares = decide(Setting([[1], [1], [2]], [1]), [100, 300, np.inf])
    assert shares.certificate.objective == pytest.approx(600)
    assert rates_of(problem, shares.x) == pytest.approx([1 / 6, 1 / 2, 2 / 3])


def test_an_hour_is_believed_where_nobody_knows():
    """Two endless jobs on one accelerator are taken for an hour each."""
    _, shares = decide(Setting([[1], [1]], [1]), [np.inf, np.inf])
    assert shares.certificate.objective == pytest.approx(7200)


def test_nothing_left_to_do_ends_at_once():
    """No work, no time; the fleet is still given away."""
    problem, shares = decide(Setting([[1]], [1]), [0])
    assert shares.certificate.objective == 0
    assert rates_of(problem, shares.x) == pytest.approx([1])


def test_the_published_program_alone_leaves_the_rest():
    """Without a second stage only what the level needs is given."""
    setting, remaining = Setting([[1, 1], [1, None]], [1, 1]), [100, 100]
    problem, shares = decide(setting, remaining, Makespan(then="nothing"))
    assert len(shares.stages) == 1
    assert (rates_of(problem, shares.x) >= 1 - 1e-9).all()
