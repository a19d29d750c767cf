"""A native `walras simulate compare` stays clear of other simulators' worlds, and passes through few of our files."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
#: Runs a comparison, and tells which of our modules it imported and in which of our files a function ran.
SCRIPT = """
import json, sys
from walras.cli.main import app

root, ran = sys.argv[1] + "/", set()
# A virtual environment may lie in the checkout too.
ours = tuple(root + name + "/" for name in ("walras", "optimizer", "scheduler", "workers", "simulator"))

def profile(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(ours) and code.co_name != "<module>":
        ran.add(code.co_filename[len(root):])

import simulator.simulate_actions
sys.setprofile(profile)
arguments = ["compare", "three-types", "--cluster", "gavel-8-16-24", "--policy", "fifo", "--policy", sys.argv[2]]
try:
    app(["simulate", *arguments, "-o", "json"])
except SystemExit as end:
    code = end.code
sys.setprofile(None)
found = {"code": code, "imported": sorted(sys.modules), "ran": sorted(ran)}
print(json.dumps(found), file=sys.stderr)
"""
OPTIONAL = (
    "simulator.conditions", "simulator.online_predictor", "simulator.reports.charts", "simulator.reports.report_page",
    "simulator.reports.recorded_runs", "simulator.reports.sweep", "walras.training",
    "optimizer.planning",
)  # fmt: skip


def compared(policy: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(ROOT), policy], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stderr.splitlines()[-1])
    assert found["code"] == 0
    return found


@pytest.fixture(scope="module")
def run() -> dict[str, Any]:
    return compared("las")


def test_a_native_comparison_imports_no_other_simulators_world(run: dict[str, Any]) -> None:
    worlds = [name for name in run["imported"] if name.startswith("simulator.worlds.")]

    assert worlds == ["simulator.worlds.world_registry"]


def test_a_native_comparison_imports_nothing_that_it_does_not_use(run: dict[str, Any]) -> None:
    """Reports, recordings, conditions and the in-job client belong to other commands."""
    assert [name for name in run["imported"] if name.startswith(OPTIONAL)] == []


def test_a_native_comparison_passes_through_few_of_our_files(run: dict[str, Any]) -> None:
    """So that a reader of one run has few files to open; places, stops, `--set`, owned places and refusals of the
    system have one home each."""
    assert len(run["ran"]) <= 87
