"""Checkpoints: what they hold, how they are committed to disk, and which one a job resumes from.

Every attempt writes below a folder of its own, `attempt-N/`. A checkpoint is a folder `step-N/`; it is complete once
its `manifest.json`, which lists the hashes of its files, appears in one rename. A folder without a manifest, or whose
files differ from it, is torn. Under a scheduler a script resumes from the checkpoint that the scheduler names and from
no newer one; by itself, from the newest complete one below the given directory. Rank 0 writes the shared state; every
rank adds its own random states. Nothing of ours is pickled: tensors are read with `torch.load(weights_only=True)`,
everything else is JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from walras.training.supervisor_link import CheckpointReference, JobEnvironment

MANIFEST = "manifest.json"
#: The value of `Checkpoint(every_s=)` for an interval that the scheduler plans; and the interval without a plan, in
#: seconds.
PLANNED = "planned"
UNPLANNED_S = 300.0
#: The number of complete checkpoints that are kept where neither script nor job file says it.
KEPT = 2
MANIFEST_FORMAT = 1
#: Values of `Checkpoint(layout=)`.
REPLICATED, SHARDED = "replicated", "sharded"
_ATTEMPT_FOLDER = re.compile(r"^attempt-(\d{1,9})$")
_STEP_FOLDER = re.compile(r"^step-(\d{1,15})(?:-rank-\d{1,9})?$")
_FILE_NAME = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}$")


class TornCheckpoint(RuntimeError):
    """A checkpoint that differs from its manifest, or has no manifest."""


def attempt_folder(root: Path, attempt: int) -> Path:
    return root / f"attempt-{attempt:04d}"


def step_folder(attempt_dir: Path, step: int, rank: int = 0) -> Path:
    """Returns where a checkpoint lies. `rank`: the one that made it; survivors of a gang do not write to one folder."""
    return attempt_dir / (f"step-{step:010d}-rank-{rank}" if rank else f"step-{step:010d}")


def partial_folder(attempt_dir: Path, step: int, rank: int = 0) -> Path:
    """Returns where the files of a checkpoint are written before it is complete."""
    folder = step_folder(attempt_dir, step, rank)
    return folder.with_name(f"{folder.name}.partial")


def list_attempt_folders(root: Path) -> list[tuple[int, Path]]:
    """Returns the attempts' folders below `root`, newest first."""
    return _numbered(root, _ATTEMPT_FOLDER)


def list_step_folders(attempt_dir: Path) -> list[tuple[int, Path]]:
    """Returns the checkpoints of an attempt, complete or torn, newest first."""
    return _numbered(attempt_dir, _STEP_FOLDER)


def _numbered(folder: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    matches = [(match, folder / name) for name in names if (match := pattern.match(name))]
    return sorted(((int(match.group(1)), path) for match, path in matches), reverse=True)


def commit_checkpoint(partial: Path, final: Path, step: int) -> CheckpointReference:
    """Makes the files in `partial` the checkpoint `final`. On return it is complete and durable."""
    files = [_entry(partial / name) for name in sorted(os.listdir(partial))]
    for entry in files:
        sync_path(partial / str(entry["name"]))
    sync_path(partial)
    if final.exists():
        shutil.rmtree(final)
    os.rename(partial, final)
    sync_path(final.parent)
    digest = _digest(files)
    body = {"format": MANIFEST_FORMAT, "step": step, "files": files, "digest": digest}
    write_synced(final / (MANIFEST + ".partial"), json.dumps(body, indent=1).encode())
    os.rename(final / (MANIFEST + ".partial"), final / MANIFEST)
    sync_path(final)
    return CheckpointReference(path=str(final), digest=digest, step=step)


def verify_checkpoint(folder: Path, digest: str | None = None) -> CheckpointReference:
    """Check every file of the checkpoint against its manifest (and the manifest against `digest`).

    Raises:
        TornCheckpoint: something is missing or differs; the message says what.
    """
    files, step, stated = read_manifest(folder)
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
    return CheckpointReference(path=str(folder), digest=stated, step=step)


def read_manifest(folder: Path) -> tuple[list[dict[str, str | int]], int, str]:
    """Returns the files that a checkpoint lists (name, size, sha256), its step and its digest; looks at none of them.

    Raises TornCheckpoint where there is no manifest, or one that does not hold together.
    """
    try:
        body = json.loads((folder / MANIFEST).read_bytes())
        files = [_checked_entry(entry) for entry in body["files"]]
        step = int(body["step"])
        stated = str(body["digest"])
    except (FileNotFoundError, NotADirectoryError):
        raise TornCheckpoint(f"{folder}: no {MANIFEST}, it was never completed") from None
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise TornCheckpoint(f"{folder}: {MANIFEST} does not parse ({error})") from None
    if _digest(files) != stated:
        raise TornCheckpoint(f"{folder}: the digest in {MANIFEST} does not fit its list of files")
    return files, step, stated


def _checked_entry(entry: Any) -> dict[str, str | int]:
    name = str(entry["name"])
    if not _FILE_NAME.match(name):
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


def write_synced(path: Path, content: bytes) -> None:
    """Writes a file and syncs it to disk."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_path(path: Path) -> None:
    """Syncs a file, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Checkpoint:
    """The objects that make up a job's state, and when to save them.

        checkpoint = Checkpoint("runs/digits", model=model, optimizer=optimizer, every_s=60)
        checkpoint.values["best"] = 0.93

    Args:
        directory: where checkpoints go when no scheduler says so. Without either, nothing is saved.
        every_s, every_steps: save this often. The end of a lease and the end of training save in any case. `every_s`
            "planned": as often as the scheduler plans from what writing costs and how long its machines live; without
            one every 300 s. None: not by time.
        keep: complete checkpoints of this attempt to keep, besides what a scheduler may still resume from; None: as the
            job file says, else 2.
        layout: of a gang's state: "replicated", whole and equal on every rank, so that survivors of the gang may save
            it, or "sharded". None: replicated where all objects are known to be (`between_steps.is_replicated`).
        objects: anything with `state_dict` and `load_state_dict`. A DistributedDataParallel model is saved without its
            wrapper, so that it can be resumed on another number of ranks.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        /,
        *,
        every_s: float | str | None = PLANNED,
        every_steps: int | None = None,
        keep: int | None = None,
        layout: str | None = None,
        **objects: Any,
    ) -> None:
        if isinstance(every_s, str) and every_s != PLANNED:
            raise ValueError(f"every_s={every_s!r}: seconds, None, or {PLANNED!r}")
        if keep is not None and keep < 1:
            raise ValueError(f"keep={keep}: keep at least one checkpoint")
        if layout not in (None, REPLICATED, SHARDED):
            raise ValueError(f"layout={layout!r}: {REPLICATED!r} or {SHARDED!r}")
        for name, thing in objects.items():
            if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
                raise TypeError(f"{name}={type(thing).__name__} has no state_dict and load_state_dict; use .values")
        self.every_s = every_s
        self.every_steps = every_steps
        self.keep = keep
        self.layout = layout
        #: Plain values (JSON) that are saved and restored with the objects.
        self.values: dict[str, Any] = {}
        self._directory = None if directory is None else Path(directory)
        #: The objects as the script gave them, with their wrappers.
        self.given = tuple(objects.values())
        self._objects = {name: _unwrapped(thing) for name, thing in objects.items()}
        self._root: Path | None = None
        self._attempt = 0
        self._has_resumed = False
        self._were_loadable = False
        self._committed: list[CheckpointReference] = []

    def open(self, settings: JobEnvironment, log: Callable[[str], None]) -> CheckpointReference | None:
        """Find where to save and what to resume from. `log` receives a line for every torn checkpoint.

        Raises:
            TornCheckpoint: the checkpoint that the scheduler named is damaged, and so are those before it.
        """
        self.keep = self.keep or settings.checkpoint_keep
        if settings.checkpoint_dir:
            self._root, self._attempt = Path(settings.checkpoint_dir).absolute(), settings.attempt
            found = _named_or_before(settings.resume, log) if settings.resume is not None else None
        elif self._directory is not None:
            self._root = self._directory.absolute()
            numbered = list_attempt_folders(self._root)
            # All ranks find the same number: the first save makes the folder, and no rank saves before all have looked.
            self._attempt = numbered[0][0] + 1 if numbered else 1
            found = _newest_complete(self._root, log)
        else:
            return None
        self._has_resumed = found is not None
        return found

    @property
    def objects(self) -> tuple[Any, ...]:
        """The objects that are saved."""
        return tuple(self._objects.values())

    @property
    def is_open(self) -> bool:
        """Whether there is a place to save to."""
        return self._root is not None

    @property
    def is_planned(self) -> bool:
        """Whether the scheduler decides how often to save."""
        return self.every_s == PLANNED

    def is_due(self, seconds: float, planned_s: float | None = None) -> bool:
        """Returns True if a checkpoint is due this many seconds after the last one. `planned_s`: the plan."""
        if isinstance(self.every_s, str):
            return seconds >= (UNPLANNED_S if planned_s is None else planned_s)
        return self.every_s is not None and seconds >= self.every_s

    def is_due_at(self, step: int, counted: int) -> bool:
        """Returns True if a checkpoint is due at this step, the last of `counted` steps that were counted at once."""
        return self.every_steps is not None and step % self.every_steps < counted

    def partial(self, step: int, rank: int = 0) -> Path:
        """Makes and returns the folder to which the files of a checkpoint at this step are written."""
        path = partial_folder(self._attempt_dir, step, rank)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def states(self) -> dict[str, Any]:
        """Returns the state of every object by its name."""
        return {name: thing.state_dict() for name, thing in self._objects.items()}

    def write_shared(self, folder: Path, states: Mapping[str, Any] | None = None) -> None:
        """Writes the state of every object (rank 0 calls it). `states`: those to write; None: as they are now."""
        torch = sys.modules.get("torch")
        for name, thing in self._objects.items():
            write_state(folder, name, thing.state_dict() if states is None else states[name])
            if torch is not None and not self._were_loadable:
                _check_loadable(torch, folder, name)
        self._were_loadable = True

    def commit(self, step: int, rank: int = 0) -> CheckpointReference:
        """Makes the written files a checkpoint (rank 0 calls it, when every rank has written; or a survivor, alone)."""
        partial = partial_folder(self._attempt_dir, step, rank)
        reference = commit_checkpoint(partial, step_folder(self._attempt_dir, step, rank), step)
        self._committed.append(reference)
        return reference

    def discard(self, step: int, rank: int = 0) -> None:
        """Deletes what was written for a checkpoint at this step, unless it is complete: on a full disk it would keep
        every later one from being written."""
        final = step_folder(self._attempt_dir, step, rank)
        for folder in (partial_folder(self._attempt_dir, step, rank), final):
            if folder != final or not (final / MANIFEST).exists():
                shutil.rmtree(folder, ignore_errors=True)

    def load_shared(self, folder: Path) -> None:
        """Puts the objects into the saved state (every rank calls it)."""
        for name, thing in self._objects.items():
            thing.load_state_dict(read_state(folder, name))

    def prune(self, recorded: set[str] | None) -> None:
        """Rank 0: delete checkpoints from which no attempt can resume any more.

        Args:
            recorded: digests that the server has recorded; None without a scheduler. A scheduler resumes from the
                newest it has recorded, or from the one this attempt began with: those and all newer ones stay.
        """
        newest_safe = len(self._committed) - 1
        if recorded is not None:
            known = [index for index, reference in enumerate(self._committed) if reference.digest in recorded]
            if not known:
                return
            newest_safe = known[-1]
        for reference in self._committed[: max(0, min(newest_safe, len(self._committed) - (self.keep or KEPT)))]:
            shutil.rmtree(reference.path, ignore_errors=True)
            self._committed.remove(reference)
        if recorded is not None or self._has_resumed:
            self._delete_attempts_before()

    def _delete_attempts_before(self) -> None:
        assert self._root is not None
        for number, path in list_attempt_folders(self._root):
            if number < self._attempt:
                shutil.rmtree(path, ignore_errors=True)

    @property
    def _attempt_dir(self) -> Path:
        assert self._root is not None
        return attempt_folder(self._root, self._attempt)


def write_state(folder: Path, name: str, state: Any) -> None:
    """Writes one object's state: by torch where the script uses it, else as JSON. Raises OSError as for any file."""
    torch = sys.modules.get("torch")
    if torch is None:
        write_json(folder, name, state)
        return
    try:
        torch.save(state, folder / f"{name}.pt")
    except RuntimeError as error:
        if _NOT_WRITTEN.search(str(error)) is None:
            raise
        raise OSError(f"{folder / name}.pt cannot be written, mostly because the disk is full: {error}") from None


#: What torch says where the file refuses its bytes.
_NOT_WRITTEN = re.compile(r"inline_container|PytorchStreamWriter|iostream error")


def read_state(folder: Path, name: str) -> Any:
    if (folder / f"{name}.json").exists():
        return read_json(folder, name)
    torch = sys.modules.get("torch")
    if torch is None:
        raise RuntimeError(f"{folder / name}.pt was written by torch: import torch before the loop begins")
    if not (folder / f"{name}.pt").exists():
        raise KeyError(f"{folder} holds nothing named {name!r}; it was saved by a script with other objects")
    return torch.load(folder / f"{name}.pt", map_location="cpu", weights_only=True)


def write_json(folder: Path, name: str, value: Any) -> None:
    """Writes a value that JSON gives back unchanged; any other value raises a TypeError that names it."""
    text = json.dumps(value)
    if json.loads(text) != value:
        raise TypeError(f"{name!r} does not survive JSON (tuples and keys that are no strings do not): {text[:200]}")
    (folder / f"{name}.json").write_text(text)


def read_json(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text())


def _unwrapped(thing: Any) -> Any:
    return thing.module if type(thing).__name__ == "DistributedDataParallel" else thing


def _check_loadable(torch: Any, folder: Path, name: str) -> None:
    """Raises TypeError at the first save, rather than at the first resume, for a state that cannot be loaded again."""
    try:
        torch.load(folder / f"{name}.pt", map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises pickle's errors, which are of every type
        raise TypeError(
            f"the state of {name!r} holds more than tensors and plain values, so it could not be loaded again: {error}"
        ) from None


def _named_or_before(named: CheckpointReference, log: Callable[[str], None]) -> CheckpointReference:
    """Returns the checkpoint the scheduler named or, if that one is damaged, the newest whole one before it of that
    attempt.

    Those before it were written under the same fence. Never one after it: it may never have been recorded.
    """
    try:
        return verify_checkpoint(Path(named.path), named.digest)
    except TornCheckpoint as error:
        log(f"torn checkpoint skipped: {error}")
    for step, path in list_step_folders(Path(named.path).parent):
        if step < named.step and (found := _verified(path, log)) is not None:
            return found
    raise TornCheckpoint(f"{named.path} is damaged and nothing before it can be resumed from")


def _newest_complete(root: Path, log: Callable[[str], None]) -> CheckpointReference | None:
    candidates = [(step, path) for _, folder in list_attempt_folders(root) for step, path in list_step_folders(folder)]
    for _, path in sorted(candidates, reverse=True):
        if (found := _verified(path, log)) is not None:
            return found
    return None


def _verified(path: Path, log: Callable[[str], None]) -> CheckpointReference | None:
    try:
        return verify_checkpoint(path)
    except TornCheckpoint as error:
        log(f"torn checkpoint skipped: {error}")
        return None


def seed_of(folder: Path, rank: int) -> int | None:
    """Returns the seed that this rank saved; that of the survivor who saved alone where rank 0 did not."""
    own = rank_values(folder, rank)
    if own is None and rank_values(folder, 0) is None:
        saved = sorted(folder.glob("rank-*.json"))
        own = read_json(folder, saved[0].stem) if saved else None
    return None if own is None else int(own["seed"])


def rank_values(folder: Path, rank: int) -> Mapping[str, Any] | None:
    """Returns what this rank saved; None if fewer ranks made the checkpoint."""
    if not (folder / f"rank-{rank}.json").exists():
        return None
    values = read_json(folder, f"rank-{rank}")
    assert isinstance(values, dict)
    return values
