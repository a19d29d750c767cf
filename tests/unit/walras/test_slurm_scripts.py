"""`#SBATCH` lines: read into fields, or named; never silently ignored."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from walras.cli.submit_commands import read_job_file
from walras.errors import JobSpecError
from walras.spec.job_spec import JobSpec
from walras.spec.slurm_scripts import PRELUDE, read_slurm_lines, slurm_seconds
from walras.spec.spec_request import argv_of

TYPICAL = """#!/bin/bash
#SBATCH --job-name=resnet      # a comment
#SBATCH -t 1-12:30:00
#SBATCH --nodes=2 --ntasks-per-node=4
#SBATCH --gres=gpu:a100-40gb:4
#SBATCH --cpus-per-task=8
#SBATCH --mem=256G
#SBATCH -a 1-20%4
#SBATCH --dependency=afterany:12:13
#SBATCH -o logs/%x-%j.out
#SBATCH -p long
#SBATCH --qos=high
#SBATCH --mail-type=END
##SBATCH --nice
srun python train.py --fold $SLURM_ARRAY_TASK_ID
#SBATCH --hold
"""


def read(folder: Path, text: str, **more: Any) -> JobSpec:
    (folder / "job.sbatch").write_text(text)
    return read_job_file(str(folder / "job.sbatch"), [], [], [], **more)


def test_a_typical_script_is_read_and_the_rest_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = read(tmp_path, TYPICAL)
    (demand,) = spec.resources.accelerators
    assert (spec.name, spec.limits.max_runtime, spec.priority) == ("resnet", 131_400.0, 80)
    assert (demand.accelerator, demand.count, spec.num_nodes, spec.nproc_per_node) == ("a100-40gb", 8, 2, "auto")
    assert (spec.resources.cpus, spec.resources.memory) == (8.0, 64 * 2**30)
    assert (spec.array, spec.depends_on, spec.condition) == ("1-20%4", (12, 13), "finished")
    assert (spec.labels, spec.hold, spec.workdir) == ({"partition": "long"}, False, ".")
    notes = capsys.readouterr().err
    for told in (
        "line 10: --output=logs/%x-%j.out: `walras logs",
        "line 11: --partition=long",
        "line 13: --mail-type=END",
    ):
        assert told in notes
    assert len(notes.splitlines()) == 3, notes


def test_strict_refuses_what_is_not_understood(tmp_path: Path) -> None:
    with pytest.raises(JobSpecError, match=r"--output.*2 more lines"):
        read(tmp_path, TYPICAL, strict=True)
    assert read(tmp_path, "#!/bin/bash\n#SBATCH -J x\ntrue\n", strict=True).name == "x"


@pytest.mark.parametrize(
    ("lines", "accelerators", "nodes", "ranks"),
    [
        ("--gpus=4", "any:4", 1, 1),
        ("--gpus=v100:8 -N 2", "v100:8", 2, 1),
        ("--gpus-per-node=2 --nodes=3-3", "any:6", 3, 1),
        ("--gpus-per-task=1 -n 4", "any:4", 1, 1),
        ("-N2", "any:2", 2, "auto"),
        ("-c 16 --mem-per-cpu=2G", "any:1", 1, "auto"),
    ],
)
def test_a_script_without_srun_runs_once_on_each_machine(
    tmp_path: Path, lines: str, accelerators: str, nodes: int, ranks: object
) -> None:
    spec = read(tmp_path, f"#!/bin/bash\n#SBATCH {lines}\npython train.py\n")
    (demand,) = spec.resources.accelerators
    name = "any" if demand.accelerator == "*" else demand.accelerator
    assert (f"{name}:{demand.count}", spec.num_nodes, spec.nproc_per_node) == (accelerators, nodes, ranks)


def test_times_are_slurms() -> None:
    written = {"30": 1800, "2:30": 150, "1:00:00": 3600, "1-0": 86_400, "1-2:30": 95_400, "2-00:00:01": 172_801}
    assert {text: slurm_seconds(text) for text in written} == written
    assert [slurm_seconds(text) for text in ("", "x", "1:2:3:4", "-5")] == [None] * 4


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("--gres=shard:3", "gpu:a100:4"),
        ("--time=soon", "no time"),
        ("--array=0-9999999", "names more than"),
        ("--dependency=singleton", "afterok"),
        ("--qos=gold", "no priority"),
        ("--nodes=2-4", "whole number"),
        ("--mem=lots", "no size"),
        ("--ntasks=3 --gpus=4", "3 on a machine with 4"),
        ("--licenses=x", "not understood"),
        ("-Z", "not understood"),
        ("--job-name", "no value"),
    ],
)
def test_what_cannot_be_done_is_named_with_its_reason(line: str, word: str) -> None:
    reading = read_slurm_lines(f"#!/bin/bash\n#SBATCH {line}\ntrue\n")
    assert len(reading.unread) == 1, reading.unread
    assert word in reading.unread[0]


def test_the_script_finds_slurms_variables_and_an_srun(tmp_path: Path) -> None:
    """Under `set -u`, with options of srun taken out; nothing is put before a script without #SBATCH lines."""
    text = (
        "#!/bin/bash\n#SBATCH -J x\nset -eu\n"
        "srun -n 4 --cpu-bind=none bash -c 'echo $SLURM_PROCID $SLURM_NTASKS $SLURM_ARRAY_TASK_ID'\n"
    )
    spec = read(tmp_path, text)
    walras = {"JOB_ID": "7", "JOB_NAME": "x", "NUM_NODES": "1", "NODE_RANK": "0", "GPUS_PER_NODE": "4"}
    array = {"ARRAY_ID": "5", "ARRAY_INDEX": "3", "ARRAY_COUNT": "9", "ARRAY_MIN": "1", "ARRAY_MAX": "9"}
    env = {f"WALRAS_{name}": value for name, value in (walras | array).items()}
    env |= {"PATH": os.environ["PATH"], "RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "2"}
    done = subprocess.run(argv_of(spec), env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "2 4 3\n"
    (tmp_path / "plain.sh").write_text("true\n")
    assert PRELUDE not in argv_of(read_job_file(str(tmp_path / "plain.sh"), [], [], []))[2]
