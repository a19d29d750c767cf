"""Attempts in real control groups, where this machine lets us make them (root, or a delegated cgroup v2)."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.attempts import SupervisedAttempt, wait_for
from workers.control_groups import GroupParent, find_group_parent, remove_group

pytestmark = pytest.mark.slow

PARENT, PROBLEM = find_group_parent()
needs_groups = pytest.mark.skipif(PARENT is None, reason=f"no control group can be made here: {PROBLEM}")
needs_memory = pytest.mark.skipif(
    PARENT is None or "memory" not in PARENT.controllers, reason="the memory controller is not with cgroup v2 here"
)

#: Leaves the session twice, throws the environment away, and waits until it is told to go on.
LEAVING = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(300)"], {})
    os._exit(0)
os.wait()
print("settled", flush=True)
time.sleep(300)
"""

HUNGRY = "kept = [bytes([n]) * (64 << 20) for n in range(1, 8)]; import time; time.sleep(300)"


@pytest.fixture
def parent() -> GroupParent:
    assert PARENT is not None
    return PARENT


@pytest.fixture
def attempts(tmp_path: Path) -> Iterator[list[SupervisedAttempt]]:
    started: list[SupervisedAttempt] = []
    yield started
    for attempt in started:
        attempt.close()
        assert remove_group(attempt.plan.group)


def members(group: str) -> list[int]:
    path = Path(group) / "cgroup.procs"
    return [int(word) for word in path.read_text().split()] if path.exists() else []


@needs_groups
def test_ranks_are_in_the_group_and_the_supervisor_is_not(
    parent: GroupParent, attempts: list[SupervisedAttempt], tmp_path: Path
) -> None:
    """The group holds what descends from the ranks, and is gone with the attempt."""
    group = parent.group_for(f"test-{os.getpid()}-a")
    attempt = SupervisedAttempt(tmp_path / "a", [sys.executable, "-c", LEAVING], group=group)
    attempts.append(attempt.start())
    attempt.wait_output("settled")
    wait_for(lambda: len(members(group)) == 2, 5.0, "rank and descendant in the group")
    assert attempt.supervisor_pid not in members(group)
    attempt.tell({"type": "stop", "grace_s": 0.0, "reason": "fenced"})
    attempt.wait_event("ended", 10.0)
    wait_for(lambda: not os.path.exists(group), 5.0, "the group is removed")


@needs_groups
def test_a_descendant_without_session_and_environment_dies_when_supervisor_and_guardian_do(
    parent: GroupParent, attempts: list[SupervisedAttempt], tmp_path: Path
) -> None:
    """Both are killed at once; what the agent does then reaches it by the group alone."""
    group = parent.group_for(f"test-{os.getpid()}-b")
    attempt = SupervisedAttempt(tmp_path / "b", [sys.executable, "-c", LEAVING], group=group)
    attempts.append(attempt.start())
    attempt.wait_output("settled")
    wait_for(lambda: len(members(group)) == 2, 5.0, "rank and descendant in the group")
    guardian = attempt.machine_pids[0]
    for pid in (guardian, attempt.supervisor_pid):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: len(members(group)) == 1, 5.0, "the rank goes with its supervisor")
    assert attempt.alive() == []
    assert remove_group(group)
    assert not os.path.exists(group)


@needs_memory
def test_the_kernel_ends_ranks_at_their_limit(
    parent: GroupParent, attempts: list[SupervisedAttempt], tmp_path: Path
) -> None:
    """448 MiB with a limit of 256: the end says that memory was exceeded."""
    group = parent.group_for(f"test-{os.getpid()}-c")
    command = [sys.executable, "-c", HUNGRY]
    attempt = SupervisedAttempt(tmp_path / "c", command, group=group, memory_bytes=256 << 20)
    attempts.append(attempt.start())
    ended = attempt.wait_event("ended", 20)
    assert (ended["exceeded"], ended["signal"]) == ("memory", signal.SIGKILL)
