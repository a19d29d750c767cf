"""One training run on several unlike machines: in step (`BatchShares`), or each with steps of its own (`Fork`).

In step each rank takes a part of every batch that suits its speed. The batches are those of a single process, in the
same order; a step is a step of the whole batch. `BatchShares` decides which samples of each batch are a rank's own, by
how long every rank's work took; `work_split` has the formula. A position in the data is counted in whole batches, so it
holds for other shares and for another number of ranks.

A rank's own work on a batch lasts from asking for the batch to the last gradient of the model; the exchange of
gradients that follows ends for all ranks at the same time and says nothing of one of them. Hooks on the parameters see
the last gradient; they exist only while steps are timed. On CUDA the stream is timed and not the host, which runs ahead
of it; nothing waits for the accelerator until the times are read.

Ranks of a fork are its parts. In a round the parts share a number of steps in proportion to their speeds, so that all
end at the same time; then their states are averaged, each weighted by the steps it took. `Fork` decides how many steps
a part takes and averages the states. `loop` decides which batches those are, and what a step is.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

from walras.training.batch_source import BatchSource
from walras.training.gang import Gang
from walras.training.measurements import ReportedValues
from walras.training.work_split import SampleBounds, rebalance_shares, split_round, split_samples


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


class BatchShares:
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


#: About the number of steps of each part in the first round, when no speed is known yet.
_TRIAL_STEPS = 4
#: The number of rounds over whose speeds the median is taken.
_ROUNDS_KEPT = 15


class Fork:
    """A model that is trained in several places at once; its states are averaged after every round.

        fork = Fork(model, optimizer, every=64)
        loop = Loop(Checkpoint(model=model, optimizer=optimizer), fork=fork)

    The script is that of a single process, with `torch.distributed` initialised: no DistributedDataParallel and no
    DistributedSampler. All parts go through the same batches in the same order, each through its own slice of a round.

    Args:
        model: its parameters and buffers are averaged.
        optimizer: likewise its state, such as momenta; None keeps it apart, which only a state that starts from
            nothing at every meeting can bear.
        every: steps of all parts together between two averages.
    """

    def __init__(self, model: Any, optimizer: Any = None, *, every: int = 64) -> None:
        if every < 1:
            raise ValueError(f"every={every}: take at least one step between two meetings")
        if type(model).__name__ == "DistributedDataParallel":
            raise TypeError("a fork averages parameters itself: give it the model without DistributedDataParallel")
        self._model, self._optimizer, self._every = model, optimizer, every
        self._gang = Gang(0)
        #: Steps per second of each part in its last rounds, without waiting; None before the first average.
        self._speeds: list[float] | None = None
        self._is_measured = False
        self._shares: list[int] = [1]
        self._rates: deque[float] = deque(maxlen=_ROUNDS_KEPT)
        self._began_at = 0.0
        #: Steps that this part has taken since it started.
        self.taken = 0
        #: Rounds that were timed since then.
        self.samples = 0

    # ------------------------------------------------------------------------------------------- for the script

    @property
    def effective_parts(self) -> float:
        """How many equal parts this round's would amount to: (sum of steps)² / sum of steps², 1 when alone.

        Averaging divides the way that a round covers by this number. A learning rate multiplied by it makes up for
        that, as with a batch that many times as large.
        """
        return sum(self._shares) ** 2 / max(1, sum(share**2 for share in self._shares))

    # ------------------------------------------------------------------------------------------- for the loop

    @property
    def steps_per_s(self) -> float | None:
        """Steps per second of all parts together, averaging included; None before a round was timed."""
        return median(self._rates) if self._rates else None

    @property
    def own(self) -> range:
        """Positions of this part's steps in the round."""
        first = sum(self._shares[: self._gang.rank])
        return range(first, first + self._shares[self._gang.rank])

    def join(self, gang: Gang, seed: int) -> None:
        """Join the other parts and begin with the state of rank 0. Every part calls this.

        Raises:
            ValueError: the parts were given unlike seeds, so their batches come in unlike orders.
        """
        self._gang, self._shares = gang, [1] * gang.world_size
        seeds = {row[0] for row in gang.gather([float(seed % 2**52)])}
        if len(seeds) > 1:
            raise ValueError("give every part of a fork the same seed: they share one order of the data")
        self._average([1.0] + [0.0] * (gang.world_size - 1), _averaged_tensors(self._model, None))

    def begin_round(self, most: int) -> int:
        """Begin a round of at most `most` steps; returns the steps of all parts in it. Every part calls this.

        Raises:
            ValueError: there are not even enough for every part to take one, at the very beginning.
        """
        parts, is_trial = self._gang.world_size, self._speeds is None
        whole = min(most, self._every if not is_trial else min(self._every, _TRIAL_STEPS * parts))
        if is_trial and 0 < whole < parts:
            raise ValueError(f"{parts} parts cannot begin with {whole} steps between two meetings: one each at least")
        self._shares = split_round(whole, self._speeds or [1.0] * parts)
        self._began_at = time.monotonic()
        return whole

    def end_round(self) -> None:
        """End a round after this part has taken its steps: wait for the other parts and average all states.

        Raises:
            RuntimeError: the states of the parts are of unlike sizes.
        """
        own, took_s = len(self.own), max(time.monotonic() - self._began_at, 1e-9)
        self.taken += own
        tensors = _averaged_tensors(self._model, self._optimizer)
        size = sum(tensor.numel() for tensor in tensors)
        gathered = self._gang.gather([float(own), took_s, float(size)])
        if len({row[2] for row in gathered}) > 1:
            sizes = ", ".join(f"{row[2]:.0f}" for row in gathered)
            raise RuntimeError(
                f"parts of a fork hold states of unlike sizes ({sizes} numbers): they cannot be averaged"
            )
        whole = sum(row[0] for row in gathered)
        self._average([row[0] / whole for row in gathered], tensors)
        self._update_speeds([row[0] / row[1] for row in gathered])
        if self._is_measured:
            self._rates.append(whole / max(time.monotonic() - self._began_at, 1e-9))
            self.samples += 1
        self._is_measured = True

    def _update_speeds(self, measured: list[float]) -> None:
        """Sets the speeds for the next round: halfway to those of this one, which may have been disturbed.

        Those of the first round, in which everything warmed up, are used until there are others.
        """
        known = self._speeds or measured
        latest = [now or was for was, now in zip(known, measured, strict=True)]
        mean = [(was + now) / 2 for was, now in zip(known, latest, strict=True)]
        self._speeds = mean if self._is_measured else latest

    def _average(self, weights: Sequence[float], tensors: list[Any]) -> None:
        """Replaces floating-point tensors by the weighted mean over all parts, and integer counters by
        their maximum.
        """
        if self._gang.is_alone:
            return
        torch: Any = sys.modules["torch"]
        distributed = torch.distributed
        with torch.no_grad():
            for group, dtype in _tensors_by_dtype(tensors, torch):
                flat = torch.cat([tensor.detach().reshape(-1).to(dtype) for tensor in group])
                if dtype.is_floating_point:
                    flat *= weights[self._gang.rank]
                kind = distributed.ReduceOp.SUM if dtype.is_floating_point else distributed.ReduceOp.MAX
                distributed.all_reduce(flat, op=kind)
                for tensor, part in zip(group, flat.split([tensor.numel() for tensor in group]), strict=True):
                    tensor.copy_(part.reshape(tensor.shape))


def _averaged_tensors(model: Any, optimizer: Any) -> list[Any]:
    """Returns the tensors to average, in the same order on every part."""
    found = [*model.parameters(), *model.buffers()]
    for group in optimizer.param_groups if optimizer is not None else ():
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            found.extend(state[name] for name in sorted(state) if hasattr(state[name], "numel"))
    return found


def _tensors_by_dtype(tensors: list[Any], torch: Any) -> Iterator[tuple[list[Any], Any]]:
    """Yields groups of tensors that can be exchanged as one, with the dtype in which they are."""
    groups: dict[tuple[str, Any], list[Any]] = {}
    for tensor in tensors:
        wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
        dtype = wide if tensor.dtype.is_floating_point else torch.int64
        groups.setdefault((str(tensor.device), dtype), []).append(tensor)
    for (_, dtype), group in groups.items():
        yield group, dtype
