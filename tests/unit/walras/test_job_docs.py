"""The documents of the job file and the command line say what the code does, no more and no less."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from walras.cli.main import app
from walras.errors import JobSpecError, UserError
from walras.spec.job_spec import JobSpec, field_note, field_paths, parse_spec
from walras.spec.roles import ROLES_COMMAND
from walras.spec.shell_scripts import script_mapping
from walras.spec.text_formats import parse_yaml

ROOT = Path(__file__).resolve().parents[3]
JOB_SPEC = (ROOT / "docs" / "job-spec.md").read_text()
CLI = (ROOT / "docs" / "cli.md").read_text()
#: What else a job says beside the example of a field.
BESIDE = {
    "num_nodes": {"resources": {"accelerators": "any:2"}}, "condition": {"depends_on": [1]}, "plans": {"resources": {}},
    "roles": {"run": list(ROLES_COMMAND)},
}  # fmt: skip


def test_every_field_is_documented() -> None:
    """Each field of a job file is named on the page, and no row is about a field that does not exist."""
    rows = re.findall(r"^\| `([a-z_.]+)` \|", JOB_SPEC, re.MULTILINE)
    assert set(rows) - set(field_paths()) == set()
    assert [name for name in JobSpec.model_fields if f"`{name}`" not in JOB_SPEC] == []


@pytest.mark.parametrize("path", [path for path in field_paths() if path != "secrets.value"])
def test_every_field_explains_itself(path: str) -> None:
    """What it means, what it takes, and an example that is valid in a job, unless the field is set for people."""
    note = field_note(path)
    assert note.meaning.endswith((".", "…")), note
    assert note.kind
    if not note.example:
        assert note.meaning.startswith("Set by")
        return
    value = parse_yaml(f"value: {note.example}", source=path, max_bytes=10_000)["value"]
    for name in reversed(path.split(".")[1:]):
        value = {name: value}
    group = path.split(".")[0]
    whole = parse_yaml(f"value: {field_note(group).example}", source=path, max_bytes=10_000)["value"]
    if path == group:
        parse_spec({"run": "true", **BESIDE.get(group, {}), group: value})
    elif group in ("resources", "retry", "limits", "checkpoint"):
        shared = {"shared": {"memory": "12GB", **value["shared"]}} if "shared" in value else value
        parse_spec({"run": "true", group: shared})
    elif isinstance(whole, dict) and group not in ("inputs", "secrets", "git", "roles"):
        parse_spec({"run": "true", group: {**whole, **({"max": 4096} if group == "batch" else {}), **value}})


@pytest.mark.parametrize(
    ("word", "meant"),
    [("acelerators", "resources.accelerators"), ("gpus", "resources.accelerators"), ("memory", "resources.memory"),
     ("resources.time", "limits.max_runtime"), ("code.tree", "code"), ("", "priority"), ("a.b[", "priority")],
)  # fmt: skip
def test_a_field_that_is_none_leads_to_the_nearest(word: str, meant: str) -> None:
    """Misspelt, another scheduler's, without its group, below one that nobody writes, or nothing at all."""
    with pytest.raises(UserError) as refused:
        field_note(word)
    assert meant in refused.value.fix


def test_every_example_parses() -> None:
    """The job files in the document, and those in configs/jobs, are valid."""
    examples = re.findall(r"```yaml\n(.*?)```", JOB_SPEC, re.DOTALL)
    assert len(examples) >= 3
    for example in examples:
        given = parse_yaml(example, source="example", max_bytes=10_000)
        for job in given.get("jobs", [given]):  # a collection has several
            parse_spec({**given.get("defaults", {}), **job})
    for script in re.findall(r"```bash\n(.*?)```", JOB_SPEC, re.DOTALL):
        assert parse_spec(script_mapping(script, name="train.sh")).limits.max_runtime == 4 * 3600
    files = sorted((ROOT / "configs" / "jobs").glob("*.yaml"))
    assert files
    for file in files:
        parse_spec(file.read_bytes(), source=file.name)
    for file in sorted((ROOT / "configs" / "jobs").glob("*.sh")):
        parse_spec(script_mapping(file.read_text(), name=file.name))


def test_documented_refusals_happen() -> None:
    """What the document says is refused, is."""
    for refused in ("run: &a x\nname: *a", "run: x\nrun: y", "run: x\nenvs: {A: true}", "run: x\nenvs: {WALRAS_A: 1}"):
        with pytest.raises(JobSpecError):
            parse_spec(refused)


def commands(command: Any, words: tuple[str, ...] = ("walras",)) -> Iterator[tuple[str, str]]:
    """(words, the first paragraph of the help) of every command that the help lists, sub-commands with their group."""
    below = getattr(command, "commands", {})
    if not below or (command.invoke_without_command and len(words) > 1):
        yield " ".join(words), " ".join(str(command.help).split("\n\n")[0].split())
    for name, child in below.items():
        if not child.hidden:
            yield from commands(child, (*words, name))


def test_every_command_is_documented() -> None:
    """Each command has one row, which begins with the first paragraph of its help; no row is about another."""
    rows = re.findall(r"^\| `(walras [a-z -]+?)(?: --.*?)?(?: [A-Z[-][^`]*)?` \| (.*) \|$", CLI, re.MULTILINE)
    told = dict(commands(typer.main.get_command(app)))
    assert sorted(name for name, _ in rows) == sorted(told)
    assert [name for name, text in rows if not text.startswith(told[name])] == []
