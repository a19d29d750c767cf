"""Figures of whole commands, as a user types them: each row runs one and reads what it prints.

    WALRAS_DATA=... python -m benchmarks commands [--row demo gangs philly arena spot fuzz mutations]

`demo` takes three minutes, `philly` half of one, `mutations` an hour. `fuzz` and `mutations` need the extra `dev`.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.needs import NotHereError, reference_data
from benchmarks.tables import Measured

_WALRAS = Path(sys.executable).with_name("walras")
_GAVEL_GANGS = "gavel/traces/multi_small_seed0_rate0.5.tsv"
_FUZZ_SEEDS, _FUZZ_FIRST = 150, 90_001


def measure(scale: float, row: str) -> list[Measured]:
    """The figures of one command."""
    return [_ROWS[row](scale)]


def _demo(_scale: float) -> Measured:
    measured = Measured("walras demo", "twelve PyTorch jobs on five emulated accelerators, spot machine revoked")
    printed, took_s, _ = _run([_WALRAS, "demo", "--no-live"], may_fail=True)
    starts = re.search(r"at most (\d+) rank starts[ │┃]+(\d+)", printed)
    if starts is None:
        raise NotHereError(f"the demo ended early: {printed[-200:]}")
    measured.add("from start to end", took_s, "s", at_most=240)
    measured.add("rank starts", int(starts[2]), "", at_most=int(starts[1]))
    if (error := re.search(r"median error ([\d.]+)%", printed)) is not None:
        measured.add("completion times simulated again: median error", float(error[1]), "%", at_most=10)
    measured.add("promises broken", len(re.findall(r"^[ │┃]*FAIL ", printed, re.MULTILINE)), "", at_most=0)
    return measured


def _gangs(_scale: float) -> Measured:
    words = [
        "simulate",
        "compare",
        reference_data() / _GAVEL_GANGS,
        "--cluster",
        "gavel-12-12-12",
        "--policy",
        "walras",
    ]
    printed, took_s, _ = _run([_WALRAS, *words, "--set", "bounds=none", "-o", "json"])
    told = json.loads(printed)["measures"]
    measured = Measured("walras simulate compare multi_small_seed0_rate0.5", "gavel-12-12-12, policy walras")
    measured.add("mean completion time", told["avg_jct_s"]["policies"]["walras"]["mean"], "s")
    measured.add("worst slowdown", told["slowdown_max"]["policies"]["walras"]["mean"], "")
    measured.add("the command", took_s, "s")
    return measured


def _philly(_scale: float) -> Measured:
    trace = reference_data() / "jobs" / "philly_2017.csv.gz"
    words = ["simulate", "run", trace, "--cluster", "philly-512", "--policy", "fifo", "-o", "json"]
    _, took_s, peak_mib = _run([_WALRAS, *words])
    measured = Measured("walras simulate run, JSON of every job", "Philly's 82,247 jobs, fifo")
    measured.add("the command", took_s, "s", at_most=17)
    measured.add("peak memory", peak_mib, "MiB", at_most=400)
    return measured


def _arena(_scale: float) -> Measured:
    folder = reference_data() / "arena"
    words = ["simulate", "run", folder / "jobs_philly.csv.gz", "--set", f"speeds={folder / 'places.csv.gz'}"]
    words += ["--cluster", "arena-1280", "--set", "world=arena", "--policy", "walras", "-o", "json"]
    printed, took_s, _ = _run([_WALRAS, *words])
    figures = json.loads(printed)
    measured = Measured("walras simulate run --world arena", "1,938 jobs, 1,280 accelerators of four types")
    measured.add("mean completion time", figures["avg_jct_s"], "s")
    measured.add("median completion time", figures["median_jct_s"], "s")
    measured.add("the command", took_s, "s")
    return measured


def _spot(_scale: float) -> Measured:
    words = ["cloud", "spot", "example:two-zones", "--work", "48h", "--deadline", "60h", "--restart", "12m"]
    printed, _, _ = _run([_WALRAS, *words, "--spot", "0.92", "--on-demand", "3.06", "-o", "json"])
    measured = Measured("walras cloud spot example:two-zones", "48 h of work in 60 h, 40 starts")
    for policy in json.loads(printed)["policies"]:
        measured.add(f"{policy['name']}: above the exact optimum", 100 * policy["above_bound"], "%")
        measured.add(f"{policy['name']}: late", policy["late"], "", at_most=0)
    return measured


def _fuzz(scale: float) -> Measured:
    seeds = max(2, round(_FUZZ_SEEDS * scale))
    words = ["-m", "tests.whole_system", "--seeds", str(seeds), "--set", f"first={_FUZZ_FIRST!s}", "--jobs", "2"]
    printed, _, _ = _run([sys.executable, *words, "--no-shrink"], may_fail=True)
    told = re.search(r"(\d+) seeds, (\d+) failed, .*?([\d.]+) s of processor time", printed)
    if told is None:
        raise NotHereError(f"the whole system did not run (pip install -e '.[all,dev]'): {printed[-200:]}")
    measured = Measured("the whole system under faults in virtual time", f"seeds from {_FUZZ_FIRST} on")
    measured.add("seeds", int(told[1]), "")
    measured.add("seeds that broke a promise", int(told[2]), "", at_most=0)
    measured.add("processor time a seed", float(told[3]), "s", at_most=0.2)
    return measured


def _mutations(_scale: float) -> Measured:
    printed, _, _ = _run([sys.executable, "-m", "tests.mutations"], may_fail=True)
    told = re.search(r"(\d+) of (\d+) found", printed)
    if told is None:
        raise NotHereError(f"no bug was planted (pip install -e '.[all,dev]'): {printed[-200:]}")
    measured = Measured("bugs planted in the product", "each looked for in the simulation's seeds")
    measured.add("bugs planted", int(told[2]), "")
    measured.add("found", 100 * int(told[1]) / int(told[2]), "%", at_least=95)
    return measured


_ROWS: dict[str, Callable[[float], Measured]] = {
    "demo": _demo,
    "gangs": _gangs,
    "philly": _philly,
    "arena": _arena,
    "spot": _spot,
    "fuzz": _fuzz,
    "mutations": _mutations,
}
ROWS = tuple(_ROWS)


def _run(words: Sequence[object], *, may_fail: bool = False) -> tuple[str, float, float]:
    """What a command printed, how long it took (s), and the most memory it had (MiB).

    Raises NotHereError where it fails.
    """
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(list(map(str, words)), stdout=output)
        _, status, usage = os.wait4(process.pid, 0)
        took_s, process.returncode = time.monotonic() - began, os.waitstatus_to_exitcode(status)
        output.seek(0)
        printed = output.read()
    if process.returncode and not may_fail:
        raise NotHereError(f"{' '.join(map(str, words[1:4]))} ended with exit code {process.returncode}")
    return printed, took_s, usage.ru_maxrss / 1024
