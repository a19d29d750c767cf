"""The policy walras on small problems: who gets which place, who is overdue, what is believed of lengths."""

from dataclasses import replace
from unittest.mock import ANY

import numpy as np
import pytest
from problems import Setting, build

from optimizer.answer import answer_problem
from optimizer.assignment.remaining_time import best_rates_of, job_lengths_of
from optimizer.check.certificate import check_decision
from optimizer.decision import Plan
from optimizer.policy import Newcomer, PlanPolicy, PolicySpec
from optimizer.problem import Problem
from optimizer.registry import make
from scheduler.core.commands import Solve
from scheduler.core.cycle.solve_requests import run_solve

WALRAS = PolicySpec("walras")


def planned(problem: Problem, memory: object = None, **parameters: object) -> tuple[list[int], Plan, object]:
    """(pool of each job, -1 where it waits; the plan; the memory), the plan checked."""
    spec = PolicySpec("walras", parameters)
    plan, memory, _ = answer_problem(make(spec), problem, memory, 0.0)
    assert isinstance(plan, Plan)
    assert check_decision(problem, spec, plan).complaints == ()
    columns = problem.columns
    pools = [-1 if c < 0 else int(columns.use_pool[columns.use_column == c][0]) for c in plan.column]
    return pools, plan, memory


def running_on(problem: Problem, pools: dict[int, int]) -> Problem:
    columns = problem.columns
    running = [pools.get(int(job)) == int(pool) for job, pool in zip(columns.job, columns.use_pool, strict=True)]
    return replace(problem, columns=replace(columns, running=np.array(running)))


def with_jobs(problem: Problem, **arrays: object) -> Problem:
    return replace(problem, jobs=replace(problem.jobs, **{name: np.array(told) for name, told in arrays.items()}))


def test_the_shorter_of_two_equal_jobs_runs() -> None:
    """One place, two jobs alike but for their length; the price is what the one who waits would pay."""
    pools, plan, _ = planned(build(Setting([[1.0], [1.0]], [1], remaining_steps=[1000.0, 100.0])))
    assert pools == [-1, 0]
    assert plan.rows.tolist() == [1, 0]
    assert plan.quote.prices[0] > 0
    assert plan.surplus[0] == pytest.approx(0.0)
    assert plan.yardstick is not None
    assert plan.yardstick.gap < 1e-9


def test_the_fast_place_goes_to_who_is_slowest_elsewhere() -> None:
    """Relative efficiency: equal lengths, one of the jobs hardly minds the slow pool."""
    pools, _, _ = planned(build(Setting([[4.0, 3.5], [4.0, 0.5]], [1, 1], remaining_steps=[400.0, 400.0])))
    assert pools == [1, 0]


def test_a_restart_is_part_of_the_choice() -> None:
    """A faster place is not worth the move to a job that is nearly through, and is to one that is not."""
    problem = build(Setting([[2.0, 1.0]], [1, 1], remaining_steps=[50.0]))
    problem = with_jobs(running_on(problem, {0: 1}), restart_s=[60.0])
    assert planned(problem)[0] == [1]
    assert planned(with_jobs(problem, remaining_steps=[50_000.0]))[0] == [0]


def test_equals_do_not_change_places() -> None:
    """The stay bonus: of two jobs alike, the one that runs goes on."""
    problem = build(Setting([[1.0], [1.0]], [1], remaining_steps=[100.0, 100.0]))
    assert planned(running_on(problem, {1: 0}))[0] == [-1, 0]
    assert planned(running_on(problem, {0: 0}))[0] == [0, -1]


def test_a_job_that_cannot_be_moved_stays() -> None:
    """However much another would gain."""
    problem = build(Setting([[1.0], [1.0]], [1], remaining_steps=[1e9, 1.0]))
    problem = with_jobs(running_on(problem, {0: 0}), pinned=[True, False])
    assert planned(problem)[0] == [0, -1]


def test_a_higher_class_comes_first_whatever_its_length() -> None:
    problem = build(Setting([[1.0], [1.0]], [1], remaining_steps=[1.0, 1e9]))
    assert planned(with_jobs(problem, priority_class=[1, 2]))[0] == [-1, 0]


def test_weight_counts_like_a_shorter_need() -> None:
    """Six times the weight outbids half the length."""
    problem = build(Setting([[1.0], [1.0]], [1], remaining_steps=[200.0, 100.0], weights=[6.0, 1.0]))
    assert planned(problem)[0] == [0, -1]


def test_a_gang_pays_for_all_its_places() -> None:
    """Two short jobs outbid a gang of two; alone, the gang has its place."""
    two = build(Setting([[1.0]] * 3, [2], gangs=[2.0, 1.0, 1.0], remaining_steps=[1000.0, 10.0, 10.0]))
    assert planned(two)[0] == [-1, 0, 0]
    assert planned(build(Setting([[1.0]], [2], gangs=[2.0], remaining_steps=[10.0])))[0] == [0]


def test_an_overdue_job_comes_first_and_stays_so() -> None:
    """Predicted slowdown above the limit; remembered until it ends, though it would not be judged so again."""
    late = build(Setting([[1.0], [1.0]], [2], gangs=[2.0, 1.0], remaining_steps=[100.0, 1.0]))
    late = replace(with_jobs(late, submitted_at=[0.0, 999.0]), at=1000.0)
    pools, _, memory = planned(late, margin=0.0)
    assert (pools, memory) == ([0, -1], {"overdue": [1], "urgent": [1]})
    again = replace(late, at=999.0)
    assert planned(again, memory, slowdown=1e6)[2] == {"overdue": [1], "urgent": [1]}
    assert planned(again, None, slowdown=1e6)[2] == {"overdue": []}


def test_overdue_jobs_have_no_more_than_the_reserve() -> None:
    """Of two places one is kept: the second overdue job competes as everybody does."""
    late = build(Setting([[1.0]] * 3, [2], remaining_steps=[1e6, 1e6, 1.0]))
    late = replace(with_jobs(late, submitted_at=[0.0, 0.0, 9e6]), at=9e6)
    assert planned(late, margin=0.0)[0] == [0, -1, 0]


def test_a_short_overdue_job_passes_a_long_one_until_that_is_urgent() -> None:
    """Both exceed the limit of 2.5: the shorter first. Above 3 the long one is, though the other has waited longer."""
    late = build(Setting([[1.0]] * 2, [2], gangs=[2.0, 2.0], remaining_steps=[1000.0, 100.0]))
    late = replace(with_jobs(late, submitted_at=[8300.0, 9820.0]), at=10_000.0)
    assert planned(late, margin=0.0) == ([-1, 0], ANY, {"overdue": [1, 2]})
    urgent = with_jobs(late, submitted_at=[7900.0, 9820.0])
    pools, _, memory = planned(urgent, margin=0.0)
    assert (pools, memory) == ([0, -1], {"overdue": [1, 2], "urgent": [1]})
    later = with_jobs(urgent, submitted_at=[7900.0, 9000.0])
    assert planned(later, memory, margin=0.0) == ([0, -1], ANY, {"overdue": [1, 2], "urgent": [1, 2]})


def test_an_overdue_gang_larger_than_the_reserve_has_what_earlier_ones_leave_of_the_pool() -> None:
    """Three of four beside an urgent single one that came before it; its own turn, not the whole reserve, decides."""
    late = build(Setting([[1.0]] * 3, [4], gangs=[1.0, 3.0, 1.0], remaining_steps=[1e6, 1e6, 1.0]))
    late = replace(with_jobs(late, submitted_at=[0.0, 1.0, 9e6]), at=9e6)
    assert planned(late, margin=0.0)[0] == [0, 0, -1]


def test_a_plan_holds_until_a_job_may_become_overdue() -> None:
    """It runs where it is a sixth slower than elsewhere, for a restart takes an hour.

    Its predicted slowdown is 2.4, and 2.5 at the latest 50 s on, long before its end in 600 s.
    """
    rides = build(Setting([[1.0, 1.2]], [2, 2], remaining_steps=[600.0]))
    rides = replace(with_jobs(running_on(rides, {0: 0}), submitted_at=[0.0], restart_s=[3600.0]), at=700.0)
    pools, plan, memory = planned(rides, margin=0.0)
    assert (pools, memory) == ([0], {"overdue": []})
    assert plan.holds_until_at is not None
    assert 749.999 < plan.holds_until_at < 750.0
    later = replace(rides, at=plan.holds_until_at)
    assert planned(later, memory, margin=0.0)[2] == memory
    assert planned(replace(rides, at=750.1), memory, margin=0.0)[2] == {"overdue": [1]}
    near_its_end = with_jobs(rides, remaining_steps=[30.0], submitted_at=[690.0])
    assert planned(near_its_end, slowdown=1e6)[1].holds_until_at == pytest.approx(729.0, abs=1e-3)


def test_a_plan_with_prices_or_waiting_jobs_may_change_at_once() -> None:
    two = build(Setting([[1.0], [1.0]], [1], remaining_steps=[1000.0, 100.0]))
    assert planned(running_on(two, {1: 0}))[1].holds_until_at is None
    moves = build(Setting([[1.0, 1.2]], [2, 2], remaining_steps=[6e6]))
    assert planned(running_on(moves, {0: 0}))[1].holds_until_at is None, "it is better off elsewhere"
    assert planned(running_on(moves, {0: 1}))[1].holds_until_at is not None


def test_lengths_are_taken_from_steps_then_the_guess_then_the_others() -> None:
    """Known; guessed, half of what it has had once the guess has run out; unknown: the Gittins rank."""
    problem = build(Setting([[2.0]] * 4, [1], remaining_steps=[100.0, np.inf, np.inf, np.inf]))
    problem = with_jobs(problem, done_steps=[20.0, 40.0, 400.0, 0.0], length_s=[np.inf, 100.0, 100.0, np.inf])
    found = job_lengths_of(problem, best_rates_of(problem), hidden=False)
    assert found.left_s[:3].tolist() == [50.0, 80.0, 100.0]
    assert found.total_s[0] == 60.0
    assert found.known.tolist() == [True, True, True, False]
    assert 0 < found.left_s[3] < 864_000
    hidden = job_lengths_of(problem, best_rates_of(problem), hidden=True)
    assert not hidden.known.any()
    exchanged = with_jobs(problem, remaining_steps=[7.0, 1.0, 5.0, 3.0])
    np.testing.assert_array_equal(
        job_lengths_of(exchanged, best_rates_of(exchanged), hidden=True).left_s, hidden.left_s
    )


def test_steps_that_have_run_out_are_not_believed() -> None:
    """A job past the steps it told neither comes before all others nor is content with a slow accelerator."""
    problem = build(Setting([[4.0, 1.0], [4.0, 1.0]], [1, 1], remaining_steps=[0.0, 4000.0]))
    problem = with_jobs(problem, done_steps=[2000.0, 0.0], priority_class=[1, 1])
    assert job_lengths_of(problem, best_rates_of(problem), hidden=False).left_s.tolist() == [250.0, 1000.0]
    assert planned(problem)[0] == [0, 1]
    longer = with_jobs(problem, done_steps=[200_000.0, 0.0])
    assert planned(longer)[0] == [1, 0]


def test_what_others_needed_is_learnt_from_those_that_ended() -> None:
    """Where all jobs took a minute, a new one is expected to."""
    problem = build(Setting([[1.0]], [1]))
    learnt = replace(problem, finished_s=np.full(400, 60.0))
    best_rate = best_rates_of(problem)
    assert (
        job_lengths_of(learnt, best_rate, hidden=False).left_s[0]
        < job_lengths_of(problem, best_rate, hidden=False).left_s[0]
    )


def test_money_keeps_jobs_off_dear_places() -> None:
    """With a dollar worth something, the faster pool must be worth its price."""
    problem = build(Setting([[2.0, 1.5]], [1, 1], remaining_steps=[100.0], usd_per_h=[3.0, 0.1]))
    assert planned(problem)[0] == [0]
    assert planned(problem, usd=0.1)[0] == [1]


def test_narrow_jobs_count_more_than_their_accelerators() -> None:
    """Three of a gang's places serve three: by accelerators alone it has them, being a little shorter than they are."""
    problem = build(Setting([[1.0]] * 4, [3], gangs=[3.0, 1.0, 1.0, 1.0], remaining_steps=[100.0] + [400.0] * 3))
    assert planned(problem, size=0.0)[0] == [0, -1, -1, -1]
    assert planned(problem)[0] == [-1, 0, 0, 0]


def test_a_newcomer_is_valued_as_if_it_were_there() -> None:
    """Its worth by the arrival rule is what the plan would count."""
    problem = build(Setting([[2.0, 1.0]], [1, 1], remaining_steps=[100.0]))
    policy = make(WALRAS)
    assert isinstance(policy, PlanPolicy)
    _, plan, _ = planned(problem)
    newcomer = Newcomer(
        np.array([2.0, 1.0]), np.array([0, 1]), np.ones(2), 1.0, problem.pools.capacity, remaining_steps=100.0
    )
    value = policy.value(newcomer, plan.quote)
    assert value[0] == pytest.approx(plan.yardstick.objective if plan.yardstick else 0.0)
    assert value[1] == pytest.approx(value[0] * 0.5**0.5)


def test_nothing_to_decide_is_a_plan_too() -> None:
    """No jobs, or none that fits."""
    assert planned(build(Setting([], [4])))[0] == []
    assert planned(build(Setting([[1.0]], [1], gangs=[2.0])))[0] == [-1]


def test_elastic_configurations_are_columns_like_others() -> None:
    """A job that may take one or three accelerators takes three while they are free, one beside others."""
    columns_of = build(Setting([[3.0, 1.0], [1.0, None]], [4, 4], remaining_steps=[300.0, 100.0]))
    columns = replace(columns_of.columns, use_pool=np.zeros(3, dtype=np.int64), use_count=np.array([3.0, 1.0, 1.0]))
    pools = replace(columns_of.pools, capacity=np.array([4.0, 0.0]))
    free = replace(columns_of, columns=columns, pools=pools)
    assert planned(free)[1].column.tolist() == [0, 2]
    tight = replace(free, pools=replace(pools, capacity=np.array([2.0, 0.0])))
    assert planned(tight)[1].column.tolist() == [1, 2]


def test_a_certificate_covers_the_jobs_that_cannot_be_moved() -> None:
    """All are pinned: nothing competes, and the certificate says what runs. One is: it counts as what it is worth."""
    free = running_on(build(Setting([[1.0], [1.0], [1.0]], [2], remaining_steps=[500.0, 400.0, 300.0])), {0: 0, 1: 0})
    worth = planned(free)[1].yardstick
    assert worth is not None
    for pinned in ([True, True, False], [True, False, False]):
        stays = planned(with_jobs(free, pinned=pinned))[1].yardstick
        assert stays is not None
        assert 0.5 * worth.objective < stays.objective <= stays.bound * (1 + 1e-9)
        assert stays.objective <= worth.bound * (1 + 1e-9)  # what cannot be moved cannot make the best better


def test_an_answer_names_the_marginal_job_of_each_pool() -> None:
    """Of two who have the places, the longer one gains least at the prices; nobody is on the third pool."""
    setting = Setting([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]], [2, 1], remaining_steps=[500.0, 400.0, 300.0])
    proposal = run_solve(Solve(1, build(setting), WALRAS, None, 0.0))
    assert proposal.marginal == (2, 0)
