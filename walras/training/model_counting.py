"""Facts of the model, counted in one of the first steps of a job: the scheduler predicts speeds from them.

The second step that a process takes is counted (no rate is measured yet then): operations under torch's own counter,
layers, bytes of gradients and of what stays in memory behind the optimizers' updates. Where gradients are summed up
over several batches, up to a few of those are counted. Only rank 0 of a scheduled job counts, and no rank does where
the script is compiled (counting would have it compiled again), or WALRAS_COUNT_FACTS=0 says so. A profiler spends two
updates on the same counter: one for operations, one in which every tensor kept for the backward pass is noted.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections import Counter
from collections.abc import Iterator
from math import log2
from typing import Any

from walras.training.batch_source import samples_in
from walras.training.measurements import ReportedValues
from walras.training.supervisor_link import JobEnvironment

_TF32 = (19, 8)


class ModelFactCounter:
    """Counts the facts between the calls of `counted`, which come after every update."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._flops = importlib.import_module("torch.utils.flop_counter").FlopCounterMode(display=False)
        self._layers: set[int] = set()
        #: Arithmetic that layers were called in, as (bits, bits of the exponent), and how often.
        self._done_in: Counter[tuple[int, int]] = Counter()
        self._kept: dict[int, int] = {}
        self._hook: Any = None
        self._keeping: Any = None

    def counted(self, extra: int) -> bool:
        """Records that `extra` updates have ended since counting began. Returns True once everything is counted."""
        if extra == 0:
            modules = importlib.import_module("torch.nn.modules.module")
            self._hook = modules.register_module_forward_pre_hook(self._saw_module)
            self._flops.__enter__()
        elif extra == 1:
            self._flops.__exit__(None, None, None)
            self._hook.remove()
            hooks = importlib.import_module("torch.autograd.graph").saved_tensors_hooks
            self._keeping = hooks(self._saw_kept, lambda tensor: tensor)
            self._keeping.__enter__()
        else:
            self._keeping.__exit__(None, None, None)
        return extra >= 2

    def found(self, optimizer: Any) -> dict[str, int]:
        """Returns the facts of one rank and one update. Call it after the optimizer's step, when gradients exist."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        values = [value for state in optimizer.state.values() for value in state.values()]
        own = {p.untyped_storage().data_ptr() for p in parameters}
        (bits, exponent_bits), _ = self._done_in.most_common(1)[0] if self._done_in else ((0, 0), 0)
        return {
            "bits": bits,
            "exponent_bits": exponent_bits,
            "parameters": sum(p.numel() for p in parameters),
            "parameter_bytes": sum(p.numel() * p.element_size() for p in parameters),
            "gradient_bytes": sum(g.numel() * g.element_size() for g in gradients),
            "state_bytes": sum(v.numel() * v.element_size() for v in values if self._torch.is_tensor(v)),
            "layers": len(self._layers),
            "flops": int(self._flops.get_total_flops()),
            "convolution_flops": self._flops_of("convolution"),
            "attention_flops": self._flops_of("attention"),
            "activation_bytes": sum(size for place, size in self._kept.items() if place not in own),
        }

    def _flops_of(self, word: str) -> int:
        counts = self._flops.get_flop_counts().get("Global", {})
        return sum(int(many) for operation, many in counts.items() if word in str(operation))

    def _saw_module(self, module: Any, _inputs: Any) -> None:
        parameter = next(module.parameters(recurse=False), None)
        if parameter is not None:
            self._layers.add(id(module))
            if parameter.is_floating_point():
                self._done_in[self._arithmetic(parameter)] += 1

    def _arithmetic(self, parameter: Any) -> tuple[int, int]:
        """Returns (bits, exponent bits) of the arithmetic: of the type after autocast, or of tf32 where torch may use
        it.
        """
        torch, device = self._torch, parameter.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else parameter.dtype
        if dtype == torch.float32 and device == "cuda" and torch.get_float32_matmul_precision() != "highest":
            return _TF32
        of_type = torch.finfo(dtype)
        return of_type.bits, round(log2(log2(of_type.max))) + 1

    def _saw_kept(self, tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        self._kept[storage.data_ptr()] = storage.nbytes()
        return tensor


#: The number of batches before the one that is counted; and the most batches counted until an optimizer steps.
_BATCHES_BEFORE, _MAX_BATCHES = 1, 8
_SUMMED = ("gradient_bytes", "parameter_bytes", "state_bytes")


class ModelFactsReporter:
    """Counts once, and adds the facts to the values that are reported."""

    def __init__(self, values: ReportedValues, settings: JobEnvironment, *, is_wanted: bool = True) -> None:
        self._values = values
        is_first = settings.is_scheduled and settings.rank == 0
        self._is_wanted = is_wanted and is_first and os.environ.get("WALRAS_COUNT_FACTS") != "0"
        self._seen = 0

    def watch(self, batches: Iterator[Any], batch_size: int | None) -> Iterator[Any]:
        """Yields the same batches, and counts. `batch_size`: samples in each; None: the length of its first tensor."""
        return self._watched(batches, batch_size) if self._is_wanted else batches

    def _watched(self, batches: Iterator[Any], batch_size: int | None) -> Iterator[Any]:
        counted: _Counting | None = None
        try:
            for batch in batches:
                self._seen += 1
                if self._seen > _BATCHES_BEFORE and counted is None and (counted := _start_counting()) is None:
                    self._is_wanted = False
                if counted is not None:
                    counted.batches += 1
                    counted.samples = batch_size or samples_in(batch)
                yield batch
                if counted is not None and (counted.has_stepped or counted.batches >= _MAX_BATCHES):
                    self._is_wanted = False
                if not self._is_wanted:
                    break
        finally:
            if counted is not None:
                self._values.facts = counted.ended()
        yield from batches


def _start_counting() -> _Counting | None:
    """Returns None where counting is not possible: without torch, or in a compiled script."""
    torch = sys.modules.get("torch")
    dynamo = sys.modules.get("torch._dynamo.utils")
    compiled = dynamo is not None and bool(getattr(dynamo, "counters", {}).get("frames"))
    hooks = sys.modules.get("torch.optim.optimizer")
    return None if torch is None or hooks is None or compiled else _Counting(torch, hooks)


class _Counting:
    """Counts from its creation until `ended`."""

    def __init__(self, torch: Any, hooks: Any) -> None:
        self.batches = 0
        #: Samples in the newest batch of this rank; None if unknown.
        self.samples: int | None = None
        self._counter = ModelFactCounter(torch)
        self._updated: dict[int, dict[str, int]] = {}
        self._hook = hooks.register_optimizer_step_post_hook(self._stepped)
        self._counter.counted(0)

    @property
    def has_stepped(self) -> bool:
        return bool(self._updated)

    def ended(self) -> dict[str, float]:
        """Returns the facts of one step; empty if no optimizer stepped."""
        self._hook.remove()
        self._counter.counted(1)
        self._counter.counted(2)
        found = list(self._updated.values())
        if not found:
            return {}
        whole = {name: sum(each[name] for each in found) for name in _SUMMED}
        last = self._counter.found(_EmptyOptimizer)
        facts: dict[str, float] = {"flops": last["flops"] / self.batches, "layers": last["layers"]}
        facts |= {name: last[name] / self.batches for name in ("convolution_flops", "attention_flops") if last[name]}
        facts |= {name: last[name] for name in ("bits", "exponent_bits") if last[name]}
        facts["gradient_bytes"] = whole["gradient_bytes"]
        facts["resident_bytes"] = sum(whole.values())
        if self.samples is not None:
            facts["samples"] = self.samples
        return facts

    def _stepped(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Counts behind the update, when gradients and optimizer state exist."""
        self._updated[id(optimizer)] = self._counter.found(optimizer)


class _EmptyOptimizer:
    """An optimizer without parameters: `found` then returns the counts alone."""

    param_groups: tuple[Any, ...] = ()
    state: dict[Any, Any] = {}  # noqa: RUF012 - never written
