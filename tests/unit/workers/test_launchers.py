"""What a launcher finds on its machine, and how its end is read."""

import pytest

from tests.unit.workers.test_environment import SETTINGS, a_command
from walras.training.supervisor_link import read_job_environment
from workers.launchers import end_of_its_ranks, with_ports
from workers.rank_environment import rank_environment

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
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_NPROC_PER_NODE": "2",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": "2950",
        "PET_RDZV_BACKEND": "static",
        "PET_RDZV_ENDPOINT": "127.0.0.1:2950",
        "PET_RDZV_ID": "walras-4-2",
        "PET_MAX_RESTARTS": "3",
    }
    assert not {"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"} & env.keys()
    settings = read_job_environment(env)
    assert (settings.rank, settings.world_size, settings.ranks_per_machine) == (1, 2, 1)
    ranks = rank_environment({}, a_command(), SETTINGS)
    assert with_ports(ranks, 2950) == ranks
    assert not [name for name in ranks if name.startswith("PET_")]
