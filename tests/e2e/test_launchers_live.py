"""The real torchrun, accelerate and deepspeed, steps of Slurm and tasks of SkyPilot: one world over all machines."""

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.attempts import ROOT
from tests.support.real_server import FIFO, A, RealServer, Serve, wait_for
from walras.cli.job_files import read_job_file
from walras.spec.job_spec import spec_mapping

pytestmark = pytest.mark.slow

#: Of this environment, as the ranks are: a launcher of another one looks for its modules there.
TORCHRUN, ACCELERATE, DEEPSPEED = (
    str(Path(sys.executable).parent / name) for name in ("torchrun", "accelerate", "deepspeed")
)
JOB = ROOT / "tests/support/elastic_job.py"
PAIR = A | {"shape": "ax2", "accelerators": 2, "cpus": 4, "memory": "2GB"}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where the ranks leave what they saw."""
    (folder := tmp_path / "out").mkdir()
    return folder


@pytest.fixture(scope="module")
def pair(serve_all: Serve) -> RealServer:
    """With two machines of two devices."""
    server = serve_all([PAIR], FIFO)
    for name in ("n1", "n2"):
        server.start_agent(name, PAIR)
    return server


def launched(server: RealServer, run: str, **more: Any) -> int:
    """The job that a launcher on each machine of the pair makes of a command."""
    return server.submit(run=run, num_nodes=2, nproc_per_node=1, resources={"accelerators": "a:4"}, **more)


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


def test_torchrun_forms_the_world_of_a_gang_over_two_machines(pair: RealServer, tmp_path: Path, out: Path) -> None:
    """Four ranks, each once, and all of them in one all-reduce: without an argument in the command."""
    (script := tmp_path / "world.py").write_text(WORLD)
    pair.until_state(launched(pair, f"{TORCHRUN} {script} {out}"), "SUCCEEDED", 120.0)
    found = {path.name: json.loads(path.read_text()) for path in out.iterdir()}
    assert found == {f"rank-{rank}": [4, rank, rank % 2, 4, 2, rank // 2, rank // 2, 4] for rank in range(4)}


def test_a_job_under_torchrun_saves_resumes_and_is_tried_again_after_its_own_exit_code(
    pair: RealServer, tmp_path: Path, out: Path
) -> None:
    """Stopped for an urgent job it ends with 85 and goes on where it was; a rank's code 7 counts as the job's."""
    server, both = pair, {"accelerators": "a:2"}
    job = server.submit(
        run=f"{TORCHRUN} {JOB} {out}", nproc_per_node=1, resources=both, batch={"global": 16}, steps=39,
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
        run=f"{TORCHRUN} {script}", nproc_per_node=1, resources=both, retry={"max_restarts": 1, "on_exit_codes": [7]}
    )
    server.until_state(failing, "FAILED", 90.0)
    assert [attempt["exit_code"] for attempt in server.job(failing)["attempt_list"]] == [7, 7]
    server.call("POST", f"/jobs/{job}/release")
    server.until_state(job, "SUCCEEDED", 120.0)
    resumed = [json.loads(line)[0] for line in (out / "samples-1-2").read_text().splitlines()]
    assert resumed[0] == server.recorded(job)[-2][1] > 0
    assert resumed[-1] == 38


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


@pytest.mark.skipif(not Path(ACCELERATE).exists(), reason="NOT RUN: accelerate is not installed")
@pytest.mark.parametrize("code", [0, 7])
def test_accelerate_forms_the_world_of_a_gang_with_the_command_of_the_docs(
    pair: RealServer, tmp_path: Path, out: Path, code: int
) -> None:
    """Two machines of two devices: one world of four, each rank once, and the ranks' exit code is the job's."""
    text = (ROOT / "docs/job-spec.md").read_text()
    (command,) = re.findall(r"^  (accelerate launch .*?)$\n  (.*?) train\.py$", text, re.MULTILINE)
    (script := tmp_path / "accelerated.py").write_text(ACCELERATED)
    # Without a GPU, accelerate would run one process unless it is told to act as if there were several.
    words = " ".join(command).replace("accelerate launch", f"{ACCELERATE} launch --multi_gpu --mixed_precision no")
    job = launched(pair, f"{words} {script} {out} {code}")
    pair.until_state(job, "FAILED" if code else "SUCCEEDED", 120.0)
    assert pair.attempt(job)["exit_code"] == code
    found = {path.name: json.loads(path.read_text()) for path in out.iterdir()}
    assert found == {f"rank-{rank}": [4, 4, rank // 2] for rank in range(4)}


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


@pytest.mark.skipif(
    not Path(DEEPSPEED).exists(), reason="NOT RUN: deepspeed is not installed: `make deepspeed` builds it"
)
def test_deepspeed_forms_the_world_of_a_gang_over_two_machines_and_ends_with_its_ranks_code(
    pair: RealServer, tmp_path: Path, out: Path
) -> None:
    """Without an argument about machines, devices or ports."""
    (script := tmp_path / "under.py").write_text(UNDER_DEEPSPEED)
    found = find_spec("deepspeed")
    assert found is not None
    assert found.origin is not None
    envs = {"DS_ACCELERATOR": "cpu", "PYTHONPATH": str(Path(found.origin).parents[1])}
    job = launched(pair, f"deepspeed {script} {out}", envs=envs)
    pair.until_state(job, "FAILED", 200.0)
    assert pair.attempt(job)["exit_code"] == 7
    told = {path.name: path.read_text().split() for path in out.iterdir()}
    assert told == {
        f"rank-{rank}": [str(each) for each in (4, rank, rank % 2, 4, rank // 2, rank // 2)] for rank in range(4)
    }


def submit(server: RealServer, file: Path, *, skypilot: bool = False) -> int:
    fields = spec_mapping(read_job_file(str(file), [], [], [], skypilot=skypilot))
    return server.submit(**{name: value for name, value in fields.items() if name != "workdir"})


def test_the_tasks_of_a_step_form_one_world_over_two_machines(pair: RealServer, tmp_path: Path, out: Path) -> None:
    """Each machine chose a port of its own and its own name as the address; the tasks meet all the same."""
    (world := tmp_path / "world.py").write_text(WORLD)
    (script := tmp_path / "job.sbatch").write_text(
        "#!/bin/bash -e\n#SBATCH -N2 --ntasks-per-node=2 --gres=gpu:a:2\n"
        "export MASTER_PORT=$((20000 + RANDOM)) MASTER_ADDR=$(hostname)\n"
        f"time srun --export=ALL,GROUP_RANK=0 --cpu-bind none {sys.executable} {world} {out} | tee log.txt\n"
        "srun bash -c 'echo task $SLURM_PROCID of $SLURM_NTASKS on $SLURM_NODEID'\n"
        'echo "$(scontrol show hostnames | wc -l) machines"\n'
    )
    job = submit(pair, script)
    pair.until_state(job, "SUCCEEDED", 120.0)
    found = {path.name: json.loads(path.read_text())[:4] for path in out.iterdir()}
    assert found == {f"rank-{rank}": [4, rank, rank % 2, 4] for rank in range(4)}
    logs = pair.log(job, 1, 0) + pair.log(job, 1, 1)
    assert sorted(line for line in logs.splitlines() if line.startswith("task")) == [
        f"task {rank} of 4 on {rank // 2}" for rank in range(4)
    ]
    assert logs.count("2 machines") == 2


def test_a_task_of_skypilot_finds_the_addresses_of_all_machines(pair: RealServer, tmp_path: Path) -> None:
    """`setup` goes on after a command that failed, as SkyPilot's does."""
    (task := tmp_path / "task.yaml").write_text(
        "num_nodes: 2\nresources: {accelerators: {A:2}}\nsetup: |\n  false\n  echo set up\n"
        'run: |\n  false\n  echo "node $SKYPILOT_NODE_RANK sees $(echo "$SKYPILOT_NODE_IPS" | wc -l)"\n'
    )
    job = submit(pair, task, skypilot=True)
    pair.until_state(job, "SUCCEEDED", 120.0)
    logs = [pair.log(job, 1, rank) for rank in (0, 1)]
    assert ["set up" in log for log in logs] == [True, True]
    assert [log.splitlines()[-1] for log in logs] == ["node 0 sees 2", "node 1 sees 2"]


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_step_that_is_stopped_saves_once(pair: RealServer, tmp_path: Path, tasks: int) -> None:
    """The signal reaches each program behind the shells of the script and of srun, and none gets it twice."""
    saving = "print('saved', flush=True), time.sleep(1), sys.exit(0)"
    code = f"import signal, sys, time; signal.signal(15, lambda *_: ({saving}));"
    code += "print('going', flush=True); time.sleep(300)"
    (script := tmp_path / "job.sbatch").write_text(
        f'#!/bin/bash\n#SBATCH --gres=gpu:a:2 -n{tasks} --signal=B:TERM@20\nsrun {sys.executable} -c "{code}"\n'
    )
    job = submit(pair, script)
    pair.until_running(job)
    wait_for(lambda: pair.log(job, 1).count("going") == tasks, 60.0, "the programs run")
    pair.call("POST", f"/jobs/{job}/cancel")
    pair.until_state(job, "CANCELLED", 60.0)
    assert pair.log(job, 1).count("saved") == tasks
