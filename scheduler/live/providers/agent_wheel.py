"""The wheel that rented machines install: this release, packed from the server's own installation.

A name on a package index belongs to whoever registered it first, so nothing of Walras is fetched from an index.
Machines fetch the wheel from the server that rented them and check its hash, which their boot script carries. The same
files make the same wheel, byte for byte, or two launches of one request would differ.
"""

import base64
import csv
import hashlib
import io
import zipfile
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from walras.errors import ConfigError

_NAME = "walras"
_PACKAGES = ("configs", "optimizer", "scheduler", "simulator", "walras", "workers")
_SUFFIXES = frozenset({".py", ".typed", ".yaml", ".csv", ".json", ".jsonl", ".sql", ".sh"})
_WHEEL = "Wheel-Version: 1.0\nGenerator: walras\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
#: The earliest time that a zip file can state.
_WHEN = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class AgentWheel:
    """A wheel: its file name, its bytes and their SHA-256."""

    name: str
    sha256: str
    content: bytes


@cache
def packed_wheel() -> AgentWheel:
    """Returns the installed release as a wheel, packed once a process in about 1 s. Raises ConfigError if none is."""
    try:
        installed = distribution(_NAME)
    except PackageNotFoundError:
        fix = "install it (pip install), or give an image that has the agent and `install: []`"
        raise ConfigError("machines cannot be given a release that is not installed here", fix=fix) from None
    about = f"{_NAME}-{installed.version}.dist-info"
    files = {name: path.read_bytes() for package in _PACKAGES for name, path in _files_of(package)}
    # A development install of a checkout has PKG-INFO in the place of METADATA.
    metadata = installed.read_text("METADATA") or installed.read_text("PKG-INFO") or ""
    files[f"{about}/METADATA"] = metadata.encode()
    files[f"{about}/WHEEL"] = _WHEEL.encode()
    files[f"{about}/entry_points.txt"] = (installed.read_text("entry_points.txt") or "").encode()
    files[f"{about}/RECORD"] = _record(files, f"{about}/RECORD")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _WHEN)
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, files[name], zipfile.ZIP_DEFLATED)
    content = packed.getvalue()
    return AgentWheel(f"{_NAME}-{installed.version}-py3-none-any.whl", hashlib.sha256(content).hexdigest(), content)


def _files_of(package: str) -> list[tuple[str, Path]]:
    """Returns (name in the wheel, path) of a package's files; an empty list where it is not installed."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        return []
    root = Path(found.submodule_search_locations[0])
    paths = (path for path in root.rglob("*") if path.suffix in _SUFFIXES and path.is_file())
    return [(f"{package}/{path.relative_to(root).as_posix()}", path) for path in paths]


def _record(files: dict[str, bytes], own_name: str) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for name in sorted(files):
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        rows.writerow([name, f"sha256={digest}", len(files[name])])
    rows.writerow([own_name, "", ""])
    return text.getvalue().encode()
