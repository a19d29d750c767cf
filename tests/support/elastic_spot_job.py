"""An elastic job whose step takes .15 s and, on N accelerators, .45 s / N more; saves when it is asked to.

Other work on the machine hardly changes that.

python elastic_spot_job.py FOLDER [TIMES]   a step takes TIMES as long

FOLDER/steps: a line [step, ranks] for each step of rank 0, over all attempts
FOLDER/enough: once it is there, the training has reached what it was to reach
"""

import json
import os
import sys
import time
from pathlib import Path

import no_compiler  # noqa: F401  before torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from walras.training import Checkpoint, Loop, batch_per_rank

FIXED_S, SHARED_S = 0.15, 0.45


def is_enough(folder: Path, world: int) -> bool:
    """The same on every rank."""
    seen = torch.tensor([float((folder / "enough").exists())])
    if world > 1:
        dist.all_reduce(seen, dist.ReduceOp.MAX)
    return bool(seen)


def main(folder: Path, times: float) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(7)
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    inner = nn.Linear(4, 1)
    model: nn.Module = inner
    if world > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(inner)
    x = torch.randn(6000, 4, generator=torch.Generator().manual_seed(3))
    data = TensorDataset(x, x.sum(1, keepdim=True))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, world, rank, seed=5)
    loader = DataLoader(data, batch_size=batch_per_rank(6), sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loop = Loop(Checkpoint(model=inner, optimizer=optimizer, every_s=None))
    log = (folder / "steps").open("a", buffering=1) if rank == 0 else None
    for _ in loop.epochs():
        for features, target in loop.steps(loader):
            if is_enough(folder, world):
                break
            optimizer.zero_grad()
            nn.functional.mse_loss(model(features), target).backward()
            optimizer.step()
            time.sleep(times * (FIXED_S + SHARED_S / world))
            if log is not None:
                log.write(json.dumps([loop.step, world]) + "\n")
        if is_enough(folder, world):
            break
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 1.0)
