"""The demo's report as rich tables. Shows; decides nothing."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from walras.demo.checks import Check
from walras.demo.fairness import Held, Wish, entitlements, jain, received
from walras.demo.recording import Recording, ran
from walras.demo.timeline import attempt_span, price_unit

#: Samples of prices shown; the picture has all of them.
PRICE_ROWS = 8


def find_losses(recording: Recording, logs: Mapping[int, str]) -> dict[int, tuple[float, float]]:
    """First and last loss by job: as reported, or read from the log of a script that reports nothing."""
    losses: dict[int, tuple[float, float]] = {}
    for job_id, job in recording.jobs.items():
        if "loss" in job.first_values and "loss" in job.last_values:
            losses[job_id] = (job.first_values["loss"], job.last_values["loss"])
        elif printed := re.findall(r"\bloss:? ([0-9]+(?:\.[0-9]+)?)", logs.get(job_id, "")):
            losses[job_id] = (float(printed[0]), float(printed[-1]))
    return losses


def jobs_table(recording: Recording, losses: Mapping[int, tuple[float, float]]) -> Table:
    table = Table(title="jobs (all accelerators are emulated)", title_justify="left")
    for name in ("job", "name", "user", "kind", "state", "ran on"):
        table.add_column(name, no_wrap=name != "ran on")
    for name in ("att.", "steps", "loss first", "last", "JCT s", "accelerator-s", "USD"):
        table.add_column(name, justify="right")
    for job_id in sorted(recording.jobs):
        summary = recording.summary(job_id)
        job = summary.job
        first, last = losses.get(job_id, (None, None))
        seconds = " ".join(f"{name} {amount:.0f}" for name, amount in sorted(job.accelerator_s.items()))
        table.add_row(
            str(job_id),
            escape(job.name),
            escape(job.user),
            escape(job.kind),
            job.state,
            " > ".join(summary.types),
            str(len(ran(job))),
            f"{job.steps:.0f}" if job.steps else "-",
            "-" if first is None else f"{first:.3f}",
            "-" if last is None else f"{last:.3f}",
            f"{summary.jct_s:.1f}",
            seconds,
            f"{job.usd:.4f}",
        )
    return table


def fairness_table(recording: Recording) -> Table:
    """Accelerator-seconds each user received and was entitled to by an equal split among those who waited or ran."""
    wishes, held = [], []
    for job in recording.jobs.values():
        end = recording.seconds(job.ended_at) if job.ended_at else recording.seconds(job.submitted_at)
        wishes.append(Wish(job.user, job.accelerators, recording.seconds(job.submitted_at), end))
        for attempt in job.attempt_list:
            held.append(Held(job.user, attempt.accelerators, *attempt_span(recording, attempt)))
    machines = [Held("", span.node.accelerators, span.from_s, span.to_s) for span in recording.nodes.values()]
    entitled = entitlements(wishes, machines)
    got = received(held)
    ratios = {user: got.get(user, 0.0) / amount for user, amount in entitled.items() if amount > 0}
    table = Table(title=f"fairness: Jain's index {jain(list(ratios.values())):.3f} of 1", title_justify="left")
    table.add_column("user")
    for name in ("received accelerator-s", "entitled", "received / entitled"):
        table.add_column(name, justify="right")
    for user, ratio in sorted(ratios.items()):
        table.add_row(escape(user), f"{got.get(user, 0.0):.0f}", f"{entitled[user]:.0f}", f"{ratio:.2f}")
    return table


def prices_table(recording: Recording) -> Table:
    """Prices over time: at most `PRICE_ROWS` samples, evenly chosen."""
    samples = recording.prices
    stride = max(1, -(-len(samples) // PRICE_ROWS))
    pools = sorted({price.pool for sample in samples for price in sample.prices})
    table = Table(title=f"prices of pools over time ({price_unit(recording)})", title_justify="left")
    table.add_column("at s", justify="right")
    for pool in pools:
        table.add_column(escape(pool), justify="right")
    for sample in samples[::stride]:
        price_of = {price.pool: price.price for price in sample.prices}
        table.add_row(f"{sample.at_s:.0f}", *(f"{price_of[pool]:.3g}" if pool in price_of else "-" for pool in pools))
    return table


def paces_table(recording: Recording, asked: Mapping[str, Mapping[str, float]]) -> Table:
    types = sorted({accelerator for speeds in asked.values() for accelerator in speeds})
    pairs = [(kind, name) for kind, speeds in asked.items() for name in speeds]
    found = sum(recording.pace(*pair) is not None for pair in pairs)
    leases = sum(attempt.profiling for job in recording.jobs.values() for attempt in ran(job))
    title = f"pace reached / asked, steps per second: {found} of {len(pairs)} measured, {leases} starts to profile"
    table = Table(title=title, title_justify="left")
    table.add_column("kind")
    for name in types:
        table.add_column(name, justify="right")
    for kind, speeds in asked.items():
        cells = []
        for name in types:
            reached = recording.pace(kind, name)
            cells.append(f"{'-' if reached is None else format(reached, '.1f')} / {speeds.get(name, 0):g}")
        table.add_row(escape(kind), *cells)
    return table


def checks_table(checks: Sequence[Check]) -> Table:
    table = Table(title="promises", title_justify="left", show_header=False)
    for check in checks:
        mark = "[green]ok[/green]" if check.kept else "[bold red]FAIL[/bold red]"
        table.add_row(mark, check.promise, escape(check.detail))
    return table


def show(console: Console, table: Table) -> None:
    """Print a table below its title. (A table would fold its title to its own width.)"""
    console.print()
    console.print(table.title, markup=False, highlight=False, soft_wrap=True, style="italic")
    table.title = None
    console.print(table)


def print_changes(console: Console, recording: Recording) -> None:
    """What was preempted, moved and resumed: each attempt that did not end its job, in order of time."""
    lines = []
    console.print("\npreempted, moved, resumed", style="bold")
    for job_id, job in sorted(recording.jobs.items()):
        attempts = ran(job)
        for attempt, later in pairwise(attempts):
            at_s = recording.seconds(attempt.ended_at) if attempt.ended_at else 0.0
            saved = "" if attempt.checkpoint_step is None else f" at step {attempt.checkpoint_step:.0f}"
            verb = "resumed on" if later.accelerator == attempt.accelerator else "moved to"
            left = f"job {job_id} {job.name}: left {attempt.accelerator}{saved} ({attempt.reason})"
            lines.append((at_s, f"{left}, {verb} {later.accelerator}"))
    for at_s, line in sorted(lines):
        console.print(f"  {at_s:5.0f} s  {line}", markup=False, highlight=False, soft_wrap=True)


def print_failure(console: Console, recording: Recording, job_id: int, log: str, lines: int = 6) -> None:
    job = recording.jobs.get(job_id)
    if job is None:
        return
    console.print(f"\njob {job_id} {job.name} is {job.state}: {job.reason} {job.detail}", markup=False, style="bold")
    for line in log.rstrip().splitlines()[-lines:]:
        console.print(f"  | {line}", markup=False, highlight=False, soft_wrap=True)


def print_report(
    console: Console,
    recording: Recording,
    losses: Mapping[int, tuple[float, float]],
    asked: Mapping[str, Mapping[str, float]],
) -> None:
    """The tables, one after the other."""
    for table in (
        jobs_table(recording, losses),
        fairness_table(recording),
        prices_table(recording),
        paces_table(recording, asked),
    ):
        show(console, table)
