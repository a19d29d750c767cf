"""Reads what `walras submit` is given: a job file, a script, a SkyPilot task, a program with arguments, or stdin.

Facts of a model may be stated as `facts: FILE`, a profile (`walras cloud profile run JOB --profile FILE`): what of it
counts for a job is submitted in its place.
"""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from walras.cli.arguments import read_document
from walras.cli.terminal_output import warn
from walras.errors import ConfigError, JobSpecError, UserError

if TYPE_CHECKING:
    from walras.profiling.profiles import ProfileFile
    from walras.spec.job_spec import JobSpec
    from walras.spec.shell_scripts import ForeignReading


_SCRIPT_ENDINGS = (".sh", ".bash", ".sbatch", ".slurm")


def read_job_file(
    file: str,
    command: list[str],
    changes: list[str],
    env: list[str],
    *,
    strict: bool = True,
    skypilot: bool = False,
    sbatch: Sequence[str] | None = None,
    wrap: str | None = None,
) -> "JobSpec":
    """Returns the validated spec of a submission: the file, `#WALRAS` lines, `--set`, `--env`, then the command.

    `skypilot`: the file is a task of SkyPilot. `sbatch`: options that override the `#SBATCH` lines of a script, which
    is then one of Slurm's in any case. `wrap`: the line of a script that `file` only names.
    `strict`: refuses options, and fields of a task, that decide how it runs and cannot be obeyed; else they are warned
    of, as those that decide nothing. `command`: arguments of a script; with a job file, what runs instead of its `run`.
    """
    from walras.spec.job_spec import MAX_SPEC_BYTES

    _refuse_second_program(file, command)
    started = None if wrap is not None else _command_mapping(file, command)
    if wrap is not None:
        name, content = file, f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{wrap}\n".encode()
    else:
        name, content = (file, b"") if started is not None else _content(file, MAX_SPEC_BYTES)
    is_script = started is None and (_begins_as_script(content) or file.endswith(_SCRIPT_ENDINGS))
    if started is not None:
        mapping, command = started, []
    elif is_script:
        mapping, command = _script_mapping(_text(content, name), name, sbatch, command, strict=strict), []
    else:
        mapping = _fields(_parsed(content, name, skypilot=skypilot), name, bool(command))
    if sbatch and not is_script:
        raise JobSpecError(f"{name}: no script for options of sbatch", field="--sbatch", fix="give a shell script")
    if skypilot:
        from walras.spec.skypilot_tasks import read_skypilot_task

        reading = read_skypilot_task(mapping)
        if strict:
            reading.raise_if_refused(name)
        _tell(reading, name)
        mapping = reading.fields
    if file != "-":
        mapping = {"name": Path(file).stem or "job", **mapping}
    return checked_spec(mapping, changes, env, {"run": command} if command else {}, name)


def _script_mapping(
    text: str, name: str, options: Sequence[str] | None, arguments: Sequence[str], *, strict: bool
) -> dict[str, Any]:
    """Returns the job of a shell script. Refuses or warns of `#SBATCH` lines that are not obeyed."""
    from walras.spec.slurm_scripts import slurm_job

    now = datetime.now().astimezone()
    mapping, reading = slurm_job(
        text, name, options, now, arguments=arguments, variables=os.environ, lenient=not strict
    )
    _tell(reading, name)
    mapping.setdefault("workdir", ".")
    return mapping


def _tell(reading: "ForeignReading", name: str) -> None:
    """Warns of what a file of another scheduler says and this one does not do."""
    for each in (*reading.refused, *reading.notes):
        warn(f"{name}: {each}")


def _begins_as_script(content: bytes) -> bool:
    return content.removeprefix(b"\xef\xbb\xbf").startswith(b"#!")


def _has_slurm_lines(file: Path) -> bool:
    with file.open("rb") as opened:
        begin = opened.read(64 * 1024)
    return _begins_as_script(begin) and re.search(rb"^#SBATCH", begin, re.MULTILINE) is not None


def _command_mapping(file: str, command: list[str]) -> dict[str, Any] | None:
    """Returns the job of a Python script, or of a program with its arguments; None if `file` is neither.

    The current folder travels with it.
    """
    if file.endswith(".py") and Path(file).is_file() and not _has_slurm_lines(Path(file)):
        return {"run": ["python", file, *command], "workdir": "."}
    if file == "-" or Path(file).exists() or shutil.which(file) is None:
        return None
    script = next((Path(word).stem for word in command if word.endswith((".py", ".sh"))), Path(file).name)
    return {"run": [file, *command], "workdir": ".", "name": script}


#: Programs that a user may put before a script that is named already.
_STARTERS = re.compile(r"(?:python[0-9.]*|bash|sh|torchrun|accelerate|deepspeed|srun|uv)")
#: Programs that start another one: before a script that they name.
_STARTERS_OF_ANY = re.compile(
    rf"{_STARTERS.pattern}|\.|pypy3?|ipython|coverage|wandb|kernprof|conda|(?:micro)?mamba|pixi|poetry|pipenv|pdm|hatch|sbatch|mpirun|mpiexec|horovodrun|ray|env"
    r"|exec|nohup|nice|time|timeout|numactl|taskset|setsid|sudo|source|composer|singularity|apptainer|zsh|ksh|dash"
)
_SETS_A_VARIABLE = re.compile(r"[A-Za-z_]\w*=", re.ASCII)


def _refuse_second_program(file: str, command: list[str]) -> None:
    """Refuses `train.py -- python train.py`, where what follows `--` are the arguments of `train.py`.

    So does a command that begins with the file, or names it behind a program that starts others.
    """
    if not file.endswith((".py", *_SCRIPT_ENDINGS)) or not command or command[0].startswith("-"):
        return
    at = next((number for number, word in enumerate(command) if Path(word) == Path(file)), None)
    program = Path(command[0]).name
    first = next((word for word in command if not _SETS_A_VARIABLE.match(word)), "")
    if at is None:
        starts = _STARTERS.fullmatch(program) is not None
    else:  # it is the first word but for variables, or stands behind a program
        starts = command[at] == first or _STARTERS_OF_ANY.fullmatch(Path(first).name or first) is not None
        starts = starts or _STARTERS.fullmatch(Path(command[at - 1]).name) is not None
    if not starts:
        return
    rest = "" if at is None else shlex.join(command[at + 1 :])
    if at == 0 or (at and program.startswith("python")):
        fix = f"walras submit {file}{' -- ' if rest else ''}{rest}"
    else:
        fix = f"walras submit -- {shlex.join(['env', *command] if first != command[0] else command)}"
    raise JobSpecError(
        f"{file}: what follows `--` are its arguments, and {command[0]!r} begins a command",
        field="-- COMMAND", fix=fix,
    )  # fmt: skip


def _parsed(content: bytes, name: str, *, skypilot: bool) -> Any:
    from walras.spec.job_spec import MAX_SPEC_BYTES
    from walras.spec.text_formats import parse_yaml

    try:
        return parse_yaml(content, source=name, max_bytes=MAX_SPEC_BYTES)
    except ConfigError as error:
        if skypilot and "a second document begins" in str(error):
            raise JobSpecError(
                f"{name}: {error.field}: a pipeline of several tasks; submit each as a task of its own",
                field=error.field,
                fix="write a file for each task, and say which comes after which: --set depends_on=JOB",
            ) from None
        raise


def _fields(data: Any, name: str, has_command: bool) -> dict[str, Any]:
    if data is None and has_command:
        return {}
    if not isinstance(data, dict):
        raise JobSpecError(f"{name}: no fields", fix="write `field: value` lines, such as `run: python train.py`")
    return data


def checked_spec(
    mapping: dict[str, Any], changes: Sequence[str], env: list[str], last: dict[str, Any], source: str
) -> "JobSpec":
    """Returns the spec of a job's fields, with `--set`, `--env` and then `last` over them. Raises JobSpecError."""
    from walras.spec.job_spec import parse_spec
    from walras.spec.spec_request import missing_envs
    from walras.spec.text_formats import apply_overrides

    mapping = {**_with_envs(apply_overrides(mapping, changes, source="--set"), env), **last}
    spec = parse_spec(with_facts_of_file(mapping), source=source)
    for variable in missing_envs(spec):
        raise JobSpecError(
            f"{source}: the variable {variable} has no value", field=f"envs.{variable}", fix=f"--env {variable}=VALUE"
        )
    return spec


def _with_envs(mapping: dict[str, Any], given: list[str]) -> dict[str, Any]:
    if not given:
        return mapping
    envs = dict(mapping.get("envs") or {})
    for item in given:
        name, equals, value = item.partition("=")
        if not equals and name not in os.environ:
            raise JobSpecError(
                f"--env {name}: you have no such variable", field=f"envs.{name}", fix=f"--env {name}=VALUE"
            )
        envs[name] = value if equals else os.environ[name]
    return {**mapping, "envs": envs}


def _content(file: str, most: int) -> tuple[str, bytes]:
    """Returns a name for messages and the bytes of the file, at most one more than allowed."""
    try:
        if file == "-":
            return "standard input", sys.stdin.buffer.read(most + 1)
        with Path(file).open("rb") as opened:
            return file, opened.read(most + 1)
    except OSError as error:
        raise JobSpecError(f"{file}: {error.strerror}", field="FILE", fix="check the path") from None


def _text(content: bytes, name: str) -> str:
    from walras.spec.field_types import MAX_ARGUMENT_BYTES

    if len(content) > MAX_ARGUMENT_BYTES:
        raise JobSpecError(
            f"{name}: more than {MAX_ARGUMENT_BYTES:,} bytes",
            field="run",
            fix="write a job file that starts the script",
        )
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise JobSpecError(
            f"{name}: line {line}: not UTF-8", field=f"line {line}", fix="save the script as UTF-8"
        ) from None


def with_facts_of_file(mapping: dict[str, Any]) -> dict[str, Any]:
    """Returns a job whose `facts` name a profile's file with the facts of that file in their place.

    A relative path starts from the current folder, as every path on a command line does. Facts that are written out
    stay as they are. Raises JobSpecError where there is no such file, UserError for a file that is no profile.
    """
    named = mapping.get("facts")
    if not isinstance(named, str):
        return mapping
    from walras.profiling.profiles import ProfileFile

    if not Path(named).is_file():
        raise JobSpecError(
            f"facts: {named[:200]!r} is no file",
            field="facts",
            fix="write it: walras cloud profile run JOB --profile FILE",
        )
    return {**mapping, "facts": stated_facts_of(read_document(Path(named), ProfileFile))}


def stated_facts_of(profile: "ProfileFile") -> dict[str, Any]:
    """Returns the facts of a profile as a job file states them.

    Samples of a step on each accelerator come from its first measured row.
    """
    from walras.spec.job_groups import FactsSpec

    found = {name: value for name in FactsSpec.model_fields if (value := getattr(profile, name, None)) is not None}
    if profile.measured:
        first = profile.measured[0]
        found["batch_per_accelerator"] = first.batch / (first.accelerators * (first.accumulated + 1))
    return found


def check_publishable(profile: "ProfileFile", source: str) -> None:
    """Raises UserError for a profile without usable facts."""
    if profile.flops_per_sample is not None and not profile.measured:
        raise UserError(
            f"{source}: measured: the samples of a step are unknown, so FLOPs of a sample say nothing of a step",
            field="measured",
            fix="add a measured row with its batch, or profile again: walras cloud profile run JOB --profile FILE",
        )
    if not {name for name in stated_facts_of(profile) if name != "batch_per_accelerator"}:
        raise UserError(
            f"{source}: no fact of the model is stated",
            field="flops_per_sample",
            fix="profile the job with a DataLoader",
        )
