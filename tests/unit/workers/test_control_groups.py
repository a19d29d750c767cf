"""Limits of an attempt: control groups, scopes of systemd, and memory that is read where there are none."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.attempts import SupervisedAttempt
from walras.errors import ConfigError
from workers import control_groups
from workers.agent.launch import SupervisorStarter
from workers.agent.startup import find_systemd_run
from workers.control_groups import ControlGroup, ExceededLimit, ResourceWatch, find_group_parent, remove_group


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
    assert parent.folder == kernel / "sys fs" / "here" / "walras-attempts"
    assert (parent.controllers, problem) == (("memory", "cpu"), "")
    (kernel / "cgroup").write_text("0::/here/walras-agent\n")
    assert find_group_parent(kernel)[0] == parent
    for name in ("cgroup.subtree_control", "cgroup.controllers"):
        (parent.folder / name).write_text("cpu")
    found, problem = find_group_parent(kernel)
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
        "memory.max": str(256 << 20), "memory.swap.max": "0", "memory.oom.group": "1", "cpu.weight": "400",
    }  # fmt: skip


def test_no_memory_limit_is_none_and_the_weight_is_bounded(tmp_path: Path) -> None:
    """A job that asked for no memory may use what there is."""
    _, folder = a_group(tmp_path, accelerators=1024)
    assert not (folder / "memory.max").exists()
    assert (folder / "cpu.weight").read_text() == "10000"


def test_a_kill_for_want_of_memory_is_told_from_others(tmp_path: Path) -> None:
    """Reaching the limit is no kill: the kernel may have found pages to drop. All of it is killed by one word."""
    group, folder = a_group(tmp_path, memory_bytes=1 << 20)
    assert not group.had_no_memory_left
    (folder / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 0\noom_kill 0\n")
    assert not group.had_no_memory_left
    (folder / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 1\noom_kill 1\n")
    assert group.had_no_memory_left
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


@pytest.fixture
def systemd_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A played one: notes its options, and runs the command behind them."""
    played = tmp_path / "bin/systemd-run"
    played.parent.mkdir()
    words = tmp_path / "words"
    played.write_text(f'#!/bin/sh\nwhile [ "$1" != -- ]; do echo "$1" >> {words}; shift; done; shift; exec "$@"\n')
    played.chmod(0o755)
    monkeypatch.setenv("PATH", str(played.parent), prepend=os.pathsep)
    return played


async def test_a_supervisor_starts_in_a_scope_of_its_attempt(systemd_run: Path, tmp_path: Path) -> None:
    """By the system's manager for root, by the user's for others; its ranks run as they do without."""
    attempt = SupervisedAttempt(tmp_path / "7-1", ["sh", "-c", "echo ran"])
    attempt.folder.mkdir()
    starter = SupervisorStarter(str(systemd_run))
    assert await starter.start(attempt.folder, attempt.plan) == ""
    attempt.wait_event("ended", 30.0)
    await starter.close()
    assert attempt.output() == "ran\n"
    manager = [] if os.geteuid() == 0 else ["--user"]
    expected = [*manager, "--scope", "--quiet", "--collect", f"--unit=walras-attempt-7-1-{attempt.plan.cookie[:8]}"]
    assert (tmp_path / "words").read_text().split() == expected


def test_scopes_are_refused_where_systemd_does_not_run(
    systemd_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the name of the option, before the agent joins."""
    assert find_systemd_run(tmp_path) == str(systemd_run)
    with pytest.raises(ConfigError, match="systemd does not run"):
        find_systemd_run(tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="no systemd-run"):
        find_systemd_run(tmp_path)


MIB = 1 << 20
PARENT, CHILD = 11, 12


class Processes:
    """Two that come to share 160 MiB while the parts of each are read, one read after the other."""

    def __init__(self, parts: Iterator[dict[int, int]], resident: dict[int, int]) -> None:
        self._parts, self._resident = parts, resident

    def part(self, pid: int) -> int:
        return next(self._parts)[pid] * MIB

    def resident(self, pid: int) -> int:
        return self._resident[pid] * MIB


def looked_at(monkeypatch: pytest.MonkeyPatch, *parts: dict[int, int], resident: int = 160) -> ExceededLimit | None:
    """What a watch with a limit of 200 MiB finds; `parts`: of each process, in MiB, at each of the reads."""
    processes = Processes(iter(parts), {PARENT: resident, CHILD: resident})
    monkeypatch.setattr(control_groups, "_proportional_bytes", processes.part)
    monkeypatch.setattr(control_groups, "_resident_bytes", processes.resident)
    return ResourceWatch(200 * MIB, 0, "/nowhere").look([PARENT, CHILD])


def test_memory_that_comes_to_be_shared_while_it_is_read_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child reads its parent's memory between the read of the parent's part and that of its own."""
    alone, shared = {PARENT: 160, CHILD: 0}, {PARENT: 80, CHILD: 80}
    assert looked_at(monkeypatch, alone, shared, shared, shared) is None


def test_what_is_over_the_limit_however_it_is_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the smaller of what was read."""
    more, most = {PARENT: 110, CHILD: 110}, {PARENT: 110, CHILD: 130}
    assert looked_at(monkeypatch, most, most, more, more) == ExceededLimit("memory", 220 * MIB, 200 * MIB)


def test_little_memory_is_not_read_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the limit with shared pages counted for each process, they are not asked for their parts."""
    assert looked_at(monkeypatch, resident=90) is None
