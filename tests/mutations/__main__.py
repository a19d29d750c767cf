"""Plants each bug in a copy of the product and lets the whole-system simulation look for it (`make mutations`).

    python -m tests.mutations [--only NAME,NAME] [--seconds 60] [--seeds 2000] [--without KINDS] [--having KINDS]
    python -m tests.mutations --tests [--only NAME,NAME]

Prints for each bug the seed that found it, the promise that was broken, and how long that took. A seed finds a bug only
if it keeps every promise without it. With `--tests` the file of tests that is to find it is run instead, for those that
have one (`FOUND_BY`). Returns 1 if fewer than 95 % were found.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.mutations.planted_bugs import BUGS, FOUND_BY, LOCAL_BUGS, PlantedBug

ROOT = Path(__file__).parents[2]
COPIED = (
    "walras", "scheduler", "workers", "optimizer", "configs", "tests/support/core_invariants.py", "tests/whole_system",
    "pyproject.toml",
)  # fmt: skip
WANTED_SHARE = 0.95
#: A file that was not copied would "find" every bug: one of these has to pass before any is planted.
FIRST_SEEDS = range(1, 6)


def copy_product(to: Path, names: Sequence[str] = COPIED) -> None:
    """What the simulation runs, or these, without what was built."""
    for name in names:
        source, target = ROOT / name, to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)


class Hunt:
    """Looks for bugs in a copy of the product that may be broken."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._folder, self._options = folder, options
        #: Whether a seed keeps every promise where no bug is planted, as far as it was asked.
        self._is_green: dict[int, bool] = {}

    def look_for(self, bug: PlantedBug) -> tuple[bool, str]:
        """Plant the bug and run seeds until one finds it or the time is up; what it says of it.

        A seed that breaks a promise without the bug too finds nothing: it is named, and the next ones are run.
        """
        until, first, red = time.monotonic() + self._options.seconds, 1, ""
        while (left_s := until - time.monotonic()) > 0:
            with planted(self._folder, bug):
                ran = self._run(
                    "--first", str(first), "--seeds", str(self._options.seeds), "--most-failures", "1", "--no-shrink",
                    "--seconds", str(left_s), "--having", self._options.having,
                    *(["--rented"] if bug.about_rented else []),
                )  # fmt: skip
            found = re.search(r"^seed (\d+): (.*)$", ran.stdout, re.MULTILINE)
            if found is None and ran.returncode != 0:
                return True, f"at once: {ran.stderr.strip().splitlines()[-1:]}"
            if found is None:
                return False, (ran.stdout.strip().splitlines() or ["nothing"])[-1] + red
            seed = int(found[1])
            if self.is_green(seed):
                return True, f"seed {seed}: {found[2][:110]}{red}"
            first, red = seed + 1, f"{red}; seed {seed} is red without any bug"
        return False, f"nothing within the time{red}"

    def is_green(self, seed: int) -> bool:
        """Whether the seed keeps every promise of the product as it is."""
        if seed not in self._is_green:
            self._is_green[seed] = self._run("--seed", str(seed)).returncode == 0
        return self._is_green[seed]

    def _run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "tests.whole_system", "--jobs", "1", "--without", self._options.without]
        environment = {**os.environ, "PYTHONPATH": str(self._folder), "PYTHONHASHSEED": "0"}
        return subprocess.run(
            [*command, *arguments], cwd=self._folder, env=environment, capture_output=True, text=True,
            timeout=self._options.seconds + 300,
        )  # fmt: skip


@contextmanager
def planted(folder: Path, bug: PlantedBug) -> Iterator[None]:
    """The copy in the folder has the bug meanwhile."""
    path = folder / bug.path
    whole = path.read_text()
    path.write_text(bug.planted(whole))
    try:
        yield
    finally:
        path.write_text(whole)


class Tests:
    """Looks for bugs by the files of tests that are to find them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_green: dict[str, bool] = {}

    def look_for(self, bug: PlantedBug) -> tuple[bool, str]:
        """Plant the bug and run its tests, which find it if they pass without it."""
        file = next(file for file, names in FOUND_BY.items() if bug.name in names)
        if file not in self._is_green:
            self._is_green[file] = self._run(file).returncode == 0
        if not self._is_green[file]:
            return False, f"{file} fails without any bug"
        with planted(self._folder, bug):
            ran = self._run(file)
        failed = re.search(r"^(?:FAILED|ERROR) (.{,110})", ran.stdout, re.MULTILINE)
        return ran.returncode != 0, failed[1] if failed is not None else file

    def _run(self, file: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-p", "no:cacheprovider", file]
        environment = {**os.environ, "PYTHONPATH": str(self._folder)}
        return subprocess.run(command, cwd=self._folder, env=environment, capture_output=True, text=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--without", default="")
    parser.add_argument("--having", default="", help="look only in seeds with all of these kinds of faults")
    parser.add_argument("--tests", action="store_true", help="by the files of tests that are to find them")
    options = parser.parse_args()
    only = set(filter(None, options.only.split(",")))
    known = {name for names in FOUND_BY.values() for name in names}
    every = [bug for bug in (*BUGS, *LOCAL_BUGS) if bug.name in known] if options.tests else BUGS
    bugs = [bug for bug in every if not only or bug.name in only]
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = Path(tempfile.mkdtemp(prefix="walras-mutations-", dir=memory))
    found = 0
    try:
        copy_product(folder, (*COPIED[:-3], "simulator", "tests", "pyproject.toml") if options.tests else COPIED)
        hunt: Hunt | Tests = Tests(folder) if options.tests else Hunt(folder, options)
        if isinstance(hunt, Hunt) and not any(map(hunt.is_green, FIRST_SEEDS)):
            print("the copy breaks a promise in each of its first seeds without any bug: a file was not copied")
            return 1
        for bug in bugs:
            began = time.monotonic()
            is_found, words = hunt.look_for(bug)
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
