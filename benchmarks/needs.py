"""What benchmarks need beyond `pip install '.[all]'`, and what is said where it is missing."""

import os
from pathlib import Path


class NotHereError(Exception):
    """A benchmark cannot be measured on this machine; the message says in one line what is missing."""


def reference_data() -> Path:
    """The folder of the reference data (`WALRAS_DATA`).

    Raises NotHereError where the variable names no folder.
    """
    given = os.environ.get("WALRAS_DATA", "")
    if not given or not Path(given).is_dir():
        raise NotHereError("WALRAS_DATA names no folder: the reference data (recorded traces, markets, speeds)")
    return Path(given)


def missing_line(error: ModuleNotFoundError | NotHereError) -> str:
    """What is missing, in one line."""
    if isinstance(error, NotHereError):
        return str(error)
    extra = "; pip install -e '.[all,dev]' has it" if (error.name or "").split(".")[0] in _OF_DEVELOPERS else ""
    return f"the package {error.name} is missing{extra}"


#: Packages that tests and some benchmarks use, and `.[all]` leaves out.
_OF_DEVELOPERS = ("pytest", "selenium", "moto", "hypothesis", "threadpoolctl", "s3fs")
