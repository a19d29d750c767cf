"""What the environment tells a training process: the few WALRAS_* variables and the names that torch uses.

Every variable may be absent; then the process runs by itself, as on a laptop.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from walras.training.manifest import Reference


@dataclass(frozen=True)
class Settings:
    #: Unix socket of the supervisor; empty without a scheduler.
    socket: str = ""
    #: Where the job's attempts keep their checkpoints; empty without a scheduler.
    checkpoint_dir: str = ""
    #: The checkpoint to resume from, and no other.
    resume: Reference | None = None
    attempt: int = 0
    #: Steps the job is to do in all.
    steps: int | None = None
    #: Steps/s of the gang on the accelerator that is emulated here.
    pace: float | None = None
    rank: int = 0
    world_size: int = 1
    #: Over which the gang is spread, and its ranks on each of them.
    machines: int = 1
    ranks_per_machine: int = 1
    #: Samples of one step over all ranks, as the job file states them.
    batch: int | None = None
    #: Wait, with everything made, until told to go on from a checkpoint that does not exist yet.
    stands_by: bool = False

    @property
    def is_scheduled(self) -> bool:
        return bool(self.socket)


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Read the variables; a malformed one is an error that names it (they are written by the supervisor)."""
    resume = environ.get("WALRAS_RESUME", "")
    return Settings(
        socket=environ.get("WALRAS_SOCKET", ""),
        checkpoint_dir=environ.get("WALRAS_CHECKPOINT_DIR", ""),
        resume=_reference(resume) if resume else None,
        attempt=int(_number(environ, "WALRAS_ATTEMPT") or 0),
        steps=_whole(_number(environ, "WALRAS_STEPS")),
        pace=_number(environ, "WALRAS_PACE"),
        rank=int(_number(environ, "RANK") or 0),
        world_size=int(_number(environ, "WORLD_SIZE") or 1),
        machines=int(_number(environ, "WALRAS_NUM_NODES") or 1),
        ranks_per_machine=int(_number(environ, "LOCAL_WORLD_SIZE") or 1),
        batch=_whole(_number(environ, "WALRAS_BATCH")),
        stands_by=environ.get("WALRAS_STANDBY") == "1",
    )


def whole_batch(whole: int, environ: Mapping[str, str] = os.environ) -> int:
    """Samples of a step over all ranks: those of the job file's `batch: {global: N}`, or else `whole`."""
    return read_settings(environ).batch or whole


def batch_per_rank(whole: int, environ: Mapping[str, str] = os.environ) -> int:
    """Samples that each rank has in a step of `whole` samples (the job file's `batch: {global: N}` comes first).

    However many ranks an elastic job has, a step is then the same step. Raises ValueError where it cannot be shared
    evenly.
    """
    settings, whole = read_settings(environ), whole_batch(whole, environ)
    each, rest = divmod(whole, settings.world_size)
    if rest or not each:
        raise ValueError(f"{settings.world_size} ranks cannot share a batch of {whole} evenly")
    return each


def _number(environ: Mapping[str, str], name: str) -> float | None:
    text = environ.get(name, "")
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name}={text!r} is not a number") from None


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


def _reference(text: str) -> Reference:
    try:
        fields = json.loads(text)
        return Reference(path=str(fields["path"]), digest=str(fields["digest"]), step=int(fields["step"]))
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"WALRAS_RESUME={text!r} is not a JSON object with path, digest and step") from None
