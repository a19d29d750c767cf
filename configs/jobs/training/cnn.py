"""Train a small convolutional network on scikit-learn's handwritten digits.

    python cnn.py --epochs 5

Runs alone as it stands. Under Walras it reports its speed and loss, saves when it is asked to, and a later attempt
continues at the very step where an earlier one stopped, on whatever machine it is started.
"""

import argparse

import torch
from example_data import digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from walras.training import Checkpoint, Loop


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    images, labels = digits()
    loader = DataLoader(TensorDataset(images.unsqueeze(1), labels), batch_size=32, shuffle=True)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    loop = Loop(Checkpoint(model=model, optimizer=optimizer))
    for _epoch in loop.epochs(arguments.epochs):
        for batch, targets in loop.steps(loader):
            loss = nn.functional.cross_entropy(model(batch), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loop.report(loss=loss.detach())
            if loop.step % 50 == 0:
                print(f"step {loop.step}: loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
