"""One training run on several unlike machines: each takes steps of its own, and now and then parameters are averaged.

Ranks of a fork are its parts. In a round the parts share a number of steps in proportion to their speeds, so that all
end at the same time; then their states are averaged, each weighted by the steps it took. This module decides how many
steps a part takes and averages the states. `loop` decides which batches those are, and what a step is.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from walras.training.gang import Gang
from walras.training.work_split import split_round

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
