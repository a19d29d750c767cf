"""The choice of machines for a training job: all options, their Pareto front, and the option to take with the reason.

Three ways to search are offered: exhaustive over all counts (Srifty), a window over machines sorted by speed (spotDNN),
and the knee of the front of time against money (Scavenger). This module does not forecast: the caller passes the
forecast as a function of the counts.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

from walras.contract import SECONDS_PER_HOUR
from walras.units import format_length, format_money

#: Seconds of a job by the number of machines of each offer; infinite where the job cannot run on them.
TimeForecast = Callable[[tuple[int, ...]], float]


@dataclass(frozen=True, slots=True)
class MachineOffer:
    """A machine that can be rented: its price, and the largest number of them."""

    name: str
    usd_per_h: float
    most: int


@dataclass(frozen=True, slots=True)
class RunOption:
    """One way to run the whole job, with its time and cost."""

    #: Machines of each offer (or other counts of the caller); the smaller counts win ties in time and money.
    counts: tuple[int, ...]
    time_s: float
    usd: float


@dataclass(frozen=True, slots=True)
class RunGoal:
    """A latest end and a largest cost, each None without such a limit. Without limits the knee is chosen."""

    deadline_s: float | None = None
    budget_usd: float | None = None

    def met(self, option: RunOption) -> bool:
        """Returns whether the option keeps both limits."""
        on_time = self.deadline_s is None or option.time_s <= self.deadline_s
        return on_time and (self.budget_usd is None or option.usd <= self.budget_usd)


@dataclass(frozen=True, slots=True)
class OptionChoice:
    """The option to take, whether it meets the goal, the reason, and the other options of the Pareto front."""

    option: RunOption
    kept: bool
    why: str
    front: tuple[RunOption, ...]


def option_of(offers: Sequence[MachineOffer], counts: tuple[int, ...], time_s: float) -> RunOption:
    """Returns the option for these counts: every machine is paid for as long as the job runs."""
    usd_per_h = sum(count * offer.usd_per_h for count, offer in zip(counts, offers, strict=True))
    return RunOption(counts, time_s, time_s / SECONDS_PER_HOUR * usd_per_h)


def speed_windows(
    offers: Sequence[MachineOffer],
    forecast: TimeForecast,
    speeds: Sequence[float],
    most: int,
) -> Iterator[RunOption]:
    """Generates runs of at most `most` neighbours in the list of machines sorted by speed, slowest first, each set of
    counts once.

    Types that are not neighbours in speed are never combined, which keeps the search small.
    """
    order = sorted(range(len(offers)), key=lambda index: (speeds[index], index))
    listed = [index for index in order for _ in range(offers[index].most)]
    seen: dict[tuple[int, ...], None] = {}
    for size in range(most + 1):
        for first in range(len(listed) - size + 1):
            counts = [0] * len(offers)
            for index in listed[first : first + size]:
                counts[index] += 1
            seen[tuple(counts)] = None
    yield from _options(offers, seen, forecast)


def _options(
    offers: Sequence[MachineOffer], all_counts: Iterable[tuple[int, ...]], forecast: TimeForecast
) -> Iterator[RunOption]:
    for counts in all_counts:
        if not any(counts):
            continue
        time_s = forecast(counts)
        if isfinite(time_s):
            yield option_of(offers, counts, time_s)


def pareto_front(options: Iterable[RunOption]) -> tuple[RunOption, ...]:
    """Returns the options that no other beats in time or money without losing in the other, fastest first."""
    front: list[RunOption] = []
    for option in sorted(options, key=lambda option: (option.time_s, option.usd, option.counts)):
        if not front or option.usd < front[-1].usd:
            front.append(option)
    return tuple(front)


def knee(front: Sequence[RunOption]) -> RunOption:
    """Returns the knee of the front: the option furthest below the line between its ends, with both axes scaled to
    them.

    A front of one or two options has no knee: the cheaper one is returned.
    """
    assert front, "a front holds at least one option"
    first, last = front[0], front[-1]
    time_s, usd = last.time_s - first.time_s, first.usd - last.usd
    if len(front) <= 2:
        return last

    def below(option: RunOption) -> float:
        return 1.0 - (option.time_s - first.time_s) / time_s - (option.usd - last.usd) / usd

    return max(front, key=below)


def choose_option(options: Iterable[RunOption], goal: RunGoal) -> OptionChoice | None:
    """Returns the cheapest option that is on time, or the fastest within the budget, or the knee; None without options.

    Where no option meets the goal, the one that misses it least is returned, marked as not meeting it.
    """
    front = pareto_front(options)
    if not front:
        return None
    within = [option for option in front if goal.met(option)]
    if goal.deadline_s is None and goal.budget_usd is None:
        return OptionChoice(knee(front), True, "the knee: less time costs more than it saves from here on", front)
    if not within:
        return _missed(front, goal)
    if goal.deadline_s is not None:
        return OptionChoice(within[-1], True, f"the cheapest within {format_length(goal.deadline_s)}", front)
    assert goal.budget_usd is not None, "without any limit the knee was taken"
    return OptionChoice(within[0], True, f"the fastest within {format_money(goal.budget_usd)}", front)


def _missed(front: tuple[RunOption, ...], goal: RunGoal) -> OptionChoice:
    if goal.budget_usd is None:
        assert goal.deadline_s is not None, "only a limit can be missed"
        return OptionChoice(
            front[0], False, f"nothing is done within {format_length(goal.deadline_s)}: the fastest", front
        )
    affordable = [option for option in front if option.usd <= goal.budget_usd]
    if goal.deadline_s is None or not affordable:
        return OptionChoice(
            front[-1], False, f"nothing costs {format_money(goal.budget_usd)} or less: the cheapest", front
        )
    late = f"nothing affordable is done within {format_length(goal.deadline_s)}: the fastest of those"
    return OptionChoice(affordable[0], False, late, front)
