"""Train a convolutional network on handwritten digits with any number of ranks and any batch, until its loss is low.

    python digits_cnn.py --until-loss 0.05

The batch is the job's (`batch: {global: N}`), else 64, and is shared evenly by however many ranks there are. An attempt
may have other ranks and another batch than the one before it: it goes on from where that one saved. The batch may also
change while it trains.
"""

import argparse
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from example_data import digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from walras.training import Checkpoint, Loop, batch_per_rank

#: Weight of the mean loss before, after 1000 samples more.
_KEEP = 0.8
#: Ranks agree on the mean loss once in so many samples.
_AGREE = 1024


def network(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(width * 16, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--until-loss", type=float, default=0.05)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--rate", type=float, default=0.02, help="Learning rate of batch 64; grows by the root.")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    images, labels = digits()
    dataset = TensorDataset(images.unsqueeze(1), labels)
    each = batch_per_rank(64)
    sampler = DistributedSampler(dataset, ranks, rank, seed=arguments.seed, drop_last=True)
    loader = DataLoader(dataset, batch_size=each, sampler=sampler, drop_last=True)
    model = network(arguments.width)
    if ranks > 1:
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.rate)
    checkpoint = Checkpoint(model=model, optimizer=optimizer)
    mean, keep, every = torch.tensor(3.0), 0.0, 1

    def suit(batch: int) -> None:
        """What follows from the samples of a step, and from the checkpoint that the loop goes on from."""
        nonlocal mean, keep, every
        for group in optimizer.param_groups:  # the checkpoint's is that of the batch it was saved with
            group["lr"] = arguments.rate * (batch / 64) ** 0.5
        keep, every = _KEEP ** (batch / 1000), max(1, _AGREE // batch)
        mean = torch.tensor(float(checkpoint.values.get("mean_loss", mean)))

    loop = Loop(checkpoint, on_change=suit)
    is_low, updates = False, 0
    for _epoch in loop.epochs(arguments.epochs):
        for batch, targets in loop.steps(loader):
            loss = nn.functional.cross_entropy(model(batch), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean = keep * mean + (1 - keep) * loss.detach()
            loop.report(loss=mean)
            updates += 1  # not `loop.step`: an update with a larger batch may count for several
            if updates % every == 0:
                mean = agreed(mean, ranks)
                checkpoint.values["mean_loss"] = float(mean)
                is_low = float(mean) < arguments.until_loss  # of the agreed mean alone: ranks end at one step
                if is_low:
                    break
        if is_low:
            break
    loop.save()
    print(f"step {loop.step}: loss {mean:.4f}", flush=True)
    if ranks > 1:
        dist.destroy_process_group()


def agreed(mean: torch.Tensor, ranks: int) -> torch.Tensor:
    """The mean over ranks: all of them stop at the same step."""
    if ranks == 1:
        return mean
    total = mean.clone()  # what was reported is read later
    dist.all_reduce(total)
    return total / ranks


if __name__ == "__main__":
    main()
