"""The promises of the supervisor, with real processes."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.attempts import STUBBORN, SupervisedAttempt, wait_for
from workers.processes import boottime

pytestmark = pytest.mark.slow

Start = Callable[..., SupervisedAttempt]

#: As `STUBBORN`, after throwing the environment away: no cookie to find it by.
NAMELESS = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(300)", "NAMELESS"], {})
    os._exit(0)
os.wait()
print("up", flush=True)
time.sleep(300)
""".replace("NAMELESS", f"walras-nameless-of-{os.getpid()}")

LOOP = """
from walras.training import Checkpoint, Loop

class Counter:
    n = 0
    def state_dict(self): return {"n": self.n}
    def load_state_dict(self, state): self.n = state["n"]

counter = Counter()
loop = Loop(Checkpoint(counter=counter, every_s=None))
import time
for step in loop.steps(range(100_000)):
    counter.n += 1
    time.sleep(0.01)
    loop.report(loss=1.0 / (1 + step))
    if step == 20:
        print("going", flush=True)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[SupervisedAttempt] = []

    def start_script(script: str, **changes: Any) -> SupervisedAttempt:
        folder = tmp_path / f"attempt-{len(started)}"
        attempt = SupervisedAttempt(folder, **{"argv": [sys.executable, "-c", script]} | changes)
        started.append(attempt)
        return attempt.start()

    yield start_script
    for attempt in started:
        attempt.close()


def nameless() -> list[int]:
    """The `NAMELESS` descendants of this process's tests: another may run its own beside them."""
    wanted, found = f"walras-nameless-of-{os.getpid()}".encode(), []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and wanted in Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0"):
                found.append(int(name))
        except OSError:
            continue
    return found


def test_it_records_how_the_ranks_ended_and_keeps_their_output(start: Start) -> None:
    """A run that succeeds is on record with exit code 0, and what it wrote, on either stream, is in its log."""
    attempt = start("import sys; print('out'); print('err', file=sys.stderr)")
    ended = attempt.wait_event("ended")
    assert (ended["cause"], ended["exit_code"], ended["signal"]) == ("exited", 0, None)
    assert attempt.output().split() == ["out", "err"]


def test_a_program_that_is_not_there_ends_with_127_and_says_so(start: Start) -> None:
    """A mistyped command is the job's failure, with the reason in its log, not a machine's refusal."""
    attempt = start("", argv=["no-such-program-anywhere"])
    assert attempt.wait_event("ended")["exit_code"] == 127
    assert "no-such-program-anywhere" in attempt.output()


def test_output_beyond_the_cap_is_left_out_and_said_so(start: Start) -> None:
    """A flood of output stays bounded on disk, keeps its end, and states what is missing."""
    attempt = start("print('x' * 900_000); print('the end')", log_cap_bytes=100_000)
    attempt.wait_event("ended")
    assert len(attempt.output()) < 200_000
    assert "bytes of output left out" in attempt.output()
    assert attempt.output().endswith("the end\n")


def test_a_job_that_double_forks_and_ignores_sigterm_leaves_no_process_after_stop(start: Start) -> None:
    """Double fork, setsid and SIG_IGN do not help a process to outlive its attempt."""
    attempt = start(STUBBORN)
    attempt.wait_output("up")
    assert len(attempt.alive()) == 2
    attempt.tell({"type": "stop", "grace_s": 0.5, "reason": "cancelled"})
    ended = attempt.wait_event("ended")
    assert ended["signal"] == signal.SIGKILL
    assert attempt.alive() == []


def test_a_descendant_without_environment_is_found_too(start: Start) -> None:
    """Who threw away the cookie is still a descendant."""
    attempt = start(NAMELESS)
    attempt.wait_output("up")
    wait_for(nameless, 20.0, "the nameless process")
    attempt.tell({"type": "stop", "grace_s": 0.0, "reason": "fenced"})
    attempt.wait_event("ended")
    assert nameless() == []


def test_killing_the_supervisor_ends_ranks_and_descendants_at_once(start: Start) -> None:
    """kill -9 of a supervisor: ranks gone, and double-forked and nameless descendants, long before a lease
    ends, without an agent."""
    attempt = start(STUBBORN + "\n", devices=[0, 1], lease_s=600.0)
    other = start(NAMELESS, lease_s=600.0)
    for rank in (0, 1):
        attempt.wait_output("up", rank=rank)
    other.wait_output("up")
    wait_for(nameless, 20.0, "the nameless process")
    ranks = attempt.events("started")[0]["pids"] + other.events("started")[0]["pids"]
    for pid in (attempt.supervisor_pid, other.supervisor_pid):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in ranks), 1.0, "ranks gone")
    wait_for(lambda: not attempt.alive() and not other.alive() and not nameless(), 4.0, "descendants gone")


def test_killing_one_rank_of_two_stops_the_other(start: Start) -> None:
    """The first failing rank ends the gang, even when the other ignores SIGTERM, and is the one on record."""
    attempt = start(STUBBORN, devices=[0, 1])
    for rank in (0, 1):
        attempt.wait_output("up", rank=rank)
    os.kill(attempt.events("started")[0]["pids"][1], signal.SIGKILL)
    ended = attempt.wait_event("ended", 10.0)
    assert (ended["failed_rank"], ended["signal"]) == (1, signal.SIGKILL)
    assert attempt.alive() == []


def test_nothing_survives_the_lease(start: Start) -> None:
    """Without renewal the ranks are signalled before the lease ends and gone when it has ended."""
    attempt = start(STUBBORN, lease_s=30.0, grace_s=10.0)
    attempt.wait_output("up")
    ended = attempt.wait_event("ended", 60.0)
    assert ended["cause"] == "lease_expired"
    # Were they signalled at the end of the lease only, they would last for the grace period more.
    assert ended["at"] <= attempt.plan.lease_until + 8.0
    assert attempt.alive() == []


def test_a_renewed_lease_lasts(start: Start) -> None:
    """Renewal moves the end; a renewal that grants an instant already past moves nothing."""
    attempt = start("import time; time.sleep(300)", lease_s=15.0, grace_s=0.2)
    attempt.tell({"type": "renew", "until": attempt.plan.lease_until + 60.0, "lease_s": 60.0})
    attempt.tell({"type": "renew", "until": attempt.plan.lease_until - 60.0, "lease_s": 60.0})
    wait_for(lambda: boottime() > attempt.plan.lease_until + 0.5, 30.0, "the first lease is over")
    assert attempt.alive()
    assert not attempt.events("ended")


def test_a_stop_request_reaches_the_loop_which_checkpoints_and_ends_with_85(start: Start) -> None:
    """A script with the in-job client saves at once, commits, and ends with 85; its supervisor records the commit."""
    attempt = start(LOOP, grace_s=60.0, lease_s=600.0)
    attempt.wait_output("going")
    attempt.tell({"type": "stop", "grace_s": 60.0, "reason": "preempted"})
    ended = attempt.wait_event("ended", 15.0)  # long before anything of the grace period is over
    assert (ended["exit_code"], ended["cause"]) == (85, "exited")
    committed = attempt.wait_event("committed")
    assert committed["manifest"]["step"] == ended["progress"]["steps"] > 20
    assert ended["progress"]["start_s"] > 0
    assert Path(committed["manifest"]["path"], "manifest.json").exists()


def test_a_plain_script_gets_sigterm(start: Start) -> None:
    """Without the in-job client, the stop is SIGTERM at once, and what the script then does is its own affair."""
    script = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(85)); print('up'); time.sleep(300)"
    attempt = start(script, lease_s=600.0)
    attempt.wait_output("up")
    attempt.tell({"type": "stop", "grace_s": 60.0, "reason": "preempted"})
    assert attempt.wait_event("ended", 15.0)["exit_code"] == 85


def test_a_machine_frozen_past_the_lease_commits_nothing_and_dies_at_once_when_it_thaws(start: Start) -> None:
    """SIGSTOP of everything, the lease runs out, SIGCONT: gone at once, and nothing counts as committed."""
    attempt = start(LOOP.replace("every_s=None", "every_s=0.2"), lease_s=20.0, grace_s=0.5)

    def renewed_and_committed() -> bool:
        attempt.tell({"type": "renew", "until": boottime() + 12.0, "lease_s": 12.0})
        return bool(attempt.events("committed"))

    wait_for(renewed_and_committed, 30.0, "a commit before the freeze")
    pids = attempt.machine_pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    committed_before = len(attempt.events("committed"))
    until = max(attempt.plan.lease_until, boottime() + 12.0) + 0.5
    wait_for(lambda: boottime() > until, 30.0, "the lease is over")
    for pid in reversed(pids):  # the ranks thaw first and go on training
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: not attempt.alive(), 1.0, "ranks gone after the thaw")
    assert attempt.wait_event("ended")["cause"] == "lease_expired"
    assert len(attempt.events("committed")) == committed_before


def test_the_supervisor_lives_in_a_session_of_its_own_and_ranks_in_a_group_of_theirs(start: Start) -> None:
    """A signal to the group of an agent, a shell or a supervisor does not reach the ranks, nor the other way round."""
    attempt = start("import time; print('up'); time.sleep(300)", devices=[0, 1])
    attempt.wait_output("up", rank=1)
    ranks = attempt.events("started")[0]["pids"]
    groups = {os.getpgid(pid) for pid in ranks}
    assert len(groups) == 1
    assert os.getpgid(attempt.supervisor_pid) not in groups
    assert os.getsid(attempt.supervisor_pid) != os.getsid(0)


def test_the_socket_folder_is_closed_to_others(start: Start) -> None:
    """The sockets are readable and writable by their owner alone."""
    attempt = start("import time; time.sleep(300)")
    for path in (attempt.plan.rank_socket, attempt.plan.control_socket):
        assert os.stat(path).st_mode & 0o077 == 0


HUNGRY = """
import time
kept = [bytes([n]) * (64 << 20) for n in range(1, 8)]
print("has all of it", flush=True)
time.sleep(300)
"""

SHARING = """
import mmap, os, time
kept = mmap.mmap(-1, 160 << 20)
for _ in range(160):
    kept.write(b"x" * (1 << 20))
if os.fork() == 0:
    sum(kept[at] for at in range(0, 160 << 20, 4096))
    print("shared", flush=True)
time.sleep(3)
"""

WRITING = """
import time
for n in range(40):
    with open(f"part-{n}", "wb") as file:
        file.write(bytes(1 << 20) * 2)
        file.flush()
    time.sleep(0.02)
print("written", flush=True)
time.sleep(300)
"""


def test_ranks_that_use_more_memory_than_they_asked_for_are_ended(start: Start) -> None:
    """448 MiB with a limit of 256: ended within seconds, and the log and the report say why."""
    attempt = start(HUNGRY, memory_bytes=256 << 20)
    ended = attempt.wait_event("ended", 40)
    assert (ended["exceeded"], ended["signal"]) == ("memory", signal.SIGKILL)
    assert "MiB of memory, its limit here is 256 MiB" in attempt.output()


def test_memory_that_ranks_share_is_counted_once(start: Start) -> None:
    """Two processes over the same 160 MiB stay below 256."""
    attempt = start(SHARING, memory_bytes=256 << 20)
    ended = attempt.wait_event("ended", 40)
    assert (ended["exceeded"], ended["exit_code"]) == ("", 0)


def test_an_attempt_that_fills_its_folder_is_ended(start: Start, tmp_path: Path) -> None:
    """80 MiB with a limit of 32, written into the attempt's own folder."""
    attempt = start(WRITING, disk_bytes=32 << 20, workdir=str(tmp_path / "attempt-0"))
    ended = attempt.wait_event("ended", 40)
    assert (ended["exceeded"], ended["signal"]) == ("disk", signal.SIGKILL)
    assert "MiB of disk, its limit here is 32 MiB" in attempt.output()
