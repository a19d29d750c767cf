"""Properties that the papers claim for their policies, each on 400 random fleets, and who breaks each of them.

Sources: sharing incentive and Pareto efficiency of max-min fairness, Narayanan et al. (OSDI 2020), section 4; sharing
incentive of finish-time fairness, Mahajan et al., "Themis" (NSDI 2020), section 3; proportional fairness as a market
with equal incomes, hence envy-free, Varian, "Equity, envy, and efficiency" (1974): claimed where nobody's time is the
binding constraint (in a market with satiation equal incomes do not suffice).
"""

import numpy as np
import pytest
from problems import Setting, build, rates_of
from scipy.optimize import linprog

from optimizer.policy import PolicySpec
from optimizer.problem import FloatArray, Problem
from optimizer.registry import make

INSTANCES = 400
#: What a solver may miss.
SLACK = 1e-5
#: A product within 1e-9 of the best leaves single utilities to a few parts in ten thousand.
SLACK_OF_PRODUCT = 1e-3
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("error")]


def fleet(seed: int, *, crowded: float = 1.0) -> Problem:
    """Jobs of one accelerator each, at least `crowded` times as many as accelerators, all pools usable by everybody."""
    rng = np.random.default_rng(seed)
    pools = int(rng.integers(1, 4))
    capacity = rng.integers(1, 4, pools).astype(float)
    least = int(np.ceil(crowded * capacity.sum()))
    jobs = int(rng.integers(least, least + 6))
    speeds = rng.integers(1, 40, (jobs, pools)) / 4.0
    steps = rng.integers(100, 10_000, jobs).astype(float)
    return build(Setting(speeds=speeds.tolist(), capacity=capacity.tolist(), remaining_steps=steps.tolist()))


def shares(policy: str, problem: Problem, **parameters: object) -> FloatArray:
    chosen = make(PolicySpec(policy, parameters))
    return chosen.decide(problem, None)[0].x


def table(problem: Problem, x: FloatArray) -> FloatArray:
    """Shares by job and pool (n, p); every job has a column on every pool."""
    return x.reshape(len(problem.jobs), len(problem.pools))


def speeds_of(problem: Problem) -> FloatArray:
    return problem.columns.steps_per_s.reshape(len(problem.jobs), len(problem.pools))


def loses_by_sharing(problem: Problem, x: FloatArray) -> bool:
    """Somebody would be faster with a part 1/M of every pool to itself."""
    alone = rates_of(problem, shares("isolated", problem))
    return bool((rates_of(problem, x) < alone * (1 - SLACK)).any())


def can_be_improved(problem: Problem, x: FloatArray) -> bool:
    """Somebody could be faster without anybody being slower: the largest sum of relative gains is above 0."""
    speeds, rates = speeds_of(problem), rates_of(problem, x)
    n, p = speeds.shape
    time = np.kron(np.eye(n), np.ones(p))
    pools = np.kron(np.ones(n), np.eye(p))
    keep = np.zeros((n, n * p))
    for job in range(n):
        keep[job, job * p : (job + 1) * p] = -speeds[job]
    gain = (speeds / np.maximum(rates, 1e-2 * speeds.max(axis=1))[:, None]).ravel()
    best = linprog(
        -gain,
        A_ub=np.vstack([time, pools, keep]),
        b_ub=np.concatenate([np.ones(n), problem.pools.capacity, -rates * (1 - 1e-9)]),
    )
    assert best.status == 0
    return bool(-best.fun > gain @ x + n * SLACK)


def envies(problem: Problem, x: FloatArray) -> bool:
    """Somebody would be faster with another's shares."""
    speeds = speeds_of(problem)
    with_shares_of = speeds @ table(problem, x).T
    own = np.diagonal(with_shares_of)
    return bool((with_shares_of > own[:, None] * (1 + SLACK_OF_PRODUCT)).any())


@pytest.mark.parametrize("policy", ["max_min_fairness", "finish_time_fairness"])
def test_nobody_loses_by_sharing(policy: str):
    """Sharing incentive: every job runs at least as fast as with 1/M of every pool to itself."""
    for seed in range(INSTANCES):
        problem = fleet(seed)
        assert not loses_by_sharing(problem, shares(policy, problem)), f"instance {seed}"


@pytest.mark.parametrize("policy", ["max_min_fairness", "proportional_fairness", "throughput"])
def test_nothing_is_left_on_the_table(policy: str):
    """Pareto efficiency: no job can be faster without another being slower."""
    for seed in range(INSTANCES):
        problem = fleet(seed, crowded=0.5)
        assert not can_be_improved(problem, shares(policy, problem)), f"instance {seed}"


def test_nobody_wants_anothers_shares():
    """Proportional fairness: where nobody runs all the time, no job would be faster with the shares of another."""
    seen, seed = 0, 0
    while seen < INSTANCES:
        problem, seed = fleet(seed, crowded=2.0), seed + 1
        x = shares("proportional_fairness", problem)
        if table(problem, x).sum(axis=1).max() < 1 - 1e-6:
            seen += 1
            assert not envies(problem, x), f"instance {seed - 1}"


@pytest.mark.parametrize(
    ("policy", "broken"),
    [
        ("throughput", loses_by_sharing), ("isolated", can_be_improved), ("throughput", envies),
        ("max_min_fairness", envies),
    ],
)  # fmt: skip
def test_somebody_else_breaks_it(policy: str, broken):
    """Each property says something: a policy that does not claim it breaks it."""
    assert any(broken(problem, shares(policy, problem)) for problem in map(fleet, range(50)))
