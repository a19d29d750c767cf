"""A workload file brought into the form of a trace: the same jobs, or a refusal that names what would be lost."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from simulator.experiment import load_experiment
from simulator.workloads.formats import read_trace
from simulator.workloads.trace_source import ConvertSettings
from simulator.workloads.workload_actions import convert_trace
from walras.errors import ConfigError

CLUSTER = """
pools: [{shape: a100x8, accelerator: a100, accelerators: 8, cpus: 4, memory: 8GB, machines: 2}]
speeds: {cnn: {a100: 12}}
"""
LAWS = """
laws:
  net:
    batch: {initial: 32, max: 512}
    noise_scale: {0: 100, 300: 1000}
    steps: 900
    on: {a100: {step_s: {1: {8: 0.1, 64: 0.4}, 2: {8: 0.12, 64: 0.42}, 4: {8: 0.13, 64: 0.43}}}}
"""
JOBS = """
jobs:
  - {at: 0s, user: ada, project: vision, job: {name: early, run: x, profile: cnn, steps: 120, priority: high,
     resources: {accelerators: "a100:2"}, retry: {max_restarts: 2, on_exit_codes: [3]}, grace_period: 5s},
     simulated: {failures: [{part: 0.5, exit_code: 3, times: 2}]}}
  - {at: 9s, user: bob, job: {name: late, run: x, profile: cnn, steps: 40, depends_on: [early], condition: finished,
     resources: {accelerators: "a100:1"}, deadline: +1h, preemptible: false, limits: {max_runtime: 1d}},
     simulated: {steps: 80, cancel: 1h}}
  - {at: 10s, user: bob, job: {name: own-batch, run: x, profile: net, elastic: {min: 1, max: 4}, not_before: +5s,
     resources: {accelerators: "a100:2"}, batch: {global: 64, adaptive: true}}}
  - {at: 10s, user: bob, job: {name: bounded, run: x, profile: net, steps: 70, batch: {global: 64, max: 128}}}
  - {at: 11s, user: bob, job: {name: fixed, run: x, profile: net, steps: 70, batch: {global: 64}, num_nodes: 2,
     resources: {accelerators: "a100:2"}, value_usd_per_h: 3, weight: 2}}
  - {at: 12s, user: bob, job: {name: free, run: x, profile: net, steps: 70}}
"""


def _files(folder: Path, workload: str) -> tuple[Path, Path]:
    (folder / "w.yaml").write_text(workload)
    (folder / "c.yaml").write_text(CLUSTER)
    return folder / "w.yaml", folder / "c.yaml"


@pytest.mark.parametrize("ending", ["csv", "jsonl", "csv.gz"])
def test_a_workload_file_and_the_trace_made_of_it_are_the_same_jobs(tmp_path: Path, ending: str) -> None:
    """Job by job, what the scheduler hears and what is true; laws are read from the workload file itself."""
    workload, cluster = _files(tmp_path, LAWS + JOBS)
    trace = tmp_path / f"t.{ending}"
    convert_trace(workload, trace, ConvertSettings(), force=False)
    given = load_experiment(workload, cluster)
    made = load_experiment(trace, cluster, speeds_path=workload)
    pairs = list(zip(given.jobs, made.jobs, strict=True))
    for number, (ours, theirs) in enumerate(pairs, start=1):
        demands = theirs.request.demands  # `any` stands for the types of the cluster
        assert replace(ours, name=f"{number}-{ours.name}", request=replace(ours.request, demands=demands)) == theirs
        ways = given.truth.accelerators_of(ours.request, ["a100"])
        assert ways == made.truth.accelerators_of(theirs.request, ["a100"])
        for way in ways:
            assert given.truth.steps_per_s(ours.request.kind, *way) == made.truth.steps_per_s(theirs.request.kind, *way)
    kinds = [ours.request.kind for ours, _ in pairs]
    assert kinds == [
        "cnn", "cnn", "net (batch size 64 to 512)", "net (batch size 64 to 128)", "net (batch size 64)", "net",
    ]  # fmt: skip
    assert [ours.request.steps for ours, _ in pairs] == [120.0, 40.0, 900.0, 70.0, 70.0, 70.0]
    assert [ours.steps for ours, _ in pairs] == [120.0, 80.0, 900.0, 70.0, 70.0, 70.0]


def test_a_trace_that_is_converted_again_is_the_same_file(tmp_path: Path) -> None:
    workload, _ = _files(tmp_path, LAWS + JOBS)
    paths = [workload, tmp_path / "1.csv", tmp_path / "2.jsonl", tmp_path / "3.csv"]
    for source, target in pairwise(paths):
        convert_trace(source, target, ConvertSettings(), force=False)
    assert paths[1].read_bytes() == paths[3].read_bytes()
    assert read_trace(paths[1]).jobs == read_trace(paths[2]).jobs


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (JOBS + "incidents: [{at: 70s, revoke: x/spot/default}]", "incidents"),
        ("jobs: [{at: 0s, job: {run: x, steps: 1, resources: {accelerators: {a100: 1, v100: 2}}}}]",
         "jobs[0].job.resources.accelerators"),
        ("jobs: [{at: 0s, job: {run: x, steps: 1, hold: true}}]", "jobs[0].job.hold"),
        ("jobs: [{at: 0s, job: {name: a, run: x, steps: 1, depends_on: [b]}}]", "depends_on"),
        ("jobs: [{at: 9s, job: {run: x, steps: 1}, simulated: {cancel: 5s}}]", "jobs[0].simulated.cancel"),
    ],
)  # fmt: skip
def test_what_a_trace_cannot_say_is_refused_by_name(tmp_path: Path, text: str, field: str) -> None:
    workload, _ = _files(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        convert_trace(workload, tmp_path / "t.csv", ConvertSettings(), force=False)
    assert refused.value.field == field
    assert not (tmp_path / "t.csv").exists()


@pytest.mark.parametrize(
    ("workload", "field"),
    [
        ("jobs: [{at: 0s, job: {run: x, profile: cnn, steps: 9, batch: {global: 8, adaptive: true}}}]",
         "jobs[0].job.batch"),
        (LAWS + "jobs: [{at: 0s, job: {run: x, profile: net, steps: 9, batch: {global: 8, max: 9999}}}]", "batch"),
        (LAWS + "jobs: [{at: 0s, job: {run: x, profile: net, steps: 9, batch: {global: 8, max: 4}}}]",
         "jobs[0].job.batch.max"),
        (LAWS + "jobs: [{at: 0s, job: {run: x, profile: net, resources: {accelerators: 'a100:3'}}}]", "laws.net.on"),
        (LAWS + "jobs: [{at: 0s, job: {run: x, profile: net, batch: {global: 9}, resources: {accelerators: 'a100:3'}}}"
         "]", "laws.net.on"),
        (LAWS.replace("{0: 100, 300: 1000}", "{5: 100}") + JOBS, "laws.net.noise_scale"),
        (LAWS.replace("8: 0.1,", "8: 0,") + JOBS, "laws.net.on.a100.step_s[1][8]"),
        (LAWS.replace("max: 512", "max: 5") + JOBS, "laws.net.batch.max"),
    ],
)  # fmt: skip
def test_a_law_that_makes_no_sense_is_refused_by_name(tmp_path: Path, workload: str, field: str) -> None:
    """So is a batch that no law is about, and a gang that the law does not know."""
    with pytest.raises(ConfigError) as refused:
        load_experiment(*_files(tmp_path, workload))
    assert refused.value.field == field, str(refused.value)
