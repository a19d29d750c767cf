"""What people type by habit is answered, or answered with the right name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from walras.cli.main import app

Run = Callable[..., Any]


@pytest.fixture
def run(fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `walras ARGS` as ada against the fake server, where a job waits."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token").write_text("walras_user_secret\n")
    (tmp_path / "train.py").write_text("print(1)\n")
    fake.add(name="resnet", labels={"lr": "0.1"})
    settings = {"WALRAS_SERVER": fake.url, "WALRAS_TOKEN_FILE": str(tmp_path / "token"), "HOME": str(tmp_path)}
    return lambda *args: CliRunner().invoke(app, list(args), env=settings)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("status", "walras queue"),
        ("ps", "walras queue"),
        ("requeue 1", "walras rerun"),
        ("quota", "walras share"),
        ("run train.py", "walras submit"),
        ("sbatch train.sh", "walras submit"),
    ],
)
def test_another_word_is_answered_with_ours(run: Run, words: str, named: str) -> None:
    result = run(*words.split())
    assert (result.exit_code, named in result.output) == (2, True), result.output


@pytest.mark.parametrize(
    "words",
    [
        "cancel -u ada -y",
        "cancel --all -y",
        "cancel --name resnet -y",
        "queue --me",
        "queue --start",
        "queue --state PENDING",
        "jobs --since 1d",
        "jobs --name resnet",
        "jobs --label lr=0.1",
        "whoami",
        "rerun 1",
    ],
)
def test_options_of_habit_are_there(run: Run, words: str) -> None:
    result = run(*words.split())
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("words", "ran"),
    [
        ("train.py --name fine --gpus a100:2", ["python", "train.py"]),
        ("--name fine --gpus a100:2 -- python train.py --lr 0.1", ["python", "train.py", "--lr", "0.1"]),
    ],
)
def test_a_script_or_a_program_is_submitted_as_it_is_typed(run: Run, fake: Any, words: str, ran: list[str]) -> None:
    """The current folder travels with it; name and accelerators are options."""
    result = run("submit", *words.split())
    assert result.exit_code == 0, result.output
    spec = fake.jobs[2]["spec"]
    assert (spec["name"], spec["run"], spec["resources"]) == ("fine", ran, {"accelerators": {"a100": 2}})
    assert spec["code"]["files"] == 2


def test_what_is_told_of_a_job_is_an_option(run: Run, fake: Any) -> None:
    """`--notify` stands for the field; a word that is none is refused by it."""
    result = run("submit", "train.py", "--notify", "failed,at-risk")
    assert result.exit_code == 0, result.output
    assert fake.jobs[2]["spec"]["notify"] == ["failed", "at_risk"]
    refused = run("submit", "train.py", "--notify", "death")
    assert (refused.exit_code, "'death' is nothing to be told of" in refused.output) == (2, True)


def test_a_program_that_is_not_there_is_said_to_be_no_file(run: Run) -> None:
    result = run("submit", "nosuchprogram", "x")
    assert (result.exit_code, "No such file" in result.output) == (2, True)
