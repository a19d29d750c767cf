"""Links with the names of Slurm's commands run ours, and say what they cannot do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import walras.cli.operator_commands as setup
from walras.cli.job_files import read_job_file
from walras.cli.main import app
from walras.cli.operator_commands import words_of_slurm_command
from walras.errors import JobSpecError, UserError
from walras.spec.spec_request import argv_of, env_of

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        ("squeue", "queue"),
        ("squeue --me -t running -h", "queue --me --state running --no-header"),
        ("squeue --states=PENDING", "queue --state=PENDING"),
        ("scancel 12", "cancel --yes 12"),
        ("scancel -u ada -n sweep", "cancel --yes -u ada --name sweep"),
        ("sinfo --noheader", "nodes --no-header"),
        ("sacct -s failed", "jobs --state failed"),
        ("sbatch job.sh", "submit --like-sbatch job.sh"),
        ("sbatch --parsable -J deep a.sh", "submit --like-sbatch --quiet --sbatch=--job-name=deep a.sh"),
        ("sbatch --gres=gpu:a100:2 a.sh", "submit --like-sbatch --sbatch=--gres=gpu:a100:2 a.sh"),
        ("sbatch --tim 30 -HN2 job.sh", ""),
        ("sbatch -t 30 -HN2 a", "submit --like-sbatch --sbatch=--time=30 --sbatch=--hold --sbatch=--nodes=2 a"),
        ("sbatch --wait --lenient a.sh --lr 3", "submit --like-sbatch --lenient --wait a.sh -- --lr 3"),
        ("sbatch --wrap hostname -n2", "submit --like-sbatch --sbatch=--ntasks=2 --wrap=hostname wrap"),
        ("sbatch -", "submit --like-sbatch -"),
        ("sbatch", "submit --like-sbatch -"),
        ("squeue -h -o %T -j 12", "slurm-squeue -h -o %T -j 12"),
        ("sacct -j 12 --format=State -n", "slurm-sacct -j 12 --format=State -n"),
    ],
)  # fmt: skip
def test_a_command_line_of_slurm_becomes_ours(typed: str, ours: str) -> None:
    name, *words = typed.split()
    if not ours:
        with pytest.raises(UserError, match="may be --time, --time-min"):
            words_of_slurm_command(name, words)
        return
    assert words_of_slurm_command(name, words) == ours.split()


def test_other_names_are_left_alone() -> None:
    assert words_of_slurm_command("walras", ["queue"]) is None


def test_a_script_beside_wrap_is_refused() -> None:
    with pytest.raises(UserError, match="beside --wrap"):
        words_of_slurm_command("sbatch", ["--wrap=hostname", "job.sh"])


def run(arguments: list[str], folder: Path) -> str:
    """What the job of a script with arguments prints."""
    spec = read_job_file(str(folder / "job.sh"), arguments, [], [], sbatch=[])
    env = {"PATH": os.environ["PATH"], "WALRAS_JOB_ID": "7", "WALRAS_JOB_NAME": spec.name, "WALRAS_MASTER_ADDR": "a"}
    return subprocess.run(argv_of(spec), env=env | env_of(spec), capture_output=True, text=True, check=True).stdout


def test_a_script_gets_its_arguments_and_slurms_commands_without_any_line_of_slurm(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text('#!/bin/sh\necho "$# $2"\nsrun echo task\n')
    assert run(["--lr", "a b"], tmp_path) == "2 a b\ntask\n"


def test_a_line_is_wrapped_in_a_script_of_sh() -> None:
    spec = read_job_file("wrap", [], [], [], sbatch=["--gres=gpu:2"], wrap='srun echo "$SLURM_JOB_NAME"')
    assert (spec.name, spec.resources.accelerators[0].count) == ("wrap", 2)
    assert argv_of(spec)[-1].startswith("#!/bin/sh\n")


@pytest.mark.parametrize(
    ("file", "words", "fix"),
    [
        ("train.py", ["python", "train.py"], "walras submit train.py"),
        ("train.py", ["python3", "-u", "train.py", "--lr", ".3"], "walras submit train.py -- --lr .3"),
        ("train.py", ["torchrun", "train.py"], "walras submit -- torchrun train.py"),
        ("job.sh", ["bash", "job.sh"], "walras submit -- bash job.sh"),
    ],
)
def test_a_program_behind_a_script_is_refused_with_what_was_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, words: list[str], fix: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / file).write_text("#!/bin/sh\n")
    with pytest.raises(JobSpecError) as refused:
        read_job_file(file, words, [], [])
    assert refused.value.fix == fix
    spec = read_job_file("train.py" if file == "train.py" else file, ["--lr", ".3"], [], [])
    assert argv_of(spec)[-2:] == ("--lr", ".3")


def test_a_python_script_with_lines_of_slurm_is_one_of_slurm(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("#!/usr/bin/env python3\n#SBATCH --gres=gpu:4\nprint(1)\n")
    spec = read_job_file(str(tmp_path / "train.py"), [], [], [])
    assert spec.resources.accelerators[0].count == 4


def test_options_of_the_command_line_override_those_of_the_script(tmp_path: Path) -> None:
    """As with `sbatch`: the line says 2 devices and a name, the command line others."""
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH -J old --gres=gpu:2\n#SBATCH --time=5\necho done\n")
    spec = read_job_file(str(script), [], [], [], sbatch=["-Jnew", "--gres=gpu:v100:4"])
    assert spec.name == "new"
    assert spec.limits.max_runtime == 300
    assert "v100" in str(spec.resources.accelerators)


def test_an_option_that_means_nothing_is_told_of_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\necho done\n")
    read_job_file(str(script), [], [], [], sbatch=["--reservation=ours"], strict=False)
    assert "command line: --reservation=ours: no machine is chosen" in capsys.readouterr().err
    with pytest.raises(JobSpecError):
        read_job_file(str(script), [], [], [], sbatch=["--reservation=ours"])


def test_options_of_sbatch_want_a_script(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("run: echo\n")
    with pytest.raises(JobSpecError, match="no script"):
        read_job_file(str(tmp_path / "job.yaml"), [], [], [], sbatch=["-Jnew"])


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `walras` as an installation has it."""
    path = tmp_path / "bin/walras"
    path.parent.mkdir()
    path.write_text(f"#!{sys.executable}\nfrom walras.cli.main import main\nmain()\n")
    path.chmod(0o755)
    monkeypatch.setattr(setup, "_own_program", lambda: path)
    return path


def test_links_run_the_command_that_they_stand_for(tmp_path: Path, program: Path) -> None:
    result = CliRunner().invoke(app, ["slurm-links", str(tmp_path / "links")])
    assert result.exit_code == 0, result.output
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    for name, told in (("squeue", "Usage: squeue queue"), ("sinfo", "Usage: sinfo nodes")):
        done = subprocess.run(
            [tmp_path / "links" / name, "--help"], env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert told in done.stdout
    refused = subprocess.run(
        [tmp_path / "links/sbatch", "--tim=5", "a.sh"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == 2
    assert "may be --time" in refused.stderr


def test_links_are_renewed_and_nobody_elses_file_is_touched(tmp_path: Path, program: Path) -> None:
    links = tmp_path / "links"
    for _ in range(2):
        assert CliRunner().invoke(app, ["slurm-links", str(links)]).exit_code == 0
    (links / "sinfo").unlink()
    (links / "sinfo").write_text("Slurm's own")
    assert CliRunner().invoke(app, ["slurm-links", str(links)]).exit_code == 2
    assert (links / "sinfo").read_text() == "Slurm's own"
