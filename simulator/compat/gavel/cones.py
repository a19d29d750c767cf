"""Conic programs as an interior-point solver takes them: minimise c'x where h - Gx lies in a cone.

Which of several optimal points is returned moves Gavel's results (its mechanism fills leftover accelerators by shares
of 1e-9), so the solver is named: Clarabel, which like the ECOS of the recorded runs ends inside the set of optimal
points, not at a corner of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from optimizer.problem import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class ConeProgram:
    """The first rows of h - Gx are >= 0, the others form second-order cones of three rows each."""

    c: FloatArray
    #: A scipy.sparse matrix in compressed columns.
    g: Any
    h: FloatArray
    #: Second-order cones at the end of the rows.
    cones: int = 0

    @property
    def nonnegative(self) -> int:
        """Rows that are >= 0."""
        return len(self.h) - 3 * self.cones


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """What a solver ends at. Gavel takes a point that is not quite optimal too, but not as a proof of feasibility."""

    x: FloatArray
    is_optimal: bool


#: None: the solver has no point.
ConeSolver = Callable[[ConeProgram], Point | None]


def clarabel(program: ConeProgram) -> Point | None:
    """Solve by Clarabel with its own settings."""
    import clarabel as solver
    from scipy import sparse

    settings = solver.DefaultSettings()
    settings.verbose = False
    size = len(program.c)
    cones = [solver.NonnegativeConeT(program.nonnegative), *(solver.SecondOrderConeT(3) for _ in range(program.cones))]
    quadratic = sparse.csc_matrix((size, size))
    answer = solver.DefaultSolver(quadratic, program.c, program.g, program.h, cones, settings).solve()
    if answer.status not in (solver.SolverStatus.Solved, solver.SolverStatus.AlmostSolved):
        return None
    return Point(np.asarray(answer.x), answer.status == solver.SolverStatus.Solved)


@dataclass(slots=True)
class Entries:
    """Rows of a sparse matrix in the making."""

    columns: int
    row: list[Any] = field(default_factory=list)
    column: list[Any] = field(default_factory=list)
    value: list[Any] = field(default_factory=list)
    rows: int = 0

    def add(self, rows: int, row: Any, column: Any, value: Any) -> None:
        """Append a block of rows; `row` counts from the block's first."""
        row, column, value = np.broadcast_arrays(row, column, value)
        self.row.append(row.ravel() + self.rows)
        self.column.append(column.ravel())
        self.value.append(value.ravel().astype(float))
        self.rows += rows

    def csc(self) -> Any:
        """The matrix, without explicit zeros."""
        from scipy import sparse

        row, column, value = (np.concatenate(part) for part in (self.row, self.column, self.value))
        kept = value != 0
        shape = (self.rows, self.columns)
        return sparse.csc_matrix((value[kept], (row[kept], column[kept])), shape=shape)
