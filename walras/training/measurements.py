"""What the loop measures and reports: throughput, named values such as the loss, the gradient noise scale.

Instants are arguments (seconds of a steady clock); nothing here reads a clock. Reported tensors are read when they are
sent, and not before.

Gradient noise says what a larger batch would be worth. Every so many updates, the gradients of two updates in a row are
compared. The parameters hardly move between them, so they are two draws of one gradient, each of a batch of B samples:

    |G|^2 = g . g'        S = B |g - g'|^2 / 2        noise scale phi = S / |G|^2, in samples

Both are averaged before they are divided (`optimizer.prediction.loss_curve` says what follows from phi). The
gradients are those that the optimizer is about to use: averaged over ranks, summed over passes, and clipped where the
script clips. Between the two updates a copy of the gradients is kept.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

MAX_VALUES = 32


class ReportedValues:
    """The newest and the first number of each name."""

    def __init__(self) -> None:
        self._newest: dict[str, Any] = {}
        self._first: dict[str, float] = {}
        #: Facts of the model, once they were counted.
        self.facts: dict[str, float] = {}
        #: Names of values that have been NaN or infinite, which was logged.
        self._lost: set[str] = set()

    def take(self, values: Mapping[str, Any]) -> None:
        """Takes values: tensors are kept as they are, but the first value of each name is read at once."""
        for name, value in values.items():
            number = value.detach() if hasattr(value, "detach") else value
            if name not in self._first and len(self._first) < MAX_VALUES:
                self._first[name] = float(number)
            if name in self._first:
                self._newest[name] = number

    def message_fields(self) -> dict[str, dict[str, float]]:
        """Returns newest and first values, and the facts, as fields of a message."""
        fields = {"values": self._finite(self._newest), "first_values": self._finite(self._first)}
        return fields | {"facts": self.facts} if self.facts else fields

    def _finite(self, values: Mapping[str, Any]) -> dict[str, float]:
        """Returns the values without NaN and infinite ones, which JSON does not have; the job's own log names each
        once.
        """
        numbers = {name: float(value) for name, value in values.items()}
        for name, number in numbers.items():
            if not math.isfinite(number) and name not in self._lost:
                self._lost.add(name)
                text = f"walras: {name} is {number}: it is not shown until it is a number again; training goes on"
                print(text, file=sys.stderr, flush=True)
        return {name: number for name, number in numbers.items() if math.isfinite(number)}


#: The number of first steps that are not timed: they compile, allocate and warm caches.
WARM_UP_STEPS = 2
#: Seconds after which a window closes at the next step.
WINDOW_S = 0.5
WINDOWS_KEPT = 60
#: A pause of this many seconds, and of this many usual steps, was no step: the process was suspended, or did other
#: work.
PAUSE_S = 1.0
PAUSE_STEPS = 5.0
#: Seconds of delay that a loop makes up for at most when it falls behind its pace.
CATCH_UP_S = 0.25


class ThroughputMeter:
    """Median rate over undisturbed windows of steps."""

    def __init__(self) -> None:
        self._to_skip = WARM_UP_STEPS
        self._opened_at: float | None = None
        self._last_at = 0.0
        self._steps = 0
        self._rates: deque[float] = deque(maxlen=WINDOWS_KEPT)
        #: The number of windows measured so far.
        self.samples = 0
        #: The median of the rates, computed once per window and not once per step; and the longest gap that counts as a
        #: step.
        self.steps_per_s: float | None = None
        self._longest_s = float("inf")

    def step(self, at: float) -> None:
        """Records that a step ended at this instant."""
        if self._to_skip > 0:
            self._to_skip -= 1
            return
        if self._opened_at is None or at - self._last_at > self._longest_s:
            self._open(at)
            return
        self._steps += 1
        self._last_at = at
        if at - self._opened_at >= WINDOW_S:
            self._rates.append(self._steps / (at - self._opened_at))
            self.samples += 1
            self.steps_per_s = median(self._rates)
            self._longest_s = max(PAUSE_S, PAUSE_STEPS / self.steps_per_s)
            self._open(at)

    def disturb(self) -> None:
        """Drops the open window, because something other than steps happened (a checkpoint)."""
        self._opened_at = None

    def _open(self, at: float) -> None:
        self._opened_at = self._last_at = at
        self._steps = 0


#: The most and the fewest steps over which the part of waiting is a mean.
DATA_WAIT_STEPS = 200
DATA_WAIT_LEAST = 20


class DataWaitMeter:
    """Which part of its steps a loop waits for the next batch: `asked` for it, `got` it, and asks again.

    A step that something else took part in (a checkpoint, a pause) is left out, and so are the first ones of a pass
    over the data, in which the loader's workers start.
    """

    def __init__(self) -> None:
        self._kept: deque[tuple[float, float]] = deque(maxlen=DATA_WAIT_STEPS)
        self._asked_at: float | None = None
        self._wait_s = 0.0
        self._to_skip = WARM_UP_STEPS

    def begin(self) -> None:
        """Records that a pass over the data begins."""
        self._asked_at, self._to_skip = None, WARM_UP_STEPS

    def disturb(self) -> None:
        """Excludes the step in progress."""
        self._asked_at = None

    def asked(self, at: float) -> None:
        """Records that the step before is over, and that the loop asks for a batch."""
        if self._asked_at is not None and at - self._asked_at < PAUSE_S + PAUSE_STEPS * self._usual_s():
            if self._to_skip > 0:
                self._to_skip -= 1
            else:
                self._kept.append((self._wait_s, at - self._asked_at))
        self._asked_at, self._wait_s = at, 0.0

    def got(self, at: float, *, is_hidden: bool = False) -> None:
        """Records that the batch is here. `is_hidden`: the accelerator was still at work on the step before, so that
        no time was lost.
        """
        if self._asked_at is not None and not is_hidden:
            self._wait_s = at - self._asked_at

    def _usual_s(self) -> float:
        return self._kept[-1][1] if self._kept else math.inf

    @property
    def share(self) -> float | None:
        """The part of waiting, from 0 to 1; None before `DATA_WAIT_LEAST` steps."""
        whole_s = sum(step_s for _, step_s in self._kept)
        if len(self._kept) < DATA_WAIT_LEAST or whole_s <= 0:
            return None
        return min(sum(wait_s for wait_s, _ in self._kept) / whole_s, 1.0)


class DeviceWork:
    """Tells whether the accelerator is still at work on a step: it queries a CUDA event and does not wait for it."""

    def __init__(self) -> None:
        self._event: Any = None

    def mark(self) -> None:
        """Marks all work given to the accelerator so far as the step's."""
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is None or not cuda.is_initialized():
            return
        if self._event is None:
            self._event = cuda.Event()
        self._event.record()

    @property
    def is_under_way(self) -> bool:
        """Whether that work is still in progress; False without CUDA, where a step is over when the script asks for
        the next batch.
        """
        return self._event is not None and not self._event.query()


class StepPacer:
    """Computes how long to wait so that steps end `pace` times a second."""

    def __init__(self, pace: float) -> None:
        assert pace > 0
        self._step_s = 1.0 / pace
        self._due_at: float | None = None

    def begin(self, at: float) -> None:
        """Steps begin now; time before this instant is not made up for."""
        self._due_at = at

    def wait_s(self, at: float, part: float = 1.0) -> float:
        """Returns how long the step that has done its work at this instant still has to last. `part`: of
        a usual step.
        """
        due_at = at if self._due_at is None else self._due_at + part * self._step_s
        # Time lost to a suspension or a checkpoint is lost; jitter is made up for.
        self._due_at = max(due_at, at - CATCH_UP_S)
        return max(0.0, self._due_at - at)


#: Weight of earlier comparisons in the moving average, per comparison.
NOISE_DECAY = 0.95


class NoiseScaleMeter:
    """Measures the gradient noise of one optimizer by hooks."""

    def __init__(self, optimizer: Any, every: int) -> None:
        if every < 2:
            raise ValueError(f"noise_every={every}: two updates in a row are compared, so at least 2")
        #: Samples in one batch over all ranks; None until known.
        self.samples: int | None = None
        #: Batches that the script has taken so far.
        self.batches = 0
        #: Updates between two comparisons.
        self.every = every
        self._updates = 0
        self._batches_then = 0
        self._kept: list[Any] | None = None
        #: Not read yet, because reading waits for the accelerator.
        self._fresh: list[tuple[Any, float]] = []
        self._signal = self._spread = 0.0
        #: Comparisons over which the noise scale is a mean.
        self.comparisons = 0
        optimizer.register_step_pre_hook(self._before_step)

    @property
    def scale(self) -> float | None:
        """The noise scale phi in samples; None before the first comparison, and where the mean gradient
        is all noise.
        """
        for sums, samples in self._fresh:
            first, second, both = sums.tolist()
            spread = samples * (0.5 * (first + second) - both)
            if math.isfinite(spread):
                self._signal = NOISE_DECAY * self._signal + (1.0 - NOISE_DECAY) * both
                self._spread = NOISE_DECAY * self._spread + (1.0 - NOISE_DECAY) * spread
                self.comparisons += 1
        self._fresh.clear()
        return max(0.0, self._spread) / self._signal if self._signal > 0.0 else None

    def resize(self, samples: int | None) -> None:
        """Sets the number of samples in a batch from now on; a batch of the old size is not compared with one of the
        new.
        """
        self.samples, self._kept = samples, None

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._updates += 1
        turn = self._updates % self.every
        if turn == self.every - 1:
            self._batches_then = self.batches
            self._kept = [gradient.clone() for gradient in _gradients(optimizer)]
        elif turn == 0 and self._kept is not None:
            gradients, kept, self._kept = _gradients(optimizer), self._kept, None
            # The batch of an update in progress was counted when the one before it ended.
            batches = max(1, self.batches - self._batches_then)
            if self.samples is not None and gradients and len(gradients) == len(kept):
                self._fresh.append((_products(gradients, kept), float(self.samples * batches)))


def optimizer_among(things: Iterable[Any]) -> Any:
    """Returns the first that is a torch optimizer; None if none is."""
    return next((thing for thing in things if hasattr(thing, "register_step_pre_hook")), None)


def noise_meter_for(things: Iterable[Any], every: int | None, rank: int) -> NoiseScaleMeter | None:
    """Returns a gauge of the first optimizer among them, on rank 0, which reports: all ranks have the same mean
    gradient.
    """
    if every is None:
        return None
    optimizer = optimizer_among(things)
    if optimizer is None:
        raise ValueError("noise_every: the checkpoint holds no torch optimizer whose gradients could be compared")
    return NoiseScaleMeter(optimizer, every) if rank == 0 else None


def _gradients(optimizer: Any) -> list[Any]:
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return [parameter.grad.detach() for parameter in parameters if parameter.grad is not None]


def _products(gradients: list[Any], kept: list[Any]) -> Any:
    """Returns |g|^2, |g'|^2 and g . g' as one tensor, which the accelerator may still be computing."""
    torch: Any = sys.modules["torch"]
    rows = []
    for gradient, other in zip(gradients, kept, strict=True):
        now, then = gradient.reshape(-1).float(), other.reshape(-1).float()
        rows.append(torch.stack([now.dot(now), then.dot(then), now.dot(then)]))
    return torch.stack(rows).sum(dim=0)
