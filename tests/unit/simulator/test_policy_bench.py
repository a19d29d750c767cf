"""The bench of policies: equal bytes twice, what its hashes tell apart, bounds below every figure, and its command."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from simulator.reports.policy_bench import (
    BENCHES,
    SCORE_METRICS,
    BenchGround,
    BenchResult,
    PublishedRow,
    ScoredGround,
    bench_json,
    bench_tables,
    full_bench,
    generated_ground,
    missing_files,
    run_bench,
    small_bench,
    spot_grounds,
    write_bench,
)
from simulator.reports.repeated_runs import ParallelWorkers, RunMetrics
from simulator.reports.run_spec import RunWatcher, prepare_run
from simulator.shipped_configs import find_cluster
from simulator.simulate_actions import simulate_bench
from walras.errors import ConfigError

#: Every run computes its bound.
pytestmark = pytest.mark.slow

TINY = (
    generated_ground(0.8, 8, ("las", "fifo"), (0, 1)),
    generated_ground(0.0, 8, ("las", "fifo"), (0, 1), gangs=True),
)


@pytest.fixture(scope="module")
def result() -> BenchResult:
    return run_bench(TINY, ParallelWorkers())


def test_the_same_inputs_give_equal_bytes(result: BenchResult, tmp_path: Path) -> None:
    paths = [tmp_path / "one.json", tmp_path / "two.json"]
    write_bench(paths[0], result)
    write_bench(paths[1], run_bench(TINY, ParallelWorkers()))
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_every_input_that_changes_has_another_hash(result: BenchResult, tmp_path: Path) -> None:
    """Seeds, policies, workloads; and the content of a file, not its name."""
    told = bench_json(result)["grounds"]
    keys = [key for ground in told for policy in ground["policies"].values() for key in policy["inputs"]]
    assert len(set(keys)) == len(keys) == 8
    copy = tmp_path / "cluster.yaml"
    copy.write_bytes(find_cluster("gavel-12-12-12").read_bytes())
    same = (replace(TINY[0], run=replace(TINY[0].run, cluster=str(copy))),)
    first = bench_json(run_bench(same, ParallelWorkers()))["grounds"][0]
    assert first == told[0]
    copy.write_text(copy.read_text() + "# another\n")
    second = bench_json(run_bench(same, ParallelWorkers()))["grounds"][0]
    assert second["policies"]["las"]["inputs"] != first["policies"]["las"]["inputs"]


def test_every_run_stands_above_its_bound_and_means_have_intervals(result: BenchResult) -> None:
    for ground in bench_json(result)["grounds"]:
        for policy in ground["policies"].values():
            assert policy["outcomes"] == ["complete"] * 2
            assert all(run["avg_jct_s"] >= run["jct_bound_s"] * (1 - 1e-9) > 0 for run in policy["runs"])
            mean = policy["metrics"]["avg_jct_s"]
            assert mean["mean"] == pytest.approx(sum(run["avg_jct_s"] for run in policy["runs"]) / 2)
            assert mean["low"] < mean["mean"] < mean["high"]
            assert {"p95_jct_s", "p99_jct_s", "jct_gap"} <= set(policy["metrics"])


def test_the_load_is_the_part_of_the_fleet_that_the_jobs_ask_for() -> None:
    """Work that arrives in an hour, over what the fleet does in one: within the spread of 4,000 jobs' lengths."""
    for gangs in (False, True):
        ready = prepare_run(replace(generated_ground(0.8, 4000, ("fifo",), (0,), gangs=gangs).run, seed=1))
        jobs = list(ready.jobs)
        hours = sum(
            job.steps / ready.scenario.truth.steps_per_s(job.request.kind, "v100", job.request.demands[0].count) / 3600
            * job.request.demands[0].count
            for job in jobs
        )  # fmt: skip
        assert hours / (jobs[-1].at / 3600) / 24 == pytest.approx(0.8, rel=0.1)


def test_every_ground_of_the_small_bench_can_be_prepared() -> None:
    grounds = small_bench()
    assert len({ground.name for ground in grounds}) == len(grounds) >= 7
    for ground in grounds:
        for policy in ground.policies:
            prepare_run(replace(ground.run, policy=policy, seed=ground.seeds[-1]))


def test_the_full_bench_names_the_grounds_whose_files_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are left out; the others are run, and the result holds them alone."""
    recorded = [ground for ground in full_bench(tmp_path) if missing_files(ground)]
    assert {ground.name for ground in recorded} == {
        "gavel-static", "gavel-static-rounds", "gavel-continuous", "gavel-continuous-rounds", "gavel-gangs",
        "gavel-gangs-rounds", "philly", "pollux", "sia", "shockwave", "arena", "arena-453-rounds", "spot-tight-small",
        "spot-tight-large", "spot-loose-small", "spot-loose-large",
    }  # fmt: skip
    assert [ground for ground in full_bench(None) if missing_files(ground)] == []
    monkeypatch.setitem(BENCHES, "full", lambda data: (TINY[0], *recorded))
    assert simulate_bench("full", None, ParallelWorkers(), "json", tmp_path) == 0
    told = capsys.readouterr()
    assert [ground["name"] for ground in json.loads(told.out)["grounds"]] == [TINY[0].name]
    assert told.err.count("is left out") == len(recorded)
    with pytest.raises(ConfigError, match="no folder"):
        simulate_bench("full", None, ParallelWorkers(), "json", tmp_path / "nowhere")


def test_every_recorded_ground_can_be_prepared(reference_data: Path) -> None:
    """With the recorded workloads: no name, column or policy is wrong, and no world refuses a policy or a gang."""
    for ground in full_bench(reference_data):
        if isinstance(ground, BenchGround) and not missing_files(ground):
            for policy in ground.policies:
                prepare_run(replace(ground.run, policy=policy, seed=ground.seeds[-1]))


def test_what_others_published_stands_in_the_same_table(result: BenchResult) -> None:
    row = PublishedRow("theirs", "a paper", {"avg_jct_s": 1.0})
    with_row = replace(result, grounds=(replace(result.grounds[0], published=(row,)), *result.grounds[1:]))
    console = Console(width=300)
    with console.capture() as shown:
        console.print(bench_tables(with_row)[0])
    lines = [line for line in shown.get().splitlines() if "│" in line]
    assert "theirs (a paper)" in lines[0]
    assert bench_json(with_row)["grounds"][0]["published"] == [
        {"policy": "theirs", "source": "a paper", "metrics": {"avg_jct_s": 1.0}}
    ]


def test_the_command_writes_the_file_and_prints_a_table_for_each_ground(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(BENCHES, "small", lambda data: TINY[:1])
    out = tmp_path / "bench.json"
    assert simulate_bench("small", out, ParallelWorkers(), "table") == 0
    printed = capsys.readouterr().out
    assert TINY[0].name in printed
    assert "JCT p99" in printed
    assert simulate_bench("small", None, ParallelWorkers(), "json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads(out.read_text())
    with pytest.raises(ConfigError, match="nowhere"):
        simulate_bench("small", tmp_path / "nowhere" / "bench.json", ParallelWorkers(), "table")


@dataclass(frozen=True)
class BrokenCell:
    """A cell whose execution fails."""

    policy: str

    def describe(self) -> dict[str, Any]:
        raise ConfigError("no such policy", field="policy", fix="name another")

    def execute(self, watch: RunWatcher | None) -> RunMetrics:
        raise AssertionError("it knows no gangs\nand more")


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_fails_loses_no_other_runs_figures(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process and in others: its row is empty, table and file tell the reason, and the exit code is 1."""
    broken = ScoredGround("broken", "it fails", ("never",), BrokenCell, SCORE_METRICS, ())
    monkeypatch.setitem(BENCHES, "small", lambda data: (broken, TINY[0]))
    out = tmp_path / "bench.json"
    assert simulate_bench("small", out, ParallelWorkers(jobs), "table") == 1
    assert "never failed: AssertionError: it knows no gangs" in capsys.readouterr().out
    failed, told = json.loads(out.read_text())["grounds"]
    assert failed["policies"]["never"]["outcomes"] == ["failed: AssertionError: it knows no gangs"]
    assert failed["policies"]["never"]["metrics"]["score"]["mean"] is None
    assert told["policies"]["las"]["outcomes"] == ["complete"] * 2


def test_a_ground_that_ends_early_counts_what_had_finished() -> None:
    """It is no error that jobs are left, and who finishes most stands first; without that end all finish."""
    ground = replace(TINY[1], run=replace(TINY[1].run, until_s=20 * 3600.0), seeds=(0,))
    early = run_bench((ground,), ParallelWorkers())
    assert early.unexpected_outcomes == []
    told = bench_json(early)["grounds"][0]
    assert told["sorted_by"] == "finished"
    runs = [policy["runs"][0] for policy in told["policies"].values()]
    assert all(0 < run["finished"] < 8 and run["finished"] + run["unfinished"] == 8 for run in runs)
    whole = bench_json(run_bench((replace(TINY[1], seeds=(0,)),), ParallelWorkers()))["grounds"][0]
    assert all(policy["runs"][0]["finished"] == 8 for policy in whole["policies"].values())
    inputs = [each["policies"]["las"]["inputs"] for each in (told, whole)]
    assert inputs[0] != inputs[1]


def test_the_spot_ground_repeats_the_recorded_scores_under_its_bound(reference_data: Path) -> None:
    """Greedy and Uniform Progress as recorded, ours above both, nobody late, and nobody above the exact optimum."""
    (ground,) = (each for each in spot_grounds(reference_data) if each.name == "spot-tight-small")
    result = run_bench((ground,), ParallelWorkers())
    rows = {policy: result.rows[ground.name][policy][0].values for policy in ground.policies}
    recorded = {row.policy: row.metrics["score"] for row in ground.published}
    assert rows["greedy"]["score"] == pytest.approx(recorded["greedy"], abs=0.006)
    assert rows["uniform_progress"]["score"] == pytest.approx(recorded["uniform_progress"], abs=0.006)
    assert rows["walras"]["score"] > rows["uniform_progress"]["score"]
    for row in rows.values():
        assert row["late"] == 0
        assert row["score"] <= row["score_bound"] == pytest.approx(recorded["exact optimum"], abs=0.006)


def test_the_bound_of_arenas_world_holds_for_its_own_policy_and_ours(reference_data: Path) -> None:
    """In the first 150 rounds; what bounds a job alone is its fastest place of any type, not what its user chose."""
    (ground,) = (each for each in full_bench(reference_data) if each.name == "arena-453-rounds")
    assert isinstance(ground, BenchGround)
    short = replace(ground, run=replace(ground.run, until_s=150 * 300.0))
    result = run_bench((short,), ParallelWorkers())
    for policy in short.policies:
        (row,) = result.rows[short.name][policy]
        assert row.values["finished"] > 3
        assert 0 < row.values["no_contention_s"] <= row.values["jct_bound_s"] <= row.values["avg_jct_s"]
        assert row.values["makespan_bound_s"] <= row.values["makespan_s"]
