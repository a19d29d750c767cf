"""Real jobs that count their models, wait for data, crash, or lose their loss, under a real server and agent."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.real_server import CPU_POOL, FIFO, A, RealServer, Serve, wait_for

pytestmark = pytest.mark.slow

SCRIPT = """
import os, sys, time, torch
from walras.training import Loop
import torch.distributed as dist
torch.set_num_threads(1)
model = torch.nn.Linear(100, 50, bias=False)
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
loop = Loop()
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16 * 4000, 100)), batch_size=16)
for epoch in loop.epochs():
    for (batch,) in loop.steps(data):
        if loop.step == int(os.environ.get("CRASH", "-1")):
            raise RuntimeError("no more data")
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loop.report(loss=loss * float(os.environ.get("SCALE", "1")))
        time.sleep(0.01)
"""
#: Forward, and the gradient of the weight, for one sample.
FLOPS = 2 * 2 * 100 * 50


@pytest.fixture(scope="module")
def cluster(serve_all: Serve) -> RealServer:
    server = serve_all([CPU_POOL], FIFO)
    (server.folder / "train.py").write_text(SCRIPT)
    server.start_agent("n1", CPU_POOL)
    return server


def submit(server: RealServer, kind: str, ranks: int = 1, **more: Any) -> int:
    accelerators = {"accelerators": {"cpu": ranks}}
    return server.submit(run=[sys.executable, "train.py"], profile=kind, resources=accelerators, **more)


def facts(server: RealServer, kind: str) -> dict[str, Any]:
    status, found = server.call("GET", f"/facts?kind={kind}")
    return dict(found[0]) if status == 200 else {}


def test_a_profile_is_published_as_it_is_made(cluster: RealServer) -> None:
    """`walras cloud profile run --publish` tells the server the facts of the job's kind before a job of it has run."""
    job = {"run": [sys.executable, "train.py"], "workdir": str(cluster.folder), "profile": "profiled"}
    (cluster.folder / "job.yaml").write_text(json.dumps(job))
    told = cluster.told("cloud", "profile", "run", str(cluster.folder / "job.yaml"), "--steps", "10", "--publish")
    assert "the server knows kind profiled now" in told
    found = facts(cluster, "profiled")
    assert (found["source"], found["facts"]["flops_per_sample"]) == ("stated", FLOPS)
    assert found["facts"]["batch_per_accelerator"] == 16


def test_a_job_counts_its_model_for_the_server(cluster: RealServer) -> None:
    """One rank and two ranks of DDP; the figures survive the server, and people are shown them."""
    alone = submit(cluster, "alone", steps=200)
    wait_for(lambda: facts(cluster, "alone"), 60, "the job has counted")
    cluster.until_state(alone, "SUCCEEDED", 60)
    gang = submit(cluster, "gang", 2, steps=300)
    told = wait_for(lambda: facts(cluster, "gang"), 60, "the gang has counted")
    cluster.until_state(gang, "SUCCEEDED", 60)
    assert (told["source"], told["facts"]["batch_per_accelerator"]) == ("counted", 16)
    assert told["facts"]["flops_per_sample"] == FLOPS
    assert told["facts"]["gradient_bytes"] == 100 * 50 * 4
    cluster.kill()
    cluster.start()
    assert facts(cluster, "gang") == told
    shown = cluster.told("cloud", "profile", "facts")
    assert "alone" in shown
    assert "counted" in shown


def test_a_crash_in_step_3_and_a_lost_loss_are_told(cluster: RealServer) -> None:
    """The one fails with its exit code and the script's words in its log; the other trains on, and says so once."""
    crash = submit(cluster, "crash", steps=100, envs={"CRASH": "2"})
    cluster.until_state(crash, "FAILED", 60)
    found = cluster.job(crash)
    assert found["attempt_list"][-1]["exit_code"] == 1
    assert found["steps"] == 3, "the step that it crashed in"
    assert "RuntimeError: no more data" in cluster.log(crash, 1)
    lost = submit(cluster, "lost", steps=200, envs={"SCALE": "nan"})
    cluster.until_state(lost, "SUCCEEDED", 60)
    assert cluster.log(lost, 1).count("walras: loss is nan: it is not shown") == 1


LOADING = """
import sys, time
from walras.training import Loop

class Slow:
    def __len__(self): return 5000
    def __iter__(self):
        for number in range(5000):
            if {load}:
                time.sleep({load})
            yield number

loop = Loop()
for _ in loop.epochs():
    for number in loop.steps(Slow()):
        time.sleep({work})
"""


def test_a_job_with_a_slow_loader_is_told_that_it_waits_and_one_with_a_fast_one_is_not(
    serve: Serve, tmp_path: Path
) -> None:
    machine = {**A, "shape": "ax2", "accelerators": 2}
    server = serve([machine], FIFO)
    server.start_agent("n1", machine)
    jobs = {}
    for name, load, work in (("slow", 0.03, 0.005), ("fast", 0.0, 0.035)):
        (tmp_path / f"{name}.py").write_text(LOADING.format(load=load, work=work))
        run = [sys.executable, str(tmp_path / f"{name}.py")]
        jobs[name] = server.submit(name=name, profile=name, run=run, resources={"accelerators": "a:1"})

    def part(name: str) -> float | None:
        found: float | None = server.job(jobs[name])["last_values"].get("data_wait")
        return found

    wait_for(lambda: (part("slow") or 0.0) > 0.5, 60, "the wait of the slow one", lambda: part("slow"))
    assert "of its step it waits for its data" in server.command("explain", str(jobs["slow"])).stdout
    assert "waits for data" in server.command("show", str(jobs["slow"])).stdout
    # A mean over its last steps: one that a busy machine held up is among them for a while.
    wait_for(lambda: (part("fast") or 1.0) < 0.15, 60, "the wait of the fast one", lambda: part("fast"))
    wait_for(
        lambda: "waits for its data" not in server.command("explain", str(jobs["fast"])).stdout,
        60,
        "nothing is told of it",
    )
