"""The named numbers of a script, such as its loss: read when they are sent, and not before."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

MAX_VALUES = 32


class Values:
    """The newest and the first number of each name."""

    def __init__(self) -> None:
        self._newest: dict[str, Any] = {}
        self._first: dict[str, float] = {}
        #: Of the model, once they were counted.
        self.facts: dict[str, float] = {}
        #: Names whose number has been none, which was said.
        self._lost: set[str] = set()

    def take(self, values: Mapping[str, Any]) -> None:
        """Tensors are kept as they are; the first of each name is read at once."""
        for name, value in values.items():
            number = value.detach() if hasattr(value, "detach") else value
            if name not in self._first and len(self._first) < MAX_VALUES:
                self._first[name] = float(number)
            if name in self._first:
                self._newest[name] = number

    def told(self) -> dict[str, dict[str, float]]:
        """Both, as fields of a message, and the facts."""
        told = {"values": self._finite(self._newest), "first_values": self._finite(self._first)}
        return told | {"facts": self.facts} if self.facts else told

    def _finite(self, values: Mapping[str, Any]) -> dict[str, float]:
        """JSON has no NaN: a loss that is none is left out, which is said once, in the job's own log."""
        numbers = {name: float(value) for name, value in values.items()}
        for name, number in numbers.items():
            if not math.isfinite(number) and name not in self._lost:
                self._lost.add(name)
                told = f"walras: {name} is {number}: it is not shown until it is a number again; training goes on"
                print(told, file=sys.stderr, flush=True)
        return {name: number for name, number in numbers.items() if math.isfinite(number)}
