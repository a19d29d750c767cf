"""The loop's own state in a checkpoint: position in the data, random states, and saving by all ranks together.

Every rank writes its part, then rank 0 commits, and all learn whether it worked. `loop` decides when to save.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from walras.training.batch_source import BatchSource, rescale_position
from walras.training.between_steps import FrozenState, freeze_state
from walras.training.checkpoint import Checkpoint, read_json, read_state, write_json, write_state
from walras.training.gang import Gang
from walras.training.supervisor_link import JobEnvironment, SupervisorLink


def check_arguments(fork: object, shares: object, noise_every: int | None, on_change: object) -> None:
    """Raises ValueError for arguments of `Loop` that exclude each other (None: not given)."""
    if fork is not None and (noise_every is not None or on_change is not None):
        raise ValueError("noise_every, on_change: the parts of a fork have neither one gradient nor one batch")
    if shares is not None and (fork is not None or on_change is not None):
        raise ValueError("shares: their batch stays what it is, and each step is a step of all: no fork, no on_change")


def capture_random_state() -> dict[str, Any]:
    """Returns the states of every generator that the script can have used without naming one."""
    version, internal, gauss = random.getstate()
    states: dict[str, Any] = {"python": [version, list(internal), gauss]}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state = numpy.random.get_state(legacy=False)
        states["numpy"] = {**state, "state": {**state["state"], "key": state["state"]["key"].tolist()}}
    torch = sys.modules.get("torch")
    if torch is not None:
        states["torch"] = _to_hex(torch.get_rng_state())
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states["cuda"] = [_to_hex(state) for state in torch.cuda.get_rng_state_all()]
    return states


def restore_random_state(states: dict[str, Any]) -> None:
    """Restores the generators. A generator whose library is absent here is left out."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in states:
        state = states["numpy"]
        key = numpy.asarray(state["state"]["key"], dtype=numpy.uint32)
        numpy.random.set_state({**state, "state": {**state["state"], "key": key}})
    torch = sys.modules.get("torch")
    if torch is not None and "torch" in states:
        torch.set_rng_state(_from_hex(torch, states["torch"]))
        # A job that moved to another machine restores the states of the devices that it has there.
        if torch.cuda.is_available():
            for device, state in enumerate(states.get("cuda", [])[: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(_from_hex(torch, state), device)


def _to_hex(state: Any) -> str:
    return bytes(state.tolist()).hex()


def _from_hex(torch: Any, text: str) -> Any:
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)


@dataclass(frozen=True)
class DataPosition:
    """A position in the data: the number of batches done in a call of steps() in an epoch."""

    epoch: int
    #: How many times steps() had been called in this epoch before.
    part: int
    batch: int
    #: Ranks that read batches of their own, and samples in each batch (None: unknown), when the position was counted.
    ranks: int
    batch_size: int | None

    def as_saved(self) -> dict[str, Any]:
        """Returns its fields in the checkpoint's JSON."""
        position = {"epoch": self.epoch, "part": self.part, "batch": self.batch}
        return {**position, "world_size": self.ranks, "batch_size": self.batch_size}


def read_position(folder: Path) -> tuple[DataPosition, int, dict[str, Any]]:
    """Returns the position at which a checkpoint was made, the steps done by then, and the script's values."""
    saved = read_json(folder, "loop")
    place = DataPosition(
        int(saved["epoch"]),
        int(saved["part"]),
        int(saved["batch"]),
        int(saved["world_size"]),
        saved.get("batch_size"),
    )
    return place, int(saved["step"]), saved["values"]


def read_batch_choice(folder: Path) -> dict[str, float]:
    """Returns what a job that chooses its batch had found out; empty for others."""
    return {str(name): float(value) for name, value in read_json(folder, "loop").get("batch_choice", {}).items()}


def seek_source(
    source: BatchSource, place: DataPosition, folder: Path, rank: int, readers: int, log: Callable[[str], None]
) -> int:
    """Moves a source to the position of the checkpoint in the folder; returns how many batches that skips."""
    name = f"loader-{rank}"
    batch = rescale_position(place.batch, (place.ranks, place.batch_size), (readers, source.batch_size))
    if place.ranks != readers:
        log(f"saved by {place.ranks} ranks, resumed by {readers}: at batch {batch}")
    if (folder / f"{name}.pt").exists() or (folder / f"{name}.json").exists():
        source.load_state(read_state(folder, name))
        return batch
    if source.can_skip:
        return batch
    if batch > 0:
        log(f"this data cannot be resumed in mid-epoch: epoch {place.epoch} begins again at its first batch")
    return 0


def _is_of_rank(name: str, rank: int) -> bool:
    return name.partition(".")[0] in (f"rank-{rank}", f"loader-{rank}")


def pack_files(paths: list[Path]) -> bytes:
    """Returns a few small files as bytes; nothing for none."""
    contents = [path.read_bytes() for path in paths]
    sizes = [[path.name, len(content)] for path, content in zip(paths, contents, strict=True)]
    return json.dumps(sizes).encode() + b"\n" + b"".join(contents) if paths else b""


def unpack_files(folder: Path, packed: bytes) -> None:
    """Undo `pack_files`, in another folder."""
    head, _, rest = packed.partition(b"\n")
    for name, size in json.loads(head or b"[]"):
        (folder / Path(name).name).write_bytes(rest[:size])
        rest = rest[size:]


@dataclass(frozen=True)
class CheckpointSaver:
    """Saves a checkpoint. Every rank calls it, at the same step."""

    checkpoint: Checkpoint
    gang: Gang
    link: SupervisorLink
    log: Callable[[str], None]
    settings: JobEnvironment
    #: What a job that tunes its batch has found out (`BatchTuner.as_saved`); None for others.
    batch_choice: dict[str, float] | None = None

    def save(self, step: int, place: DataPosition, seed: int, source: BatchSource | None) -> bool:
        """Returns False if saving failed; the reason was logged."""
        started_at = time.monotonic()
        is_written = True
        self.link.send({"type": "saving"})
        try:
            self._write(step, place, seed, source)
        except OSError as error:
            is_written = False
            self.log(f"checkpoint at step {step} failed: {error}")
        is_saved = self.gang.all_succeeded(is_written)
        if is_saved and self.settings.saves_apart and self.settings.machines > 1:
            is_saved = self._bring_together(step)
        if is_saved:
            is_saved = self.gang.all_succeeded(self.gang.rank != 0 or self._commit(step, started_at))
        self.link.send({"type": "saved"})
        return is_saved

    def freeze(self, step: int, place: DataPosition, seed: int, source: BatchSource | None) -> FrozenState | None:
        """Returns the state to save later by `save_alone`; None if it cannot be kept."""
        own, data = self._own_values(seed), None if source is None else source.state()
        return freeze_state(step, own, data, self.checkpoint.states(), self._loop_values(step, place))

    def save_alone(self, frozen: FrozenState) -> bool:
        """Saves what was frozen, without the other ranks: their random streams begin anew at a resume.

        Returns False, without a checkpoint, if a tensor has changed meanwhile or writing failed; the reason was logged.
        """
        started_at = time.monotonic()
        self.link.send({"type": "saving"})
        is_saved = False
        try:
            if frozen.is_unchanged:
                folder = self.checkpoint.partial(frozen.step)
                self._write_own(folder, frozen.own, frozen.data)
                self.checkpoint.write_shared(folder, frozen.objects)
                write_json(folder, "loop", frozen.loop)
            if frozen.is_unchanged:
                is_saved = self._commit(frozen.step, started_at)
            else:
                self.log(f"not saved: tensors have changed since step {frozen.step}")
        except (OSError, TypeError) as error:
            self.log(f"checkpoint at step {frozen.step} failed: {error}")
        self.link.send({"type": "saved"})
        return is_saved

    def _write(self, step: int, place: DataPosition, seed: int, source: BatchSource | None) -> None:
        folder = self.checkpoint.partial(step)
        self._write_own(folder, self._own_values(seed), None if source is None else source.state())
        if self.gang.rank == 0:
            self.checkpoint.write_shared(folder)
            write_json(folder, "loop", self._loop_values(step, place))

    def _own_values(self, seed: int) -> dict[str, Any]:
        return {"rng": capture_random_state(), "seed": seed}

    def _loop_values(self, step: int, place: DataPosition) -> dict[str, Any]:
        choice = {} if self.batch_choice is None else {"batch_choice": self.batch_choice}
        return {"step": step, **place.as_saved(), "values": self.checkpoint.values, **choice}

    def _write_own(self, folder: Path, own: dict[str, Any], data: Any) -> None:
        write_json(folder, f"rank-{self.gang.rank}", own)
        if data is not None:
            write_state(folder, f"loader-{self.gang.rank}", data)

    def _bring_together(self, step: int) -> bool:
        """Gives rank 0 what ranks on other machines wrote, because they share no disk. Every rank calls it."""
        folder, own = self.checkpoint.partial(step), b""
        is_elsewhere, is_written = self.settings.node_rank > 0, True
        if is_elsewhere:
            own = pack_files(
                [folder / name for name in sorted(os.listdir(folder)) if _is_of_rank(name, self.gang.rank)]
            )
        every = self.gang.gather_bytes(own)
        try:
            if self.gang.rank == 0:
                for content in every:
                    unpack_files(folder, content)
        except OSError as error:
            is_written = False
            self.log(f"checkpoint at step {step} failed: {error}")
        is_written = self.gang.all_succeeded(is_written)
        if is_elsewhere:
            shutil.rmtree(folder, ignore_errors=True)
        return is_written

    def _commit(self, step: int, started_at: float) -> bool:
        self.link.poll()
        if self.link.lease_has_ended:
            self.log("the lease has ended: this checkpoint is not committed")
            return False
        try:
            reference = self.checkpoint.commit(step)
        except OSError as error:
            self.log(f"checkpoint at step {step} failed: {error}")
            return False
        took_s = time.monotonic() - started_at
        fields = {"step": reference.step, "path": reference.path, "digest": reference.digest, "took_s": took_s}
        self.link.send({"type": "commit", **fields})
        self.checkpoint.prune(self.link.recorded if self.settings.is_scheduled else None)
        return True
