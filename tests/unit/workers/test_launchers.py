"""What a launcher finds on its machine, and how its end is read."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.workers.test_environment import SETTINGS, a_command
from walras.training.supervisor_link import read_job_environment
from workers.devices import Accelerators
from workers.rank_environment import rank_environment
from workers.ranks import DEEPSPEED_FUNCTION, end_of_its_ranks, with_ports

REPORT = b"""
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  exitcode  : 9 (pid: 11)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_23:00:00
  rank      : 1 (local_rank: 1)
  exitcode  : %s (pid: 12)
  error_file: <N/A>
============================================================
"""


@pytest.mark.parametrize(
    ("output", "end"),
    [
        (REPORT % b"85", (85, None)),
        (REPORT % b"-9", (None, 9)),
        (REPORT % b"7" + b"[W] a warning\n" + REPORT % b"3", (3, None)),
        (b"exitcode  : 7 (pid: 3)\n", (1, None)),
        (REPORT % b"999", (1, None)),
        (REPORT % b"-99", (1, None)),
        (REPORT % b"0", (1, None)),
        (b"\xff" * 100, (1, None)),
    ],
)
def test_the_rank_that_failed_first_decides(output: bytes, end: tuple[int | None, int | None]) -> None:
    """The newest report counts; anything else that a job prints leaves the launcher's own code."""
    assert end_of_its_ranks(output, 1) == end


def test_a_launcher_finds_the_world_and_no_rank() -> None:
    """torchrun's names; a job may set its own; without a launcher the machine's process is a rank of our client."""
    command = a_command(is_launcher=True, num_nodes=2, node_rank=1, world_size=4, env={"PET_MAX_RESTARTS": "3"})
    env = with_ports(rank_environment({}, command, SETTINGS), 2950)
    pet = {name: value for name, value in env.items() if name.startswith("PET_")}
    assert pet == {
        "PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "2", "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": "2950", "PET_RDZV_BACKEND": "static", "PET_RDZV_ENDPOINT": "127.0.0.1:2950",
        "PET_RDZV_ID": "walras-4-2", "PET_MAX_RESTARTS": "3",
    }  # fmt: skip
    assert not {"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"} & env.keys()
    settings = read_job_environment(env)
    assert (settings.rank, settings.world_size, settings.ranks_per_machine) == (1, 2, 1)
    assert not [name for name in env if "DEEPSPEED" in name.upper()]
    ranks = rank_environment({}, a_command(), SETTINGS)
    assert with_ports(ranks, 2950) == ranks
    assert not [name for name in ranks if name.startswith("PET_")]


#: Stands in for the program: says its words, what is in the file of machines, and ends with a code.
DEEPSPEED = """#!/bin/sh
cat "$2"
echo "$@"
exit 85
"""


def started_deepspeed(folder: Path, run: str, device_numbers: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """What `run` says on one machine of a gang, with a program named deepspeed on the PATH."""
    (program := folder / "deepspeed").write_text(DEEPSPEED)
    program.chmod(0o755)
    command = a_command(is_launcher=True, argv=["bash", "-euo", "pipefail", "-c", run], **more)
    settings = replace(SETTINGS, device_numbers=device_numbers)
    env = rank_environment({"TMPDIR": str(folder)}, command, settings) | {"MASTER_PORT": "2950"}
    # Last, since the folder of this Python comes first in a job's PATH, and DeepSpeed may be installed there.
    env["PATH"] = f"{folder}:{os.environ['PATH']}"
    return subprocess.run(command.argv, env=env, capture_output=True, text=True, timeout=20, check=False)


def test_deepspeed_is_told_its_devices_machines_and_port(tmp_path: Path) -> None:
    """By their numbers, since it knows no UUIDs; its own code is that of `run`; no file is left."""
    gang = {"num_nodes": 2, "node_rank": 1, "world_size": 4, "master_address": "10.0.0.1"}
    done = started_deepspeed(tmp_path, "cd /; deepspeed --num_gpus 8 train.py --num_nodes x; echo no", "2,5", **gang)
    first, second, words = done.stdout.splitlines()
    assert (first, second) == ("machine-0 slots=6", "machine-1 slots=6")
    assert words.split()[2:] == [
        *("--include", "machine-0:0,1@machine-1:2,5", "--no_ssh", "--node_rank", "1", "--master_addr", "10.0.0.1"),
        *("--master_port", "2950", "train.py", "--num_nodes", "x"),
    ]
    assert (done.returncode, done.stderr) == (85, "")
    assert [path.name for path in tmp_path.iterdir()] == ["deepspeed"]


def test_only_a_launcher_that_names_it_gets_the_function(tmp_path: Path) -> None:
    """And none whose devices have no numbers (slices of a GPU): it would take those of others."""
    named, other = ["bash", "-c", "deepspeed train.py"], ["bash", "-c", "torchrun train.py"]
    numbered = replace(SETTINGS, device_numbers="0,1")
    for command, settings, has_it in (
        (a_command(is_launcher=True, argv=named), numbered, True),
        (a_command(is_launcher=True, argv=other), numbered, False),
        (a_command(is_launcher=True, argv=named), SETTINGS, False),
        (a_command(argv=named), numbered, False),
    ):
        assert (DEEPSPEED_FUNCTION in rank_environment({}, command, settings)) is has_it


def test_devices_have_the_numbers_of_the_machine() -> None:
    """Slices have none; emulated devices are numbered by their order in the job."""
    assert Accelerators("a100", 2, ("G0", "G3"), (0, 3)).numbers_of([1]) == "3"
    assert Accelerators("a100-1g.5gb", 2, ("M0", "M1")).numbers_of([0, 1]) == ""
    assert Accelerators("a100", 4).numbers_of([2, 3]) == "0,1"
