"""A forked run does the work of a single one: as good, with fewer seconds, each part by its speed."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.attempts import ROOT
from tests.support.newcomer import unused_port

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "configs/jobs/training/fork_mlp.py"
#: Steps per second of the parts. Slow enough for the pace to be kept beside other work on the machine.
PACES = (40.0, 20.0)
STEPS = 1335  # 15 epochs of 89 batches


def run(seed: int, paces: tuple[float, ...] = ()) -> list[dict[str, Any]]:
    """What each part said in the end; without paces, a single run at full speed."""
    base = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if not paces:
        return [
            json.loads(subprocess.check_output([sys.executable, SCRIPT, "--seed", str(seed)], env=base, timeout=300))
        ]
    port = str(unused_port())
    gang = {"WORLD_SIZE": str(len(paces)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    parts = [
        subprocess.Popen(
            [sys.executable, SCRIPT, "--seed", str(seed)],
            env=base | gang | {"RANK": str(rank), "WALRAS_PACE": str(pace)},
            stdout=subprocess.PIPE,
        )
        for rank, pace in enumerate(paces)
    ]
    try:
        said = [part.communicate(timeout=300)[0] for part in parts]
        assert [part.returncode for part in parts] == [0] * len(parts)
    finally:
        for part in parts:
            part.kill()
            part.wait()
    return [json.loads(text) for text in said]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_fork_ends_with_the_loss_of_a_single_run_in_less_time_than_its_fast_part_alone(seed: int) -> None:
    """Same samples, training loss within 2 % and no worse on unseen data by more, steps by speed, fewer seconds."""
    (alone,), parts = run(seed), run(seed, PACES)
    fast, slow = parts
    assert alone["steps"] == fast["steps"] == slow["steps"] == STEPS
    assert (fast["loss"], fast["unseen_loss"]) == (slow["loss"], slow["unseen_loss"])
    assert fast["loss"] == pytest.approx(alone["loss"], rel=0.02)
    assert fast["unseen_loss"] == pytest.approx(alone["unseen_loss"], rel=0.02)

    assert fast["own_steps"] + slow["own_steps"] == STEPS
    assert fast["own_steps"] / slow["own_steps"] == pytest.approx(PACES[0] / PACES[1], rel=0.15)
    # A run at the pace of the fast part takes at least this long; two thirds of it would be without any cost.
    assert fast["took_s"] < STEPS / PACES[0]


def test_three_unlike_parts_each_do_their_share() -> None:
    """The split holds for more than two, and their one model is as good as a single run's."""
    (alone,), parts = run(0), run(0, (40.0, 20.0, 10.0))
    assert sum(part["own_steps"] for part in parts) == STEPS
    for part, pace in zip(parts, (40.0, 20.0, 10.0), strict=True):
        assert part["own_steps"] == pytest.approx(STEPS * pace / 70.0, rel=0.15)
    assert parts[0]["loss"] == pytest.approx(alone["loss"], rel=0.02)
