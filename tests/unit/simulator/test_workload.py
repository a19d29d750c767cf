"""From workload and cluster files to a simulation's input."""

from pathlib import Path

import pytest

from scheduler.world.attempts import AttemptCosts, PlannedFailure
from simulator.experiment import load_experiment, pool_models
from simulator.faults import PoolRevocation
from simulator.measured_costs import MeasuredCosts, load_measured_costs
from walras.errors import ConfigError, UserError
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import check_model

CLUSTER = """
pools:
  - {shape: a100x2, accelerator: a100, accelerators: 2, cpus: 4, memory: 8GB, machines: 2}
  - {shape: v100x1, accelerator: v100, accelerators: 1, cpus: 4, memory: 8GB, market: spot, provider: local,
     usd_per_h: 0.9, quota: 2, notice: 10s, boot: 2s}
speeds: {cnn: {a100: 12, v100: 6}, rnn: {a100: 4, v100: 4}}
"""
WORKLOAD = """
jobs:
  - {at: 20s, user: bob, project: text, job: {name: late, run: x, profile: rnn, steps: 40, depends_on: [early],
     resources: {accelerators: "any:1"}}}
  - {at: 0s, user: ada, project: vision, job: {name: early, run: x, profile: cnn, steps: 120, priority: high,
     resources: {accelerators: "a100:2"}}}
incidents: [{at: 70s, revoke: v100x1/spot/default}]
"""


def _files(folder: Path, workload: str = WORKLOAD, cluster: str = CLUSTER) -> tuple[Path, Path]:
    (folder / "workload.yaml").write_text(workload)
    (folder / "cluster.yaml").write_text(cluster)
    return folder / "workload.yaml", folder / "cluster.yaml"


def test_a_workload_file_becomes_jobs_in_order_of_arrival(tmp_path: Path) -> None:
    """Numbered as they arrive, dependencies resolved by name, incidents and pools taken over."""
    experiment = load_experiment(*_files(tmp_path))
    early, late = experiment.jobs
    assert (early.at, early.request.job_id, early.request.project, early.request.user) == (0.0, 1, "vision", "ada")
    assert (early.name, early.steps, early.request.priority_class) == ("early", 120.0, 2)
    assert (late.request.job_id, late.request.depends_on) == (2, (1,))
    assert experiment.truth.steps_per_s(early.request.kind, "a100", 2) == 12.0
    assert experiment.incidents == (PoolRevocation(70.0, "v100x1/spot/default"),)
    assert [(p.machines, p.terms.boot_s, p.pool.quota) for p in experiment.pools] == [(2, 0.0, 0), (0, 2.0, 2)]


@pytest.mark.parametrize("kind", ["cnn", "@vision cnn"])
def test_measured_costs_replace_what_the_files_say(tmp_path: Path, kind: str) -> None:
    """Speeds, start and checkpoint costs, steps and exit codes of a real run, whose kinds may be those of projects."""
    measured = MeasuredCosts.model_validate(
        {
            "speeds": [{"kind": kind, "accelerator": "a100", "count": 2, "steps_per_s": 20.5}],
            "kinds": [{"kind": kind, "start_s": 4.0, "checkpoint_s": 1.5}],
            "jobs": [{"row": 0, "steps": 33.0}, {"row": 1, "steps": 50.0, "exit_code": 3}],
            "start_s": 2.0,
        }
    )
    experiment = load_experiment(*_files(tmp_path), measured=measured)
    early, late = experiment.jobs
    assert late.steps == 33.0
    assert early.failures == (PlannedFailure(50.0, 3),)
    assert experiment.truth.steps_per_s(early.request.kind, "a100", 2) == 20.5
    assert experiment.truth.steps_per_s(early.request.kind, "a100", 1) == 12.0
    assert experiment.truth.costs_of(early.request.kind) == AttemptCosts(4.0, 1.5)
    assert experiment.truth.costs_of(late.request.kind) == AttemptCosts(2.0, 0.0)


@pytest.mark.parametrize("kind", ["script", "@text script"])
def test_a_kind_without_a_speed_runs_for_its_measured_seconds(tmp_path: Path, kind: str) -> None:
    """A plain script that reports no steps: its steps are seconds, everywhere."""
    workload = WORKLOAD.replace("profile: rnn, steps: 40", "profile: script")
    measured = MeasuredCosts.model_validate(
        {
            "kinds": [{"kind": kind, "start_s": 1.0, "checkpoint_s": None}],
            "jobs": [{"row": 0, "steps": 17.0}],
        }
    )
    experiment = load_experiment(*_files(tmp_path, workload), measured=measured)
    late = list(experiment.jobs)[1]
    assert late.steps == 17.0
    assert experiment.truth.steps_per_s(late.request.kind, "v100", 1) == 1.0
    assert experiment.truth.costs_of(late.request.kind).checkpoint_s is None


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("steps: 40,", "", r"jobs\[0\]: the steps of 'late' are unknown"),
        ("profile: rnn", "profile: gan", "no speed is known for kind 'gan' on 1 x a100"),
        ("a100:2", "a100:5", r"job 1 \(early\) wants 5 x a100; no pool is that large"),
        ("[early]", "[never]", r"jobs\[0\]: 'late' depends on 'never'"),
        ("v100x1/spot/default}", "v100x1/spot/elsewhere}", "no pool 'v100x1/spot/elsewhere'"),
    ],
)
def test_what_does_not_fit_together_is_named(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert old in WORKLOAD
    with pytest.raises(UserError, match=complaint):
        load_experiment(*_files(tmp_path, WORKLOAD.replace(old, new)))


def test_measured_costs_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    path.write_text('{"kinds": [{"kind": "cnn", "start_s": -1}]}')
    with pytest.raises(ConfigError, match=r"measured\.json: kinds\.0\.start_s"):
        load_measured_costs(path)
    path.write_text('{"jobs": [{"row": 9, "steps": 1}]}')
    with pytest.raises(ConfigError, match="measured in row 9, the workload has 2 jobs"):
        load_experiment(*_files(tmp_path), measured=load_measured_costs(path))


def test_a_trace_without_a_throughput_table_says_where_it_looked(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    trace = tmp_path / "traces" / "some.tsv"
    trace.write_text("unknown\trun\t.\t--steps\t1\t10\t1\t1\t-1\t0\n")
    with pytest.raises(ConfigError, match=r"some\.tsv:1: 'unknown' x 1 has no speed on a100, v100") as caught:
        load_experiment(trace, _files(tmp_path)[1])
    assert "throughputs/simulation_throughputs.json" in caught.value.fix


def test_a_topology_of_other_machines_is_refused() -> None:
    """A simulation that took none of it would tell nothing of racks."""
    pool = {"shape": "gpu", "accelerator": "a100", "accelerators": 4, "cpus": 8, "memory": "64GiB", "machines": 2}
    racks = {"uplinks": {"machine": "1Gbit"}, "switches": {"r1": "node[1-2]"}}
    cluster = check_model(ClusterConfig, {"pools": [pool], "topology": racks}, source="c.yaml")
    with pytest.raises(ConfigError, match="names none of the machines") as refused:
        pool_models(cluster)
    assert refused.value.fix == "simulated machines are called gpu-1 to gpu-2"
