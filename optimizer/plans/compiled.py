"""Loops compiled where numba is installed. The uncompiled function is the definition: `.py_func` of a compiled one."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled on its first call if that can be."""
    if find_spec("numba") is None:
        return function
    import numba

    made: Callable[..., Any] = numba.njit(cache=True, error_model="numpy")(function)
    return made
