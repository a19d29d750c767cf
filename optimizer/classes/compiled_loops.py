"""Loops over jobs and columns that are compiled where that pays, and run as they are written where it does not.

Loading numba and its cached code takes a fresh process most of a second, compiling for the first time many. A small
question is answered by the loops as written in less. So a process begins interpreted, and loads compiled code once a
question is too large, or once its small questions together have cost about what loading costs. Both ways give the same
numbers to the bit: floats are not reordered, and no clock decides.

Compiled code is cached beside the sources, else in the user's cache folder, else in `NUMBA_CACHE_DIR`; where none of
these can be written, it is compiled anew in each process. Entries of the cache are replaced whole, so processes share
it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from types import FunctionType
from typing import Any

import numpy as np

#: Steps of loops that a process interprets at most, over all its questions, and in one question. A step takes one to
#: two microseconds, loading half a second to one.
_STEPS_OF_PROCESS = 200_000
_STEPS_OF_QUESTION = 40_000


def njit(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Numba's `njit`; code is compiled anew in each process where no folder for its cache can be written."""
    import numba

    def made(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            compiled: Callable[..., Any] = numba.njit(**options)(function)
        except RuntimeError:  # numba refuses to make what it cannot cache
            compiled = numba.njit(**{**options, "cache": False})(function)
        return compiled

    return made


@dataclass(slots=True)
class InterpretedWork:
    """What a process has interpreted so far. It decides how long answers take, never what they are."""

    spent: float = 0.0

    @property
    def steps_left(self) -> float:
        """Steps that the next question may take to be interpreted."""
        return min(_STEPS_OF_PROCESS - self.spent, _STEPS_OF_QUESTION)

    def end(self) -> None:
        """Everything is compiled from now on."""
        self.spent = np.inf


INTERPRETED = InterpretedWork()


def interpreted_floats() -> Any:
    """A context in which loops as written divide as compiled ones do: by zero to infinity, silently."""
    return np.errstate(all="ignore")


class CompiledLoops:
    """The loops of one module, each by its name, and the compiled ones that call each other."""

    def __init__(self, module: dict[str, Any]) -> None:
        """Take the module's globals."""
        self._module = module
        self._functions: list[FunctionType] = []
        self._compiled: dict[str, Callable[..., Any]] | None = None

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: the function stays what it is; those that it calls come before it in the module."""
        assert isinstance(function, FunctionType)
        self._functions.append(function)
        return function

    def run(self, name: str, steps: float, *arguments: Any) -> Any:
        """What the function of this name returns, interpreted if it takes about so few steps that this is quicker."""
        if INTERPRETED.steps_left < steps:
            INTERPRETED.end()
            return self.compiled(name)(*arguments)
        INTERPRETED.spent += steps
        with interpreted_floats():
            return self._module[name](*arguments)

    def compiled(self, name: str) -> Callable[..., Any]:
        """The compiled function of this name; the function itself where numba is not installed."""
        if self._compiled is None:
            self._compiled = self._compile() if find_spec("numba") is not None else {}
        return self._compiled.get(name) or self._module[name]

    def _compile(self) -> dict[str, Callable[..., Any]]:
        """Twins of all functions, which find each other as globals of their own."""
        names = dict(self._module)
        for function in self._functions:
            twin = FunctionType(function.__code__, names, function.__name__)
            twin.__qualname__, twin.__module__ = function.__qualname__, function.__module__
            names[function.__name__] = njit(cache=True, error_model="numpy")(twin)
        return {each.__name__: names[each.__name__] for each in self._functions}
