"""Cells, grids and sweeps: keys, resuming, and independence of the number of processes."""

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.reports import sweep as sweeps
from simulator.reports.baselines import BoundsChoice
from simulator.reports.policy_comparison import compare_policies, comparison_json
from simulator.reports.repeated_runs import ParallelWorkers, execute_for_metrics, execute_runs
from simulator.reports.run_spec import GeneratorOptions, RunSpec, WorkloadSource, describe_run, execute_run, run_key
from simulator.reports.run_summary import RUN_METRICS, metric_values
from simulator.reports.sweep import (
    SWEEP_TABLE,
    SweepGrid,
    grid_runs,
    parse_seeds,
    run_sweep,
    sweep_json,
    sweep_table,
    violations_in,
)
from simulator.reports.timeline import RunDepth
from simulator.shipped_configs import find_cluster, find_workload, load_named_policy
from walras.errors import ConfigError, UserError
from walras.spec.file_model import check_model
from walras.spec.shipped_files import shipped_files

SOURCE = WorkloadSource("generate:burst", made=GeneratorOptions(jobs=12, rate_per_h=120.0, stretch=0.02))
CELL = RunSpec(SOURCE, "hadar-60", "fifo", bounds=BoundsChoice.NONE)
GRID = SweepGrid(
    workloads=("generate:burst",), clusters=("hadar-60",), policies=("fifo", "isolated"), seeds=(0, 1),
    rates=(60.0, 120.0), trace_jobs=6, stretch=0.01, bounds=BoundsChoice.NONE,
)  # fmt: skip
ALONE = ParallelWorkers()


# ------------------------------------------------------------------------------------------------------ names


def test_what_comes_with_walras_is_known_by_name() -> None:
    """Clusters, workloads and policies below configs/; a name with an ending is a file; a misspelt one is told."""
    assert find_cluster("sia-64").name == "sia-64.yaml"
    assert find_workload("bursts").name == "bursts.csv"
    assert find_cluster("mine/sia-64.yaml") == Path("mine/sia-64.yaml")
    with pytest.raises(ConfigError) as told:
        find_cluster("sia-46")
    assert told.value.fix == "did you mean 'sia-64'?"
    with pytest.raises(ConfigError, match="no policy is called 'fiffo'") as told:
        load_named_policy("fiffo")
    assert told.value.fix == "did you mean 'fifo'?"


def test_a_shipped_policy_has_the_rules_of_its_file() -> None:
    """A name stands for the file of that name, not for the policy's defaults."""
    for name, path in shipped_files("policies").items():
        assert load_named_policy(name) == load_named_policy(str(path))


@pytest.mark.parametrize(("text", "seeds"), [("0-4", (0, 1, 2, 3, 4)), ("7", (7,)), ("1,3,5-6,3", (1, 3, 5, 6))])
def test_seeds_in_words(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "3-1", "-1", "1,,2", "0-999999999", "1.5", "²"])
def test_seeds_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="seeds"):
        parse_seeds(text)


# ------------------------------------------------------------------------------------------------------ keys


def test_a_key_covers_what_decides_the_run() -> None:
    """Another seed, policy, cluster, rate or bound is another cell; the same again is the same."""
    keys = [
        run_key(describe_run(cell))
        for cell in (
            CELL,
            RunSpec(SOURCE, "hadar-60", "fifo", 1, BoundsChoice.NONE),
            RunSpec(SOURCE, "hadar-60", "isolated", 0, BoundsChoice.NONE),
            RunSpec(SOURCE, "gavel-12-12-12", "fifo", 0, BoundsChoice.NONE),
            RunSpec(SOURCE, "hadar-60", "fifo", 0, BoundsChoice.CHEAP),
            RunSpec(SOURCE, "hadar-60", "fifo", 0, BoundsChoice.NONE, fairness=True),
            RunSpec(WorkloadSource("generate:burst"), "hadar-60", "fifo", 0, BoundsChoice.NONE),
        )
    ]
    assert len(set(keys)) == len(keys)
    assert run_key(describe_run(CELL)) == keys[0]


def test_a_key_goes_by_content_not_by_name(tmp_path: Path) -> None:
    """A copy of a file is the same cell; the file changed is another one; a file that is gone is told."""
    trace = tmp_path / "trace.csv"
    trace.write_text("at,name,kind,gang,duration_s\n0,a,k,1,60\n")
    copy = tmp_path / "copy.csv"
    copy.write_bytes(trace.read_bytes())
    first, second = (
        run_key(describe_run(RunSpec(WorkloadSource(str(path)), "sia-64", "fifo"))) for path in (trace, copy)
    )
    assert first == second
    trace.write_text("at,name,kind,gang,duration_s\n0,a,k,1,61\n")
    assert run_key(describe_run(RunSpec(WorkloadSource(str(trace)), "sia-64", "fifo"))) != first
    with pytest.raises(ConfigError, match="No such file"):
        describe_run(RunSpec(WorkloadSource(str(tmp_path / "gone.csv")), "sia-64", "fifo"))


def test_policies_meet_the_same_jobs() -> None:
    """Common random numbers: with one seed, every policy is given the same arrivals and the same work."""
    rosters = [
        execute_run(RunSpec(SOURCE, "hadar-60", policy, 3, BoundsChoice.NONE)).baselines
        for policy in ("fifo", "isolated")
    ]
    instances = [roster.instance(range(1, 13)) for roster in rosters]  # type: ignore[arg-type]
    assert instances[0].arrival_at.tolist() == instances[1].arrival_at.tolist()
    assert instances[0].steps.tolist() == instances[1].steps.tolist()
    other = execute_run(RunSpec(SOURCE, "hadar-60", "fifo", 4, BoundsChoice.NONE)).baselines.instance(range(1, 13))  # type: ignore[arg-type]
    assert other.steps.tolist() != instances[0].steps.tolist()


def test_fairness_against_isolated_is_one_under_isolated() -> None:
    fair = execute_run(RunSpec(SOURCE, "hadar-60", "isolated", 0, BoundsChoice.NONE, fairness=True)).summary.fairness
    assert (fair.isolated_mean, fair.isolated_max) == (1.0, 1.0)


# ------------------------------------------------------------------------------------------------------ grids


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3, unique=True), st.integers(1, 4))
def test_a_grid_has_every_combination_once(policies: list[str], seeds: int) -> None:
    grid = SweepGrid(workloads=("w",), clusters=("x", "y"), policies=tuple(policies), seeds=tuple(range(seeds)))
    places = [place for place, _ in grid_runs(grid)]
    assert len(places) == len(set(places)) == 2 * len(policies) * seeds


def test_a_grid_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="arrives as it is written"):
        grid_runs(SweepGrid(workloads=("w.csv",), clusters=("x",), policies=("fifo",), rates=(1.0,)))
    with pytest.raises(ConfigError, match=r"the grid has 200,000 runs"):
        grid_runs(SweepGrid(workloads=("w",), clusters=("x", "y"), policies=("fifo",), seeds=tuple(range(100_000))))


@pytest.mark.parametrize("field", ["workloads", "clusters", "policies", "seeds"])
def test_nothing_in_a_grid_counts_twice(field: str) -> None:
    """Two runs alike would make an interval narrower than it is."""
    words: dict[str, object] = {"workloads": ["w"], "clusters": ["x"], "policies": ["fifo"], "seeds": [0]}
    words[field] = [*words[field], *words[field]]  # type: ignore[misc]
    with pytest.raises(ConfigError, match="is there twice"):
        check_model(SweepGrid, words, source="grid")


# ------------------------------------------------------------------------------------------------------ sweeps


def counted(monkeypatch: pytest.MonkeyPatch) -> list[RunSpec]:
    """The cells that are run from now on."""
    ran: list[RunSpec] = []

    def run(cell: RunSpec, _: object, depth: RunDepth) -> object:
        ran.append(cell)
        return execute_for_metrics(cell, None, depth)

    monkeypatch.setattr("simulator.reports.repeated_runs.execute_for_metrics", run)
    return ran


def test_a_sweep_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was run is not run again; cells of a grid that grew are; and the table is the same as of one go."""
    ran = counted(monkeypatch)
    small = run_sweep(GRID.model_copy(update={"seeds": (0,)}), tmp_path / "a", ALONE)
    assert (small.ran, len(ran)) == (4, 4)
    grown = run_sweep(GRID, tmp_path / "a", ALONE)
    assert (grown.ran, len(ran), len(grown.rows)) == (4, 8, 8)
    again = run_sweep(GRID, tmp_path / "a", ALONE)
    assert (again.ran, len(ran)) == (0, 8)
    at_once = run_sweep(GRID, tmp_path / "b", ALONE)
    assert [row.values for row in at_once.rows] == [pytest.approx(row.values, nan_ok=True) for row in again.rows]
    assert str([row.values for row in at_once.rows]) == str([row.values for row in again.rows])
    assert violations_in(again.rows) == []


def test_an_interrupted_sweep_keeps_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def interrupt(done: int, runs: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(GRID, tmp_path, ALONE, interrupt)
    assert not (tmp_path / SWEEP_TABLE).exists()
    assert run_sweep(GRID, tmp_path, ALONE).ran == 5


@pytest.mark.parametrize("damage", ["cut", "changed", "other", "empty", "list", "binary"])
def test_a_damaged_cell_is_run_again(tmp_path: Path, damage: str) -> None:
    """Cut off, a figure changed, another cell's file, or no JSON at all: told, and replaced."""
    one = GRID.model_copy(update={"rates": (60.0,), "policies": ("fifo",)})
    first = run_sweep(one, tmp_path, ALONE)
    files = sorted((tmp_path / "cells").iterdir())
    text = files[0].read_text()
    body = json.loads(text)
    body["row"]["values"]["avg_jct_s"] *= 0.5
    damaged = {
        "cut": text[:-40].encode(), "changed": json.dumps(body).encode(), "other": files[1].read_bytes(), "empty": b"",
        "list": b"[1, 2]", "binary": b"\xff\x00" * 40,
    }[damage]  # fmt: skip
    files[0].write_bytes(damaged)
    second = run_sweep(one, tmp_path, ALONE)
    assert second.rejected == [str(files[0])]
    assert second.ran == 1
    assert str([row.values for row in second.rows]) == str([row.values for row in first.rows])
    assert run_sweep(one, tmp_path, ALONE).ran == 0


def test_the_table_is_tidy(tmp_path: Path) -> None:
    """A line per run, a column per figure; numbers read back as they were, and what does not exist is empty."""
    swept = run_sweep(GRID, tmp_path, ALONE)
    with (tmp_path / SWEEP_TABLE).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["policy"], row["rate_per_h"], row["seed"]) for row in rows] == [
        (place.policy, repr(place.rate_per_h), str(place.seed)) for place in swept.places
    ]
    assert [float(row["avg_jct_s"]) for row in rows] == [row.values["avg_jct_s"] for row in swept.rows]
    assert {row["jct_bound_s"] for row in rows} == {""}
    body = sweep_json(swept)
    assert (body["runs"], len(body["settings"])) == (8, 4)
    assert sweep_table(swept).row_count == 4


def test_one_file_under_two_names_is_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = "at,name,kind,gang,duration_s\n0,a,k,1,60\n"
    names = []
    for name in ("x.csv", "y.csv"):
        (tmp_path / name).write_text(trace)
        names.append(str(tmp_path / name))
    ran = counted(monkeypatch)
    swept = run_sweep(
        SweepGrid(workloads=tuple(names), clusters=("sia-64",), policies=("fifo",)), tmp_path / "out", ALONE
    )
    assert (len(ran), swept.ran, len(swept.rows)) == (1, 1, 2)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        run_sweep(GRID, tmp_path / "file", ALONE)


def test_the_cells_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk in the middle leaves no half of a cell behind."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sweeps, "nonfinite_to_none", lambda body: body)
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ConfigError, match="No space left"):
        run_sweep(GRID, tmp_path, ALONE)
    assert list((tmp_path / "cells").iterdir()) == []


# ------------------------------------------------------------------------------------------------------ processes


@pytest.mark.slow
def test_figures_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    """One process or two: the same figures to the last bit, of a sweep and of a comparison."""
    one, two = run_sweep(GRID, tmp_path / "1", ALONE), run_sweep(GRID, tmp_path / "2", ParallelWorkers(2))
    assert str([row.values for row in one.rows]) == str([row.values for row in two.rows])
    names = {path.name for path in (tmp_path / "1" / "cells").iterdir()}
    assert names == {path.name for path in (tmp_path / "2" / "cells").iterdir()}
    compared = [
        comparison_json(compare_policies(CELL, ["fifo", "isolated"], [0, 1], workers))
        for workers in (ALONE, ParallelWorkers(2))
    ]
    for measure in RUN_METRICS:
        assert compared[0]["measures"][measure.name] == compared[1]["measures"][measure.name]


def test_a_policy_named_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="named twice"):
        compare_policies(CELL, ["fifo", "fifo"], [0], ALONE)


def test_dask_needs_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:

    def missing(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr("simulator.reports.repeated_runs.importlib.import_module", missing)
    with pytest.raises(UserError, match="not installed") as told:
        next(execute_runs([CELL], ParallelWorkers(1, "tcp://h:1")))
    assert told.value.fix is not None
    assert "pip install" in told.value.fix


def test_a_row_holds_the_summarys_figures() -> None:
    assert str(execute_for_metrics(CELL).values) == str(metric_values(execute_run(CELL).summary))
