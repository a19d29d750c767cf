"""Train a character-level transformer on the manual that comes with Python.

python transformer.py --epochs 1
"""

import argparse

import torch
from example_data import python_manual
from torch import nn
from torch.utils.data import DataLoader, Dataset

from walras.training import Checkpoint, Loop

CONTEXT = 32


class Windows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Stretches of the text, each with the same stretch one character later: what the model is to predict."""

    def __init__(self, text: torch.Tensor) -> None:
        self.text = text

    def __len__(self) -> int:
        return (len(self.text) - 1) // CONTEXT

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * CONTEXT
        return self.text[start : start + CONTEXT], self.text[start + 1 : start + CONTEXT + 1]


class CharacterModel(nn.Module):
    def __init__(self, codes: int, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.characters = nn.Embedding(codes, width)
        self.positions = nn.Parameter(torch.zeros(CONTEXT, width))
        block = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=64, dropout=0.1, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, layers)
        self.head = nn.Linear(width, codes)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.characters(text) + self.positions, mask=self.mask, is_causal=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    text, codes = python_manual()
    loader = DataLoader(Windows(text), batch_size=8, shuffle=True)
    model = CharacterModel(codes)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    loop = Loop(Checkpoint(model=model, optimizer=optimizer))
    for _epoch in loop.epochs(arguments.epochs):
        for before, after in loop.steps(loader):
            loss = nn.functional.cross_entropy(model(before).flatten(0, 1), after.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loop.report(loss=loss.detach())
            if loop.step % 50 == 0:
                print(f"step {loop.step}: loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
