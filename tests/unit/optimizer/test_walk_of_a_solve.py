"""How far a reader has to walk to follow one small solve."""

import sys
from pathlib import Path
from types import FrameType

import numpy as np
from problems import Setting, build

from optimizer.answer import answer_problem
from optimizer.policy import PolicySpec
from optimizer.registry import make

ROOT = Path(__file__).parents[3]
#: Where ours lie: a virtual environment may lie in the checkout too.
OURS = tuple(f"{ROOT}/{package}/" for package in ("walras", "optimizer", "scheduler", "simulator"))


def walk_of(policy: str) -> tuple[set[str], set[tuple[str, str]]]:
    """The files and the functions of ours that a decision about five jobs on three pools passes through."""
    speeds = np.random.default_rng(3).uniform(1, 5, (5, 3)).tolist()
    problem, solver = build(Setting(speeds, [4, 3, 2])), make(PolicySpec(policy))
    answer_problem(solver, problem, None, 0.0)  # what is imported at first use is imported
    functions: set[tuple[str, str]] = set()

    def seen(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OURS) and not code.co_name.startswith("<"):
            functions.add((code.co_filename, code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        answer_problem(solver, problem, None, 0.0)
    finally:
        sys.setprofile(before)
    return {file for file, _ in functions}, functions


def test_max_min_of_five_jobs_stays_within_eighteen_files() -> None:
    """It was 36 files and 174 functions, then 104: whoever makes this longer should say why."""
    files, functions = walk_of("max_min_fairness")
    assert len(files) <= 18, sorted(files)
    assert len(functions) <= 90, len(functions)


def test_an_order_passes_few_functions() -> None:
    """Nothing is solved, and nothing of the solvers is read."""
    files, _ = walk_of("fifo")
    assert not [file for file in files if "/optimizer/lp/" in file]
