"""A training script that has never heard of Walras: it saves and resumes on its own.

    python plain_script.py --steps 2000 --checkpoint run.pt

Asked to end (SIGTERM), it saves and exits with code 85, which Walras reads as "saved, start me again". That is all a
script has to do to be preempted and moved; one that does not even do that starts over.
"""

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType

import torch
from example_data import digits
from torch import nn

SAVED_START_ME_AGAIN = 85

terminated = False


def on_sigterm(_signal: int, _frame: FrameType | None) -> None:
    global terminated
    terminated = True


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write beside the old file and rename: whoever reads sees a whole checkpoint, old or new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, unfinished)
    os.replace(unfinished, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--checkpoint", type=Path, default=Path("plain_script.pt"))
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, on_sigterm)

    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = digits()
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    first_step = 0
    if arguments.checkpoint.exists():
        saved = torch.load(arguments.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first_step = saved["step"]
        print(f"resumed at step {first_step}", flush=True)

    for step in range(first_step, arguments.steps):
        # The batch is a function of the step, so that a resumed run sees what an uninterrupted one would have seen.
        chosen = torch.randperm(len(labels), generator=torch.Generator().manual_seed(step))[:256]
        loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == arguments.steps - 1:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if terminated:
            save(arguments.checkpoint, step + 1, model, optimizer)
            sys.exit(SAVED_START_ME_AGAIN)


if __name__ == "__main__":
    main()
