"""What is told of a trace, and the pictures of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.workloads.formats import read_trace
from simulator.workloads.trace_source import ConvertSettings, SkippedRows, Trace, TraceJob
from simulator.workloads.workload_actions import (
    accelerator_demand,
    convert_trace,
    describe_trace,
    format_catalogue,
    generate_trace,
    plot_trace,
    trace_description_json,
    trace_description_tables,
)
from walras.errors import ConfigError
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import load_yaml

ROOT = Path(__file__).resolve().parents[3]
JOBS = [
    TraceJob(0.0, "a", "x", 1, duration_s=3600.0, project="p"),
    TraceJob(1800.0, "b", "y", 4, duration_s=1800.0, project="q", weight=2.0),
    TraceJob(7200.0, "c", "x", 1, duration_s=7200.0, project="p", slo=2.0),
]
TRACE = Trace("made up", "csv", JOBS, SkippedRows(2, ("first", "second")))


def _cluster(machines: int = 2) -> ClusterConfig:
    pool = {"shape": "v", "accelerator": "v100", "accelerators": 2, "cpus": 1, "memory": "1GB", "machines": machines}
    return ClusterConfig.model_validate({"pools": [pool]})


def test_counts_spreads_and_load() -> None:
    """Work is gang times run time; load is work over what the cluster has between first and last arrival."""
    told = describe_trace(TRACE, _cluster())
    assert (told.jobs, told.skipped, told.jobs_per_h, told.with_deadline) == (3, 2, 1.0, 1)
    assert (told.gangs, told.kinds, told.projects, told.weights) == (
        {1: 2, 4: 1}, {"x": 2, "y": 1}, {"p": 2, "q": 1}, {1.0: 2, 2.0: 1},
    )  # fmt: skip
    assert told.accelerator_h == 5.0
    assert told.duration_s is not None
    assert (told.duration_s.mean, told.duration_s.quantiles[3]) == (4200.0, 3600.0)
    assert told.load is not None
    assert (told.load.accelerators, told.load.accelerator_h, told.load.offered_load) == (4, 5.0, 5.0 / 8.0)
    assert (told.load.drained_after_h, told.load.too_large) == (1.25, 0)
    small = describe_trace(TRACE, _cluster(machines=1)).load
    assert small is not None
    assert small.too_large == 1
    json.dumps(trace_description_json(told))


def test_a_trace_that_arrives_at_once_has_no_rate() -> None:
    told = describe_trace(Trace("", "csv", [TraceJob(5.0, "a", "x", 1, duration_s=60.0)]), _cluster())
    assert told.jobs_per_h is None
    assert told.load is not None
    assert told.load.offered_load is None
    assert "all at once" in str(trace_description_tables(told)[0].rows)


def test_tables_for_people() -> None:
    """Frequent values first, the rest together; nothing where there is one value."""
    jobs = [TraceJob(float(number), str(number), f"k{number % 20:02}", 1) for number in range(100)]
    titles = {part.title: part.rows for part in trace_description_tables(describe_trace(Trace("", "csv", jobs)))}
    assert titles["Kinds"][0] == ("k00", "5", "5.0 %")
    assert titles["Kinds"][-1] == ("(8 more)", "40", "40.0 %")
    assert titles.keys() == {"", "Gangs", "Kinds"}


def test_accelerators_wanted_over_time() -> None:
    curve = dict(accelerator_demand(JOBS))
    assert curve == {0.0: 1, 1800.0: 5, 3600.0: 0, 7200.0: 1, 14400.0: 0}


@pytest.mark.slow
def test_pictures_are_the_same_for_the_same_trace(tmp_path: Path) -> None:
    """Whatever the format; nothing of the time or the machine is in them. Jobs without a length can be drawn, too."""
    for ending, begins in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        plot_trace(TRACE, tmp_path / f"1.{ending}")
        plot_trace(TRACE, tmp_path / f"2.{ending}")
        first, second = ((tmp_path / f"{name}.{ending}").read_bytes() for name in "12")
        assert first.startswith(begins)
        assert first == second
    plot_trace(Trace("$x^", "pollux", [TraceJob(0.0, "a", "bert", 1)]), tmp_path / "3.png")


def test_a_picture_has_a_known_ending(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"plots are written as \.png or \.svg"):
        plot_trace(TRACE, tmp_path / "plot.exe")


def test_every_format_and_generator_is_listed() -> None:
    rows = format_catalogue()
    assert {"philly", "gavel", "hadar-60", "csv"} <= {name for _, name, _ in rows}
    assert all(about for _, _, about in rows)


@pytest.mark.parametrize(
    ("workload", "cluster"),
    [
        ("three-types.csv", "gavel-12-12-12"), ("three-types.csv", "hadar-60"), ("bursts.csv", "sia-64"),
        ("diurnal.jsonl", "mixed-cloud"), ("deadlines.yaml", "mixed-cloud"),
    ],
)  # fmt: skip
def test_our_own_workloads_fit_our_own_clusters(workload: str, cluster: str) -> None:
    from simulator.experiment import load_experiment

    path, config = ROOT / "configs/workloads" / workload, ROOT / f"configs/clusters/{cluster}.yaml"
    experiment = load_experiment(path, config)
    assert len(list(experiment.jobs)) == len(read_trace(path).jobs)


@pytest.mark.parametrize(
    ("workload", "cluster", "generator", "seed", "words"),
    [
        ("three-types.csv", "gavel-12-12-12", "poisson", 1, {"jobs": 60, "rate_per_h": 30.0, "stretch": 0.1}),
        ("bursts.csv", "sia-64", "burst", 2, {"jobs": 80, "rate_per_h": 60.0, "stretch": 0.05, "priorities": True}),
        ("diurnal.jsonl", "mixed-cloud", "diurnal", 3, {"jobs": 100, "rate_per_h": 5.0, "stretch": 0.3, "slos": True}),
    ],
)
def test_our_own_workloads_can_be_made_again(
    tmp_path: Path, workload: str, cluster: str, generator: str, seed: int, words: dict[str, Any]
) -> None:
    made, out = tmp_path / "made.csv", tmp_path / workload
    generate_trace(generator, made, speeds=None, force=False, seed=seed, **words)
    settings = ConvertSettings(seeded_speeds=str(ROOT / f"configs/clusters/{cluster}.yaml"), seed=seed)
    convert_trace(made, out, settings, force=False)
    assert list(read_trace(out).jobs) == list(read_trace(ROOT / "configs/workloads" / workload).jobs)


def test_named_clusters_have_their_size() -> None:
    for name, size in (("philly-512", 512), ("hadar-60", 60), ("sia-64", 64), ("gavel-8-16-24", 48)):
        pools = load_yaml(ROOT / f"configs/clusters/{name}.yaml", ClusterConfig).pools
        assert sum(entry.machines * entry.accelerators for entry in pools) == size
