"""What one solve leaves for the next. A problem with its memory has one answer, whoever solves it and however often.

Between two solves a few jobs come and go: the prices of the last one prove a level close to the next. And loading
compiled code takes as long as some dozens of small solves, so how much a series has had to do so far says whether that
pays. Neither changes an answer by more than rounding.
"""

from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from optimizer.decision import Memory
from optimizer.problem import FloatArray, Pools

#: Columns, of this market and of those solved before it, above which loading compiled code pays.
PAYS_FROM = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """Where the last solve of a series ended; by default there was none."""

    #: Columns of all solves so far.
    columns: int = 0
    #: Of the rows, at the first level (r,); of any other length: unknown.
    prices: FloatArray | None = None

    def compiled(self, columns: int) -> bool:
        """Whether numba is installed and so many columns more are enough to do."""
        return self.columns + columns >= PAYS_FROM and find_spec("numba") is not None


def start_from(memory: Memory, pools: Pools) -> Start:
    """What this memory says; nothing, where there is none or it is another policy's."""
    columns = memory.get("columns") if isinstance(memory, dict) else None
    if type(columns) is not int:
        return Start()
    prices = np.array([memory.get("prices", {}).get(pool_id, 0.0) for pool_id in pools.pool_id], dtype=np.float64)
    return Start(columns, prices if prices.any() else None)


def left_by(memory: Memory, columns: int, prices: FloatArray, pools: Pools) -> Memory:
    """What to remember after a solve of so many columns that had these prices at its first level."""
    so_far = min(start_from(memory, pools).columns + columns, PAYS_FROM)
    priced = {pool_id: price for pool_id, price in zip(pools.pool_id, prices.tolist(), strict=False) if price > 0}
    return {"columns": so_far, "prices": priced}
