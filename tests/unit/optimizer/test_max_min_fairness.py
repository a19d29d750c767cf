"""Max-min fairness and water filling, by hand, against the published program and by brute force."""

import numpy as np
import pytest
from problems import Setting, build, rates_of, shares_of
from scipy.optimize import linprog

from optimizer.check.certificate import check_decision
from optimizer.decision import Shares, StageKind, Status
from optimizer.policies.fairness import MaxMinFairness, WaterFilling
from optimizer.policy import PolicySpec
from optimizer.problem import Problem
from optimizer.utility.fair_share import fair_share_utility

AWARE, AGNOSTIC = MaxMinFairness(), MaxMinFairness(aware=False)


def decide(setting: Setting, policy: MaxMinFairness = AWARE):
    problem = build(setting)
    shares, memory = policy.decide(problem, None)
    assert memory is None or memory["columns"] == len(problem.columns)
    return problem, shares


def test_equal_jobs_share_equally_and_prices_follow_speed():
    """Four equal jobs on one fast and one slow accelerator: half an average one each; prices are as the speeds."""
    problem, shares = decide(Setting([[3, 1]] * 4, [1, 1]))
    assert shares.certificate.status is Status.OPTIMAL
    assert shares.certificate.objective == pytest.approx(0.5)
    assert rates_of(problem, shares.x) == pytest.approx([1.0] * 4)
    assert shares.quote.prices == pytest.approx([1.5, 0.5])
    assert shares.quote.exchange == pytest.approx(1.0)
    assert shares.surplus == pytest.approx([0.0] * 4, abs=1e-9)


def test_two_jobs_on_two_pools_by_hand():
    """u = .4 + 1.2 a against 4/3 - 2/3 a, a being the first job's part of the fast pool: both are 1 at a = 1/2."""
    problem, shares = decide(Setting([[4, 1], [2, 1]], [1, 1]))
    assert shares.certificate.objective == pytest.approx(1.0)
    assert shares_of(problem, shares.x) == pytest.approx(np.full((2, 2), 0.5))


def test_weights_divide_as_their_ratio():
    """Twice the weight, twice the normalised throughput, while nobody is full."""
    _, shares = decide(Setting([[2], [2], [2]], [1], weights=[2, 1, 1]))
    assert shares.x == pytest.approx([0.5, 0.25, 0.25])


def test_projects_divide_their_weight_among_their_jobs():
    """Two projects of equal weight have equal halves, however many jobs one of them submits."""
    _, shares = decide(Setting([[1]] * 4, [1], entity=[0, 1, 1, 1], entity_weights=[1, 1], weights=[1, 1, 1, 2]))
    assert shares.x == pytest.approx([0.5, 0.125, 0.125, 0.25])


def test_a_project_without_a_runnable_job_leaves_its_part_to_the_others():
    """Weight is divided among projects that have something to run."""
    _, shares = decide(Setting([[1], [None], [1]], [1], entity=[0, 1, 2], entity_weights=[1, 5, 1]))
    assert shares.x == pytest.approx([0.5, 0.5])
    assert shares.unplaceable.tolist() == [1]


def test_agnostic_is_blind_to_speed():
    """Agnostic gives equal accelerator time whatever the speeds; aware gives equal normalised throughput."""
    setting = Setting([[9, 1], [1, 1], [1, 1]], [1, 1])
    problem, shares = decide(setting, AGNOSTIC)
    assert shares_of(problem, shares.x).sum(axis=1) == pytest.approx([2 / 3] * 3)
    problem, shares = decide(setting)
    assert rates_of(problem, shares.x)[0] / 5 == pytest.approx(shares.certificate.objective)


@pytest.mark.parametrize("seed", range(6))
def test_the_level_is_that_of_the_published_program(seed: int):
    """The worst-off job has the optimum of max min (s/w) thr(x)/thr(equal split), solved directly as one program."""
    rng = np.random.default_rng(seed)
    n, capacity = 12, np.array([3.0, 2.0, 4.0])
    speeds = rng.lognormal(0, 0.6, (n, 3)) * [4.4, 2.2, 0.9]
    gangs, weights = rng.choice([1.0, 2.0], n), rng.choice([1.0, 2.0], n)
    setting = Setting(speeds.tolist(), capacity.tolist(), gangs=gangs.tolist(), weights=weights.tolist())
    problem, shares = decide(setting)
    equal = speeds @ capacity / capacity.sum()
    rows = np.zeros((2 * n + 3, 3 * n + 1))
    limits = np.concatenate((np.zeros(n), np.ones(n), capacity))
    for m in range(n):
        rows[m, 3 * m : 3 * m + 3] = -gangs[m] / weights[m] * speeds[m] / equal[m]
        rows[m, -1] = 1
        rows[n + m, 3 * m : 3 * m + 3] = 1
        rows[2 * n : 2 * n + 3, 3 * m : 3 * m + 3] = gangs[m] * np.eye(3)
    found = linprog(np.append(np.zeros(3 * n), -1), rows, limits, bounds=(0, None), method="highs")
    reached = gangs / weights * rates_of(problem, shares.x) / equal
    assert reached.min() == pytest.approx(-found.fun, rel=1e-6)
    assert shares.certificate.gap <= 1e-6


def test_weight_zero_gets_what_nobody_is_entitled_to():
    """A weightless job takes the leftover, and nothing while others want more."""
    _, shares = decide(Setting([[1], [1], [1]], [2], weights=[1, 0, 0.5]))
    assert shares.x == pytest.approx([1, 0, 1])
    _, shares = decide(Setting([[1], [1]], [2], weights=[1, 0]))
    assert shares.x == pytest.approx([1, 1])
    _, shares = decide(Setting([[1], [1]], [1], weights=[0, 0]))
    assert shares.x.sum() == pytest.approx(1)


def test_a_level_can_be_followed_by_the_largest_sum():
    """With `sum`, what the first level leaves goes where it gives most."""
    setting = Setting([[1, None]] * 2 + [[None, 4, 1]] + [[None, 1, 1]] * 2, [1, 1, 1])
    problem, shares = decide(setting, MaxMinFairness(then="sum"))
    assert [stage.kind for stage in shares.stages] == [StageKind.LEVEL, StageKind.SUM]
    utility = fair_share_utility(problem, aware=True)
    assert shares.stages[1].objective == pytest.approx(float(utility.worth @ shares.x))
    _, levelled = decide(setting)
    assert float(utility.worth @ levelled.x) <= shares.stages[1].objective * (1 + 1e-9)


def test_the_published_program_lets_a_full_job_hold_back_the_others():
    """A gang of one on a fleet of three can have no more than one accelerator; nobody else is promised more."""
    setting = Setting([[1]] * 3, [3], weights=[3, 1, 1])
    _, shares = decide(setting, MaxMinFairness(then="nothing"))
    assert shares.certificate.objective == pytest.approx(1 / 3)
    _, shares = decide(setting)
    assert shares.x == pytest.approx([1, 1, 1])


def _lexicographic(problem: Problem) -> np.ndarray:
    """Utilities of the lexicographic max-min by brute force: one program per level and per job."""
    utility = fair_share_utility(problem, aware=True)
    keep = np.flatnonzero(utility.usable)
    n, c, p = len(problem.jobs), len(keep), len(problem.pools)
    U = np.zeros((n, c))
    U[problem.columns.job[keep], np.arange(c)] = utility.worth[keep]
    rows = np.zeros((n + p, c))
    rows[problem.columns.job[keep], np.arange(c)] = 1
    rows[n + problem.columns.use_pool[keep], np.arange(c)] = problem.columns.use_count[keep]
    limits = np.concatenate((np.ones(n), problem.pools.capacity))
    weight, fixed, active = utility.weight, np.zeros(n), utility.weight > 0

    def best(objective: np.ndarray, slope: np.ndarray, floor: np.ndarray) -> float:
        A = np.vstack((np.hstack((-U, slope[:, None])), np.hstack((rows, np.zeros((n + p, 1))))))
        b = np.concatenate((-floor, limits))
        return -linprog(-objective, A, b, bounds=(0, None), method="highs").fun

    while active.any():
        z = best(np.append(np.zeros(c), 1.0), np.where(active, weight, 0.0), fixed * (1 - 1e-9))
        floor = np.where(active, weight * z, fixed) * (1 - 1e-9)
        for j in np.flatnonzero(active):
            if best(np.append(U[j], 0.0), np.zeros(n), floor) <= weight[j] * z * (1 + 1e-6):
                fixed[j], active[j] = weight[j] * z, False
    return fixed


@pytest.mark.parametrize("seed", range(25))
def test_levels_are_the_lexicographic_max_min(seed: int):
    """Every job's utility agrees with brute force, level by level, scarce or not."""
    rng = np.random.default_rng(seed)
    n, p = int(rng.integers(2, 9)), int(rng.integers(1, 4))
    speeds = np.where(rng.random((n, p)) < 0.25, 0.0, rng.lognormal(0, 0.7, (n, p)))
    problem = build(
        Setting(
            speeds.tolist(), rng.integers(1, 4, p).tolist(), gangs=rng.choice([1.0, 1.0, 2.0], n).tolist(),
            weights=rng.choice([1.0, 2.0, 4.0], n).tolist(),
        )
    )  # fmt: skip
    shares, _ = AWARE.decide(problem, None)
    utility = fair_share_utility(problem, aware=True)
    gained = np.bincount(problem.columns.job, weights=utility.worth * shares.x, minlength=n)
    assert gained == pytest.approx(_lexicographic(problem), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("tie", [1e-2, 1e-4, 1e-6, 1e-8, 1e-10])
def test_almost_equal_pools_keep_the_certificate_honest(tie: float):
    """Full jobs whose second pool is almost as good magnify rounding: whatever is stated, the checker finds too."""
    speeds = [[50, 50 * (1 - tie), None]] * 5 + [[1, None, 1]] * 3 + [[2, None, 1]] * 3
    problem, shares = decide(Setting(speeds, [6, 5, 1]))
    assert shares.certificate.violation <= 1e-9
    assert shares.certificate.gap <= 1e-6
    assert check_decision(problem, PolicySpec("max_min_fairness"), shares).complaints == ()


def fill(setting: Setting, *, aware: bool = True) -> tuple[Problem, Shares]:
    problem = build(setting)
    return problem, WaterFilling(aware=aware).decide(problem, None)[0]


def test_water_filling_levels_again_what_a_level_leaves():
    """Three jobs crowd one pool, two others share the other one, and each level states its prices."""
    _, shares = fill(Setting([[1, None]] * 3 + [[None, 1]] * 4, [1, 2]))
    assert shares.x == pytest.approx([1 / 3] * 3 + [1 / 2] * 4)
    assert len(shares.stages) == 2
    assert shares.certificate.status is Status.OPTIMAL


def test_water_filling_agnostic_counts_accelerators():
    """With all speeds taken for equal, three jobs on two unlike pools have 2/3 of an accelerator each."""
    problem, shares = fill(Setting([[9, 1], [1, 1], [1, 1]], [1, 1]), aware=False)
    assert shares_of(problem, shares.x).sum(axis=1) == pytest.approx([2 / 3] * 3)
