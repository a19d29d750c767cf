"""Train a two-layer perceptron on scikit-learn's handwritten digits: the smallest script that uses Walras.

python mlp.py --epochs 5
"""

import argparse

import torch
from example_data import digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from walras.training import Checkpoint, Loop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    loader = DataLoader(TensorDataset(*digits()), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    loop = Loop(Checkpoint(model=model, optimizer=optimizer))
    for _epoch in loop.epochs(arguments.epochs):
        for images, labels in loop.steps(loader):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loop.report(loss=loss.detach())
            if loop.step % 50 == 0:
                print(f"step {loop.step}: loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
