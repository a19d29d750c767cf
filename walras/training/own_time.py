"""How long a rank's own work on a batch takes: from asking for the batch to the last gradient of the model.

What follows, the exchange of gradients, is over for all ranks at the same time and says nothing of one of them. The
last gradient is seen by hooks on the parameters, which exist only while steps are timed. On CUDA the stream is timed
and not the host, which runs ahead of it; nothing waits for the accelerator until the times are asked for.
"""

from __future__ import annotations

import sys
import time
from statistics import median
from typing import Any


class OwnTime:
    """Times single steps of a model: `start`, then `stop` when the step is over."""

    def __init__(self, model: Any) -> None:
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._hooks: list[Any] = []
        self._began: Any = None
        self._last: Any = None
        #: Of each timed step: its samples, and the instants of its beginning and of its last gradient.
        self._steps: list[tuple[int, Any, Any]] = []

    def start(self) -> None:
        """A step begins, which is to be timed."""
        if not self._hooks:
            self._hooks = [each.register_post_accumulate_grad_hook(self._has_gradient) for each in self._parameters]
        self._began, self._last = _now(self._parameters[0]) if self._parameters else None, None

    def stop(self, samples: int) -> None:
        """It is over, and had so many samples. A step without a gradient of the model is left out."""
        if self._began is not None and self._last is not None:
            self._steps.append((samples, self._began, self._last))
        self._began = None

    def rest(self) -> None:
        """The next steps are not timed; a step that has begun is forgotten."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._began = [], None

    def take_sample_s(self) -> float | None:
        """Seconds per sample, the median of the steps timed since this was last asked; None where there are none."""
        steps, self._steps = self._steps, []
        return median(_seconds(began, ended) / samples for samples, began, ended in steps) if steps else None

    def _has_gradient(self, parameter: Any) -> None:
        self._last = _now(parameter)


def _now(parameter: Any) -> Any:
    """This instant in the work of the parameter's device."""
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
