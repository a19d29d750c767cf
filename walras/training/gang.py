"""What the ranks of a job decide together: whether to stop or save, and at which step.

Uses torch.distributed where the script has initialised it; otherwise every process stands alone. Ranks take steps in
lockstep, so they meet at agreed step numbers: each meeting also agrees on the next one, about five a second.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

MEETINGS_PER_S = 5.0
MAX_STEPS_BETWEEN = 256


@dataclass(frozen=True)
class Wish:
    """What one rank wants, and after a meeting what all do."""

    stop: bool = False
    save: bool = False
    #: Save, and then wait in memory instead of ending.
    park: bool = False
    #: Go on with batches of so many samples over all ranks, and end after so many steps of all; 0: as it was. Of rank
    #: 0 alone.
    samples: int = 0
    limit: int = 0


class Gang:
    """The ranks, as far as torch.distributed knows them."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.world_size = 1
        self._next_meeting = 0
        self._group: Any = None

    def meet(self) -> None:
        """Find out about the others; called by all ranks alike, before the first step."""
        distributed = _initialised()
        if distributed is not None and distributed.get_world_size() > 1:
            self.rank = distributed.get_rank()
            self.world_size = distributed.get_world_size()
            # Control traffic stays on the CPU: it neither waits for the accelerators nor makes them wait.
            own = distributed.get_backend() != "gloo"
            self._group = distributed.new_group(backend="gloo") if own else distributed.group.WORLD

    @property
    def is_alone(self) -> bool:
        return self._group is None

    def agree(self, step: int, wish: Wish, steps_per_s: float | None) -> Wish:
        """The common wish, where this step is a meeting; otherwise nothing is wished for.

        Every rank must call this with the same step numbers.
        """
        if self.is_alone:
            return wish
        if step < self._next_meeting:
            return Wish()
        between = min(max(1, int((steps_per_s or 1.0) / MEETINGS_PER_S)), MAX_STEPS_BETWEEN)
        own = [int(wish.stop), int(wish.save), int(wish.park), wish.samples, wish.limit]
        stop, save, park, samples, limit, between = self._largest([*own, between])
        self._next_meeting = step + between
        return Wish(bool(stop), bool(save), bool(park), samples, limit)

    def all_succeeded(self, succeeded: bool) -> bool:
        """Wait for every rank; true if all of them say so."""
        if self.is_alone:
            return succeeded
        return self._largest([int(not succeeded)]) == [0]

    def slowest(self, seconds: float) -> float:
        """The longest that any rank took, to the microsecond."""
        return seconds if self.is_alone else self._largest([round(1e6 * seconds)])[0] / 1e6

    def gather(self, numbers: list[float]) -> list[list[float]]:
        """The numbers of every rank, in their order; each gives as many."""
        if self.is_alone:
            return [numbers]
        torch: Any = sys.modules["torch"]
        own = torch.tensor(numbers, dtype=torch.float64)
        every = [torch.empty_like(own) for _ in range(self.world_size)]
        torch.distributed.all_gather(every, own, group=self._group)
        return [[float(number) for number in row.tolist()] for row in every]

    def _largest(self, numbers: list[int]) -> list[int]:
        torch: Any = sys.modules["torch"]
        tensor = torch.tensor(numbers, dtype=torch.int64)
        distributed = torch.distributed
        distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX, group=self._group)
        return [int(number) for number in tensor.tolist()]


def _initialised() -> Any:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed
