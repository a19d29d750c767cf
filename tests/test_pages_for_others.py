"""The pages for people who come from other schedulers: every command is one that we take, every example does what the
page says of it."""

import json
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from click import Command
from typer.testing import CliRunner

from tests.test_docs import written_commands
from walras.cli.job_files import read_job_file
from walras.cli.main import app
from walras.spec.job_spec import JobSpec, parse_spec

ROOT = Path(__file__).resolve().parents[1]
PAGES = {name: (ROOT / f"docs/from-{name}.md").read_text() for name in ("slurm", "skypilot", "ray", "gavel")}


def code_blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL)


@cache
def root_command() -> Command:
    return typer.main.get_command(app)


def parse_command_line(words: list[str]) -> None:
    """Fails for a command, an option, a value or an argument that we would refuse, and runs nothing."""
    command = root_command()
    rest = words[1:]
    while hasattr(command, "commands"):
        if command.invoke_without_command and (not rest or rest[0].startswith("-")):
            break
        assert rest, words
        found = command.commands.get(rest[0])
        assert found is not None, f"no command {rest[0]!r} in {shlex.join(words)}"
        command, rest = found, rest[1:]
    try:
        context = command.make_context(words[-1], rest)
    except Exception as error:
        raise AssertionError(f"{shlex.join(words)}: {error}") from error
    context.close()


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_is_taken_as_it_is_typed(page: str) -> None:
    """Names, options, their values and the required arguments: what click would refuse, the page may not say."""
    commands = written_commands(PAGES[page])
    assert len(commands) >= 14
    for words in commands:
        parse_command_line(words)


@pytest.mark.parametrize("page", PAGES)
def test_every_row_has_an_answer(page: str) -> None:
    """Each row names what they type and what is here."""
    rows = re.findall(r"^\| (.+) \| (.+) \|$", PAGES[page], re.MULTILINE)
    assert rows[0] == ("you type", "here")
    assert len(rows) >= 15
    assert [left for left, right in rows[2:] if not re.search(r"\w", right)] == []


def spec_of(path: Path, text: str, **options: Any) -> JobSpec:
    path.write_text(text)
    return read_job_file(str(path), [], [], [], **options)


def needs(spec: JobSpec) -> dict[str, Any]:
    """What a job asks of the machines, and how its ranks are started there."""
    fields = ("name", "num_nodes", "nproc_per_node", "workdir", "limits", "array")
    asked = {name: getattr(spec, name) for name in fields}
    return asked | {"cpus": spec.resources.cpus, "memory": spec.resources.memory}


def test_the_slurm_script_and_the_job_file_ask_for_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two lines of the script are named, and the job file adds only what Slurm has no words for."""
    (script,), (job,) = code_blocks("slurm", "bash"), code_blocks("slurm", "yaml")
    read = spec_of(tmp_path / "finetune.sbatch", script)
    notes = [line for line in capsys.readouterr().err.splitlines() if "sbatch" in line]
    assert [re.search(r"--\w+", line).group() for line in notes] == ["--output", "--partition"]  # type: ignore[union-attr]
    ours = spec_of(tmp_path / "finetune.yaml", job)
    assert needs(read) == needs(ours)
    assert {each.accelerator: each.count for each in ours.resources.accelerators} == {"a100": 4, "h100": 4}
    assert [(each.accelerator, each.count) for each in read.resources.accelerators] == [("a100", 4)]


def test_the_skypilot_task_and_the_job_file_ask_for_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One field of the task is named; accelerators are counted over the gang, cores and memory for each of them."""
    task, job = code_blocks("skypilot", "yaml")
    read = spec_of(tmp_path / "resnet.yaml", task, skypilot=True)
    notes = [line for line in capsys.readouterr().err.splitlines() if "resnet.yaml" in line]
    assert [re.search(r"resources\.\w+", line).group() for line in notes] == ["resources.disk_size"]  # type: ignore[union-attr]
    ours = spec_of(tmp_path / "resnet-job.yaml", job)
    assert needs(read) == needs(ours)
    assert read.resources.accelerators == ours.resources.accelerators
    assert read.envs == ours.envs


def test_the_job_files_of_the_tables_are_fields_that_exist() -> None:
    """Each `field: value` that a table answers with is taken in a job file."""
    for page in ("slurm", "skypilot", "ray"):
        for span in re.findall(r"`((?:[a-z_]+): [^`]+)`", PAGES[page]):
            fields = yaml.safe_load(span)
            if fields.keys() & {"any_of", "job_recovery", "runtime_env", "use_spot", "max_restarts_on_errors"}:
                continue  # theirs
            if "accelerators" in fields:
                fields = {"resources": fields}
            parse_spec({"run": "true", "resources": {"accelerators": "any:2"}, **fields}, source=span)


def test_the_ray_example_is_two_jobs() -> None:
    (job,) = code_blocks("ray", "yaml")
    spec = parse_spec(job.encode(), source="regression.yaml")
    assert len(spec.matrix["lr"]) == 2
    assert spec.retry.max_restarts == 3


@pytest.mark.slow
def test_the_gavel_example_gives_the_figures_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trace and the table as they stand on the page, through the page's own commands."""
    monkeypatch.chdir(tmp_path)
    Path("three.trace").write_text(code_blocks("gavel", "text")[0])
    Path("speeds.json").write_text(code_blocks("gavel", "json")[0])
    example = PAGES["gavel"].split("## A trace")[1]
    lines = [shlex.split(line) for line in re.findall(r"^    (walras .+)$", example, re.MULTILINE)]
    figures = []
    for words in lines:
        runs = words[1:3] == ["simulate", "run"]
        result = CliRunner().invoke(app, [*words[1:], *(["-o", "json"] if runs else [])])
        assert result.exit_code == 0, result.output
        if runs:
            figures.append(f"{json.loads(result.stdout)['avg_jct_s']:,.0f} s")
    assert [figure for figure in figures if figure not in example] == []
    assert len(set(figures)) == 2
