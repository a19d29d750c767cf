"""The loop's own state in a checkpoint: position in the data, random states, and saving by all ranks together.

Every rank writes its part, then rank 0 commits, and all learn whether it worked. `loop` decides when to save.

Without the main thread it saves in an evaluation, between two calls of `steps()`, and for a gang that hangs. When
`steps()` ends, the state of that moment is frozen: large tensors are watched, all else is copied. From then on a thread
listens to the supervisor; a request to stop or save is met at once, with the frozen state, as long as no watched tensor
has changed. So a script that steps its scheduler, shuffles or evaluates meanwhile resumes exactly at the end of
`steps()`. The thread ends before the next step begins.

A gang of which a machine is gone hangs in an exchange of gradients, or the exchange fails. Where every rank has all of
the state, the first rank of each machine that is left then saves the weights of the last step, if no optimizer has
begun to change them since: a thread does at a request to stop, or the end of the process after a failed exchange.
"""

from __future__ import annotations

import atexit
import copy
import json
import os
import random
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from walras.training.batch_source import BatchSource, rescale_position
from walras.training.checkpoint import REPLICATED, SHARDED, Checkpoint, read_json, read_state, write_json, write_state
from walras.training.gang import Gang
from walras.training.supervisor_link import JobEnvironment, SupervisorLink

#: Tensors of more bytes are not copied.
COPIED_BYTES = 64 * 1024
#: Elements of a watched tensor that are compared.
SAMPLED = 64
#: A main thread that has not looked for messages for so long may hang; seconds between two looks at it.
STUCK_S, LOOK_S = 3.0, 0.5


@dataclass(frozen=True)
class WatchedTensor:
    """A tensor that is not copied, and signs by which a change shows.

    Torch counts the changes of a tensor, but not those by fused optimizers: these change every element, and some are
    compared.
    """

    tensor: Any
    version: int
    sample: Any

    @classmethod
    def of(cls, tensor: Any) -> WatchedTensor:
        return cls(tensor, int(tensor._version), _sampled(tensor).clone())

    @property
    def is_unchanged(self) -> bool:
        now = _sampled(self.tensor)
        return bool(self.tensor._version == self.version and (now == self.sample).logical_or(now != now).all())


def _sampled(tensor: Any) -> Any:
    """Returns elements from all over the tensor, without copying it."""
    every = max(1, tensor.numel() // SAMPLED)
    last = tensor.storage_offset() + every * (SAMPLED - 1)
    if last * tensor.element_size() >= tensor.untyped_storage().nbytes():
        return tensor.detach().flatten()[:SAMPLED]
    return tensor.detach().as_strided((SAMPLED,), (every,), tensor.storage_offset())


@dataclass(frozen=True)
class FrozenState:
    """What one rank writes into a checkpoint, as it was when training paused."""

    step: int
    #: The rank's own values, and the state of its data (None: it keeps none).
    own: dict[str, Any]
    data: Any
    #: By the name of each object.
    objects: dict[str, Any]
    #: The position, and the script's values.
    loop: dict[str, Any]
    watched: list[WatchedTensor]

    @property
    def is_unchanged(self) -> bool:
        """Whether every tensor is still what it was."""
        return all(each.is_unchanged for each in self.watched)


def freeze_state(
    step: int, own: dict[str, Any], data: Any, objects: dict[str, Any], loop: dict[str, Any]
) -> FrozenState | None:
    """Returns the state, copied except for large tensors; None if something in it cannot be copied or watched."""
    watched, memo = [], dict[int, Any]()
    try:
        for tensor in _tensors_in([data, objects, loop]):
            if type(tensor).__name__ not in ("Tensor", "Parameter"):
                return None  # a part of something that other ranks hold the rest of
            if tensor.numel() * tensor.element_size() > COPIED_BYTES:
                watched.append(WatchedTensor.of(tensor))
                memo[id(tensor)] = tensor
            else:
                memo[id(tensor)] = tensor.detach().clone()
        data, objects, loop = copy.deepcopy((data, objects, loop), memo)
    except Exception:  # objects of the script's raise errors of every type
        return None
    return FrozenState(step, own, data, objects, loop, watched)


def _tensors_in(value: Any) -> Iterator[Any]:
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors_in(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors_in(each)


class PauseWatch:
    """Listens to the supervisor in a thread, in the place of the main thread, until `end`."""

    def __init__(self, link: SupervisorLink, save: Callable[[], bool]) -> None:
        self._link, self._save = link, save
        self._woken, self._wake = os.pipe()
        self._is_over, self._pid = False, os.getpid()
        #: A stop was requested, and the state is saved.
        self.may_leave = False
        self._thread = threading.Thread(target=self._listen, name="walras-pause", daemon=True)
        self._thread.start()
        atexit.register(self.end)

    def end(self) -> None:
        """Returns when the thread is gone, and a save that it had begun is over."""
        if self._is_over or os.getpid() != self._pid:  # a fork has no such thread
            return
        self._is_over = True
        os.write(self._wake, b".")
        self._thread.join()
        os.close(self._woken)
        os.close(self._wake)
        atexit.unregister(self.end)

    def _listen(self) -> None:
        while self._link.wait_beside(self._woken) and not self._is_over:
            self._link.poll()
            if self._link.stop_requested:
                self.may_leave = self._save()
                return
            if self._link.save_requested:
                self._link.save_requested = False
                self._save()


class StuckWatch:
    """Listens to the supervisor in a thread while the main thread of a gang's rank does not, in a step.

    `when_broken` is called as the process ends by the error of an exchange with the other ranks.
    """

    def __init__(self, link: SupervisorLink, save: Callable[[], object] | None, when_broken: Callable[[], None]):
        """`save`: None for a rank that never saves for the gang."""
        self._link, self._save, self._when_broken, self._pid = link, save, when_broken, os.getpid()
        self._is_over = threading.Event()
        #: Updates by any optimizer of this process that have begun.
        self.updates = 0
        self._remove_hook = _before_each_update(self._count_update)
        #: When the main thread last ended a step; None: it is not in one.
        self.stepped_at: float | None = None
        if save is not None:
            threading.Thread(target=self._listen, name="walras-stuck", daemon=True).start()
        atexit.register(self._at_exit)

    def end(self) -> None:
        """Stops listening."""
        self._is_over.set()
        self._remove_hook()
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        if os.getpid() == self._pid and is_failed_exchange(getattr(sys, "last_value", None)):
            self._when_broken()

    def _count_update(self, *_: object) -> None:
        self.updates += 1

    def _listen(self) -> None:
        while not self._is_over.wait(LOOK_S):
            since = self.stepped_at
            if since is None or time.monotonic() - since < STUCK_S:
                continue
            self._link.poll()
            if self._link.stop_requested and self._save is not None:
                self._save()
                return


def is_failed_exchange(error: object) -> bool:
    """Returns whether the error is that of an exchange with ranks that are gone, and not one of the script."""
    if not isinstance(error, RuntimeError):
        return False
    return type(error).__name__ in _EXCHANGE_ERRORS or _PEER_IS_GONE.search(str(error)) is not None


#: Errors of torch.distributed; and what gloo says in others.
_EXCHANGE_ERRORS = ("DistBackendError", "DistNetworkError")
_PEER_IS_GONE = re.compile(r"gloo.*(closed by peer|reset by peer|Broken pipe|Timed out|timeout)", re.DOTALL)


def _before_each_update(call: Callable[..., None]) -> Callable[[], None]:
    """Lets torch call this before every update by an optimizer, where it can. Returns what undoes that."""
    register = getattr(sys.modules.get("torch.optim.optimizer"), "register_optimizer_step_pre_hook", None)
    return (lambda: None) if register is None else register(call).remove


def is_replicated(objects: Iterable[Any], layout: str | None) -> bool:
    """Returns whether every rank of a gang has all of the objects' state.

    By what the script says of them. Where it says nothing, models within DistributedDataParallel, and torch's own
    optimizers and schedulers, are known to be; what is not known is not. What is sharded is not, whatever it says.
    """
    given = list(objects)
    if layout == SHARDED or not _holds_whole_state(given):
        return False
    return layout == REPLICATED or all(_is_known_whole(thing) for thing in given)


def _is_known_whole(thing: object) -> bool:
    is_torchs = type(thing).__module__.startswith("torch.")
    return is_torchs and any(kind.__name__ in _KNOWN_WHOLE for kind in type(thing).__mro__)


#: Classes of torch whose objects are equal on all ranks, if they and their models are not sharded.
_KNOWN_WHOLE = ("DistributedDataParallel", "Optimizer", "LRScheduler", "GradScaler")


def _holds_whole_state(objects: Iterable[Any]) -> bool:
    torch = sys.modules.get("torch")
    for thing in objects:
        is_module = torch is not None and isinstance(thing, torch.nn.Module)
        parts, parameters = (thing.modules(), thing.parameters()) if is_module else ([thing], [])
        if any(type(each).__name__ in _SHARDED for each in parts):
            return False
        if any(type(each.data).__name__ != "Tensor" for each in parameters):
            return False
    return True


#: Classes of torch and DeepSpeed of which each rank holds a part.
_SHARDED = ("FullyShardedDataParallel", "ZeroRedundancyOptimizer", "DeepSpeedEngine", "PipelineStage")


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

    def batch_for(self, ranks: int, batch_size: int | None) -> int:
        """Returns the batch at which this is, counted by other ranks and batches."""
        return rescale_position(self.batch, (self.ranks, self.batch_size), (ranks, batch_size))

    def as_saved(self) -> dict[str, Any]:
        """Returns its fields in the checkpoint's JSON."""
        position = {"epoch": self.epoch, "part": self.part, "batch": self.batch}
        return {**position, "world_size": self.ranks, "batch_size": self.batch_size}


def read_position(folder: Path) -> tuple[DataPosition, int, dict[str, Any]]:
    """Returns the position at which a checkpoint was made, the steps done by then, and the script's values."""
    saved = read_json(folder, "loop")
    place = DataPosition(
        int(saved["epoch"]), int(saved["part"]), int(saved["batch"]), int(saved["world_size"]), saved.get("batch_size")
    )
    return place, int(saved["step"]), saved["values"]


def read_batch_choice(folder: Path) -> dict[str, float]:
    """Returns what a job that chooses its batch had found out; empty for others."""
    return {str(name): float(value) for name, value in read_json(folder, "loop").get("batch_choice", {}).items()}


def seek_source(source: BatchSource, folder: Path, rank: int, batch: int) -> int:
    """Moves a source to so many batches into its epoch, by what this rank saved in the folder of the checkpoint, if it
    did; returns how many batches are to be skipped: none of data that cannot begin in the middle.
    """
    name = f"loader-{rank}"
    if (folder / f"{name}.pt").exists() or (folder / f"{name}.json").exists():
        source.load_state(read_state(folder, name))
        return batch
    return batch if source.can_skip else 0


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
        if not is_saved:
            if self.gang.rank % self.settings.ranks_per_machine == 0:
                self.checkpoint.discard(step)
            self.gang.all_succeeded(True)  # no rank writes there again before it is gone
        self.link.send({"type": "saved"})
        return is_saved

    def freeze(self, step: int, place: DataPosition, seed: int, source: BatchSource | None) -> FrozenState | None:
        """Returns the state to save later by `save_alone`; None if it cannot be kept."""
        own, data = self._own_values(seed), None if source is None else source.state()
        return freeze_state(step, own, data, self.checkpoint.states(), self._loop_values(step, place))

    def save_alone(self, frozen: FrozenState) -> bool:
        """Saves what was frozen, without the other ranks: their random streams begin anew at a resume.

        Only where the gang's state is replicated, or there is one rank: the commit says so to the scheduler.

        Returns False, without a checkpoint, if a tensor has changed meanwhile or writing failed; the reason was logged.
        """
        started_at = time.monotonic()
        self.link.send({"type": "saving"})
        is_saved = False
        try:
            if frozen.is_unchanged:
                folder = self.checkpoint.partial(frozen.step, self.gang.rank)
                self._write_own(folder, frozen.own, frozen.data)
                self.checkpoint.write_shared(folder, frozen.objects)
                write_json(folder, "loop", frozen.loop)
            if frozen.is_unchanged:
                is_saved = self._commit(frozen.step, started_at, self.gang.rank, REPLICATED)
            else:
                self.log(f"not saved: tensors have changed since step {frozen.step}")
        except (OSError, TypeError) as error:
            self.log(f"checkpoint at step {frozen.step} failed: {error}")
        if not is_saved:
            self.checkpoint.discard(frozen.step, self.gang.rank)
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

    def _commit(self, step: int, started_at: float, rank: int = 0, layout: str = "") -> bool:
        self.link.poll()
        if self.link.lease_has_ended:
            self.log("the lease has ended: this checkpoint is not committed")
            return False
        try:
            reference = self.checkpoint.commit(step, rank)
        except OSError as error:
            self.log(f"checkpoint at step {step} failed: {error}")
            return False
        took_s = time.monotonic() - started_at
        fields = {"step": reference.step, "path": reference.path, "digest": reference.digest, "took_s": took_s}
        self.link.send({"type": "commit", **fields, "layout": layout})
        if rank:
            return True  # what may be deleted, rank 0 knows
        self.checkpoint.prune(self.link.recorded if self.settings.is_scheduled else None)
        return True
