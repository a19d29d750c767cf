"""The random states of a process, as JSON values: Python's `random`, and numpy and torch where they are imported."""

from __future__ import annotations

import random
import sys
from typing import Any


def capture() -> dict[str, Any]:
    """The states of every generator that the script can have used without naming one."""
    version, internal, gauss = random.getstate()
    states: dict[str, Any] = {"python": [version, list(internal), gauss]}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state = numpy.random.get_state(legacy=False)
        states["numpy"] = {**state, "state": {**state["state"], "key": state["state"]["key"].tolist()}}
    torch = sys.modules.get("torch")
    if torch is not None:
        states["torch"] = _to_hex(torch.get_rng_state())
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states["cuda"] = [_to_hex(state) for state in torch.cuda.get_rng_state_all()]
    return states


def restore(states: dict[str, Any]) -> None:
    """Put the generators back. A generator whose library is absent here is left out."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in states:
        state = states["numpy"]
        key = numpy.asarray(state["state"]["key"], dtype=numpy.uint32)
        numpy.random.set_state({**state, "state": {**state["state"], "key": key}})
    torch = sys.modules.get("torch")
    if torch is not None and "torch" in states:
        torch.set_rng_state(_from_hex(torch, states["torch"]))
        # A job that moved to another machine finds the states of the devices it has there.
        if torch.cuda.is_available():
            for device, state in enumerate(states.get("cuda", [])[: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(_from_hex(torch, state), device)


def _to_hex(state: Any) -> str:
    return bytes(state.tolist()).hex()


def _from_hex(torch: Any, text: str) -> Any:
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)
