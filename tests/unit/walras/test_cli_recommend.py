"""`walras recommend`: machines for one job, from facts and measurements in files."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from walras.cli.main import app

_ROOT = Path(__file__).resolve().parents[3]
_JOB = _ROOT / "configs" / "jobs" / "resnet50.yaml"
_PROFILE = _ROOT / "configs" / "profiles" / "resnet50.yaml"


def _run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["recommend", *map(str, arguments)])


def _json(*arguments: str | Path) -> dict[str, Any]:
    found = _run(*arguments, "-o", "json")
    assert found.exit_code in (0, 1), found.output
    return dict(json.loads(found.stdout))


def test_a_deadline_is_kept_as_cheaply_as_possible() -> None:
    """The choice is told with its interval and its reason, above what else could be had."""
    found = _run(_JOB, "--profile", _PROFILE, "--deadline", "36h")
    assert found.exit_code == 0, found.output
    assert "the cheapest within 1d12h" in found.stdout
    assert "four cases out of five within" in found.stdout
    data = _json(_JOB, "--profile", _PROFILE, "--deadline", "36h")
    assert data["kept"]
    assert data["taken"]["late_s"] <= 36 * 3600
    assert data["taken"]["usd"] >= min(setup["usd"] for setup in data["front"])


def test_what_cannot_be_kept_is_said_and_exits_with_1() -> None:
    """Ten minutes are not enough for anybody: the fastest is told, as not kept."""
    found = _run(_JOB, "--profile", _PROFILE, "--deadline", "10m")
    assert found.exit_code == 1
    assert "nothing is done within 10m" in found.stdout


def test_measurements_narrow_what_facts_leave_open(tmp_path: Path) -> None:
    """Speeds measured on one type make the interval on it narrower than any law could."""
    measured = [
        {"accelerator": "v100", "batch": batch, "steps_per_s": 380 / batch, "samples": 30} for batch in (64, 128, 256)
    ]
    profile = tmp_path / "resnet50.yaml"
    profile.write_text(yaml.safe_dump({**yaml.safe_load(_PROFILE.read_text()), "measured": measured}))
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump({**yaml.safe_load(_JOB.read_text()), "resources": {"accelerators": "v100:1"}}))

    def width(file: Path) -> float:
        taken = _json(job, "--profile", file, "--budget", "100000", "--machines", "1")["taken"]
        return float(taken["late_s"] / taken["early_s"])

    assert width(profile) < 0.5 * width(_PROFILE)


def test_spot_machines_are_cheaper_and_take_longer() -> None:
    """Revocations are counted, so that spot is not taken for the same machine at a lower price."""
    plain = _json(_JOB, "--profile", _PROFILE, "--cloud", "aws")["front"][0]
    spot = _json(_JOB, "--profile", _PROFILE, "--cloud", "aws", "--spot", "--revocations-per-h", "0.5")["front"]
    assert plain in spot
    assert any(setup["usd"] < plain["usd"] and setup["time_s"] > plain["time_s"] for setup in spot)


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_the_front_is_drawn(tmp_path: Path, ending: str) -> None:
    """As a file that a page or a document can hold."""
    picture = tmp_path / f"front.{ending}"
    assert _run(_JOB, "--profile", _PROFILE, "--deadline", "36h", "--picture", picture).exit_code == 0
    assert picture.stat().st_size > 2000


@pytest.mark.parametrize(
    ("change", "arguments", "told"),
    [
        ({"steps": None}, [], "steps"),
        ({"batch": None}, [], "batch.global"),
        ({}, ["--batch", "512"], "--batch"),
        ({}, ["--picture", "front.txt"], "--picture"),
        ({}, ["--precision", "fp12"], "choose from"),
        ({"profile": "unheard-of"}, [], "FLOPs"),
    ],
)
def test_what_is_missing_is_named_with_the_fix(
    tmp_path: Path, change: dict[str, Any], arguments: list[str], told: str
) -> None:
    """Exit code 2, no traceback."""
    spec = {key: value for key, value in {**yaml.safe_load(_JOB.read_text()), **change}.items() if value is not None}
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump(spec))
    found = _run(job, "--profile", _PROFILE, *arguments)
    assert found.exit_code == 2, found.output
    assert told in found.output
    assert "Traceback" not in found.output


def test_a_network_far_below_plan_has_the_job_planned_anew(tmp_path: Path) -> None:
    """What was obtained is what is planned with; 15 % missing is borne, more is not, and both are told."""
    job = tmp_path / "job.yaml"
    many = {"resources": {"accelerators": "l40s:16"}, "elastic": {"min": 16, "max": 32}}
    job.write_text(yaml.safe_dump({**yaml.safe_load(_JOB.read_text()), **many}))
    terms = (job, "--profile", _PROFILE, "--cloud", "aws", "--network", "10")
    borne, missed = _json(*terms, "--obtained", "9"), _json(*terms, "--obtained", "0.05")
    assert not borne["network"]["replan"]
    assert missed["network"]["replan"]
    assert _json(*terms)["network"] is None
    assert missed["front"] == _json(*terms[:-1], "0.05")["front"] != _json(*terms)["front"]
    assert "planned anew" in _run(*terms, "--obtained", "0.05").stdout
    alone = _run(_JOB, "--profile", _PROFILE, "--obtained", "9")
    assert (alone.exit_code, "add --network" in alone.stderr) == (2, True)


def test_two_profiles_of_one_kind_are_refused(tmp_path: Path) -> None:
    """Facts of the one and speeds of the other would make a forecast of neither."""
    other = tmp_path / "other.yaml"
    other.write_text(_PROFILE.read_text())
    found = _run(_JOB, "--profile", _PROFILE, "--profile", other, "--deadline", "36h")
    assert found.exit_code == 2
    assert "are both of kind" in found.stderr
    assert "--profile" in found.stderr or "give the newer one alone" in found.stderr
