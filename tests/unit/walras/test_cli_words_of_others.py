"""What people type by habit is answered, or answered with the right name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from walras.cli.main import RENAMED, WORDS_OF_OTHERS, app, current_words
from walras.cli.resource_commands import RESOURCES

Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """A script, and a job that waits."""
    (tmp_path / "train.py").write_text("print(1)\n")
    if "run" in request.fixturenames:
        request.getfixturevalue("fake").add(name="resnet", labels={"lr": "0.1"})


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("status", "walras queue"), ("ps", "walras queue"), ("requeue 1", "walras rerun"),
        ("quota", "walras money --shares"), ("run train.py", "walras submit"), ("sbatch train.sh", "walras submit"),
    ],
)  # fmt: skip
def test_another_word_is_answered_with_ours(run: Run, words: str, named: str) -> None:
    result = run(*words.split())
    assert (result.exit_code, named in result.output) == (2, True), result.output


@pytest.mark.parametrize("former", RENAMED)
def test_a_former_name_still_leads_to_its_command(former: str) -> None:
    """Its words become the present ones, and a note on standard error says so."""
    noted = CliRunner().invoke(app, [*former.split(), "--help"])
    assert noted.stderr.startswith(f"walras: `walras {former}` is now `walras {RENAMED[former]}`\n")
    assert current_words([*former.split(), "1"]) == ([*RENAMED[former].split(), "1"], former)


@pytest.mark.parametrize("named", sorted({*RENAMED.values(), *WORDS_OF_OTHERS.values()}))
def test_what_a_name_leads_to_is_a_command_with_these_options(named: str) -> None:
    words = [word for word in named.split() if not word.startswith("-") and word.islower()]
    if words[:2] in (["admin", "list"], ["admin", "remove"]):
        assert words[2] in RESOURCES or words[2].removesuffix("s") in RESOURCES
        words = words[:2]
    shown = CliRunner().invoke(app, [*words, "--help"])
    assert shown.exit_code == 0
    assert [word for word in named.split() if word.startswith("-") and word not in shown.stdout] == []


@pytest.mark.parametrize("words", ["list planets", "list node", "remove planet mars", "remove role user"])
def test_only_resources_are_listed_and_removed(run: Run, words: str) -> None:
    refused = run("admin", *words.split())
    assert (refused.exit_code, "field: KIND" in refused.output) == (2, True), refused.output


@pytest.mark.parametrize(
    "words",
    [
        "cancel -u ada -y", "cancel --all -y", "cancel --name resnet -y", "queue --me", "queue --start",
        "queue --state PENDING", "jobs --since 1d", "jobs --name resnet", "jobs --label lr=0.1", "whoami", "rerun 1",
    ],
)  # fmt: skip
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


def test_fields_that_people_set_are_options(run: Run, fake: Any) -> None:
    words = "train.py --priority high --project vision --time 4h --array 0-3%2"
    result = run("submit", *words.split())
    assert result.exit_code == 0, result.output
    spec = fake.jobs[2]["spec"]
    assert (spec["priority"], spec["project"], spec["array"]) == (80, "vision", "0-3%2")
    assert spec["limits"]["max_runtime"] == 4 * 3600
    refused = run("submit", "train.py", "--follow", "--dry-run")
    assert (refused.exit_code, "leaves nothing to follow" in refused.output) == (2, True)


@pytest.mark.parametrize("words", ["show resnet", "explain resnet", "cancel resnet", "hold resnet", "rerun resnet"])
def test_a_job_is_named_as_well_as_numbered(run: Run, words: str) -> None:
    result = run(*words.split())
    assert result.exit_code == 0, result.output


def test_a_name_is_that_of_one_job(run: Run, fake: Any) -> None:
    """Several that have not ended are listed; one that has not ended comes before those that have."""
    fake.add(name="again", state="SUCCEEDED")
    fake.add(name="again")
    assert run("show", "again").stdout.split()[:2] == ["job", "3"]
    fake.add(name="again")
    several, none = run("cancel", "again", "-y"), run("show", "nobody")
    assert (several.exit_code, "2 jobs are named 'again': 3, 4" in several.output) == (2, True), several.output
    assert (none.exit_code, "no job is named 'nobody'" in none.output) == (2, True)


def test_a_program_that_is_not_there_is_said_to_be_no_file(run: Run) -> None:
    result = run("submit", "nosuchprogram", "x")
    assert (result.exit_code, "No such file" in result.output) == (2, True)
