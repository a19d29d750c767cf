"""Policies in a file of one's own: `my_policies.py`, or `my_policies.py:Name` where it has several.

A policy's registered name is `file:` with the absolute path and the class, so that a run in another process, or later,
finds the same class. The file is run as any Python file is, with all that its author may do: only commands that a
person gives on his own machine load one, and a server refuses such names.
"""

import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from walras.errors import ConfigError

#: Begins the registered name of a policy in a file.
FILE_PREFIX = "file:"
_METHODS = ("key", "decide")


def is_policy_file(text: str) -> bool:
    """Returns whether this is `PATH.py` or `PATH.py:NAME`."""
    path, _, name = text.rpartition(":")
    return text.endswith(".py") or (path.endswith(".py") and name.isidentifier())


def name_in_file(text: str) -> str:
    """Returns the registered name of the policy that `PATH.py[:NAME]` says. Raises ConfigError as `class_in_file`."""
    path, name = _parts(text)
    kind = _choose(path, name)
    return f"{FILE_PREFIX}{path}:{kind.__name__}"


def class_in_file(registered: str) -> type[Any]:
    """Returns the class of a registered name that begins with `file:`.

    Raises ConfigError where the file cannot be read or run, naming its line, or has no such policy.
    """
    path, name = _parts(registered.removeprefix(FILE_PREFIX))
    return _choose(path, name)


def _parts(text: str) -> tuple[Path, str]:
    path, _, name = (text, "", "") if text.endswith(".py") else text.rpartition(":")
    return Path(path).absolute(), name


def _choose(path: Path, name: str) -> type[Any]:
    found = {
        each.__name__: each
        for each in vars(_module(path)).values()
        if inspect.isclass(each) and not inspect.isabstract(each) and any(hasattr(each, method) for method in _METHODS)
        if each.__module__ == _module_name(path)
    }
    if name and name in found:
        return found[name]
    if not name and len(found) == 1:
        return next(iter(found.values()))
    names = ", ".join(found)
    if not found:
        raise ConfigError(
            f"{path.name} has no policy",
            field="policy",
            fix="write a class that inherits Order, Shares or Plan of walras.lab, with its method",
        )
    told = f"{path.name} has no policy {name!r}" if name else f"{path.name} has {len(found)} policies"
    raise ConfigError(told, field="policy", fix=f"name one: {path.name}:{next(iter(found))} (it has {names})")


def _module(path: Path) -> ModuleType:
    """The file as a module, run once in a process."""
    name = _module_name(path)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"no file {path}", field="policy", fix="name a Python file that is there")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # code of others: it may raise anything
        del sys.modules[name]
        raise ConfigError(f"{_line(path, error)}: {type(error).__name__}: {error}", field="policy") from error
    return module


def _module_name(path: Path) -> str:
    return f"walras_policy_file_{path.as_posix().encode().hex()}"


def _line(path: Path, error: Exception) -> str:
    """File and line of the user's that an error came from."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"{path.name}:{error.lineno}"
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path.name}:{own[-1].lineno}" if own else path.name
