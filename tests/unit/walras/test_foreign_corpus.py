"""A corpus of sbatch scripts and SkyPilot tasks: each is taken with the stated values, or refused by name and line."""

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from walras.cli.job_files import read_job_file
from walras.errors import JobSpecError
from walras.spec.field_types import shown_accelerator
from walras.spec.job_spec import JobSpec
from walras.spec.shell_scripts import ForeignReading
from walras.spec.slurm_requests import SLURM_OPTIONS, Answer, Takes, read_options

SUPPORT = Path(__file__).parents[2] / "support"
SLURM = yaml.safe_load((SUPPORT / "slurm_corpus.yaml").read_text())
SKYPILOT = yaml.safe_load((SUPPORT / "skypilot_corpus.yaml").read_text())


def shown(spec: JobSpec, name: str) -> Any:
    """A field of a job by the short name that the tables have."""
    demands = {shown_accelerator(each.accelerator): each.count for each in spec.resources.accelerators}
    known: dict[str, Any] = {
        "accelerators": demands,
        "max_runtime": spec.limits.max_runtime,
        "max_restarts": spec.retry.max_restarts,
        "cpus": spec.resources.cpus,
        "memory": spec.resources.memory,
        "depends_on": list(spec.depends_on),
        # A type whose spelling is not this table's business, but which is one type, and not any.
        "accelerators_named": None if "any" in demands or len(demands) != 1 else sum(demands.values()),
    }
    field, _, key = name.partition(".")
    if name in known:
        return known[name]
    return getattr(spec, field)[key] if key else getattr(spec, name)


def check(case: dict[str, Any], path: Path, told: Any, **options: Any) -> None:
    if "refused" in case:
        with pytest.raises(JobSpecError) as refused:
            read_job_file(str(path), [], [], [], **options)
        for part in case["refused"]:
            assert part in str(refused.value)
        assert not [part for part in case.get("not", []) if part in str(refused.value)]
        return
    spec = read_job_file(str(path), [], [], [], **options)
    for name, value in case.get("is", {}).items():
        if name.endswith("_starts"):
            assert str(shown(spec, name.removesuffix("_starts"))).startswith(value)
        else:
            assert shown(spec, name) == value, name
    notes = told.readouterr().err
    for part in case.get("notes", []):
        assert part in notes


def script_of(case: dict[str, Any]) -> str:
    lines = "".join(f"#SBATCH {each}\n" for each in case.get("options", []))
    return str(case.get("script") or f"#!/bin/bash\n{lines}{case.get('body', 'srun python train.py')}")


@pytest.mark.parametrize("case", SLURM, ids=lambda case: script_of(case).partition("\n")[2][:60])
def test_a_script_is_taken_with_its_values_or_refused(
    case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.sbatch").write_bytes(script_of(case).encode())
    check(case, tmp_path / "job.sbatch", capsys)


@pytest.mark.parametrize("case", SKYPILOT, ids=lambda case: str(case["task"])[:60])
def test_a_task_is_taken_with_its_values_or_refused(
    case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "task.yaml").write_text(case["task"])
    check(case, tmp_path / "task.yaml", capsys, skypilot=True)


@pytest.mark.parametrize("word", ["ssh h ", "find . -exec ", "eval ; ", "x=$(", "x=$((", "bash -c 'a", "case a in "])
def test_a_text_of_a_text_is_read_to_a_depth(word: str, tmp_path: Path) -> None:
    """A hostile script is judged all the same, by its other lines."""
    (tmp_path / "job.sbatch").write_text(f"#!/bin/bash\n#SBATCH -n1\ntrue\nsbatch a\n{word * 400}\n")
    with pytest.raises(JobSpecError, match="line 4: sbatch"):
        read_job_file(str(tmp_path / "job.sbatch"), [], [], [])


def test_the_corpus_is_as_large_as_is_said() -> None:
    assert len(SLURM) >= 60
    assert len(SKYPILOT) >= 20


ROWS = [row for row in SLURM_OPTIONS["sbatch"] if row.name != "ignore-pbs"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, JobSpec]:
    """A script without options, and its job."""
    path = tmp_path_factory.mktemp("any") / "a.sh"
    path.write_text("#!/bin/bash\n#SBATCH --verbose\ntrue\n")
    return str(path), read_job_file(str(path), [], [], [])


@settings(max_examples=200, deadline=None)
@given(row=st.sampled_from(ROWS), value=st.text(st.characters(codec="ascii", categories=("L", "N", "P")), max_size=12))
def test_an_option_with_any_value_is_obeyed_noted_or_refused(row: Any, value: str, plain: tuple[str, JobSpec]) -> None:
    """Never dropped: it changes the job, or its name is told."""
    word = f"--{row.name}" if row.takes is Takes.NOTHING else f"--{row.name}={value}"
    (path, before), errors, refusal = plain, io.StringIO(), ""
    with contextlib.redirect_stderr(errors):
        try:
            after = read_job_file(path, [], [], [], sbatch=[word])
        except JobSpecError as error:
            refusal = str(error)
    if refusal:
        assert row.name in refusal, refusal
        return
    told = errors.getvalue()
    canonical = {"tasks-per-node": "ntasks-per-node", "cluster": "clusters"}.get(row.name, row.name)
    named = f"--{canonical}" in told
    if row.answer is Answer.OBEYED and not named:
        assert after != before or (canonical, value) in SAME or value.startswith(("0", "now")), (word, told)
    else:
        assert named, (word, told)


#: Values that ask for what a job has anyway.
SAME = {("nodes", "1"), ("qos", "normal"), ("time", "-1"), ("gres", "none")}


def test_every_short_option_and_abbreviation_is_one_option() -> None:
    """Letters are used once; each unambiguous beginning of a name means that name."""
    for command, rows in SLURM_OPTIONS.items():
        letters = [row.letter for row in rows if row.letter]
        assert len(letters) == len(set(letters)), command
        for row in rows:
            for length in range(1, len(row.name)):
                others = [each for each in rows if each.name.startswith(row.name[:length])]
                reading = ForeignReading()
                word = f"--{row.name[:length]}" + ("=1" if row.takes is not Takes.NOTHING else "")
                found = read_options(command, [("here", word)], reading)
                if len(others) == 1 and row.name not in ("tasks-per-node", "cluster"):
                    assert [each.option for each in found] == [row]
