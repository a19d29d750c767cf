"""The processes of a job with roles on its machines: real ones, one command for each machine, over loopback."""

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.attempts import ROOT
from tests.support.waiting import wait_for
from walras.spec.roles import ROLES_COMMAND
from walras.training.roles import Meeting, RoleProcesses

TOKEN = "the attempt's"


class Machines:
    """Machines of one job: each with the processes that the server gives it, in the order of their ranks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.all: list[subprocess.Popen[str]] = []
        #: The supervisor of each machine, as its processes see it.
        self.supervisors: list[socket.socket] = []

    def as_first(self) -> socket.socket:
        """What the first machine listens on."""
        return socket.create_server(("127.0.0.1", self._port))

    def reach_first(self) -> socket.socket:
        """A connection to the first machine, once it listens."""
        found: list[socket.socket] = []

        def reached() -> bool:
            try:
                found.append(socket.create_connection(("127.0.0.1", self._port), timeout=10))
            except ConnectionRefusedError:
                return False
            return True

        wait_for(reached, 30.0, "the first machine listens")
        return found[0]

    def start(self, roles: dict[str, Any], *here: list[list[Any]], only: int | None = None) -> None:
        """Starts these machines, or the one with this rank alone."""
        for rank, processes in enumerate(here):
            if only not in (None, rank):
                continue
            path = str(self.folder / f"s{rank}")
            self.supervisors.append(socket.socket(socket.AF_UNIX))
            self.supervisors[-1].bind(path)
            self.supervisors[-1].listen()
            given = {
                "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "WALRAS_NODE_RANK": str(rank),
                "WALRAS_NUM_NODES": str(len(here)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._port),
                "WALRAS_TOKEN": TOKEN, "WALRAS_SOCKET": path, "WALRAS_CHECKPOINT_DIR": "/saved",
                "WALRAS_ROLES": json.dumps({"roles": roles, "here": processes}),
                "WALRAS_NODE_ADDRESSES": ",".join(["127.0.0.1"] * len(here)), "CUDA_VISIBLE_DEVICES": "4,5,6",
            }  # fmt: skip
            started = subprocess.Popen(
                [sys.executable, *ROLES_COMMAND[1:]], env=given, cwd=self.folder, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            self.all.append(started)

    def ends(self) -> list[tuple[int, str]]:
        """The exit code and the output of each machine."""
        told = [each.communicate(timeout=60)[0] for each in self.all]
        return [(each.returncode, text) for each, text in zip(self.all, told, strict=True)]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    found = Machines(tmp_path)
    yield found
    for each in found.all:
        each.kill()
        each.wait()
        if each.stdout is not None:
            each.stdout.close()
    for supervisor in found.supervisors:
        supervisor.close()


def role(text: str, count: int = 1, after: tuple[str, ...] = (), restarts: int = 0) -> dict[str, Any]:
    return {"argv": ["bash", "-ec", text], "count": count, "after": after, "restarts": restarts}


TELL = "env | grep -E '^(RANK|WORLD|LOCAL|WALRAS_R|WALRAS_PEERS|WALRAS_CHECK|WALRAS_SOCKET|CUDA_V|MASTER_A)' | sort"


def test_each_process_is_told_its_role_its_devices_and_where_all_others_listen(machines: Machines) -> None:
    """On one machine and another the same addresses; only the leading role hears of checkpoints; a module of the job
    that is called like one of Python's does no harm."""
    (machines.folder / "select.py").write_text("raise SystemExit('a module of the job')")
    tells = f"{TELL}; touch told-$WALRAS_ROLE-$RANK; sleep 100"
    waits = "; ".join(f"until test -e told-{name}; do sleep 0.1; done" for name in ("roll-0", "roll-1", "head-0"))
    roles = {"lead": role(f"{TELL}; {waits}"), "roll": role(tells, 2), "head": role(tells)}
    machines.start(roles, [["lead", 0, 0, 2], ["roll", 0, 2, 1], ["head", 0, 3, 0]], [["roll", 1, 0, 1]])
    (first, told), (second, more) = machines.ends()
    assert (first, second) == (0, 0)
    lines = [line.partition("] ")[::2] for line in (told + more).splitlines()]
    of = {
        name: dict(text.split("=", 1) for own, text in lines if own == f"[{name}" and "=" in text)
        for name in ("lead 0", "roll 0", "roll 1", "head 0")
    }
    assert [each["CUDA_VISIBLE_DEVICES"] for each in of.values()] == ["4,5", "6", "4", ""]
    assert [(each["RANK"], each["WORLD_SIZE"]) for each in of.values()] == [
        ("0", "1"),
        ("0", "2"),
        ("1", "2"),
        ("0", "1"),
    ]
    assert {each["WALRAS_PEERS_ROLL"] for each in of.values()} == {of["roll 1"]["WALRAS_PEERS_ROLL"]}
    assert [each["WALRAS_ROLE"] + each["WALRAS_ROLE_INDEX"] for each in of.values()] == [
        "lead0",
        "roll0",
        "roll1",
        "head0",
    ]
    peers = [*of["lead 0"]["WALRAS_PEERS_ROLL"].split(","), of["lead 0"]["WALRAS_PEERS_HEAD"]]
    assert len({each.removeprefix("127.0.0.1:") for each in peers}) == 3
    assert [name for name, each in of.items() if "WALRAS_CHECKPOINT_DIR" in each or "WALRAS_SOCKET" in each] == [
        "lead 0"
    ]


def test_all_listen_where_the_others_are_told_and_who_starts_after_them_finds_them(machines: Machines) -> None:
    """The leading role waits until the rollouts accept connections, asks each, and with its end all end."""
    (machines.folder / "serve.py").write_text(
        "import os, socket, time\ntime.sleep(0.5)\nown = int(os.environ['WALRAS_ROLE_INDEX'])\n"
        "port = int(os.environ['WALRAS_PEERS_ROLL'].split(',')[own].split(':')[1])\n"
        "listening = socket.create_server(('', port))\n"
        "while True:\n    caller = listening.accept()[0]\n    try:\n        caller.sendall(b'from %d' % own)\n"
        "    except OSError:\n        pass\n    caller.close()\n"
    )
    (machines.folder / "ask.py").write_text(
        "import os, socket\nfor each in os.environ['WALRAS_PEERS_ROLL'].split(','):\n"
        "    host, port = each.split(':')\n    print(socket.create_connection((host, int(port))).recv(100))\n"
    )
    roles = {"lead": role(f"{sys.executable} ask.py", after=("roll",)), "roll": role(f"{sys.executable} serve.py", 2)}
    machines.start(roles, [["lead", 0, 0, 1], ["roll", 0, 1, 1]], [["roll", 1, 0, 1]])
    (first, told), (second, _) = machines.ends()
    assert (first, second) == (0, 0)
    assert "[lead 0] b'from 0'\n[lead 0] b'from 1'\n" in told


@pytest.mark.parametrize(("text", "code"), [("exit 3", 3), ("kill -9 $$", -9), ("no-such-program", 127)])
def test_one_process_fails_and_all_of_its_machine_end_with_its_code(machines: Machines, text: str, code: int) -> None:
    """What is left is asked to end, then killed; the server stops the other machines."""
    stays = "trap '' TERM; sleep 1000 & wait" if code == 127 else "sleep 1000"
    machines.start({"lead": role(stays), "roll": role(text)}, [["lead", 0, 0, 1], ["roll", 0, 1, 1]])
    ((found, told),) = machines.ends()
    assert found == code
    assert "[walras] roll 0 " in told


def test_a_role_that_may_be_is_started_again_alone(machines: Machines) -> None:
    """Twice, here; the leading role notices nothing, and goes on to its end."""
    once = f"test -e {machines.folder}/again && sleep 1000; touch {machines.folder}/again; exit 1"
    lead = f"until test -e {machines.folder}/again; do sleep 0.1; done; sleep 2; echo done"
    machines.start({"lead": role(lead), "roll": role(once, restarts=1)}, [["lead", 0, 0, 1], ["roll", 0, 1, 1]])
    ((code, told),) = machines.ends()
    assert code == 0
    assert "[walras] roll 0 ended with exit code 1; it is started again in 1 s" in told
    assert "[lead 0] done" in told


def test_what_is_started_again_waits_for_nobody_and_two_ends_in_one_breath_are_two(machines: Machines) -> None:
    """A process that others had to wait for may have served them and be gone; the job ends with its second leader."""
    once = f"test -e {machines.folder}/again && echo back && sleep 1000; touch {machines.folder}/again; exit 1"
    lead = f"until test -e {machines.folder}/again; do sleep 0.1; done; sleep 3; echo done"
    serve = f"exec {sys.executable} -c \"import os, socket; h, p = os.environ['WALRAS_PEERS_SERVE'].split(':'); "
    serve += 'socket.create_server((h, int(p))).accept()"'
    roles = {"lead": role(lead, 2), "serve": role(serve), "roll": role(once, after=("serve",), restarts=1)}
    machines.start(roles, [["serve", 0, 0, 1], ["roll", 0, 1, 1]], [["lead", 0, 0, 1], ["lead", 1, 1, 1]])
    (code, told), (other, _) = machines.ends()
    assert (code, other) == (0, 0)
    assert "[roll 0] back" in told


@pytest.mark.parametrize(
    "here",
    [
        [[["head", 0, 0, 0], ["lead", 0, 0, 1]]],
        [[["lead", 0, 0, 1]], [["head", 0, 0, 1]]],
        [[["roll", 0, 0, 1]], [["head", 0, 0, 1]], [["lead", 0, 0, 1]]],
    ],
    ids=["one machine", "two", "neither is the first"],
)
def test_who_starts_after_a_process_that_ended_well_waits_for_it_no_longer(
    machines: Machines, here: list[list[list[Any]]]
) -> None:
    """It never accepted connections and never will: what it was to prepare is done, and the job goes on to its end."""
    head = role(f"touch {machines.folder}/prepared")
    roles = {
        "lead": role(f"ls {machines.folder}/prepared", after=("head",)), "head": head, "roll": role("sleep 1000"),
    }  # fmt: skip
    machines.start(roles, *here)
    ends = machines.ends()
    assert {code for code, _ in ends} == {0}
    assert f"[lead 0] {machines.folder}/prepared\n" in "".join(told for _, told in ends)


def test_a_stop_is_left_to_the_supervisor_and_its_end_is_the_leading_roles(machines: Machines) -> None:
    """What ends by the supervisor's signal is no failure of the job: the leading role saves and says so; a machine
    without it has nothing to save."""
    saves = role("echo up; trap 'sleep 1; kill $!; exit 85' TERM; sleep 1000 & wait")
    rolls = role("echo up; sleep 1000", 2)
    machines.start({"lead": saves, "roll": rolls}, [["lead", 0, 0, 1], ["roll", 0, 1, 1]], [["roll", 1, 0, 1]])
    supervisors = [each.accept()[0] for each in machines.supervisors]
    machines.supervisors += supervisors
    for machine, processes in zip(machines.all, (2, 1), strict=True):
        assert machine.stdout is not None
        for _ in range(processes):
            assert "up" in machine.stdout.readline()
    for supervisor in supervisors:
        supervisor.sendall(b'{"type": "lease", "until": 9}\n{"type": "stop", "grace_s": 9, "reason": "x"}\n')
    for machine in reversed(machines.all):
        for child in Path(f"/proc/{machine.pid}/task/{machine.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGTERM)
    assert [code for code, _ in machines.ends()] == [85, 85]


class BlindToSockets(selectors.DefaultSelector):
    """Sees of its files only pipes: as a look that ended just before the supervisor spoke."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return [each for each in super().select(timeout) if not isinstance(each[0].fileobj, socket.socket)]


def test_a_process_that_a_stop_ends_before_the_stop_is_read_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("walras.training.roles.selectors.DefaultSelector", BlindToSockets)
    stopped = role(f"until test -e {tmp_path / 'told'}; do sleep 0.02; done; kill -TERM $$")
    given = {
        "PATH": os.environ["PATH"], "WALRAS_NODE_RANK": "0", "WALRAS_NUM_NODES": "1", "MASTER_ADDR": "127.0.0.1",
        "WALRAS_ROLES": json.dumps({"roles": {"lead": role(""), "roll": stopped}, "here": [["roll", 0, 0, 1]]}),
        "MASTER_PORT": "1", "WALRAS_SOCKET": str(tmp_path / "s"),
    }  # fmt: skip
    with socket.socket(socket.AF_UNIX) as listening, ThreadPoolExecutor(1) as pool:
        listening.bind(given["WALRAS_SOCKET"])
        listening.listen()
        end = pool.submit(RoleProcesses(given).run)
        supervisor, _ = listening.accept()
        with supervisor:
            supervisor.sendall(b'{"type": "stop", "grace_s": 9, "reason": "x"}\n')
            (tmp_path / "told").touch()
            assert end.result(60) == 85


@pytest.mark.parametrize(("how", "code"), [("a failure", 3), ("a stop", 85)])
def test_a_process_that_is_ended_has_not_succeeded(machines: Machines, how: str, code: int) -> None:
    """Though it ends with 0: another machine, where a process starts after it, is not told so."""
    head = role("trap 'kill $!; exit 0' TERM; echo up; sleep 1000 & wait")
    fails = role("until test -e fail; do sleep 0.1; done; exit 3")
    places = {"lead": [["127.0.0.1", 1, 2]], "head": [["127.0.0.1", 3, 4]], "roll": [["127.0.0.1", 5, 6]]}
    with machines.as_first() as listening:
        roles = {"lead": role("", after=("head",)), "head": head, "roll": fails}
        machines.start(roles, [], [["head", 0, 0, 0], ["roll", 0, 0, 0]], only=1)
        caller, _ = listening.accept()
        with caller:
            assert b'"rank": 1' in caller.recv(65536)
            caller.sendall(json.dumps(places).encode() + b"\n")
            (machine,) = machines.all
            assert machine.stdout is not None
            assert "up" in machine.stdout.readline()
            if how == "a failure":
                (machines.folder / "fail").touch()
            else:
                machines.supervisors.append(machines.supervisors[0].accept()[0])
                machines.supervisors[-1].sendall(b'{"type": "stop", "grace_s": 9, "reason": "x"}\n')
                for child in Path(f"/proc/{machine.pid}/task/{machine.pid}/children").read_text().split():
                    os.kill(int(child), signal.SIGTERM)
            assert [found for found, _ in machines.ends()] == [code]
            assert caller.recv(100) == b""


def test_only_the_jobs_own_processes_are_taken_for_over() -> None:
    """Another machine may send any name; the first would keep it and tell all others."""
    environ = {"WALRAS_NODE_RANK": "0", "WALRAS_NUM_NODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    meeting = Meeting(environ, {"lead": 1, "head": 2})
    own, other = socket.socketpair()
    with own, other:
        own.setblocking(False)
        meeting._connections[own] = b""
        other.sendall(b"head 1;head 2;head 01;who 0;")
        assert meeting.poll() == 0
        assert meeting.over == {"head 1"}
        assert other.recv(100) == b"head 1;"


def test_a_stranger_at_the_meeting_is_turned_away(machines: Machines) -> None:
    """Without the attempt's key, or with noise: the machines meet all the same, and it is told nothing."""
    roles, lead, second = {"lead": role("echo hi", 2)}, [["lead", 0, 0, 1]], [["lead", 1, 0, 1]]
    machines.start(roles, lead, second, only=0)
    for noise in (b"\n", b'{"key": "x", "rank": 1, "processes": []}\n', b"[" * 5000 + b"\n"):
        with machines.reach_first() as stranger:
            stranger.sendall(noise)
            assert stranger.recv(100) == b""
    machines.start(roles, lead, second, only=1)
    assert [code for code, _ in machines.ends()] == [0, 0]


@pytest.mark.parametrize(("answer", "code"), [(b'{"roll": [["127.0.0.1", 1, 2]]}\n!', 0), (b"", 85), (b'{"roll', 85)])
def test_another_machine_ends_with_the_first(machines: Machines, answer: bytes, code: int) -> None:
    """At its word, however soon that comes; a first machine that is gone is no failure of the job."""
    with machines.as_first() as listening:
        machines.start({"roll": role("sleep 1000")}, [], [["roll", 0, 0, 1]], only=1)
        caller, _ = listening.accept()
        with caller:
            assert b'"rank": 1' in caller.recv(65536)
            caller.sendall(answer)
            if code:
                caller.close()
            ((found, _),) = machines.ends()
        assert found == code
