"""Small Slurm scripts give Slurm's output: it is stated in `slurm_case_scripts.yaml`, and asked of a real one."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.slurm_cluster import SlurmCluster, slurm_cluster
from walras.cli.job_files import read_job_file
from walras.spec.job_spec import JobSpec
from walras.spec.spec_request import argv_of, env_of

CASES = yaml.safe_load((Path(__file__).parents[2] / "support/slurm_case_scripts.yaml").read_text())
NODES = ("one", "two")


def lines(case: dict[str, Any], output: str) -> list[str]:
    found = output.strip().splitlines()
    return sorted(found) if "nodes" in case else found


def environment(spec: JobSpec, node: int) -> dict[str, str]:
    """What an agent gives a rank, as far as a script may read it."""
    names = NODES[: spec.num_nodes]
    gpus = spec.resources.accelerators[0].count // spec.num_nodes
    env = {"JOB_ID": "7", "JOB_NAME": spec.name, "NUM_NODES": str(len(names)), "NODE_RANK": str(node)}
    env |= {"GPUS_PER_NODE": str(gpus), "MASTER_ADDR": "one", "NODE_ADDRESSES": ",".join(names)}
    told = {f"WALRAS_{name}": value for name, value in env.items()}
    own = {"PATH": f"{os.environ['PATH']}", "HOME": os.environ["HOME"], "MASTER_ADDR": "one", "MASTER_PORT": "2950"}
    return {**own, **told, **env_of(spec)}


def run_ours(case: dict[str, Any], folder: Path, **options: Any) -> tuple[str, int]:
    """The output of all machines, and the highest exit code."""
    (folder / "case.sbatch").write_text(case["script"])
    spec = read_job_file(str(folder / "case.sbatch"), [], [], [], **options)
    if spec.array is not None:
        spec = spec.model_copy(update={"array_index": int(spec.array.partition("-")[0])})
    output, codes = "", []
    for node in range(spec.num_nodes):
        work = folder / NODES[node]
        work.mkdir()
        done = subprocess.run(
            argv_of(spec), env=environment(spec, node), cwd=work, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=60, check=False,
        )  # fmt: skip
        output += done.stdout
        codes.append(done.returncode)
    return output, max(codes)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_script_gives_the_output_of_slurm(case: dict[str, Any], tmp_path: Path) -> None:
    output, code = run_ours(case, tmp_path)
    assert lines(case, output) == lines(case, case["output"])
    assert code == case.get("code", 0)


@pytest.mark.parametrize(
    "text",
    [
        "#!/bin/bash -l\n#SBATCH -n1\n",
        "#!/bin/bash -leu\n#SBATCH -n1\n",
        "#!/bin/bash\n#SBATCH -n1\nsource /etc/profile\n",
        "#!/bin/bash\n#SBATCH -n1\nPATH=/usr/bin:/bin\n",
    ],
)
def test_srun_is_found_where_a_script_has_a_path_of_its_own(text: str, tmp_path: Path) -> None:
    """A login shell begins with one, /etc/profile sets one; an installed Slurm is in all of them."""
    body = (
        "srun echo step | cat\nbash -lc 'srun echo nested'\nscontrol show hostnames\n"
        "(srun sleep 60 & kill $!; wait $! || echo $?)\nnone 2>&1 | grep -o 'line .*' || true\n"
    )
    line = text.count("\n") + 5
    output = f"step\nnested\none\n143\nline {line}: none: command not found\n"
    assert run_ours({"script": text + body}, tmp_path) == (output, 0)


def test_a_job_leaves_no_file_behind(tmp_path: Path) -> None:
    """Nor one of a job that was killed; but of one that starts at the same time it leaves all."""
    case = {"script": "#!/bin/bash\n#SBATCH -n2\necho $TMPDIR\nsrun echo task\n"}
    (tmp_path / "tmp").mkdir()
    case["script"] = case["script"].replace("-n2", f"-n2 --export=TMPDIR={tmp_path}/tmp")
    for name, process in {"killed": "999999999\n", "starting": ""}.items():
        (tmp_path / f"tmp/walras-job-{name}").mkdir()
        (tmp_path / f"tmp/walras-job-{name}/process").write_text(process)
    assert run_ours(case, tmp_path) == (f"{tmp_path}/tmp\ntask\ntask\n", 0)
    assert [each.name for each in (tmp_path / "tmp").iterdir()] == ["walras-job-starting"]


def test_what_a_relative_file_gets_is_in_the_log_too(tmp_path: Path) -> None:
    """The folder goes when the job ends; `walras logs` is where people look."""
    script = "#!/bin/bash\n#SBATCH -n2\nsrun -l -o %t.txt echo hi\ncat 0.txt 1.txt\n"
    assert run_ours({"script": script}, tmp_path)[0].splitlines() in (
        ["0: hi", "1: hi"] * 2,
        ["1: hi", "0: hi", "0: hi", "1: hi"],
    )


def test_a_task_that_fails_ends_the_others_where_the_step_says_so(tmp_path: Path) -> None:
    step = "if [ $SLURM_PROCID = 0 ]; then exit 3; else exec sleep 300; fi"
    script = f"#!/bin/bash\n#SBATCH -n2\nsrun -K bash -c '{step}' 2> /dev/null\necho $?\n"
    assert run_ours({"script": script}, tmp_path) == ("143\n", 0)


def test_a_step_that_waits_for_its_last_task_leaves_the_pipe_with_it(tmp_path: Path) -> None:
    script = "#!/bin/bash\n#SBATCH -n2\nsrun --wait=300 echo task | sort\n"
    assert run_ours({"script": script}, tmp_path) == ("task\ntask\n", 0)


@pytest.mark.parametrize(
    ("options", "step", "code"),
    [("-n2", "-n4", 1), ("-n2", "-n2 -c2", 1), ("-n2", "-n4 -O", 0), ("-n2 -c2", "-n4", 0), ("--gres=gpu:2", "-n2", 0)],
)
def test_a_step_has_no_more_tasks_than_the_job_has_cores(options: str, step: str, code: int, tmp_path: Path) -> None:
    """Where the script says how many tasks it has; as Slurm, by the same words."""
    case = {"script": f"#!/bin/bash\n#SBATCH {options}\nsrun {step} echo task\n"}
    output, found = run_ours(case, tmp_path)
    assert (found, "More processors requested than permitted" in output) == (code, code == 1)
    assert output.count("task\n") == (0 if code else int(step[2]))


def test_steps_share_the_accelerators_that_they_ask_for(tmp_path: Path) -> None:
    """Two steps with one each at once have two; a third waits for a free one; a step that asks for none has none."""
    script = (
        "#!/bin/bash\n#SBATCH --gres=gpu:2 -n2\n"
        "export CUDA_VISIBLE_DEVICES=4,6\n"
        "step() { srun -n1 --gres=gpu:$1 bash -c 'echo [$CUDA_VISIBLE_DEVICES]; [ -z \"$0\" ] || sleep 0.2' $2; }\n"
        "(step 1 x & step 1 x & step 1 x & wait) 2> /dev/null | sort | uniq -c | tr -s ' '\nstep 0\nstep 2\n"
        "srun --gpus-per-task=1 bash -c 'echo $CUDA_VISIBLE_DEVICES' | sort\n"
    )
    output, code = run_ours({"script": script}, tmp_path)
    assert code == 0
    first = output.splitlines()
    assert sorted(first[:2]) in ([" 1 [4]", " 2 [6]"], [" 1 [6]", " 2 [4]"])
    assert first[2:] == ["[]", "[4,6]", "4", "6"]


@pytest.mark.parametrize(("job", "step", "count"), [("--gres=gpu:2", "--gres=gpu:1", 40), ("--gpus-per-task=1", "", 4)])
def test_many_steps_never_have_one_accelerator_at_once(job: str, step: str, count: int, tmp_path: Path) -> None:
    """Those that wait find the claims of steps that have ended all at the same moment."""
    script = (
        f"#!/bin/bash\n#SBATCH {job} -n2\nexport CUDA_VISIBLE_DEVICES=4,6\n"
        f"for i in {{1..{count}}}; do srun -n1 --exact {step} bash -c 'mkdir gpu-$CUDA_VISIBLE_DEVICES && sleep 0.02"
        " && rmdir gpu-$CUDA_VISIBLE_DEVICES && echo alone' 2> /dev/null & done; wait\n"
    )
    assert run_ours({"script": script}, tmp_path) == ("alone\n" * count, 0)


@pytest.mark.parametrize(
    ("job", "step", "seen"),
    [
        ("--gres=gpu:2", "", "0=4,6 1=4,6"), ("--gpus-per-task=1", "", "0=4 1=6"),
        ("--gpus-per-task=1 --gpu-bind=none", "", "0=4,6 1=4,6"),
        ("--gpus-per-task=1", "--gpu-bind=none", "0=4,6 1=4,6"),
        ("--gres=gpu:2", "--gpu-bind=map_gpu:1,0", "0=6 1=4"), ("--gres=gpu:2 --gpu-bind=single:1", "", "0=4 1=6"),
        ("--gres=gpu:2", "--gpu-bind=single:2", "0=4 1=4"), ("--gres=gpu:2", "--gpus-per-task=1", "0=4 1=6"),
        ("--gpus-per-task=1 --gpu-bind=verbose,closest", "", "0=4 1=6"), ("--gpus=2 --ntasks-per-gpu=1", "", "0=4 1=6"),
    ],
)  # fmt: skip
def test_a_task_sees_the_accelerators_that_are_bound_to_it(job: str, step: str, seen: str, tmp_path: Path) -> None:
    tasks = "" if "ntasks-per-gpu" in job else "-n2"
    script = (
        f"#!/bin/bash\n#SBATCH {job} {tasks}\nexport CUDA_VISIBLE_DEVICES=4,6\n"
        f"echo $(srun {step} bash -c 'echo $SLURM_LOCALID=$CUDA_VISIBLE_DEVICES' | sort)\n"
    )
    assert run_ours({"script": script}, tmp_path) == (f"{seen}\n", 0)


@pytest.mark.parametrize(
    ("seen", "step", "told"),
    [
        ("4,6", "--gpu-bind=map_gpu:0*4,1*4", "is not obeyed"), ("4,6", "--gpu-bind=map_gpu:1,", "is not obeyed"),
        ("4,6", "--gpu-bind=map_gpu:2", "leaves task 0 no"), ("4,6", "--gpu-bind=per_task:2", "leaves task 1 no"),
        ("4,6", "--gpu-bind=per_task:1+1", "is not obeyed"), ("4,6", "--gpu-bind=single:0", "is not obeyed"),
        ("4", "--gpus=1", "CUDA_VISIBLE_DEVICES=4 leaves out"),
    ],
)  # fmt: skip
def test_accelerators_that_a_task_cannot_have_are_refused(seen: str, step: str, told: str, tmp_path: Path) -> None:
    script = f"#!/bin/bash\n#SBATCH --gres=gpu:2 -n2\nexport CUDA_VISIBLE_DEVICES={seen}\nsrun {step} true\n"
    output, code = run_ours({"script": script}, tmp_path)
    assert code == 1
    assert told in output


def test_a_process_that_has_the_number_of_a_step_that_ended_holds_nothing(tmp_path: Path) -> None:
    script = "#!/bin/bash\n#SBATCH -n1\necho $$.1 > $WALRAS_SLURM/core.0\nsrun echo task\nsrun echo next\n"
    assert run_ours({"script": script}, tmp_path) == ("task\nnext\n", 0)


def test_a_step_that_cannot_be_fails_the_job_although_the_script_goes_on(tmp_path: Path) -> None:
    """`srun ... | tee` hides the step's exit code; the options stand in a variable, where no reader finds them."""
    script = "#!/bin/bash\n#SBATCH -n1\nOPTIONS=--container=x\nsrun $OPTIONS true | tee log\necho went on\n"
    output, code = run_ours({"script": script}, tmp_path)
    assert code == 1
    assert "went on" in output
    assert "--container is not obeyed here" in output


@pytest.mark.parametrize("first", ["#!/bin/bash", "#!/bin/bash -l"])
def test_a_command_that_nothing_is_done_for_fails_the_job_wherever_it_is_called(first: str, tmp_path: Path) -> None:
    """The text of a here-document is read by no reader before it runs; `--lenient` goes on without it."""
    script = f"{first}\n#SBATCH -n1\nbash << END\nsbatch next.sh\nEND\necho went on\n"
    output, code = run_ours({"script": script}, tmp_path)
    assert code == 1
    assert "went on" in output
    assert "the script ended well, but this was not done: sbatch: a job cannot submit another one here" in output
    (tmp_path / "one").rmdir()
    output, code = run_ours({"script": script}, tmp_path, strict=False)
    assert (output.splitlines()[-1], code) == ("went on", 0)


@pytest.mark.parametrize("names", ["n[1-2", "n[3-1]", "n[1-]", "n[-1]", "n[1,,2]", "m,n[2-1]"])
def test_names_of_machines_that_are_none_are_refused(names: str, tmp_path: Path) -> None:
    """Names would be missing, and a script takes the first line for its address."""
    script = f"#!/bin/bash\n#SBATCH -n1\nexport MASTER_ADDR=$(scontrol show hostnames '{names}' | head -n1)\n"
    output, code = run_ours({"script": script}, tmp_path)
    assert code == 1
    assert "Invalid hostlist: " + names.removeprefix("m,") in output


def test_a_job_that_queues_itself_again_ends_with_that_code(tmp_path: Path) -> None:
    script = "#!/bin/bash\n#SBATCH -n1\nscontrol requeue $SLURM_JOB_ID\nsleep 300\n"
    assert run_ours({"script": script}, tmp_path)[1] == 85


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    with slurm_cluster() as cluster:
        yield cluster


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_real_slurm_gives_the_output_that_is_stated(case: dict[str, Any], slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "case.sbatch").write_text(case["script"])
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    done = subprocess.run(
        [slurm.bin / "sbatch", "--wait", "--output=all.txt", "case.sbatch"],
        env=env | {"PATH": f"{slurm.bin}:{env['PATH']}"}, cwd=tmp_path, capture_output=True, text=True, timeout=90,
        check=False,
    )  # fmt: skip
    output = (tmp_path / "all.txt").read_text()
    # A step that begins while the one before it ends waits a moment, and says so.
    output = re.sub(r"srun: (?:Job|Step) .*(?:retrying|created for).*\n", "", output)
    assert lines(case, output) == lines(case, case["output"]), done.stderr
    assert done.returncode == case.get("code", 0)
