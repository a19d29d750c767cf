"""Links with the names of Slurm's commands run ours, and say what they cannot do."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
        ("squeue", "slurm-squeue"),
        ("squeue -V", "--version"),
        ("squeue --me --start", "queue --me --start"),
        ("squeue --me -t running -h", "slurm-squeue --me -t running -h"),
        ("squeue -p gpu", "slurm-squeue -p gpu"),
        ("scancel 12 13_4 14_[1-3]", "cancel --yes 12 13[4] 14[1-3]"),
        ("scancel -uada -n sweep -Q", "cancel --yes --user=ada --name sweep"),
        ("scancel -vv -Qfu ada 5", "cancel --yes --user ada 5"),
        ("scancel --account=lab --state=PENDING", "cancel --yes --project=lab --state=PENDING"),
        ("sinfo --noheader", "nodes --no-header"),
        ("sacct", "slurm-sacct"),
        ("sacct -s failed", "slurm-sacct -s failed"),
        ("sbatch job.sh", "submit --like-sbatch job.sh"),
        ("sbatch --parsable -J deep a.sh", "submit --like-sbatch --quiet --sbatch=--job-name=deep a.sh"),
        ("sbatch --gres=gpu:a100:2 a.sh", "submit --like-sbatch --sbatch=--gres=gpu:a100:2 a.sh"),
        ("sbatch --tim 30 -HN2 job.sh", ""),
        ("sbatch -t 30 -HN2 a", "submit --like-sbatch --sbatch=--time=30 --sbatch=--hold --sbatch=--nodes=2 a"),
        ("sbatch --wait --lenient a.sh --lr 3", "submit --like-sbatch --lenient --wait a.sh -- --lr 3"),
        ("sbatch --dry-run a.sh --strict", "submit --like-sbatch --dry-run a.sh -- --strict"),
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


def test_a_person_at_a_terminal_sees_our_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert words_of_slurm_command("squeue", ["--me"]) == ["queue", "--me"]
    assert words_of_slurm_command("sacct", []) == ["queue", "--all"]


@pytest.mark.parametrize(
    ("typed", "refused"),
    [("scancel -p gpu", "-p"), ("scancel -s USR1 12", "-s"), ("scancel -wn1", "-w"), ("scancel --me=ada", "--me=ada"),
     ("sinfo -hN", "-N"), ("sinfo -o %T", "-o"), ("sinfo -p a", "-p")],
)  # fmt: skip
def test_an_option_that_means_something_else_is_refused(typed: str, refused: str) -> None:
    """`walras cancel -p gpu` cancels jobs of the project gpu."""
    name, *words = typed.split()
    with pytest.raises(UserError, match=f"{name}: {refused} is not obeyed here"):
        words_of_slurm_command(name, words)


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
        ("train.py", ["./train.py", "--lr", ".3"], "walras submit train.py -- --lr .3"),
        ("train.py", ["conda", "run", "python", "train.py"], "walras submit -- conda run python train.py"),
        ("train.py", ["A=1", "python", "train.py"], "walras submit -- env A=1 python train.py"),
        ("job.sh", ["sbatch", "job.sh"], "walras submit -- sbatch job.sh"),
        ("train.py", ["A=1", "uv", "run", "-q", "train.py"], "walras submit -- env A=1 uv run -q train.py"),
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
    for line in ("--lr .3", f"--entry {file}", f"lr=.3 --entry {file}", f"copy {file}", f"lr=.3 other/{file}"):
        arguments = line.split()
        assert list(argv_of(read_job_file(file, arguments, [], [])))[-len(arguments) :] == arguments


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
    result = CliRunner().invoke(app, ["admin", "slurm-links", str(tmp_path / "links")])
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
        assert CliRunner().invoke(app, ["admin", "slurm-links", str(links)]).exit_code == 0
    (links / "sinfo").unlink()
    (links / "sinfo").write_text("Slurm's own")
    assert CliRunner().invoke(app, ["admin", "slurm-links", str(links)]).exit_code == 2
    assert (links / "sinfo").read_text() == "Slurm's own"


Run = Callable[..., Any]


@pytest.fixture
def jobs(fake: Any) -> Any:
    for name, user, state in (
        ("first", "ada", "RUNNING"), ("second", "ada", "PENDING"), ("third", "bob", "PENDING"),
        ("fourth", "ada", "FAILED"), ("fifth", "ada", "SUCCEEDED"), ("sixth", "ada", "HELD"),
    ):  # fmt: skip
        spec = {"run": "x", "limits": {"max_runtime": 3600.0}, "num_nodes": 2}
        fake.add(name=name, user=user, state=state, spec=spec, labels={"partition": "gpu"})
    return fake


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["slurm-squeue", "-h", "-o", "%i %T", "-j", "1"], ["1 RUNNING"]),
        (["slurm-squeue", "-h", "-j1,2,3,4", "-o", "%t%u"], ["Rada", "PDada", "PDbob"]),
        (["slurm-squeue", "-u", "bob", "--format=%A|%j|%D|%l"], ["JOBID|NAME|NODES|TIME_LIMIT", "3|third|2|1:00:00"]),
        (["slurm-squeue", "-h", "-t", "PENDING", "-o", "[%.4i][%3j]"], ["[   2][sec]", "[   3][thi]", "[   6][six]"]),
        (["slurm-squeue", "-h", "-O", "JobID:4,State:8", "-j", "6"], ["6   PENDING "]),
        (["slurm-squeue", "-h", "-j", "4"], []),
        (["slurm-squeue", "-h", "-p", "debug,gpu", "-u", "bob,eve", "-t", "PD", "-o", "%i"], ["3"]),
        (["slurm-squeue", "-h", "-p", "debug", "-a"], []),
        (["slurm-squeue", "-h", "-n", "fourth,second", "-o", "%j"], ["second"]),
        (
            ["slurm-squeue", "-h", "-l", "-j", "1"],
            ["                 1       gpu    first      ada  RUNNING       0:00   1:00:00      2 "],
        ),
        (["slurm-sacct", "-j", "5.batch", "-n", "-o", "JobID%-8"], ["5       "]),
        (["slurm-sacct", "-A", "none", "-a", "-n"], []),
        (["slurm-squeue", "-h", "-r", "-j", "2", "-o", "%R"], ["(WAIT:CAPACITY)"]),
        (["slurm-sacct", "-j", "4,5", "-o", "JobID,State", "-n", "-P"], ["4|FAILED", "5|COMPLETED"]),
        (["slurm-sacct", "-j", "5", "-X", "--format=State%12,JobName", "-n"], ["   COMPLETED      fifth"]),
        (["slurm-sacct", "-j", "4", "-p", "-b"], ["JobID|State|ExitCode|", "4|FAILED|0:0|"]),
        (["slurm-sacct", "-u", "ada", "-s", "F,CD", "-nPo", "jobid"], ["4", "5"]),
    ],
)
def test_columns_are_slurms(run: Run, jobs: Any, words: list[str], lines: list[str]) -> None:
    result = run(*words)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == lines


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["slurm-squeue", "-o", "%Y"], "no column %Y"),
        (["slurm-sacct", "-o", "MaxRSS"], "no column 'MaxRSS'"),
        (["slurm-squeue", "-t", "SLEEPING"], "SLEEPING is no state"),
        (["slurm-squeue", "-j", "x"], "no numbers of jobs"),
    ],
)
def test_what_is_not_known_is_refused_by_name(run: Run, jobs: Any, words: list[str], word: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert word in result.output


def test_sbatch_answers_as_scripts_read_it(run: Run, fake: Any) -> None:
    """`sbatch job.sh | awk '{print $4}'`; with --parsable the number alone; a name may be of any letters."""
    Path("job.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:1\ntrue\n")
    assert run("submit", "--like-sbatch", "job.sh").stdout == "Submitted batch job 1\n"
    assert run("submit", "--like-sbatch", "--quiet", "--wrap=true", "wrap").stdout == "2\n"
    assert run("submit", "--name", "🚀 é 中", "job.sh", "-q").stdout == "3\n"
    assert fake.jobs[3]["spec"]["name"] == "🚀 é 中"
