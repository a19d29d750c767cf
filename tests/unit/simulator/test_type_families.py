"""A simulation runs what a server would: a job that names a family runs on any size of it that the cluster has."""

from pathlib import Path

import pytest

from simulator.experiment import load_experiment

CLUSTER = """
pools:
  - {shape: small, accelerator: NVIDIA A100-SXM4-40GB, accelerators: 2, cpus: 8, memory: 16GB, machines: 1}
  - {shape: large, accelerator: a100_80gb, accelerators: 2, cpus: 8, memory: 16GB, machines: 1}
  - {shape: other, accelerator: t4, accelerators: 4, cpus: 8, memory: 16GB, machines: 1}
speeds:
  cnn: {A100: 10, a100-80gb: 20, T4: 1}
"""
WORKLOAD = """
jobs:
  - {at: 0, job: {name: one, run: "true", profile: cnn, steps: 1000, resources: {accelerators: "NVIDIA A100:2"}}}
"""
TRACE = "at,name,kind,gang,steps,types\n0,one,cnn,2,1000,Tesla A100\n"


@pytest.mark.parametrize("name", ["workload.yaml", "trace.csv"])
def test_a_family_is_every_size_of_the_cluster_at_its_own_speed(tmp_path: Path, name: str) -> None:
    """A size has the speed that the cluster states for it, else that of the family; another product is no choice."""
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / name).write_text(WORKLOAD if name.endswith("yaml") else TRACE)
    experiment = load_experiment(tmp_path / name, tmp_path / "cluster.yaml")
    (job,) = experiment.jobs
    types = [model.pool.shape.accelerator for model in experiment.pools]
    assert [job.request.size_on(model.pool) for model in experiment.pools] == [2, 2, 0]
    assert experiment.truth.accelerators_of(job.request, types) == [("a100-40gb", 2), ("a100-80gb", 2)]
    speeds = [experiment.truth.steps_per_s(job.request.kind, name, 2) for name in types[:2]]
    assert speeds == [10.0, 20.0]
