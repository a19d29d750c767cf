"""Real PyTorch training on an emulated accelerator, which is one core of this machine: DEVICE names the core.

A step keeps the core busy with arithmetic for a while, then waits as a step waits for its data: WAIT_S seconds.
"""

SCRIPT = """
import os, time, torch
from walras.training import Checkpoint, Loop
os.sched_setaffinity(0, {int(os.environ["DEVICE"])})
torch.set_num_threads(1)
torch.manual_seed(0)
size, wait_s = int(os.environ["SIZE"]), float(os.environ["WAIT_S"])
model = torch.nn.Linear(size, size)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs = torch.randn(128, size)
loop = Loop(Checkpoint(model=model, optimizer=optimizer))
for _ in loop.steps(range(10**9)):
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(wait_s)
"""
