"""What `walras top` shows, as text: the header, the fleet, the queue, and one job's attempts.

Everything is made from the bodies of the REST API. Names and details come from jobs: each is made safe here, and none
is ever read as markup, because only `Text` leaves this module.
"""

import colorsys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from rich.text import Text

from walras.cli.arguments import instant_of
from walras.cli.forecast_text import clock_text, expected_text
from walras.cli.job_commands import headline
from walras.cli.terminal_output import STATE_STYLES, cut_in_the_middle, safe_text
from walras.units import format_count, format_length, format_money

if TYPE_CHECKING:
    from walras.resources.jobs import AttemptView, JobView
    from walras.resources.overview import MachineCells, Overview
    from walras.resources.prices import PriceView

#: An accelerator of a machine in this state; one that is idle on a machine that is up is `_IDLE`.
_CELLS = {"up": "■", "leaving": "▨", "draining": "▨", "unreachable": "▢", "quarantined": "▢"}
_IDLE, _NO_JOBS = "□", "▢"
#: The largest fleet whose machines are shown with names.
_NAMED_MACHINES_MOST = 40
_ALERTS_SHOWN = 3
_BARS = "▁▂▃▄▅▆▇█"
#: The number of solves whose prices make a pool's line.
_LINE_POINTS = 24


@dataclass(frozen=True, slots=True)
class JobLine:
    """A job of the list: its number, and what is shown of it."""

    job_id: int
    text: Text


def colour_of_job(job_id: int) -> str:
    """Returns the colour of a job's cells, the same as on the web page: neighbours in number are far apart."""
    red, green, blue = colorsys.hls_to_rgb((job_id * 137.508 % 360) / 360, 0.6, 0.65)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def header_text(overview: "Overview") -> Text:
    """Returns how many run and wait, what is free of each type, money per hour, and the alerts."""
    shown = Text(safe_text(headline(overview)), style="bold")
    if overview.money is not None:
        shown.append(f"; {format_money(overview.money.usd_per_h)}/h now")
        shown.append(f", {format_money(overview.money.spent_usd)} this month")
        saved = overview.money.on_demand_usd - overview.money.spent_usd
        if saved >= 0.01:
            shown.append(f" ({format_money(saved)} less than all on demand)")
    for alert in overview.alerts[:_ALERTS_SHOWN]:
        shown.append(f"\n! {safe_text(alert.text)}", style="bold red" if alert.level == "error" else "yellow")
    if (more := len(overview.alerts) - _ALERTS_SHOWN) > 0:
        shown.append(f"\n! and {more} more alerts", style="yellow")
    return shown


def fleet_text(overview: "Overview") -> Text:
    """Returns each pool with its price, and below it a cell for each accelerator, in the colour of its job."""
    if not overview.pools:
        return Text("No pool is declared and no machine has joined: `walras agent` starts one.")
    by_pool: dict[str, list[MachineCells]] = {}
    for machine in overview.machines:
        by_pool.setdefault(machine.pool, []).append(machine)
    is_named = len(overview.machines) <= _NAMED_MACHINES_MOST
    shown = Text()
    for pool in overview.pools:
        shown.append_text(_pool_text(pool, _price_line(overview, pool.pool)))
        for machine in by_pool.get(pool.pool, []):
            shown.append("  ")
            shown.append_text(_machine_text(machine, is_named=is_named))
        shown.append("\n")
    shown.rstrip()
    return shown


def _pool_text(pool: "PriceView", line: str) -> Text:
    shown = Text(safe_text(pool.pool), style="bold")
    shown.append(f"  {pool.capacity - pool.free:g} of {pool.capacity:g} held", style="not bold")
    shown.append(f", price {pool.price:.3g} {safe_text(pool.unit)}".rstrip(), style="not bold")
    if pool.market_usd_per_h:
        shown.append(f", machine {format_money(pool.market_usd_per_h)}/h", style="not bold")
    if pool.quota_machines:
        shown.append(f", {pool.rented_machines} of {pool.quota_machines} rented", style="not bold")
    shown.append(f" {line}\n" if line else "\n", style="not bold")
    return shown


def _price_line(overview: "Overview", pool: str) -> str:
    """Returns the prices of the last solves as bars; empty before the second."""
    prices = [point.prices[pool] for point in overview.history if pool in point.prices][-_LINE_POINTS:]
    if len(prices) < 2:
        return ""
    low, high = min(prices), max(prices)
    step = (high - low) / (len(_BARS) - 1) or 1.0
    return "".join(_BARS[round((price - low) / step)] for price in prices)


def _machine_text(machine: "MachineCells", *, is_named: bool) -> Text:
    # A line break inside a machine would make two machines of it.
    shown = Text(f"{safe_text(machine.machine or machine.node_id)}\u00a0" if is_named else "")
    idle = _IDLE if machine.state == "up" else _NO_JOBS
    for job_id, cells in groupby(machine.cells):
        many = sum(1 for _ in cells)
        if job_id:
            shown.append(_CELLS.get(machine.state, _NO_JOBS) * many, style=colour_of_job(job_id))
        else:
            shown.append(idle * many, style="bright_black")
    if machine.state != "up" and is_named:
        shown.append(f"\u00a0{safe_text(machine.state)}", style=STATE_STYLES.get(machine.state, "red"))
    return shown


# -------------------------------------------------------------------------------------------------------- jobs


def job_lines(overview: "Overview", wanted: str, width: int) -> list[JobLine]:
    """Returns those who are next, in order, and behind them those that hold accelerators, where `wanted` occurs in the
    number, name, user, project or reason. Names are cut in their middle at this width; numbers never are.
    """
    now = time.time()
    found = [_waiting_line(place, job, now, width) for place, job in enumerate(overview.queue, start=1)]
    found += _running_lines(overview, width)
    return [line for line in found if wanted.lower() in line.text.plain.lower()]


def _named(job_id: int, name: str, width: int) -> Text:
    shown = Text(f"{job_id} ", style=f"bold {colour_of_job(job_id)}")
    shown.append_text(cut_in_the_middle(Text(safe_text(name), style="bold default"), max(width // 2, 12)))
    return shown


def _waiting_line(place: int, job: "JobView", now: float, width: int) -> JobLine:
    shown = Text(f"{place}. ")
    shown.append_text(_named(job.id, job.name, width))
    waits = format_length(max(now - instant_of(job.submitted_at), 0.0))
    facts = f"{safe_text(job.user)}/{safe_text(job.project)}, {format_count(job.accelerators)} acc, waits {waits}"
    shown.append(f"  {facts}", style="bright_black")
    shown.append(f"\n   {safe_text(reason_words(job))}")
    if expected := expected_text(job.forecast, now):
        shown.append(f"; {expected}", style="cyan")
    return JobLine(job.id, shown)


def reason_words(job: "JobView") -> str:
    """Returns the one reason why a job waits, in words."""
    if job.reason is None:
        return job.detail or "waits"
    return job.reason.words


def _running_lines(overview: "Overview", width: int) -> Iterator[JobLine]:
    """Yields the jobs that hold accelerators, with the machines that they are on."""
    held: dict[int, Counter[str]] = {}
    places: dict[int, list[str]] = {}
    for machine in overview.machines:
        for job_id, count in Counter(filter(None, machine.cells)).items():
            held.setdefault(job_id, Counter())[machine.accelerator] += count
            places.setdefault(job_id, []).append(machine.node_id)
    for job_id in sorted(held):
        if (name := overview.names.get(str(job_id))) is None:
            continue  # it belongs to a project that this user does not see
        shown = Text("▶  ", style="green")
        shown.append_text(_named(job_id, name, width))
        types = " + ".join(f"{count} x {safe_text(accelerator)}" for accelerator, count in held[job_id].items())
        shown.append(f"\n   on {types}: {safe_text(_some(places[job_id]))}", style="default")
        yield JobLine(job_id, shown)


def _some(names: Sequence[str], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def attempts_text(attempts: "Sequence[AttemptView]") -> Text:
    """Returns the timeline of a job: each attempt with its times (local), its machines and what came of it."""
    if not attempts:
        return Text("It has not run yet.")
    now, shown = time.time(), Text()
    for attempt in attempts:
        leased = instant_of(attempt.leased_at)
        end = now if attempt.ended_at is None else instant_of(attempt.ended_at)
        until = "now" if attempt.ended_at is None else clock_text(end, now)
        took = format_length(max(end - leased, 0.0))
        shown.append(f"{attempt.attempt}. {clock_text(leased, now)}-{until} ({took})  ")
        shown.append(str(attempt.state), style=STATE_STYLES.get(str(attempt.state), ""))
        shown.append(f": {attempt.reason.words}" if attempt.reason else "")
        shown.append(f"  {attempt.accelerators} x {safe_text(attempt.accelerator)}")
        shown.append(f" on {safe_text(_some(attempt.placement))}")
        if attempt.exit_code is not None:
            shown.append(f", exit code {attempt.exit_code}")
        if attempt.checkpoint_step is not None:
            shown.append(f", checkpoint at step {format_count(attempt.checkpoint_step)}")
        shown.append(f", {format_money(attempt.usd)}\n")
    shown.rstrip()
    return shown
