from dataclasses import replace

import numpy as np
import pytest
from problems import Setting, build, shares_of

from optimizer.answer import answer_problem
from optimizer.check.certificate import check_decision
from optimizer.decision import Shares, Status
from optimizer.policies.max_min_fairness import MaxMinFairness
from optimizer.policy import PolicySpec
from optimizer.renting.machine_rental import FETCH_HYSTERESIS, marginal_values, rent_machines

#: Four equal jobs, one owned accelerator; a machine of one accelerator costs 1 USD/h.
#: What a machine must be worth to be fetched, over its price.
MORE = 1 + FETCH_HYSTERESIS
QUEUE = Setting([[1, 1]] * 4, [1, 0], rentable=[0, 8], usd_per_h=[0, 1])


def with_(**changes) -> Setting:
    return Setting(**{**QUEUE.__dict__, **changes})


def test_no_money_no_rent():
    """Nobody's hour is worth anything: nothing is rented, and what is rented goes back."""
    rental = rent_machines(build(with_(capacity=[1, 2], rented=[0, 2])), 0.0)
    assert rental is not None
    assert rental.status is Status.EMPTY
    assert rental.machines.tolist() == [0, 0]


def test_where_nothing_can_be_rented_there_is_no_question():
    """No quota anywhere: None."""
    assert rent_machines(build(Setting([[1]], [1])), 5.0) is None


def test_rents_as_long_as_a_machine_earns_its_price():
    """At 2 USD for an hour of a job each of three machines earns 2 for 1; a fourth would stand idle."""
    rental = rent_machines(build(QUEUE), 2.0)
    assert rental is not None
    assert rental.machines.tolist() == [0, 3]
    margins = marginal_values(build(QUEUE), 2.0, rental)
    assert margins.last_usd_per_h[1] == pytest.approx(2.0)
    assert margins.next_usd_per_h[1] == pytest.approx(0.0, abs=1e-9)
    assert rental.net_usd_per_h == pytest.approx(4 * 2 - 3)
    assert rental.bound_usd_per_h == pytest.approx(rental.net_usd_per_h)


def test_does_not_rent_at_a_loss():
    """An hour worth less than the machine's is waited for."""
    rental = rent_machines(build(QUEUE), 0.9)
    assert rental is not None
    assert rental.machines.tolist() == [0, 0]
    assert marginal_values(build(QUEUE), 0.9, rental).next_usd_per_h[1] == pytest.approx(0.9)


def test_a_jobs_own_value_goes_before_the_cost_of_delay():
    """Only the two jobs that say so are worth a machine."""
    rental = rent_machines(build(with_(values=[5, 5, 5, np.nan])), 0.0)
    assert rental is not None
    assert rental.machines.tolist() == [0, 2]


def test_machines_are_whole():
    """Three jobs of 2 USD/h, machines of two for 3: the second would earn 2 and cost 3. Divisible, it were 1.5."""
    setting = Setting([[1]] * 3, [0], rentable=[8], machine_size=[2], usd_per_h=[1.5])
    rental = rent_machines(build(setting), 2.0)
    assert rental is not None
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
        assert rental is not None
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
    assert rental is not None
    assert rental.machines.tolist() == [machines]


@pytest.mark.parametrize(("boot_s", "machines"), [(3500.0, 3), (4 * 3600.0 + 1, 0)])
def test_a_machine_that_comes_when_all_is_done_is_not_fetched(boot_s: float, machines: int):
    """One accelerator works off four jobs of an hour in four; until then a machine more is of use."""
    setting = with_(remaining_steps=[3600] * 4, boot_s=[0, boot_s])
    rental = rent_machines(build(setting), 2.0)
    assert rental is not None
    assert rental.machines.tolist() == [0, machines]


def test_what_comes_late_is_used_for_less():
    """Half an hour of boot leaves a quarter of an hour of use: a minimum of half an hour then costs double."""
    setting = Setting(
        [[1, 2]], [1, 0], rentable=[0, 1], usd_per_h=[0, 1], values=[4], remaining_steps=[3600],
        boot_s=[0, 1800], minimum_billing_s=[0, 900],
    )  # fmt: skip
    rental = rent_machines(build(setting), 0.0)
    assert rental is not None
    assert rental.fetched_usd_per_h == pytest.approx([0, MORE])  # 900 s of use
    rental = rent_machines(build(Setting(**{**setting.__dict__, "minimum_billing_s": [0, 1800]})), 0.0)
    assert rental is not None
    assert rental.fetched_usd_per_h == pytest.approx([0, 2 * MORE])


def test_what_is_spent_is_spent():
    """A machine that is there is kept for less than what would fetch another."""
    setting = Setting(
        [[1]] * 3, [1], rentable=[3], rented=[1], usd_per_h=[1], values=[2] * 3, remaining_steps=[3600] * 3,
        minimum_billing_s=[3600 * 2.5],
    )  # fmt: skip
    rental = rent_machines(build(setting), 0.0)
    assert rental is not None
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
    assert here is not None
    assert there is not None
    assert (here.machines.tolist(), there.machines.tolist()) == ([0], [1])


def test_a_queue_is_of_use_for_as_long_as_it_lasts():
    """Eight jobs of an hour keep four machines for two."""
    setting = Setting([[1]] * 8, [0], rentable=[4], usd_per_h=[1], values=[2] * 8, remaining_steps=[3600] * 8,
                      minimum_billing_s=[3600 * 3])  # fmt: skip
    rental = rent_machines(build(setting), 0.0)
    assert rental is not None
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
        speeds,
        (owned + held).tolist(),
        rentable=(size * most).tolist(),
        rented=held.tolist(),
        machine_size=size.tolist(),
        usd_per_h=usd_per_h,
        values=values,
        remaining_steps=rng.uniform(600, 7200, n).tolist() if boots else [],
        boot_s=rng.uniform(0, 1200, p).tolist() if boots else [],
        minimum_billing_s=rng.uniform(0, 3600, p).tolist() if boots else [],
    )
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
    assert isinstance(shares, Shares)
    assert rental is not None
    assert shares.rent.tolist() == [0, 3]
    assert shares_of(problem, shares.x).sum(axis=0) == pytest.approx([1, 3])
    assert check_decision(problem, PolicySpec("max_min_fairness"), shares).holds


def test_machines_to_give_back_are_not_counted_on():
    """A rented machine that does not earn its price is left out of the shares, though it is still there."""
    problem = build(with_(capacity=[1, 2], rented=[0, 2]))
    shares, _, rental = answer_problem(MaxMinFairness(), problem, None, 0.5)
    assert isinstance(shares, Shares)
    assert rental is not None
    assert shares_of(problem, shares.x)[:, 1].sum() == 0
    assert check_decision(problem, PolicySpec("max_min_fairness"), shares).holds


def test_no_answer_from_the_solver_holds_what_is_held(monkeypatch: pytest.MonkeyPatch):
    """A failed rental changes nothing and says FAILED."""
    monkeypatch.setattr("optimizer.renting.rental_program.RentalProgram.between", lambda *_: None)
    rental = rent_machines(build(with_(capacity=[1, 2], rented=[0, 2])), 2.0)
    assert rental is not None
    assert rental.status is Status.FAILED
    assert rental.machines.tolist() == [0, 2]
