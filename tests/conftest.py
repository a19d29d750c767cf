"""What all tests share."""

import gc
import multiprocessing
import os
import sys
from functools import cache
from pathlib import Path

import pytest
import typer.testing
from hypothesis import settings

from scheduler.live.loop import worker_process

# The same examples every time, so that a change is judged by what it changes; `make explore` looks for new ones.
# No deadline: how long an example takes says more of the machine than of the code.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", print_blob=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

# A session keeps hundreds of thousands of objects, which the collector would walk again and again: a sixth of the time.
gc.set_threshold(100_000, 20, 100)

# Where bytecode may not be kept, each worker rewrites every test anew, and each process of a test compiles every file.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The runner builds the tree of all commands for every call, which takes longer than most calls do.
setattr(typer.testing, "_get_command", cache(typer.main.get_command))  # noqa: B010  its module does not export it

# What tests write outlives their processes; no power is cut, so that nothing need wait for the disk.
for name in ("fsync", "fdatasync"):
    setattr(os, name, lambda descriptor: None)

# Worker processes of a server within a test fork from one that has imported what they need, which takes a second.
worker_process.START_METHOD = "forkserver"
multiprocessing.set_forkserver_preload(["scheduler.live.assembly"])

#: A slow test that takes longer hangs. How long one takes that does not says more of the machine than of the code.
SLOW_HANGS_AFTER_S = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(SLOW_HANGS_AFTER_S))


def pytest_collection_finish() -> None:
    """What was imported and collected stays: no collection of garbage walks it again."""
    gc.freeze()


@pytest.fixture(scope="session")
def reference_data() -> Path:
    """The folder of reference data: skips where there is none, fails where it is required (WALRAS_REQUIRE=data)."""
    given = os.environ.get("WALRAS_DATA", "")
    required = "data" in os.environ.get("WALRAS_REQUIRE", "").split(",")
    if not given:
        if required:
            pytest.fail("WALRAS_REQUIRE asks for the reference data, and WALRAS_DATA is not set")
        pytest.skip("WALRAS_DATA is not set: no reference data")
    folder = Path(given)
    if not folder.is_dir():
        pytest.fail(f"WALRAS_DATA names {folder}, which is no folder")
    return folder
