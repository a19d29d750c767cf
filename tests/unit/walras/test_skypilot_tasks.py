"""SkyPilot's tasks: what their commands find when they run. What is read and refused is in `skypilot_corpus.yaml`."""

import subprocess
from pathlib import Path

import pytest

from walras.cli.job_files import read_job_file
from walras.errors import JobSpecError
from walras.spec.job_spec import JobSpec
from walras.spec.spec_request import argv_of

TASK = """
name: resnet
resources: {accelerators: "A100-80GB:4", cpus: 32+, memory: 256+, cloud: aws, disk_size: 100}
num_nodes: 2
workdir: .
envs: {LR: 0.1}
setup: |
  false
  if [ $? -ne 0 ]; then echo making it; fi
run: |
  false
  echo "$LINENO $SKYPILOT_NODE_RANK of $SKYPILOT_NUM_NODES with $SKYPILOT_NUM_GPUS_PER_NODE"
  echo "$SKYPILOT_NODE_IPS" | head -n1
  echo "$SKYPILOT_NODE_IPS" | wc -l
  echo "$nothing_of_that_name"
"""


def read(folder: Path, text: str) -> JobSpec:
    (folder / "task.yaml").write_text(text)
    return read_job_file(str(folder / "task.yaml"), [], [], [], skypilot=True)


def test_a_task_becomes_a_job_and_the_rest_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Accelerators of a machine become those of the gang; cores and memory those of an accelerator."""
    spec = read(tmp_path, TASK)
    (demand,) = spec.resources.accelerators
    assert (spec.name, demand.accelerator, demand.count, spec.num_nodes) == ("resnet", "a100-80gb", 8, 2)
    assert (spec.resources.cpus, spec.resources.memory, spec.nproc_per_node) == (8.0, 64 * 10**9, 1)
    assert (spec.workdir, spec.envs) == (".", {"LR": "0.1"})
    told = capsys.readouterr().err
    assert [line.split(": ")[1] for line in told.splitlines()] == ["resources.cloud", "resources.disk_size"]
    with pytest.raises(JobSpecError, match=r"file_mounts.*\n.*service"):
        read(tmp_path, f"{TASK}file_mounts: {{/data: x}}\nservice: {{}}\n")


@pytest.mark.parametrize(
    ("addresses", "lines"),
    [("10.0.0.1,10.0.0.2", ["2 1 of 2 with 4", "10.0.0.1", "2", ""]), ("", ["2 1 of 2 with 4", "10.0.0.9", "1", ""])],
)
def test_its_commands_run_as_skypilots_do(tmp_path: Path, addresses: str, lines: list[str]) -> None:
    """A failed command ends nothing; lines are those of the text. An agent of an older release tells no addresses."""
    spec = read(tmp_path, TASK)
    env = {
        "WALRAS_NODE_RANK": "1", "WALRAS_NUM_NODES": "2", "WALRAS_GPUS_PER_NODE": "4", "WALRAS_JOB_ID": "7",
        "MASTER_ADDR": "10.0.0.9", "WALRAS_NODE_ADDRESSES": addresses, "PATH": "/usr/bin:/bin",
    }  # fmt: skip
    done = subprocess.run(argv_of(spec), env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == lines
    assert spec.setup is not None
    line = ["bash", "-euo", "pipefail", "-c", spec.setup]
    assert subprocess.run(line, env=env, capture_output=True, text=True, check=True).stdout == "making it\n"


def test_conda_activates_as_in_a_login_shell(tmp_path: Path) -> None:
    """SkyPilot's shells read start files, which make `conda` a function; a task that names no conda asks for none."""
    (tmp_path / "conda").write_text("#!/bin/sh\necho 'conda() { echo \"$*\"; }'\n")
    (tmp_path / "conda").chmod(0o755)
    spec = read(tmp_path, "resources: {accelerators: L4}\nsetup: echo conda\nrun: conda activate own\n")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert subprocess.run(argv_of(spec), env=env, capture_output=True, text=True, check=True).stdout == "activate own\n"
    assert "shell.bash hook" not in str(spec.setup)
