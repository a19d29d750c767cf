"""Speeds of real training on this machine's CPU: kinds x batches x threads x ranks, each measured several times.

    python -m benchmarks.cpu_matrix --measure FILE [--kinds N] [--repeats N]

A round measures every cell once, in an order that changes from round to round, so that a slow spell of the machine
falls on all cells alike. Needs a quiet machine; about seven minutes on two cores. `python -m benchmarks cpu_matrix`
judges predictors by the file that lies beside this one.
"""

import argparse
import json
import multiprocessing
import os
import platform
import socket
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.cpu_kinds import KINDS, batch_of, built, update

RECORDED = Path(__file__).with_name("cpu_matrix.json")
#: Samples of a rank in one step.
BATCHES = (8, 16, 32, 64)
_WINDOW_S, _WARM_UP, _FEWEST, _MOST = 0.25, 3, 4, 400
_ANSWER_S = 120.0


@dataclass(frozen=True, slots=True)
class CpuCell:
    """`batch`: samples of one rank; `threads`: of one rank."""

    kind: str
    batch: int
    threads: int
    ranks: int


def cells(kinds: int) -> list[CpuCell]:
    """All of the first so many kinds."""
    return [
        CpuCell(kind.name, batch, threads, ranks)
        for kind in KINDS[:kinds]
        for ranks in (1, 2)
        for threads in (1, 2)
        for batch in BATCHES
    ]


class Gang:
    """Processes that live through all cells of their number of ranks."""

    def __init__(self, ranks: int) -> None:
        context = multiprocessing.get_context("spawn")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._lines: list[Connection] = []
        self._processes = []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, ranks, port), daemon=True)
            process.start()
            self._lines.append(ours)
            self._processes.append(process)

    def step_s(self, cell: CpuCell) -> float:
        """Seconds of one step of the cell, now."""
        for line in self._lines:
            line.send(cell)
        answers = []
        for line in self._lines:
            if not line.poll(_ANSWER_S):
                raise TimeoutError(f"{cell} did not answer within {_ANSWER_S:g} s")
            answers.append(float(line.recv()))
        return max(answers)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()


def _serve(line: Connection, rank: int, ranks: int, port: int) -> None:
    if ranks > 1:
        address = f"tcp://127.0.0.1:{port}"
        limit = timedelta(seconds=_ANSWER_S)
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks, timeout=limit)
    kinds = {kind.name: kind for kind in KINDS}
    while True:
        cell: CpuCell = line.recv()
        torch.set_num_threads(cell.threads)
        kind = kinds[cell.kind]
        model: nn.Module = built(kind)
        if ranks > 1:
            model = DistributedDataParallel(model)
        line.send(_timed(model, batch_of(kind, cell.batch), ranks))


def _timed(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor], ranks: int) -> float:
    """The median step of a window: what interrupts a few steps does not count."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(_WARM_UP):
        began_at = time.perf_counter()
        update(model, optimizer, batch)
    last = torch.tensor([time.perf_counter() - began_at])
    if ranks > 1:
        dist.all_reduce(last, op=dist.ReduceOp.MAX)
    many = min(_MOST, max(_FEWEST, int(_WINDOW_S / float(last))))
    took_s = []
    for _ in range(many):
        began_at = time.perf_counter()
        update(model, optimizer, batch)
        took_s.append(time.perf_counter() - began_at)
    return median(took_s)


def measured(kinds: int, repeats: int) -> dict[str, object]:
    """The document of a whole matrix."""
    wanted = cells(kinds)
    # Threads that wait sleep: two ranks of two threads share two cores, and spinning would take from the other rank.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    gangs = {ranks: Gang(ranks) for ranks in (1, 2)}
    found: dict[CpuCell, list[float]] = {cell: [] for cell in wanted}
    began_at = time.monotonic()
    try:
        for turn in range(repeats):
            order = list(wanted)
            Random(turn).shuffle(order)
            for cell in order:
                found[cell].append(gangs[cell.ranks].step_s(cell))
                if sum(map(len, found.values())) % 50 == 0:
                    print(f"{sum(map(len, found.values()))} cells", file=sys.stderr, flush=True)
            print(f"round {turn + 1} of {repeats}: {time.monotonic() - began_at:.0f} s", file=sys.stderr, flush=True)
    finally:
        for gang in gangs.values():
            gang.close()
    machine = f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}, torch {torch.__version__}"
    return {
        "machine": machine,
        "date": datetime.now(UTC).date().isoformat(),
        "load_average": list(os.getloadavg()),
        "kinds": {kind.name: _facts(kind.name) for kind in KINDS[:kinds]},
        "rows": [asdict(cell) | {"step_s": [float(f"{s:.4g}") for s in times]} for cell, times in found.items()],
    }


def _facts(name: str) -> dict[str, float]:
    """Operations and bytes, counted by torch on one sample's share of a batch of 8."""
    kind = next(kind for kind in KINDS if kind.name == name)
    model, batch = built(kind), batch_of(kind, 8)
    with FlopCounterMode(display=False) as counter:
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    return {
        "flops_per_sample": counter.get_total_flops() / 8,
        "gradient_bytes": sum(p.numel() * p.element_size() for p in model.parameters()),
        "layers": sum(1 for m in model.modules() if next(m.parameters(recurse=False), None) is not None),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_matrix")
    parser.add_argument("--measure", type=Path, required=True, metavar="FILE", help=f"such as {RECORDED.name}")
    parser.add_argument("--kinds", type=int, default=len(KINDS), help="only the first so many")
    parser.add_argument("--repeats", type=int, default=5, help="times that each cell is measured")
    given = parser.parse_args()
    document = measured(given.kinds, given.repeats)
    rows = document.pop("rows")
    assert isinstance(rows, list)
    lines = ",\n".join(json.dumps(row) for row in rows)
    head = json.dumps(document, indent=1).removesuffix("\n}")
    given.measure.write_text(f'{head},\n "rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
