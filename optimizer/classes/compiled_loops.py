"""Loops over jobs and columns that are compiled where that pays, and run as they are written where it does not.

Loading numba and its cached code takes a new process most of a second; compiling for the first time takes many.
Interpreted loops answer a small problem in less. So a process begins interpreted, and loads compiled code once a
problem is too large, or once its small problems together have cost about as much as loading. Where no compiled code is
kept yet, it interprets ten times as much first, so that small first decisions of an installation wait for no compiler.
Both ways give the same numbers to the bit: floats are not reordered, and no clock decides.

Compiled code is cached beside the sources, else in the user's cache folder, else in `NUMBA_CACHE_DIR`; where none of
these can be written, it is compiled anew in each process. Entries of the cache are replaced whole, so processes share
it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from sys import version_info
from types import FunctionType
from typing import Any

import numpy as np

#: The most steps of loops that a process interprets, over all its problems and in one problem. A step takes one to two
#: microseconds, loading half a second to one second.
_STEPS_OF_PROCESS = 200_000
_STEPS_OF_QUESTION = 40_000
#: How many times as much it interprets where the code would have to be compiled, for 10 s or more.
_BEFORE_COMPILING = 10.0


def njit(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns numba's `njit`; without a writable folder for its cache, each process compiles the code anew."""
    import numba

    def made(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            compiled: Callable[..., Any] = numba.njit(**options)(function)
        except RuntimeError:  # numba refuses to compile what it cannot cache
            return numba.njit(**{**options, "cache": False})(function)  # type: ignore[no-any-return]
        _forget_unreadable(compiled)
        return compiled

    return made


def _forget_unreadable(compiled: Any) -> None:
    """Makes an index of numba's cache that cannot be read count as empty.

    numba reads what an index holds before it looks whether the source has changed: after a release in which an argument
    type has another name, it would raise AttributeError for good.
    """
    kept = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    load: Callable[[], dict[Any, Any]] | None = getattr(kept, "_load_index", None)
    if load is None:
        return

    def load_readable() -> dict[Any, Any]:
        try:
            return load()
        except Exception:  # pickle raises whatever the names in it raise
            return {}

    kept._load_index = load_readable  # type: ignore[union-attr]


@dataclass(slots=True)
class InterpretedWork:
    """The steps that a process has interpreted so far. They decide how long answers take, never what they are."""

    spent: float = 0.0
    patience: float = 1.0

    @property
    def steps_left(self) -> float:
        """The steps that the next problem may take to be interpreted."""
        return min(self.patience * _STEPS_OF_PROCESS - self.spent, self.patience * _STEPS_OF_QUESTION)

    def end(self) -> None:
        """Makes all further calls run compiled code."""
        self.spent = np.inf


INTERPRETED = InterpretedWork()


def interpreted_floats() -> Any:
    """Returns a context in which interpreted loops divide by zero as compiled ones do: to infinity,
    without a warning.
    """
    return np.errstate(all="ignore")


class CompiledLoops:
    """The loops of one module by name, interpreted and compiled; compiled loops call each other."""

    def __init__(self, module: dict[str, Any]) -> None:
        """Takes the globals of the module."""
        self._module = module
        self._functions: list[FunctionType] = []
        self._compiled: dict[str, Callable[..., Any]] | None = None

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Registers a loop (a decorator) and returns it unchanged; the loops that it calls come before it in the
        module.
        """
        assert isinstance(function, FunctionType)
        self._functions.append(function)
        return function

    def run(self, name: str, steps: float, *arguments: Any) -> Any:
        """Returns the result of the function of this name, interpreted if about so few steps are faster than loading
        compiled code.
        """
        if not self.interprets(steps):
            return self.compiled(name)(*arguments)
        INTERPRETED.spent += steps
        with interpreted_floats():
            return self._module[name](*arguments)

    def interprets(self, steps: float) -> bool:
        """Returns whether a problem of so many steps is to be interpreted."""
        while INTERPRETED.steps_left < steps and INTERPRETED.spent < np.inf:
            self.exceed()
        return INTERPRETED.steps_left >= steps

    def exceed(self) -> None:
        """Notes that a problem is too large to be interpreted: once more where compiling comes first, for good then."""
        if INTERPRETED.patience == 1.0 and not self._is_kept():
            INTERPRETED.patience = _BEFORE_COMPILING
        else:
            INTERPRETED.end()

    def _is_kept(self) -> bool:
        """Returns whether numba's cache has the last loop, which calls the others."""
        last = self._functions[-1]
        stats: Any = getattr(self.compiled(last.__name__), "stats", None)
        if stats is None:  # of code that numba cannot cache
            return True
        source, line = Path(last.__code__.co_filename), last.__code__.co_firstlineno
        pattern = f"{source.stem}.{last.__name__}-{line}.py{version_info.major}{version_info.minor}*.nbi"
        kept = Path(stats.cache_path).glob(pattern) if stats.cache_path else ()
        return any(each.stat().st_mtime >= source.stat().st_mtime for each in kept)

    def compiled(self, name: str) -> Callable[..., Any]:
        """Returns the compiled function of this name."""
        if self._compiled is None:
            self._compiled = self._compile()
        return self._compiled[name]

    def _compile(self) -> dict[str, Callable[..., Any]]:
        """Returns compiled copies of all functions, which find each other as globals of their own."""
        names = dict(self._module)
        for function in self._functions:
            twin = FunctionType(function.__code__, names, function.__name__)
            twin.__qualname__, twin.__module__ = function.__qualname__, function.__module__
            names[function.__name__] = njit(cache=True, error_model="numpy")(twin)
        return {each.__name__: names[each.__name__] for each in self._functions}
