"""`walras recommend --launch`: which pool a recommendation from the catalog becomes."""

from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from optimizer.planning.machine_choice import RunGoal
from optimizer.planning.machine_recommendation import MachineRecommendation, RecommendationTerms, recommend_machines
from walras.api import PoolView
from walras.cli.machine_commands import read_catalog
from walras.cli.recommend_commands import pool_launch
from walras.errors import UserError
from walras.spec.catalog import Catalog, CatalogInstance
from walras.spec.job_spec import parse_spec

V100 = {"instance": "vx1", "accelerator": "v100", "accelerators": 1, "cpus": 4, "memory": "8GB"}
COMMON = {"cloud": "aws", "region": "us-east-1", "as_of": date(2026, 11, 1), "source": "made up"}
JOB = parse_spec(
    {
        "run": "x",
        "steps": 36_000,
        "batch": {"global": 8},
        "resources": {"accelerators": {"v100": 2}},
        "num_nodes": 2,
        "throughput": {"v100": 20.0},
    }
)


def known() -> Catalog:
    sold = CatalogInstance.model_validate({**COMMON, **V100, "on_demand_usd_per_h": 3.0, "spot_usd_per_h": 1.0})
    return Catalog(read_catalog(()).accelerators, (sold,))


def found(*, spot: bool = False) -> MachineRecommendation:
    """Two machines of one v100 each."""
    terms = RecommendationTerms(spot=spot, network_bytes_per_s=1e9)
    return recommend_machines(JOB, [], known(), terms, RunGoal(deadline_s=7200), ())


def pool(pool_id: str, provider: str, **changes: Any) -> PoolView:
    shape, market, zone = pool_id.split("/")
    fields: dict[str, Any] = {"accelerator": "v100", "accelerators": 1, "usd_per_h": 3.0, "quota": 1, "drained": False}
    fields |= {"machines": 0, "coming": 0, "jobs": []}
    view = {"pool_id": pool_id, "shape": shape, "market": market, "zone": zone, "provider": provider}
    return PoolView(**view, **(fields | changes))


@pytest.fixture
def pair() -> MachineRecommendation:
    """The declared speed is of two machines, so only that set is known to run the job without more facts."""
    recommended = found()
    assert recommended.recommendation is not None
    assert recommended.recommendation.setup.counts == (2,)
    return recommended


def test_a_new_pool_has_as_many_machines_as_the_job_takes(pair: MachineRecommendation) -> None:
    """In a zone of the region where the provider has one, at the catalog's price; real machines are not emulated."""
    step = pool_launch(pair, known(), [pool("g5/spot/us-east-1b", "aws"), pool("q/spot/eu-west-1a", "aws")])
    assert (step.pool_id, step.machines, step.quota) == ("vx1/on_demand/us-east-1b", 2, None)
    assert step.added is not None
    assert (step.added["quota"], step.added["usd_per_h"], step.added["provider"]) == (2, 3.0, "aws")
    assert step.added["emulated"] is False
    bare = pool_launch(pair, known(), [])
    assert bare.pool_id == "vx1/on_demand/us-east-1"


def test_a_pool_that_is_there_gets_the_quota_that_is_missing(pair: MachineRecommendation) -> None:
    """Machines that hold other jobs count as taken; a large enough quota is left alone."""
    name = "vx1/on_demand/us-east-1"
    assert pool_launch(pair, known(), [pool(name, "aws")]).quota == 2
    assert pool_launch(pair, known(), [pool(name, "aws", quota=4, machines=3, jobs=[1])]).quota == 5
    enough = pool_launch(pair, known(), [pool(name, "aws", quota=9)])
    assert (enough.added, enough.quota) == (None, None)


def test_a_rehearsal_is_emulated(pair: MachineRecommendation) -> None:
    """On a server that has only the local provider, whatever cloud the catalog names."""
    step = pool_launch(pair, known(), [pool("kx1/on_demand/default", "local"), pool("o/owned/default", "")])
    assert step.added is not None
    assert (step.added["provider"], step.added["emulated"]) == ("local", True)


def test_spot_becomes_a_spot_pool() -> None:
    """At the typical spot price."""
    step = pool_launch(found(spot=True), known(), [])
    assert step.pool_id == "vx1/spot/us-east-1"
    assert step.added is not None
    assert (step.added["market"], step.added["usd_per_h"]) == ("spot", 1.0)


def test_a_mixed_gang_is_not_launched(pair: MachineRecommendation) -> None:
    """It would be of several pools."""
    assert pair.recommendation is not None
    setup = replace(pair.recommendation.setup, counts=(1, 1))
    both = replace(pair, machines=pair.machines * 2, recommendation=replace(pair.recommendation, setup=setup))
    with pytest.raises(UserError, match="several pools"):
        pool_launch(both, known(), [])
