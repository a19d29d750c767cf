"""Data of a job, fetched once per machine, by the current content of a URL or by the text of a command.

A file is identified by its URL and its server's version (ETag, date, size), a local one by its path, date and size.
`http`, `https` and `file` are read with the standard library, every other scheme with fsspec. The data are untrusted:
their size is counted during the transfer, and they never fill the disk.
"""

import contextlib
import errno
import hashlib
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException, InvalidURL
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit

from walras.errors import ClusterError, ConfigError
from walras.job_needs import InputNeed
from walras.machines.machine_facts import DATA_MOST, data_key
from workers.preparation.folder_cache import (
    FREE_LEAST_BYTES,
    CacheBounds,
    FolderCache,
    NoRoom,
    cache_key,
    make_read_only,
)

INPUT_BOUNDS = CacheBounds(entries=DATA_MOST, size_bytes=500 * 1000**3)
_PIECE_BYTES = 1024 * 1024
_TIMEOUT_S = 60.0
_FILES_MOST = 1_000_000
#: HTTP status codes after which a retry may succeed.
_PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
#: What a server answers to HEAD that serves GET alone: a link may be signed for one of them.
_NO_HEAD = frozenset({403, 405, 501})
#: What programs say, in small letters, where the network or the other side is at fault.
_PASSING_WORDS = (
    *("could not resolve", "unable to access", "no such host", "name resolution", "timed out", "timeout", " eof"),
    *("connection refused", "connection reset", "hung up unexpectedly", "no route to host", "is unreachable"),
    *("too many requests", "toomanyrequests", "bad gateway", "service unavailable", "internal server error"),
)
#: What the system says where this machine is at fault, and another one may do.
_MACHINES_WORDS = tuple(
    os.strerror(getattr(errno, name)).lower()
    for name in ("ENOSPC", "EDQUOT", "EROFS", "EIO", "ENOMEM", "EAGAIN", "EMFILE", "ENFILE")
)


class CannotFetch(ClusterError):
    """The data could not be fetched now: a retry, or another machine, may succeed."""


class MachineUnable(ClusterError):
    """This machine lacks a tool or room that the job needs, or is not in order: the job is not at fault."""


def is_of_machine(said: object) -> bool:
    """Returns whether an error, or the words of a program, tell of a machine that has no room or is not in order."""
    return any(words in str(said).lower() for words in _MACHINES_WORDS)


def tool_failed(told: str, said: str, field: str) -> ClusterError | ConfigError:
    """Returns the error of a program that fetches, by what it said."""
    if is_of_machine(said):
        full = os.strerror(errno.ENOSPC)
        return MachineUnable(f"{told}: {full}" if full.lower() in said.lower() else told)
    is_passing = any(words in said.lower() for words in _PASSING_WORDS)
    return CannotFetch(told) if is_passing else ConfigError(told, field=field)


def bring_inputs(
    cache: FolderCache, inputs: dict[str, InputNeed], target: Path, env: dict[str, str], owner: str
) -> None:
    """Creates `target` with a link for each input of a job of this owner.

    Raises ConfigError for errors that a retry does not change, CannotFetch for others.
    """
    target.mkdir(parents=True, exist_ok=True)
    for name, need in inputs.items():
        link, content = target / name, bring_input(cache, name, need, env, owner)
        with contextlib.suppress(FileExistsError):
            link.symlink_to(content)


def bring_input(cache: FolderCache, name: str, need: InputNeed, env: dict[str, str], owner: str) -> Path:
    """Returns the file or folder of one input, fetched if this machine does not have it for this owner.

    What a stated hash proves is everybody's; all else was had with the rights of the job that fetched it.
    """
    owner = "" if need.sha256 else owner
    if need.command:
        key = cache_key("command", need.command, owner)
        return cache.get(key, lambda place: _run_command(name, need.command, place, env), data_key(need, owner))
    scheme = urlsplit(need.url).scheme
    if scheme == "file":
        return _bring_local(cache, name, need, owner)
    if scheme in ("http", "https"):
        version = need.sha256 or _passing(name, lambda: _http_version(need.url))
        key = cache_key("url", need.url, version, owner)

        def fetch(place: Path) -> None:
            _passing(name, lambda: _fetch_http(need, place / _file_name(need.url)))

        return cache.get(key, fetch, data_key(need, owner)) / _file_name(need.url)
    return _bring_other(cache, name, need, owner)


def _passing(name: str, work: Callable[[], Any]) -> Any:
    """Returns the result of `work`; raises its network errors as ours, and leaves those of this machine."""
    try:
        return work()
    except HTTPError as error:
        kind = CannotFetch if error.code in _PASSING_STATUS else ConfigError
        raise kind(f"input {name}: {error.code} {error.reason}") from None
    except InvalidURL as error:
        raise ConfigError(f"input {name}: {error}", field=f"inputs.{name}") from None
    except (OSError, HTTPException) as error:
        if is_of_machine(error):
            raise
        raise CannotFetch(f"input {name}: {error}") from None


def _file_name(url: str) -> str:
    """Returns the last part of a URL's path, as a safe file name."""
    name = PurePosixPath(unquote(urlsplit(url).path)).name
    return name if name not in ("", ".", "..") and "\0" not in name and len(os.fsencode(name)) < 200 else "data"


# ------------------------------------------------------------------------------------------------ http


def _http_version(url: str) -> str:
    """Returns the server's version of a file: its tag, else date and size."""
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=_TIMEOUT_S)
    except HTTPError as error:
        if error.code not in _NO_HEAD:
            raise
        error.close()
        answer = urllib.request.urlopen(url, timeout=_TIMEOUT_S)
    with answer:
        said = answer.headers
        return said.get("ETag") or f"{said.get('Last-Modified', '')} {said.get('Content-Length', '')}"


def _fetch_http(need: InputNeed, target: Path) -> None:
    with urllib.request.urlopen(need.url, timeout=_TIMEOUT_S) as answer:
        declared = answer.headers.get("Content-Length", "")
        _copy_bounded(answer, target, need.sha256, int(declared) if declared.isdigit() else None)
    make_read_only(target.parent)


def _copy_bounded(source: IO[bytes], target: Path, sha256: str, declared: int | None = None) -> None:
    """Copies a stream. Raises CannotFetch if it is cut, NoRoom before it fills the disk, ConfigError for another
    hash.
    """
    hashed, size = hashlib.sha256(), 0
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "xb") as file:
        while piece := source.read(_PIECE_BYTES):
            if shutil.disk_usage(target.parent).free < FREE_LEAST_BYTES + max(0, (declared or 0) - size):
                raise NoRoom(f"{target.name} has {declared or 'more than ' + str(size)} bytes")
            file.write(piece)
            hashed.update(piece)
            size += len(piece)
    if declared is not None and size != declared:
        raise CannotFetch(f"{target.name} was cut: {size:,} of {declared:,} bytes came")
    if sha256 and hashed.hexdigest() != sha256:
        raise ConfigError(f"{target.name} has the SHA-256 {hashed.hexdigest()}, not {sha256}", field="inputs")


# ------------------------------------------------------------------------------------------------ files


def _bring_local(cache: FolderCache, name: str, need: InputNeed, owner: str) -> Path:
    """Copies a local file or folder, so that a shared disk is read once, and later changes do not reach the job."""
    source = Path(unquote(urlsplit(need.url).path))
    try:
        files = list(_local_files(source))
    except OSError as error:
        raise ConfigError(f"input {name}: {error.filename}: {error.strerror}", field=f"inputs.{name}") from None
    listed = [f"{path} {found.st_mtime_ns} {found.st_size}" for path, found in files]
    key = cache_key("file", str(source), need.sha256, owner, *listed)

    def copy(place: Path) -> None:
        total = sum(found.st_size for _, found in files)
        if shutil.disk_usage(place).free < FREE_LEAST_BYTES + total:
            raise NoRoom(f"input {name} has {total:,} bytes")
        for path, _ in files:
            with open(source / path if path else source, "rb") as file:
                _copy_bounded(file, place / source.name / path if path else place / source.name, need.sha256)
        make_read_only(place)

    return cache.get(key, copy, data_key(need, owner)) / source.name


def _local_files(source: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Generates path below the source (empty: the source itself) and status of each regular file; no links below it."""
    found = source.stat()
    if not source.is_dir():
        if not source.is_file():
            raise FileNotFoundError(2, "is no regular file and no folder", str(source))
        yield "", found
        return
    count = 0
    for folder, names, files in os.walk(source):
        names.sort()
        for each in sorted(files):
            path = Path(folder) / each
            if path.is_symlink() or not path.is_file():
                continue
            count += 1
            if count > _FILES_MOST:
                raise FileNotFoundError(2, f"has more than {_FILES_MOST:,} files", str(source))
            yield path.relative_to(source).as_posix(), path.stat()


# ------------------------------------------------------------------------------------------------ everything else


def _bring_other(cache: FolderCache, name: str, need: InputNeed, owner: str) -> Path:
    try:
        import fsspec
    except ImportError:
        raise ConfigError(
            f"input {name}: this machine reads http, https and file alone", fix="pip install 'walras[stores]' there"
        ) from None
    try:
        store, path = fsspec.url_to_fs(need.url)
        is_file = store.isfile(path)
        found = [store.info(path)] if is_file else list(store.find(path, detail=True).values())
    except (ImportError, ValueError) as error:
        raise ConfigError(f"input {name}: {error}", field=f"inputs.{name}") from None
    except Exception as error:  # fsspec's backends raise errors of their own
        raise CannotFetch(f"input {name}: {type(error).__name__}: {error}") from None
    if not found:
        raise ConfigError(f"input {name}: there is nothing at {need.url}", field=f"inputs.{name}")
    versions = (str(each.get("ETag") or each.get("mtime") or each.get("LastModified")) for each in found)
    listed = [f"{each['name']} {each.get('size')} {version}" for each, version in zip(found, versions, strict=True)]
    last = _file_name(need.url)

    def fetch(place: Path) -> None:
        try:
            for each in found:
                inner = "" if is_file else str(each["name"]).removeprefix(path.rstrip("/")).lstrip("/")
                if ".." in PurePosixPath(inner).parts:
                    raise ConfigError(f"input {name}: {each['name'][:200]!r} leaves its folder")
                with store.open(each["name"], "rb") as file:
                    _copy_bounded(file, place / last / inner if inner else place / last, need.sha256, each.get("size"))
        except (ClusterError, ConfigError, NoRoom):
            raise
        except Exception as error:  # fsspec's backends raise errors of their own
            raise CannotFetch(f"input {name}: {type(error).__name__}: {error}") from None
        make_read_only(place)

    key = cache_key("store", need.url, need.sha256, owner, *listed)
    return cache.get(key, fetch, data_key(need, owner)) / last


def _run_command(name: str, command: str, place: Path, env: dict[str, str]) -> None:
    """Fills the folder by running a command of the job."""
    told = env | {"WALRAS_INPUT": str(place)}
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=place, env=told, check=False)
    if done.returncode != 0:
        raise ConfigError(f"input {name}: its command ended with code {done.returncode}", field=f"inputs.{name}")
    make_read_only(place)
