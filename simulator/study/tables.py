"""Figures as tables for people. Names in them come from traces: no cell is ever read as markup."""

from math import isfinite

from rich.console import Console
from rich.table import Table
from rich.text import Text

from simulator.report import Summary
from simulator.study.bounds import Bounds

#: The largest; all of them are in JSON.
_PROJECTS_SHOWN = 30


def print_tables(summary: Summary, console: Console, world: str = "") -> None:
    """The summary of one run. `world`: another simulator's, in which it was; "": Walras's own."""
    where = f" in the world of {world}" if world else ""
    figures = Table(title=f"{summary.jobs} jobs{where}, run {summary.outcome}", show_header=False)
    for name, text in lines(summary):
        figures.add_row(name, Text(text))
    console.print(figures)
    pools = Table("pool", "accelerator", "market", "there h", "held h", "utilisation", "USD", title="pools")
    for pool in summary.pools:
        numbers = (f"{pool.there_h:.1f}", f"{pool.held_h:.1f}", share(pool.utilisation), f"{pool.usd:.2f}")
        pools.add_row(Text(pool.pool_id), pool.accelerator, pool.market, *numbers)
    console.print(pools)
    if len(summary.projects) > 1:
        console.print(_projects(summary))
    for violation in summary.violations:
        console.print(f"conservation violated: {violation}", style="red", markup=False)


def _projects(summary: Summary) -> Table:
    hidden = len(summary.projects) - _PROJECTS_SHOWN
    title = "projects" if hidden <= 0 else f"the {_PROJECTS_SHOWN} largest projects of {len(summary.projects)}"
    table = Table("project", "jobs", "succeeded", "JCT avg", "accelerator h", "USD", "rho", title=title)
    largest = sorted(summary.projects, key=lambda each: -each.accelerator_h)
    shown = {each.project for each in largest[:_PROJECTS_SHOWN]}
    for each in summary.projects:
        if each.project not in shown:
            continue
        numbers = (f"{each.accelerator_h:.1f}", f"{each.usd:.2f}", ratio(each.rho_mean))
        table.add_row(Text(each.project), str(each.jobs), str(each.succeeded), seconds(each.avg_jct_s), *numbers)
    return table


def lines(summary: Summary) -> list[tuple[str, str]]:
    """What is told of a run in a few lines: (what, how much)."""
    jcts = (summary.avg_jct_s, summary.median_jct_s, summary.p95_jct_s, summary.p99_jct_s)
    fair = summary.fairness
    lines = [
        ("states", ", ".join(f"{count} {state}" for state, count in summary.by_state.items())),
        ("JCT avg / median / p95 / p99", " / ".join(seconds(value) for value in jcts)),
        ("JCT geometric mean", seconds(summary.geometric_jct_s)),
        ("slowdown mean / max", f"{ratio(summary.slowdown_mean)} / {ratio(summary.slowdown_max)}"),
        ("makespan", seconds(summary.makespan_s)),
        ("queueing avg / p99", f"{seconds(summary.avg_queueing_s)} / {seconds(summary.p99_queueing_s)}"),
        ("finish-time fairness mean / max", f"{ratio(fair.rho_mean)} / {ratio(fair.rho_max)} (equal share)"),
    ]
    if isfinite(fair.isolated_mean):
        lines.append(("", f"{ratio(fair.isolated_mean)} / {ratio(fair.isolated_max)} (policy isolated)"))
    lines += [
        ("unfair jobs / Jain's index", f"{share(fair.unfair)} / {ratio(fair.jain)}"),
        ("utilisation", share(summary.utilisation)),
        ("accelerator-hours", ", ".join(f"{name} {hours:.1f}" for name, hours in summary.accelerator_h.items())),
        ("money", f"{summary.usd:.2f} USD, of which {summary.usd_of_jobs:.2f} USD under jobs"),
        ("preemptions / losses", f"{summary.preemptions} / {summary.losses} in {summary.attempts} attempts"),
        ("restart overhead", share(summary.overhead)),
        ("steps lost", f"{summary.lost_steps:.6g} of {summary.worked_steps:.6g}"),
    ]
    if summary.measured_jobs not in (0, summary.jobs):
        told = f"{summary.measured_jobs:,} of {summary.jobs:,} jobs, in the window"
        lines.insert(1, ("JCT, slowdown, queueing, fairness of", told))
    if summary.skipped_rows:
        lines.insert(0, ("rows skipped", f"{summary.skipped_rows:,} rows of the workload could not be read"))
    if summary.deadlines:
        lines.append(("deadlines missed", f"{summary.deadline_misses} of {summary.deadlines}"))
    return [
        *lines,
        *_bounds(summary.bounds),
        ("events / solves", f"{summary.events} / {summary.solves}"),
        ("took", f"{summary.wall_s:.2f} s, of which the policy {summary.solve_total_s:.2f} s"),
    ]


def _bounds(bounds: Bounds) -> list[tuple[str, str]]:
    rows = (
        ("JCT no less than, by prices", bounds.jct_s, bounds.jct_gap),
        ("JCT no less than, without contention", bounds.no_contention_s, bounds.no_contention_gap),
        ("makespan no less than, fluid", bounds.makespan_s, bounds.makespan_gap),
    )
    return [
        (name, f"{seconds(value)}, the run is {max(gap, 0.0):.1%} above")
        for name, value, gap in rows
        if isfinite(value)
    ]


def seconds(value: float) -> str:
    """`-` for what does not exist."""
    return f"{value:,.1f} s" if isfinite(value) else "-"


def share(value: float) -> str:
    """As a percentage; `-` for what does not exist."""
    return f"{value:.1%}" if isfinite(value) else "-"


def ratio(value: float) -> str:
    """With three decimals; `-` for what does not exist."""
    return f"{value:,.3f}" if isfinite(value) else "-"
