"""Batch shares of unlike workers: exact sums, equal times, no change for nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walras.training.work_split import SampleBounds, rebalance_shares, split_samples

workers_drawn = st.lists(
    st.tuples(st.floats(0.1, 100.0), st.integers(1, 20), st.integers(0, 500)), min_size=1, max_size=8
)


@given(workers_drawn, st.floats(0.0, 1.0))
def test_shares_sum_to_the_batch_and_keep_to_their_rooms(drawn: list[tuple[float, int, int]], part: float) -> None:
    """Whatever the speeds, for every batch that the rooms can hold."""
    speeds = [speed for speed, _, _ in drawn]
    bounds = [SampleBounds(least, least + more) for _, least, more in drawn]
    low, high = sum(room.least for room in bounds), sum(room.most for room in bounds)
    batch = low + round(part * (high - low))
    shares = split_samples(batch, speeds, bounds)
    assert sum(shares) == batch
    assert all(room.least <= share <= room.most for share, room in zip(shares, bounds, strict=True))


def test_shares_follow_speed() -> None:
    """3, 5 and 12 samples/s share 384 as 57.6, 96 and 230.4, in whole samples."""
    assert split_samples(384, [3.0, 5.0, 12.0], [SampleBounds()] * 3) == (58, 96, 230)


@given(st.lists(st.floats(1.0, 50.0), min_size=2, max_size=6))
def test_one_step_leaves_little_idle_and_the_next_changes_nothing(speeds: list[float]) -> None:
    """With linear times: idle time below 5 % after one change, the batch as before, then rest."""
    batch = 1000 * len(speeds)
    equal = [batch // len(speeds)] * len(speeds)
    bounds = [SampleBounds()] * len(speeds)

    def times(shares: tuple[int, ...] | list[int]) -> list[float]:
        return [share / speed for share, speed in zip(shares, speeds, strict=True)]

    found = rebalance_shares(equal, times(equal), bounds)
    assert sum(found) == batch
    if found != tuple(equal):
        assert 1.0 - sum(times(found)) / len(speeds) / max(times(found)) < 0.05
    assert rebalance_shares(found, times(found), bounds) == found


def test_a_small_difference_changes_nothing() -> None:
    """3 % more time is inside the dead band."""
    assert rebalance_shares([100, 100], [1.0, 1.03], [SampleBounds()] * 2) == (100, 100)
    assert rebalance_shares([100, 100], [1.0, 1.5], [SampleBounds()] * 2) == (120, 80)


def test_a_batch_that_fits_nowhere_is_refused() -> None:
    """More than all memory, and less than one sample each."""
    for batch in (9, 1):
        with pytest.raises(ValueError, match="does not fit"):
            split_samples(batch, [1.0, 1.0], [SampleBounds(1, 4)] * 2)
