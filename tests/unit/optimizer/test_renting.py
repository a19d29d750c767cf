"""Machines to rent: what they earn, and the limits of projects and users that bind them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_fleet import FakeFleet, job, pool
from problems import Setting, build, shares_of

from optimizer.answer import answer_problem
from optimizer.assignment.limit_rows import RentalLimits, without_forbidden
from optimizer.check.certificate import check_decision
from optimizer.decision import Plan, Status
from optimizer.lp.exact_solver import solve_exactly
from optimizer.policies.fairness import MaxMinFairness
from optimizer.policy import PolicySpec
from optimizer.problem import Entities, EntityLimits, IntArray, Problem
from optimizer.registry import make
from optimizer.renting.machine_rental import FETCH_HYSTERESIS, Rental, marginal_values, rent_machines
from optimizer.renting.market_plan import plan_in_market
from optimizer.renting.money_program import solve_money_program
from optimizer.renting.rental_program import FractionalRental, RentalProgram
from scheduler.core import events as ev
from scheduler.core.cycle.solve_requests import run_solve
from scheduler.core.events import FLEET, EntityShare, ShareLimit, SharesDeclared
from scheduler.core.rules import RoundRules
from tests.support.money_as_classes import as_class_problem
from walras.cluster import Market

#: Four equal jobs, one owned accelerator; a machine of one accelerator costs 1 USD/h.
#: What a machine must be worth to be fetched, over its price.
MORE = 1 + FETCH_HYSTERESIS
QUEUE = Setting([[1, 1]] * 4, [1, 0], rentable=[0, 8], usd_per_h=[0, 1])


def planned(problem: Problem) -> tuple[Plan, Rental]:
    """The plan of walras, and what it rents, where jobs without a value rent nothing."""
    plan, _, rental = plan_in_market(make(PolicySpec("walras")), problem, None, 0.0)
    return plan, rental


def with_(**changes) -> Setting:
    return Setting(**{**QUEUE.__dict__, **changes})


def test_no_money_no_rent():
    """Nobody's hour is worth anything: nothing is rented, and what is rented goes back."""
    rental = rent_machines(build(with_(capacity=[1, 2], rented=[0, 2])), 0.0)
    assert rental.status is Status.EMPTY
    assert rental.machines.tolist() == [0, 0]


def test_where_nothing_can_be_rented_there_is_no_question():
    """No quota anywhere: None."""
    assert rent_machines(build(Setting([[1]], [1])), 5.0) is None


def test_rents_as_long_as_a_machine_earns_its_price():
    """At 2 USD for an hour of a job each of three machines earns 2 for 1; a fourth would stand idle."""
    rental = rent_machines(build(QUEUE), 2.0)
    assert rental.machines.tolist() == [0, 3]
    margins = marginal_values(build(QUEUE), 2.0, rental)
    assert margins.last_usd_per_h[1] == pytest.approx(2.0)
    assert margins.next_usd_per_h[1] == pytest.approx(0.0, abs=1e-9)
    assert rental.net_usd_per_h == pytest.approx(4 * 2 - 3)
    assert rental.bound_usd_per_h == pytest.approx(rental.net_usd_per_h)


def test_does_not_rent_at_a_loss():
    """An hour worth less than the machine's is waited for."""
    rental = rent_machines(build(QUEUE), 0.9)
    assert rental.machines.tolist() == [0, 0]
    assert marginal_values(build(QUEUE), 0.9, rental).next_usd_per_h[1] == pytest.approx(0.9)


def test_a_jobs_own_value_goes_before_the_cost_of_delay():
    """Only the two jobs that say so are worth a machine."""
    rental = rent_machines(build(with_(values=[5, 5, 5, np.nan])), 0.0)
    assert rental.machines.tolist() == [0, 2]


def test_machines_are_whole():
    """Three jobs of 2 USD/h, machines of two for 3: the second would earn 2 and cost 3. Divisible, it were 1.5."""
    setting = Setting([[1]] * 3, [0], rentable=[8], machine_size=[2], usd_per_h=[1.5])
    rental = rent_machines(build(setting), 2.0)
    assert rental.fluid_accelerators == pytest.approx([3.0])
    assert rental.machines.tolist() == [1]
    margins = marginal_values(build(setting), 2.0, rental)
    assert margins.last_usd_per_h == pytest.approx([4.0])
    assert margins.next_usd_per_h == pytest.approx([2.0])
    assert rental.net_usd_per_h <= rental.bound_usd_per_h


def test_on_a_tie_what_is_held_stays():
    """A machine that earns exactly its price is kept if it is there, and not fetched if it is not."""
    for held in (0, 1):
        problem = build(Setting([[1]], [held], rentable=[1], rented=[held], usd_per_h=[2.0]))
        rental = rent_machines(problem, 2.0)
        assert rental.machines.tolist() == [held]


#: One job, an hour of work, worth 2 USD/h; a machine for 1 USD/h.
#: Worth twice the price of a machine that is fetched.
HOUR = Setting([[1]], [0], rentable=[1], usd_per_h=[1], values=[2 * MORE], remaining_steps=[3600])


@pytest.mark.parametrize(
    ("facts", "machines"),
    [
        ({}, 1),
        ({"minimum_billing_s": [7000]}, 1),
        ({"minimum_billing_s": [7201]}, 0),  # two hours are paid for one of use
        ({"minimum_billing_s": [7201], "remaining_steps": [4000]}, 1),
        ({"minimum_billing_s": [7201], "remaining_steps": []}, 1),  # nobody knows how long: the market price
        ({"boot_s": [1e6]}, 1),  # the job can run nowhere else, and booting is not paid
    ],
)
def test_a_machine_is_fetched_if_its_use_is_worth_its_bill(facts: dict[str, list[float]], machines: int):
    """The bill is for a time at least; who uses less of it pays more per hour of use."""
    rental = rent_machines(build(Setting(**{**HOUR.__dict__, **facts})), 0.0)
    assert rental.machines.tolist() == [machines]


@pytest.mark.parametrize(("boot_s", "machines"), [(3500.0, 3), (4 * 3600.0 + 1, 0)])
def test_a_machine_that_comes_when_all_is_done_is_not_fetched(boot_s: float, machines: int):
    """One accelerator works off four jobs of an hour in four; until then a machine more is of use."""
    setting = with_(remaining_steps=[3600] * 4, boot_s=[0, boot_s])
    rental = rent_machines(build(setting), 2.0)
    assert rental.machines.tolist() == [0, machines]


def test_what_comes_late_is_used_for_less():
    """Half an hour of boot leaves a quarter of an hour of use: a minimum of half an hour then costs double."""
    setting = Setting(
        [[1, 2]], [1, 0], rentable=[0, 1], usd_per_h=[0, 1], values=[4], remaining_steps=[3600],
        boot_s=[0, 1800], minimum_billing_s=[0, 900],
    )  # fmt: skip
    rental = rent_machines(build(setting), 0.0)
    assert rental.fetched_usd_per_h == pytest.approx([0, MORE])  # 900 s of use
    rental = rent_machines(build(Setting(**{**setting.__dict__, "minimum_billing_s": [0, 1800]})), 0.0)
    assert rental.fetched_usd_per_h == pytest.approx([0, 2 * MORE])


def test_what_is_spent_is_spent():
    """A machine that is there is kept for less than what would fetch another."""
    setting = Setting(
        [[1]] * 3, [1], rentable=[3], rented=[1], usd_per_h=[1], values=[2] * 3, remaining_steps=[3600] * 3,
        minimum_billing_s=[3600 * 2.5],
    )  # fmt: skip
    rental = rent_machines(build(setting), 0.0)
    assert rental.fetched_usd_per_h == pytest.approx([2.5 * MORE])
    assert rental.machines.tolist() == [1]
    margins = marginal_values(build(setting), 0.0, rental)
    assert margins.last_usd_per_h == pytest.approx([2.0])
    assert margins.next_usd_per_h == pytest.approx([2.0])


def test_what_was_asked_for_is_not_asked_for_again():
    """A machine on its way is as good as paid for, though it is not there yet."""
    problem = build(Setting(**{**HOUR.__dict__, "minimum_billing_s": [7201]}))
    coming = replace(problem, pools=replace(problem.pools, coming=np.array([1.0])))
    here, there = rent_machines(problem, 0.0), rent_machines(coming, 0.0)
    assert (here.machines.tolist(), there.machines.tolist()) == ([0], [1])


def test_a_queue_is_of_use_for_as_long_as_it_lasts():
    """Eight jobs of an hour keep four machines for two."""
    setting = Setting([[1]] * 8, [0], rentable=[4], usd_per_h=[1], values=[2] * 8, remaining_steps=[3600] * 8,
                      minimum_billing_s=[3600 * 3])  # fmt: skip
    rental = rent_machines(build(setting), 0.0)
    assert rental.fetched_usd_per_h == pytest.approx([1.5 * MORE])
    assert rental.machines.tolist() == [4]


@pytest.mark.parametrize("boots", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_prices_and_rents_are_complementary(seed: int, boots: bool):
    """Fluid optimum: rent > 0 means a price of at least the market's, rent < quota a price of at most that.

    What is not held yet counts at what fetching it costs.
    """
    rng = np.random.default_rng(seed)
    n, p = int(rng.integers(3, 12)), int(rng.integers(2, 5))
    size = rng.integers(1, 4, p).astype(float)
    owned, most = rng.integers(0, 3, p).astype(float), rng.integers(0, 4, p)
    speeds, usd_per_h = rng.lognormal(0, 0.8, (n, p)).tolist(), rng.uniform(0.2, 2, p).tolist()
    values = np.where(rng.random(n) < 0.3, np.nan, rng.uniform(0, 4, n)).tolist()
    held = size * rng.integers(0, most + 1) if boots else np.zeros(p)
    setting = Setting(
        speeds, (owned + held).tolist(), rentable=(size * most).tolist(), rented=held.tolist(),
        machine_size=size.tolist(), usd_per_h=usd_per_h, values=values,
        remaining_steps=rng.uniform(600, 7200, n).tolist() if boots else [],
        boot_s=rng.uniform(0, 1200, p).tolist() if boots else [],
        minimum_billing_s=rng.uniform(0, 3600, p).tolist() if boots else [],
    )  # fmt: skip
    problem = build(setting)
    rental = rent_machines(problem, 1.0)
    if rental is None:
        assert not problem.pools.rentable.any()
        return
    rent, price = rental.fluid_accelerators, rental.fluid_prices
    kept, fetched = problem.pools.usd_per_h, rental.fetched_usd_per_h
    assert (fetched >= kept).all()
    assert (price >= np.where(rent > held + 1e-7, fetched, np.where(rent > 1e-7, kept, 0.0)) - 1e-7).all()
    below = rent < problem.pools.rentable - 1e-7
    assert (price[below] <= np.where(rent < held - 1e-7, kept, fetched)[below] + 1e-7).all()
    assert rental.net_usd_per_h <= rental.bound_usd_per_h + 1e-7
    of_next = np.where(rental.accelerators >= held, fetched, kept) * size
    of_last = np.where(rental.accelerators > held, fetched, kept) * size
    more = rental.accelerators < problem.pools.rentable
    margins = marginal_values(problem, 1.0, rental)
    assert (margins.next_usd_per_h[more] <= of_next[more] + 1e-5).all()
    assert (margins.last_usd_per_h[rental.machines > 0] >= of_last[rental.machines > 0] - 1e-5).all()


def test_shares_count_on_the_machines_of_the_rental():
    """The policy decides on the fleet as it will be, says so in `rent`, and the checker follows."""
    problem = build(QUEUE)
    shares, _, rental = answer_problem(MaxMinFairness(), problem, None, 2.0)
    assert rental is not None
    assert shares.rent.tolist() == [0, 3]
    assert shares_of(problem, shares.x).sum(axis=0) == pytest.approx([1, 3])
    assert check_decision(problem, PolicySpec("max_min_fairness"), shares).holds


def test_machines_to_give_back_are_not_counted_on():
    """A rented machine that does not earn its price is left out of the shares, though it is still there."""
    problem = build(with_(capacity=[1, 2], rented=[0, 2]))
    shares, _, rental = answer_problem(MaxMinFairness(), problem, None, 0.5)
    assert rental is not None
    assert shares_of(problem, shares.x)[:, 1].sum() == 0
    assert check_decision(problem, PolicySpec("max_min_fairness"), shares).holds


def test_no_answer_from_the_solver_holds_what_is_held(monkeypatch: pytest.MonkeyPatch):
    """A failed rental changes nothing and says FAILED."""
    monkeypatch.setattr("optimizer.renting.rental_program.RentalProgram.between", lambda *_: None)
    rental = rent_machines(build(with_(capacity=[1, 2], rented=[0, 2])), 2.0)
    assert rental.status is Status.FAILED
    assert rental.machines.tolist() == [0, 2]


def test_nothing_is_rented_upon_a_rental_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first solver gives up, the next would not: what is held stays, though payers wait."""
    divisible, calls = RentalProgram.divisible, list[int]()

    def first_fails(program: RentalProgram, most: IntArray) -> tuple[FractionalRental | None, str]:
        calls.append(1)
        return divisible(program, most) if len(calls) > 1 else (None, "")

    monkeypatch.setattr(RentalProgram, "divisible", first_fails)
    rental = planned(build(with_(values=[5.0] * 4)))[1]
    assert (rental.status, rental.machines.tolist()) == (Status.FAILED, [0, 0])


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_payer_finds_no_place_for_is_rented_unless_that_solve_fails(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Money counts on the owned place for the payer; a higher class that is worth no more than a machine has it."""
    divisible, calls = RentalProgram.divisible, list[int]()

    def second_fails(program: RentalProgram, most: IntArray) -> tuple[FractionalRental | None, str]:
        calls.append(1)
        return (None, "") if fails and len(calls) == 2 else divisible(program, most)

    monkeypatch.setattr(RentalProgram, "divisible", second_fails)
    problem = build(
        Setting([[1, 1]] * 2, [1, 0], rentable=[0, 8], usd_per_h=[0, 1], values=[5.0, 1.02], boot_s=[0.0, 60.0])
    )
    problem = replace(problem, jobs=replace(problem.jobs, priority_class=np.array([1, 2])))
    rental = planned(problem)[1]
    assert (rental.status, rental.machines.tolist(), len(calls)) == (Status.OPTIMAL, [0, int(not fails)], 2)


@pytest.mark.parametrize("value", [np.nan, 0.5])
def test_money_counts_on_no_place_of_those_who_can_pay_for_no_machine(value: float) -> None:
    """The owned place is theirs by class. Two payers want machines: the cheap one pays for the one who runs there, the
    dear one for the newcomer, who does not take the place of the other.
    """
    rates = [[1.0, 0.0, 0.0], [0.0, 0.5, 0.0], [1.0, 0.5, 1.0]]
    problem = build(
        Setting(rates, [1, 1, 0], rentable=[0, 1, 1], rented=[0, 1, 0], usd_per_h=[0.0, 1.0, 2.0],
                values=[value, 3.0, 5.0], remaining_steps=[1e6, 1e5, 1e3])
    )  # fmt: skip
    jobs = replace(problem.jobs, priority_class=np.array([2, 1, 1]))
    running = np.isin(problem.columns.use_pool, [0, 1]) & (problem.columns.job < 2) & (problem.columns.steps_per_s > 0)
    problem = replace(problem, jobs=jobs, columns=replace(problem.columns, running=running))
    plan, rental = planned(problem)
    assert rental.machines.tolist() == [0, 1, 1]
    assert problem.columns.use_pool[plan.column[:2]].tolist() == [0, 1]
    assert plan.column[2] < 0


@pytest.mark.parametrize(("leaves", "fastest", "machines"), [(True, 4.0, 0), (False, 4.0, 1), (False, 40.0, 0)])
def test_money_counts_only_on_places_that_a_job_can_be_given(leaves: bool, fastest: float, machines: int) -> None:
    """One runs on a rented machine of two. Another earns less than the price of the place beside it, which it has only
    if it can leave again, and more than that of the second type, unless it is slow there beside the third, too dear
    one.
    """
    rates = [[1.0, 0.0, 0.0], [1.0, 4.0, fastest]]
    problem = build(
        Setting(rates, [2, 0, 0], rentable=[2, 4, 4], rented=[2, 0, 0], usd_per_h=[1.0, 2.5, 9.0], values=[5.0, 3.0],
                machine_size=[2, 1, 1])
    )  # fmt: skip
    here, stays = problem.columns, np.array([False, not leaves])
    running = (here.job == 0) & (here.steps_per_s > 0)
    problem = replace(problem, jobs=replace(problem.jobs, unstoppable=stays), columns=replace(here, running=running))
    plan, rental = planned(problem)
    assert rental.machines.tolist() == [1, machines, 0]
    assert (plan.column[1] >= 0) == leaves


@pytest.mark.parametrize(("left_s", "had_s", "machines"), [(60.0, 0, 1), (300.0, 0, 2), (0.0, 0, 1), (0.0, 200.0, 2)])
def test_no_machine_is_fetched_where_one_becomes_free_sooner(left_s: float, had_s: float, machines: int) -> None:
    """A payer waits; another ends on its rented machine before, or after, a new one could be there, or goes on though
    it has nothing left.
    """
    setting = Setting(
        [[10.0], [10.0]], [1.0], rentable=[4.0], rented=[1.0], usd_per_h=[1.0], boot_s=[120.0], values=[5.0] * 2,
        remaining_steps=[10 * left_s, 36_000.0],
    )  # fmt: skip
    problem = build(setting)
    jobs = replace(problem.jobs, attained_s=np.array([had_s, 0.0]))
    problem = replace(problem, jobs=jobs, columns=replace(problem.columns, running=np.array([True, False])))
    plan, rental = planned(problem)
    assert (rental.machines.tolist(), int(plan.column[0])) == ([machines], 0)


def limited(most: float, pools: tuple[bool, ...] = (True, True), **changes: Any) -> Problem:
    """Four jobs of project 0, worth 5 USD/h each; machines of one accelerator cost 1, of two types."""
    setting = Setting([[1, 1]] * 4, [0, 0], rentable=[8, 8], usd_per_h=[1.0, 1.5], values=[5.0] * 4, **changes)
    entities = Entities(("p", "p/u"), np.ones(2), np.array([-1, 0]))
    problem = build(setting)
    jobs = replace(problem.jobs, entity=np.ones(4, dtype=np.int64))
    limits = EntityLimits(np.zeros(1, dtype=np.int64), np.array([most]), np.array([pools]))
    return replace(problem, jobs=jobs, entities=entities, limits=limits)


def test_no_machine_is_rented_that_a_limit_leaves_unused() -> None:
    """Of the fleet: two machines for four jobs, and what an accelerator more below the limit would gain."""
    assert rent_machines(replace(limited(2.0), limits=None), 0.0).machines.tolist() == [4, 0]
    found = rent_machines(limited(2.0), 0.0)
    assert found.machines.tolist() == [2, 0]
    assert found.limit_prices.tolist() == pytest.approx([5.0 - 1.0])


def test_a_limit_of_one_pool_sends_the_others_elsewhere() -> None:
    """One there, three where it is dearer."""
    assert rent_machines(limited(1.0, (True, False)), 0.0).machines.tolist() == [1, 3]


def test_a_gang_larger_than_its_limit_has_nothing_rented() -> None:
    """A half of it pays for no machine; nor does the half gang that is left of a limit."""
    gangs: dict[str, Any] = {"gangs": [4.0] * 4, "machine_size": [4.0, 4.0]}
    assert rent_machines(limited(2.0, **gangs), 0.0).machines.tolist() == [0, 0]
    assert rent_machines(limited(6.0, **gangs), 0.0).machines.tolist() == [1, 0]
    problem = limited(2.0, (True, False), **gangs)
    problem = replace(problem, jobs=replace(problem.jobs, value_usd_per_h=np.full(4, 9.0)))
    assert rent_machines(problem, 0.0).machines.tolist() == [0, 2]


def test_what_runs_keeps_its_machines_below_a_limit_made_smaller() -> None:
    """Nothing is taken from those who run; nothing more is rented."""
    problem = limited(1.0, rented=[3, 0])
    problem = replace(problem, pools=replace(problem.pools, capacity=np.array([3.0, 0.0])))
    running = np.zeros(len(problem.columns), dtype=np.bool_)
    running[[0, 2, 4]] = True
    problem = replace(problem, columns=replace(problem.columns, running=running))
    assert rent_machines(problem, 0.0).machines.tolist() == [3, 0]


def test_what_riders_hold_on_owned_places_counts_against_the_limit() -> None:
    """A rider has the only owned place and half of the limit."""
    problem = limited(2.0)
    pools = replace(problem.pools, capacity=np.array([1.0, 0.0]))
    value = np.array([np.nan, 5.0, 5.0, 5.0])
    running = np.zeros(len(problem.columns), dtype=np.bool_)
    running[0] = True
    problem = replace(
        problem,
        pools=pools,
        jobs=replace(problem.jobs, value_usd_per_h=value, pinned=np.array([True, False, False, False])),
        columns=replace(problem.columns, running=running),
    )
    rental = planned(problem)[1]
    assert rental.machines.sum() == 1


def test_a_part_of_the_fleet_counts_of_the_largest_that_could_be_rented() -> None:
    """Or nobody could rent the first machine."""
    problem = replace(limited(0.0), limits=None)
    entities = replace(problem.entities, limit=np.array([0.125, 1.0]))
    assert rent_machines(replace(problem, entities=entities), 0.0).machines.tolist() == [2, 0]


@pytest.mark.parametrize("seed", range(30))
def test_the_statement_and_the_engines_agree_with_limits(seed: int) -> None:
    """cvxpy, matrices and classes; and no single machine more or less pays."""
    random = np.random.default_rng(seed)
    jobs, pools = int(random.integers(2, 10)), 2
    problem = limited(float(random.integers(0, 9)), tuple(random.random(2) < 0.7))
    setting = Setting(
        random.uniform(0.5, 4.0, (jobs, pools)).round(3).tolist(), random.integers(0, 4, pools).tolist(),
        rentable=[6.0, 6.0], usd_per_h=random.uniform(0.1, 3.0, pools).round(3).tolist(),
        gangs=random.choice([1, 2, 4], jobs).tolist(), values=random.uniform(0.0, 8.0, jobs).round(3).tolist(),
    )  # fmt: skip
    made = build(setting)
    value = made.jobs.value_usd_per_h
    entity = random.integers(0, 2, jobs)
    made = replace(
        made, jobs=replace(made.jobs, entity=entity), entities=Entities(("p", "q"), np.ones(2), np.full(2, -1))
    )
    made = replace(made, limits=problem.limits)
    made = without_forbidden(made)
    most = np.full(pools, 6)
    program = RentalProgram(made, value, most, made.pools.usd_per_h)
    tiers = program.tiers(most)
    matrices = program.between(np.zeros(pools), most.astype(float))
    stated = solve_money_program(program.class_problem, program.gross, program.owned, tiers)
    assert stated.net_usd_per_h == pytest.approx(matrices.net, abs=1e-6 * max(1.0, matrices.net))
    together, objective, paid = as_class_problem(program.class_problem, program.gross, program.owned, tiers)
    assert solve_exactly(together, objective).objective - paid == pytest.approx(matrices.net, abs=1e-5)
    limits = RentalLimits.of(made, value > 0)
    assert len(matrices.limit_prices) == len(limits.most)


def test_a_core_rents_nothing_for_a_project_that_may_not_have_it() -> None:
    """Limits of the fleet, of a type and of a pool; without them a machine is asked for."""
    for limits in ((), (ShareLimit(FLEET, 1),), (ShareLimit("s", 1),), (ShareLimit("other", 1),)):
        fleet = FakeFleet()
        fleet.tell(ev.PolicyChanged(0.0, PolicySpec("walras"), RoundRules()))
        fleet.tell(ev.PoolDeclared(0.0, pool("s", 2, market=Market.ON_DEMAND, quota=3)))
        fleet.tell(SharesDeclared(0.0, (EntityShare("p", limits=limits),)))
        fleet.tell(ev.JobSubmitted(0.0, job(1, "s", 2, project="p", steps=1e6, value_usd_per_h=9.0)))
        while not fleet.solves:
            fleet.wake()
        question = fleet.solves[-1]
        fleet.tell(ev.Solved(fleet.at, question.request_id, run_solve(question), 0.1))
        asked = sum(each.machines for each in fleet.rents)
        binds = any(limit.scope in (FLEET, "s") for limit in limits)
        assert asked == (0 if binds else 1), limits
