"""`walras simulate workload`: from a generator or any trace to a file of ours, and what is told of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from walras.cli.main import app

PHILLY = "job_id,user,submit_time_s,num_gpus,duration_s,status,gpu_type,cluster\n"


def _run(*args: object) -> Any:
    return CliRunner().invoke(app, ["simulate", "workload", *(str(arg) for arg in args)])


def test_generate_describe_and_convert(tmp_path: Path) -> None:
    """A generated trace is described in its numbers, and converted without loss."""
    trace, lines, again = tmp_path / "t.csv.gz", tmp_path / "t.jsonl", tmp_path / "u.csv.gz"
    made = _run("generate", "poisson", "-o", trace, "--jobs", 40, "--rate", 20, "--seed", 2, "--set", "slos=true")
    assert made.exit_code == 0, made.output
    assert "40 jobs" in made.stdout
    told = json.loads(_run("describe", trace, "-o", "json").stdout)
    assert (told["jobs"], told["with_deadline"], told["format"]) == (40, 40, "csv")
    assert _run("convert", trace, lines).exit_code == 0
    assert _run("convert", lines, again).exit_code == 0
    assert again.read_bytes() == trace.read_bytes()
    shown = _run("describe", trace, "--cluster", _cluster(tmp_path)).stdout
    assert "offered load" in shown
    assert "run time (fastest type)" in shown


def _cluster(folder: Path) -> Path:
    path = folder / "c.yaml"
    path.write_text(
        "pools: [{shape: v, accelerator: v100, accelerators: 8, cpus: 1, memory: 1GB, nominal_speed: 2, machines: 2}]\n"
    )
    return path


def test_a_bad_row_stops_a_conversion_unless_skipping_is_asked_for(tmp_path: Path) -> None:
    """Exit code 2 and the place; else the number of rows left out, and the first of them, on standard error."""
    source, out = tmp_path / "t.csv", tmp_path / "o.csv"
    source.write_text(PHILLY + "a,u,0,1,60,,,c\nb,u,1,0,60,,,c\n")
    refused = _run("convert", source, out)
    assert refused.exit_code == 2
    assert "t.csv:3: num_gpus is '0'" in refused.stderr
    assert not out.exists()
    done = _run("convert", source, out, "--set", "skip_bad_rows=true")
    assert done.exit_code == 0
    assert "1 rows were skipped" in done.stderr
    assert "t.csv:3: num_gpus is '0'" in done.stderr
    assert "1 jobs" in done.stdout
    assert "1 rows were skipped" in _run("describe", source, "--set", "skip_bad_rows=true").stderr


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    """Unless its replacement is asked for."""
    out = tmp_path / "o.csv"
    out.write_text("mine")
    assert _run("generate", "gavel", "-o", out, "--jobs", 3).exit_code == 2
    assert out.read_text() == "mine"
    assert _run("generate", "gavel", "-o", out, "--jobs", 3, "--force").exit_code == 0


def test_speeds_can_be_drawn_for_a_cluster(tmp_path: Path) -> None:
    """Each kind has one on every type."""
    source, out = tmp_path / "t.csv", tmp_path / "o.jsonl"
    source.write_text(PHILLY + "a,u,0,1,60,,,c\nb,u,1,1,60,,,c\n")
    done = _run("convert", source, out, "--seeded-speeds", _cluster(tmp_path), "--kinds", 1, "--seed", 4)
    assert done.exit_code == 0, done.output
    first, second = (json.loads(line) for line in out.read_text().splitlines())
    assert first["kind"] == second["kind"] == "kind-01"
    assert first["speeds"] == second["speeds"]
    assert first["speeds"].keys() == {"v100"}


def test_a_workload_file_is_converted_unless_something_would_be_lost(tmp_path: Path) -> None:
    """Its jobs become rows; incidents have no place in a trace. It can be described."""
    source = tmp_path / "w.yaml"
    source.write_text("jobs: [{at: 0s, job: {run: x, profile: cnn, steps: 5}}]\n")
    assert _run("convert", source, tmp_path / "o.csv").exit_code == 0
    assert (tmp_path / "o.csv").read_text() == "at,name,kind,gang,steps,user\n0.0,1-job,cnn,1,5.0,user\n"
    assert _run("describe", source).exit_code == 0
    source.write_text(source.read_text() + "incidents: [{at: 5s, revoke: a/spot/default}]\n")
    refused = _run("convert", source, tmp_path / "lost.csv")
    assert refused.exit_code == 2
    assert "incidents" in refused.stderr


@pytest.mark.slow
def test_a_trace_is_drawn(tmp_path: Path) -> None:
    """Where a file for it is given."""
    trace, plot = tmp_path / "t.csv", tmp_path / "p.svg"
    _run("generate", "burst", "-o", trace, "--jobs", 30)
    done = _run("describe", trace, "--plot", plot)
    assert done.exit_code == 0, done.output
    assert "drawn in" in done.stdout
    assert plot.read_text().startswith("<?xml")


def test_formats_and_generators_are_listed() -> None:
    """For people and for programs."""
    assert "hadar-60" in _run("list").stdout
    names = {entry["name"] for entry in json.loads(_run("list", "-o", "json").stdout)}
    assert {"swf", "openb", "diurnal"} <= names
