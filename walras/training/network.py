"""How fast the machines of a gang exchange gradients, measured once, when the ranks have met.

Machines of one offer differ in what lies between them: what a plan took for granted is looked at before it is believed.
One rank of each machine takes part in all-reduces of growing size, over the backend that the script trains with. The
slowest stretch sets the pace of a ring, so the figure is that of the slowest link of those in use.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from walras.training.gang import Gang
from walras.training.settings import Settings

#: The name among the values that a job reports.
NAME = "network_bytes_per_s"
FIRST_BYTES = 1 << 18
MOST_BYTES = 1 << 26
#: An exchange that takes this long is timed well enough.
LONG_S = 0.1
REPEATS = 3
#: No exchange is begun that would be over later than this, going by the last one.
LONGEST_S = 8.0


def rate(exchange: Callable[[int], float], machines: int) -> float | None:
    """Bytes per second of one direction of a link. `exchange` all-reduces so many bytes and answers with the seconds,
    the same on every rank. None where nothing can be told from them."""
    size, spent_s = FIRST_BYTES, exchange(FIRST_BYTES)  # connects, and says nothing of speed
    seconds = exchange(size)
    spent_s += seconds
    while seconds < LONG_S and size < MOST_BYTES and spent_s + 2.0 * seconds < LONGEST_S:
        size *= 2
        seconds = exchange(size)
        spent_s += seconds
    best_s = seconds
    for _ in range(REPEATS - 1):
        if spent_s + seconds >= LONGEST_S:
            break
        seconds = exchange(size)
        spent_s += seconds
        best_s = min(best_s, seconds)
    return 2.0 * (machines - 1) / machines * size / best_s if best_s > 0.0 else None


def measure(gang: Gang, settings: Settings) -> dict[str, float]:
    """What to report; called by all ranks alike. Empty for a gang on one machine, and without a scheduler."""
    each = settings.ranks_per_machine
    if not settings.is_scheduled or settings.machines < 2 or gang.world_size != settings.machines * each:
        return {}
    found = rate(_exchanger(gang, each), settings.machines)
    return {} if found is None else {NAME: found}


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
            tensor[0].item()  # an accelerator answers before it is done
            took_s = time.monotonic() - began
        return gang.slowest(took_s)

    return exchange
