"""A small PyTorch job for spot machines: saves every half second, or as planned; tells each step as it is made.

python spot_job.py STEPS STEP_S [planned]       ends before its last step once a file `enough` is in its folder
"""

import sys
import time
from pathlib import Path

import no_compiler  # noqa: F401  before torch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from walras.training import Checkpoint, Loop

EVERY_S = 0.5


def main(steps: int, step_s: float, every_s: float | str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(steps, 4)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=1)
    loop = Loop(Checkpoint(model=model, optimizer=optimizer, every_s=every_s))
    for _ in loop.epochs(1):
        for features, target in loop.steps(loader):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(features), target)
            loss.backward()
            optimizer.step()
            time.sleep(step_s)
            loop.report(loss=loss)
            print(f"step {loop.step} {time.time():.3f}", flush=True)
            if Path("enough").exists():
                break


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), "planned" if sys.argv[3:] == ["planned"] else EVERY_S)
