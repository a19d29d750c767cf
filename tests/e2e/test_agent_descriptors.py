"""An agent that may open no more files: it says so, refuses starts, and takes nothing that runs or ended for lost."""

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.agent_commands import LOOP, AgentStand
from workers import processes
from workers.supervisor_protocol import find_attempt_end, read_attempt_journal

pytestmark = pytest.mark.slow

#: At SIGUSR1 the agent's process opens files until it may open no more, and again every few milliseconds; at SIGUSR2 it
#: closes them.
_HUNGRY = """
import os, signal
held, is_hungry = [], True

def take(*_):
    try:
        while is_hungry:
            held.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        pass

def begin(*_):
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)

def end(*_):
    global is_hungry
    is_hungry = False  # another alarm may be pending
    signal.setitimer(signal.ITIMER_REAL, 0)
    while held:
        os.close(held.pop())

signal.signal(signal.SIGALRM, take)
signal.signal(signal.SIGUSR1, begin)
signal.signal(signal.SIGUSR2, end)
"""
_WAITS = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)"


@contextmanager
def no_descriptors() -> Iterator[None]:
    """This process may open no file meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_cannot_be_looked_at_is_neither_dead_nor_empty(tmp_path: Path) -> None:
    own = processes.name_process(os.getpid())
    (tmp_path / "journal").write_text("{}\n")
    assert own is not None
    with no_descriptors():
        for look in (
            lambda: own.is_alive,
            lambda: processes.has_variable(own.pid, "PATH"),
            lambda: read_attempt_journal(tmp_path / "journal"),
            lambda: find_attempt_end(tmp_path / "journal"),
        ):
            with pytest.raises(OSError, match="Too many open files"):
                look()
    assert own.is_alive


async def test_an_agent_without_file_descriptors_harms_nothing_and_says_so(server: AgentStand, tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "sitecustomize.py").write_text(_HUNGRY)
    agent = server.begin(within=("prlimit", "--nofile=128"), modules=tmp_path / "modules", accelerators=3)
    await server.start(_WAITS)
    await server.start(LOOP, job_id=2, devices=[1])
    await server.until(lambda: len(server.of_type("started")) == 2, 40, "both run")
    running = agent.supervisors()
    os.kill(agent.pid, signal.SIGUSR1)
    await server.until(lambda: "of 128 are open" in server.heartbeats[-1].problem, 40, "it says what it lacks")
    lacking = await server.start(LOOP, job_id=3, devices=[2])
    await server.acknowledged(lacking.command_id)
    (tmp_path / "go").touch()
    await server.until(lambda: len(agent.supervisors()) < len(running), 40, "the first has ended")
    heard = len(server.heartbeats)
    os.kill(agent.pid, signal.SIGUSR2)
    ended = await server.report("ended")
    assert (ended.job_id, ended.cause, ended.exit_code) == (1, "exited", 0)
    assert (await server.report("refused")).detail.startswith("out of file descriptors")
    await server.until(lambda: len(server.heartbeats) > heard + 3, 40, "heartbeats go on")
    assert server.heartbeats[-1].problem == ""
    assert [(here.job_id, here.attempt) for here in server.heartbeats[-1].here] == [(2, 1)]
    await server.start(LOOP, job_id=4)
    await server.until(lambda: len(server.of_type("started")) == 3, 40, "it takes work again")
    assert len(server.of_type("ended")) == 1
