"""A gang that trains for ever and never saves by itself. Its argument is what it says of its layout."""

import sys
import time

import no_compiler  # noqa: F401  before torch
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from walras.training import Checkpoint, Loop

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(200, 200))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
loop = Loop(Checkpoint(model=model, optimizer=optimizer, every_s=None, layout=sys.argv[1] or None))
loop.resume()
print("begins at", loop.step, flush=True)
for _ in loop.steps(range(100_000)):
    optimizer.zero_grad()
    model(torch.ones(4, 200)).sum().backward()
    optimizer.step()
    time.sleep(0.05)
