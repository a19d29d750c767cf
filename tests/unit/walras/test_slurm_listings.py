"""`squeue` and `sacct` in Slurm's columns, as scripts read them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from walras.cli.main import app

Run = Callable[..., Any]


@pytest.fixture
def run(fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `walras ARGS` as ada against the fake server."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token").write_text("walras_user_secret\n")
    settings = {"WALRAS_SERVER": fake.url, "WALRAS_TOKEN_FILE": str(tmp_path / "token"), "HOME": str(tmp_path)}
    return lambda *args, stdin=None: CliRunner().invoke(app, list(args), input=stdin, env=settings)


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
