"""Hadar's rounds: prices, offers, mixed gangs, upgrades, forks, and the plan they become."""

from dataclasses import replace

import numpy as np
import pytest
from problems import Setting, build

from optimizer.decision import Plan, Quote, append_columns, with_added
from optimizer.policies.hadar import Hadar
from optimizer.policy import Newcomer
from optimizer.problem import Columns, Problem

HOUR = 3600.0


def problem_of(setting: Setting, *, at: float = 0.0, mixes: bool = False, restart_s: float = 0.0) -> Problem:
    """The setting, with what a policy that plans is told besides."""
    problem = build(setting)
    n = len(problem.jobs)
    jobs = replace(problem.jobs, mixes=np.full(n, mixes), restart_s=np.full(n, restart_s), done_steps=np.zeros(n))
    return replace(problem, at=at, jobs=jobs)


def runs_in(problem: Problem, *columns: int) -> Problem:
    """The problem while jobs run in these columns."""
    running = np.zeros(len(problem.columns), dtype=bool)
    running[list(columns)] = True
    return replace(problem, columns=replace(problem.columns, running=running))


def plan_of(problem: Problem, policy: Hadar | None = None) -> Plan:
    plan, memory = (policy or Hadar()).decide(problem, None)
    assert memory is None
    return plan


def in_its_terms(problem: Problem, plan: Plan) -> tuple[Problem, Plan]:
    whole, decision = with_added(problem, plan)
    assert isinstance(decision, Plan)
    return whole, decision


def use_of(problem: Problem, plan: Plan) -> np.ndarray:
    """Accelerators of each job in each pool (n, p)."""
    whole, plan = in_its_terms(problem, plan)
    columns = whole.columns
    use = np.zeros((len(problem.jobs), len(problem.pools)))
    for at, column in enumerate(columns.use_column):
        job = columns.job[column]
        if plan.column[job] == column:
            use[job, columns.use_pool[at]] = columns.use_count[at]
    return use


def test_short_work_goes_first() -> None:
    """Of two jobs for one accelerator the shorter has more utility per round; both are in the order."""
    problem = problem_of(Setting(speeds=[[1.0], [1.0]], capacity=[1], remaining_steps=[9 * HOUR, HOUR]))
    plan = plan_of(problem)
    assert plan.column.tolist() == [-1, 1]
    assert plan.rows.tolist() == [1, 0]


def test_the_price_counts_all_rounds_that_are_left() -> None:
    """Ten short jobs of one worker come before a gang of ten rounds, however fast that gang would be."""
    speeds = [[10.0], *([[1.0]] * 10)]
    setting = Setting(speeds=speeds, capacity=[10], gangs=[10, *([1] * 10)], remaining_steps=[36000.0, *([360.0] * 10)])
    plan = plan_of(problem_of(setting))
    assert plan.column[0] == -1
    assert (plan.column[1:] >= 0).all()


def test_places_are_filled_while_there_is_room() -> None:
    """Work-conserving: whoever fits runs, at a payoff below zero too."""
    setting = Setting(speeds=[[1.0, 0.1]] * 4, capacity=[2, 2], remaining_steps=[HOUR] * 4)
    plan = plan_of(problem_of(setting))
    assert use_of(problem_of(setting), plan).sum(axis=0).tolist() == [2, 2]


def test_strict_leaves_idle_whom_prices_turn_away() -> None:
    """With `strict` a job runs only if it gains at the prices: fewer places are given away."""
    setting = Setting(speeds=[[1.0]] * 8, capacity=[8], remaining_steps=[HOUR * (1 + row) for row in range(8)])
    problem = problem_of(setting)
    served = plan_of(problem).column >= 0
    strictly = plan_of(problem, Hadar(strict=True)).column >= 0
    assert served.all()
    assert 0 < strictly.sum() < 8
    assert strictly[0]


def test_a_gang_is_mixed_where_no_single_pool_has_room() -> None:
    """Three accelerators of one type and one of another make a gang of four, at the pace of the slower type."""
    speeds = [[8.0, 4.0], [1.0, None], [None, 1.0]]
    setting = Setting(speeds=speeds, capacity=[4, 4], gangs=[4, 1, 3], remaining_steps=[8 * HOUR] * 3)
    problem = problem_of(setting, mixes=True)
    blocked = runs_in(problem, 2, 3)
    blocked = replace(blocked, jobs=replace(blocked.jobs, pinned=np.array([False, True, True])))
    plan = plan_of(blocked)
    assert use_of(blocked, plan).tolist() == [[3, 1], [1, 0], [0, 3]]
    assert plan.added.steps_per_s.tolist() == [4.0]
    slower = plan_of(blocked, Hadar(comm=0.25)).added
    assert slower.steps_per_s[-1] == 3.0
    assert plan_of(blocked, Hadar(mixed=False)).column[0] == -1


def test_a_gang_is_whole_in_one_pool_while_there_is_room() -> None:
    """At its fastest pool's speed nothing is gained by mixing."""
    setting = Setting(speeds=[[8.0, 4.0]], capacity=[4, 4], gangs=[4], remaining_steps=[8 * HOUR])
    plan = plan_of(problem_of(setting, mixes=True))
    assert (plan.column.tolist(), plan.added) == ([0], None)


def test_nobody_is_mixed_who_is_not_marked() -> None:
    """Whoever asks must be able to start a mixed gang: jobs say so one by one, none by default."""
    setting = Setting(speeds=[[1.0, 1.0]], capacity=[2, 2], gangs=[3], remaining_steps=[HOUR])
    problem = problem_of(setting)
    plan = plan_of(problem)
    assert (plan.column.tolist(), plan.added) == ([-1], None)


def test_a_job_moves_up_to_a_pool_that_stayed_free() -> None:
    """A job that prices sent to the slow pool ends on the fast one if that has room."""
    setting = Setting(speeds=[[1.0, 0.9], [None, 1.0]], capacity=[1, 2], remaining_steps=[20 * HOUR, HOUR])
    problem = problem_of(setting)
    assert use_of(problem, plan_of(problem)).tolist() == [[1, 0], [0, 1]]


def test_nobody_moves_up_for_the_last_minute() -> None:
    """At the end of a job the restart costs more than a faster pool brings."""
    setting = Setting(speeds=[[1.0, 0.8]], capacity=[1, 1], remaining_steps=[20.0])
    problem = runs_in(problem_of(setting, restart_s=60.0), 1)
    assert use_of(problem, plan_of(problem)).tolist() == [[0, 1]]


def test_pinned_jobs_stay() -> None:
    """A job that cannot be stopped keeps its place, whoever else would gain there."""
    setting = Setting(speeds=[[1.0], [1.0]], capacity=[1], remaining_steps=[90 * HOUR, HOUR])
    problem = runs_in(problem_of(setting), 0)
    problem = replace(problem, jobs=replace(problem.jobs, pinned=np.array([True, False])))
    assert plan_of(problem).column.tolist() == [0, -1]


def test_a_job_of_several_sizes_runs_with_the_smallest() -> None:
    """Prices decide who runs where, never how wide: three times as fast on four idle accelerators changes nothing."""
    problem = problem_of(Setting(speeds=[[1.0]], capacity=[4], remaining_steps=[8 * HOUR]))
    columns = Columns(
        job=np.zeros(3, dtype=np.int64), steps_per_s=np.array([1.0, 1.8, 3.0]), use_column=np.arange(3),
        use_pool=np.zeros(3, dtype=np.int64), use_count=np.array([1.0, 2.0, 4.0]), running=np.zeros(3, dtype=np.bool_),
    )  # fmt: skip
    assert plan_of(replace(problem, columns=columns)).column.tolist() == [0]


def test_ties_go_to_the_earlier_job() -> None:
    """Equal jobs of the same age are served by row."""
    setting = Setting(speeds=[[1.0]] * 3, capacity=[2], remaining_steps=[HOUR] * 3)
    assert plan_of(problem_of(setting)).rows.tolist() == [0, 1, 2]


def test_unknown_lengths_are_guessed_from_what_was_done() -> None:
    """Of two jobs of unknown length the one with less behind it is taken for the shorter."""
    problem = problem_of(Setting(speeds=[[1.0], [1.0]], capacity=[1]))
    jobs = replace(problem.jobs, done_steps=np.array([50 * HOUR, HOUR]), submitted_at=np.zeros(2))
    assert plan_of(replace(problem, at=60 * HOUR, jobs=jobs)).column.tolist() == [-1, 1]


def test_an_empty_problem_has_an_empty_plan() -> None:
    """No job, no pool, or no job that fits: nothing is placed, and the yardstick is 0."""
    for capacity in ([2.0], []):
        plan = plan_of(problem_of(Setting(speeds=[], capacity=capacity)))
        assert len(plan.column) == len(plan.rows) == 0
    assert plan_of(problem_of(Setting(speeds=[[]], capacity=[]))).column.tolist() == [-1]
    plan = plan_of(problem_of(Setting(speeds=[[1.0]], capacity=[2], gangs=[4], remaining_steps=[HOUR])))
    assert plan.column.tolist() == [-1]
    assert plan.yardstick.objective == plan.yardstick.bound == 0


@pytest.mark.parametrize("mixes", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_plans_keep_capacity_and_their_bound(seed: int, mixes: bool) -> None:
    """Whole gangs within capacity; what the round is worth is within what weak duality says of any round."""
    rng = np.random.default_rng(seed)
    n = 40
    setting = Setting(
        speeds=rng.uniform(0.2, 2.0, (n, 3)).tolist(), capacity=[8, 6, 7], gangs=rng.choice([1, 2, 4, 8], n).tolist(),
        remaining_steps=rng.lognormal(9, 2, n).tolist(), submitted_at=rng.uniform(0, 5 * HOUR, n).tolist(),
    )  # fmt: skip
    problem = problem_of(setting, at=5 * HOUR, mixes=mixes, restart_s=30.0)
    plan = plan_of(problem)
    use = use_of(problem, plan)
    assert (use.sum(axis=0) <= problem.pools.capacity).all()
    placed = plan.column >= 0
    assert (use.sum(axis=1)[placed] == problem.jobs.gang[placed]).all()
    assert sorted(plan.rows.tolist()) == list(range(n))
    assert 0 < plan.yardstick.objective <= plan.yardstick.bound * (1 + 1e-9)
    free = problem.pools.capacity - use.sum(axis=0)
    waiting = ~placed
    assert (problem.jobs.gang[waiting][:, None] > free[None, :]).all(), "work-conserving"


def test_many_jobs_are_capped() -> None:
    """With more jobs than could matter only the densest are offered, and the plan is still full."""
    n = 600
    rng = np.random.default_rng(1)
    setting = Setting(speeds=[[1.0, 0.5]] * n, capacity=[10, 10], remaining_steps=rng.uniform(60, 9e5, n).tolist())
    problem = problem_of(setting)
    assert use_of(problem, plan_of(problem)).sum() == 20


def test_a_newcomer_is_worth_its_utility_per_round() -> None:
    """Between rounds a short job bids more per accelerator than a long one, and more on its faster pool."""

    def bids(remaining_steps: float) -> list[float]:
        newcomer = Newcomer(
            steps_per_s=np.array([2.0, 1.0]), pool=np.array([0, 1]), count=np.ones(2), weight=1.0, capacity=np.ones(2),
            remaining_steps=remaining_steps,
        )  # fmt: skip
        return Hadar().value(newcomer, Quote(np.zeros(2), "", 1.0)).tolist()

    assert bids(720.0) == [1.0, 0.25]  # half the utility and twice the rounds on the slow pool
    assert bids(7200.0) == pytest.approx([0.1, 0.025])
    assert bids(float("inf")) == [1.0, 0.25], "of unknown length: one round"


def forking(problem: Problem, *most: float) -> Problem:
    """The problem with jobs that may be forked into so many parts."""
    return replace(problem, jobs=replace(problem.jobs, fork_max=np.array(most)))


def test_a_job_alone_is_forked_over_the_idle_pools_at_the_sum_of_their_speeds() -> None:
    """A fork is as fast as its parts together, less what averaging costs; a mixed gang as its slowest."""
    setting = Setting(speeds=[[4.0, 2.0, None]], capacity=[1, 2, 3], remaining_steps=[8 * HOUR])
    plan = plan_of(forking(problem_of(setting), 3), Hadar(sync=0.1))
    assert use_of(problem_of(setting), plan).tolist() == [[1, 2, 0]]
    assert plan.added.steps_per_s == pytest.approx([0.9 * 8.0])


def test_nobody_is_forked_beyond_what_it_says_or_at_another_jobs_cost() -> None:
    """Forks take what is left when everybody who fits has a place, and no more parts than a job may have."""
    setting = Setting(speeds=[[1.0, 1.0], [1.0, 1.0]], capacity=[2, 2], remaining_steps=[8 * HOUR, HOUR])
    use = use_of(problem_of(setting), plan_of(forking(problem_of(setting), 2, 1)))
    assert use.sum(axis=1).tolist() == [2, 1]
    assert plan_of(forking(problem_of(setting), 1, 1)).added is None


def test_a_fork_goes_on_and_is_not_begun_for_the_last_minute() -> None:
    """The restart is in the choice: nobody is stopped to be forked just before the end, nor to be made whole again."""
    ending = Setting(speeds=[[1.0, 0.8]], capacity=[1, 1], remaining_steps=[60.0])
    problem = forking(problem_of(ending, restart_s=60.0), 2)
    assert use_of(problem, plan_of(runs_in(problem, 0))).tolist() == [[1, 0]]
    made = plan_of(forking(problem_of(replace(ending, remaining_steps=[HOUR])), 2)).added
    assert made is not None
    held = runs_in(append_columns(problem, made)[0], 2)
    plan = plan_of(held)
    assert (plan.column.tolist(), plan.added) == ([2], None)


@pytest.mark.parametrize("seed", range(6))
def test_forks_keep_capacity_parts_and_their_bound(seed: int) -> None:
    """Every part is a whole gang; the round's worth stays within weak duality, forks counted."""
    rng = np.random.default_rng(seed)
    n, most = 6, 4.0
    gangs = rng.choice([1, 2], n)
    setting = Setting(
        speeds=rng.uniform(0.2, 2.0, (n, 3)).tolist(), capacity=[8, 6, 7], gangs=gangs.tolist(),
        remaining_steps=rng.lognormal(9, 2, n).tolist(),
    )  # fmt: skip
    plan = plan_of(forking(problem_of(setting, at=HOUR, restart_s=10.0), *[most] * n))
    use = use_of(problem_of(setting), plan)
    assert (use.sum(axis=0) <= [8, 6, 7]).all()
    assert (use % gangs[:, None] == 0).all()
    assert (use.sum(axis=1) <= most * gangs).all()
    assert (use.sum(axis=1) > gangs).any()
    assert 0 < plan.yardstick.objective <= plan.yardstick.bound * (1 + 1e-9)
