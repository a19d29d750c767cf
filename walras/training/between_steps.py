"""Saves without the main thread: in an evaluation, between two calls of `steps()`, and for a gang that hangs.

When `steps()` ends, the state of that moment is frozen: large tensors are watched, all else is copied. From then on a
thread listens to the supervisor; a request to stop or save is met at once, with the frozen state, as long as no watched
tensor has changed. So a script that steps its scheduler, shuffles or evaluates meanwhile resumes exactly at the end of
`steps()`. The thread ends before the next step begins.

A gang of which a machine is gone may hang in an exchange of gradients. Then another thread of rank 0 meets a request to
stop with the weights of the last step, if no optimizer has begun to change them since.
"""

from __future__ import annotations

import atexit
import copy
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from walras.training.supervisor_link import SupervisorLink

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
    """Listens to the supervisor in a thread while the main thread of rank 0 does not, in a step."""

    def __init__(self, link: SupervisorLink, save: Callable[[], object]) -> None:
        self._link, self._save = link, save
        self._is_over = threading.Event()
        #: Updates by any optimizer of this process that have begun.
        self.updates = 0
        self._remove_hook = _before_each_update(self._count_update)
        #: When the main thread last ended a step; None: it is not in one.
        self.stepped_at: float | None = None
        threading.Thread(target=self._listen, name="walras-stuck", daemon=True).start()

    def end(self) -> None:
        """Stops listening."""
        self._is_over.set()
        self._remove_hook()

    def _count_update(self, *_: object) -> None:
        self.updates += 1

    def _listen(self) -> None:
        while not self._is_over.wait(LOOK_S):
            since = self.stepped_at
            if since is None or time.monotonic() - since < STUCK_S:
                continue
            self._link.poll()
            if self._link.stop_requested:
                self._save()
                return


def _before_each_update(call: Callable[..., None]) -> Callable[[], None]:
    """Lets torch call this before every update by an optimizer, where it can. Returns what undoes that."""
    register = getattr(sys.modules.get("torch.optim.optimizer"), "register_optimizer_step_pre_hook", None)
    return (lambda: None) if register is None else register(call).remove


def holds_whole_state(objects: Iterable[Any]) -> bool:
    """Returns whether this rank has all of the objects' state, and can tell it without the other ranks.

    So it is with one process, and in data-parallel gangs whose model and optimizer are whole on every rank.
    """
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
