"""Files that come with Walras are named from everywhere, and copied out without harm to what is there."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from walras.cli.main import app
from walras.cli.submit_commands import with_snapshot
from walras.errors import ConfigError, UserError
from walras.spec.job_spec import parse_spec
from walras.spec.shipped_files import SHIPPED_CONFIGS, copy_examples, find_example, folder_of_relative_paths


@pytest.mark.parametrize(
    ("word", "folder", "file"),
    [
        ("example:cnn", "jobs", "jobs/cnn.yaml"),
        ("example:hello", "jobs", "jobs/hello.yaml"),
        ("example:hello.sh", "jobs", "jobs/hello.sh"),
        ("example:clusters/demo", "jobs", "clusters/demo.yaml"),
        ("example:resnet50", "profiles", "profiles/resnet50.yaml"),
    ],
)
def test_a_name_means_the_file_of_the_folder_that_the_command_reads(word: str, folder: str, file: str) -> None:
    assert find_example(word, folder) == SHIPPED_CONFIGS / file


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("example:cn", "did you mean example:cnn?"), ("example:", "one of cnn,"),
        ("example:nowhere/cnn", "one of clusters,"), ("example:../jobs/cnn", "one of clusters,"),
        ("example:jobs/../../pyproject", "one of "),
    ],
)  # fmt: skip
def test_a_name_that_nothing_has_is_answered_with_those_there_are(word: str, told: str) -> None:
    with pytest.raises(UserError) as raised:
        find_example(word, "jobs")
    assert told in (raised.value.fix or "")


def test_a_shipped_job_takes_its_folder_along_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`workdir: configs/jobs/training` of a shipped file is the shipped folder; of a user's, the user's."""
    monkeypatch.chdir(tmp_path)
    shipped = find_example("example:cnn", "jobs")
    _, spec, tree = with_snapshot(parse_spec(shipped.read_bytes()), folder_of_relative_paths(shipped))
    assert tree is not None
    assert "cnn.py" in {file.path for file in tree.files}
    assert spec.workdir is None
    assert folder_of_relative_paths(tmp_path / "mine.yaml") == tmp_path


def test_examples_are_copied_out_once(tmp_path: Path) -> None:
    new = copy_examples(tmp_path)
    assert (tmp_path / "configs/jobs/cnn.yaml") in new
    assert (tmp_path / "configs/jobs/training/cnn.py").read_bytes() == (
        SHIPPED_CONFIGS / "jobs/training/cnn.py"
    ).read_bytes()
    assert copy_examples(tmp_path) == []


def test_a_changed_copy_is_never_overwritten(tmp_path: Path) -> None:
    """What differs is named, and nothing at all is written beside it."""
    mine = tmp_path / "configs/jobs/cnn.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(ConfigError, match=r"cnn\.yaml is there already"):
        copy_examples(tmp_path)
    assert mine.read_text() == "mine"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine]


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    target = tmp_path / "here/configs/jobs"
    target.mkdir(parents=True)
    (target / "cnn.yaml").symlink_to(elsewhere)
    with pytest.raises(ConfigError):
        copy_examples(tmp_path / "here")
    assert not elsewhere.exists()


@pytest.mark.parametrize(
    "words",
    [
        ["solve", "example:three_pools", "-o", "json"],
        ["solve", "example:three_pools", "--policy", "example:fifo", "-o", "json"],
        ["recommend", "example:resnet50", "--profile", "example:resnet50", "-o", "json"],
        ["workload", "describe", "example:three-types", "-o", "json"],
        ["cloud", "capacity", "example:three-types", "--reserved-price", "0.4", "-o", "json"],
        ["policy", "diff", "example:fifo", "example:las", "-o", "json"],
        [
            *("cloud", "spot", "example:two-zones", "--work", "2h", "--deadline", "3h", "--spot", "1", "--on-demand"),
            *("3", "--set", "starts=1", "--set", "history=example:two-zones", "-o", "json"),
        ],
    ],
)
def test_commands_take_shipped_files_by_name_in_an_empty_folder(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)


def test_init_says_where_the_copies_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["admin", "init"])
    assert result.exit_code == 0, result.output
    assert "configs" in result.stdout
    assert (tmp_path / "configs/clusters/demo.yaml").is_file()
