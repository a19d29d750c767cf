"""The promises of the supervisor, with real processes."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.attempts import STUBBORN, SupervisedAttempt
from tests.support.waiting import until, wait_for
from workers.agent.launch import SupervisorStarter
from workers.processes import boottime, hold_port
from workers.supervisor_protocol import PLAN_FILE, SUPERVISOR_FILE

pytestmark = pytest.mark.slow

Start = Callable[..., SupervisedAttempt]


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


_BINDS_LATE = """
import os, socket, time
port = int(os.environ["MASTER_PORT"])
print(f"<{port}>")
while not os.path.exists("go"):
    time.sleep(0.02)
socket.create_server(("127.0.0.1", port))
"""


@pytest.mark.parametrize("is_told", [False, True])
def test_nobody_else_gets_the_gangs_port_before_its_rank_binds_it(start: Start, tmp_path: Path, is_told: bool) -> None:
    """Whether the supervisor chooses it or the agent held it: importing torch takes a rank seconds."""
    with hold_port() as held:
        attempt = start(_BINDS_LATE, master_port=held.getsockname()[1] if is_told else 0)
    attempt.wait_output(">")
    port = int(attempt.output().strip("<>\n"))
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    (tmp_path / "go").touch()
    assert attempt.wait_event("ended")["exit_code"] == 0


def test_output_beyond_the_cap_is_left_out_and_said_so(start: Start) -> None:
    """A flood of output stays bounded on disk, keeps its end, and states what is missing."""
    attempt = start("print('x' * 900_000); print('the end')", log_cap_bytes=100_000)
    attempt.wait_event("ended")
    assert len(attempt.output()) < 200_000
    assert "bytes of output left out" in attempt.output()
    assert attempt.output().endswith("the end\n")


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


@pytest.mark.parametrize("graces_s", [(2.0, 300.0), (300.0, 2.0)])
def test_a_second_stop_never_delays_the_end(start: Start, graces_s: tuple[float, float]) -> None:
    """The shorter grace holds, whichever was told first: a machine that leaves soon, then a hold."""
    attempt = start(STUBBORN, lease_s=600.0)
    attempt.wait_output("up")
    for grace_s in graces_s:
        attempt.tell({"type": "stop", "grace_s": grace_s, "reason": "preempted"})
    assert attempt.wait_event("ended", 30.0)["signal"] == signal.SIGKILL


def test_a_renewed_lease_lasts(start: Start) -> None:
    """Renewal moves the end; a renewal that grants an instant already past moves nothing."""
    attempt = start("import time; time.sleep(300)", lease_s=15.0, grace_s=0.2)
    attempt.tell({"type": "renew", "until": attempt.plan.lease_until + 60.0, "lease_s": 60.0})
    attempt.tell({"type": "renew", "until": attempt.plan.lease_until - 60.0, "lease_s": 60.0})
    wait_for(lambda: boottime() > attempt.plan.lease_until + 0.5, 30.0, "the first lease is over")
    assert attempt.alive()
    assert not attempt.events("ended")


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


def test_memory_that_ranks_share_is_counted_once(start: Start) -> None:
    """Two processes over the same 160 MiB stay below 256."""
    attempt = start(SHARING, memory_bytes=256 << 20)
    ended = attempt.wait_event("ended", 40)
    assert (ended["exceeded"], ended["exit_code"]) == ("", 0)


def test_a_rank_that_says_without_end_that_it_is_done_takes_no_memory_of_its_supervisor(start: Start) -> None:
    """And it is believed at the stop: its work was done."""
    says = 'b\'{"type": "finished"}\\n\' * 1000'
    attempt = start(
        "import os, socket, time\n"
        "link = socket.socket(socket.AF_UNIX)\n"
        "link.connect(os.environ['WALRAS_SOCKET'])\n"
        "for turn in range(200):\n"
        f"    link.sendall({says})\n"
        "    if turn == 20: print('some', flush=True)\n"
        "print('all', flush=True)\n"
        "time.sleep(300)\n"
    )
    attempt.wait_output("some")
    before = psutil.Process(attempt.supervisor_pid).memory_info().rss
    attempt.wait_output("all", timeout_s=60.0)
    assert psutil.Process(attempt.supervisor_pid).memory_info().rss - before < 4 * 2**20
    attempt.tell({"type": "stop", "grace_s": 5.0, "reason": "preempted"})
    assert attempt.wait_event("ended", 30.0)["unfinished"] is False


def test_an_attempt_that_fills_its_folder_is_ended(start: Start, tmp_path: Path) -> None:
    """80 MiB with a limit of 32, written into the attempt's own folder."""
    attempt = start(WRITING, disk_bytes=32 << 20, workdir=str(tmp_path / "attempt-0"))
    ended = attempt.wait_event("ended", 40)
    assert (ended["exceeded"], ended["signal"]) == ("disk", signal.SIGKILL)
    assert "MiB of disk, its limit here is 32 MiB" in attempt.output()


async def test_a_starter_that_hangs_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was asked for is refused and never starts; what it started runs on, and the next start works."""
    attempts = [SupervisedAttempt(tmp_path / str(number), ["sleep", "300"]) for number in range(3)]
    starter = SupervisorStarter()
    try:
        told = []
        for attempt in attempts:
            attempt.folder.mkdir()
            told.append(await starter.start(attempt.folder, attempt.plan))
            if attempt is attempts[0]:
                (hung,) = [each for each in psutil.Process().children() if each.cmdline()[-1] == "workers.supervisor"]
                hung.suspend()
            monkeypatch.setattr("workers.agent.launch.LAUNCH_TIMEOUT_S", 0.2 if attempt is attempts[0] else 30.0)
        assert [text[:29] for text in told] == ["", "the supervisor did not start:", ""]
        wait_for(lambda: not hung.is_running(), 30.0, "the one that hung is gone")
        assert [len(attempt.alive()) for attempt in attempts] == [1, 0, 1]
        assert [(each.folder / PLAN_FILE).exists() for each in attempts] == [True, False, True]
        assert not (attempts[1].folder / SUPERVISOR_FILE).exists()
    finally:
        await starter.close()
        for attempt in attempts:
            attempt.close()


async def test_more_starts_than_the_kernel_keeps_wait_for_each_other(tmp_path: Path) -> None:
    """Their starter is not replaced for that, which would refuse all that wait."""
    attempt, starter = SupervisedAttempt(tmp_path / "1", ["sleep", "300"]), SupervisorStarter()
    attempt.folder.mkdir()
    try:
        assert await starter.start(attempt.folder, attempt.plan) == ""
        (busy,) = [each for each in psutil.Process().children() if each.cmdline()[-1] == "workers.supervisor"]
        busy.suspend()
        starts = [asyncio.create_task(starter.fork(tmp_path / "missing", attempt.plan)) for _ in range(300)]
        await asyncio.sleep(0)
        busy.resume()
        assert not any(await asyncio.gather(*starts))
        assert busy.is_running()
        await starter.close()
        await until(lambda: not busy.is_running(), 30.0, "the starter is gone")
    finally:
        await starter.close()
        attempt.close()
