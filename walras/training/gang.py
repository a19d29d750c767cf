"""The ranks of a job as one gang: they agree on stopping and saving, and measure the network between machines.

Uses torch.distributed where the script has initialised it; otherwise every process stands alone. Ranks take steps in
lockstep, so they meet at agreed step numbers: each meeting also agrees on the next one, about five a second.

Machines of one offer differ in what lies between them, so the bandwidth is measured once, when the ranks have met. One
rank of each machine takes part in all-reduces of growing size, over the backend that the script trains with. The
slowest link sets the pace of a ring, so the figure is that of the slowest link in use.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from walras.training.supervisor_link import BANDWIDTH_VALUE, ControlRequest, JobEnvironment

MEETINGS_PER_S = 5.0
MAX_STEPS_BETWEEN = 256


class Gang:
    """The ranks, as torch.distributed knows them."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.world_size = 1
        self._next_meeting = 0
        self._group: Any = None

    def connect(self) -> None:
        """Find the process group; every rank calls this before its first step."""
        distributed = _initialised_distributed()
        if distributed is not None and distributed.get_world_size() > 1:
            self.rank = distributed.get_rank()
            self.world_size = distributed.get_world_size()
            # Control traffic stays on the CPU: it neither waits for the accelerators nor makes them wait.
            own = distributed.get_backend() != "gloo"
            self._group = distributed.new_group(backend="gloo") if own else distributed.group.WORLD

    @property
    def is_alone(self) -> bool:
        return self._group is None

    def agree(self, step: int, request: ControlRequest, steps_per_s: float | None) -> ControlRequest:
        """Returns what all ranks agree on at this step; an empty request if the ranks do not meet at this step.

        Every rank must call this with the same step numbers.
        """
        if self.is_alone:
            return request
        if step < self._next_meeting:
            return ControlRequest()
        between = min(max(1, int((steps_per_s or 1.0) / MEETINGS_PER_S)), MAX_STEPS_BETWEEN)
        own = [int(request.stop), int(request.save), request.samples, request.noise]
        stop, save, samples, noise, between = self._largest([*own, between])
        self._next_meeting = step + between
        return ControlRequest(bool(stop), bool(save), samples, noise)

    def all_succeeded(self, succeeded: bool) -> bool:
        """Wait for every rank; returns True if all of them succeeded."""
        if self.is_alone:
            return succeeded
        return self._largest([int(not succeeded)]) == [0]

    def slowest(self, seconds: float) -> float:
        """Returns the longest time that any rank took, to the microsecond."""
        return seconds if self.is_alone else self._largest([round(1e6 * seconds)])[0] / 1e6

    def gather(self, numbers: list[float]) -> list[list[float]]:
        """Returns the numbers of every rank, in rank order; each rank gives equally many."""
        if self.is_alone:
            return [numbers]
        torch: Any = sys.modules["torch"]
        own = torch.tensor(numbers, dtype=torch.float64)
        every = [torch.empty_like(own) for _ in range(self.world_size)]
        torch.distributed.all_gather(every, own, group=self._group)
        return [[float(number) for number in row.tolist()] for row in every]

    def gather_bytes(self, content: bytes) -> list[bytes]:
        """Returns what every rank gives, in rank order. It travels over the CPU, so it should be small."""
        if self.is_alone:
            return [content]
        torch: Any = sys.modules["torch"]
        sizes = [int(size) for (size,) in self.gather([float(len(content))])]
        own = torch.zeros(max(sizes), dtype=torch.uint8)
        own[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else own[:0]
        every = [torch.empty_like(own) for _ in range(self.world_size)]
        torch.distributed.all_gather(every, own, group=self._group)
        return [row[:size].numpy().tobytes() for row, size in zip(every, sizes, strict=True)]

    def _largest(self, numbers: list[int]) -> list[int]:
        torch: Any = sys.modules["torch"]
        tensor = torch.tensor(numbers, dtype=torch.int64)
        distributed = torch.distributed
        distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX, group=self._group)
        return [int(number) for number in tensor.tolist()]


def _initialised_distributed() -> Any:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


FIRST_EXCHANGE_BYTES = 1 << 18
MAX_EXCHANGE_BYTES = 1 << 26
#: Seconds of an exchange that are enough to time it well.
WELL_TIMED_S = 0.1
EXCHANGE_REPEATS = 3
#: No exchange begins that would end later than this, judging by the last one.
MAX_MEASURING_S = 8.0


def link_bandwidth(exchange: Callable[[int], float], machines: int) -> float | None:
    """Returns the bytes per second of one direction of a link. `exchange` all-reduces so many bytes and answers with
    the seconds, the same on every rank. Returns None if the exchanges took no measurable time.
    """
    size, spent_s = FIRST_EXCHANGE_BYTES, exchange(FIRST_EXCHANGE_BYTES)  # connects, and says nothing of speed
    seconds = exchange(size)
    spent_s += seconds
    while seconds < WELL_TIMED_S and size < MAX_EXCHANGE_BYTES and spent_s + 2.0 * seconds < MAX_MEASURING_S:
        size *= 2
        seconds = exchange(size)
        spent_s += seconds
    best_s = seconds
    for _ in range(EXCHANGE_REPEATS - 1):
        if spent_s + seconds >= MAX_MEASURING_S:
            break
        seconds = exchange(size)
        spent_s += seconds
        best_s = min(best_s, seconds)
    return 2.0 * (machines - 1) / machines * size / best_s if best_s > 0.0 else None


def measure_bandwidth(gang: Gang, settings: JobEnvironment) -> dict[str, float]:
    """Measures the bandwidth and returns it as a value to report; every rank calls this. Empty on one machine and
    without a scheduler.
    """
    each = settings.ranks_per_machine
    if not settings.is_scheduled or settings.machines < 2 or gang.world_size != settings.machines * each:
        return {}
    found = link_bandwidth(_exchanger(gang, each), settings.machines)
    return {} if found is None else {BANDWIDTH_VALUE: found}


def _exchanger(gang: Gang, each: int) -> Callable[[int], float]:
    torch: Any = sys.modules["torch"]
    distributed = torch.distributed
    leaders = distributed.new_group(list(range(0, gang.world_size, each)))
    device = "cpu"
    if distributed.get_backend() == "nccl":
        device = f"cuda:{int(os.environ.get('LOCAL_RANK', '0'))}"

    def exchange(size: int) -> float:
        took_s = 0.0
        if gang.rank % each == 0:
            tensor = torch.ones(size // 4, dtype=torch.float32, device=device)
            began = time.monotonic()
            distributed.all_reduce(tensor, group=leaders)
            tensor[0].item()  # An accelerator returns from the call before it is done.
            took_s = time.monotonic() - began
        return gang.slowest(took_s)

    return exchange
