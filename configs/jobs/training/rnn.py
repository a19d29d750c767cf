"""Train a recurrent network that reads a handwritten digit row by row, as a sequence of eight.

python rnn.py --epochs 5
"""

import argparse

import torch
from example_data import digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from walras.training import Checkpoint, Loop


class RowReader(nn.Module):
    """A GRU over the rows of an image; its last state tells the digit."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.recurrent = nn.GRU(input_size=8, hidden_size=width, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        states, _ = self.recurrent(rows)
        return self.head(states[:, -1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    loader = DataLoader(TensorDataset(*digits()), batch_size=32, shuffle=True)
    model = RowReader()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    loop = Loop(Checkpoint(model=model, optimizer=optimizer))
    for _epoch in loop.epochs(arguments.epochs):
        for images, labels in loop.steps(loader):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            loop.report(loss=loss.detach())
            if loop.step % 50 == 0:
                print(f"step {loop.step}: loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
