"""One rank of a gang that shares each batch, whose samples cost what they are told: python -m benchmarks.shared_job.

Prints a line of JSON: when each step began, and how many samples of the batch were this rank's.
"""

import argparse
import json
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from walras.training import Loop, Shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--sample-s", type=float, required=True)
    parser.add_argument("--step-s", type=float, required=True, help="what a step costs whatever its samples")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    model = DistributedDataParallel(nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    shares = Shares(model)
    seen = []
    for batch in Loop(steps=given.steps, shares=shares).steps([torch.randn(given.batch, 16)] * given.steps):
        seen.append((time.monotonic(), len(batch)))
        time.sleep(given.step_s + given.sample_s * len(batch))
        optimizer.zero_grad()
        (shares.weight * model(batch).square().mean()).backward()
        optimizer.step()
    print(json.dumps(seen), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
