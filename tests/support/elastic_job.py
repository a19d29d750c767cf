"""A job whose steps are the same steps whatever its gang: it writes down the samples of each, and its final weights.

python elastic_job.py FOLDER        FOLDER/samples-RANK-ATTEMPT: a line per step; FOLDER/weights: the last ones
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


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(11)
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    model: nn.Module = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    if world > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    x = torch.randn(208, 8, generator=torch.Generator().manual_seed(3))
    data = TensorDataset(torch.arange(208), x, x.sum(dim=1, keepdim=True).sin())
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, world, rank, seed=5)
    loader = DataLoader(data, batch_size=batch_per_rank(16), sampler=sampler)
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loop = Loop(Checkpoint(model=inner, optimizer=optimizer, every_s=None))
    log = (folder / f"samples-{rank}-{os.environ.get('WALRAS_ATTEMPT', '0')}").open("w", buffering=1)
    for _ in loop.epochs(3):
        for index, inputs, wanted in loop.steps(loader):
            log.write(json.dumps([loop.step, index.tolist()]) + "\n")
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), wanted).backward()
            optimizer.step()
            time.sleep(float(os.environ.get("STEP_S", "0")))
    if rank == 0:
        torch.save(inner.state_dict(), folder / "weights")
    if world > 1:
        dist.destroy_process_group()


main(Path(sys.argv[1]))
