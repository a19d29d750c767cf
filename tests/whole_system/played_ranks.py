"""The ranks of an attempt, played: what a job's script does, and the sockets it does it on.

The play of a rank is a `Script`: how long, what it saves, how it ends, what nonsense it sends. `Run` says what really
happened.
"""

import contextlib
import json
import os
import signal
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from walras.contract import EXIT_CHECKPOINTED
from workers.control_groups import ControlGroup
from workers.supervisor_protocol import AttemptPlan, Channels, Connection, PeerRole, rank_log

#: Supervisors that are being made: their ranks ask whose they are.
STARTING: list[Any] = []
#: A rank writes, reports and saves so often in its first `QUICK_FOR_S` seconds, and later every `SLOW_TICK_S`.
TICK_S, QUICK_FOR_S, SLOW_TICK_S = 1.0, 4.0, 3.0
#: Once everything is healed, work goes so many times as fast: every job still has to run to its end, and what happens
#: on the way there was seen before.
HASTE = 5.0


@dataclass(frozen=True)
class Script:
    """What a job does when it runs."""

    name: str
    work_s: float
    #: Saves so often, and when asked to stop; None: a plain script, which SIGTERM ends.
    saves_every_s: float | None = None
    exit_code: int = 0
    #: Lines that it writes to its own socket, as bytes, one each second.
    nonsense: tuple[bytes, ...] = ()
    kills_supervisor_at_s: float | None = None
    ignores_sigterm: bool = False
    #: Tells of each checkpoint again after the next one.
    repeats_commits: bool = False
    #: What its ranks leave behind when they are stopped saves for so long, unless it is killed; None: nothing is left.
    leaves_s: float | None = None

    @property
    def kills(self) -> bool:
        """Whether it kills its supervisor."""
        return self.kills_supervisor_at_s is not None


@dataclass
class Run:
    """One start of a script, by one rank, on a machine: what really happened."""

    script: Script
    machine: str
    job_id: int
    attempt: int
    rank: int
    began_at: float
    resumed_s: float
    ended_at: float | None = None
    how: str = ""
    #: Somebody killed this rank and nothing else: its own fault, as far as anybody can see.
    was_killed_alone: bool = False
    #: It was told to stop before it ended, and is a plain script, which does not say when its work is done.
    is_unfinished: bool = False
    #: What it writes, and the incarnation of the cluster that started it.
    log: Path = Path()
    incarnation: str = ""

    @property
    def name(self) -> tuple[str, int, int, int]:
        """Nothing else is ever called this."""
        return self.incarnation, self.job_id, self.attempt, self.rank


class SimSocket:
    """The supervisor's end of a connection."""

    def __init__(self, deliver: Callable[[bytes], None], closed: Callable[[], None]) -> None:
        self.inbound = bytearray()
        self.is_ended = False
        self._deliver = deliver
        self._closed = closed

    def recv(self, size: int) -> bytes:
        if self.inbound:
            chunk = bytes(self.inbound[:size])
            del self.inbound[:size]
            return chunk
        if self.is_ended:
            return b""
        raise BlockingIOError

    def send(self, data: bytes) -> int:
        self._deliver(data)
        return len(data)

    def close(self) -> None:
        self._closed()


class PlayedChannels(Channels):
    """Real connections, over `SimSocket`s."""

    def __init__(self, selector: Any, rank_path: str, agent_path: str) -> None:
        self._selector = selector
        self._listeners = {}
        self.agent_path = agent_path
        self.connections = []
        self.is_closed = False

    def receive_ready(self) -> None:
        for connection in self.connections:
            before = -1
            while connection.is_open and len(connection.inbox) != before and _has_something(connection.socket):
                before = len(connection.inbox)
                connection.receive()

    def open(self, role: PeerRole, socket: SimSocket, pid: int = 0) -> None:
        self.connections.append(Connection(socket, role, pid=pid))  # type: ignore[arg-type]

    def close(self) -> None:
        self.is_closed = True
        super().close()


def _has_something(socket: Any) -> bool:
    return bool(socket.inbound) or socket.is_ended


@dataclass
class _PlayedOutput:
    path: Path
    pipe: int = -1
    #: What the rank wrote last shows nobody's fault.
    recent: bytes = b""
    _file: int = -1

    def write(self, chunk: bytes) -> None:
        with contextlib.suppress(OSError):
            if self._file < 0:
                self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            os.write(self._file, chunk)

    def copy(self) -> bool:
        return False

    def drain(self) -> None:
        return

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    __del__ = close


class PlayedRank:
    """One rank: a script on a virtual clock."""

    def __init__(self, ranks: "PlayedRanks", rank: int, output: _PlayedOutput) -> None:
        self.rank, self.output, self.pid = rank, output, ranks.machine.new_pid()
        self.exit_code: int | None = None
        self.signal: int | None = None
        self._ranks = ranks
        plan, machine = ranks.plan, ranks.machine
        self._script = machine.hooks.script_of(plan.argv)
        resume = json.loads(plan.env.get("WALRAS_RESUME", "null"))
        self._done_s = 0.0 if resume is None else float(resume["step"])
        self._saved_s = self._done_s
        self._former: dict[str, Any] = {}
        self._began_at = machine.loop.time()
        self._socket: SimSocket | None = None
        self.run = Run(self._script, machine.name, plan.job_id, plan.attempt, rank, self._began_at, self._done_s)
        self.run.log, self.run.incarnation = output.path, plan.incarnation
        machine.hooks.began(self.run, plan)
        self._tick_s = TICK_S
        self._timer = machine.call_later(TICK_S, self._tick)

    @property
    def has_ended(self) -> bool:
        return self.exit_code is not None or self.signal is not None

    def connect(self) -> None:
        """Once the supervisor has channels: the in-job client says hello."""
        if self._script.saves_every_s is None and not self._script.nonsense:
            return
        self._socket = SimSocket(self._heard, lambda: None)
        self._ranks.supervisor.channels.open(PeerRole.RANK, self._socket, self.pid)
        if self._script.saves_every_s is not None:
            self._say({"type": "hello"})

    def end(self, *, code: int | None = None, number: int | None = None) -> None:
        if self.has_ended:
            return
        self.exit_code, self.signal = code, number
        self._timer.cancel()
        self.run.ended_at = self._ranks.machine.loop.time()
        self.run.how = f"signal {number}" if number is not None else f"exit {code}"
        self._ranks.ended.append(self)
        self._ranks.leave_behind(killed=number == signal.SIGKILL)
        self._ranks.machine.hooks.ended(self.run)
        self._ranks.supervisor.wake()

    def told(self, number: int) -> None:
        if number == signal.SIGKILL or not self._script.ignores_sigterm:
            self.end(number=number)

    def _tick(self) -> None:
        haste = HASTE if self._ranks.machine.hooks.is_healed else 1.0
        self._done_s += self._tick_s * haste
        script, age_s = self._script, self._ranks.machine.loop.time() - self._began_at
        self.output.write(f"{script.name} {self._ranks.plan.attempt} {self.rank} {self._done_s:g}\n".encode())
        if script.kills_supervisor_at_s is not None and age_s >= script.kills_supervisor_at_s:
            self._ranks.supervisor.die()
            return
        for line in script.nonsense:
            self._say_bytes(line)
        if script.saves_every_s is not None:
            self._say({"type": "progress", "steps": self._done_s, "steps_per_s": 1.0, "samples": int(age_s) + 1})
            if self._done_s - self._saved_s >= script.saves_every_s * haste:
                self._save()
        if self._done_s >= script.work_s:
            self._say({"type": "finished"})
            self.end(code=script.exit_code)
            return
        tick_s = TICK_S if age_s < QUICK_FOR_S else SLOW_TICK_S
        self._tick_s = min(tick_s, (script.work_s - self._done_s) / haste)
        self._timer = self._ranks.machine.call_later(self._tick_s, self._tick)

    def _save(self) -> None:
        plan, self._saved_s = self._ranks.plan, self._done_s
        if self.rank == 0:
            # A machine looks for the folder before it goes on from there.
            folder = f"{plan.checkpoint_dir}/attempt-{plan.attempt:04d}"
            os.makedirs(folder, exist_ok=True)
            path = f"{folder}/step-{self._done_s:g}"
            digest = f"{plan.job_id:032x}{plan.attempt:08x}{int(self._done_s):024x}"
            commit = {"type": "commit", "path": path, "step": self._done_s, "digest": digest, "took_s": 0.5}
            self._say(commit)
            if self._script.repeats_commits:
                self._say(self._former or commit)
            self._former = commit

    def _heard(self, data: bytes) -> None:
        for line in data.splitlines():
            message = json.loads(line)
            if message["type"] == "stop" and not self.has_ended and self._script.saves_every_s is not None:
                self._timer.cancel()
                self._timer = self._ranks.machine.call_later(min(0.3, message["grace_s"] / 2), self._save_and_leave)
            elif message["type"] == "recorded":
                self._ranks.machine.hooks.recorded(self.run, message["digest"])

    def _save_and_leave(self) -> None:
        self._save()
        self._say({"type": "finished"})
        self.end(code=EXIT_CHECKPOINTED)

    def _say(self, message: dict[str, Any]) -> None:
        self._say_bytes(json.dumps(message).encode())

    def _say_bytes(self, line: bytes) -> None:
        if self._socket is not None:
            self._socket.inbound += line + b"\n"
            self._ranks.supervisor.wake()


class PlayedRanks:
    """Stands in for `workers.ranks.Ranks`."""

    def __init__(self, folder: Path, plan: AttemptPlan) -> None:
        supervisor = STARTING[-1]
        self.machine, self.supervisor, self.plan = supervisor.machine, supervisor, plan
        self.ended: list[Any] = []
        self.cpu_s = 0.0
        self.control_group = ControlGroup("")
        supervisor.ranks = self
        #: What the ranks left behind: alive until then, and whether it has the signal as their programs had.
        self.left: Any = None
        self._is_inherited = False
        self.all = [PlayedRank(self, rank, _PlayedOutput(rank_log(folder, rank))) for rank in plan.ranks]

    @property
    def have_all_ended(self) -> bool:
        return len(self.ended) == len(self.all)

    @property
    def first_failure(self) -> Any:
        return next((rank for rank in self.ended if rank.exit_code != 0), None)

    @property
    def is_anyone_alive(self) -> bool:
        return not self.have_all_ended or self.left is not None

    def leave_behind(self, *, killed: bool) -> None:
        """A rank ends: the first one that is stopped leaves something behind, if the script does so."""
        leaves_s = self.all[0].run.script.leaves_s
        if leaves_s is not None and self.left is None and self.supervisor.reasons and not killed:
            self.left = self.machine.call_later(leaves_s, self._end_left)

    def _end_left(self) -> None:
        if self.left is not None:
            self.left.cancel()
            self.left = None
            self.supervisor.wake()

    def reap(self) -> bool:
        return self.is_anyone_alive

    @property
    def have_programs_ended(self) -> bool:
        return self.have_all_ended and not (self._is_inherited and self.left is not None)

    def inherit(self, clients: Collection[int], now: float, kill_at: float) -> None:
        if self.left is not None and not self.all[0].run.script.ignores_sigterm:
            self._is_inherited = True

    def terminate(
        self,
        clients: Collection[int],
        spared: Collection[int],
        *,
        is_late: bool = False,
        is_stop: bool = False,
    ) -> None:
        for rank in self.all:
            if rank.pid not in spared and not (is_late and is_stop):
                rank.told(signal.SIGTERM)

    def signal_all(self, number: int) -> None:
        for rank in self.all:
            rank.told(number)
        if number == signal.SIGKILL:
            self._end_left()
