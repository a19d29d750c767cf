"""ECOS as a solver of Gavel's programs: what the recorded runs used. GPL, so for tests alone (extra `golden`)."""

import numpy as np
import pytest

from optimizer.problem import FloatArray
from simulator.compat.gavel.cones import ConeProgram

_OPTIMAL = 0


def ecos(program: ConeProgram) -> FloatArray | None:
    """Solve by ECOS with its own settings; skips the test where it is not installed."""
    solver = pytest.importorskip("ecos", reason="the extra `golden` is not installed")
    dims = {"l": program.nonnegative, "q": [3] * program.cones, "e": 0}
    answer = solver.solve(program.c, program.g, program.h, dims, verbose=False)
    return np.asarray(answer["x"]) if answer["info"]["exitFlag"] == _OPTIMAL else None
