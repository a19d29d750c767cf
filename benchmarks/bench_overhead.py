"""What measuring costs a training loop with steps of about five milliseconds.

    python -m benchmarks overhead

Loops take turns in one process, a short block of steps each, in every order there is, one after the other: bare, bare
again (what two equal blocks differ by), in `Loop.steps` with a supervisor that listens, and the same with gradient
noise every 50 updates. Times are the processor's, which other processes of the machine lengthen least. A block is set
against the mean of the two bare ones of its round, so that what slows a whole round slows both; each figure is the
median of these ratios over many short rounds, of which a disturbance spoils few. About three minutes.
"""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from itertools import permutations
from pathlib import Path
from statistics import median
from time import process_time
from unittest.mock import patch

import torch
from torch import nn

from benchmarks.tables import Measured
from walras.training import Checkpoint, Loop

#: A block has as many steps as gradient noise has updates: every one pays for one comparison.
_STEPS, _ROUNDS, _NOISE_EVERY = 50, 160, 50
_WIDTH, _STEP_S = 384, 0.005
#: Steps of the loop that does nothing.
_COUNTED = 400_000
_DRAIN = "import socket,sys; s = socket.socket(fileno=int(sys.argv[1])); c = s.accept()[0]\nwhile c.recv(65536): pass"


def measure(scale: float) -> list[Measured]:
    """One table."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return [_measured(max(3, round(_ROUNDS * scale)), Path(folder))]
    finally:
        torch.set_num_threads(threads)


def _measured(rounds: int, folder: Path) -> Measured:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(4)))
    batch = _batch(model)
    plain, gauged = (torch.optim.SGD(model.parameters(), lr=1e-6) for _ in range(2))
    with socket.socket(socket.AF_UNIX) as listening:
        path = str(folder / "s")
        listening.bind(path)
        listening.listen()
        drains = [_drain(listening) for _ in range(2)]
        with patch.dict(os.environ, {"WALRAS_SOCKET": path}):
            loop = Loop(Checkpoint(model=model, optimizer=plain))
            noisy = Loop(Checkpoint(model=model, optimizer=gauged), noise_every=_NOISE_EVERY)
        data = [batch] * _STEPS
        blocks: list[Callable[[], float]] = [
            lambda: _block(model, plain, data),
            lambda: _block(model, plain, data),
            lambda: _block(model, plain, loop.steps(data)),
            lambda: _block(model, gauged, noisy.steps(data)),
        ]
        times = [_round(blocks, turn) for turn in range(rounds + 1)][1:]
        nothing = range(_COUNTED)
        counting_s = (_counting_s(loop.steps(nothing)) - _counting_s(nothing)) / _COUNTED
        for drain in drains:
            drain.kill()
            drain.wait()
    step_s = median(times_s[0] for times_s in times) / _STEPS
    measured = Measured("cost of measuring", f"{rounds} rounds of {_STEPS} steps each, 1 thread, processor time")
    measured.add("a bare step", 1000 * step_s, "ms")
    for block, what, most in (
        (1, "bare, against bare", None),
        (2, "counting and reporting", 1.0),
        (3, "   and gradient noise every 50", 2.0),
    ):
        measured.add(what, 100 * median(_over(times_s, block) for times_s in times), "%", at_most=most)
    measured.add("counting alone, of a step of 5 ms", 100 * counting_s / _STEP_S, "%")
    return measured


def _over(times_s: Sequence[float], block: int) -> float:
    """Part by which a block took longer than the bare ones of its round; of a bare one, than the other."""
    bare_s = times_s[0] if block == 1 else (times_s[0] + times_s[1]) / 2.0
    return times_s[block] / bare_s - 1.0


def _round(blocks: Sequence[Callable[[], float]], turn: int) -> list[float]:
    """One of each. From turn to turn in another order: a block finds the caches as the one before it left them."""
    times, orders = [0.0] * len(blocks), list(permutations(range(len(blocks))))
    for which in orders[turn % len(orders)]:
        times[which] = blocks[which]()
    return times


def _counting_s(steps: Iterable[object]) -> float:
    """Processor seconds of a loop that does nothing with its steps."""
    began_s = process_time()
    for _ in steps:
        pass
    return process_time() - began_s


def _drain(listening: socket.socket) -> subprocess.Popen[bytes]:
    """A supervisor that only listens, in a process of its own."""
    handle = listening.fileno()
    return subprocess.Popen([sys.executable, "-c", _DRAIN, str(handle)], pass_fds=[handle])


def _batch(model: nn.Module) -> torch.Tensor:
    """As many samples as make a step about five milliseconds long."""
    size = 8
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    while True:
        batch = torch.randn(size, _WIDTH)
        _block(model, optimizer, [batch] * 10)
        if _block(model, optimizer, [batch] * 20) / 20 >= _STEP_S or size >= 4096:
            return batch
        size += max(4, size // 4)


def _block(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[torch.Tensor]) -> float:
    began_s = process_time()
    for batch in batches:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return process_time() - began_s
