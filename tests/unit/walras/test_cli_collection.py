"""`walras submit` of a file with many jobs: checked together, sent together, each accepted or refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from walras.cli.submit_commands import read_collection
from walras.errors import JobSpecError

Run = Callable[..., Any]
TWO = """\
collection: nightly
defaults: {priority: low, labels: {team: vision}, resources: {accelerators: a100}}
jobs:
  - {name: parse, run: python parse.py}
  - {run: python train.py, priority: high, labels: {step: "2"}}
"""


def collection_file(text: str, name: str = "many.yaml") -> str:
    Path(name).write_text(text)
    return name


def test_all_jobs_are_sent_in_one_request_with_the_defaults_and_a_label(run: Run, fake: Any) -> None:
    """What a job states wins; labels add up; a job without a name is called after the collection."""
    result = run("submit", collection_file(TWO), "-s", "weight=2")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == "jobs 1 to 2 (2 of nightly) are in the queue"
    sent = [body for _, path, body in fake.requests if path.endswith("/jobs:batch")]
    assert len(sent) == 1
    first, second = sent[0]["jobs"]
    assert (first["name"], second["name"]) == ("parse", "nightly-1")
    assert (first["priority"], second["priority"]) == (20, 80)
    assert first["labels"] == {"team": "vision", "collection": "nightly"}
    assert second["labels"] == {"team": "vision", "step": "2", "collection": "nightly"}
    assert {each["weight"] for each in sent[0]["jobs"]} == {2.0}


def test_nothing_is_sent_unless_all_are_valid(run: Run, fake: Any) -> None:
    result = run("submit", collection_file(TWO.replace("python train.py, priority: high", "python train.py, step: 9")))
    assert result.exit_code != 0
    assert "jobs[1]" in result.output
    assert not [path for _, path, _ in fake.requests if "jobs" in path]


def test_a_dry_run_checks_and_numbers_alone_are_for_programs(run: Run, fake: Any) -> None:
    assert (
        run("submit", collection_file(TWO), "--dry-run").stdout == "2 jobs of nightly are valid; nothing is submitted\n"
    )
    assert not [path for _, path, _ in fake.requests if "jobs" in path]
    assert run("submit", collection_file(TWO), "-q").stdout == "1\n2\n"
    told = json.loads(run("submit", collection_file(TWO), "-o", "json").stdout)
    assert (told["collection"], [each["id"] for each in told["items"]]) == ("nightly", [3, 4])


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("jobs: []", "jobs"), ("jobs: 3", "jobs"), ("jobs: [3]", "jobs[0]"),
        ("jobs: [{run: x}]\ncollection: ''", "collection"), ("jobs: [{run: x}]\ndefaults: [1]", "defaults"),
        ("jobs: [{at: 0s, job: {run: x}}]\nlaws: {}", "laws"),
    ],
)  # fmt: skip
def test_a_collection_that_makes_no_sense_is_refused_by_name(tmp_path: Path, text: str, field: str) -> None:
    path = tmp_path / "many.yaml"
    path.write_text(text)
    with pytest.raises(JobSpecError) as refused:
        read_collection(str(path))
    assert refused.value.field == field


def test_other_files_are_none(tmp_path: Path) -> None:
    """A job, a job that is called so by a field of its own, a script, and what is no YAML are read as ever."""
    for name, text in (("a.yaml", "run: x"), ("b.yaml", "run: x\njobs: []"), ("c.sh", "jobs: [1]"), ("d.yaml", "{")):
        (tmp_path / name).write_text(text)
        assert read_collection(str(tmp_path / name)) is None
    assert read_collection(str(tmp_path / "absent.yaml")) is None


def test_options_for_one_job_are_refused(run: Run) -> None:
    for option in (("--name", "x"), ("--quote",), ("--recommend", "deadline=6h")):
        result = run("submit", collection_file(TWO), *option)
        assert result.exit_code != 0
        assert "for one job" in result.output
