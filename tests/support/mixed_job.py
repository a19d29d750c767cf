"""A gang of unlike ranks that share each batch by speed, and whose step is the step of one process.

python mixed_job.py FOLDER [SECONDS...]

FOLDER/samples-ATTEMPT-RANK has a line per step: [step, monotonic seconds, samples]; FOLDER/weights is what was learnt.
SECONDS: by rank, what each sample costs there besides. Without RANK it is the single process. MIXED_CHECKPOINTS is the
folder of its checkpoints where no scheduler names one.
"""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import no_compiler  # noqa: F401  before torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from walras.training import Checkpoint, Loop, Shares

#: The last batch of an epoch of such batches is half as large.
SAMPLES, BATCH = 246, int(os.environ.get("MIXED_BATCH", "12"))
EPOCHS = 6 * BATCH // 12


def main(folder: Path, sample_s: list[float]) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(11)
    rank = int(os.environ.get("RANK", "0"))
    model: nn.Module = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    inner = model
    if "RANK" in os.environ:
        # A rank that never appears must not be waited for: the default is half an hour.
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
        model = DistributedDataParallel(model)
    x = torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(3))
    data = TensorDataset(torch.arange(SAMPLES), x, x.sum(dim=1, keepdim=True).sin())
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    shares = Shares(model)
    checkpoint = Checkpoint(os.environ.get("MIXED_CHECKPOINTS"), model=model, optimizer=optimizer, every_s=None)
    loop = Loop(checkpoint, shares=shares)
    log = (folder / f"samples-{os.environ.get('WALRAS_ATTEMPT', '0')}-{rank}").open("w", buffering=1)
    for _epoch in loop.epochs(EPOCHS):
        for samples, inputs, truth in loop.steps(loader):
            log.write(json.dumps([loop.step, time.monotonic(), samples.tolist()]) + "\n")
            if sample_s:
                time.sleep(sample_s[rank] * len(samples))
            optimizer.zero_grad()
            (shares.weight * nn.functional.mse_loss(model(inputs), truth)).backward()
            optimizer.step()
    if rank == 0:
        torch.save(inner.state_dict(), folder / "weights")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), [float(each) for each in sys.argv[2:]])
