"""Which gangs over several pools are listed for a job."""

from itertools import product

import pytest

from scheduler.core.state.job_classes import GANGS_MAX, POOLS_MAX, gangs_over_pools

SPEEDS = [4.0, 2.0, 1.0, 3.0]


@pytest.mark.parametrize(
    ("gang", "most"),
    [
        (2, (1, 1, 0, 0)), (3, (1, 1, 1, 0)), (4, (4, 4, 4, 0)), (5, (2, 2, 2, 2)), (16, (6, 5, 5, 0)),
        (64, (40, 40, 8, 8)), (9, (8, 8, 8, 8)), (3, (9, 0, 0, 0)), (30, (1, 1, 1, 1)),
    ],
)  # fmt: skip
def test_each_is_whole_fits_and_is_listed_once(gang: int, most: tuple[int, ...]) -> None:
    """A bounded number; over two pools or more; the fewest pools first; some wherever there is one."""
    found = gangs_over_pools(gang, SPEEDS, most)
    assert len(found) == len(set(found)) <= GANGS_MAX
    for parts in found:
        assert sum(count for _, count in parts) == gang
        assert len(parts) > 1
        assert all(0 < count <= most[row] for row, count in parts)
    assert [len(parts) for parts in found] == sorted(len(parts) for parts in found)
    assert bool(found) == (sum(most) >= gang and sorted(most)[-2] > 0)


def test_small_gangs_are_listed_in_every_way() -> None:
    """Of four over three pools of four: all cuts, the fastest of equally many pools first."""
    found = gangs_over_pools(4, SPEEDS[:3], (4, 4, 4))
    ways = [each for each in product(range(5), repeat=3) if sum(each) == 4 and sum(map(bool, each)) > 1]
    assert {tuple(dict(parts).get(row, 0) for row in range(3)) for parts in found} == set(ways)
    assert (found[0], found[9]) == (((0, 3), (1, 1)), ((0, 2), (1, 1), (2, 1)))


def test_a_gang_over_more_pools_than_are_tried_takes_the_fastest() -> None:
    """Ten machines of one accelerator each, of unlike types."""
    ten = POOLS_MAX + 4
    assert gangs_over_pools(8, [float(row) for row in range(1, ten + 1)], [1] * ten) == [
        tuple((row, 1) for row in range(ten - 8, ten))
    ]
