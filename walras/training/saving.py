"""Saving a job's state: every rank writes its part, then rank 0 commits, and all learn whether it worked.

When to save is decided by the loop; what a checkpoint consists of, by `checkpoint`, `place` and `rng`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from walras.training import rng
from walras.training.checkpoint import Checkpoint, write_json, write_state
from walras.training.data import Source
from walras.training.gang import Gang
from walras.training.link import Link
from walras.training.place import Place


@dataclass(frozen=True)
class Saver:
    """Called by all ranks alike, at the same step."""

    checkpoint: Checkpoint
    gang: Gang
    link: Link
    say: Callable[[str], None]
    is_scheduled: bool

    def save(self, step: int, place: Place, seed: int, source: Source | None) -> bool:
        """False if it failed, and then that was said."""
        started_at = time.monotonic()
        is_written = True
        try:
            self._write(step, place, seed, source)
        except OSError as error:
            is_written = False
            self.say(f"checkpoint at step {step} failed: {error}")
        if not self.gang.all_succeeded(is_written):
            return False
        return self.gang.all_succeeded(self.gang.rank != 0 or self._commit(step, started_at))

    def _write(self, step: int, place: Place, seed: int, source: Source | None) -> None:
        folder = self.checkpoint.partial(step)
        rank = self.gang.rank
        write_json(folder, f"rank-{rank}", {"rng": rng.capture(), "seed": seed})
        if source is not None and (state := source.state()) is not None:
            write_state(folder, f"loader-{rank}", state)
        if rank != 0:
            return
        self.checkpoint.write_shared(folder)
        write_json(folder, "loop", {"step": step, **place.as_saved(), "values": self.checkpoint.values})

    def _commit(self, step: int, started_at: float) -> bool:
        self.link.poll()
        if self.link.lease_has_ended:
            self.say("the lease has ended: this checkpoint is not committed")
            return False
        try:
            reference = self.checkpoint.commit(step)
        except OSError as error:
            self.say(f"checkpoint at step {step} failed: {error}")
            return False
        took_s = time.monotonic() - started_at
        fields = {"step": reference.step, "path": reference.path, "digest": reference.digest, "took_s": took_s}
        self.link.send({"type": "commit", **fields})
        self.checkpoint.prune(self.link.recorded if self.is_scheduled else None)
        return True
