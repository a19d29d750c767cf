"""Commands as people type them who come from other schedulers: answered, or answered with the right name."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from walras.cli.main import RENAMED, WORDS_OF_OTHERS, app, current_words
from walras.cli.resource_commands import RESOURCES

Run = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def jobs(fake: Any) -> Any:
    """Six jobs of two users."""
    for name, user, state, labels in (
        ("sweep-1", "ada", "RUNNING", {"lr": "0.1"}), ("sweep-2", "ada", "PENDING", {"lr": "0.2"}),
        ("eval", "ada", "PENDING", {}), ("sweep-3", "bob", "PENDING", {"lr": "0.1"}),
        ("old", "ada", "FAILED", {}), ("done", "ada", "SUCCEEDED", {}),
    ):  # fmt: skip
        fake.add(name=name, user=user, state=state, labels=labels, spec={"run": f"echo {name}"})
    return fake


def ids(result: Any) -> list[int]:
    assert result.exit_code == 0, result.output
    return sorted(job["id"] for job in json.loads(result.stdout))


@pytest.mark.parametrize("word", sorted(WORDS_OF_OTHERS))
def test_a_word_of_other_schedulers_is_answered_with_ours(run: Run, word: str) -> None:
    """Exit code 2 and a line with ours, which exists, options included."""
    result = run(word)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"walras: there is no `walras {word}`\n  fix: walras {WORDS_OF_OTHERS[word]}\n"


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("reservations", "admin list reservations"), ("worth", "cloud prices --worth"), ("report", "money --report"),
        ("agents", "admin agents"), ("attach", "exec"), ("offers", "cloud prices --offers"),
    ],
)  # fmt: skip
def test_a_command_that_was_merged_into_another_names_it(run: Run, word: str, ours: str) -> None:
    """With whatever follows it on the line."""
    result = run(word, "12", "--all")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (2, f"  fix: walras {ours}")


def _commands_with_output(of: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in of.commands.items():
        if hasattr(command, "commands"):
            yield from _commands_with_output(command, (*words, name))
        elif any("--output" in each.opts for each in command.params):
            yield *words, name


@pytest.mark.parametrize("typed", ["--json", "--format json", "--format=json"])
@pytest.mark.parametrize("words", list(_commands_with_output(get_command(app))), ids=" ".join)
def test_each_command_that_prints_json_names_the_option(run: Run, words: tuple[str, ...], typed: str) -> None:
    """Not an option that only looks like it, nor a field of a resource."""
    result = run(*words, *typed.split())
    told = f"walras: `walras {' '.join(words)}` has no {typed.replace('=', ' ').split()[0]}\n  fix: write -o json\n"
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", told)


@pytest.mark.parametrize(("words", "is_named"), [("queue -j", True), ("logs 1 --json", False)])
def test_only_a_command_that_prints_json_names_the_option(run: Run, words: str, is_named: bool) -> None:
    result = run(*words.split())
    assert (result.exit_code, "-o json" in result.output) == (2, is_named)


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


def test_jobs_are_chosen_by_user_state_name_and_label(run: Run, jobs: Any) -> None:
    def shown(*options: str) -> list[int]:
        return ids(run(*options, "-o", "json"))

    assert shown("queue", "--me") == [1, 2, 3]
    assert shown("queue", "--me", "--state", "running") == [1]
    assert shown("queue", "--all", "--name", "sweep-*") == [1, 2, 4]
    assert shown("queue", "--all", "--label", "lr=0.1") == [1, 4]
    assert shown("queue", "--all", "--label", "lr", "-u", "ada") == [1, 2]
    assert shown("queue", "--all", "--since", "10s") == []
    assert shown("queue", "--all", "--me", "--state", "failed,succeeded") == [5, 6]


def test_jobs_are_cancelled_by_choice_and_only_those(run: Run, jobs: Any) -> None:
    result = run("cancel", "--me", "--name", "sweep-*", "-y")
    assert result.exit_code == 0, result.output
    assert [body for _, path, body in jobs.requests if "cancel" in path] == [{"jobs": [1, 2]}]


@pytest.mark.parametrize("args", [("cancel",), ("cancel", "3", "--me"), ("cancel", "3", "--all"), ("rerun",)])
def test_a_command_that_changes_jobs_wants_to_know_which(run: Run, jobs: Any, args: tuple[str, ...]) -> None:
    result = run(*args)
    assert (result.exit_code, "say which jobs" in result.output) == (2, True)
    assert not [path for _, path, _ in jobs.requests if "cancel" in path]


def test_failed_jobs_run_again_as_they_were(run: Run, jobs: Any) -> None:
    result = run("rerun", "--failed")
    assert (result.exit_code, result.stdout) == (0, "job 5 runs again as job 7\n"), result.output
    assert jobs.jobs[7]["spec"] == {"run": "echo old"}


#: What people of other schedulers type: a command line, whether it is done here, and what the answer holds.
HABITS = [
    ("queue --me", True, "sweep-1"),
    ("queue --start", True, "EXPECTED"),
    ("queue --state running", True, "sweep-1"),
    ("queue --all --since 2d", True, ""),
    ("queue --all --name sweep-*", True, "sweep-3"),
    ("queue --all --label lr=0.1", True, "sweep-3"),
    ("cancel -u ada -y", True, ""),
    ("cancel --all -y", True, ""),
    ("cancel --name eval -y", True, "3"),
    ("whoami", True, "ada, role user, projects vision"),
    ("rerun 5", True, "job 5 runs again"),
    ("update 2 --priority high", True, "priority 80"),
    ("update 2 --deadline 2h", True, "has the deadline +2h"),
    ("update 2 --project other --priority 40", True, "is of project other and has priority 40"),
    ("submit --name deep --gpus 2 -q true", True, "7"),
    ("submit --name deep --gpus a100:2 -q true", True, "7"),
    ("nodes", True, "n1"),
    ("admin remove token", False, "NAME"),
    ("admin init --help", True, "DIR"),
    ("admin slurm-links --help", True, "sbatch"),
    ("exec --help", True, "JOB"),
    ("exec 5", False, "fix: walras exec JOB -- COMMAND"),  # no terminal for a shell
    ("money --help", True, "--shares"),
    ("nodes --help", True, "--watch"),
    ("admin list --help", True, "List"),
    ("--show-completion --help", True, "completion"),
]


@pytest.mark.parametrize(("typed", "is_done", "told"), HABITS, ids=[typed for typed, _, _ in HABITS])
def test_what_people_type_by_habit_is_answered(run: Run, jobs: Any, typed: str, is_done: bool, told: str) -> None:
    """Done, or answered with what does it; never a bare refusal."""
    result = run(*typed.split())
    assert (result.exit_code == 0) is is_done, result.output
    assert told in result.output


@pytest.fixture
def script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")


@pytest.mark.parametrize(
    ("words", "ran"),
    [
        ("train.py --name fine --gpus a100:2", ["python", "train.py"]),
        ("--name fine --gpus a100:2 -- python train.py --lr 0.1", ["python", "train.py", "--lr", "0.1"]),
    ],
)
@pytest.mark.usefixtures("script")
def test_a_script_or_a_program_is_submitted_as_it_is_typed(run: Run, fake: Any, words: str, ran: list[str]) -> None:
    """The current folder travels with it; name and accelerators are options."""
    result = run("submit", *words.split())
    assert result.exit_code == 0, result.output
    spec = fake.jobs[1]["spec"]
    assert (spec["name"], spec["run"], spec["resources"]) == ("fine", ran, {"accelerators": {"a100": 2}})
    assert spec["code"]["files"] == 2


def test_what_is_told_of_a_job_is_an_option(run: Run, fake: Any, script: None) -> None:
    """`--notify` stands for the field; a word that is none is refused by it."""
    result = run("submit", "train.py", "--notify", "failed,at-risk")
    assert result.exit_code == 0, result.output
    assert fake.jobs[1]["spec"]["notify"] == ["failed", "at_risk"]
    refused = run("submit", "train.py", "--notify", "death")
    assert (refused.exit_code, "'death' is nothing to be told of" in refused.output) == (2, True)


def test_fields_that_people_set_are_options(run: Run, fake: Any, script: None) -> None:
    words = "train.py --priority high --project vision --time 4h --array 0-3%2"
    result = run("submit", *words.split())
    assert result.exit_code == 0, result.output
    spec = fake.jobs[1]["spec"]
    assert (spec["priority"], spec["project"], spec["array"]) == (80, "vision", "0-3%2")
    assert spec["limits"]["max_runtime"] == 4 * 3600
    refused = run("submit", "train.py", "--follow", "--dry-run")
    assert (refused.exit_code, "leaves nothing to follow" in refused.output) == (2, True)


@pytest.mark.parametrize("command", ["show", "explain", "cancel", "hold", "rerun"])
def test_a_job_is_named_as_well_as_numbered(run: Run, jobs: Any, command: str) -> None:
    result = run(command, "sweep-2")
    assert result.exit_code == 0, result.output


def test_a_name_is_that_of_one_job(run: Run, fake: Any) -> None:
    """Several that have not ended are listed; one that has not ended comes before those that have."""
    fake.add()
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


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(shell: str, tmp_path: Path) -> None:
    """The script that `--install-completion` installs asks this very program, which knows its commands."""
    asked = {
        "bash": {"COMP_WORDS": "walras sub", "COMP_CWORD": "1"},
        "zsh": {"_TYPER_COMPLETE_ARGS": "walras sub"},
        "fish": {"_TYPER_COMPLETE_ARGS": "walras sub", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }
    code = "import sys; sys.argv = ['walras']; from walras.cli.main import main; main()"
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment | asked[shell] | {"_WALRAS_COMPLETE": f"complete_{shell}"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "submit" in done.stdout, done.stderr


def test_a_disk_that_fills_up_is_told_in_words(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system names no file where a write is refused, only where one is opened."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("walras.cli.job_commands.with_client", full)
    answer = run("fetch", "1")
    assert (answer.exit_code, "No space left on device" in answer.stderr) == (2, True)
