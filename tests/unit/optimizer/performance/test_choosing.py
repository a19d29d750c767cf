"""What to train on: fronts, windows and knees against brute force, and spotDNN's plans against its paper."""

from dataclasses import replace
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.published import LINK, OFFERS, ON_DEMAND_USD, PLANS, all_options, resnet_110, update_speeds
from optimizer.planning.machine_choice import (
    MachineOffer,
    RunGoal,
    RunOption,
    choose_option,
    knee,
    option_of,
    pareto_front,
    speed_windows,
)
from optimizer.planning.spot_training import unevenness

MOST = LINK.most_workers


def within(counts: tuple[int, ...]) -> bool:
    return sum(counts) <= MOST


@pytest.mark.parametrize(
    ("loss", "deadline_s", "paper", "off_by"),
    [(0.9, 1900, (2, 0, 2, 0, 0), 0), (0.8, 2400, (2, 0, 4, 0, 0), 0), (0.7, 3700, (2, 1, 4, 0, 0), 1)],
)
def test_plans_for_resnet_110_are_those_of_the_paper(
    loss: float, deadline_s: float, paper: tuple[int, ...], off_by: int
) -> None:
    """Two plans exact, the third within one instance; the window finds what listing everything finds."""
    job, goal = resnet_110(loss), RunGoal(deadline_s=deadline_s)
    found = choose_option(speed_windows(OFFERS, job.time_s, update_speeds(job), MOST), goal)
    assert found is not None
    assert found.kept
    assert sum(abs(ours - theirs) for ours, theirs in zip(found.option.counts, paper, strict=True)) <= off_by
    every = choose_option((o for o in all_options(OFFERS, job.time_s) if within(o.counts)), goal)
    assert every is not None
    assert every.option == found.option


@pytest.mark.parametrize(("loss", "deadline_s", "paper"), PLANS)
def test_every_deadline_of_the_paper_is_met_for_no_more_than_its_plan_costs(
    loss: float, deadline_s: float, paper: tuple[int, ...]
) -> None:
    """And for at least 68.1 % less than the cheapest machines on demand that would meet it."""
    job, goal = resnet_110(loss), RunGoal(deadline_s=deadline_s)
    found = choose_option(speed_windows(OFFERS, job.time_s, update_speeds(job), MOST), goal)
    sure = [replace(offer, usd_per_h=usd) for offer, usd in zip(OFFERS, ON_DEMAND_USD, strict=True)]
    on_demand = choose_option((o for o in all_options(sure, job.time_s) if within(o.counts)), goal)
    assert found is not None
    assert on_demand is not None
    assert found.option.time_s <= deadline_s
    assert found.option.usd <= option_of(OFFERS, paper, job.time_s(paper)).usd
    assert found.option.usd <= (1 - 0.681) * on_demand.option.usd


@pytest.mark.parametrize(
    ("loss", "counts", "time_s", "usd"),
    [(0.9, (2, 0, 2, 0, 0), 1884, 1.68), (0.8, (2, 0, 4, 0, 0), 2351, 2.99), (0.7, (2, 0, 4, 0, 0), 3584, 4.55)],
)
def test_time_and_money_are_those_of_the_published_program(
    loss: float, counts: tuple[int, ...], time_s: float, usd: float
) -> None:
    """To the second and the cent."""
    option = option_of(OFFERS, counts, resnet_110(loss).time_s(counts))
    assert (round(option.time_s), round(option.usd, 2)) == (time_s, usd)


def test_contention_is_certain_beyond_thirteen_workers() -> None:
    """n_upper of the paper's parameters."""
    assert MOST == 13
    assert LINK.contention(3) == 0.0
    assert LINK.contention(14) == 1.0
    assert LINK.worker_bytes_per_s(8) == 142e6
    assert LINK.worker_bytes_per_s(13) < 142e6


@pytest.mark.parametrize(("workers", "paper"), [(2, 0.71), (3, 0.82), (4, 0.87)])
def test_unevenness_of_equal_workers_is_that_of_the_paper(workers: int, paper: float) -> None:
    """sqrt((n-1)/n), as its Table VI has it."""
    assert unevenness([1 / workers] * workers) == pytest.approx(paper, abs=0.006)
    assert unevenness([1 / workers] * workers) == pytest.approx(sqrt((workers - 1) / workers))


def test_unevenness_slows_learning_where_the_law_counts_it() -> None:
    """With g4 the same machines need updates by sqrt(R + g4)."""
    plain = resnet_110(0.8)
    counted = replace(plain, law=replace(plain.law, g4=1.0 - sqrt(0.5)))
    assert counted.time_s((2, 0, 0, 0, 0)) == pytest.approx(plain.time_s((2, 0, 0, 0, 0)))


def test_a_loss_out_of_reach_is_no_option() -> None:
    """At or below the floor of the law no number of machines helps."""
    job = resnet_110(0.5)
    assert choose_option(speed_windows(OFFERS, job.time_s, update_speeds(job), MOST), RunGoal(deadline_s=1e9)) is None


def test_survivors_stay_in_every_window() -> None:
    """Machines that are held are part of every option, also of the one that adds none."""
    held, job = (0, 0, 0, 3, 0), resnet_110(0.8)
    options = list(speed_windows(OFFERS, job.time_s, update_speeds(job), 5, held))
    assert all(option.counts[3] >= 3 and sum(option.counts) <= 5 for option in options)
    assert held in {option.counts for option in options}


options_drawn = st.lists(
    st.builds(
        lambda counts, time_s, usd: RunOption(counts, float(time_s), float(usd)),
        st.tuples(st.integers(1, 5)),
        st.integers(1, 30),
        st.integers(1, 30),
    ),
    min_size=1,
    max_size=25,
)


@given(options_drawn)
def test_a_front_is_what_no_other_option_beats(options: list[RunOption]) -> None:
    """Against every pair: no option dominates one of the front, and each other one is dominated or equalled."""

    def as_good(a: RunOption, b: RunOption) -> bool:
        return a.time_s <= b.time_s and a.usd <= b.usd

    front = pareto_front(options)
    points = {(option.time_s, option.usd) for option in front}
    assert len(points) == len(front)
    for kept in front:
        assert not any(as_good(o, kept) and (o.time_s, o.usd) != (kept.time_s, kept.usd) for o in options)
    assert all(any(as_good(kept, option) for kept in front) for option in options)


@given(options_drawn, st.integers(0, 35), st.integers(0, 35))
def test_the_choice_is_what_brute_force_finds(options: list[RunOption], deadline_s: int, budget_usd: int) -> None:
    """Least money in time; least time for the money; and both limits at once."""
    cheap = choose_option(options, RunGoal(deadline_s=deadline_s))
    timely = [option.usd for option in options if option.time_s <= deadline_s]
    assert cheap is not None
    assert cheap.kept == bool(timely)
    assert cheap.option.usd == min(timely) if timely else cheap.option.time_s == min(o.time_s for o in options)
    fast = choose_option(options, RunGoal(budget_usd=budget_usd))
    affordable = [option.time_s for option in options if option.usd <= budget_usd]
    assert fast is not None
    assert fast.kept == bool(affordable)
    assert fast.option.time_s == min(affordable) if affordable else fast.option.usd == min(o.usd for o in options)
    both = choose_option(options, RunGoal(deadline_s=deadline_s, budget_usd=budget_usd))
    assert both is not None
    assert both.kept == any(o.time_s <= deadline_s and o.usd <= budget_usd for o in options)


@given(options_drawn)
def test_the_knee_lies_furthest_below_the_line_between_the_ends(options: list[RunOption]) -> None:
    """Scaled to the ends of the front, no option has a smaller sum of time and money."""
    front = pareto_front(options)
    found = knee(front)
    if len(front) <= 2:
        assert found == front[-1]
        return
    first, last = front[0], front[-1]

    def scaled(option: RunOption) -> float:
        return (option.time_s - first.time_s) / (last.time_s - first.time_s) + (option.usd - last.usd) / (
            first.usd - last.usd
        )

    assert scaled(found) == pytest.approx(min(scaled(option) for option in front))


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2)), min_size=1, max_size=3))
def test_windows_are_among_all_and_hold_every_homogeneous_set(drawn: list[tuple[int, int, int]]) -> None:
    """A window never invents an option and never leaves out machines of one type alone."""
    offers = [MachineOffer(str(index), float(price), most) for index, (_, price, most) in enumerate(drawn)]
    speeds = [float(speed) for speed, _, _ in drawn]

    def time_s(counts: tuple[int, ...]) -> float:
        return 3600.0 / sum(count * speed for count, speed in zip(counts, speeds, strict=True))

    every = list(all_options(offers, time_s))
    found = list(speed_windows(offers, time_s, speeds, sum(offer.most for offer in offers)))
    assert set(found) <= set(every)
    assert len(found) == len(set(found))
    assert {o for o in every if sum(count > 0 for count in o.counts) == 1} <= set(found)


def test_money_is_hourly_prices_over_the_whole_time() -> None:
    """Half an hour of two machines at 3 USD/h is 3 USD."""
    assert option_of([MachineOffer("a", 3.0, 2)], (2,), 1800.0).usd == 3.0
