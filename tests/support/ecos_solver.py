"""ECOS as a solver of Gavel's programs: what the recorded runs used. GPL, so for tests alone (extra `golden`)."""

import importlib
import os

import numpy as np
import pytest

from simulator.worlds.gavel.program_policies import ConeProgram, ConeSolution

_OPTIMAL, _NEARLY = 0, 10


def ecos(program: ConeProgram) -> ConeSolution | None:
    """Solve by ECOS with its own settings; skips the test where it is not installed (WALRAS_REQUIRE=golden: fails)."""
    if "golden" in os.environ.get("WALRAS_REQUIRE", "").split(","):
        solver = importlib.import_module("ecos")
    else:
        solver = pytest.importorskip("ecos", reason="the extra `golden` is not installed")
    dims = {"l": program.nonnegative, "q": [3] * program.cones, "e": 0}
    answer = solver.solve(program.c, program.g, program.h, dims, verbose=False)
    status = answer["info"]["exitFlag"]
    return ConeSolution(np.asarray(answer["x"]), status == _OPTIMAL) if status in (_OPTIMAL, _NEARLY) else None
