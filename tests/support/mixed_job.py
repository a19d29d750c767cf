"""A gang of unlike ranks whose step is the step of one process: each rank takes a part of the batch by its speed.

python mixed_job.py FOLDER        FOLDER/samples-ATTEMPT-RANK: a line per step, [step, pace, samples]; FOLDER/weights

Without RANK it is the single process. Speed is the pace of the emulated accelerator, in steps/s of a whole batch.
"""

import json
import os
import sys
from datetime import timedelta
from itertools import accumulate
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from walras.training import Checkpoint, Loop

SAMPLES, BATCH, EPOCHS = 240, 12, 6


def own_part(world: int, rank: int, pace: float) -> slice:
    """Samples of each batch that this rank takes: in proportion to the paces of all."""
    paces = [torch.tensor([pace]) for _ in range(world)]
    if world > 1:
        dist.all_gather(paces, torch.tensor([pace]))
    ends = [0.0, *accumulate(float(each) for each in paces)]
    first, end = (round(BATCH * each / ends[-1]) for each in ends[rank : rank + 2])
    return slice(first, end)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(11)
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    pace = float(os.environ.get("WALRAS_PACE", "1"))
    model: nn.Module = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    inner = model
    if world > 1:
        # A rank that never appears must not be waited for: the default is half an hour.
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
        model = DistributedDataParallel(model)
    part = own_part(world, rank, pace)
    x = torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(3))
    y = x.sum(dim=1, keepdim=True).sin()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loop = Loop(Checkpoint(model=inner, optimizer=optimizer, every_s=None))
    log = (folder / f"samples-{os.environ.get('WALRAS_ATTEMPT', '0')}-{rank}").open("w", buffering=1)
    for epoch in loop.epochs(EPOCHS):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
        for batch in loop.steps(order.split(BATCH)):
            own = batch[part]
            log.write(json.dumps([loop.step, pace, own.tolist()]) + "\n")
            optimizer.zero_grad()
            # DDP takes the mean over ranks; this makes it the mean over the samples of the batch.
            loss = nn.functional.mse_loss(model(x[own]), y[own]) * (len(own) * world / BATCH)
            loss.backward()
            optimizer.step()
    if rank == 0:
        torch.save(inner.state_dict(), folder / "weights")
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
