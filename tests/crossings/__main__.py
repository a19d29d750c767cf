"""`python -m tests.crossings --situations N --first K`: runs N situations, prints the recipes of those that break."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from time import perf_counter

from tests.crossings.run import Outcome, run_situation
from tests.crossings.situations import covering_rows, situation_of

#: Rows in which every three kinds meet.
ROWS = 500


def outcomes(first: int, many: int, jobs: int = 1) -> Iterator[Outcome]:
    """The outcomes of the situations from number `first` on; a row of the covering array each."""
    rows = {block: covering_rows(block, ROWS) for block in range(first // ROWS, (first + many - 1) // ROWS + 1)}
    situations = (
        situation_of(block[number % len(block)], number)
        for number in range(first, first + many)
        for block in (rows[number // ROWS],)
    )
    if jobs == 1:
        yield from map(run_situation, situations)
        return
    pool = ProcessPoolExecutor(jobs)
    try:
        yield from pool.map(run_situation, situations, chunksize=8)
    finally:
        pool.shutdown(cancel_futures=True)


def main() -> int:
    """Returns the exit code: 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.crossings", description=__doc__)
    parser.add_argument("--situations", type=int, default=ROWS)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--most-broken", type=int, default=0, help="stop after so many; 0: run all")
    given = parser.parse_args()
    began, broken, events, ran, held_s, cut_s = perf_counter(), Counter[str](), 0, 0, 0.0, 0.0
    for outcome in outcomes(given.first, given.situations, given.jobs):
        ran += 1
        events += outcome.events
        held_s, cut_s = held_s + outcome.held_s, cut_s + outcome.cut_s
        if outcome.broken:
            broken["situations"] += 1
            print(outcome.text, flush=True)
            if broken["situations"] == given.most_broken:
                break
    took_s = perf_counter() - began
    print(
        f"{ran} situations, {broken['situations']} broken; {events} events, {ran / took_s:.1f} situations/s; "
        f"cut for others: {cut_s / max(held_s, 1.0):.2%} of the time held"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
