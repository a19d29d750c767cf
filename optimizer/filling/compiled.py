"""Whether compiled code pays, by what a series of solves has had to do so far. The answers are the same to rounding.

Loading the code takes as long as some dozens of small solves. So a policy that fills levels remembers how many columns
its solves had, and each problem with its memory gives one answer, whoever solves it and however often.
"""

from importlib.util import find_spec

from optimizer.decision import Memory

#: Columns, of this market and of those solved before it, above which loading compiled code pays.
PAYS_FROM = 10_000


def pays(columns: int) -> bool:
    """Whether numba is installed and so many columns are enough to do."""
    return columns >= PAYS_FROM and find_spec("numba") is not None


def columns_before(memory: Memory) -> int:
    """Columns of the solves that left this memory; 0 where there was none, or the memory is another policy's."""
    columns = memory.get("columns") if isinstance(memory, dict) else None
    return columns if type(columns) is int else 0


def counted(memory: Memory, columns: int) -> Memory:
    """What to remember after a solve of so many columns: their number, as far as it makes a difference."""
    return {"columns": min(columns_before(memory) + columns, PAYS_FROM)}
