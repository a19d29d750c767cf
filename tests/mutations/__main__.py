"""Plants each bug in a copy of the product and lets the whole-system simulation look for it (`make mutations`).

    python -m tests.mutations [--only NAME,NAME] [--seconds 60] [--seeds 2000] [--without KINDS] [--having KINDS]

Prints for each bug the seed that found it, the promise that was broken, and how long that took. Returns 1 if fewer than
95 % were found.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutations.planted_bugs import BUGS, PlantedBug

ROOT = Path(__file__).parents[2]
COPIED = (
    "walras",
    "scheduler",
    "workers",
    "optimizer",
    "configs",
    "tests/support/core_invariants.py",
    "tests/whole_system",
    "pyproject.toml",
)
WANTED_SHARE = 0.95
#: The copy must run so many as it is: a file that was not copied would "find" every bug.
SEEDS_WITHOUT_BUG = 5


def copy_product(to: Path) -> None:
    """What the simulation runs, without what was built."""
    for name in COPIED:
        source, target = ROOT / name, to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)


def look_for(bug: PlantedBug, folder: Path, options: argparse.Namespace, seeds: int = 0) -> tuple[bool, str]:
    """Plant the bug, run seeds until one fails or the time is up, and take it out again."""
    path = folder / bug.path
    whole = path.read_text()
    path.write_text(bug.planted(whole))
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "tests.whole_system", "--jobs", "1", "--seeds", str(seeds or options.seeds),
             "--most-failures", "1",
             "--no-shrink", "--seconds", str(options.seconds), "--without", options.without,
             "--having", "" if bug.old == bug.new else options.having,
             *(["--rented"] if bug.about_rented else [])],
            cwd=folder, env={**os.environ, "PYTHONPATH": str(folder), "PYTHONHASHSEED": "0"},
            capture_output=True, text=True, timeout=options.seconds + 300,
        )  # fmt: skip
    finally:
        path.write_text(whole)
    found = re.search(r"^seed (\d+): (.*)$", ran.stdout, re.MULTILINE)
    if found is None and ran.returncode != 0:
        return True, f"at once: {ran.stderr.strip().splitlines()[-1:]}"
    if found is None:
        return False, (ran.stdout.strip().splitlines() or ["nothing"])[-1]
    return True, f"seed {found[1]}: {found[2][:110]}"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--without", default="")
    parser.add_argument("--having", default="", help="look only in seeds with all of these kinds of faults")
    options = parser.parse_args()
    only = set(filter(None, options.only.split(",")))
    bugs = [bug for bug in BUGS if not only or bug.name in only]
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = Path(tempfile.mkdtemp(prefix="walras-mutations-", dir=memory))
    found = 0
    try:
        copy_product(folder)
        nothing = PlantedBug("no bug at all", "pyproject.toml", "", "")
        is_found, words = look_for(nothing, folder, options, seeds=SEEDS_WITHOUT_BUG)
        if is_found:
            print(f"the product breaks a promise without any bug planted, so nothing can be told: {words}")
            return 1
        for bug in bugs:
            began = time.monotonic()
            is_found, words = look_for(bug, folder, options)
            found += is_found
            print(
                f"{'found ' if is_found else 'MISSED'} {bug.name:36} {time.monotonic() - began:6.1f} s  {words}",
                flush=True,
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{found} of {len(bugs)} found")
    return 0 if found >= WANTED_SHARE * len(bugs) else 1


if __name__ == "__main__":
    sys.exit(main())
