"""The speed of machines that state none: that of their pool, else of their type's data sheet."""

from dataclasses import replace

import pytest

from scheduler.live.services.agent_identity import with_known_speed
from walras.cluster import Market, Pool, PoolId, Shape
from walras.spec.catalog import catalog_speed

A100 = Pool(PoolId("p"), Shape("p4d", "a100-40gb", 8, 96.0, 1 << 40), Market.OWNED)


def stated(pool: Pool, speed: float, *, emulated: bool = False) -> Pool:
    return replace(pool, shape=replace(pool.shape, nominal_speed=speed, emulated=emulated))


@pytest.mark.parametrize(
    ("joining", "declared", "speed"),
    [
        (A100, None, catalog_speed("a100-40gb")),
        (stated(A100, 3.0), None, 3.0),
        (stated(A100, 3.0), stated(A100, 2.0), 3.0),
        (A100, stated(A100, 2.0), 2.0),
        (A100, A100, 1.0),
        (stated(A100, 1.0, emulated=True), None, 1.0),
        (replace(A100, shape=replace(A100.shape, accelerator="frob")), None, 1.0),
    ],
)
def test_a_machine_that_states_no_speed_has_a_known_one(joining: Pool, declared: Pool | None, speed: float) -> None:
    """What it states counts, then its pool (so that machines of earlier releases stay welcome), then the data sheet."""
    assert with_known_speed(joining, declared).shape.nominal_speed == speed
