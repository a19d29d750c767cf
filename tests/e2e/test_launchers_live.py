"""The real torchrun, accelerate and deepspeed, started once on each machine: one world, and its ranks' exit codes."""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.attempts import ROOT, SupervisedAttempt, wait_for
from tests.support.real_server import FIFO, A, RealServer

pytestmark = pytest.mark.slow

TORCHRUN = str(Path(sys.executable).parent / "torchrun")
JOB = ROOT / "tests/support/elastic_job.py"
PAIR = A | {"shape": "ax2", "accelerators": 2, "cpus": 4, "memory": "2GB"}

WORLD = """
import json, os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK WALRAS_NODE_RANK WALRAS_WORLD_SIZE".split()
path = os.path.join(sys.argv[1], "rank-" + os.environ["RANK"])
with open(path, "x") as file:
    json.dump([int(ones.item()), *(int(os.environ[name]) for name in names)], file)
dist.barrier()
dist.destroy_process_group()
"""

#: Saves when it is told to stop, as a script without our client does.
PLAIN = """
import os, signal, sys, time
def save(*_):
    print("saved by", os.environ["RANK"], flush=True)
    sys.exit(85)
signal.signal(signal.SIGTERM, save)
print("going", flush=True)
time.sleep(300)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealServer]:
    server = RealServer(tmp_path, [PAIR], FIFO).start()
    yield server
    server.close()


def test_torchrun_forms_the_world_of_a_gang_over_two_machines(server: RealServer, tmp_path: Path) -> None:
    """Four ranks, each once, and all of them in one all-reduce: without an argument in the command."""
    out = tmp_path / "out"
    out.mkdir()
    (script := tmp_path / "world.py").write_text(WORLD)
    for name in ("n1", "n2"):
        server.start_agent(name, PAIR)
    job = server.submit(
        run=f"{TORCHRUN} {script} {out}", num_nodes=2, nproc_per_node=1, resources={"accelerators": "a:4"}
    )
    server.until_state(job, "SUCCEEDED", 120.0)
    found = {path.name: json.loads(path.read_text()) for path in out.iterdir()}
    assert found == {f"rank-{rank}": [4, rank, rank % 2, 4, 2, rank // 2, rank // 2, 4] for rank in range(4)}


def test_a_job_under_torchrun_saves_resumes_and_is_tried_again_after_its_own_exit_code(
    server: RealServer, tmp_path: Path
) -> None:
    """Stopped for an urgent job it ends with 85 and goes on where it was; a rank's code 7 counts as the job's."""
    out = tmp_path / "out"
    out.mkdir()
    server.start_agent(pool=PAIR)
    pair = {"accelerators": "a:2"}
    job = server.submit(
        run=f"{TORCHRUN} {JOB} {out}", nproc_per_node=1, resources=pair, batch={"global": 16}, steps=39,
        grace_period="20s", envs={"STEP_S": "0.4"}, checkpoint={"keep": 2},
    )  # fmt: skip
    server.until_step(job, 4, 90.0)
    status, _ = server.call("POST", f"/jobs/{job}/hold")
    assert status < 300
    server.until_state(job, "HELD", 60.0)
    first = server.attempt(job)
    assert (first["exit_code"], first["failed_rank"]) == (85, 0), first
    (script := tmp_path / "fails.py").write_text("import sys; sys.exit(7)")
    failing = server.submit(
        run=f"{TORCHRUN} {script}", nproc_per_node=1, resources=pair, retry={"max_restarts": 1, "on_exit_codes": [7]}
    )
    server.until_state(failing, "FAILED", 90.0)
    assert [attempt["exit_code"] for attempt in server.job(failing)["attempt_list"]] == [7, 7]
    server.call("POST", f"/jobs/{job}/release")
    server.until_state(job, "SUCCEEDED", 120.0)
    resumed = [json.loads(line)[0] for line in (out / "samples-1-2").read_text().splitlines()]
    assert resumed[0] == server.recorded(job)[-2][1] > 0
    assert resumed[-1] == 38


def test_a_stop_reaches_the_ranks_and_leaves_their_launcher_to_report_it(tmp_path: Path) -> None:
    """torchrun answers SIGTERM by itself, with exit code 1, before its ranks could save."""
    (script := tmp_path / "plain.py").write_text(PLAIN)
    env = {"PET_NNODES": "1", "PET_NODE_RANK": "0", "PET_NPROC_PER_NODE": "2", "PET_RDZV_BACKEND": "static"}
    attempt = SupervisedAttempt(
        tmp_path / "attempt", ["bash", "-c", f"true; {TORCHRUN} {script}; exit $?"],
        devices=[0, 1], is_launcher=True, env=env, grace_s=20.0,
    )  # fmt: skip
    try:
        attempt.start()
        wait_for(lambda: attempt.output().count("going\n") == 2, 60.0, "both ranks would save")
        attempt.tell({"type": "stop", "grace_s": 15.0, "reason": "moved"})
        ended = attempt.wait_event("ended", 30.0)
    finally:
        attempt.close()
    assert (ended["exit_code"], ended["cause"]) == (85, "exited")
    assert "saved by" in attempt.output()


ACCELERATE = shutil.which("accelerate")

ACCELERATED = """
import json, os, sys
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
total = accelerator.reduce(torch.ones(1), reduction="sum")
path = os.path.join(sys.argv[1], f"rank-{accelerator.process_index}")
with open(path, "x") as file:
    json.dump([int(total.item()), accelerator.num_processes, int(os.environ["WALRAS_NODE_RANK"])], file)
accelerator.wait_for_everyone()
accelerator.end_training()
sys.exit(int(sys.argv[2]))
"""


@pytest.mark.skipif(ACCELERATE is None, reason="accelerate is not installed")
@pytest.mark.parametrize("code", [0, 7])
def test_accelerate_forms_the_world_of_a_gang_with_the_command_of_the_docs(
    server: RealServer, tmp_path: Path, code: int
) -> None:
    """Two machines of two devices: one world of four, each rank once, and the ranks' exit code is the job's."""
    text = (ROOT / "docs/job-spec.md").read_text()
    (command,) = re.findall(r"^  (accelerate launch .*?)$\n  (.*?) train\.py$", text, re.MULTILINE)
    out = tmp_path / "out"
    out.mkdir()
    (script := tmp_path / "accelerated.py").write_text(ACCELERATED)
    for name in ("n1", "n2"):
        server.start_agent(name, PAIR)
    # Without a GPU, accelerate would run one process unless it is told to act as if there were several.
    words = " ".join(command).replace("accelerate launch", f"{ACCELERATE} launch --multi_gpu --mixed_precision no")
    job = server.submit(
        run=f"{words} {script} {out} {code}", num_nodes=2, nproc_per_node=1, resources={"accelerators": "a:4"}
    )
    server.until_state(job, "FAILED" if code else "SUCCEEDED", 120.0)
    assert server.attempt(job)["exit_code"] == code
    found = {path.name: json.loads(path.read_text()) for path in out.iterdir()}
    assert found == {f"rank-{rank}": [4, 4, rank // 2] for rank in range(4)}


DEEPSPEED = shutil.which("deepspeed")
UNDER_DEEPSPEED = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
names = "RANK LOCAL_RANK WORLD_SIZE CROSS_RANK WALRAS_NODE_RANK".split()
with open(os.path.join(sys.argv[-1], "rank-" + os.environ["RANK"]), "x") as file:
    print(int(ones.item()), *(os.environ[name] for name in names), file=file)
dist.barrier()  # the first rank that fails takes the others with it
dist.destroy_process_group()
sys.exit(7)
"""


@pytest.mark.skipif(DEEPSPEED is None, reason="deepspeed is not installed")
def test_deepspeed_forms_the_world_of_a_gang_over_two_machines_and_ends_with_its_ranks_code(
    server: RealServer, tmp_path: Path
) -> None:
    """Without an argument about machines, devices or ports."""
    out = tmp_path / "out"
    out.mkdir()
    (script := tmp_path / "under.py").write_text(UNDER_DEEPSPEED)
    for name in ("n1", "n2"):
        server.start_agent(name, PAIR)
    found = find_spec("deepspeed")
    assert found is not None
    assert found.origin is not None
    job = server.submit(
        run=f"deepspeed {script} {out}", num_nodes=2, nproc_per_node=1, resources={"accelerators": "a:4"},
        envs={"DS_ACCELERATOR": "cpu", "PYTHONPATH": str(Path(found.origin).parents[1])},
    )  # fmt: skip
    server.until_state(job, "FAILED", 200.0)
    assert server.attempt(job)["exit_code"] == 7
    told = {path.name: path.read_text().split() for path in out.iterdir()}
    assert told == {
        f"rank-{rank}": [str(each) for each in (4, rank, rank % 2, 4, rank // 2, rank // 2)] for rank in range(4)
    }
