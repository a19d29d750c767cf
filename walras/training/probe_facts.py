"""What a model is, counted while it trains: operations, layers, bytes of gradients and of activations kept.

Two updates are spent on it, behind those that are timed: one under torch's own counter of operations, one in which
every tensor that is kept for the backward pass is noted.
"""

from __future__ import annotations

import importlib
from collections import Counter
from math import log2
from typing import Any

_TF32 = (19, 8)


class FactCounter:
    """Counts between the calls of `counted`, which come after every update."""

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
        """So many updates ended since the timed ones. True once everything is counted."""
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
        """Of one rank and one update. Call it behind the optimizer's step: gradients are there."""
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
            "activation_bytes": sum(size for place, size in self._kept.items() if place not in own),
        }

    def _saw_module(self, module: Any, _inputs: Any) -> None:
        parameter = next(module.parameters(recurse=False), None)
        if parameter is not None:
            self._layers.add(id(module))
            if parameter.is_floating_point():
                self._done_in[self._arithmetic(parameter)] += 1

    def _arithmetic(self, parameter: Any) -> tuple[int, int]:
        """Bits, and of the exponent: what autocast makes of the parameter's type; tf32 where torch may take it."""
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
