"""Links with the names of Slurm's commands run ours, and say what they cannot do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import walras.cli.setup_commands as setup
from walras.cli.main import app
from walras.cli.setup_commands import words_of_slurm_command
from walras.cli.submit_commands import read_job_file
from walras.errors import JobSpecError, UserError

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
        ("sbatch job.sh", "submit job.sh"),
        ("sbatch --parsable -J deep a.sh", "submit --quiet --sbatch=-Jdeep a.sh"),
        ("sbatch --gres=gpu:a100:2 a.sh", "submit --sbatch=--gres=gpu:a100:2 a.sh"),
        ("sbatch --time 30 -H job.sh", "submit --sbatch=--time=30 --sbatch=-H job.sh"),
        ("sbatch -", "submit -"),
        ("sbatch", "submit"),
    ],
)  # fmt: skip
def test_a_command_line_of_slurm_becomes_ours(typed: str, ours: str) -> None:
    name, *words = typed.split()
    assert words_of_slurm_command(name, words) == ours.split()


def test_other_names_are_left_alone() -> None:
    assert words_of_slurm_command("walras", ["queue"]) is None


def test_a_script_with_arguments_is_not_run_without_them() -> None:
    with pytest.raises(UserError, match="without its arguments"):
        words_of_slurm_command("sbatch", ["job.sh", "--lr", "3"])


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
    read_job_file(str(script), [], [], [], sbatch=["--reservation=ours"])
    assert "command line: --reservation=ours: not understood" in capsys.readouterr().err
    with pytest.raises(JobSpecError):
        read_job_file(str(script), [], [], [], sbatch=["--reservation=ours"], strict=True)


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
        [tmp_path / "links/sbatch", "a.sh", "b"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == 2
    assert "without its arguments" in refused.stderr


def test_links_are_renewed_and_nobody_elses_file_is_touched(tmp_path: Path, program: Path) -> None:
    links = tmp_path / "links"
    for _ in range(2):
        assert CliRunner().invoke(app, ["slurm-links", str(links)]).exit_code == 0
    (links / "sinfo").unlink()
    (links / "sinfo").write_text("Slurm's own")
    assert CliRunner().invoke(app, ["slurm-links", str(links)]).exit_code == 2
    assert (links / "sinfo").read_text() == "Slurm's own"
