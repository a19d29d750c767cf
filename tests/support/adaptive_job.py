"""A job that chooses its batch: a regression of noisy data, whose update takes 20 ms and 20 us a sample.

python adaptive_job.py FOLDER       FOLDER/updates-RANK-ATTEMPT: a line [step, samples of this rank] for each update
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
    model: nn.Module = nn.Linear(8, 1)
    if world > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    x = torch.randn(4096, 8, generator=torch.Generator().manual_seed(3))
    noise = torch.randn(4096, 1, generator=torch.Generator().manual_seed(4))
    data = TensorDataset(x, x.sum(dim=1, keepdim=True) + 10.0 * noise)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, world, rank, seed=5)
    loader = DataLoader(data, batch_size=batch_per_rank(8), sampler=sampler, drop_last=True)
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)

    def suit(batch: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 1e-5 * (batch / 8) ** 0.5

    loop = Loop(Checkpoint(model=inner, optimizer=optimizer, every_s=None), on_change=suit)
    log = (folder / f"updates-{rank}-{os.environ.get('WALRAS_ATTEMPT', '0')}").open("w", buffering=1)
    for _ in loop.epochs():
        for inputs, wanted in loop.steps(loader):
            log.write(json.dumps([loop.step, len(inputs)]) + "\n")
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), wanted).backward()
            optimizer.step()
            time.sleep(0.02 + 20e-6 * len(inputs))
    if world > 1:
        dist.destroy_process_group()


main(Path(sys.argv[1]))
