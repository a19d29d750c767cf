"""A job that agrees to share its accelerator: what its file may say, and the memory that devices have."""

import pytest

from walras.errors import ConfigError, JobSpecError
from walras.job_request import DeviceShare, JobId
from walras.spec.cluster_file import PoolEntry, catalog_memory_bytes
from walras.spec.job_spec import dump_spec, parse_spec
from walras.spec.spec_request import to_request

SHARED = {
    "run": "python train.py",
    "resources": {"accelerators": "a100-40gb:1", "shared": {"memory": "12GB", "busy": 0.5}},
}


def test_the_scheduler_reads_what_the_job_takes_of_the_device() -> None:
    spec = parse_spec(SHARED)
    assert to_request(spec, JobId(1), user="", project="p", at=0.0).shared == DeviceShare(12 * 10**9, 0.5)
    assert parse_spec(dump_spec(spec)) == spec
    alone = parse_spec({"run": "python train.py"})
    assert to_request(alone, JobId(1), user="", project="p", at=0.0).shared is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"resources": {"accelerators": "a100:2", "shared": {"memory": "1GB"}}}, "one accelerator"),
        ({"fork": {"max": 2}}, "one accelerator"),
        ({"elastic": {"min": 1, "max": 2}}, "one accelerator"),
        ({"deadline": "+1h"}, "deadline"),
        ({"resources": {"shared": {"busy": 0.5}}}, "memory"),
        ({"resources": {"shared": {"memory": "1GB", "busy": 1.5}}}, "busy"),
        ({"resources": {"shared": {"memory": 0}}}, "memory"),
        ({"packable": True}, "resources.shared"),
    ],
)
def test_what_cannot_be_shared_is_refused_by_name(change: dict[str, object], said: str) -> None:
    with pytest.raises(JobSpecError) as refused:
        parse_spec(SHARED | change)
    assert said in f"{refused.value} {refused.value.field} {refused.value.fix}"


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [("a100-40gb", 40), ("a100-40gb-1g.5gb", 5), ("v100", 16), ("my-card-11gb", 11), ("unheard-of", 0), ("cpu", 0)],
)
def test_the_memory_of_a_device_is_as_its_name_or_the_catalog_says(name: str, gigabytes: int) -> None:
    assert catalog_memory_bytes(name) == gigabytes * 10**9


def test_a_cluster_file_says_what_nothing_else_does() -> None:
    entry = {"shape": "x", "accelerator": "unheard-of", "accelerators": 1, "cpus": 1, "memory": "1GB"}
    assert PoolEntry.model_validate(entry).pool().shape.accelerator_memory_bytes == 0
    told = PoolEntry.model_validate(entry | {"accelerator_memory": "24GB"})
    assert told.pool().shape.accelerator_memory_bytes == 24 * 10**9


def test_a_policy_with_listed_pairs_is_refused_where_nobody_lists_any() -> None:
    from scheduler.core.rules import parse_policy, refuse_listed_pairs

    spec, _ = parse_policy({"policy": {"name": "max_min_fairness", "parameters": {"packed": True}}})
    with pytest.raises(ConfigError, match="packed"):
        refuse_listed_pairs(spec)
