"""What the first decision of a fresh process takes: with compiled code as it is loaded, and as it was always loaded.

    python -m benchmarks first_decision

Each run is a process of its own. `decision` is from a problem that is read to its answer, with every import that
deciding brings; `whole` is from starting the process to the answer. "Compiled at once" loads compiled code before the
first question, as every decision did that is not interpreted; with an empty cache it is compiled first. Medians.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from benchmarks.tables import Measured

FRESH_PROCESSES = 7
JOBS = (20, 200)
#: Seconds that a first decision may take.
GOAL_S = 0.5

_CHILD = """
import sys, time
from pathlib import Path
from random import Random
from optimizer.documents.problem_document import problem_from_document
from optimizer.documents.problem_document import ProblemDocument
problem = problem_from_document(ProblemDocument.model_validate_json(Path(sys.argv[1]).read_text()))
began = time.monotonic()
from optimizer.answer import answer_problem
from optimizer.policy import PolicySpec
from optimizer.registry import make
if sys.argv[2] == "compiled":
    from optimizer.classes.compiled_loops import INTERPRETED
    INTERPRETED.end()
answer_problem(make(PolicySpec("walras")), problem, None, 0.0)
print(time.monotonic() - began)
"""


def measure(scale: float) -> list[Measured]:
    """A table for each number of jobs: both ways, with a cache that is filled and one that is empty."""
    count = max(1, round(FRESH_PROCESSES * scale))
    return [_measured(jobs, count) for jobs in JOBS]


def _measured(jobs: int, count: int) -> Measured:
    measured = Measured("first decision of a fresh process", f"walras, {jobs} gangs, medians of {count} processes")
    with tempfile.TemporaryDirectory() as folder:
        problem, cache = Path(folder) / "problem.json", Path(folder) / "kept"
        problem.write_text(json.dumps(_problem(jobs)))
        _run("compiled", problem, cache)
        for way in ("compiled", "shipped"):
            filled = [_run(way, problem, cache) for _ in range(count)]
            empty = [_run(way, problem, Path(folder) / f"empty{way}{number}") for number in range(min(count, 3))]
            for found, what in ((filled, "cached"), (empty, "nothing cached")):
                name = f"{'as shipped' if way == 'shipped' else 'compiled at once'}, {what}"
                goal = GOAL_S if (way, what) == ("shipped", "cached") else None
                measured.add(f"{name}: decision", statistics.median(decided for decided, _ in found), "s", goal)
                measured.add(f"{name}: whole", statistics.median(whole for _, whole in found), "s")
    return measured


def _problem(jobs: int) -> dict[str, object]:
    """Gangs of 1 to 8 accelerators on three types, for half of which there is room."""
    random = Random(jobs)
    pools = {name: {"capacity": 8 * -(-jobs // 20)} for name in ("a100", "v100", "p100")}
    listed = []
    for number in range(jobs):
        gang = random.choice((1, 2, 4, 8))
        steps_per_s = (1.0, random.uniform(0.3, 0.7), random.uniform(0.1, 0.3))
        places = [
            {"pool": pool, "accelerators": gang, "steps_per_s": speed}
            for pool, speed in zip(pools, steps_per_s, strict=True)
        ]
        listed.append({"id": number + 1, "remaining_steps": random.randint(100, 100_000), "configurations": places})
    return {"schema_version": 1, "pools": pools, "jobs": listed}


def _run(way: str, problem: Path, cache: Path) -> tuple[float, float]:
    """Seconds of the decision, and of the whole process."""
    began = time.monotonic()
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", _CHILD, str(problem), way]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(answer.stdout), time.monotonic() - began
