"""`walras recommend --steps-of`: the work of a job that trains to a target, from a job of the server."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from walras.cli.main import app

_ROOT = Path(__file__).resolve().parents[3]
_JOB = _ROOT / "configs" / "jobs" / "resnet50.yaml"
_PROFILE = _ROOT / "configs" / "profiles" / "resnet50.yaml"
_TARGET = {"value": "loss", "at_most": 0.35, "outlook": "expected", "detail": "loss 0.5 at step 400"}
Run = Callable[..., Any]


@pytest.fixture
def run(fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `walras recommend` for a job file with these changes, against the fake server."""
    token = tmp_path / "token"
    token.write_text("walras_user_secret\n")
    monkeypatch.delenv("WALRAS_TOKEN", raising=False)
    settings = {"WALRAS_SERVER": fake.url, "WALRAS_TOKEN_FILE": str(token), "HOME": str(tmp_path)}

    def run_it(*args: str, **change: Any) -> Any:
        job = tmp_path / "job.yaml"
        spec = {**yaml.safe_load(_JOB.read_text()), **change}
        job.write_text(yaml.safe_dump({name: value for name, value in spec.items() if value is not None}))
        words = ["recommend", str(job), "--profile", str(_PROFILE), "--cloud", "aws", *args]
        return CliRunner().invoke(app, words, env=settings)

    return run_it


def time_s(result: Any) -> float:
    assert result.exit_code == 0, result.output
    return float(json.loads(result.stdout)["taken"]["time_s"])


def test_the_steps_to_the_target_are_the_work(run: Run, fake: Any) -> None:
    """Expected or reached; in a file without steps, and instead of more steps; fewer declared ones count."""
    fake.add(target=_TARGET | {"steps_expected": 1000.0})
    fake.add(target=_TARGET | {"steps_expected": 5000.0, "reached_step": 2000.0})
    declared = time_s(run("-o", "json", steps=1000))
    found = run("-o", "json", "--steps-of", "1", steps=None)
    assert time_s(found) == pytest.approx(declared)
    assert "job 1 is expected to take 1,000 steps to loss 0.35, which count as the work" in found.stderr
    reached = run("-o", "json", "--steps-of", "2", steps=90000)
    assert time_s(reached) == pytest.approx(2 * declared, rel=0.2)
    assert "job 2 took 2,000 steps" in reached.stderr
    fewer = run("-o", "json", "--steps-of", "2", steps=1000)
    assert time_s(fewer) == pytest.approx(declared)
    assert "the file declares 1,000, which are fewer and count" in fewer.stderr


@pytest.mark.parametrize(
    ("job", "change", "told"),
    [
        ({}, {}, "job 1 has no target"),
        ({"target": _TARGET}, {}, "loss 0.5 at step 400"),
        (
            {"target": _TARGET | {"steps_expected": 9.0}},
            {"target": {"value": "loss", "at_most": 0.3}},
            "make them equal",
        ),
        (
            {"target": _TARGET | {"steps_expected": 9.0}, "spec": {"run": "x", "batch": {"global": 7}}},
            {},
            "a step of job 1 is 7 samples",
        ),
    ],
)
def test_what_says_nothing_of_this_job_is_refused(
    run: Run, fake: Any, job: dict[str, Any], change: dict[str, Any], told: str
) -> None:
    """No target, nothing foreseen, another target, another batch: exit code 2 with the fix."""
    fake.add(**job)
    found = run("--steps-of", "1", **change)
    assert (found.exit_code, "Traceback" in found.output) == (2, False)
    assert told in " ".join(found.stderr.split())
