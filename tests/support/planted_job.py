"""A training script whose stalls are planted: each of PLANT_* is the seconds by which it lengthens every step.

LOADER: preparing a batch. DISK: reading files that the host has not in memory. REDUCE: an all-reduce, by a delay around
gloo's. NETWORK: likewise, where every rank is a machine of its own.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import no_compiler  # noqa: F401  before torch
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from walras.training import Loop

BATCH = 4
FLOATS = 64


def planted(name: str) -> float:
    return float(os.environ.get(f"PLANT_{name}", "0"))


class Files(Dataset[torch.Tensor]):
    """One sample a file."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.bin"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(planted("LOADER") / BATCH)
        with self.paths[index].open("rb") as file:
            try:
                os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
            except BlockingIOError:
                time.sleep(planted("DISK") / BATCH)
            return torch.frombuffer(bytearray(file.read(4 * FLOATS)), dtype=torch.float32).clone()


def slow_reduce(group, bucket):  # type: ignore[no-untyped-def]
    time.sleep(planted("REDUCE") + (planted("NETWORK") if os.environ["LOCAL_WORLD_SIZE"] == "1" else 0.0))
    return allreduce_hook(group, bucket)


def main() -> None:
    torch.set_num_threads(1)
    data, many = Files(Path(sys.argv[1])), int(os.environ["WORLD_SIZE"]) > 1
    model: nn.Module = nn.Sequential(nn.Linear(FLOATS, 64), nn.ReLU(), nn.Linear(64, 1))
    if many:
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
        model = DistributedDataParallel(model)
        model.register_comm_hook(None, slow_reduce)
    loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data) if many else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loop = Loop()
    for _epoch in loop.epochs(100):
        for batch in loop.steps(loader):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()


if __name__ == "__main__":
    main()
