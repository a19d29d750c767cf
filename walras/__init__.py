"""Walras: schedule PyTorch jobs on unlike accelerators, by prices.

This is the one package users touch: the job spec, the client, the command line, and `walras.training`,
which runs inside training processes. Importing it costs nothing: the standard library only. What scripts and notebooks
take from here is loaded when it is asked for: `walras.Client`, `walras.AsyncClient`, `walras.submit`, `walras.map_jobs`
and `walras.frame`.
"""

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from walras.client import BlockingClient as Client
    from walras.client import Client as AsyncClient
    from walras.function_jobs import FunctionFuture, map_jobs, submit
    from walras.output.html_page import frame

# An agent puts a small copy of this package (walras + walras.training) on a job's PYTHONPATH. Where the job's own
# environment has Walras installed too, its other modules must stay reachable behind that copy.
__path__ = pkgutil.extend_path(__path__, __name__)

__version__ = "0.1.0"

__all__ = ["AsyncClient", "Client", "FunctionFuture", "frame", "map_jobs", "submit"]

_PLACES = {
    "AsyncClient": ("walras.client", "Client"),
    "Client": ("walras.client", "BlockingClient"),
    "FunctionFuture": ("walras.function_jobs", "FunctionFuture"),
    "frame": ("walras.output.html_page", "frame"),
    "map_jobs": ("walras.function_jobs", "map_jobs"),
    "submit": ("walras.function_jobs", "submit"),
}


def __getattr__(name: str) -> Any:
    """Imports the public names when they are asked for."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, own_name = _PLACES[name]
    return getattr(import_module(module), own_name)
