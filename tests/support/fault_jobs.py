"""Jobs for tests of faults, as command lines: small, quick to start, and telling in their log what they did."""

import sys

#: Counts; saves every 10 steps; leaves with 85 of its own accord once the file named by its argument is there.
COUNTING = """
import os, sys, time
from walras.training import Checkpoint, Loop

class Counter:
    n = 0
    def state_dict(self): return {"n": self.n}
    def load_state_dict(self, state): self.n = state["n"]

counter = Counter()
loop = Loop(Checkpoint(counter=counter, every_s=None, every_steps=10))
print("resumed at" if loop.resume() else "begins at", loop.step, "with", counter.n, flush=True)
for step in loop.steps(range(1_000_000)):
    counter.n += 1
    time.sleep(0.01)
    if os.path.exists(sys.argv[1]):
        break
assert loop.save()
print("leaves at", loop.step, flush=True)
sys.exit(85)
"""

#: Two ranks that wait for each other at every step.
MEETING = """
import os, time
import torch
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
print("rank", dist.get_rank(), "has met the others", flush=True)
while True:
    dist.all_reduce(torch.ones(1))
    time.sleep(0.05)
"""

#: Writes the numbers of its processes into a file; every one of them ignores SIGTERM. One double-forks and leaves for a
#: session of its own, and one more throws its environment away besides.
HIDING = """
import os, signal, sys, time
from walras.training import Loop

def hide(clear):
    if os.fork() != 0:
        return
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    os.chdir("/")
    wait = "import signal, time; signal.signal(15, signal.SIG_IGN); print(0, flush=True); time.sleep(600)"
    pipe = os.pipe()
    if os.fork() == 0:
        os.dup2(pipe[1], 1)
        os.execve(sys.executable, [sys.executable, "-c", wait], {} if clear else dict(os.environ))
    os.read(pipe[0], 1)
    os.write(told, b"%d\\n" % os.getpid())
    for child in open(f"/proc/self/task/{os.getpid()}/children").read().split():
        os.write(told, child.encode() + b"\\n")
    time.sleep(600)

signal.signal(signal.SIGTERM, signal.SIG_IGN)
told = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(told, b"%d\\n" % os.getpid())
hide(clear=False)
hide(clear=True)
for _ in Loop().steps(range(1_000_000)):
    time.sleep(0.05)
"""
#: How many processes `HIDING` tells of.
HIDING_PROCESSES = 5


def command(script: str, *arguments: object) -> list[str]:
    """What to put into `run`."""
    return [sys.executable, "-c", script, *map(str, arguments)]
