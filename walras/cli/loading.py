"""Imports of the packages with generic names (`scheduler`, `optimizer`, `workers`, `simulator`) from any folder.

The command line stands above those packages and imports them inside the functions that need them, so that `walras
--help` and `walras queue` load nothing heavy. People have a `scheduler.py` or an `optimizer.py` of their own, and a
PYTHONPATH that leads to it. While a command runs, the first import of one of our generic names therefore checks that
all of them lead to the folder that holds `walras` itself, before any file is executed.
"""

import importlib.util
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import walras
from walras.errors import UserError

GENERIC_NAMES = ("scheduler", "optimizer", "workers", "simulator")
_OURS = Path(walras.__file__).resolve().parent.parent


@contextmanager
def own_packages() -> Iterator[None]:
    """Inside, imports of our packages never run a file of somebody else, and say what is missing where they fail.

    Raises UserError naming the file that hides one of ours, or the package that this installation lacks.
    """
    check = _ShadowCheck()
    sys.meta_path.insert(0, check)
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None:
            raise
        raise _missing(error, error.name) from None
    finally:
        sys.meta_path.remove(check)


class _ShadowCheck(MetaPathFinder):
    """Checks all generic names once, at the first import of one of them. It never finds a module itself."""

    def __init__(self) -> None:
        self._is_done = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        if fullname in GENERIC_NAMES and not self._is_done:
            self._is_done = True  # before the search for the packages below, which asks this finder again
            for name in GENERIC_NAMES:
                _check_ours(name)
        return None


def _check_ours(root: str) -> None:
    """Find the package without importing it, and compare where it is."""
    spec = importlib.util.find_spec(root)
    if spec is None:
        raise UserError(f"the package {root!r} is missing beside {_OURS}/walras", fix="reinstall walras")
    places = [Path(place).resolve() for place in spec.submodule_search_locations or ()]
    found = places[0] if places else Path(spec.origin or "?").resolve()
    if (_OURS / root).resolve() not in places:
        raise UserError(
            f"{root!r} would be {found}, not ours ({_OURS / root}); PYTHONPATH or the current folder puts it first",
            fix="unset PYTHONPATH, or start from another folder",
        )


def _missing(error: ModuleNotFoundError, name: str) -> UserError:
    """The failed import of `name` as a message: a part of Walras, or a package of somebody else."""
    root = name.split(".")[0]
    if root in (*GENERIC_NAMES, "walras"):
        return UserError(f"this installation has no {name}", fix="install the whole of Walras")
    return UserError(f"{_importer(error)} needs {root}, which is not installed", fix="pip install 'walras[all]'")


def _importer(error: ModuleNotFoundError) -> str:
    """The module whose import failed; where a function imported something, the function's module."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    imported = next((frame for frame in frames if frame.f_code.co_name == "<module>"), frames[-1])
    return str(imported.f_globals["__name__"])
