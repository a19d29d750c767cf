"""`walras search`: what it asks for before it starts anything. Its trials are in tests/e2e/test_search_live.py."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from walras.cli.main import app


def _run(folder: Path, *arguments: str, **changes: Any) -> Any:
    job = folder / "job.yaml"
    job.write_text(
        yaml.safe_dump(
            {"name": "j", "run": ["false"], "resources": {"accelerators": "any:1"}, "workdir": "."} | changes
        )
    )
    return CliRunner().invoke(app, ["search", str(job), "--folder", str(folder / "runs"), *arguments])


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--batches", "32,x"), "no list of whole numbers"),
        (("--batches", "32"), "nothing tells how much"),
        ((), "no batch is given"),
        (("--batches", "32,64", "--earlier", "32=1000"), "two batches at least"),
        (("--batches", "32", "--earlier", "32"), "not BATCH=SAMPLES"),
        (("--batches", "32", "--earlier", "32=0"), "not BATCH=SAMPLES"),
        (("--batches", "32", "--workers", "3", "--earlier", "32=1000"), "shared evenly"),
    ],
)
def test_what_is_missing_is_told_before_anything_runs(tmp_path: Path, arguments: tuple[str, ...], word: str) -> None:
    """Each mistake is a message with its field and a way out, and exit code 2."""
    found = _run(tmp_path, *arguments)
    assert (found.exit_code, word in found.stderr, "fix:" in found.stderr) == (2, True, True), found.stderr
    assert not (tmp_path / "runs").exists()


def test_a_script_that_fails_is_the_users_error(tmp_path: Path) -> None:
    """The failing rank is named; and a folder that holds a search is not used again."""
    for word in ("rank 0 failed at step 0 (exit code 1)", "holds another search"):
        found = _run(tmp_path, steps=100, batch={"global": 32})
        assert (found.exit_code, word in found.stderr) == (2, True), found.stderr
