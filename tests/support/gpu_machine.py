"""A real machine with GPUs for tests and benchmarks: `walras server`, `walras agent` as a user starts it, and its jobs.

The agent is told nothing of its accelerators: it finds them through NVML.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.real_server import FIFO, WALRAS, RealServer, wait_for
from workers.devices import CPU, Accelerators, detect_accelerators

#: The machine's name in its cluster.
NODE = "gpu-1"

#: Trains a small network whose dropout draws on the device, over NCCL; writes a digest of its weights, its last loss
#: and its steps. FORGET_DEVICE: what the device's generator had drawn is not restored.
RESUMED = """
import hashlib, os, sys, time
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch
import torch.distributed as dist
from torch import nn
from walras.training import Checkpoint, Loop
if os.environ.get("FORGET_DEVICE"):
    from walras.training import loop_state
    whole = loop_state.restore_random_state
    loop_state.restore_random_state = lambda states: whole({k: v for k, v in states.items() if k != "cuda"})
torch.use_deterministic_algorithms(True)
torch.manual_seed(11)
rank, device = int(os.environ.get("RANK", "0")), torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 1)).to(device)
model = nn.parallel.DistributedDataParallel(model, device_ids=[device.index])
optimizer = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9)
data = torch.utils.data.TensorDataset(torch.randn(640, 64), torch.randn(640, 1))
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
loop = Loop(Checkpoint(model=model, optimizer=optimizer, every_s=None))
loss = torch.zeros(())
for epoch in loop.epochs(3):
    for x, y in loop.steps(loader):
        noisy = x.to(device) + 0.1 * torch.randn(x.shape, device=device)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(noisy), y.to(device))
        loss.backward()
        optimizer.step()
        loop.report(loss=loss)
        time.sleep(float(os.environ.get("STEP_S", "0")))
counted = torch.ones(1, device=device)
dist.all_reduce(counted)
assert counted.item() == dist.get_world_size()
if rank == 0:
    weights = b"".join(value.cpu().numpy().tobytes() for value in model.state_dict().values())
    with open(sys.argv[1], "w") as output:
        output.write(f"{hashlib.sha256(weights).hexdigest()} {loss.item().hex()} {loop.step}")
dist.destroy_process_group()
"""

#: Trains until it is told to end. A step computes on the device, then waits as for its data, WAIT_S seconds.
ENDLESS = """
import os, time, torch
from walras.training import Checkpoint, Loop
torch.manual_seed(0)
size, wait_s = int(os.environ["SIZE"]), float(os.environ["WAIT_S"])
model = torch.nn.Sequential(*(torch.nn.Linear(size, size) for _ in range(4))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
inputs = torch.randn(int(os.environ["BATCH"]), size, device="cuda")
loop = Loop(Checkpoint(model=model, optimizer=optimizer))
for _ in loop.steps(range(10**9)):
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()
    time.sleep(wait_s)
"""
#: A step waits for most of its time; and one that keeps the device busy all the time.
WAITING = {"SIZE": "1024", "BATCH": "256", "WAIT_S": "0.01"}
BUSY = {"SIZE": "4096", "BATCH": "4096", "WAIT_S": "0"}


def gpus_here() -> Accelerators | None:
    """Returns the GPUs of this machine if it has some of one type that PyTorch can use, else None."""
    with contextlib.suppress(ValueError):
        found = detect_accelerators(os.environ)
        if found.name != CPU:
            import torch

            return found if torch.cuda.is_available() else None
    return None


class GpuMachine:
    """A server and this machine as its only one, joined by `walras agent` with the options that a user would give."""

    def __init__(self, folder: Path, found: Accelerators, **environ: str) -> None:
        cores = float(len(os.sched_getaffinity(0)))
        pool = {
            "shape": f"{found.name}x{found.count}", "accelerator": found.name, "accelerators": found.count,
            "cpus": cores, "memory": "8GB", "accelerator_memory": "16GB", "usd_per_h": 3.6,
        }  # fmt: skip
        policy = FIFO | {"policy": {"name": "fifo", "parameters": {"strict": False}}}
        self.server = RealServer(folder, [pool], policy)
        self.folder, self.found = folder, found
        self._environ = os.environ | environ
        self._agent: subprocess.Popen[bytes] | None = None

    def start(self) -> "GpuMachine":
        """Returns itself once the machine has joined. Raises AssertionError if it does not within a minute."""
        self.server.start()
        command = [
            WALRAS, "agent", "--server", self.server.url, "--state", str(self.folder / "agent"), "--node", NODE,
            "--join-token-file", str(self.server.data / "join.token"), "--memory", "8GB",
        ]  # fmt: skip
        with open(self.folder / "agent.log", "ab") as log:
            self._agent = subprocess.Popen(command, env=self._environ, stdout=log, stderr=log)
        wait_for(lambda: self.server.node(NODE), 60, "the machine joins", (self.folder / "agent.log").read_text)
        return self

    def submit(self, name: str, script: str, *arguments: str, ranks: int = 1, **more: Any) -> int:
        """Returns the number of a job that runs this text of Python on so many of the machine's GPUs."""
        accelerators = {"accelerators": f"{self.found.name}:{ranks}"}
        resources = {**accelerators, **more.pop("resources", {})}
        run = [sys.executable, "-c", script, *arguments]
        return self.server.submit(name=name, profile=name, run=run, resources=resources, grace_period="60s", **more)

    def stop_and_go_on(self, job_id: int) -> None:
        """Has the job's attempt save and end, by a drain of the machine, and the machine take work again."""
        assert self.server.call("POST", f"/nodes/{NODE}/drain")[0] == 200
        self.server.until_state(job_id, "PENDING", 120)
        assert self.server.call("POST", f"/nodes/{NODE}/resume")[0] == 200

    def speed(self, kind: str) -> float | None:
        """Returns the steps per second that the scheduler has learnt of a kind; None before."""
        rows = self.server.rows("SELECT kind, steps_per_s FROM speeds")
        return next((float(speed) for name, speed in rows if name == kind), None)

    def close(self) -> None:
        """Leaves no process."""
        self.server.close()
        if self._agent is not None:
            self._agent.kill()
            self._agent.wait(300)


@contextlib.contextmanager
def multi_process_service(folder: Path) -> Iterator[dict[str, str]]:
    """Runs NVIDIA's multi-process service and yields the variables by which an agent finds it."""
    environ = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}
    for place in environ.values():
        Path(place).mkdir(parents=True)
    program = shutil.which("nvidia-cuda-mps-control")
    assert program is not None
    subprocess.run([program, "-d"], env=os.environ | environ, check=True, timeout=300)
    try:
        yield environ
    finally:
        ask_multi_process_service(environ, "quit")
        time.sleep(1.0)


def ask_multi_process_service(environ: dict[str, str], question: str) -> str:
    """Returns what the service's control program answers."""
    answer = subprocess.run(
        ["nvidia-cuda-mps-control"], env=os.environ | environ, input=f"{question}\n".encode(), capture_output=True,
        timeout=300, check=False,
    )  # fmt: skip
    return answer.stdout.decode()


def share_a_device(machine: GpuMachine, envs: dict[str, str]) -> float:
    """Returns the sum of the parts of their speeds alone that two jobs keep on one device; 1 is one after the other.

    The scheduler learns all of these speeds from the jobs' reports.
    """
    more: dict[str, Any] = {"envs": envs, "checkpoint": {"interval": "1h"}}
    more["resources"] = {"shared": {"memory": "8GB", "busy": 0.5}}
    server = machine.server
    for kind in ("two", "one"):
        job = machine.submit(kind, ENDLESS, **more)
        wait_for(partial(machine.speed, kind), 90, f"{kind} is measured alone", partial(server.job, job))
        if kind == "two":
            assert server.call("POST", f"/jobs/{job}/cancel")[0] == 200
            server.until_state(job, "CANCELLED", 60)
    guest = machine.submit("two", ENDLESS, **more)
    server.until_running(guest, timeout_s=60)
    pairs = (("two", "one"), ("one", "two"))
    for own, other in pairs:
        beside = f"{own} beside {other}"
        wait_for(partial(machine.speed, beside), 120, f"{beside} is measured", partial(server.job, guest))
    return sum((machine.speed(f"{own} beside {other}") or 0.0) / (machine.speed(own) or 1.0) for own, other in pairs)
