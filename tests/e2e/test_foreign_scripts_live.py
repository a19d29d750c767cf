"""Scripts of Slurm and tasks of SkyPilot on real agents: one world over two machines, and what their commands find."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_launchers_live import PAIR, WORLD
from tests.support.real_server import FIFO, RealServer, wait_for
from walras.cli.job_files import read_job_file
from walras.spec.job_spec import spec_mapping

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealServer]:
    server = RealServer(tmp_path, [PAIR], FIFO).start()
    yield server
    server.close()


def submit(server: RealServer, file: Path, *, skypilot: bool = False) -> int:
    fields = spec_mapping(read_job_file(str(file), [], [], [], skypilot=skypilot))
    return server.submit(**{name: value for name, value in fields.items() if name != "workdir"})


def test_the_tasks_of_a_step_form_one_world_over_two_machines(server: RealServer, tmp_path: Path) -> None:
    """Each machine chose a port of its own and its own name as the address; the tasks meet all the same."""
    out = tmp_path / "out"
    out.mkdir()
    (world := tmp_path / "world.py").write_text(WORLD)
    (script := tmp_path / "job.sbatch").write_text(
        "#!/bin/bash -e\n#SBATCH -N2 --ntasks-per-node=2 --gres=gpu:a:2\n"
        "export MASTER_PORT=$((20000 + RANDOM)) MASTER_ADDR=$(hostname)\n"
        f"time srun --export=ALL,GROUP_RANK=0 --cpu-bind none {sys.executable} {world} {out} | tee log.txt\n"
        "srun bash -c 'echo task $SLURM_PROCID of $SLURM_NTASKS on $SLURM_NODEID'\n"
        'echo "$(scontrol show hostnames | wc -l) machines"\n'
    )
    for name in ("n1", "n2"):
        server.start_agent(name, PAIR)
    job = submit(server, script)
    server.until_state(job, "SUCCEEDED", 120.0)
    found = {path.name: json.loads(path.read_text())[:4] for path in out.iterdir()}
    assert found == {f"rank-{rank}": [4, rank, rank % 2, 4] for rank in range(4)}
    logs = server.log(job, 1, 0) + server.log(job, 1, 1)
    assert sorted(line for line in logs.splitlines() if line.startswith("task")) == [
        f"task {rank} of 4 on {rank // 2}" for rank in range(4)
    ]
    assert logs.count("2 machines") == 2


def test_a_task_of_skypilot_finds_the_addresses_of_all_machines(server: RealServer, tmp_path: Path) -> None:
    """`setup` goes on after a command that failed, as SkyPilot's does."""
    (task := tmp_path / "task.yaml").write_text(
        "num_nodes: 2\nresources: {accelerators: {A:2}}\nsetup: |\n  false\n  echo set up\n"
        'run: |\n  false\n  echo "node $SKYPILOT_NODE_RANK sees $(echo "$SKYPILOT_NODE_IPS" | wc -l)"\n'
    )
    for name in ("n1", "n2"):
        server.start_agent(name, PAIR)
    job = submit(server, task, skypilot=True)
    server.until_state(job, "SUCCEEDED", 120.0)
    logs = [server.log(job, 1, rank) for rank in (0, 1)]
    assert ["set up" in log for log in logs] == [True, True]
    assert [log.splitlines()[-1] for log in logs] == ["node 0 sees 2", "node 1 sees 2"]


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_step_that_is_stopped_saves_once(server: RealServer, tmp_path: Path, tasks: int) -> None:
    """The signal reaches each program behind the shells of the script and of srun, and none gets it twice."""
    saving = "print('saved', flush=True), time.sleep(1), sys.exit(0)"
    code = f"import signal, sys, time; signal.signal(15, lambda *_: ({saving}));"
    code += "print('going', flush=True); time.sleep(300)"
    (script := tmp_path / "job.sbatch").write_text(
        f'#!/bin/bash\n#SBATCH --gres=gpu:a:2 -n{tasks} --signal=B:TERM@20\nsrun {sys.executable} -c "{code}"\n'
    )
    server.start_agent("n1", PAIR)
    job = submit(server, script)
    server.until_running(job)
    wait_for(lambda: server.log(job, 1).count("going") == tasks, 60.0, "the programs run")
    server.call("POST", f"/jobs/{job}/cancel")
    server.until_state(job, "CANCELLED", 60.0)
    assert server.log(job, 1).count("saved") == tasks
