"""The job that profiles another in the queue, and what it leaves."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.profiling.test_profile_study import STEP_S, Planned, studied
from walras.cli.profile_commands import KIND_FILE, REPORT_FILE, ProfilingOrder, declared_speed, profiling_job
from walras.errors import ConfigError, JobSpecError
from walras.profiling.profiles import (
    ProfileFile,
    ProfileReport,
    profile_as_json,
    profile_file_fields,
    profile_report,
)
from walras.spec.file_model import check_model
from walras.spec.job_spec import JobSpec, parse_spec
from walras.spec.spec_request import kind_of

ORDER = ProfilingOrder("a100:4", 40, 5, 300.0)


def derived(order: ProfilingOrder = ORDER, **fields: Any) -> tuple[JobSpec, JobSpec, dict[str, Any]]:
    """The profiled job, the job that profiles it, and what that gives to the profiler."""
    spec = parse_spec({"name": "net", "run": "python train.py", **fields})
    outer = profiling_job(spec, order, Path("/here"))
    return spec, outer, json.loads(outer.envs["PROFILED_JOB"] or "")


def test_the_profiling_job_has_the_place_of_the_job_and_the_machines_asked_for() -> None:
    """Folder, data, environment and project are the job's; its gang, its steps and its dependencies are not."""
    spec, outer, inner = derived(
        workdir="code", envs={"LR": "0.1"}, project="vision", setup="make data", python={"packages": ["einops"]},
        inputs={"set": "file:///data/set"}, resources={"accelerators": "v100:8", "cpus": 3}, num_nodes=2, steps=5000,
        batch={"global": 64}, deadline="2027-01-01T00:00:00Z", value_usd_per_h=3.0, elastic=None, depends_on=[3],
    )  # fmt: skip
    assert [(each.accelerator, each.count) for each in outer.resources.accelerators] == [("a100", 4)]
    assert (outer.num_nodes, outer.nproc_per_node, outer.resources.cpus) == (1, 1, 3)
    assert (outer.workdir, outer.project, outer.setup, outer.python) == ("code", "vision", "make data", spec.python)
    assert outer.inputs == spec.inputs
    assert outer.envs["LR"] == "0.1"
    assert outer.outputs == (REPORT_FILE, KIND_FILE)
    assert (outer.steps, outer.deadline, outer.depends_on, outer.batch) == (None, None, (), None)
    assert "--ranks 4 --steps 40 --warm-up 5 --timeout 300s" in str(outer.run)
    script = parse_spec(inner)
    assert (script.run, script.workdir, script.envs, script.batch) == (spec.run, ".", spec.envs, spec.batch)
    assert kind_of(script) == kind_of(spec)
    assert kind_of(outer) != kind_of(spec), "its speed is not the job's"


def test_a_folder_of_the_machines_is_not_written_to() -> None:
    """A job in a shared folder is profiled there, and the profile is written in a folder of the attempt."""
    _, outer, inner = derived(workdir="/shared/net")
    assert (outer.workdir, inner["workdir"]) == (None, "/shared/net")


def test_secrets_reach_the_profiler_by_their_names_alone() -> None:
    """The profiler reads them from its own environment; no value and no place of one is in the variable."""
    _, outer, inner = derived(secrets={"KEY": {"file": "secrets/key"}})
    assert set(outer.secrets) == {"KEY"}
    assert inner["secrets"] == {"KEY": {"env": "KEY"}}


@pytest.mark.parametrize(
    ("fields", "on", "field"),
    [
        ({"image": "torch:2"}, "a100", "image"), ({}, "any:2", "--on"), ({}, "a100:2,v100:2", "resources.accelerators"),
        ({}, "a100:0", "resources.accelerators"),
    ],
)  # fmt: skip
def test_what_cannot_be_profiled_is_named(fields: dict[str, Any], on: str, field: str) -> None:
    with pytest.raises(JobSpecError) as refused:
        derived(ProfilingOrder(on, 40, 5, 300.0), **fields)
    assert refused.value.field == field


def test_a_report_is_read_back_as_it_was_written() -> None:
    profile = studied(2, Planned(STEP_S))
    written = json.loads(json.dumps(profile_as_json(profile)))
    assert profile_report(profile).model_dump(mode="json") == written
    assert check_model(ProfileReport, written, source="report") == profile_report(profile)


@pytest.mark.parametrize(
    "change",
    [
        {"device": "cpu\x1b[2J"}, {"step_s": 0}, {"notes": ["x" * 2000]}, {"notes": ["fine"] * 100},
        {"stalls_s": {"compute": 1e300}}, {"more": 1}, {"job": ""}, {"runs": {f"run {at}": {} for at in range(50)}},
    ],
)  # fmt: skip
def test_a_report_that_no_profiler_writes_is_refused(change: dict[str, Any]) -> None:
    """The file comes from beside a script that may be anybody's."""
    written = profile_as_json(studied(2, Planned(STEP_S)))
    with pytest.raises(ConfigError, match="the report"):
        check_model(ProfileReport, written | change, source="the report")


def test_an_emulated_machine_declares_no_speed() -> None:
    profile = studied(2, Planned(STEP_S))
    kind = check_model(ProfileFile, profile_file_fields(profile), source="profile")
    assert declared_speed("a100:2", profile_report(profile), kind) == ""
    assert declared_speed("cpu:2", profile_report(profile), kind) == f"throughput: {{cpu: {1 / 0.018:.4g}}}"
