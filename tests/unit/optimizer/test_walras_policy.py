"""The policy walras on small problems: who gets which place and size, who is overdue, what is believed of lengths."""

from dataclasses import replace
from unittest.mock import ANY

import numpy as np
import pytest
from elastic_problems import Elastic, places_of, problem_of
from problems import Setting, build

from optimizer.answer import answer_problem
from optimizer.assignment.remaining_time import (
    _most_thrifty,
    best_rates_of,
    job_lengths_of,
    modest_columns,
    reference_configurations,
)
from optimizer.check.certificate import check_decision
from optimizer.decision import Plan
from optimizer.policies.walras import Walras
from optimizer.policy import Newcomer, PolicySpec
from optimizer.problem import Problem
from optimizer.registry import make
from scheduler.core.commands import Solve
from scheduler.core.cycle.solve_requests import run_solve

WALRAS = PolicySpec("walras")


def planned(problem: Problem, memory: object = None, **parameters: object) -> tuple[list[int], Plan, object]:
    """(pool of each job, -1 where it waits; the plan; the memory), the plan checked."""
    spec = PolicySpec("walras", parameters)
    plan, told, _ = answer_problem(make(spec), problem, memory, 0.0)
    assert check_decision(problem, spec, plan, memory).complaints == ()
    columns = problem.columns
    pools = [-1 if c < 0 else int(columns.use_pool[columns.use_column == c][0]) for c in plan.column]
    return pools, plan, told


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
    assert (pools, memory) == ([0, -1], {"overdue": [1]})
    again = replace(late, at=999.0)
    assert planned(again, memory, slowdown=1e6)[2] == {"overdue": [1]}
    assert planned(again, None, slowdown=1e6)[2] == {"overdue": []}


def test_overdue_jobs_have_no_more_than_the_reserve() -> None:
    """Of two places one is kept: the second overdue job competes as everybody does."""
    late = build(Setting([[1.0]] * 3, [2], remaining_steps=[1e6, 1e6, 1.0]))
    late = replace(with_jobs(late, submitted_at=[0.0, 0.0, 9e6]), at=9e6)
    assert planned(late, margin=0.0)[0] == [0, -1, 0]


def test_a_short_overdue_job_passes_a_long_one_of_its_step_though_that_runs() -> None:
    """Both exceed the limit of 2.5: the shorter first. Above 3.75 the long one is, until both are so late."""
    late = build(Setting([[1.0]] * 2, [2], gangs=[2.0, 2.0], remaining_steps=[1000.0, 100.0]))
    late = replace(running_on(late, {0: 0}), at=10_000.0)
    for submitted_at, expected, overdue in (
        ([8300.0, 9820.0], [-1, 0], [2, 1]),
        ([7200.0, 9820.0], [0, -1], [1, 2]),
        ([7200.0, 9700.0], [-1, 0], [2, 1]),
    ):
        asked = with_jobs(late, submitted_at=submitted_at)
        assert planned(asked, margin=0.0) == (expected, ANY, {"overdue": overdue})


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
    for pinned in ([True, True, False], [True, False, False]):
        stays = planned(with_jobs(free, pinned=pinned))[1].yardstick
        assert 0.5 * worth.objective < stays.objective <= stays.bound * (1 + 1e-9)
        assert stays.objective <= worth.bound * (1 + 1e-9)  # what cannot be moved cannot make the best better


def test_an_answer_names_the_marginal_job_of_each_pool() -> None:
    """Of two who have the places, the longer one gains least at the prices; nobody is on the third pool."""
    setting = Setting([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]], [2, 1], remaining_steps=[500.0, 400.0, 300.0])
    proposal = run_solve(Solve(1, build(setting), WALRAS, None, 0.0))
    assert proposal.marginal == (2, 0)


#: Twice the accelerators, 1.8 times the goodput; four, 3 times; eight, 4 times.
SPEEDS = {(0, 1): 1.0, (0, 2): 1.8, (0, 4): 3.0, (0, 8): 4.0}


def places(setting: Elastic) -> list[tuple[int, int] | None]:
    problem = problem_of(setting)
    return places_of(problem, Walras().decide(problem, None)[0])


def test_a_job_alone_grows_to_where_it_is_fastest() -> None:
    """What nobody else wants costs nothing."""
    assert places(Elastic([SPEEDS], [8], remaining_steps=[1e4])) == [(0, 8)]


def test_a_job_does_not_grow_where_it_gains_nothing() -> None:
    """More accelerators that make no more steps are worth nothing."""
    assert places(Elastic([{(0, 1): 1.0, (0, 4): 3.0, (0, 8): 2.9}], [8], remaining_steps=[1e4])) == [(0, 4)]


def test_a_job_shrinks_when_another_arrives() -> None:
    """It ran on all; its like comes, and each has half."""
    alone = Elastic([SPEEDS], [8], remaining_steps=[1e4], running={0: (0, 8)}, restart_s=30.0)
    assert places(alone) == [(0, 8)]
    both = replace(alone, speeds=[SPEEDS] * 2, remaining_steps=[1e4] * 2)
    assert places(both) == [(0, 4), (0, 4)]


def test_many_jobs_have_their_least_gangs() -> None:
    """Nobody waits while everybody could have one."""
    assert places(Elastic([SPEEDS] * 8, [8], remaining_steps=[1e4] * 8)) == [(0, 1)] * 8


def test_who_scales_better_gets_more() -> None:
    """The next accelerators go to where they add most."""
    badly = {(0, 1): 1.0, (0, 2): 1.05, (0, 4): 1.1}
    found = places(Elastic([badly, SPEEDS], [5], remaining_steps=[1e4] * 2))
    assert found == [(0, 1), (0, 4)]


def test_one_that_can_only_have_one_does_not_wait_for_those_who_grow() -> None:
    """A rigid job is worth as much as the least gang of an elastic one of its length."""
    found = places(Elastic([SPEEDS, {(0, 1): 1.0}], [8], remaining_steps=[1e4] * 2, running={0: (0, 8)}))
    assert found == [(0, 4), (0, 1)]


def test_a_job_nearly_through_does_not_pay_for_a_restart() -> None:
    """Growing from one to two would end it sooner only if it had longer to go."""
    setting = Elastic([{(0, 1): 1.0, (0, 2): 1.8}], [2], running={0: (0, 1)}, restart_s=60.0, remaining_steps=[100.0])
    assert places(setting) == [(0, 1)]
    assert places(replace(setting, remaining_steps=[1e4])) == [(0, 2)]


def test_lengths_that_nobody_knows_are_measured_in_the_least_gang() -> None:
    """Two jobs, one of which has had much: the newcomer counts as shorter and gets the only place."""
    problem = problem_of(Elastic([SPEEDS] * 2, [1], at=1e5))
    problem = replace(problem, jobs=replace(problem.jobs, done_steps=np.array([5e4, 0.0])))
    assert places_of(problem, Walras().decide(problem, None)[0]) == [None, (0, 1)]


def test_the_reference_is_the_most_efficient_configuration() -> None:
    """Most steps per accelerator, the fewest accelerators among equals; of a rigid job the fastest."""
    efficient = {(0, 1): 1.0, (0, 2): 2.0, (0, 8): 6.0, (1, 1): 0.5}
    problem = problem_of(Elastic([efficient, {(0, 1): 1.0, (1, 1): 3.0}], [8, 1]))
    reference = reference_configurations(problem)
    assert reference.elastic.tolist() == [True, False]
    assert reference.rate.tolist() == [1.0, 3.0]
    assert reference.size[0] == 1.0


def test_of_equally_efficient_configurations_the_reference_is_the_smallest() -> None:
    """As if the columns of each job were sorted by steps per accelerator-second, then by size."""
    random = np.random.default_rng(4)
    for _ in range(30):
        job = np.sort(random.integers(0, 8, 40))
        size, each = random.choice([1.0, 2.0, 4.0], 40), random.choice([0.5, 1.0, 1.5], 40)
        order = np.lexsort((size, -each, job))
        wanted = order[np.unique(job[order], return_index=True)[1]]
        np.testing.assert_array_equal(_most_thrifty(job, each, size), wanted)


def test_rigid_jobs_are_measured_as_if_there_were_no_elastic_ones() -> None:
    """Two counts on two types do not make a job elastic."""
    problem = problem_of(Elastic([{(0, 1): 1.0, (1, 2): 3.0}], [1, 2]))
    reference = reference_configurations(problem)
    assert not reference.elastic.any()
    assert np.array_equal(reference.rate, best_rates_of(problem))
    assert modest_columns(problem, reference).all()


@pytest.mark.parametrize(("starts", "rented", "place"), [(1, 0.0, (0, 2)), (6, 0.0, (0, 1)), (6, 2.0, (0, 2))])
def test_an_elastic_job_that_was_resized_often_is_resized_no_more_for_little(
    starts: int, rented: float, place: tuple[int, int]
) -> None:
    """Twice the gang is 1.74 times as fast, and half of the job's time went into restarts. Where both machines were
    rented because the second is worth its price to the job, it takes it.
    """
    setting = Elastic([{(0, 1): 1.0, (0, 2): 1.74}], [2], remaining_steps=[1e6], running={0: (0, 1)}, restart_s=100.0)
    asked = problem_of(replace(setting, at=1000.0))
    pools = replace(asked.pools, rented=np.array([rented]), usd_per_h=np.array([1.0]))
    asked = replace(asked, pools=pools, jobs=replace(asked.jobs, value_usd_per_h=np.array([12.0])))
    history = [1, 2.0, starts, [asked.pools.pool_id[0], 1.0]]
    plan, memory = Walras().decide(asked, {"overdue": [], "jobs": [history]})
    assert (places_of(asked, plan), memory) == ([place], {"overdue": [], "jobs": [history]})


@pytest.mark.parametrize(("speed", "thrift", "size"), [(1.2, 0.01, 8), (1.2, 0.02, 1), (1.01, 0.01, 1), (1.01, 0.0, 8)])
def test_an_elastic_job_leaves_idle_what_would_add_next_to_nothing(speed: float, thrift: float, size: int) -> None:
    """Eight accelerators are this many times as fast as one, and nobody else wants them."""
    asked = problem_of(Elastic([{(0, 1): 1.0, (0, 8): speed}], [8], remaining_steps=[1e6]))
    assert places_of(asked, Walras(thrift=thrift).decide(asked, None)[0]) == [(0, size)]


def test_starts_of_elastic_jobs_are_counted_from_plan_to_plan() -> None:
    """Those of rigid ones are not: nothing is kept of them."""
    elastic, rigid = {(0, 1): 1.0, (0, 2): 1.74}, {(0, 1): 1.0}
    memory = None
    for size in (1, 2, 2, 1):
        asked = problem_of(Elastic([elastic, rigid], [3], running={0: (0, size), 1: (0, 1)}))
        memory = Walras().decide(asked, memory)[1]
    assert memory["jobs"] == [[1, 2.0, 3, [asked.pools.pool_id[0], 1.0]]]


def test_an_overdue_job_is_not_given_more_than_its_part() -> None:
    """It has waited ten times its length: first it is served, but no larger than an equal part of the fleet."""
    setting = Elastic([SPEEDS] * 4, [8], remaining_steps=[100.0] * 4, at=1000.0)
    late = problem_of(replace(setting, submitted_at=[0.0, 999.0, 999.0, 999.0]))
    plan, memory = Walras().decide(late, None)
    assert memory == {"overdue": [1]}
    assert plan.rows.tolist()[0] == 0
    assert places_of(late, plan) == [(0, 2)] * 4


def test_a_newcomer_is_worth_more_the_faster_it_would_run() -> None:
    """By the root of its speed, against what it is worth in its most efficient configuration, less its thrift."""
    newcomer = Newcomer(
        np.array([1.0, 1.8]), np.array([0, 0]), np.array([1.0, 2.0]), 1.0, np.array([4.0]), remaining_steps=1e4
    )
    plan, _ = Walras().decide(_one(), None)
    value = Walras().value(newcomer, plan.quote)
    assert value[1] == pytest.approx(value[0] * (1.8**0.5 - 0.01))


def _one() -> Problem:
    return problem_of(Elastic([SPEEDS], [8], remaining_steps=[1e4]))
