"""Two processes over gloo share each batch by what their samples cost, and learn what one process learns."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.attempts import ROOT
from tests.support.newcomer import unused_port

pytestmark = pytest.mark.slow

JOB = ROOT / "tests/support/mixed_job.py"
STEPS = 63
#: What a sample costs on each rank: 9 + 3 take as long as each other. Far more than other work on the machine adds.
COSTS_S = (0.018, 0.054)


def train(folder: Path, costs_s: tuple[float, ...] = (), **more: str) -> list[list[tuple[float, list[int]]]]:
    """By rank, when it got each step's samples and which; without costs, those of a single process."""
    folder.mkdir(exist_ok=True)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "WALRAS_STEPS": str(STEPS)}
    env |= more
    if not costs_s:
        subprocess.run([sys.executable, str(JOB), str(folder)], env=env, timeout=300, check=True)
        return [read(folder / "samples-0-0")]
    port = str(unused_port())
    env |= {"WORLD_SIZE": str(len(costs_s)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(JOB), str(folder), *map(str, costs_s)], env=env | {"RANK": str(rank)},
            stderr=subprocess.PIPE, text=True,
        )
        for rank in range(len(costs_s))
    ]  # fmt: skip
    try:
        said = [rank.communicate(timeout=300)[1] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0] * len(ranks), said
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [read(folder / f"samples-0-{rank}") for rank in range(len(costs_s))]


def read(path: Path) -> list[tuple[float, list[int]]]:
    return [(at, samples) for _, at, samples in map(json.loads, path.read_text().splitlines())]


def learnt_the_same(one: Path, other: Path) -> bool:
    """But for rounding: ranks add up what one process adds up in another order."""
    ours, theirs = (torch.load(each / "weights", weights_only=True) for each in (one, other))
    return all(torch.allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-6) for name in theirs)


def test_three_ranks_go_on_where_two_left_off(tmp_path: Path) -> None:
    """In the middle of an epoch, with shares that had moved: no sample is repeated and none is left out."""
    ((*alone,),) = train(tmp_path / "alone")
    kept = str(tmp_path / "kept")
    two = train(tmp_path / "two", COSTS_S, MIXED_CHECKPOINTS=kept, WALRAS_STEPS="32")
    three = train(tmp_path / "three", (*COSTS_S, 0.027), MIXED_CHECKPOINTS=kept)
    assert len(two[0][0][1]) == 6 < max(len(own) for _, own in two[0])
    steps = [*zip(*two, strict=True), *zip(*three, strict=True)]
    assert [sorted(sample for _, own in parts for sample in own) for parts in steps] == [
        sorted(own) for _, own in alone
    ]
    assert learnt_the_same(tmp_path / "three", tmp_path / "alone")
