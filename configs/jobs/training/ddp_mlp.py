"""Train a perceptron on handwritten digits over several ranks with DistributedDataParallel.

Under Walras every rank is started with the variables that torch expects (RANK, WORLD_SIZE, ...). By hand:

    torchrun --nproc-per-node 2 ddp_mlp.py --epochs 5
"""

import argparse
from datetime import timedelta

import torch
import torch.distributed as dist
from example_data import digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from walras.training import Checkpoint, Loop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    # A rank that never appears must not be waited for: the default is half an hour.
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    dataset = TensorDataset(*digits())
    loader = DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset, seed=arguments.seed))
    model = DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    loop = Loop(Checkpoint(model=model, optimizer=optimizer))
    for _epoch in loop.epochs(arguments.epochs):
        for images, labels in loop.steps(loader):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loop.report(loss=loss.detach())
            if loop.step % 50 == 0 and dist.get_rank() == 0:
                print(f"step {loop.step} of {dist.get_world_size()} ranks: loss {loss:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
