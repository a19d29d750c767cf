"""One training run on several unlike machines in step: each rank takes the part of every batch that suits its speed.

The batches are those of a single process, in the same order; a step is a step of the whole batch. What is decided here
is which samples of each batch are a rank's own, by how long everybody's work took; the law is in `balance`. A position
in the data is counted in whole batches, so it holds for other shares and for another number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from walras.training.balance import Room, rebalanced, split
from walras.training.data import Source
from walras.training.gang import Gang
from walras.training.own_time import OwnTime
from walras.training.values import Values

#: The first steps after a start, and after a change, warm up: they are not timed.
WARM_UP_STEPS = 2
#: Steps before each meeting that are.
TIMED_STEPS = 8
_SOONEST = WARM_UP_STEPS + TIMED_STEPS
#: Gangs up to this size show the share of every rank as a value.
MOST_SHOWN = 8


class Shares:
    """How the ranks of a gang share each batch, and what the gradients of this rank's part weigh.

        shares = Shares(model)
        loop = Loop(Checkpoint(model=model, optimizer=optimizer), shares=shares)
        for epoch in loop.epochs(10):
            for images, labels in loop.steps(loader):
                loss = shares.weight * criterion(model(images), labels)

    The loader is that of a single process and makes the whole batch: no DistributedSampler. The gradients are averaged
    over the ranks as usual, by DistributedDataParallel for one. Shares begin by the pace of each rank where
    accelerators are emulated, else equal; later they follow how long each rank took over its own part.

    Args:
        model: what is trained, within DistributedDataParallel or not; its gradients tell when the own part is done.
        every: steps between two corrections, once there was nothing to correct.
        least, most: samples that this rank has to have, and can hold.
    """

    def __init__(self, model: Any, *, every: int = 64, least: int = 1, most: int | None = None) -> None:
        if every < _SOONEST:
            raise ValueError(f"every={every}: at least {_SOONEST} steps lie between two corrections")
        if not 1 <= least <= (most or least):
            raise ValueError(f"least={least}, most={most}: a rank takes at least one sample, and no more than it can")
        self._every, self._own_room = every, Room(least) if most is None else Room(least, most)
        self._gang, self._rooms, self._pace = Gang(0), [self._own_room], 0.0
        #: Speeds of the ranks, up to a factor: by them batches are split.
        self._speeds: Sequence[float] = [1.0]
        #: Samples per second of each rank, smoothed; empty before the first meeting.
        self._seen: list[float] = []
        self._split: tuple[int, tuple[int, ...]] = (0, ())
        self._own_time = OwnTime(model)
        self._steps, self._meet_at = 0, _SOONEST
        #: Samples of the largest batch so far: the last of an epoch may be smaller.
        self._largest = 0
        self._values: Values | None = None
        self._say: Callable[[str], None] = _nobody
        #: Samples of the present batch over all ranks.
        self.whole = 0

    # ------------------------------------------------------------------------------------------- for the script

    @property
    def weight(self) -> float:
        """What the mean loss over this rank's samples is multiplied by, so that the mean over all ranks is the mean
        over the samples of the whole batch. 1 where all have as many."""
        return self._gang.world_size * self.of(self.whole)[self._gang.rank] / self.whole if self.whole else 1.0

    def of(self, whole: int) -> tuple[int, ...]:
        """Samples of each rank in a batch of so many.

        Raises:
            ValueError: it is more than all of them can hold.
        """
        if self._split[0] != whole:
            self._split = (whole, split(whole, self._speeds, self._rooms_in(whole)))
        return self._split[1]

    # ------------------------------------------------------------------------------------------- for the loop

    def join(self, gang: Gang, seed: int, pace: float | None, values: Values, say: Callable[[str], None]) -> int:
        """Find the others; called by all of them alike. Returns the seed of rank 0: all read the data in one order."""
        self._gang, self._pace, self._values = gang, pace or 0.0, values
        self._say = say if gang.rank == 0 else _nobody
        high, low = divmod(seed % 2**64, 2**32)
        room = self._own_room
        told = gang.gather([self._pace, float(room.least), float(room.most), float(high), float(low)])
        paces = [row[0] for row in told]
        self._speeds = paces if min(paces) > 0 else [1.0] * gang.world_size
        self._rooms = [Room(int(row[1]), int(row[2])) for row in told]
        is_same = all(row[3:] == told[0][3:] for row in told)
        return seed if is_same else int(told[0][3]) * 2**32 + int(told[0][4])

    def batches(self, source: Source, epoch: int, skip: int) -> Iterator[Any]:
        """This rank's parts of the batches of an epoch after the first `skip`. All ranks take them in step."""
        is_cut = True
        try:
            while is_cut:
                is_cut = False
                for batch, whole in self._timed(source.parts(epoch, skip, self._own)):
                    skip += 1
                    self._begin_step(whole)
                    yield batch
                    if self._end_step() and source.is_cut_ahead:
                        is_cut = True
                        break
        finally:
            self._own_time.rest()

    def _begin_step(self, whole: int) -> None:
        self.whole = whole
        if whole > self._largest:
            self._largest = whole
            self._show(self.of(whole))

    def _timed(self, parts: Iterator[tuple[Any, int]]) -> Iterator[tuple[Any, int]]:
        """The same; reading a part is own work too."""
        while True:
            if not self._gang.is_alone and self._steps >= self._meet_at - TIMED_STEPS:
                self._own_time.start()
            found = next(parts, None)
            if found is None:
                return
            yield found

    def _end_step(self) -> bool:
        """True if the next batch is shared otherwise."""
        own = self.of(self.whole)[self._gang.rank]
        self._own_time.stop(max(1, own))
        self._steps += 1
        if self._gang.is_alone or self._steps < self._meet_at:
            return False
        self._own_time.rest()
        has_changed = self._meet()
        self._meet_at = self._steps + (_SOONEST if has_changed else self._every)
        return has_changed

    def _meet(self) -> bool:
        """Tell the others how long a sample took here, and come to the same shares as they do."""
        sample_s = self._own_time.take_sample_s() or 0.0
        if sample_s and self._pace:  # an emulated accelerator takes as long as it is to take
            sample_s = max(sample_s, self._gang.world_size / (self._pace * self._largest))
        told = [row[0] for row in self._gang.gather([sample_s])]
        before = self.of(self._largest)
        if min(told) <= 0.0 or min(before) < 1:
            return False
        seen = [1.0 / each for each in told]
        # Halfway to what was seen last, for it may have been disturbed.
        self._seen = [(was + now) / 2 for was, now in zip(self._seen or seen, seen, strict=True)]
        times_s = [share / speed for share, speed in zip(before, self._seen, strict=True)]
        shares = rebalanced(before, times_s, self._rooms_in(self._largest))
        if shares == before:
            return False
        self._speeds, self._split = [float(share) for share in shares], (0, ())
        self._show(shares)
        self._say(f"a batch of {self._largest} is shared {_sum(shares)} from now on, {_sum(before)} before")
        return True

    # ------------------------------------------------------------------------------------------- who has what

    def _own(self, whole: int) -> range:
        """This rank's samples of a batch. With fewer samples than ranks, who gets none looks at the first with weight
        0: everybody takes part in the exchange of gradients."""
        shares, rank = self.of(whole), self._gang.rank
        first = sum(shares[:rank])
        return range(first, first + shares[rank]) if shares[rank] else range(min(1, whole))

    def _rooms_in(self, whole: int) -> Sequence[Room]:
        """A batch too small for everybody's least, the last of an epoch, is not held to them."""
        if whole >= sum(room.least for room in self._rooms):
            return self._rooms
        least = int(whole >= len(self._rooms))
        return [Room(least, room.most) for room in self._rooms]

    def _show(self, shares: Sequence[int]) -> None:
        if self._values is not None and 1 < len(shares) <= MOST_SHOWN:
            self._values.take({f"share_{rank}": share for rank, share in enumerate(shares)})


def _sum(shares: Sequence[int]) -> str:
    return " + ".join(map(str, shares))


def _nobody(_: str) -> None:
    """Only one of the ranks speaks."""
