"""Shares of a batch by the speed of ranks."""

from collections import namedtuple
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from walras.training import Checkpoint, Fork, Loop, Shares
from walras.training.batch_sharing import OwnWorkTimer
from walras.training.batch_source import resumable_source, slice_batch
from walras.training.gang import Gang
from walras.training.measurements import ReportedValues
from walras.training.work_split import DEAD_BAND, SampleBounds, rebalance_shares, split_samples

Cost = Callable[[int, int, int], float]


class Nothing:
    """A model without parameters: nothing is timed."""

    def parameters(self) -> list[Any]:
        return []


class Told(Gang):
    """Rank `rank` of several. Seconds of a step cost(rank, share, meeting) are what they tell each other."""

    def __init__(
        self, rank: int, paces: list[float], cost: Cost, whole: int, bounds: list[SampleBounds] | None = None
    ) -> None:
        super().__init__(rank)
        self.world_size = len(paces)
        self._cost, self._whole, self._meeting = cost, whole, 0
        self._rows = [
            [pace, float(room.least), float(room.most), 0.0, 7.0]
            for pace, room in zip(paces, bounds or [SampleBounds()] * len(paces), strict=True)
        ]
        self.shares: Shares | None = None

    @property
    def is_alone(self) -> bool:
        return self.world_size == 1

    def gather(self, numbers: list[float]) -> list[list[float]]:
        if len(numbers) > 1:
            return self._rows
        self._meeting += 1
        shares = self.shares.of(self._whole)
        return [[self._cost(rank, share, self._meeting) / max(1, share)] for rank, share in enumerate(shares)]


def together(paces: list[float], cost: Cost, whole: int, bounds: list[SampleBounds] | None = None) -> list[Shares]:
    """All ranks of a gang."""
    found = []
    for rank in range(len(paces)):
        gang, shares = Told(rank, paces, cost, whole, bounds), Shares(Nothing(), every=10)
        gang.shares = shares
        assert shares.join(gang, 7, None, ReportedValues(), lambda _: None) == 7
        found.append(shares)
    return found


def linear(speeds: list[float], overhead_s: float = 0.0) -> Cost:
    return lambda rank, share, _meeting: overhead_s + share / speeds[rank]


def batches_of(count: int, size: int, last: int) -> list[list[int]]:
    whole = list(range(count * size + last))
    return [whole[first : first + size] for first in range(0, len(whole), size)]


speeds_drawn = st.lists(st.floats(1.0, 10.0), min_size=2, max_size=5)


@given(speeds_drawn, st.integers(1, 40), st.integers(0, 39), st.integers(5, 45), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_every_sample_of_a_batch_is_one_ranks_own(
    speeds: list[float], size: int, last: int, count: int, stop_at: int
) -> None:
    """Parts make up the batch in its order and weigh as their samples, also behind changes, stops and other gangs."""
    data = batches_of(count, size, min(last, size - 1))
    stop_at %= len(data)
    ranks = together([0.0] * len(speeds), linear(speeds), size)
    first = [iter(shares.batches(resumable_source(data, 0), 0, 0)) for shares in ranks]
    others = together([1.0] * (len(speeds) - 1), linear(speeds), size)
    rest = [iter(shares.batches(resumable_source(data, 0), 0, stop_at)) for shares in others]
    seen: list[int] = []
    for step, batch in enumerate(data):
        gang, iterators = (ranks, first) if step < stop_at else (others, rest)
        parts = [next(iterator) for iterator in iterators]
        weights = [shares.weight for shares in gang]
        own = [part for part, weight in zip(parts, weights, strict=True) if weight]
        assert [sample for part in own for sample in part] == batch
        assert weights == pytest.approx(
            [len(gang) * len(part) / len(batch) if weight else 0.0 for part, weight in zip(parts, weights, strict=True)]
        )
        assert all(parts), "everybody has something to go through, be it for nothing"
        seen += [sample for part in own for sample in part]
    assert seen == list(range(len(seen)))
    assert [next(iterator, None) for iterator in rest] == [None] * len(rest)


@given(speeds_drawn, st.integers(8, 40), st.floats(0.0, 0.5), st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_shares_settle_where_hardly_anybody_waits(speeds: list[float], each: int, overhead: float, seed: int) -> None:
    """With times noisy by 1 %: a few corrections end in the dead band of the best split, and none follows."""
    whole = each * len(speeds)
    overhead_s = overhead * each / max(speeds)
    exact = linear(speeds, overhead_s)
    chance = Random(seed)
    noise = {(rank, meeting): chance.uniform(0.99, 1.01) for rank in range(5) for meeting in range(1, 200)}
    cost: Cost = lambda rank, share, meeting: noise[rank, meeting] * exact(rank, share, 0)  # noqa: E731
    (shares, *_) = together([0.0] * len(speeds), cost, whole)

    seen: list[tuple[int, ...]] = []
    for _ in shares.batches(resumable_source([list(range(whole))] * 100, 0), 0, 0):
        if not seen or seen[-1] != shares.of(whole):
            seen.append(shares.of(whole))
            assert sum(seen[-1]) == whole
    assert len(seen) <= 8
    assert len(set(seen)) == len(seen), "no shares are left and come back to"
    # No split is through earlier than the real numbers that leave nobody waiting, nor can samples be cut.
    ideal_s = (whole + overhead_s * sum(speeds)) / sum(speeds)
    step_s = max(exact(rank, share, 0) for rank, share in enumerate(seen[-1]))
    assert step_s <= ideal_s * (1 + DEAD_BAND) / 0.97 + 1.0 / min(speeds)


def test_shares_follow_a_machine_that_becomes_slower() -> None:
    """Equal for eight meetings; then one takes three times as long, and a few meetings later has a third as much."""
    (shares, _) = together([0.0, 0.0], lambda rank, share, meeting: share * (3.0 if rank and meeting > 8 else 1.0), 16)
    seen = [shares.of(16) for _ in shares.batches(resumable_source([[0] * 16] * 130, 0), 0, 0)]
    assert set(seen[:90]) == {(8, 8)}
    assert set(seen[120:]) == {(12, 4)}


def test_shares_begin_by_pace_and_keep_to_what_a_rank_can_hold() -> None:
    """60 and 20 steps/s: three parts and one; where the first holds 30 at most, the other has the rest, for good."""
    assert together([60.0, 20.0], linear([3.0, 1.0]), 48)[0].of(48) == (36, 12)
    held = together([60.0, 20.0], linear([3.0, 1.0]), 48, [SampleBounds(1, 30), SampleBounds(4)])[1]
    assert [held.of(whole) for whole in (48, 5, 2, 1)] == [(30, 18), (1, 4), (1, 1), (1, 0)]
    assert all(len(part) == 18 for part in held.batches(resumable_source([[0] * 48] * 30, 0), 0, 0))
    full = together([1.0, 1.0], linear([1.0, 1.0]), 8, [SampleBounds(1, 3), SampleBounds(1, 4)])[0]
    with pytest.raises(ValueError, match="a batch of 8 does not fit"):
        full.of(8)


def test_one_rank_says_what_became_of_the_shares() -> None:
    """As values, from the first on, and in the log when they change; not a word where nothing changes."""
    for speeds, said_of_it in (
        ([3.0, 1.0], ["a batch of 8 is shared 6 + 2 from now on, 4 + 4 before"]),
        ([1.0, 1.0], []),
    ):
        gang, values, said = Told(0, [0.0, 0.0], linear(speeds), 8), ReportedValues(), list[str]()
        gang.shares = shares = Shares(Nothing())
        shares.join(gang, 0, None, values, said.append)
        for _ in shares.batches(resumable_source([[0] * 8] * 40, 0), 0, 0):
            pass
        assert said == said_of_it
        told = values.message_fields()
        assert told["first_values"] == {"share_0": 4.0, "share_1": 4.0}
        assert told["values"] == dict(zip(("share_0", "share_1"), map(float, shares.of(8)), strict=True))


def test_ranks_with_unlike_seeds_read_in_the_order_of_the_first() -> None:
    """A script that gave no seed has another one on every rank."""
    gang = Told(1, [0.0, 0.0], linear([1.0, 1.0]), 8)
    gang._rows = [[0.0, 1.0, 8.0, float(high), float(low)] for high, low in ((2, 5), (0, 7))]
    assert Shares(Nothing()).join(gang, 7, None, ReportedValues(), lambda _: None) == 2 * 2**32 + 5


class Recording:
    """A map-style dataset that remembers what was read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 20 * 8

    def __getitem__(self, index: int) -> int:
        self.read.append(index)
        return index


@pytest.mark.parametrize("batch_size", [8, None])
def test_a_loader_reads_this_ranks_samples_and_no_others(batch_size: int | None) -> None:
    """Also behind a change of shares; a sampler of whole batches is cut when it was read."""
    read = []
    for rank in range(2):
        gang, data = Told(rank, [0.0, 0.0], linear([3.0, 1.0]), 8), Recording()
        gang.shares = shares = Shares(Nothing(), every=10)
        shares.join(gang, 7, None, ReportedValues(), lambda _: None)
        if batch_size is None:
            lists = [torch.arange(first, first + 8) for first in range(0, 160, 8)]
            source = resumable_source(DataLoader(lists, batch_size=None, shuffle=True), 7)  # type: ignore[arg-type]
        else:
            source = resumable_source(DataLoader(data, batch_size=batch_size, shuffle=True), 7)  # type: ignore[arg-type]
        parts = [part.tolist() for part in shares.batches(source, 3, 0)]
        assert {len(part) for part in parts[:10]} == {4}
        assert {len(part) for part in parts[10:]} == {6 if rank == 0 else 2}
        own = [sample for part in parts for sample in part]
        assert batch_size is None or data.read == own
        read += own
    assert sorted(read) == list(range(160))
    assert read != sorted(read)


def test_parts_are_cut_from_whatever_has_one_thing_for_each_sample() -> None:
    """Tensors, lists of names, dictionaries and named tuples; what belongs to the whole batch stays."""
    pair = namedtuple("pair", ["images", "names"])
    batch = {"both": pair(torch.arange(6).reshape(3, 2), ["a", "b", "c"]), "scale": torch.tensor(2.0), "kind": "train"}
    found = slice_batch(batch, 3, range(1, 3))
    assert found["both"].images.tolist() == [[2, 3], [4, 5]]
    assert (found["both"].names, found["scale"], found["kind"]) == (["b", "c"], 2.0, "train")
    with pytest.raises(TypeError, match="str cannot be shared"):
        next(resumable_source(["abc"], 0).parts(0, 0, lambda whole: range(whole)))


def test_own_time_ends_with_the_last_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rank does, and waits for, behind it is not its own; and outside of timed steps there are no hooks."""
    now = [0.0]
    monkeypatch.setattr("walras.training.batch_sharing.time.monotonic", lambda: now[0])
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    timer = OwnWorkTimer(model)
    for seconds in (3.0, 9.0, 3.2):
        timer.start()
        now[0] += seconds
        model(torch.ones(4, 2)).sum().backward()
        now[0] += 100.0
        timer.stop(4)
    timer.start()
    timer.stop(4)  # no gradient: left out
    assert all(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    timer.rest()
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    assert timer.take_sample_s() == pytest.approx(0.8)
    assert timer.take_sample_s() is None


class FakeEvent:
    """A mark in the stream of a device, whose clock is `now`."""

    now = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: str) -> None:
        assert stream == "the stream of cuda:1"
        self.at_ms = 1e3 * FakeEvent.now

    def synchronize(self) -> None:
        self.is_over = True

    def elapsed_time(self, other: "FakeEvent") -> float:
        assert other.is_over
        return other.at_ms - self.at_ms


def test_on_cuda_the_stream_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host runs ahead: instants are marks in the stream, read when they are asked for."""

    class Parameter:
        requires_grad, device = True, SimpleNamespace(type="cuda")

        def register_post_accumulate_grad_hook(self, hook: Any) -> Any:
            self.hook = hook
            return SimpleNamespace(remove=lambda: None)

    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the stream of cuda:1")
    parameter = Parameter()
    timer = OwnWorkTimer(SimpleNamespace(parameters=lambda: [parameter]))
    timer.start()
    for FakeEvent.now in (1.0, 3.0):
        parameter.hook(parameter)
    timer.stop(6)
    assert timer.take_sample_s() == pytest.approx(0.5)


def test_an_emulated_accelerator_tells_the_time_that_it_is_to_take() -> None:
    """Its own work may be done sooner. Where somebody could not time anything, shares stay as they are."""
    told: list[list[float]] = []

    class Listening(Told):
        def gather(self, numbers: list[float]) -> list[list[float]]:
            told.append(numbers)
            return super().gather(numbers)

    for measured_s, tells_s in ((0.001, 0.0125), (0.02, 0.02), (None, 0.0)):
        gang = Listening(0, [0.0, 0.0], lambda rank, share, _: rank * share, 8)
        gang.shares = shares = Shares(Nothing())
        shares.join(gang, 7, 20.0, ReportedValues(), lambda _: None)
        shares._own_time.take_sample_s = lambda measured_s=measured_s: measured_s  # type: ignore[method-assign, misc]
        for _ in shares.batches(resumable_source([[0] * 8] * 12, 0), 0, 0):
            pass
        assert told[-1] == [pytest.approx(tells_s)]
        assert shares.of(8) == (4, 4)


def test_a_gang_of_one_is_an_ordinary_loop(tmp_path: Any) -> None:
    """Whole batches, weight 1, no hooks; and its position is counted in whole batches of no rank in particular."""
    model = torch.nn.Linear(1, 1)
    shares = Shares(model)
    loop = Loop(Checkpoint(tmp_path, model=model, every_s=None), shares=shares, steps=12)
    assert [batch for _ in loop.epochs() for batch in loop.steps([[1, 2, 3], [4]] * 4)] == [[1, 2, 3], [4]] * 6
    assert shares.weight == 1.0
    assert not model.weight._post_accumulate_grad_hooks
    (saved,) = tmp_path.glob("attempt-*/step-*/loop.json")
    assert '"world_size": 1' in saved.read_text()


def test_what_cannot_be_is_refused() -> None:
    """Corrections at every step, a rank that takes nothing, and two ways of spreading at once."""
    with pytest.raises(ValueError, match="at least 10 steps"):
        Shares(Nothing(), every=9)
    for least, most in ((0, None), (3, 2)):
        with pytest.raises(ValueError, match="at least one sample"):
            Shares(Nothing(), least=least, most=most)
    model = torch.nn.Linear(1, 1)
    with pytest.raises(ValueError, match="no fork"):
        Loop(shares=Shares(model), fork=Fork(model))
    with pytest.raises(ValueError, match="no on_change"):
        Loop(shares=Shares(model), on_change=lambda _: None)


@given(st.integers(0, 100), st.lists(st.integers(1, 50), min_size=1, max_size=5))
def test_shares_split_what_they_sum_to_as_themselves(more: int, shares: list[int]) -> None:
    """Shares serve as speeds for batches of other sizes, so they must give themselves back."""
    assert split_samples(
        sum(shares), [float(share) for share in shares], [SampleBounds(1, 50 + more)] * len(shares)
    ) == tuple(shares)


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
    """In whole samples; 3 % more time is inside the dead band; what fits nowhere is refused."""
    assert split_samples(384, [3.0, 5.0, 12.0], [SampleBounds()] * 3) == (58, 96, 230)
    assert rebalance_shares([100, 100], [1.0, 1.03], [SampleBounds()] * 2) == (100, 100)
    assert rebalance_shares([100, 100], [1.0, 1.5], [SampleBounds()] * 2) == (120, 80)
    for batch in (9, 1):
        with pytest.raises(ValueError, match="does not fit"):
            split_samples(batch, [1.0, 1.0], [SampleBounds(1, 4)] * 2)


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
