"""`walras policy try` compares two policies on the same jobs."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from walras.cli.main import app


def _tried(*words: str) -> Any:
    return CliRunner().invoke(app, ["policy", "try", *words])


def test_two_policies_are_compared_on_the_same_jobs_without_a_server(tmp_path: Path) -> None:
    """A name against a file; both are told of by what they are, and drawn on the page of a comparison."""
    file = tmp_path / "short.yaml"
    file.write_text("policy: {name: srtf}\n")
    found = _tried(
        str(file), "--against", "fifo", "--workload", "deadlines", "--cluster", "mixed-cloud", "--seeds", "0-1",
        "--out", str(tmp_path / "out"),
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    assert "fifo-now" in found.output
    assert "short" in found.output
    page = (tmp_path / "out" / "compare.html").read_text()
    assert "<svg" in page
    assert "short" in page
    of_run = _tried("fifo", "--against", "las", "--run", str(tmp_path), "--out", str(tmp_path / "none"))
    assert (of_run.exit_code, "has no page" in of_run.output) == (2, True)


def test_the_policy_in_force_comes_from_the_server(fake: Any) -> None:
    """With its parameters and rules, as a version of the history has them."""
    on = ("--workload", "deadlines", "--cluster", "mixed-cloud", "--seeds", "0")
    env = {"WALRAS_SERVER": fake.url, "WALRAS_TOKEN": "walras_user_secret"}
    found = CliRunner().invoke(app, ["policy", "try", "fifo", *on], env=env)
    assert found.exit_code == 0, found.output
    assert "current" in found.output
    assert fake.requests[-1][:2] == ("GET", "/api/v1/policy/versions")


@pytest.mark.parametrize("words", [(), ("--workload", "deadlines"), ("--workload", "deadlines", "--run", "/tmp")])
def test_it_is_tried_on_a_workload_and_a_cluster_or_on_a_run(words: tuple[str, ...]) -> None:
    found = _tried("fifo", "--against", "las", *words)
    assert found.exit_code != 0
