"""How many threads walk over so many entries. Imports numba."""

from collections.abc import Iterator
from contextlib import contextmanager

import numba

#: Entries from which on threads pay: to wait for one whose core is busy elsewhere takes longer than less work does.
_PARALLEL_FROM = 2_000_000


@contextmanager
def threads_for(entries: int) -> Iterator[None]:
    """One thread for so few entries, the caller's number of them for more."""
    usual = numba.get_num_threads()
    numba.set_num_threads(usual if entries >= _PARALLEL_FROM else 1)
    try:
        yield
    finally:
        numba.set_num_threads(usual)
