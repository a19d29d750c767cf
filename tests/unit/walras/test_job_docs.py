"""The documents of the job file and the command line say what the code does, no more and no less."""

import re
from pathlib import Path

import pytest
import typer.main
from click import Group

from walras.cli.main import app
from walras.errors import JobSpecError
from walras.spec.file_model import FileModel
from walras.spec.job_groups import (
    BatchSpec,
    CheckpointSpec,
    ElasticSpec,
    FactsSpec,
    ForkSpec,
    LimitsSpec,
    ResourcesSpec,
    RetrySpec,
    SharedSpec,
    TargetSpec,
)
from walras.spec.job_spec import JobSpec, parse_spec
from walras.spec.shell_scripts import script_mapping
from walras.spec.text_formats import parse_yaml

ROOT = Path(__file__).resolve().parents[3]
JOB_SPEC = (ROOT / "docs" / "job-spec.md").read_text()
CLI = (ROOT / "docs" / "cli.md").read_text()
GROUPS: dict[str, type[FileModel]] = {
    "": JobSpec, "resources.": ResourcesSpec, "retry.": RetrySpec, "limits.": LimitsSpec, "checkpoint.": CheckpointSpec,
    "elastic.": ElasticSpec, "batch.": BatchSpec, "fork.": ForkSpec, "facts.": FactsSpec,
    "target.": TargetSpec, "resources.shared.": SharedSpec,
}  # fmt: skip


def test_every_field_is_documented() -> None:
    """Each field of a job file has one row, and no row is about a field that does not exist."""
    fields = [prefix + name for prefix, model in GROUPS.items() for name in model.model_fields]
    rows = re.findall(r"^\| `([a-z_.]+)` \|", JOB_SPEC, re.MULTILINE)
    assert sorted(rows) == sorted(fields)


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


def commands(group: Group, before: str = "walras") -> list[str]:
    """Every command that the help lists, sub-commands with their group."""
    found = [before] if group.invoke_without_command and before != "walras" else []
    for name, command in group.commands.items():
        if command.hidden:
            continue
        found += commands(command, f"{before} {name}") if hasattr(command, "commands") else [f"{before} {name}"]
    return found


def test_every_command_is_documented() -> None:
    """Each command has one row, and no row is about a command that does not exist."""
    rows = re.findall(r"^\| `(walras [a-z -]+?)(?: [A-Z[-][^`]*)?` \|", CLI, re.MULTILINE)
    rows = [re.sub(r" --.*", "", row) for row in rows]
    assert sorted(rows) == sorted(commands(typer.main.get_command(app)))
