"""What makes a folder a checkpoint: the manifest, written last.

Layout, below the job's checkpoint folder:

    attempt-0003/step-0000000120/   model.pt, optimizer.pt, loop.json, rank-0.json, ..., manifest.json

The files are written to `step-N.partial/` and synced, the folder is renamed, and then `manifest.json` appears in one
rename. A folder without it, or whose files differ from it, is torn. This file knows nothing of what the files hold.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
FORMAT = 1
_ATTEMPT = re.compile(r"^attempt-(\d{1,9})$")
_STEP = re.compile(r"^step-(\d{1,15})$")
_NAME = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}$")


class TornCheckpoint(RuntimeError):
    """A checkpoint that is not what its manifest says, or has none."""


@dataclass(frozen=True)
class Reference:
    """A complete checkpoint, as the scheduler records it."""

    path: str
    #: SHA-256 over the names, sizes and hashes of its files.
    digest: str
    step: int


def attempt_folder(root: Path, attempt: int) -> Path:
    return root / f"attempt-{attempt:04d}"


def step_folder(attempt_dir: Path, step: int) -> Path:
    return attempt_dir / f"step-{step:010d}"


def partial_folder(attempt_dir: Path, step: int) -> Path:
    """Where the files of a checkpoint are written before it is complete."""
    return attempt_dir / f"step-{step:010d}.partial"


def attempts(root: Path) -> list[tuple[int, Path]]:
    """The attempts' folders below `root`, newest first."""
    return _numbered(root, _ATTEMPT)


def steps(attempt_dir: Path) -> list[tuple[int, Path]]:
    """The checkpoints of an attempt, complete or torn, newest first."""
    return _numbered(attempt_dir, _STEP)


def _numbered(folder: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    matches = [(match, folder / name) for name in names if (match := pattern.match(name))]
    return sorted(((int(match.group(1)), path) for match, path in matches), reverse=True)


def commit(partial: Path, final: Path, step: int) -> Reference:
    """Make the files in `partial` the checkpoint `final`. On return it is complete and durable."""
    files = [_entry(partial / name) for name in sorted(os.listdir(partial))]
    for entry in files:
        sync_file(partial / str(entry["name"]))
    sync_folder(partial)
    if final.exists():
        shutil.rmtree(final)
    os.rename(partial, final)
    sync_folder(final.parent)
    digest = _digest(files)
    body = {"format": FORMAT, "step": step, "files": files, "digest": digest}
    write_file(final / (MANIFEST + ".partial"), json.dumps(body, indent=1).encode())
    os.rename(final / (MANIFEST + ".partial"), final / MANIFEST)
    sync_folder(final)
    return Reference(path=str(final), digest=digest, step=step)


def verify(folder: Path, digest: str | None = None) -> Reference:
    """Check every file of the checkpoint against its manifest (and the manifest against `digest`).

    Raises:
        TornCheckpoint: something is missing or differs; the message says what.
    """
    try:
        body = json.loads((folder / MANIFEST).read_bytes())
        files = [_known(entry) for entry in body["files"]]
        step = int(body["step"])
        stated = str(body["digest"])
    except FileNotFoundError:
        raise TornCheckpoint(f"{folder}: no {MANIFEST}, it was never completed") from None
    except (ValueError, KeyError, TypeError) as error:
        raise TornCheckpoint(f"{folder}: {MANIFEST} does not parse ({error})") from None
    if _digest(files) != stated:
        raise TornCheckpoint(f"{folder}: the digest in {MANIFEST} does not fit its list of files")
    if digest is not None and digest != stated:
        raise TornCheckpoint(f"{folder}: digest {stated[:12]}… is not the recorded {digest[:12]}…")
    for entry in files:
        path = folder / str(entry["name"])
        try:
            found = _entry(path)
        except OSError as error:
            raise TornCheckpoint(f"{path}: {error.strerror}") from None
        if found != entry:
            raise TornCheckpoint(f"{path}: size or hash differ from {MANIFEST}")
    return Reference(path=str(folder), digest=stated, step=step)


def _known(entry: Any) -> dict[str, str | int]:
    name = str(entry["name"])
    if not _NAME.match(name):
        raise ValueError(f"file name {name!r}")
    return {"name": name, "size": int(entry["size"]), "sha256": str(entry["sha256"])}


def _entry(path: Path) -> dict[str, str | int]:
    hashed = hashlib.sha256()
    size = 0
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            hashed.update(chunk)
            size += len(chunk)
    return {"name": path.name, "size": size, "sha256": hashed.hexdigest()}


def _digest(files: list[dict[str, str | int]]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_file(path: Path, content: bytes) -> None:
    """Write and sync."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_file(path: Path) -> None:
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
