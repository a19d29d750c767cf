"""Recorded spot markets: files that say when machines were available, and the public benchmark `cant_be_late`.

The files are CSV with a header, plain or gzip, read with the same bounds and errors as a trace of jobs.

The benchmark, of Frontier-CS, has windows of four scarce AWS zones and is judged by its own rules. A job has 48 h of
work and 52 h (tight) or 70 h (loose), and a restart of .05 or .20 h at every start of a machine. Ticks last ten
minutes; a tick in which a machine is held is paid whole. A score is what was saved of all on demand, in parts of what
spot alone would save: 100 (on demand - mean cost) / (on demand - spot).

`ScheduledSlack` is the scheduler's own plan. It was fitted on AWS zones of December 2022 and February 2023, while the
windows are of October and November 2022; it sees the present tick alone, and learns within the window.
"""

import csv
import gzip
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil, inf, isclose
from pathlib import Path
from statistics import fmean

import numpy as np

from optimizer.planning.deadline_job import DeadlineJob, DeadlineRun, DeadlineState, HeldMachine, SpotPolicy
from optimizer.planning.slack_policy import (
    MarketBelief,
    SlackPlans,
    SlackSituation,
    deadline_values,
    held_modes,
    market_belief,
    modes_after_revocation,
    slot_choices,
)
from simulator.workloads.trace_source import ReadOptions, TraceRow, TraceSource, header_row_format
from walras.errors import ConfigError
from walras.units import MAX_LENGTH_S

#: Largest number of slots of one file, over all its traces.
_MOST_SLOTS = 1_000_000


def read_spot_availability(
    path: str | Path, slot_s: float, chosen: Callable[[str], bool] = lambda _: True
) -> dict[str, tuple[bool, ...]]:
    """Reads whether spot machines were available at the start of each slot, by trace (a zone), sorted by name.

    Columns: `end_s` (until when), `available_nodes`; if there are several traces `trace_id`, each one's rows in order;
    `start_s`, if it is there, has to be the end of the row before. `chosen`: the traces that are wanted, by name.

    Raises:
        ConfigError: naming the file, the line and the column of what is wrong.
    """
    source, found, ends_s, slots = TraceSource(path, ReadOptions()), dict[str, list[bool]](), dict[str, float](), 0
    alone = Path(path).name.split(".")[0]
    lines = source.lines()
    table = header_row_format(source, lines, ("end_s", "available_nodes"))
    for row in source.rows(lines, table):
        name = row.name("trace_id", alone)
        if not chosen(name):
            continue
        since_s, trace = ends_s.get(name, 0.0), found.setdefault(name, [])
        ends_s[name] = _end_s(row, since_s)
        # A slot has the availability of its first instant.
        more = ceil(ends_s[name] / slot_s - 1e-9) - len(trace)
        slots += more
        if slots > _MOST_SLOTS:
            raise row.error("end_s", f"makes more than {_MOST_SLOTS:,} slots", "give a shorter trace, or longer slots")
        trace.extend([row.whole("available_nodes", least=0) > 0] * more)
    if not found:
        raise ConfigError(f"{path}: no row of the traces asked for", fix="check the names, and that there are rows")
    return {name: tuple(found[name]) for name in sorted(found)}


def _end_s(row: TraceRow, since_s: float) -> float:
    if row.text("start_s") and not isclose(row.number("start_s"), since_s, rel_tol=1e-9, abs_tol=1e-6):
        raise row.error("start_s", f"is {row.text('start_s')}, the row before ends at {since_s:g}", "leave no gap")
    return row.number("end_s", above=since_s, most=MAX_LENGTH_S)


_TICK_S, _UNIT_S = 600, 60
TICKS_PER_H = 6
ON_DEMAND_USD, SPOT_USD = 3.06, 0.9731
_WORK_H = 48
#: Deadline and restart, hours, by the variant's name.
VARIANTS = {
    f"high_availability_{deadline}_deadline_{restart}_overhead": (hours, restart_h)
    for deadline, hours in (("tight", 52), ("loose", 70))
    for restart, restart_h in (("small", 0.05), ("large", 0.20))
}


@dataclass(frozen=True, slots=True)
class Window:
    """The availability of spot machines, tick by tick."""

    zone: str
    available: tuple[bool, ...]


def windows(data: Path) -> list[Window]:
    """Returns the windows, which are the same for all variants, in the order of the file."""
    with gzip.open(data / "spot" / "cant_be_late_windows.csv.gz", "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = []
    for (zone, _), spells in groupby(rows, key=lambda row: (row["zone"], row["trace"])):
        ticks: list[bool] = []
        for spell in spells:
            ticks += [spell["available"] == "1"] * ((int(spell["end_s"]) - int(spell["start_s"])) // _TICK_S)
        found.append(Window(zone, tuple(ticks)))
    return found


def recorded(data: Path) -> dict[tuple[str, str], float]:
    """Returns the recorded scores by variant and policy."""
    with (data / "spot" / "cant_be_late_recorded.csv").open(encoding="utf-8") as file:
        return {(row["variant"], row["policy"]): float(row["score"]) for row in csv.DictReader(file)}


def window_job(variant: str) -> DeadlineJob:
    """Returns the job of a variant, in minutes."""
    deadline_h, restart_h = VARIANTS[variant]
    return DeadlineJob(
        slot=_TICK_S // _UNIT_S,
        work=_WORK_H * 60,
        deadline=deadline_h * 60,
        changeover=round(restart_h * 60),
        on_demand_price=ON_DEMAND_USD / SPOT_USD,
    )


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of a policy over some windows: bills in USD, and the number of windows that ended late."""

    costs: tuple[float, ...]
    late: int

    @property
    def score(self) -> float:
        """The score: 0 for all on demand, 100 for all on spot."""
        return score(self.costs)


def score(costs: Iterable[float]) -> float:
    """Returns the score of bills in USD."""
    sure, spot = (_WORK_H * usd for usd in (ON_DEMAND_USD, SPOT_USD))
    return 100 * (sure - fmean(costs)) / (sure - spot)


def judge(job: DeadlineJob, judged: Sequence[Window], make: Callable[[], SpotPolicy]) -> Judged:
    """Plays every window with a policy of its own."""
    runs = [_played(job, make(), window.available) for window in judged]
    return Judged(tuple(cost for cost, _ in runs), sum(is_late for _, is_late in runs))


def _played(job: DeadlineJob, policy: SpotPolicy, available: Sequence[bool]) -> tuple[float, bool]:
    """Returns the bill, USD, and whether the job was late."""
    going, held = DeadlineRun(job, job.work), [0, 0, 0]
    for index in range(job.slots):
        if going.left == 0:
            break
        if going.held is HeldMachine.SPOT and not available[index]:
            going.lose()
        chosen = policy.hold(job, going.state_at(index, available[index]))
        assert chosen is not HeldMachine.SPOT or available[index], "spot is held only where there is any"
        going.spend(chosen)
        held[chosen] += 1
    usd = held[HeldMachine.SPOT] * SPOT_USD + held[HeldMachine.ON_DEMAND] * ON_DEMAND_USD
    return usd / TICKS_PER_H, going.left > 0


def cheapest_bills(job: DeadlineJob, judged: Sequence[Window]) -> tuple[float, ...]:
    """Returns the least in USD that each window could cost a policy that knows it: exact, whole ticks paid."""
    modes, lost = held_modes(job), modes_after_revocation(job)
    choices = [(place, move) for place, mode in enumerate(modes) for move in slot_choices(job, mode)]
    there = np.array([window.available for window in judged])
    value = deadline_values(job, len(judged))
    slack = np.arange(len(value))
    for ticks_left in range(1, job.slots + 1):
        spot, work_left = there[:, job.slots - ticks_left], ticks_left * job.slot - slack
        ahead, value = value, np.full_like(value, inf)
        for place, move in choices:
            to_come = np.full_like(value[:, place], inf)
            to_come[move.slack :] = ahead[: len(slack) - move.slack, move.mode]
            if move.held is not HeldMachine.NOTHING:
                to_come[work_left <= move.work] = 0.0
                to_come += (SPOT_USD if move.held is HeldMachine.SPOT else ON_DEMAND_USD) / TICKS_PER_H
            if move.held is HeldMachine.SPOT:
                to_come[:, ~spot] = inf
            value[:, place] = np.minimum(value[:, place], to_come)
        value[work_left <= 0] = 0.0
        value = np.where(spot, value, value[:, lost])
    return tuple(value[job.deadline - job.work, 0].tolist())


class ScheduledSlack:
    """A policy that holds what the scheduler would hold by its slack, tick by tick. One object serves one window."""

    def __init__(self, plans: SlackPlans) -> None:
        self._plans = plans
        self._belief: MarketBelief = market_belief(1)

    def hold(self, job: DeadlineJob, now: DeadlineState) -> HeldMachine:
        """Returns the machine to hold, as `SpotPolicy` says."""
        self._belief.see(now.spot)
        situation = SlackSituation(
            now.work_left * _UNIT_S,
            now.time_left * _UNIT_S,
            job.changeover * _UNIT_S,
            now.pending * _UNIT_S,
            now.held,
            job.on_demand_price,
            zones=1,
        )
        worth = self._plans.worth(situation, self._belief, spot=now.spot)
        return min(worth, key=lambda held: worth[held], default=HeldMachine.ON_DEMAND)
