"""What is written into control groups, against folders that look like those of the kernel."""

from pathlib import Path

import pytest

from workers.control_groups import ControlGroup, find_group_parent, remove_group


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """A cgroup v2 below `tmp_path/sys fs` with this process in /here, as `/proc/self` and the mounts tell it."""
    own = tmp_path / "sys fs" / "here"
    for folder in (own, own / "walras-attempts"):
        folder.mkdir(parents=True)
        (folder / "cgroup.controllers").write_text("cpuset cpu memory pids")
        (folder / "cgroup.subtree_control").write_text("cpu memory")
        (folder / "cgroup.procs").write_text("")
    (tmp_path / "mounts").write_text(f"proc /proc proc rw 0 0\ncgroup2 {tmp_path}/sys\\040fs cgroup2 rw 0 0\n")
    (tmp_path / "cgroup").write_text("4:memory:/elsewhere\n0::/here\n")
    return tmp_path


def a_group(folder: Path, **limits: int) -> tuple[ControlGroup, Path]:
    """A group, made where the kernel would fill a new folder with its files."""
    group = folder / "1-1"

    class Filled(ControlGroup):
        def _limit(self, name: str, value: int) -> None:
            (group / name).touch()
            super()._limit(name, value)

    original = Path.mkdir

    def mkdir(path: Path, *args: int, **options: bool) -> None:
        original(path, *args, **options)
        (path / "cgroup.procs").touch()

    Path.mkdir = mkdir  # type: ignore[method-assign]
    try:
        return Filled(str(group), **limits), group
    finally:
        Path.mkdir = original  # type: ignore[method-assign]


def test_groups_lie_below_the_own_one_with_the_controllers_that_hold(kernel: Path) -> None:
    """The mount's name is unescaped, the agent's own place is passed over, and what is missing is said."""
    parent, problem = find_group_parent(kernel)
    assert parent is not None
    assert parent.folder == kernel / "sys fs" / "here" / "walras-attempts"
    assert (parent.controllers, problem) == (("memory", "cpu"), "")
    (kernel / "cgroup").write_text("0::/here/walras-agent\n")
    assert find_group_parent(kernel)[0] == parent
    for name in ("cgroup.subtree_control", "cgroup.controllers"):
        (parent.folder / name).write_text("cpu")
    found, problem = find_group_parent(kernel)
    assert found is not None
    assert (found.controllers, problem) == (("cpu",), "without the controllers memory")


def test_a_machine_without_cgroup_v2_says_so(kernel: Path) -> None:
    """No mount, no group of one's own, or a folder that nobody may write: a reason each, and no group."""
    (kernel / "mounts").write_text("cgroup /sys/fs/cgroup/memory cgroup rw 0 0\n")
    assert find_group_parent(kernel) == (None, "no cgroup v2 is mounted")
    (kernel / "mounts").write_text("none /nowhere/at/all cgroup2 ro 0 0\n")
    parent, problem = find_group_parent(kernel)
    assert parent is None
    assert "No such file" in problem


def test_limits_are_those_of_the_job(tmp_path: Path) -> None:
    """Memory without swap, all of the group at once when there is none left, processors by accelerators."""
    group, folder = a_group(tmp_path, memory_bytes=256 << 20, accelerators=4)
    assert group.problem == ""
    written = {path.name: path.read_text() for path in folder.iterdir() if path.read_text()}
    assert written == {
        "memory.max": str(256 << 20),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "cpu.weight": "400",
    }


def test_no_memory_limit_is_none_and_the_weight_is_bounded(tmp_path: Path) -> None:
    """A job that asked for no memory may use what there is."""
    _, folder = a_group(tmp_path, accelerators=1024)
    assert not (folder / "memory.max").exists()
    assert (folder / "cpu.weight").read_text() == "10000"


def test_a_kill_for_want_of_memory_is_told_from_others(tmp_path: Path) -> None:
    """Reaching the limit is no kill: the kernel may have found pages to drop."""
    group, folder = a_group(tmp_path, memory_bytes=1 << 20)
    assert not group.had_no_memory_left
    (folder / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 0\noom_kill 0\n")
    assert not group.had_no_memory_left
    (folder / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 1\noom_kill 1\n")
    assert group.had_no_memory_left


def test_all_of_it_is_killed_by_one_word(tmp_path: Path) -> None:
    """`cgroup.kill` where the kernel has it."""
    group, folder = a_group(tmp_path)
    (folder / "cgroup.kill").touch()
    group.kill()
    assert (folder / "cgroup.kill").read_text() == "1"


def test_without_a_group_nothing_happens(tmp_path: Path) -> None:
    """Nor where it cannot be made: the reason is kept, and the attempt starts all the same."""
    for folder in ("", str(tmp_path / "missing" / "group")):
        group = ControlGroup(folder, 1 << 20)
        group.enter()
        group.kill()
        group.close()
        assert not group.had_no_memory_left
        assert bool(group.problem) is bool(folder)
    assert remove_group("")
    assert remove_group(str(tmp_path / "missing"))
