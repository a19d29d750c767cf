"""Runs seeds and shows what broke.

python -m tests.whole_system --seeds 100 --first 1          many seeds
python -m tests.whole_system --seeds 10000 --done FILE      those that FILE does not name; FILE names what has passed
python -m tests.whole_system --pairs --seeds 40            pairs of actors on a calm cluster, by seed
python -m tests.whole_system --seed 17 [--keep 0,3]         one of them, with its story; only these of its faults
"""

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web_app

STORY_LINES = 60


@dataclass
class Outcome:
    """How one seed went."""

    seed: int
    broken: list[tuple[float, str, str]]
    story: list[str]
    kept: list[int]
    actors: tuple[str, ...] = ()


#: Kinds of faults that are left out; `_PAIRS`: all of them, and two actors meet instead.
_without: set[str] = set()
_PAIRS = "pairs"


def run_seed(seed: int, keep: Sequence[int] | None = None) -> Outcome:
    """Run one seed, with all of its faults or these alone."""
    outcome = _play(seed, keep)
    # aiohttp remembers the last 1,024 applications that it answered for, and each of them holds a whole world. What its
    # dead tasks do at their ends (`finally`) they do here, between two worlds.
    web_app._cached_build_middleware.cache_clear()
    gc.collect()
    gc.freeze()  # what was imported meanwhile
    return outcome


def _play(seed: int, keep: Sequence[int] | None) -> Outcome:
    from tests.whole_system.actors import draw_pair
    from tests.whole_system.plans import draw_plan
    from tests.whole_system.world import World

    plan = draw_pair(seed) if _PAIRS in _without else draw_plan(seed)
    kept = [n for n, fault in enumerate(plan.faults) if fault.kind not in _without] if keep is None else list(keep)
    plan.faults = [plan.faults[position] for position in kept]
    if "killing_jobs" in _without:
        plan.jobs = [job for job in plan.jobs if job[1].kills_supervisor_at_s is None]
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = Path(tempfile.mkdtemp(prefix="walras-fuzz-", dir=memory))
    world = World(plan, folder)
    try:
        observer = world.run(with_replay=seed % 5 == 0)
    except Exception:
        world.observer.violate("simulation", traceback.format_exc())
        observer = world.observer
    return Outcome(
        seed, list(observer.broken), list(observer.story), kept, plan.actors
    )  # what dead tasks do later is not judged


def _is_wanted(seed: int, kinds: set[str], *, rented: bool) -> bool:
    """Whether all of these faults happen in it, and with `rented` machines are rented."""
    from tests.whole_system.plans import draw_plan

    plan = draw_plan(seed)
    return kinds <= {fault.kind for fault in plan.faults} and (plan.rented > 0 or not rented)


def _collect_between_seeds() -> None:
    """What is imported stays; the rest dies with its seed, and not while another one runs."""
    import tests.whole_system.world  # noqa: F401

    gc.collect()
    gc.freeze()
    gc.disable()


def shrink(outcome: Outcome) -> Outcome:
    """Drop faults, one at a time, as long as the same rule breaks."""
    rule, best = outcome.broken[0][1], outcome
    for position in list(outcome.kept):
        trial = run_seed(outcome.seed, [each for each in best.kept if each != position])
        if trial.broken and trial.broken[0][1] == rule:
            best = trial
    return best


def tell(outcome: Outcome) -> None:
    """The first broken promise, the end of the story, and the command that plays it again."""
    at, rule, words = outcome.broken[0]
    print(f"seed {outcome.seed}: {rule} at {at:.3f} s: {words}")
    until = next((n for n, line in enumerate(outcome.story) if "BROKEN" in line), len(outcome.story))
    print("\n".join(f"    {line}" for line in outcome.story[max(0, until - STORY_LINES) : until + 1]))
    kept = ",".join(map(str, outcome.kept)) or "none"
    print(f"actors: {' and '.join(outcome.actors) or 'none'}")
    how = "--pairs" if _PAIRS in _without else f"--keep {kept}"
    print(f"replay: python -m tests.whole_system --seed {outcome.seed} {how}")


class Passed:
    """The seeds that kept every promise, in a file to which several processes add: a run that was interrupted goes on.

    Each takes a line of one length, so that the place of a line says how many there are.
    """

    _LINE_BYTES = 12
    #: A line of progress after so many seeds.
    _TOLD_EVERY = 100

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        written = os.pread(self._file, os.fstat(self._file).st_size, 0)
        self.before = {int(line) for line in written.split()}
        self._began = time.monotonic()

    def add(self, seed: int) -> None:
        """Write it down."""
        os.write(self._file, f"{seed:{self._LINE_BYTES - 1}}\n".encode())
        count = os.lseek(self._file, 0, os.SEEK_CUR) // self._LINE_BYTES
        if count % self._TOLD_EVERY == 0:
            new, took_s = count - len(self.before), time.monotonic() - self._began
            print(
                f"{count} seeds have passed, {new} of them in {took_s:.0f} s, {new / took_s:.1f} a second", flush=True
            )


def _run_beside_each_other(jobs: int, first: int, seeds: int, done: str) -> int:
    """The same command in several processes, each with every so manieth seed."""
    given = [*sys.argv[1:], "--done", done]
    began = time.monotonic()
    children = []
    for number in range(jobs):
        own = ["--jobs", "1", "--stride", str(jobs), "--first", str(first + number)]
        own += ["--seeds", str(seeds - number)]
        children.append(subprocess.Popen([sys.executable, "-m", "tests.whole_system", *given, *own]))
    code = max(child.wait() for child in children)
    if code == 0 and "--seconds" not in " ".join(given):
        print(f"{seeds} seeds in {jobs} processes: {seeds / (time.monotonic() - began):.1f} seeds/s")
    return code


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--keep", default="")
    parser.add_argument("--most-failures", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--stride", type=int, default=1, help="every so many seeds")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--without", default="", help="kinds of faults, with commas")
    parser.add_argument("--pairs", action="store_true", help="no faults: two actors meet, another pair with each seed")
    parser.add_argument("--rented", action="store_true", help="only seeds that rent machines")
    parser.add_argument("--having", default="", help="only seeds with all of these kinds of faults, with commas")
    parser.add_argument("--done", default="", help="file of the seeds that have passed: they are not run again")
    parser.add_argument("--count-pairs", action="store_true", help="print how many pairs of actors there are")
    options = parser.parse_args()
    if options.count_pairs:
        from tests.whole_system.actors import PAIRS

        print(len(PAIRS))
        return 0
    _without.update(filter(None, options.without.split(",")), *([{_PAIRS}] if options.pairs else []))
    if options.seed is not None:
        keep = None if not options.keep else [int(n) for n in options.keep.split(",") if n != "none"]
        outcome = run_seed(options.seed, keep)
        print("\n".join(outcome.story))
        return 1 if outcome.broken else 0
    with tempfile.NamedTemporaryFile(prefix="walras-fuzz-") as fresh:
        path = options.done or fresh.name
        if options.jobs > 1:
            return _run_beside_each_other(options.jobs, options.first, options.seeds, path)
        return _run_seeds(options, Passed(path))


def _run_seeds(options: argparse.Namespace, passed: Passed) -> int:
    _collect_between_seeds()
    began, began_cpu, failed, done = time.monotonic(), time.process_time(), 0, 0
    seeds = range(options.first, options.first + options.seeds, options.stride)
    kinds = set(filter(None, options.having.split(",")))
    for seed in seeds:
        if seed in passed.before or not _is_wanted(seed, kinds, rented=options.rented):
            continue
        outcome = run_seed(seed)
        done += 1
        if not outcome.broken:
            passed.add(seed)
        else:
            failed += 1
            tell(outcome if options.no_shrink else shrink(outcome))
        if failed >= options.most_failures or time.monotonic() - began > options.seconds:
            break
    took_s = time.monotonic() - began
    cpu_s = (time.process_time() - began_cpu) / max(1, done)
    print(f"{done} seeds, {failed} failed, {done / took_s:.1f} seeds/s, {cpu_s:.2f} s of processor time a seed")
    return 1 if failed else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, "-m", "tests.whole_system", *sys.argv[1:]],
                  {**os.environ, "PYTHONHASHSEED": "0"})  # fmt: skip
    code = main()
    sys.stdout.flush()
    os._exit(code)  # coroutines of dead processes are never taken apart
