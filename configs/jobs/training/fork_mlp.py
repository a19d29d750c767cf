"""Train a perceptron on handwritten digits as a fork: unlike machines take steps of their own and average now and then.

By hand, two parts of which the second is three times as slow:

    export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 WORLD_SIZE=2
    RANK=1 WALRAS_PACE=20 python fork_mlp.py & RANK=0 WALRAS_PACE=60 python fork_mlp.py

With WORLD_SIZE unset it is an ordinary run. Every part prints a line of JSON in the end: the whole run's steps and its
own, the seconds from the first step to the last, and the losses on digits it was trained on and on others.
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
from torch.utils.data import DataLoader, TensorDataset

from walras.training import Checkpoint, Fork, Loop

RATE, MOMENTUM, DECAY = 0.05, 0.9, 1e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--every", type=int, default=30, help="steps of all parts between two averagings")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    if "WORLD_SIZE" in os.environ:
        # A part that never appears must not be waited for: the default is half an hour.
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    images, labels = digits()
    held_back = torch.arange(len(images)) % 5 == 0
    seen, unseen = (images[~held_back], labels[~held_back]), (images[held_back], labels[held_back])
    # No DistributedSampler: the fork gives every part its own slice of the batches.
    loader = DataLoader(TensorDataset(*seen), batch_size=16, shuffle=True, drop_last=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    fork = Fork(model, optimizer, every=arguments.every)
    loop = Loop(Checkpoint(model=model, optimizer=optimizer), seed=arguments.seed, fork=fork)
    steps = arguments.epochs * len(loader)
    began_at = 0.0
    for _epoch in loop.epochs(arguments.epochs):
        for batch, truth in loop.steps(loader):
            began_at = began_at or time.monotonic()
            # What averaging takes from each step is given back here; see docs/training.md.
            optimizer.param_groups[0]["lr"] = RATE * fork.effective_parts * (1 - loop.step / steps)
            loss = criterion(model(batch), truth)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loop.report(loss=loss.detach())
    took_s = time.monotonic() - began_at
    with torch.no_grad():
        losses = [criterion(model(batch), truth).item() for batch, truth in (seen, unseen)]
    said = {"steps": loop.step, "own_steps": fork.taken, "took_s": took_s, "loss": losses[0], "unseen_loss": losses[1]}
    print(json.dumps(said), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
