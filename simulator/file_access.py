"""Reads files up to a size, and writes them whole."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from walras.errors import ConfigError, system_refusals


def bounded_bytes(path: Path, most: int, *, refused: str, too_large: str, field: str = "") -> bytes:
    """Returns a file's content. Raises ConfigError, with a fix for one that cannot be read and for one too large."""
    with system_refusals(path, refused, field):
        if path.stat().st_size > most:
            raise ConfigError(f"{path}: more than {most:,} bytes", fix=too_large)
        return path.read_bytes()


def damaged_file(path: object, error: object, told: str, fix: str) -> ConfigError:
    """Returns the error of a file whose content is refused; `told` stands between the path and what is wrong."""
    message = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else error
    return ConfigError(f"{path}{told}: {message}", fix=fix)


@contextmanager
def written_whole(path: Path, *, fix: str, field: str = "") -> Iterator[Path]:
    """Gives the file to write, which takes the path's place at the end: readers see the old content or the new one.

    Raises ConfigError that names the path where the system refuses.
    """
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with system_refusals(path, fix, field):
            yield half
            half.replace(path)
    finally:
        half.unlink(missing_ok=True)
