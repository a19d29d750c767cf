"""Commands, shells and connections reach a running job through its agent's own connection, for those who may."""

import contextlib
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.support.newcomer import unused_port
from tests.support.real_server import FIFO, WALRAS, A, RealServer, Serve, processes_of, wait_for
from workers.control_groups import find_group_parent

pytestmark = pytest.mark.slow

SERVE = """
import http.server, os
open("here.txt", "w").write("in the folder")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
print("port", server.server_address[1], flush=True)
server.serve_forever()
"""


@pytest.fixture(scope="module")
def running(serve_all: Serve) -> Iterator[tuple[RealServer, int, int]]:
    """A server, a job that runs there, and the port that it listens on."""
    server = serve_all([A], FIFO)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # an agent that was started behind nohup
    try:
        server.start_agent()
        spec = {"run": [sys.executable, "-c", SERVE], "workdir": None, "envs": {"MINE": "of the job"}}
        job = server.submit(resources={"accelerators": "a"}, grace_period=1, **spec)
        told = wait_for(lambda: "\n" in (log := server.log(job, 1)) and log.split(), 40, "the job listens")
        yield server, job, int(told[1])
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_command_runs_in_the_jobs_place_with_its_input_and_code(running: tuple[RealServer, int, int]) -> None:
    server, job, _ = running
    script = 'cat here.txt; echo " $MINE $RANK"; read word; echo "got $word"; echo aside >&2; exit 7'
    done = server.command("exec", str(job), "--", "bash", "-c", script, input="a word\n")
    assert done.stdout == "in the folder of the job 0\ngot a word\n"
    assert (done.stderr, done.returncode) == ("aside\n", 7)
    big = server.command("exec", str(job), "--", "head", "-c", "5000000", "/dev/zero")
    assert (len(big.stdout), big.returncode) == (5_000_000, 0)
    gone = server.command("exec", str(job), "--", "no-such-program")
    assert gone.returncode == 2
    assert "No such file" in gone.stderr
    audit = server.call("GET", "/audit")[1]
    assert any(row["subject"] == f"session with job {job}" and row["after"]["argv"][0] == "bash" for row in audit)


@pytest.mark.parametrize("given", ["</dev/null", "<&-", "0>/dev/null", "<$FILE", "pipe"])
def test_a_command_ends_whatever_its_caller_has_for_input(running: tuple[RealServer, int, int], given: str) -> None:
    """From cron, CI, behind nohup, with a closed input: the command sees the end of its input, and its code comes."""
    server, job, _ = running
    file = server.data.parent / "input.txt"
    file.write_text("of a file\n")
    line = f"{WALRAS} exec {job} -- sh -c 'cat; echo end; exit 5'"
    line = f"echo of a pipe | {line}" if given == "pipe" else f"{line} {given}"
    env = server.access | {"FILE": str(file)}
    done = subprocess.run(["sh", "-c", line], env=env, capture_output=True, text=True, timeout=60, check=False)
    first = {"<$FILE": "of a file\n", "pipe": "of a pipe\n"}.get(given, "")
    assert (done.stdout, done.stderr, done.returncode) == (f"{first}end\n", "", 5)


@pytest.mark.skipif(find_group_parent()[0] is None, reason="no control group can be made here")
def test_what_a_session_starts_is_in_the_jobs_control_group(running: tuple[RealServer, int, int]) -> None:
    """So it counts in the job's limits, and the kernel ends it with the attempt even if it hides."""
    server, job, _ = running
    line = "env -i setsid cat /proc/self/cgroup"
    own = server.command("exec", str(job), "--", "sh", "-c", line).stdout
    assert f"/walras-attempts/{job}-1-" in own


def test_a_log_is_shown_from_its_end_or_from_a_time(running: tuple[RealServer, int, int]) -> None:
    server, job, port = running
    assert server.command("logs", str(job), "--since", "1h", "--tail", "9").stdout.startswith(f"port {port}\n")
    assert server.command("logs", str(job), "--tail", "0").stdout == ""
    assert "--rank" in server.command("logs", str(job), "--rank", "all", "--tail", "1").stderr


def test_others_are_refused_and_so_is_a_job_that_does_not_run(running: tuple[RealServer, int, int]) -> None:
    server, job, _ = running
    token = server.call("POST", "/tokens", {"user": "eve", "role": "user"})[1]["token"]
    done = server.command("exec", str(job), "--", "id", env={"WALRAS_TOKEN": token})
    assert done.returncode == 2
    assert f"job {job} belongs to" in done.stderr
    held = server.submit(run="x", hold=True)
    assert f"job {held} does not run" in server.command("exec", str(held), "--", "id").stderr


def test_a_port_of_the_job_is_reached_and_no_other(running: tuple[RealServer, int, int]) -> None:
    server, job, port = running
    local = unused_port()
    words = [WALRAS, "exec", "--forward", str(job), f"{local}:{port}"]
    with subprocess.Popen(words, env=server.access, stdout=subprocess.PIPE, text=True) as forward:
        try:
            assert forward.stdout is not None
            assert f"port {port} of job {job}" in forward.stdout.readline()
            for _ in range(3):
                with socket.create_connection(("127.0.0.1", local), timeout=300) as caller:
                    caller.sendall(b"GET /here.txt HTTP/1.0\r\n\r\n")
                    answer = b"".join(iter(lambda caller=caller: caller.recv(65536), b""))  # type: ignore[misc]
                assert answer.endswith(b"\r\n\r\nin the folder")
        finally:
            forward.terminate()
    own = int(server.url.rsplit(":", 1)[1])
    done = server.command("forward", str(job), str(own))
    assert f"no process of the job listens on port {own}" in done.stderr


class Shell:
    """`walras exec JOB` at a terminal of its own."""

    def __init__(self, server: RealServer, job: int) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.execve(WALRAS, [WALRAS, "exec", str(job)], server.access | {"TERM": "xterm"})
        self.seen = b""
        self.until(b"/work")  # the prompt: keys typed before it are flushed

    def until(self, word: bytes) -> None:
        end = time.monotonic() + 150
        while word not in self.seen:
            assert time.monotonic() < end, self.seen
            if select.select([self.terminal], [], [], 0.2)[0]:
                with contextlib.suppress(OSError):
                    self.seen += os.read(self.terminal, 65536)

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())


def test_what_a_shell_started_ends_when_its_caller_is_gone(running: tuple[RealServer, int, int]) -> None:
    """Also a command in the foreground, which a shell runs in a process group of its own; the job runs on."""
    server, job, _ = running
    shell, sleeper = Shell(server, job), f"sleep {50_000 + os.getpid()}"
    shell.type(f"{sleeper}\n")
    wait_for(lambda: _found(sleeper), 20, "it sleeps")
    os.kill(shell.pid, signal.SIGKILL)
    os.waitpid(shell.pid, 0)
    os.close(shell.terminal)
    wait_for(lambda: not _found(sleeper), 20, "what ran in the session is gone")
    assert server.state(job) == "RUNNING"


def test_what_a_caller_leaves_behind_a_full_pipe_ends(running: tuple[RealServer, int, int]) -> None:
    """A command that reads no input holds up its connection, by whose end alone the machine would not learn of it."""
    server, job, _ = running
    sleeper = f"sleep {70_000 + os.getpid()}"
    words = [WALRAS, "exec", str(job), "--", *sleeper.split()]
    with subprocess.Popen(words, env=server.access, stdin=subprocess.PIPE) as caller:
        assert caller.stdin is not None
        wait_for(lambda: _found(sleeper), 20, "it sleeps")
        os.set_blocking(caller.stdin.fileno(), False)
        written = [0]  # more than pipes and buffers on the way hold

        def is_full() -> bool:
            try:
                written[0] += os.write(caller.stdin.fileno(), bytes(65536))
            except BlockingIOError:
                return written[0] > 1 << 20
            except BrokenPipeError:  # on a slow machine the connection that is held up is given up first
                return True
            return False

        wait_for(is_full, 20, "the command takes no more of its input")
        caller.kill()
    wait_for(lambda: not _found(sleeper), 20, "what ran in the session is gone")
    assert server.state(job) == "RUNNING"


def test_a_shell_has_a_terminal_and_ends_with_the_attempt(running: tuple[RealServer, int, int]) -> None:
    """Typed keys reach it; its size is the caller's; once the job is cancelled nothing of it is left."""
    server, job, _ = running
    shell = Shell(server, job)
    sleeper = f"sleep {10_000 + os.getpid()}"  # of this test alone
    shell.type(f"tty; echo $MINE-$((40+2)); {sleeper}\n")
    shell.until(b"of the job-42")
    assert b"/dev/pts/" in shell.seen
    assert server.command("cancel", str(job)).returncode == 0
    server.until_state(job, "CANCELLED", 40)
    shell.until(b"the session ended")
    assert os.waitstatus_to_exitcode(os.waitpid(shell.pid, 0)[1]) == 255
    os.close(shell.terminal)
    wait_for(lambda: not _found(sleeper), 40, "what ran in the session is gone")
    assert processes_of(server.folder / "n1")  # the agent lives on


def _found(command: str) -> list[str]:
    found = subprocess.run(["pgrep", "-fx", command], capture_output=True, text=True).stdout
    return found.split()
