"""Selects the files of a working folder that travel with a job: all that no ignore file excludes.

`.gitignore` files are honoured at every level as git does, and so is `.walrasignore` beside them, which has the same
form and is read last. Files of version control and of Python's caches do not travel, nor do keys in the usual folders,
unless an ignore file includes them (`!.aws/`). Python environments (of venv and conda, by any name) hold paths of their
machine, and the data of a server or an agent the keys of the cluster: they never travel. A person's home folder is
refused: it is no job's code.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pathspec import GitIgnoreSpec

from walras.contract import FILES_MOST
from walras.errors import ConfigError
from walras.job_needs import PATH_MOST
from walras.storage.content import ContentTree, check_sizes, hash_folder

#: The most bytes of a job's code and the files beside it. Data belong elsewhere.
SNAPSHOT_BYTES = 512 * 1024 * 1024
_NEVER = (".git", ".hg/", ".svn/", "__pycache__/", "*.pyc", ".venv/", "node_modules/", ".mypy_cache/", ".pytest_cache/")
#: Where people keep keys, passwords and tokens. A job that needs a key gets it by the field `secrets`.
_KEYS = (
    ".ssh/", ".gnupg/", ".aws/", ".azure/", ".config/gcloud/", ".docker/", ".kube/", ".netrc", ".pypirc",
    "admin.token", "join.token", "walras.token",
)  # fmt: skip
#: Files that together mark the data of a server, and the state of an agent.
_CLUSTER_KEYS = (("secret.key", "join.token"), ("secret.key", "walras.db"), ("agent.sqlite", "agent.lock"))
#: Marks of an environment of venv (and its kin) and of conda.
_ENVIRONMENTS = (("pyvenv.cfg",), ("conda-meta",))
#: A home folder with one of these belongs to a person; an empty one, as containers have, is treated as any other
#: folder.
_SIGNS_OF_LIFE = (".ssh", ".bashrc", ".bash_history", ".profile", ".zshrc", ".zsh_history")
_IGNORE_FILES = (".gitignore", ".walrasignore")
_IGNORE_BYTES = 1024 * 1024
#: How many files that cannot travel are named, and characters of each.
_NAMED_MOST, _SHOWN_MOST = 20, 100


def snapshot_folder(folder: Path) -> ContentTree:
    """Describe the files of a folder that travel with a job.

    Raises ConfigError for a folder that is not there, too large, too full, somebody's home or a cluster's own, and for
    what cannot travel, all of which it names: links, names that are not UTF-8 or too long, what is no regular file.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder", field="workdir", fix="write the path of the folder with your code")
    _check_holds_code(folder)
    paths = []
    for path in _files(folder, "", [("", GitIgnoreSpec.from_lines((*_NEVER, *_KEYS)))]):
        paths.append(path)
        if len(paths) > FILES_MOST:
            raise ConfigError(
                f"{folder} has more than {FILES_MOST:,} files",
                field="workdir",
                fix="start from the folder with your code, or list what need not travel in .walrasignore",
            )
    if not paths and (folder / ".walrasignore").is_file():
        fix = "delete that file if its folder, fetched results perhaps, is the job's code"
        raise ConfigError(f"{folder}/.walrasignore leaves out all there is", field="workdir", fix=fix)
    _check_can_travel(folder, paths)
    # Checked before anything is read, so that a folder with a terabyte of data is refused at once.
    check_sizes({path: (folder / path).stat().st_size for path in paths}, SNAPSHOT_BYTES, str(folder))
    return hash_folder(folder, paths)


def keep_out(folder: Path) -> bool:
    """Have a folder of results left out of snapshots of the folders above it, as its own rules say if it has any.

    Returns whether it is left out whole.
    """
    try:
        with open(folder / ".walrasignore", "x", encoding="utf-8") as rules:
            rules.write("*\n")
    except FileExistsError:
        return False
    return True


def code_fields(tree: ContentTree, folder: Path) -> dict[str, Any]:
    """Returns the field `code` of a job that starts in a copy of these files, which are those of the folder."""
    return {"tree": tree.name, "folder": folder.name or "root", "files": len(tree.files), "size": tree.size}


def _check_holds_code(folder: Path) -> None:
    """Raises ConfigError for a folder whose whole content nobody means to send to other machines."""
    place = folder.resolve()
    is_home = place == Path(os.path.expanduser("~")).resolve() and any(
        (place / name).exists() for name in _SIGNS_OF_LIFE
    )
    if is_home or place == Path("/"):
        which = "your home folder" if is_home else "the root"
        raise ConfigError(
            f"{folder} is {which}: all of it would travel with the job",
            field="workdir",
            fix="put your code in a folder of its own and submit from there",
        )
    if _holds_any(place, _CLUSTER_KEYS):
        raise ConfigError(
            f"{folder} holds the data of a Walras server or agent, and with them the cluster's keys",
            field="workdir",
            fix="submit from the folder with your code",
        )


def _holds_any(place: Path, marks: tuple[tuple[str, ...], ...]) -> bool:
    return any(all((place / name).exists() for name in names) for names in marks)


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
        if is_folder and len(path) > PATH_MOST:
            raise ConfigError(
                f"{folder}: the path {path[:40]}… has more than {PATH_MOST} characters",
                field="workdir",
                fix="list it in .walrasignore, or give it a shorter name",
            )
        if is_folder and _holds_any(folder / path, _CLUSTER_KEYS + _ENVIRONMENTS):
            continue
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
    """Returns whether git would ignore the path: the last rule that matches decides."""
    ignored = False
    for base, spec in specs:
        said = spec.check_file(path.removeprefix(base)).include
        ignored = ignored if said is None else said
    return ignored


def _check_can_travel(folder: Path, paths: Iterable[str]) -> None:
    """Raises ConfigError that names all that cannot travel, each with the reason, so that it is mended at once."""
    found = [f"{_shown(path)} {why}" for path in paths if (why := _why_it_stays(folder, path))]
    if found:
        more = f"; and {len(found) - _NAMED_MOST} more" if len(found) > _NAMED_MOST else ""
        raise ConfigError(
            f"{folder} has files that cannot travel: {'; '.join(found[:_NAMED_MOST])}{more}",
            field="workdir",
            fix="list them in .walrasignore; rename them, or copy what links point to",
        )


def _why_it_stays(folder: Path, path: str) -> str:
    """Returns why a file cannot travel; empty if it can."""
    if len(path) > PATH_MOST:
        return f"has a path of more than {PATH_MOST} characters"
    if not _is_utf8(path):
        return "has a name that is not UTF-8"
    place = folder / path
    if place.is_symlink():
        return f"is no regular file but a link to {_shown(os.readlink(place))}"
    return "" if place.is_file() else "is no regular file"


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:  # the system's way to keep other bytes
        return False
    return True


def _shown(path: str) -> str:
    """Returns a path as a terminal can show it, without its middle if it is long."""
    text = "".join(letter if letter.isprintable() else "?" for letter in os.fsencode(path).decode(errors="replace"))
    return text if len(text) <= _SHOWN_MOST else f"{text[: _SHOWN_MOST // 2]}…{text[-_SHOWN_MOST // 2 :]}"
