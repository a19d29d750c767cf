"""Stalls from differential runs: each planted second on the right stall, and nothing lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.prediction.step_time import StallRuns, attribute_stalls

seconds = st.floats(0.0, 10.0)


@given(st.floats(0.01, 10.0), seconds, seconds, seconds, seconds)
def test_planted_stalls_are_found_where_they_were_planted(
    compute: float, inside: float, prepare: float, fetch: float, network: float
) -> None:
    """All five come back, and their shares sum to 1."""
    together = compute + inside
    found = attribute_stalls(
        StallRuns(compute, together, together + prepare, together + prepare + fetch, together + network)
    )
    assert (found.compute_s, found.inside_s) == pytest.approx((compute, inside))
    assert (found.prepare_s, found.fetch_s, found.network_s) == pytest.approx((prepare, fetch, network), abs=1e-9)
    assert sum(found.shares.values()) == pytest.approx(1.0)


def test_noise_below_nothing_is_no_stall() -> None:
    """A run that was faster than the one it adds to stalls for 0 s; networks never run count for none."""
    found = attribute_stalls(StallRuns(1.0, 0.98, 0.97, 1.2))
    assert (found.inside_s, found.prepare_s, found.network_s) == (0.0, 0.0, 0.0)
    assert found.fetch_s == pytest.approx(0.23)
