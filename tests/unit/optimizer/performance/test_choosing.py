"""What to train on: fronts, windows and knees against brute force."""

from collections.abc import Iterator, Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.planning.machine_choice import (
    MachineOffer,
    RunGoal,
    RunOption,
    TimeForecast,
    choose_option,
    knee,
    option_of,
    pareto_front,
    speed_windows,
)


def all_options(offers: Sequence[MachineOffer], forecast: TimeForecast) -> Iterator[RunOption]:
    """Every choice of counts."""
    for counts in product(*(range(offer.most + 1) for offer in offers)):
        if any(counts):
            yield option_of(offers, counts, forecast(counts))


options_drawn = st.lists(
    st.builds(
        lambda counts, time_s, usd: RunOption(counts, float(time_s), float(usd)), st.tuples(st.integers(1, 5)),
        st.integers(1, 30), st.integers(1, 30),
    ),
    min_size=1,
    max_size=25,
)  # fmt: skip


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
    assert cheap.kept == bool(timely)
    assert cheap.option.usd == min(timely) if timely else cheap.option.time_s == min(o.time_s for o in options)
    fast = choose_option(options, RunGoal(budget_usd=budget_usd))
    affordable = [option.time_s for option in options if option.usd <= budget_usd]
    assert fast.kept == bool(affordable)
    assert fast.option.time_s == min(affordable) if affordable else fast.option.usd == min(o.usd for o in options)
    both = choose_option(options, RunGoal(deadline_s=deadline_s, budget_usd=budget_usd))
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
