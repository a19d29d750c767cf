"""One agent, accelerators of two types: a real server, jobs of both at once, and a gang over all of the machine."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.agent_process import AgentProcess
from tests.support.real_server import FIFO, A, RealServer, Serve, wait_for

pytestmark = pytest.mark.slow

#: What a driver would say of a machine with two A100 and a T4 between them on the bus.
DRIVER = """
class NVMLError(Exception): pass
NVML_DEVICE_MIG_ENABLE = 1
_GPUS = [("GPU-a0", "NVIDIA A100-SXM4-40GB", 40), ("GPU-t0", "Tesla T4", 15), ("GPU-a1", "NVIDIA A100-SXM4-40GB", 40)]
class _Memory:
    used = 0
    def __init__(self, gib): self.total = gib << 30
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return len(_GPUS)
def nvmlDeviceGetHandleByIndex(index): return _GPUS[index]
def nvmlDeviceGetMemoryInfo(gpu): return _Memory(gpu[2])
def nvmlDeviceGetName(gpu): return gpu[1]
def nvmlDeviceGetUUID(gpu): return gpu[0]
def nvmlDeviceGetMigMode(gpu): raise NVMLError("not supported")
def nvmlDeviceGetHandleByUUID(uuid): raise NVMLError("busy")
"""
#: Each rank writes down what it sees, and ends once the test says so.
RANK = """
import json, os, pathlib, sys, time
names = ("CUDA_VISIBLE_DEVICES", "WALRAS_NODE_RANK", "WALRAS_NUM_NODES", "WORLD_SIZE", "RANK", "WALRAS_PACE")
seen = {name: os.environ.get(name, "") for name in names}
pathlib.Path(sys.argv[1], f"{os.environ['WALRAS_JOB_NAME']}-{seen['RANK']}.json").write_text(json.dumps(seen))
while not pathlib.Path(sys.argv[1], "end").exists():
    time.sleep(0.05)
"""


@pytest.fixture
def server(serve: Serve, tmp_path: Path) -> RealServer:
    server = serve([A], FIFO)
    (tmp_path / "rank.py").write_text(RANK)
    return server


def _begin(server: RealServer, **changes: Any) -> AgentProcess:
    own = server.folder / "gpu-1"
    own.mkdir()
    token = (server.data / "join.token").read_text().strip()
    nothing: dict[str, Any] = {"shape": "", "accelerator": None, "accelerators": None}
    agent = AgentProcess(own, server.url, token, node_id="gpu-1", cpus=3.0, **(nothing | changes))
    server.agents["gpu-1"] = agent.start()
    wait_for(lambda: len(server.call("GET", "/nodes")[1]) == 2, 30, "both parts join", lambda: agent.log)
    return agent


def _submit(server: RealServer, name: str, demand: str, **more: Any) -> int:
    run = f"{sys.executable} {server.folder}/rank.py {server.folder}"
    return server.submit(name=name, run=run, resources={"accelerators": demand}, **more)


def _seen(server: RealServer, name: str, rank: int = 0) -> dict[str, str]:
    path = server.folder / f"{name}-{rank}.json"
    wait_for(lambda: path.exists() and path.read_text(), 30, f"rank {rank} of {name} runs")
    found: dict[str, str] = json.loads(path.read_text())
    return found


def test_jobs_of_two_types_run_at_once_on_what_is_theirs(server: RealServer) -> None:
    """Found by the driver: CUDA_VISIBLE_DEVICES has the numbers of the devices that each job asked for."""
    (server.folder / "modules").mkdir()
    (server.folder / "modules" / "pynvml.py").write_text(DRIVER)
    agent = _begin(server, emulated=False, modules=server.folder / "modules")
    jobs = [_submit(server, "large", "a100-40gb:2"), _submit(server, "small", "t4:1")]
    for job in jobs:
        server.until_running(job)
    assert [_seen(server, "large", rank)["CUDA_VISIBLE_DEVICES"] for rank in (0, 1)] == ["0,2"] * 2
    assert _seen(server, "small")["CUDA_VISIBLE_DEVICES"] == "1"
    assert server.attempt(jobs[0])["placement"] == ["gpu-1.a100-40gb:0,1"]
    nodes = {node["accelerator"]: node for node in server.call("GET", "/nodes")[1]}
    assert {name: (node["machine"], node["free"], node["jobs"]) for name, node in nodes.items()} == {
        "a100-40gb": ("gpu-1", 0, [jobs[0]]),
        "t4": ("gpu-1", 0, [jobs[1]]),
    }
    agent.kill()  # what runs goes on, and is taken over by an agent that finds its folders
    agent.start()
    (server.folder / "end").touch()
    for job in jobs:
        server.until_state(job, "SUCCEEDED")
        assert len(server.job(job)["attempt_list"]) == 1


def test_emulated_types_run_at_their_own_paces_and_a_notice_is_for_the_whole_machine(server: RealServer) -> None:
    """Two emulated types and one notice in the folder of the machine: the jobs of both are asked to leave."""
    (server.folder / "speeds.yaml").write_text(yaml.safe_dump({"k": {"a": 40.0, "b": 10.0}}))
    agent = _begin(server, types=[["a", 2], ["b", 1]], speeds=f"{server.folder}/speeds.yaml")
    jobs = [_submit(server, "one", "a:2", profile="k"), _submit(server, "two", "b:1", profile="k")]
    for job in jobs:
        server.until_running(job)
    assert (_seen(server, "one")["WALRAS_PACE"], _seen(server, "two")["WALRAS_PACE"]) == ("40.0", "10.0")
    assert [server.attempt(job)["placement"] for job in jobs] == [["gpu-1.a:0,1"], ["gpu-1.b:0"]]
    (agent.state / "notice").write_text("90\n")
    wait_for(lambda: {node["state"] for node in server.call("GET", "/nodes")[1]} == {"leaving"}, 60, "both parts leave")
    wait_for(
        lambda: [server.state(job) for job in jobs] == ["PENDING"] * 2, 40, "both have left",
        lambda: server.job(jobs[1]),
    )  # fmt: skip
