"""Goodput: placements, how a batch is cut, what its samples are worth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training import steady

from simulator.goodput.application import (
    Application,
    BatchSplit,
    GangLayout,
    OutsideProfileError,
    batch_gain,
    goodput,
    packed_layout,
    split_batch,
    update_time_s,
)


def test_a_ring_begins_where_it_reads_smallest_and_is_never_sorted() -> None:
    """Machines keep their neighbours: only the place where one starts counting changes."""
    assert GangLayout((4, 4, 2)).in_ring() == GangLayout((2, 4, 4))
    assert GangLayout((1, 4, 2)).in_ring() == GangLayout((1, 4, 2))
    assert GangLayout((4, 2, 1)).in_ring() == GangLayout((1, 4, 2))
    assert GangLayout((2, 1, 2, 1)).in_ring() == GangLayout((1, 2, 1, 2))


def test_a_packed_gang_fills_machines_and_puts_the_rest_on_one_more() -> None:
    """As few machines as possible."""
    assert packed_layout(6, 4) == GangLayout((4, 2))
    assert packed_layout(8, 4) == GangLayout((4, 4))
    assert packed_layout(1, 4) == GangLayout((1,))


def test_a_batch_is_cut_into_as_few_passes_as_fit() -> None:
    """16 samples fit on an accelerator; 64 are the largest batch."""
    net = steady()
    assert split_batch(net, "t4", 4, 16) == BatchSplit(4)
    assert split_batch(net, "t4", 2, 64) == BatchSplit(16, 1)
    assert split_batch(net, "t4", 3, 16) == BatchSplit(6)  # 18 samples: rounded up
    assert split_batch(net, "t4", 3, 64) == BatchSplit(10, 1)  # 60: 66 would be too many
    assert split_batch(net, "t4", 1, 8, accumulated_least=1) == BatchSplit(4, 1)


def test_a_gang_with_more_accelerators_than_samples_is_refused_by_name() -> None:
    """65 accelerators cannot share 64 samples."""
    with pytest.raises(OutsideProfileError, match="64 samples for 65 accelerators"):
        split_batch(steady(), "t4", 65, 64)


def test_only_the_last_pass_synchronises() -> None:
    """Two passes of 2 s, one of them with a synchronisation of 0.5 s."""
    net = steady(sync_s=0.5)
    assert update_time_s(net, "t4", packed_layout(2, 4), BatchSplit(16, 1)) == pytest.approx(2.0 + 0.5 + 2.0)


def efficiency(application: Application, batch: int) -> float:
    """The worth of one sample relative to one of the initial batch."""
    return batch_gain(application, batch, 0) * application.batch_initial / batch


def test_a_large_batch_is_worth_what_the_noise_makes_of_it() -> None:
    """Without noise a larger batch is worth one step; with noise alone it would be worth its size."""
    assert batch_gain(steady(), 64, 0) == 1.0
    noisy = steady(grad_var=3.0)
    assert batch_gain(noisy, 16, 0) == pytest.approx(4.0 / 2.5)
    assert efficiency(noisy, 16) == pytest.approx(0.8)
    assert efficiency(noisy, 8) == 1.0
    # 1.6 steps in an update of 1 s, on two accelerators of 8 samples each.
    assert goodput(noisy, "t4", packed_layout(2, 4), BatchSplit(8), 0) == pytest.approx(1.6)


@given(batch=st.integers(8, 64), more=st.integers(0, 56), grad_var=st.floats(0.0, 1e6))
def test_more_samples_are_worth_more_together_and_no_more_each(batch: int, more: int, grad_var: float) -> None:
    """Gain grows with the batch, efficiency falls, and neither leaves its range."""
    net = steady(grad_var=grad_var)
    larger = batch + more
    assert 1.0 <= batch_gain(net, batch, 0) <= batch_gain(net, larger, 0) * (1 + 1e-9)
    assert batch_gain(net, larger, 0) <= larger / 8 * (1 + 1e-9)
    assert 0.0 < efficiency(net, larger) <= efficiency(net, batch) * (1 + 1e-9) <= 1.0 + 1e-8


@given(batch=st.integers(1, 64), accelerators=st.integers(1, 32), least=st.integers(0, 1))
def test_a_split_fits_and_is_about_the_batch_that_was_wanted(batch: int, accelerators: int, least: int) -> None:
    """Never above memory or the largest batch; below what was wanted only at the largest."""
    split = split_batch(steady(), "t4", accelerators, batch, accumulated_least=least)
    made, grain = split.batch(accelerators), accelerators * (split.accumulated + 1)
    assert 1 <= split.local <= 16
    assert made <= 64
    assert made >= batch or made + grain > 64
    assert made < batch + grain + accelerators * (split.accumulated + 1)
