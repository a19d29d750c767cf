"""A job to be stopped and resumed: dropout, momentum, a shuffled loader with augmentation, one rank or several.

python resume_job.py OUTPUT        writes the digest of the final weights and the last loss

TEST_SLOWLY_UNTIL names a file: until it is there, steps are slow, so that the job does not end while it is moved about.
"""

import hashlib
import os
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from walras.training import Checkpoint, Loop

EPOCHS = 3
#: Seconds of a slow step for each rank of the gang: three epochs take half a minute.
SLOW_S = 0.4


class Noisy(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that draw from two generators whenever they are read."""

    def __len__(self) -> int:
        return 208

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.full((8,), index / 208) + 0.1 * torch.randn(8)
        return x * (1 + 0.1 * random.random()), torch.tensor([index % 7 / 7.0])


def main(output: Path) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(11)
    random.seed(12)
    ranks, hurries = int(os.environ.get("WORLD_SIZE", "1")), os.environ.get("TEST_SLOWLY_UNTIL", "")
    is_gang = ranks > 1
    model: nn.Module = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 1))
    data = Noisy()
    sampler: DistributedSampler[tuple[torch.Tensor, torch.Tensor]] | None = None
    if is_gang:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
        sampler = DistributedSampler(data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(data, batch_size=8, shuffle=sampler is None, sampler=sampler)
    # Bits are compared: what a survivor saves alone has no random streams of the others.
    loop = Loop(Checkpoint(model=model, optimizer=optimizer, every_s=None, layout="sharded"))
    loss = torch.zeros(())
    for epoch in loop.epochs(EPOCHS):
        for x, y in loop.steps(loader):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            loop.report(loss=loss)
            if hurries and not os.path.exists(hurries):
                time.sleep(SLOW_S * ranks)
        print(f"epoch {epoch} ends at step {loop.step}", flush=True)
    if os.environ.get("RANK", "0") == "0":
        weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
        output.write_text(f"{hashlib.sha256(weights).hexdigest()} {loss.item().hex()} {loop.step}")
    if is_gang:
        dist.destroy_process_group()


main(Path(sys.argv[1]))
