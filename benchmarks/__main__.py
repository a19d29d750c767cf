"""Runs the benchmarks and prints their tables: `python -m benchmarks [name ...] [--scale 0.1] [--row name ...]`.

With `--record` what they measure is kept in `benchmarks/results/`, of which `python -m benchmarks.results_page` makes
docs/results.md.

A benchmark is a module `benchmarks/bench_<name>.py` with `measure(scale) -> list[Measured]`. Long ones have `ROWS` and
`measure(scale, row)`: their rows are measured one after the other and printed as they are ready, so that a run that was
cut short goes on with the rows that are missing. One that draws has `SEEDS`, and gets these, or those of `--seeds`, as
well. The exit code is 1 if a target was missed or a benchmark could not be measured.
"""

import argparse
import importlib
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from benchmarks.needs import NotHereError, missing_line
from benchmarks.result_files import record_run
from benchmarks.tables import Measured, show

_PREFIX = "bench_"


def names() -> list[str]:
    """The benchmarks that there are."""
    return sorted(path.stem.removeprefix(_PREFIX) for path in Path(__file__).parent.glob(f"{_PREFIX}*.py"))


def main(arguments: list[str]) -> int:
    """Run the named benchmarks, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(names())}; none: all")
    parser.add_argument("--scale", type=float, default=1.0, help="shrink the sizes; targets hold for 1 (default)")
    parser.add_argument("--row", nargs="+", default=(), help="only these rows, of a benchmark that has rows")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=(), help="your own, for a benchmark that draws by seeds"
    )
    parser.add_argument("--record", action="store_true", help="keep the figures in benchmarks/results/NAME.json")
    given = parser.parse_args(arguments)
    unknown = set(given.names) - set(names())
    if unknown or not given.scale > 0:
        parser.error(f"unknown: {', '.join(sorted(unknown))}" if unknown else "--scale must be above 0")
    console = Console()
    console.print(f"Python {platform.python_version()}, {os.cpu_count()} processors, {platform.machine()}")
    met = True
    for name in given.names or names():
        try:
            for row, results, load in _measure(name, given.scale, given.row, given.seeds):
                for measured in results:
                    show(measured, console)
                    met = met and measured.met
                if given.record:
                    record_run(name, row, given.scale, results, load, seeds=given.seeds)
        except _NoSuchRowError as error:
            parser.error(str(error))
        except (ModuleNotFoundError, NotHereError) as error:
            print(f"{name}: not measured: {missing_line(error)}", file=sys.stderr)
            met = False
    return 0 if met else 1


class _NoSuchRowError(Exception):
    """A benchmark was asked for a row, or for seeds, that it does not have."""


def _measure(
    name: str, scale: float, asked: list[str], seeds: list[int]
) -> Iterator[tuple[str | None, list[Measured], float]]:
    """Each row of a benchmark with its tables, and the load average before it (None: a benchmark without rows)."""
    benchmark = importlib.import_module(f"benchmarks.{_PREFIX}{name}")
    rows = getattr(benchmark, "ROWS", ())
    missing = [row for row in asked if row not in rows]
    if missing:
        raise _NoSuchRowError(f"{name} has no row {', '.join(missing)}; it has {', '.join(rows) or 'none'}")
    if seeds and not hasattr(benchmark, "SEEDS"):
        raise _NoSuchRowError(f"{name} draws by no seeds")
    drawn = (tuple(seeds) or benchmark.SEEDS,) if hasattr(benchmark, "SEEDS") else ()
    for row in asked or rows or (None,):
        load = os.getloadavg()[0]
        yield row, benchmark.measure(scale, *(() if row is None else (row,)), *drawn), load


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
