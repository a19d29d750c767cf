"""Jobs that start their ranks themselves: recognised, and warned of where each rank would start all of them."""

import pytest

from walras.spec.job_spec import parse_spec
from walras.spec.launchers import is_launcher, launcher_in, launcher_note


@pytest.mark.parametrize(
    ("run", "launcher"),
    [
        ("torchrun train.py", "torchrun"),
        ("cd src && OMP_NUM_THREADS=1 /opt/bin/torchrun --nproc_per_node 4 train.py", "torchrun"),
        ("pip install deepspeed\nuv run accelerate launch \\\n  train.py", "accelerate launch"),
        ("python3 -u -m torch.distributed.run train.py", "torch.distributed.run"),
        ("bash -c 'deepspeed train.py'", "deepspeed"),
        (("bash", "-c", "exec torchrun train.py"), "torchrun"),
        ("python train.py  # not torchrun", None),
        ("pip install deepspeed accelerate && python deepspeed_train.py", None),
        ("echo torchrun; accelerate env; python -m torch.utils.collect_env", None),
    ],
)
def test_a_launcher_is_seen_where_it_is_started(run: str, launcher: str | None) -> None:
    """In scripts and lists of arguments, below a path, after other commands; not where it is only named."""
    assert launcher_in(run) == launcher


def test_one_launcher_for_each_accelerator_is_warned_of() -> None:
    """Two complete trainings on the same two devices both succeed: only the warning tells."""
    twice = {"run": "torchrun train.py", "resources": {"accelerators": "a100:2"}}
    assert "once for each of its 2 accelerators" in launcher_note(parse_spec(twice))
    assert "nproc_per_node: 1" in launcher_note(parse_spec(twice))
    for change in ({"nproc_per_node": 1}, {"num_nodes": 2}, {"run": "python train.py"}):
        assert launcher_note(parse_spec(twice | change)) == "", change
    grows = {"run": "torchrun train.py", "elastic": {"min": 1, "max": 4}}
    assert "4 accelerators" in launcher_note(parse_spec(grows))
    assert launcher_note(parse_spec(grows | {"nproc_per_node": 1})) == ""


def test_deepspeed_is_warned_of_as_torchrun_is_and_where_no_shell_starts_it() -> None:
    two = {"run": "deepspeed --zero 3 train.py", "resources": {"accelerators": "a100:2"}}
    assert "starts deepspeed once for each of its 2 accelerators" in launcher_note(parse_spec(two))
    assert launcher_note(parse_spec(two | {"nproc_per_node": 1})) == ""
    alone = two | {"nproc_per_node": 1, "run": ["/opt/bin/deepspeed", "train.py"]}
    assert "without a shell" in launcher_note(parse_spec(alone))


def test_one_process_per_machine_is_what_several_devices_make_of_it() -> None:
    """`nproc_per_node: 1` with one accelerator on each machine is a rank as any other."""
    one = {"run": "x", "nproc_per_node": 1}
    assert not is_launcher(parse_spec(one))
    assert not is_launcher(parse_spec(one | {"num_nodes": 2, "resources": {"accelerators": "a100:2"}}))
    assert is_launcher(parse_spec(one | {"num_nodes": 2, "resources": {"accelerators": "a100:4"}}))
    assert is_launcher(parse_spec(one | {"elastic": {"min": 1, "max": 4}}))
