"""Forks: who takes how many steps, and how states become one again; parts are threads that meet in the test."""

import itertools
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

from walras.training import Checkpoint, Fork, Loop
from walras.training.gang import Gang
from walras.training.work_split import split_round


class Together(Gang):
    """Part `rank` of several that tell the same every time, but for what they are given."""

    def __init__(self, rank: int, told: list[list[list[float]]]) -> None:
        super().__init__(rank)
        self.world_size = len(told[0])
        self._told = told

    def gather(self, numbers: list[float]) -> list[list[float]]:
        return self._told.pop(0)


@given(st.integers(0, 300), st.lists(st.floats(0.1, 10.0), min_size=1, max_size=5))
def test_a_split_hands_out_every_step_and_its_last_part_is_through_as_early_as_can_be(
    whole: int, speeds: list[float]
) -> None:
    """Every step is taken once, everybody gets one where there are enough, and no step moved elsewhere ends earlier."""
    shares = split_round(whole, speeds)
    assert sum(shares) == whole
    if whole >= len(speeds):
        assert min(shares) >= 1
    least = 1 if whole >= len(speeds) else 0
    for giver, taker in itertools.permutations(range(len(speeds)), 2):
        if shares[giver] > least:
            assert (shares[taker] + 1) / speeds[taker] >= shares[giver] / speeds[giver] * (1 - 1e-12)


def test_a_part_three_times_as_fast_takes_three_times_the_steps() -> None:
    """Exactly in proportion where it comes out even; after a short first round by what was seen."""
    assert split_round(40, [3.0, 1.0]) == [30, 10]
    assert split_round(1, [1.0, 3.0]) == [0, 1]
    fork = Fork(torch.nn.Linear(1, 1), every=40)
    fork.join(Together(0, [[[0.0], [0.0]], [[4.0, 1.0, 2.0], [4.0, 3.0, 2.0]]]), seed=0)
    fork._average = lambda weights, tensors: None  # type: ignore[method-assign]
    assert (fork.begin_round(1000), fork.own) == (8, range(4))
    fork.end_round()
    assert (fork.begin_round(1000), fork.own) == (40, range(30))
    assert fork.effective_parts == pytest.approx(40**2 / (30**2 + 10**2))
    assert (fork.begin_round(6), len(fork.own)) == (6, 5)


def test_parts_with_unlike_seeds_or_states_are_refused() -> None:
    """They would read unlike data, or average what does not belong together; a stream has no slices."""
    fork = Fork(torch.nn.Linear(1, 1))
    with pytest.raises(ValueError, match="the same seed"):
        fork.join(Together(0, [[[0.0], [1.0]]]), seed=0)
    fork = Fork(torch.nn.Linear(1, 1))
    fork.join(Together(0, [[[0.0]], [[4.0, 1.0, 2.0], [4.0, 1.0, 3.0]]]), seed=0)
    fork.begin_round(8)
    with pytest.raises(RuntimeError, match=r"\(2, 3 numbers\)"):
        fork.end_round()

    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(4))

    loop = Loop(fork=Fork(torch.nn.Linear(1, 1)))
    with pytest.raises(TypeError, match="begin at any batch"):
        next(loop.steps(DataLoader(Stream())))


def test_a_fork_of_one_part_is_an_ordinary_loop() -> None:
    """Same batches, same steps, same position: rounds do not show."""
    loop = Loop(fork=Fork(torch.nn.Linear(1, 1), every=3), steps=12)
    assert [(epoch, list(loop.steps("abcdefgh"))) for epoch in loop.epochs()] == [
        (0, list("abcdefgh")),
        (1, list("abcd")),
    ]
    assert loop.step == 12


def test_a_fork_that_is_asked_to_stop_ends_its_round_and_goes_on_behind_it(tmp_path: Any) -> None:
    """Nothing of a round is repeated or left out."""
    model, seen = torch.nn.Linear(1, 1), []
    for stop_at in (6, None):
        loop = Loop(Checkpoint(tmp_path, model=model, every_s=None), fork=Fork(model, every=4))
        with pytest.raises(SystemExit, match="85") if stop_at is not None else nullcontext():
            for _ in loop.epochs(2):
                for batch in loop.steps(range(10)):
                    seen.append(batch)
                    loop._link.stop_requested = loop._link.stop_requested or len(seen) == stop_at
        assert loop.step == (8 if stop_at is not None else 20)
    assert seen == [*range(10), *range(10)]


def test_a_checkpoint_is_due_when_a_round_passes_its_step(tmp_path: Any) -> None:
    """`every_steps` holds also where steps are counted a round at a time."""
    model = torch.nn.Linear(1, 1)
    loop = Loop(Checkpoint(tmp_path, model=model, every_s=None, every_steps=10, keep=9), fork=Fork(model, every=4))
    for _ in loop.epochs(1):
        assert len(list(loop.steps(range(32)))) == 32
    saved = sorted(int(path.name.removeprefix("step-")) for path in tmp_path.glob("attempt-*/step-*"))
    assert saved == [12, 20, 32]
