"""`walras simulate run|compare|sweep|replay|worlds`: from what was asked to what is printed and the exit code."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from simulator.compat.worlds import WALRAS, WORLDS, plan_policies
from simulator.engine import Outcome
from simulator.report import to_json
from simulator.shipped import load_policy
from simulator.study.cell import Cell, Ran, description, run_cell
from simulator.study.compare import as_json, compare, tables
from simulator.study.files import events_table, made_folder, write_report, write_run
from simulator.study.grid import Grid, parse_seeds
from simulator.study.parallel import Workers
from simulator.study.recording import Recording, write_recording
from simulator.study.replay import another_policy, replay
from simulator.study.replay_table import replay_json, replay_table
from simulator.study.story import REPORT, read_story
from simulator.study.sweep import TABLE, sweep, violations
from simulator.study.sweep_table import sweep_json, sweep_table
from simulator.study.tables import print_tables
from simulator.study.timeline import Timeline
from walras.checking import check
from walras.config import load_mapping
from walras.errors import ConfigError

#: `told(done, all)` moves a bar; a terminal's only.
_Told = Callable[[int, int], None]
_PIPE_WIDTH = 10_000


def run_one(cell: Cell, output: str, out: Path | None = None) -> int:
    """Simulate, print (`output` table or json), leave files in `out`; 0 if every job ended and every law held, else 1.

    Raises UserError for anything that the person can mend.
    """
    console = _console()
    ran = run_cell(cell) if out is None else _run_into(cell, made_folder(out))
    if output == "json":
        jobs = sorted((*ran.result.jobs, *ran.result.unfinished), key=lambda job: job.job_id)
        _print_json(console, to_json(ran.summary, jobs, ran.roster, description(cell)))
    else:
        print_tables(ran.summary, console, "" if cell.world == WALRAS else cell.world)
        if out is not None:
            console.print(f"report: {out / REPORT}", markup=False, highlight=False, soft_wrap=True)
    if ran.skipped.count:
        told = [f"walras: {ran.skipped.count} rows were skipped; the first of them:", *ran.skipped.first]
        Console(stderr=True).print("\n  ".join(told), markup=False, highlight=False, soft_wrap=True)
    return 0 if ran.result.outcome is Outcome.COMPLETE and not ran.summary.violations else 1


def _run_into(cell: Cell, folder: Path) -> Ran:
    with events_table(folder) as tell:
        timeline = Timeline(tell)
        ran = run_cell(cell, timeline.hear)
    write_run(folder, ran, timeline)
    return ran


def run_report(folder: Path, out: Path | None) -> int:
    """Write the page of a run again from what it left in its folder."""
    path = out if out is not None else folder / REPORT
    write_report(path, read_story(folder))
    _console().print(f"report: {path}", markup=False, highlight=False, soft_wrap=True)
    return 0


def run_compare(template: Cell, policies: Sequence[str], seeds: str, workers: Workers, output: str) -> int:
    """Every policy with every seed; 0 if every run ended and every law held, else 1."""
    console = _console()
    numbers = parse_seeds(seeds)
    runs, done = len(policies) * len(numbers), 0
    with _bar("runs") as told:

        def one_more() -> None:
            nonlocal done
            done += 1
            told(done, runs)

        told(0, runs)
        comparison = compare(template, policies, numbers, workers, one_more)
    if output == "json":
        # With the first seed; the others are in `seeds`.
        decided = {policy: description(replace(template, policy=policy, seed=numbers[0])) for policy in policies}
        _print_json(console, _json({**as_json(comparison), "runs": decided}))
    else:
        for table in tables(comparison):
            console.print(table)
        if comparison.nothing_random:
            console.print("every seed gave the same figures: nothing here is random", highlight=False)
        _print_violations(console, comparison.violations)
    rows = [row for rows in comparison.rows.values() for row in rows]
    return _code([row.outcome for row in rows], comparison.violations)


def run_sweep(spec: Path | None, options: dict[str, Any], folder: Path, workers: Workers, output: str) -> int:
    """The grid of a file, of options, or of a file with options in place of its own; 0, or 1 as above."""
    console = _console()
    data = load_mapping(spec) if spec is not None else {}
    grid = check(Grid, {**data, **options}, source=str(spec) if spec is not None else "options")
    try:
        with _bar("runs") as told:
            swept = sweep(grid, folder, workers, told)
    except KeyboardInterrupt:
        kept = f"walras: broken off; runs that had ended are kept in {folder}, and the same command goes on from there"
        Console(stderr=True).print(kept, markup=False, highlight=False, soft_wrap=True)
        raise
    broken = violations(swept.rows)
    if output == "json":
        _print_json(console, _json(sweep_json(swept)))
    else:
        for path in swept.rejected:
            console.print(f"not believed, and run again: {path}", style="yellow", markup=False)
        console.print(sweep_table(swept))
        console.print(f"all figures: {folder / TABLE}", markup=False, highlight=False, soft_wrap=True)
        _print_violations(console, broken)
    return _code([row.outcome for row in swept.rows], broken)


def run_worlds(output: str) -> int:
    """Every world, what it is, and the policies that run there."""
    console = _console()
    own = "exact and event-driven: costs, noise, faults and markets as --conditions say"
    worlds = [(WALRAS, own, ["every policy of Walras"])]
    worlds += [
        (each.name, each.told, [*each.policies, *(["plan policies of Walras"] if each.takes_plans else [])])
        for each in WORLDS.values()
    ]
    if output == "json":
        body = [{"world": name, "what": told, "policies": policies} for name, told, policies in worlds]
        _print_json(console, _json({"worlds": body, "plan_policies": list(plan_policies())}))
        return 0
    for name, told, policies in worlds:
        console.print(f"{name}: {told}", highlight=False)
        console.print(f"    policies: {', '.join(policies)}", highlight=False)
    console.print(f"plan policies of Walras: {', '.join(plan_policies())}", highlight=False)
    return 0


def run_replay(
    recording: Recording, *, policy: str | None, from_s: float, seeds: str, export: Path | None, output: str
) -> int:
    """Simulate a recorded run again, maybe under another policy; 0 if every law held, else 1."""
    console = _console()
    if export is not None:
        write_recording(recording, export)
    if policy is None and from_s:
        raise ConfigError("from when on which policy?", field="policy", fix="give --policy with --from")
    run = recording if policy is None else another_policy(recording, *load_policy(policy), from_s)
    replayed = replay(run, parse_seeds(seeds))
    broken = [violation for result in replayed.results for violation in result.violations]
    if output == "json":
        _print_json(console, _json(replay_json(replayed, recording)))
    else:
        console.print(replay_table(replayed))
        if policy is None and isfinite(replayed.median_error):
            console.print(f"median error {replayed.median_error:.1%}", highlight=False)
        if recording.header.left_out:
            told = f"{len(recording.header.left_out)} jobs are left out: nobody knows how long they take"
            console.print(told, highlight=False)
        _print_violations(console, broken)
    return 1 if broken else 0


def _console() -> Console:
    """Standard output: the terminal's width, or unbounded into a pipe."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def _code(outcomes: Sequence[str], broken: Sequence[str]) -> int:
    return 1 if broken or any(outcome != Outcome.COMPLETE.value for outcome in outcomes) else 0


def _print_violations(console: Console, broken: Sequence[str]) -> None:
    for violation in broken:
        console.print(f"conservation violated: {violation}", style="red", markup=False)


def _print_json(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _json(data: Any) -> str:
    return json.dumps(data, indent=2)


@contextmanager
def _bar(what: str) -> Iterator[_Told]:
    """A progress bar on standard error, where that is a terminal."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, runs: progress.update(task, completed=done, total=runs)
