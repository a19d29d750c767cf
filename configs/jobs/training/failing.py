"""A training run that goes wrong on purpose: its loss becomes infinite, and the script refuses to go on.

python failing.py --fail-after 30
"""

import argparse

import torch
from example_data import digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from walras.training import Checkpoint, Loop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--fail-after", type=int, default=30, help="steps after which the learning rate explodes")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(*digits()), batch_size=32, shuffle=True)
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    loop = Loop(Checkpoint(model=model, optimizer=optimizer))
    for _epoch in loop.epochs(arguments.epochs):
        for images, labels in loop.steps(loader):
            loss = nn.functional.cross_entropy(model(images.flatten(1)), labels)
            if not loss.isfinite():
                raise ArithmeticError(
                    f"the loss is {loss.item()} after {loop.step} steps: is the learning rate too high?"
                )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loop.report(loss=loss.detach())
            if loop.step >= arguments.fail_after:
                optimizer.param_groups[0]["lr"] = float("inf")


if __name__ == "__main__":
    main()
