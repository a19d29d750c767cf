"""The probe of the network, with links of a known speed."""

import pytest

from walras.training import gang as training_gang
from walras.training.gang import Gang
from walras.training.supervisor_link import JobEnvironment


class Link:
    """A ring of machines whose slowest link has this speed."""

    def __init__(self, bytes_per_s: float, machines: int, start_s: float = 0.0) -> None:
        self.bytes_per_s, self.machines, self.start_s = bytes_per_s, machines, start_s
        self.spent_s = 0.0

    def exchange(self, size: int) -> float:
        seconds = self.start_s + 2.0 * (self.machines - 1) / self.machines * size / self.bytes_per_s
        self.spent_s += seconds
        return seconds


@pytest.mark.parametrize("gbit", [0.01, 0.1, 1.0, 10.0, 100.0, 400.0])
@pytest.mark.parametrize("machines", [2, 8])
def test_the_speed_of_the_slowest_link_is_told_in_ten_seconds(gbit: float, machines: int) -> None:
    """From 10 Mbit/s to 400 Gbit/s, with a delay for each exchange."""
    link = Link(gbit * 1e9 / 8, machines, start_s=1e-4)
    found = training_gang.link_bandwidth(link.exchange, machines)
    assert found == pytest.approx(link.bytes_per_s, rel=0.15)
    assert link.spent_s <= 10.0


def test_exchanges_that_take_no_time_tell_nothing() -> None:
    """A clock that stood still makes no bandwidth."""
    assert training_gang.link_bandwidth(lambda size: 0.0, 2) is None
    gang = Gang(0)
    gang.world_size = 4
    for settings in (
        JobEnvironment(socket="s", machines=1, ranks_per_machine=4),
        JobEnvironment(socket="", machines=2, ranks_per_machine=2),
        JobEnvironment(socket="s", machines=2, ranks_per_machine=3),
    ):
        assert training_gang.measure_bandwidth(gang, settings) == {}
