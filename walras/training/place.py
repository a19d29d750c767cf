"""Where a job stands among its batches, as a checkpoint keeps it, and how a source of batches is brought there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from walras.training.checkpoint import read_json, read_state
from walras.training.data import Source, same_place


@dataclass(frozen=True)
class Place:
    """So many batches into a call of steps() in an epoch."""

    epoch: int
    #: How many times steps() had been called in this epoch before.
    part: int
    batch: int
    #: Ranks that read batches of their own, and samples in each of them (None: not known), where this was counted.
    ranks: int
    batch_size: int | None

    def as_saved(self) -> dict[str, Any]:
        """What the checkpoint keeps of it."""
        position = {"epoch": self.epoch, "part": self.part, "batch": self.batch}
        return {**position, "world_size": self.ranks, "batch_size": self.batch_size}


def read_place(folder: Path) -> tuple[Place, int, dict[str, Any]]:
    """The place that a checkpoint was made at, the steps done by then, and the script's values."""
    saved = read_json(folder, "loop")
    place = Place(
        int(saved["epoch"]),
        int(saved["part"]),
        int(saved["batch"]),
        int(saved["world_size"]),
        saved.get("batch_size"),
    )
    return place, int(saved["step"]), saved["values"]


def bring(source: Source, place: Place, folder: Path, rank: int, readers: int, say: Callable[[str], None]) -> int:
    """Bring a source to where the checkpoint in the folder was made; returns how many batches that skips."""
    name = f"loader-{rank}"
    batch = same_place(place.batch, (place.ranks, place.batch_size), (readers, source.batch_size))
    if place.ranks != readers:
        say(f"saved by {place.ranks} ranks, resumed by {readers}: at batch {batch}")
    if (folder / f"{name}.pt").exists() or (folder / f"{name}.json").exists():
        source.load_state(read_state(folder, name))
        return batch
    if source.can_skip:
        return batch
    if batch > 0:
        say(f"this data cannot be resumed in mid-epoch: epoch {place.epoch} begins again at its first batch")
    return 0
