"""`walras simulate run|report|plot|compare|sweep|bench|replay`: from the parsed options to output and exit code.

Each command imports only what it needs: a run without a report draws no charts, a comparison reads no recordings.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, RenderableType
from rich.progress import Progress, TextColumn, TimeRemainingColumn

from scheduler.world.engine import RunOutcome
from simulator.reports.repeated_runs import ParallelWorkers, parse_seeds
from simulator.reports.run_spec import CompletedRun, RunSpec, RunWatcher, describe_run, execute_run
from simulator.shipped_configs import load_named_policy
from simulator.simulation import Simulation
from simulator.worlds.world_registry import WALRAS, WORLDS, plan_policy_names
from walras.errors import ConfigError
from walras.output.json_output import stream_json
from walras.spec.file_model import check_model, load_mapping

if TYPE_CHECKING:
    from simulator.reports.policy_comparison import PolicyComparison
    from simulator.reports.recorded_runs import Recording

_PIPE_WIDTH = 10_000
LATEX_TABLE = "table.tex"
#: Seconds before progress is shown.
PATIENCE_S = 2.0
_LOOKS_PER_S = 4.0
_SECONDS_PER_DAY = 86_400.0


def simulate_run(cell: RunSpec, output: str, out: Path | None = None) -> int:
    """Simulates, prints (`output` table or json) and writes files into `out`.

    Returns 0 if every job ended and no conservation law was violated, else 1. Raises UserError for errors in the user's
    input.
    """
    from simulator.reports.run_summary import summary_document

    console = _console()
    with RunProgress() as progress:
        ran = execute_run(cell, watch=progress.watch) if out is None else _run_into_folder(cell, out, progress.watch)
    if output == "json":
        jobs = sorted((*ran.result.jobs, *ran.result.unfinished), key=lambda job: job.job_id)
        document = summary_document(ran.summary, jobs, ran.baselines, describe_run(cell))
        stream_json(document, sys.stdout)
    else:
        from simulator.reports.report_page import print_run_summary

        print_run_summary(ran.summary, console, "" if cell.world == WALRAS else cell.world)
        if out is not None:
            from simulator.reports.report_page import REPORT_FILE

            console.print(f"report: {out / REPORT_FILE}", markup=False, highlight=False, soft_wrap=True)
    if ran.skipped.count:
        lines = [f"walras: {ran.skipped.count} rows were skipped; the first of them:", *ran.skipped.first]
        Console(stderr=True).print("\n  ".join(lines), markup=False, highlight=False, soft_wrap=True)
    return 0 if ran.result.outcome is RunOutcome.COMPLETE and not ran.summary.violations else 1


def _run_into_folder(cell: RunSpec, folder: Path, watch: RunWatcher) -> CompletedRun:
    from simulator.reports.report_page import make_run_folder, open_events_table, write_run_folder
    from simulator.reports.timeline import Timeline

    with open_events_table(make_run_folder(folder)) as write_row:
        timeline = Timeline(write_row)
        ran = execute_run(cell, timeline.record, watch)
    write_run_folder(folder, ran, timeline)
    return ran


def simulate_report(folder: Path, out: Path | None) -> int:
    """Writes the page of a run again, from the files in its folder. Returns the exit code."""
    from simulator.reports.report_page import REPORT_FILE, read_report, write_report_page

    path = out if out is not None else folder / REPORT_FILE
    write_report_page(path, read_report(folder))
    _console().print(f"report: {path}", markup=False, highlight=False, soft_wrap=True)
    return 0


def simulate_plot(figure: str, folder: Path, out: Path, setting: str | None) -> int:
    """Draws one figure from the folder of a run, a comparison or a sweep. Returns the exit code."""
    from simulator.reports.comparison_charts import plot_figure

    plot_figure(figure, folder, out, setting)
    _console().print(f"figure: {out}", markup=False, highlight=False, soft_wrap=True)
    return 0


def simulate_compare(
    template: RunSpec,
    policies: Sequence[str],
    seeds: str,
    workers: ParallelWorkers,
    output: str,
    folder: Path | None = None,
) -> int:
    """Runs every policy with every seed, and writes page, data and table into the folder.

    Returns 0 if every run ended and no conservation law was violated, else 1.
    """
    from simulator.reports.policy_comparison import compare_policies, comparison_json, comparison_tables

    console = _console()
    numbers = parse_seeds(seeds)
    runs, done = len(policies) * len(numbers), 0
    with RunProgress() as progress:

        def one_more() -> None:
            nonlocal done
            done += 1
            progress.runs(done, runs)

        progress.runs(0, runs)
        workers = replace(workers, watch=progress.watch)
        comparison = compare_policies(template, policies, numbers, workers, one_more, with_levels=folder is not None)
    written = [] if folder is None else _write_compared(comparison, template, folder)
    if output == "json":
        # `seeds` has the runs of the other seeds.
        decided = {policy: describe_run(replace(template, policy=policy, seed=numbers[0])) for policy in policies}
        stream_json({**comparison_json(comparison), "runs": decided}, sys.stdout)
    else:
        for table in comparison_tables(comparison):
            console.print(table)
        if comparison.nothing_random:
            left = "the other seed was" if len(comparison.unused_seeds) == 1 else "the other seeds were"
            console.print(f"nothing here is random: {left} not run, the figures would be the same", highlight=False)
        for what, path in written:
            console.print(f"{what}: {path}", markup=False, highlight=False, soft_wrap=True)
        _print_violations(console, comparison.violations)
    rows = [row for rows in comparison.rows.values() for row in rows]
    return _exit_code([row.outcome for row in rows], comparison.violations)


def _write_compared(comparison: "PolicyComparison", template: RunSpec, folder: Path) -> list[tuple[str, Path]]:
    """Writes the files of a comparison; returns a description and the path of each."""
    from simulator.reports.comparison_charts import (
        comparison_book,
        latex_caption,
        latex_table,
        write_comparison_page,
        write_latex,
    )

    page, table = write_comparison_page(folder, comparison_book(comparison, template)), folder / LATEX_TABLE
    names = (Path(template.source.name).name, Path(template.cluster).name)
    write_latex(table, latex_table(comparison, latex_caption(comparison, *names)))
    return [("page", page), ("LaTeX table", table)]


def simulate_sweep(
    spec: Path | None,
    options: dict[str, Any],
    folder: Path,
    workers: ParallelWorkers,
    output: str,
) -> int:
    """Runs the grid of a file and of options, which override the file. Returns 0 or 1 as `simulate_compare` does."""
    from simulator.reports.comparison_charts import sweep_book, write_comparison_page
    from simulator.reports.sweep import SWEEP_TABLE, SweepGrid, run_sweep, sweep_json, sweep_table, violations_in

    console = _console()
    data = load_mapping(spec) if spec is not None else {}
    grid = check_model(SweepGrid, {**data, **options}, source=str(spec) if spec is not None else "options")
    try:
        with RunProgress() as progress:
            swept = run_sweep(grid, folder, replace(workers, watch=progress.watch), progress.runs)
    except KeyboardInterrupt:
        kept = f"walras: broken off; runs that had ended are kept in {folder}, and the same command goes on from there"
        Console(stderr=True).print(kept, markup=False, highlight=False, soft_wrap=True)
        raise
    page = write_comparison_page(folder, sweep_book(swept, str(folder.name) if spec is None else spec.stem))
    broken = violations_in(swept.rows)
    if output == "json":
        stream_json(sweep_json(swept), sys.stdout)
    else:
        for path in swept.rejected:
            console.print(f"not believed, and run again: {path}", style="yellow", markup=False)
        console.print(sweep_table(swept))
        for what, file in (("all figures", folder / SWEEP_TABLE), ("page", page)):
            console.print(f"{what}: {file}", markup=False, highlight=False, soft_wrap=True)
        _print_violations(console, broken)
    return _exit_code([row.outcome for row in swept.rows], broken)


def simulate_bench(name: str, out: Path | None, workers: ParallelWorkers, output: str, data: Path | None = None) -> int:
    """Runs a bench, prints it and writes its result file; returns 0 or 1 as `simulate_compare` does.

    `data`: the folder of recorded workloads, for the grounds that need it.
    """
    from simulator.reports.policy_bench import BENCHES, bench_json, bench_tables, missing_files, run_bench, write_bench

    console, errors = _console(), Console(stderr=True)
    if out is not None and not out.absolute().parent.is_dir():
        raise ConfigError(f"no folder {out.absolute().parent}", field="out", fix="choose another path")
    if data is not None and not data.is_dir():
        raise ConfigError(f"no folder {data}", field="data", fix="give the folder of recorded workloads")
    grounds = BENCHES[name](data.absolute() if data is not None else None)
    missing = {ground.name: missing_files(ground) for ground in grounds}
    for ground, files in missing.items():
        if files:
            errors.print(f"walras: ground {ground} is left out: no {files[0]}", markup=False, highlight=False)
    with RunProgress() as progress:
        there = [ground for ground in grounds if not missing[ground.name]]
        result = run_bench(there, replace(workers, watch=progress.watch), progress.runs)
    if out is not None:
        write_bench(out, result)
    if output == "json":
        stream_json(bench_json(result), sys.stdout)
    else:
        for table in bench_tables(result):
            console.print(table)
        _print_violations(console, result.violations)
    return _exit_code(result.unexpected_outcomes, result.violations)


def worlds_catalogue() -> list[tuple[str, str, list[str]]]:
    """Returns every world with a description and the policies that run there."""
    own = "exact and event-driven: costs, noise, faults and markets as conditions say"
    return [
        (WALRAS, own, ["every policy of Walras"]),
        *((each.name, each.about, [*each.policies, *(plan_policy_names() if each.takes_plans else ())])
          for each in WORLDS.values()),
    ]  # fmt: skip


def simulate_replay(recording: "Recording", *, policy: str | None, from_s: float, seeds: str, output: str) -> int:
    """Simulates a recorded run again, perhaps under another policy; returns 0 if no conservation law was violated, else
    1.
    """
    from simulator.reports.recorded_runs import (
        replay_json,
        replay_recording,
        replay_table,
        with_policy_from,
    )

    console = _console()
    if policy is None and from_s:
        raise ConfigError("from when on which policy?", field="policy", fix="give --policy with --from")
    run = recording if policy is None else with_policy_from(recording, *load_named_policy(policy), from_s)
    replayed = replay_recording(run, parse_seeds(seeds))
    broken = [violation for result in replayed.results for violation in result.violations]
    if output == "json":
        stream_json(replay_json(replayed, recording), sys.stdout)
    else:
        console.print(replay_table(replayed))
        if policy is None and isfinite(replayed.median_error):
            console.print(f"median error {replayed.median_error:.1%}", highlight=False)
        if recording.header.left_out:
            text = f"{len(recording.header.left_out)} jobs are left out: their length is unknown"
            console.print(text, highlight=False)
        _print_violations(console, broken)
    return 1 if broken else 0


def _console() -> Console:
    """Returns a console on standard output, as wide as the terminal, or unlimited into a pipe."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def _exit_code(outcomes: Sequence[str], broken: Sequence[str]) -> int:
    return 1 if broken or any(outcome != RunOutcome.COMPLETE.value for outcome in outcomes) else 0


def _print_violations(console: Console, broken: Sequence[str]) -> None:
    for violation in broken:
        console.print(f"conservation violated: {violation}", style="red", markup=False)


class RunProgress:
    """Shows the progress of runs on a terminal: events, virtual time, jobs left, and the estimated end.

    A thread reads the simulation's counters a few times a second and draws, so the run is the same with and without it.
    Nothing is shown for runs of under two seconds, or where standard error is no terminal.
    """

    def __init__(self, console: Console | None = None, patience_s: float = PATIENCE_S) -> None:
        """`console`: where it is shown; None: standard error."""
        console = console if console is not None else Console(stderr=True)
        self._is_shown = console.is_terminal
        self._simulation: Simulation | None = None
        self._jobs: int | None = None
        self._done, self._runs = 0, 1
        columns = (
            TextColumn("{task.description}", markup=False),
            TextColumn("{task.percentage:.0f}%, ETA"),
            TimeRemainingColumn(),
        )
        self._display = _Display(*columns, console=console, transient=True, refresh_per_second=_LOOKS_PER_S)
        self._task = self._display.add_task("", total=1.0)
        self._display.watched = self
        self._timer = Timer(patience_s, self._display.start)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        if self._is_shown:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown:
            self._timer.cancel()
            self._timer.join()
            self._display.stop()

    def runs(self, done: int, runs: int) -> None:
        """Records that `done` of `runs` runs have ended."""
        self._simulation, self._done, self._runs = None, done, runs

    def watch(self, jobs: int | None, simulation: Simulation) -> None:
        """Records that a run begins in this process. `jobs`: number of its jobs; None: unknown."""
        self._simulation, self._jobs = simulation, jobs

    def look(self) -> None:
        """Reads the state of the run and updates the display."""
        done = min(self._done + self._part(), float(self._runs))
        self._display.update(self._task, completed=done, total=float(self._runs), description=self.text())

    def _part(self) -> float:
        """Returns the part of the present run that is done, by jobs that have ended."""
        simulation = self._simulation
        return 0.0 if simulation is None or not self._jobs else simulation.jobs_ended / self._jobs

    def text(self) -> str:
        """Returns the state of the runs as text."""
        parts = [f"{self._done} of {self._runs} runs"] if self._runs > 1 else []
        simulation = self._simulation
        if simulation is not None:
            engine, ended = simulation.engine, simulation.jobs_ended
            left = f"{ended:,} jobs ended" if self._jobs is None else f"{max(0, self._jobs - ended):,} jobs left"
            parts += [f"{engine.events:,} events", f"day {engine.now / _SECONDS_PER_DAY:.1f}", left]
        return ", ".join(parts) or "reading"


class _Display(Progress):
    """A progress display that reads the run's state whenever it draws."""

    watched: RunProgress | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        """Returns what is drawn; called by the drawing thread."""
        if self.watched is not None:
            self.watched.look()
        return super().get_renderables()
