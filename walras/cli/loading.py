"""Start the parts that have generic names (`scheduler`, `workers`, ...) safely from any folder.

People have a `scheduler.py` or an `optimizer.py` of their own, and a PYTHONPATH that leads to it. Before any of ours is
imported, every one of those names has to lead to the folder that holds `walras` itself. The import is by name, because
`walras` must not depend on what lies above it.
"""

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

import walras
from walras.errors import UserError

GENERIC_NAMES = ("scheduler", "optimizer", "workers", "simulator")
_OURS = Path(walras.__file__).resolve().parent.parent


def load(name: str) -> ModuleType:
    """Import one of our own modules, such as `scheduler.live.main`.

    Raises UserError naming the file that hides one of ours, or the package that this installation lacks.
    """
    for root in GENERIC_NAMES:
        _check_ours(root)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if missing.split(".")[0] in (*GENERIC_NAMES, "walras"):
            raise UserError(f"this installation has no {missing}", fix="install the whole of Walras") from None
        raise UserError(
            f"{name} needs {missing.split('.')[0]}, which is not installed", fix="pip install 'walras[all]'"
        ) from None


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
