"""What the model is, counted in one of the first steps of a job: its scheduler predicts other machines' speed from it.

The second step that a process takes is counted (no rate is measured yet then): operations under torch's own counter,
bytes of gradients and of what stays in memory behind the optimizers' updates. Where gradients are summed up over
several batches, up to a few of those are counted. Only rank 0 of a scheduled job counts, and nobody where the script is
compiled (counting would have it compiled again), or WALRAS_COUNT_FACTS=0 says so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from walras.training.data import samples_in
from walras.training.probe_facts import FactCounter
from walras.training.settings import Settings
from walras.training.values import Values

#: Batches before the one that is counted, and at most so many are until an optimizer steps.
_BEFORE, _MOST = 1, 8
_SUMMED = ("gradient_bytes", "parameter_bytes", "state_bytes")


class FactsGauge:
    """Counts once, and hands what it found to the values that are reported."""

    def __init__(self, values: Values, settings: Settings, *, is_wanted: bool = True) -> None:
        self._values = values
        is_first = settings.is_scheduled and settings.rank == 0
        self._is_wanted = is_wanted and is_first and os.environ.get("WALRAS_COUNT_FACTS") != "0"
        self._seen = 0

    def watch(self, batches: Iterator[Any], batch_size: int | None) -> Iterator[Any]:
        """The same batches. `batch_size`: samples in each of them; None: those of its first tensor."""
        return self._watched(batches, batch_size) if self._is_wanted else batches

    def _watched(self, batches: Iterator[Any], batch_size: int | None) -> Iterator[Any]:
        counted: _Counting | None = None
        try:
            for batch in batches:
                self._seen += 1
                if self._seen > _BEFORE and counted is None and (counted := _begun()) is None:
                    self._is_wanted = False
                if counted is not None:
                    counted.batches += 1
                    counted.samples = batch_size or samples_in(batch)
                yield batch
                if counted is not None and (counted.has_stepped or counted.batches >= _MOST):
                    self._is_wanted = False
                if not self._is_wanted:
                    break
        finally:
            if counted is not None:
                self._values.facts = counted.ended()
        yield from batches


def _begun() -> _Counting | None:
    """None where nothing is to be counted."""
    torch = sys.modules.get("torch")
    dynamo = sys.modules.get("torch._dynamo.utils")
    compiled = dynamo is not None and bool(getattr(dynamo, "counters", {}).get("frames"))
    hooks = sys.modules.get("torch.optim.optimizer")
    return None if torch is None or hooks is None or compiled else _Counting(torch, hooks)


class _Counting:
    """From here on until `ended`."""

    def __init__(self, torch: Any, hooks: Any) -> None:
        self.batches = 0
        #: Of the newest batch of this rank; None: nobody knows.
        self.samples: int | None = None
        self._counter = FactCounter(torch)
        self._updated: dict[int, dict[str, int]] = {}
        self._hook = hooks.register_optimizer_step_post_hook(self._stepped)
        self._counter.counted(0)

    @property
    def has_stepped(self) -> bool:
        return bool(self._updated)

    def ended(self) -> dict[str, float]:
        """What was found, of one step; nothing where no optimizer stepped."""
        self._hook.remove()
        self._counter.counted(1)
        self._counter.counted(2)
        found = list(self._updated.values())
        if not found:
            return {}
        whole = {name: sum(each[name] for each in found) for name in _SUMMED}
        last = self._counter.found(_Nothing)
        told: dict[str, float] = {"flops": last["flops"] / self.batches, "layers": last["layers"]}
        told |= {name: last[name] for name in ("bits", "exponent_bits") if last[name]}
        told["gradient_bytes"] = whole["gradient_bytes"]
        told["resident_bytes"] = sum(whole.values())
        if self.samples is not None:
            told["samples"] = self.samples
        return told

    def _stepped(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Behind its update: gradients and state are there."""
        self._updated[id(optimizer)] = self._counter.found(optimizer)


class _Nothing:
    """An optimizer of no parameters: what was counted is asked for alone."""

    param_groups: tuple[Any, ...] = ()
    state: dict[Any, Any] = {}  # noqa: RUF012 - never written
