"""Real PyTorch training on an emulated accelerator that does one thing at a time: whoever holds the lock on DEVICE.

A step has the device for DEVICE_S seconds, then waits as a step waits for its data, WAIT_S seconds. Where the device
had another job's step before, the step first loads its state anew: RELOAD_S seconds, as where two working sets do not
fit together. So what two jobs do to each other does not depend on what else this machine does.
"""

SCRIPT = """
import fcntl, os, time, torch
from walras.training import Checkpoint, Loop
torch.set_num_threads(1)
torch.manual_seed(0)
device_s, wait_s, reload_s = (float(os.environ[name]) for name in ("DEVICE_S", "WAIT_S", "RELOAD_S"))
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs = torch.randn(32, 64)
loop = Loop(Checkpoint(model=model, optimizer=optimizer))
own = os.environ["WALRAS_JOB_ID"].encode()
with open(os.environ["DEVICE"], "a+b") as device:
    for _ in loop.steps(range(10**9)):
        fcntl.flock(device, fcntl.LOCK_EX)
        device.seek(0)
        if device.read() != own:
            time.sleep(reload_s)
            device.truncate(0)
            device.write(own)
            device.flush()
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(device_s)
        fcntl.flock(device, fcntl.LOCK_UN)
        time.sleep(wait_s)
"""
#: A step waits for its data for most of its time; and two that throw each other's state out with every step.
WAITING = {"DEVICE_S": "0.005", "WAIT_S": "0.02", "RELOAD_S": "0"}
THRASHING = {"DEVICE_S": "0.01", "WAIT_S": "0.001", "RELOAD_S": "0.02"}
