"""One training run on several unlike machines in step: each rank takes a part of every batch that suits its speed.

The batches are those of a single process, in the same order; a step is a step of the whole batch. This module decides
which samples of each batch are a rank's own, by how long every rank's work took; `work_split` has the formula. A
position in the data is counted in whole batches, so it holds for other shares and for another number of ranks.

A rank's own work on a batch lasts from asking for the batch to the last gradient of the model; the exchange of
gradients that follows ends for all ranks at the same time and says nothing of one of them. Hooks on the parameters see
the last gradient; they exist only while steps are timed. On CUDA the stream is timed and not the host, which runs ahead
of it; nothing waits for the accelerator until the times are read.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

from walras.training.batch_source import BatchSource
from walras.training.gang import Gang
from walras.training.measurements import ReportedValues
from walras.training.work_split import SampleBounds, rebalance_shares, split_samples


class OwnWorkTimer:
    """Times single steps of a model: `start`, then `stop` when the step is over."""

    def __init__(self, model: Any) -> None:
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._hooks: list[Any] = []
        self._began: Any = None
        self._last: Any = None
        #: For each timed step: its samples, and the instants of its beginning and of its last gradient.
        self._steps: list[tuple[int, Any, Any]] = []

    def start(self) -> None:
        """Begins a step that is to be timed."""
        if not self._hooks:
            self._hooks = [each.register_post_accumulate_grad_hook(self._has_gradient) for each in self._parameters]
        self._began, self._last = _now(self._parameters[0]) if self._parameters else None, None

    def stop(self, samples: int) -> None:
        """Ends the timed step, which had so many samples. A step without a gradient of the model is left out."""
        if self._began is not None and self._last is not None:
            self._steps.append((samples, self._began, self._last))
        self._began = None

    def rest(self) -> None:
        """Stops timing: the next steps are not timed, and a step that has begun is forgotten."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._began = [], None

    def take_sample_s(self) -> float | None:
        """Returns the median seconds per sample of the steps timed since the last call; None if no step was timed."""
        steps, self._steps = self._steps, []
        return median(_seconds(began, ended) / samples for samples, began, ended in steps) if steps else None

    def _has_gradient(self, parameter: Any) -> None:
        self._last = _now(parameter)


def _now(parameter: Any) -> Any:
    """Returns the present instant in the work of the parameter's device."""
    if parameter.device.type != "cuda":
        return time.monotonic()
    cuda: Any = sys.modules["torch"].cuda
    event = cuda.Event(enable_timing=True)
    event.record(cuda.current_stream(parameter.device))
    return event


def _seconds(began: Any, ended: Any) -> float:
    if isinstance(ended, float):
        return float(ended - began)
    ended.synchronize()
    return float(began.elapsed_time(ended)) / 1e3


#: The number of steps after a start, or after a change, that warm up and are not timed.
WARM_UP_STEPS = 2
#: The number of timed steps before each correction.
TIMED_STEPS = 8
_SOONEST = WARM_UP_STEPS + TIMED_STEPS
#: The largest gang whose shares are reported as values, one for each rank.
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
        self._every, self._own_bounds = every, SampleBounds(least) if most is None else SampleBounds(least, most)
        self._gang, self._bounds, self._pace = Gang(0), [self._own_bounds], 0.0
        #: Speeds of the ranks, up to a common factor, by which batches are split.
        self._speeds: Sequence[float] = [1.0]
        #: Samples per second of each rank, smoothed; empty before the first correction.
        self._measured: list[float] = []
        self._split: tuple[int, tuple[int, ...]] = (0, ())
        self._own_time = OwnWorkTimer(model)
        self._steps, self._correct_at = 0, _SOONEST
        #: Samples of the largest batch so far: the last batch of an epoch may be smaller.
        self._largest = 0
        self._values: ReportedValues | None = None
        self._log: Callable[[str], None] = _log_nothing
        #: Samples of the present batch over all ranks.
        self.whole = 0

    # ------------------------------------------------------------------------------------------- for the script

    @property
    def weight(self) -> float:
        """The factor of the mean loss over this rank's samples that makes the mean over ranks the mean over the
        samples of the whole batch. It is 1 where all ranks have equally many samples.
        """
        return self._gang.world_size * self.of(self.whole)[self._gang.rank] / self.whole if self.whole else 1.0

    def of(self, whole: int) -> tuple[int, ...]:
        """Samples of each rank in a batch of so many.

        Raises:
            ValueError: it is more than all of them can hold.
        """
        if self._split[0] != whole:
            self._split = (whole, split_samples(whole, self._speeds, self._bounds_for(whole)))
        return self._split[1]

    # ------------------------------------------------------------------------------------------- for the loop

    def join(
        self, gang: Gang, seed: int, pace: float | None, values: ReportedValues, log: Callable[[str], None]
    ) -> int:
        """Gathers bounds, paces and seeds of all ranks, on every rank. Returns rank 0's seed, so that all have one
        order of data.
        """
        self._gang, self._pace, self._values = gang, pace or 0.0, values
        self._log = log if gang.rank == 0 else _log_nothing
        high, low = divmod(seed % 2**64, 2**32)
        bound = self._own_bounds
        gathered = gang.gather([self._pace, float(bound.least), float(bound.most), float(high), float(low)])
        paces = [row[0] for row in gathered]
        self._speeds = paces if min(paces) > 0 else [1.0] * gang.world_size
        self._bounds = [SampleBounds(int(row[1]), int(row[2])) for row in gathered]
        is_same = all(row[3:] == gathered[0][3:] for row in gathered)
        return seed if is_same else int(gathered[0][3]) * 2**32 + int(gathered[0][4])

    def batches(self, source: BatchSource, epoch: int, skip: int) -> Iterator[Any]:
        """Yields this rank's parts of an epoch's batches after the first `skip`. All ranks take them in step."""
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
        """Yields the same parts, timed; reading a part counts as own work."""
        while True:
            if not self._gang.is_alone and self._steps >= self._correct_at - TIMED_STEPS:
                self._own_time.start()
            found = next(parts, None)
            if found is None:
                return
            yield found

    def _end_step(self) -> bool:
        """Returns True if the next batch is shared in another way."""
        own = self.of(self.whole)[self._gang.rank]
        self._own_time.stop(max(1, own))
        self._steps += 1
        if self._gang.is_alone or self._steps < self._correct_at:
            return False
        self._own_time.rest()
        has_changed = self._correct_shares()
        self._correct_at = self._steps + (_SOONEST if has_changed else self._every)
        return has_changed

    def _correct_shares(self) -> bool:
        """Exchanges the time per sample with the other ranks, from which every rank computes the same new shares.
        Returns whether they changed.
        """
        sample_s = self._own_time.take_sample_s() or 0.0
        if sample_s and self._pace:  # An emulated accelerator takes the time of its pace.
            sample_s = max(sample_s, self._gang.world_size / (self._pace * self._largest))
        gathered = [row[0] for row in self._gang.gather([sample_s])]
        before = self.of(self._largest)
        if min(gathered) <= 0.0 or min(before) < 1:
            return False
        measured = [1.0 / each for each in gathered]
        # Moves halfway to the last measurement, which may have been disturbed.
        self._measured = [(was + now) / 2 for was, now in zip(self._measured or measured, measured, strict=True)]
        times_s = [share / speed for share, speed in zip(before, self._measured, strict=True)]
        shares = rebalance_shares(before, times_s, self._bounds_for(self._largest))
        if shares == before:
            return False
        self._speeds, self._split = [float(share) for share in shares], (0, ())
        self._show(shares)
        self._log(f"a batch of {self._largest} is shared {_as_sum(shares)} from now on, {_as_sum(before)} before")
        return True

    # ------------------------------------------------------------------------------------------- who has what

    def _own(self, whole: int) -> range:
        """Returns this rank's samples of a batch. With fewer samples than ranks, a rank without any takes the first
        with weight 0, because every rank takes part in the exchange of gradients.
        """
        shares, rank = self.of(whole), self._gang.rank
        first = sum(shares[:rank])
        return range(first, first + shares[rank]) if shares[rank] else range(min(1, whole))

    def _bounds_for(self, whole: int) -> Sequence[SampleBounds]:
        """Returns the ranks' bounds; a batch that is too small for the sum of all minimums, the last of an epoch, is
        not held to them.
        """
        if whole >= sum(bound.least for bound in self._bounds):
            return self._bounds
        least = int(whole >= len(self._bounds))
        return [SampleBounds(least, bound.most) for bound in self._bounds]

    def _show(self, shares: Sequence[int]) -> None:
        if self._values is not None and 1 < len(shares) <= MOST_SHOWN:
            self._values.take({f"share_{rank}": share for rank, share in enumerate(shares)})


def _as_sum(shares: Sequence[int]) -> str:
    return " + ".join(map(str, shares))


def _log_nothing(_: str) -> None:
    """Drops a line of log: only rank 0 logs."""
