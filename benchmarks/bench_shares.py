"""What sharing each batch by speed is worth: steps of real gangs over gloo whose ranks take unlike times for a sample.

    python -m benchmarks shares

Samples cost what they are told to, asleep, so that the figures hold on a machine with few processors. Ranks begin with
equal shares. Measured in the same run: a step with those, and one with the shares in the end; beside them the step if
samples could be cut and exchanging gradients cost nothing. About two minutes.
"""

import json
import os
import socket
import subprocess
import sys
from itertools import pairwise
from statistics import median

from benchmarks.tables import Measured

#: Seconds of a sample by rank, in units of `_SAMPLE_S`.
_GANGS = ((1.0, 1.0), (1.0, 2.0), (1.0, 4.0), (1.0, 2.0, 4.0))
_BATCH, _SAMPLE_S, _STEP_S, _STEPS = 48, 0.002, 0.005, 120
#: A settled step is at most so much longer than the ideal one.
_OVER_IDEAL = 1.25


def measure(scale: float) -> list[Measured]:
    """One table."""
    steps = max(40, round(_STEPS * scale))
    measured = Measured("shared batches", f"{_BATCH} samples of {1e3 * _SAMPLE_S:g} ms and more, {steps} steps")
    for costs in _GANGS:
        ranks = _run([_SAMPLE_S * cost for cost in costs], steps)
        parts = [tuple(own for _, own in step) for step in zip(*ranks, strict=True)]
        steps_s = [later - now for (now, _), (later, _) in pairwise(ranks[0])]
        equal, last = parts[0], parts[-1]
        ideal_s = _STEP_S + _BATCH * _SAMPLE_S / sum(1.0 / cost for cost in costs)
        name = ":".join(f"{cost:g}" for cost in costs)
        found_s = _typical(steps_s, parts, last)
        measured.add(f"{name}, equal shares", 1e3 * _typical(steps_s, parts, equal), "ms a step")
        shared = "+".join(map(str, last))
        measured.add(f"{name}, {shared}", 1e3 * found_s, "ms a step", at_most=1e3 * _OVER_IDEAL * ideal_s)
        measured.add(f"{name}, ideal", 1e3 * ideal_s, "ms a step")
        measured.add(f"{name}, settled after", parts.index(last), "steps")
    return [measured]


def _typical(steps_s: list[float], parts: list[tuple[int, ...]], shares: tuple[int, ...]) -> float:
    return median(took_s for took_s, part in zip(steps_s, parts, strict=False) if part == shares)


def _run(costs_s: list[float], steps: int) -> list[list[tuple[float, int]]]:
    """What each rank saw."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    env = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(len(costs_s))}
    given = ["--batch", str(_BATCH), "--steps", str(steps), "--step-s", str(_STEP_S)]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.shared_job", *given, "--sample-s", str(cost_s)],
            env=env | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
        )
        for rank, cost_s in enumerate(costs_s)
    ]
    try:
        return [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
