"""Train a perceptron on handwritten digits over unlike machines in step: each rank has its share of every batch.

By hand, two ranks of which the second is three times as slow:

    export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 WORLD_SIZE=2
    RANK=1 WALRAS_PACE=20 python shares_mlp.py & RANK=0 WALRAS_PACE=60 python shares_mlp.py

With WORLD_SIZE unset it is an ordinary run. Every rank prints a line of JSON in the end: its samples of a whole batch,
the seconds from the first step to the last, and the loss on the digits it was trained on.
"""

import argparse
import json
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from example_data import digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from walras.training import Checkpoint, Loop, Shares, whole_batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    images, labels = digits()
    batch_size = whole_batch(48)
    # No DistributedSampler: the loader makes whole batches, and each rank is given its part of them.
    loader = DataLoader(TensorDataset(images, labels), batch_size=batch_size, shuffle=True)
    model: nn.Module = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    if "WORLD_SIZE" in os.environ:
        # A rank that never appears must not be waited for: the default is half an hour.
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
        model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    shares = Shares(model)
    loop = Loop(Checkpoint(model=model, optimizer=optimizer), seed=arguments.seed, shares=shares)
    began_at = 0.0
    for _epoch in loop.epochs(arguments.epochs):
        for batch, truth in loop.steps(loader):
            began_at = began_at or time.monotonic()
            loss = nn.functional.cross_entropy(model(batch), truth)
            optimizer.zero_grad()
            # The mean over ranks of what is weighted so is the mean over the samples of the whole batch.
            (shares.weight * loss).backward()
            optimizer.step()
            loop.report(loss=loss.detach())
    took_s = time.monotonic() - began_at
    with torch.no_grad():
        final = nn.functional.cross_entropy(model(images), labels).item()
    said = {"steps": loop.step, "shares": shares.of(batch_size), "took_s": took_s, "loss": final}
    print(json.dumps(said), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
