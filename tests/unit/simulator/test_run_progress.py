"""Progress of runs on a terminal: what it says, that it is silent elsewhere, and that it changes nothing."""

from io import StringIO
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep

import pytest
from rich.console import Console

from simulator.reports.repeated_runs import ParallelWorkers, execute_for_metrics, execute_runs
from simulator.reports.run_spec import GeneratorOptions, RunSpec, WorkloadSource, execute_run
from simulator.simulate_actions import RunProgress, simulate_compare, simulate_run, simulate_sweep
from simulator.simulation import Simulation

CELL = RunSpec(
    WorkloadSource("generate:gavel", made=GeneratorOptions(jobs=40, rate_per_h=20.0)), "gavel-12-12-12", "fifo"
)


def terminal(*, is_terminal: bool = True) -> Console:
    return Console(file=StringIO(), force_terminal=is_terminal, width=200)


def written(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def until_shown(console: Console, words: str) -> None:
    ends = monotonic() + 30
    while words not in written(console):
        assert monotonic() < ends, written(console)[-500:]
        sleep(0.01)


def test_a_terminal_is_told_events_virtual_time_jobs_left_and_when_it_ends() -> None:
    console = terminal()
    with RunProgress(console, patience_s=0.0) as progress:
        progress.runs(1, 3)
        execute_run(CELL, watch=progress.watch)
        until_shown(console, "1 of 3 runs")
        until_shown(console, "0 jobs left")
        until_shown(console, " events, day ")
        until_shown(console, "67%")
        until_shown(console, "ETA")


def test_the_part_that_is_done_grows_with_the_jobs_that_have_ended() -> None:
    said: list[str] = []
    progress = RunProgress(terminal())
    assert progress.text() == "reading"

    def each_event(*_: object) -> None:
        said.append(progress.text())

    execute_run(CELL, each_event, progress.watch)
    left = [int(text.split(", ")[-1].removesuffix(" jobs left")) for text in said]
    assert left[0] == 40
    assert left[-1] <= 1
    assert all(later <= earlier for earlier, later in pairwise(left))
    assert len(set(left)) > 20


@pytest.mark.parametrize(("is_terminal", "patience_s"), [(False, 0.0), (True, 600.0)])
def test_nothing_is_written_without_a_terminal_or_before_two_seconds(*, is_terminal: bool, patience_s: float) -> None:
    console = terminal(is_terminal=is_terminal)
    with RunProgress(console, patience_s) as progress:
        execute_run(CELL, watch=progress.watch)
        sleep(0.1)
    assert written(console) == ""


def test_figures_are_the_same_with_and_without_it() -> None:
    with RunProgress(terminal(), patience_s=0.0) as progress:
        workers = ParallelWorkers(watch=progress.watch)
        ((_, watched),) = execute_runs([CELL], workers)
    assert str(watched.values) == str(execute_for_metrics(CELL).values)


def test_an_interrupt_ends_the_display() -> None:
    console = terminal()

    def interrupted() -> None:
        with RunProgress(console, patience_s=0.0) as progress:
            execute_run(CELL, watch=progress.watch)
            until_shown(console, "jobs left")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    before = written(console)
    sleep(0.6)
    assert written(console) == before
    assert before.endswith("\x1b[?25h") or "\x1b[?25h" in before[-40:], "the cursor is not shown again"


def test_every_watched_run_is_seen_before_it_begins() -> None:
    seen: list[tuple[int | None, float]] = []

    def watch(jobs: int | None, simulation: Simulation) -> None:
        seen.append((jobs, simulation.engine.now))

    list(execute_runs([CELL, CELL], ParallelWorkers(watch=watch)))
    assert seen == [(40, 0.0)] * 2


@pytest.mark.parametrize("command", ["run", "compare", "sweep"])
def test_every_command_hands_its_runs_over(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[int | None] = []
    monkeypatch.setattr(RunProgress, "watch", lambda _, jobs, simulation: seen.append(jobs))
    if command == "run":
        simulate_run(CELL, "json", tmp_path / "folder")
        simulate_run(CELL, "json")
    elif command == "compare":
        simulate_compare(CELL, ["fifo", "las"], "0", ParallelWorkers(), "json")
    else:
        grid = {"workloads": ["generate:gavel"], "clusters": ["gavel-12-12-12"], "policies": ["fifo", "las"]}
        simulate_sweep(None, {**grid, "trace_jobs": 40, "rates": [20.0]}, tmp_path, ParallelWorkers(), "json")
    assert seen == [40, 40]
    assert capsys.readouterr().err == ""
