"""SkyPilot's tasks: read into fields, or named."""

from pathlib import Path

import pytest

from walras.cli.submit_commands import read_job_file
from walras.errors import JobSpecError
from walras.spec.skypilot_tasks import read_skypilot_task
from walras.spec.spec_request import argv_of

TASK = """
name: resnet
resources: {accelerators: "A100-80GB:4", cpus: 32+, memory: 256+, cloud: aws, use_spot: true}
num_nodes: 2
workdir: .
envs: {LR: 0.1}
file_mounts: {/data: s3://bucket}
setup: pip install -r requirements.txt
run: |
  torchrun --node_rank $SKYPILOT_NODE_RANK --master_addr $(echo "$SKYPILOT_NODE_IPS" | head -n1) train.py
"""


def test_a_task_becomes_a_job_and_the_rest_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Accelerators of a machine become those of the gang; cores and memory those of an accelerator."""
    (tmp_path / "task.yaml").write_text(TASK)
    spec = read_job_file(str(tmp_path / "task.yaml"), [], [], [], skypilot=True)
    (demand,) = spec.resources.accelerators
    assert (spec.name, demand.accelerator, demand.count, spec.num_nodes) == ("resnet", "a100-80gb", 8, 2)
    assert (spec.resources.cpus, spec.resources.memory, spec.nproc_per_node) == (8.0, 64 * 10**9, 1)
    assert (spec.workdir, spec.envs) == (".", {"LR": "0.1"})
    script = argv_of(spec)[-1]
    assert script.index("SKYPILOT_NODE_RANK=$WALRAS_NODE_RANK") < script.index("torchrun")
    assert spec.setup == "pip install -r requirements.txt"
    told = capsys.readouterr().err
    assert [line.split(": ")[1] for line in told.splitlines()] == [
        "file_mounts",
        "resources.cloud",
        "resources.use_spot",
    ]
    with pytest.raises(JobSpecError, match=r"file_mounts.*2 more lines"):
        read_job_file(str(tmp_path / "task.yaml"), [], [], [], skypilot=True, strict=True)


@pytest.mark.parametrize(
    ("accelerators", "expected"),
    [
        ("V100", {"V100": 1}),
        ({"A100": 2, "H100": 1}, {"A100": 2, "H100": 1}),
        (["T4:2", "L4:1"], {"T4": 2, "L4": 1}),
        (None, {"any": 1}),
    ],
)
def test_accelerators_are_read_in_all_their_forms(accelerators: object, expected: dict[str, int]) -> None:
    fields, notes = read_skypilot_task({"run": "x", "resources": {"accelerators": accelerators}})
    assert (fields["resources"]["accelerators"], notes) == (expected, [])


def test_what_is_no_field_of_a_task_is_named() -> None:
    fields, notes = read_skypilot_task({"run": "x", "resources": [{"cloud": "aws"}], "workdir": {"url": "git"}, "x": 1})
    assert [note.split(":")[0] for note in notes] == ["resources", "workdir", "x"]
    assert "workdir" not in fields
