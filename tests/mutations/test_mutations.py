"""What `make mutations` counts: bugs that still fit the code, found by seeds that keep every promise without them."""

import argparse
from pathlib import Path

import pytest

from tests.mutations.__main__ import Hunt
from tests.mutations.planted_bugs import BUGS, FOUND_BY, LOCAL_BUGS, PlantedBug

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("bug", [*BUGS, *LOCAL_BUGS], ids=lambda bug: bug.name)
def test_a_bug_fits_exactly_one_place(bug: PlantedBug) -> None:
    """Its old text stands once in its file, and what it makes of the file can be compiled."""
    text = (ROOT / bug.path).read_text()
    assert text.count(bug.old) == 1
    compile(bug.planted(text), bug.path, "exec")


def test_there_are_enough_of_them() -> None:
    """At least 75 that the simulation is to find, each with a name of its own; a test finds each of the others."""
    names = [bug.name for bug in (*BUGS, *LOCAL_BUGS)]
    by_tests = [name for found in FOUND_BY.values() for name in found]
    assert len(set(names)) == len(names)
    assert len(BUGS) >= 75
    assert len(set(by_tests)) == len(by_tests)
    assert {bug.name for bug in LOCAL_BUGS} <= set(by_tests) <= set(names)
    assert all((ROOT / file).is_file() for file in FOUND_BY)


#: In place of the simulation: seed 2 breaks a promise in any case, seed 4 where the bug is planted.
SEEDS = """
import argparse, pathlib, sys
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
parser.add_argument("--first", type=int, default=1)
parser.add_argument("--seeds", type=int, default=1)
options, _ = parser.parse_known_args()
red = {2} | ({4} if "bug" in pathlib.Path("product.py").read_text() else set())
if options.seed is not None:
    sys.exit(options.seed in red)
for seed in range(options.first, options.first + options.seeds):
    if seed in red:
        print(f"seed {seed}: a promise at 1 s")
        sys.exit(1)
print("none failed")
"""


def test_a_seed_that_is_red_without_the_bug_finds_none(tmp_path: Path) -> None:
    """It is named and passed over: the next seed that is red finds the bug if it is green without it."""
    simulation = tmp_path / "tests" / "whole_system"
    simulation.mkdir(parents=True)
    (simulation / "__init__.py").touch()
    (simulation / "__main__.py").write_text(SEEDS)
    (tmp_path / "product.py").write_text("right")
    hunt = Hunt(tmp_path, argparse.Namespace(seconds=60.0, seeds=6, without="", having=""))
    assert hunt.look_for(PlantedBug("one", "product.py", "right", "bug")) == (
        True, "seed 4: a promise at 1 s; seed 2 is red without any bug",
    )  # fmt: skip
    assert hunt.look_for(PlantedBug("harmless", "product.py", "right", "well")) == (
        False, "none failed; seed 2 is red without any bug",
    )  # fmt: skip
    assert (tmp_path / "product.py").read_text() == "right"
