"""The request of a job and its groups."""

import json
from dataclasses import fields, replace

import pytest
from pydantic import TypeAdapter

from walras.cluster import Pool, PoolId, Shape
from walras.job_request import (
    ANY_ACCELERATOR,
    Demand,
    GangRequest,
    JobId,
    JobIdentity,
    JobLimits,
    JobRequest,
    Kind,
    group_fields,
)


def a_pool(accelerator: str, each: int) -> Pool:
    return Pool(PoolId(accelerator), Shape(accelerator, accelerator, each, 8.0, 2**34))


@pytest.mark.parametrize(
    ("demands", "nodes", "size"),
    [
        ((Demand("a100", 4),), 1, 4),
        ((Demand("v100", 4),), 1, 0),
        ((Demand(ANY_ACCELERATOR, 2),), 1, 2),
        ((Demand(ANY_ACCELERATOR, 2), Demand("a100", 3)), 1, 3),
        ((Demand("a100", 8),), 2, 8),
        ((Demand("a100", 9),), 2, 0),
        ((Demand("a100", 16),), 2, 0),
        ((), 1, 0),
    ],
)
def test_the_size_of_a_gang_on_a_pool(demands: tuple[Demand, ...], nodes: int, size: int) -> None:
    """A type that is named comes before `any`; machines share the gang evenly; 0 where it cannot run."""
    assert GangRequest(demands=demands, nodes=nodes).size_on(a_pool("a100", 4)) == size


def test_jobs_with_equal_gangs_are_alike_whoever_they_belong_to() -> None:
    """Job classes are keyed by the gang alone."""
    first = JobRequest(JobId(1), Kind("k"), demands=(Demand("a100", 2),), user="ann", deadline_at=5.0)
    second = JobRequest(JobId(2), Kind("l"), demands=(Demand("a100", 2),), user="bob", priority=80)
    assert first.gang_request == second.gang_request
    assert hash(first.gang_request) == hash(second.gang_request)


def test_a_request_is_stored_flat() -> None:
    """The groups are no levels of the JSON, so that requests stored before they existed read as they always did."""
    adapter = TypeAdapter(JobRequest)
    request = JobRequest(JobId(1), Kind("k"), demands=(Demand("a100", 2),), project="p", max_runtime_s=9.0)
    stored = json.loads(json.dumps(adapter.dump_python(request, mode="json")))
    assert stored["project"] == "p"
    assert stored["demands"] == [{"accelerator": "a100", "count": 2}]
    assert adapter.validate_python(stored) == request
    old = {"job_id": 1, "kind": "k", "demands": [{"accelerator": "a100", "count": 2}]}
    assert adapter.validate_python(old) == JobRequest(JobId(1), Kind("k"), demands=(Demand("a100", 2),))


def test_groups_share_no_field() -> None:
    """Each field of a request belongs to one group or to the request alone."""
    request = JobRequest(JobId(1), Kind("k"), demands=())
    names = [field.name for group in (JobIdentity, JobLimits, GangRequest) for field in fields(group)]
    assert len(names) == len(set(names))
    assert group_fields(request, JobIdentity, JobLimits, GangRequest).keys() == set(names)
    assert not hasattr(request, "__dict__")


def test_only_the_named_pools_hold_the_gang() -> None:
    """Whatever is in the others; without names every pool does."""
    here, there = a_pool("a100", 4), replace(a_pool("a100", 4), pool_id=PoolId("there"))
    request = GangRequest(demands=(Demand("a100", 2),), pools=("there",))
    assert (request.size_on(here), request.size_on(there)) == (0, 2)
    assert replace(request, pools=()).size_on(here) == 2
    assert request.text == "2 x a100 of there"
