"""Cluster and workload files: what they mean, and what is refused with the path of the field."""

from pathlib import Path
from typing import Any

import pytest

from walras.cluster import Market, Pool, PoolId, Shape
from walras.errors import ConfigError
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import load_mapping, load_yaml
from walras.spec.workload_file import WorkloadFile

CLUSTER = """\
pools:
  - {shape: a100x2, accelerator: A100, accelerators: 2, cpus: 4, memory: 8GB, nominal_speed: 4,
     emulated: true, machines: 1}
  - {shape: v100x1, accelerator: v100, accelerators: 1, cpus: 2, memory: 4GB, market: spot, provider: local,
     usd_per_h: 0.9, quota: 2, notice: 10s, boot: 2s}
speeds: {cnn: {A100: 12, v100: 6.5, k80: 3}}
"""

WORKLOAD = """\
jobs:
  - {at: 0s, user: ada, project: vision, job: {run: python cnn.py, profile: cnn, steps: 100}}
  - {at: 1m30s, user: bob, job: {run: hostname, deadline: +5m}}
incidents:
  - {at: 70s, revoke: v100x1/spot/default}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "file.yaml"
    path.write_text(text)
    return path


def test_a_cluster_file_becomes_pools(tmp_path: Path) -> None:
    """Every field of a pool arrives, canonical and in base units."""
    cluster = load_yaml(written(tmp_path, CLUSTER), ClusterConfig)
    owned, spot = cluster.pool_list()
    assert owned == Pool(PoolId("a100x2/owned/default"), Shape("a100x2", "a100", 2, 4.0, 8 * 10**9, 4.0, True))
    assert (spot.pool_id, spot.market, spot.usd_per_h, spot.quota, spot.notice_s) == (
        "v100x1/spot/default", Market.SPOT, 0.9, 2, 10.0,
    )  # fmt: skip
    assert [entry.machines for entry in cluster.pools] == [1, 0]
    assert cluster.entry("v100x1/spot/default").boot == 2.0
    assert cluster.entry("v100x1/spot/default").provider == "local"
    assert cluster.speeds == {"cnn": {"a100": 12.0, "v100": 6.5, "k80": 3.0}}


def test_a_pool_that_does_not_exist_is_answered_with_the_nearest(tmp_path: Path) -> None:
    """Looking a pool up by a misspelt id names the one that was probably meant."""
    cluster = load_yaml(written(tmp_path, CLUSTER), ClusterConfig)
    with pytest.raises(ConfigError) as refusal:
        cluster.entry("v100x1/spott/default")
    assert "v100x1/spot/default" in refusal.value.fix


def test_a_workload_file(tmp_path: Path) -> None:
    """Jobs with who and when, and incidents; job specs inside are checked like any other."""
    workload = load_yaml(written(tmp_path, WORKLOAD), WorkloadFile)
    first, second = workload.jobs
    assert (first.at, first.user, first.project, first.job.profile, first.job.steps) == (0, "ada", "vision", "cnn", 100)
    assert (second.at, second.project, second.job.deadline) == (90, None, "+5m")
    assert [(incident.at, incident.revoke) for incident in workload.incidents] == [(70.0, "v100x1/spot/default")]


POOL = "shape: a, accelerator: a100, accelerators: 1, cpus: 2, memory: 8GB"


@pytest.mark.parametrize(
    ("model", "text", "field", "said"),
    [
        (ClusterConfig, "pools: []", "pools", "must not be empty"),
        (ClusterConfig, "poools: []", "poools", "did you mean `pools`"),
        (ClusterConfig, f"pools: [{{{POOL}, memry: 1}}]", "pools[0].memry", "pools[0].memory"),
        (ClusterConfig, f"pools: [{{{POOL}, price: 1}}]", "pools[0].price", "usd_per_h"),
        (ClusterConfig, f"pools: [{{{POOL}}}, {{{POOL}}}]", "pools[1]", "a second pool"),
        (
            ClusterConfig,
            f"pools: [{{{POOL}}}, {{{POOL}, zone: b, nominal_speed: 2}}]",
            "pools[1].shape",
            "name of its own",
        ),
        (ClusterConfig, f"pools: [{{{POOL}, quota: 2}}]", "pools[0].quota", "owned pool"),
        (ClusterConfig, f"pools: [{{{POOL}, market: spot}}]", "pools[0].provider", "needs a provider"),
        (
            ClusterConfig,
            f"pools: [{{{POOL}, market: spot, provider: local, machines: 2}}]",
            "pools[0].machines",
            "quota",
        ),
        (ClusterConfig, f"pools: [{{{POOL}, market: rented}}]", "pools[0].market", "'owned'"),
        (ClusterConfig, f"pools: [{{{POOL}, machines: -1}}]", "pools[0].machines", "0 or more"),
        (ClusterConfig, f"pools: [{{{POOL}, zone: ../x}}]", "pools[0].zone", "zone"),
        (ClusterConfig, f"pools: [{{{POOL}, usd_per_h: .nan}}]", "pools[0].usd_per_h", "finite"),
        (ClusterConfig, f"pools: [{{{POOL}}}]\nspeeds: {{cnn: {{a100: -2}}}}", "speeds.cnn.a100", "above 0"),
        (WorkloadFile, "jobs: [{at: 0s, job: {run: x, stepz: 1}}]", "jobs[0].job.stepz", "jobs[0].job.steps"),
        (WorkloadFile, "jobs: [{at: -1s, job: {run: x}}]", "jobs[0].at", "'10m'"),
        (
            WorkloadFile,
            "jobs: [{at: 0s, job: {run: x, deadline: '2026-11-05T18:00:00Z'}}]",
            "jobs[0].job.deadline",
            "+12h",
        ),
        (WorkloadFile, "jobs: [{at: 0s, job: {run: x, num_nodes: 2}}]", "jobs[0].job.num_nodes", "multiple"),
        (WorkloadFile, "jobs: 5", "jobs", "jobs"),
    ],
)
def test_mistakes_are_named_by_path(tmp_path: Path, model: Any, text: str, field: str, said: str) -> None:
    """The file, the path of the field and the fix stand in the error."""
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as refusal:
        load_yaml(path, model)
    assert refusal.value.field == field
    assert said in f"{refusal.value}\n{refusal.value.fix}"
    assert str(path) in str(refusal.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file, a folder and a plain value are the person's to mend, not crashes."""
    for path in (tmp_path / "none.yaml", tmp_path, written(tmp_path, "5")):
        with pytest.raises(ConfigError) as refusal:
            load_mapping(path)
        assert refusal.value.fix
    assert load_mapping(written(tmp_path, "policy: {name: fifo, parameters: {tolerance: 1e-6}}")) == {
        "policy": {"name": "fifo", "parameters": {"tolerance": 1e-6}}
    }
