"""Cells run side by side: in this process, in processes of this machine, or on a Dask cluster.

Results come back as they are ready, and do not depend on where they were made.
"""

import importlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum

from simulator.study.cell import Cell, run_cell
from simulator.study.measures import COST_MEASURES, values_of
from walras.errors import ConfigError, UserError


class Backend(StrEnum):
    """Where cells are run."""

    LOKY = "loky"
    DASK = "dask"


@dataclass(frozen=True, slots=True)
class Workers:
    """How many (on this machine), and where. `address`: of a Dask scheduler."""

    jobs: int = 1
    backend: Backend = Backend.LOKY
    address: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """What is kept of one run."""

    values: dict[str, float]
    #: In seconds of the machine that ran it.
    costs: dict[str, float]
    outcome: str
    violations: tuple[str, ...]


def run_row(cell: Cell) -> Row:
    """One run, reduced to its figures."""
    summary = run_cell(cell).summary
    return Row(values_of(summary), values_of(summary, COST_MEASURES), summary.outcome, summary.violations)


def run_rows(cells: Sequence[Cell], workers: Workers) -> Iterator[tuple[int, Row]]:
    """(position in `cells`, row), in the order in which they are ready. Raises what a cell raises."""
    if workers.backend is Backend.LOKY and workers.jobs == 1:
        for position, cell in enumerate(cells):
            yield position, run_row(cell)
        return
    from joblib import Parallel, delayed

    with ExitStack() as stack:
        if workers.backend is Backend.DASK:
            _connect(workers, stack)
        # A Dask cluster runs as many at a time as it has threads.
        jobs = workers.jobs if workers.backend is Backend.LOKY else -1
        parallel = Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)
        yield from parallel(delayed(_numbered)(position, cell) for position, cell in enumerate(cells))


def _numbered(position: int, cell: Cell) -> tuple[int, Row]:
    return position, run_row(cell)


def _connect(workers: Workers, stack: ExitStack) -> None:
    """Use the Dask cluster until the stack is left."""
    from joblib import parallel_config

    if not workers.address:
        raise ConfigError(
            "the backend dask needs a cluster", field="address", fix="give --address tcp://HOST:PORT of its scheduler"
        )
    try:
        distributed = importlib.import_module("distributed")
    except ModuleNotFoundError:
        raise UserError(
            "the backend dask needs dask, which is not installed",
            field="backend",
            fix="pip install 'walras[dask]', or use --backend loky",
        ) from None
    try:
        stack.enter_context(distributed.Client(workers.address, timeout="20s"))
    except OSError as error:
        raise UserError(
            f"no Dask scheduler answers at {workers.address}: {error}", field="address", fix="check the address"
        ) from None
    stack.enter_context(parallel_config(backend="dask"))
