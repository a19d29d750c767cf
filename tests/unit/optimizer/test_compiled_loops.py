"""Loops of assignment run as written in a fresh process, compiled later; what they answer is the same either way."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from optimizer.assignment.assignment_problem import Assignment, AssignmentProblem
from optimizer.assignment.transportation import assign_by_search
from optimizer.classes import compiled_loops
from optimizer.classes.compiled_loops import InterpretedWork

_DECIDE = """
import sys
import numpy as np
from optimizer.assignment.assignment_problem import AssignmentProblem
from optimizer.assignment.transportation import assign_by_search
one = np.zeros(1, dtype=np.int64)
for count in (1.0, 2.0):
    question = AssignmentProblem(one, np.ones(1), one, one, np.array([count]), 2 * np.ones(1))
    assert assign_by_search(question).value == 1.0
print("numba" in sys.modules)
"""

_DECIDE_MUCH = """
from optimizer.classes.compiled_loops import INTERPRETED
from tests.unit.optimizer.test_compiled_loops import _questions
from optimizer.assignment.transportation import assign_by_search
while INTERPRETED.spent <= 300_000:
    for question in _questions():
        assign_by_search(question)
print(INTERPRETED.patience)
"""

_COMPILE_WITHOUT_CACHE = """
from numba.core import caching
caching.CacheImpl._locator_classes = []
from optimizer.assignment import local_search
print(local_search._loops.compiled("_fits") is not local_search._fits)
"""


def _questions() -> list[AssignmentProblem]:
    """Gangs, and jobs of one accelerator each, of several sizes, some of which run."""
    rng = np.random.default_rng(5)
    made = []
    for jobs in (1, 5, 30):
        for sizes in ((1.0,), (1.0, 2.0, 4.0)):
            size = rng.choice(sizes, jobs)
            value = (size * rng.random(jobs))[:, None] * (0.3 + 0.7 * rng.random((jobs, 3)))
            columns = jobs * 3
            running = np.zeros(columns, dtype=np.bool_)
            running[: 3 * min(jobs, 4) : 3] = True
            made.append(
                AssignmentProblem(
                    job=np.repeat(np.arange(jobs), 3), value=value.ravel(), use_column=np.arange(columns),
                    use_pool=np.tile(np.arange(3), jobs), use_count=np.repeat(size, 3),
                    capacity=np.array([4.0, 0.0, 7.0]), running=running,
                )
            )  # fmt: skip
    return made


def _answers(monkeypatch: pytest.MonkeyPatch, spent: float) -> list[Assignment]:
    work = InterpretedWork(spent)
    for module in (compiled_loops, sys.modules["optimizer.assignment.local_search"]):
        monkeypatch.setattr(module, "INTERPRETED", work)
    return [assign_by_search(question) for question in _questions()]


def test_as_written_and_compiled_the_answers_are_the_same_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns, prices and bounds, with the signs of zeros."""
    written, compiled = _answers(monkeypatch, -np.inf), _answers(monkeypatch, np.inf)
    for mine, theirs in zip(written, compiled, strict=True):
        assert mine.column.tobytes() == theirs.column.tobytes()
        assert mine.prices.tobytes() == theirs.prices.tobytes()
        assert (mine.value, mine.bound) == (theirs.value, theirs.bound)


def test_a_search_that_was_given_up_is_done_again_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is left of the steps, in the middle of a question too."""
    wanted = _answers(monkeypatch, np.inf)
    for left in (150, 700, 2_000, 5_000):
        found = _answers(monkeypatch, compiled_loops._STEPS_OF_PROCESS - left)
        for mine, theirs in zip(found, wanted, strict=True):
            assert mine.column.tobytes() == theirs.column.tobytes()
            assert mine.value == theirs.value


def test_a_process_compiles_once_it_has_interpreted_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small questions are not interpreted for ever."""
    work = InterpretedWork()
    for module in (compiled_loops, sys.modules["optimizer.assignment.local_search"]):
        monkeypatch.setattr(module, "INTERPRETED", work)
    for _ in range(200):
        for question in _questions():
            assign_by_search(question)
    assert work.steps_left < 0


def test_the_first_small_decision_of_a_process_loads_no_compiler() -> None:
    """Importing numba and its cached code takes longer than such a decision."""
    assert _told_by(_DECIDE) == "False"


def test_where_no_compiled_code_is_kept_small_decisions_wait_for_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the first command of an installation, for which compiling would be most of its time."""
    pytest.importorskip("numba")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert _told_by(_DECIDE_MUCH) == "10.0"
    assert not list(tmp_path.rglob("*.nbi"))


def test_where_no_folder_can_be_written_code_is_compiled_without_a_cache() -> None:
    """As in a container whose file system is read-only; numba refuses to cache there."""
    pytest.importorskip("numba")
    assert _told_by(_COMPILE_WITHOUT_CACHE) == "True"


def _told_by(code: str) -> str:
    root = Path(__file__).parents[3]
    return subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    ).stdout.strip()


_LOOP_OF_PAIRS = """
from typing import NamedTuple
from optimizer.classes.compiled_loops import njit
class {name}(NamedTuple):
    a: int
@njit(cache=True)
def first(pair):
    return pair.a
print(first({name}(3)))
"""


def test_a_cache_that_names_what_is_gone_counts_as_empty(tmp_path: Path) -> None:
    """As a later release finds it that has another name for the type of an argument."""
    loop = tmp_path / "loop.py"
    for name in ("Pair", "Couple"):
        loop.write_text(_LOOP_OF_PAIRS.format(name=name))
        code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; import loop"
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (ran.stdout, ran.returncode) == ("3\n", 0), ran.stderr
    assert list((tmp_path / "__pycache__").glob("*.nbi"))
