"""Which files of a working folder travel with a job: everything that no ignore file leaves out.

`.gitignore` files are honoured at every level as git does, and so is `.walrasignore` beside them, which has the same
form and is read last. What version control and Python make for themselves never travels.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pathspec import GitIgnoreSpec

from walras.content import ContentTree, check_sizes, hash_folder
from walras.errors import ConfigError
from walras.job_needs import PATH_MOST
from walras.protocol import FILES_MOST

#: A job's code and what lies beside it, bytes. Data belong elsewhere.
SNAPSHOT_BYTES = 512 * 1024 * 1024
_NEVER = (".git", ".hg/", ".svn/", "__pycache__/", "*.pyc", ".venv/", "node_modules/", ".mypy_cache/", ".pytest_cache/")
_IGNORE_FILES = (".gitignore", ".walrasignore")
_IGNORE_BYTES = 1024 * 1024


def snapshot_folder(folder: Path) -> ContentTree:
    """Describe the files of a folder that travel with a job.

    Raises ConfigError for a folder that is not there, too large or too full, and for what is no regular file.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder", field="workdir", fix="write the path of the folder with your code")
    paths = []
    for path in _files(folder, "", [("", GitIgnoreSpec.from_lines(_NEVER))]):
        paths.append(path)
        if len(paths) > FILES_MOST:
            raise ConfigError(
                f"{folder} has more than {FILES_MOST:,} files",
                field="workdir",
                fix="start from the folder with your code, or list what need not travel in .walrasignore",
            )
    # Before anything is read: a folder with a terabyte of data is refused at once.
    check_sizes({path: _size_of(folder / path) for path in paths}, SNAPSHOT_BYTES, str(folder))
    return hash_folder(folder, paths)


def code_fields(tree: ContentTree, folder: Path) -> dict[str, Any]:
    """Returns the field `code` of a job that starts in a copy of these files, which are those of the folder."""
    return {"tree": tree.name, "folder": folder.name or "root", "files": len(tree.files), "size": tree.size}


def _files(folder: Path, below: str, specs: list[tuple[str, GitIgnoreSpec]]) -> Iterator[str]:
    """Yields the paths of files, depth first. `specs`: each ignore file's rules with the folder they start from."""
    specs = [*specs, *_rules_of(folder / below, below)]
    try:
        entries = sorted(os.scandir(folder / below), key=lambda entry: entry.name)
    except OSError as error:
        raise ConfigError(f"{folder / below}: {error.strerror}", field="workdir") from None
    for entry in entries:
        path = f"{below}{entry.name}"
        is_folder = entry.is_dir(follow_symlinks=False)
        if _is_ignored(f"{path}/" if is_folder else path, specs):
            continue
        if len(path) > PATH_MOST:
            raise ConfigError(
                f"{folder}: the path {path[:40]}… has more than {PATH_MOST} characters",
                field="workdir",
                fix="list it in .walrasignore, or give it a shorter name",
            )
        if is_folder:
            yield from _files(folder, f"{path}/", specs)
        else:
            yield path


def _rules_of(place: Path, below: str) -> Iterator[tuple[str, GitIgnoreSpec]]:
    for name in _IGNORE_FILES:
        if (place / name).is_file():
            text = (place / name).read_bytes()[:_IGNORE_BYTES].decode(errors="replace")
            yield below, GitIgnoreSpec.from_lines(text.splitlines())


def _is_ignored(path: str, specs: list[tuple[str, GitIgnoreSpec]]) -> bool:
    """The last rule that matches decides, as in git."""
    ignored = False
    for base, spec in specs:
        said = spec.check_file(path.removeprefix(base)).include
        ignored = ignored if said is None else said
    return ignored


def _size_of(place: Path) -> int:
    """Returns the bytes of a regular file. Raises ConfigError for anything else."""
    if place.is_symlink() or not place.is_file():
        raise ConfigError(
            f"{place} is no regular file",
            field="workdir",
            fix="leave it out (.walrasignore), or copy what it points to",
        )
    return place.stat().st_size
