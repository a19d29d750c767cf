"""A machine of the simulated world: real supervisors over ranks that are played.

`workers.supervisor.Supervisor` runs unmodified; what stands under it is replaced while a simulation runs
(`installed`): the ranks (`PlayedRanks`), its sockets and its waiting. `Machine.live` lists the attempts whose processes
are alive here: the truth that invariants count. The play of a rank is a `Script`: how long, what it saves, how it ends,
what nonsense it sends.
"""

import asyncio
import contextlib
import json
import os
import signal
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import workers.agent.agent as agent_module
import workers.agent.follower as follower_module
import workers.agent.launch as launch_module
from tests.whole_system.virtual_loop import PROCESS, SimProcess, VirtualLoop
from walras.contract import EXIT_CHECKPOINTED
from workers import processes
from workers import supervisor as supervisor_module
from workers.supervisor import Supervisor
from workers.supervisor_protocol import (
    SUPERVISOR_FILE,
    AttemptPlan,
    Channels,
    Connection,
    PeerRole,
    rank_log,
    read_plan,
    write_durably,
)

TICK_S = 1.0


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

    def open(self, role: PeerRole, socket: SimSocket) -> None:
        self.connections.append(Connection(socket, role))  # type: ignore[arg-type]

    def close(self) -> None:
        self.is_closed = True
        super().close()


def _has_something(socket: Any) -> bool:
    return bool(socket.inbound) or socket.is_ended


@dataclass
class _PlayedOutput:
    path: Path
    pipe: int = -1

    def write(self, chunk: bytes) -> None:
        with contextlib.suppress(OSError), open(self.path, "ab") as file:
            file.write(chunk)

    def copy(self) -> bool:
        return False

    def drain(self) -> None:
        return

    def close(self) -> None:
        return


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
        self._began_at = machine.loop.time()
        self._socket: SimSocket | None = None
        self.run = Run(self._script, machine.name, plan.job_id, plan.attempt, rank, self._began_at, self._done_s)
        machine.hooks.began(self.run, plan)
        self._timer = machine.call_later(TICK_S, self._tick)

    @property
    def has_ended(self) -> bool:
        return self.exit_code is not None or self.signal is not None

    def connect(self) -> None:
        """Once the supervisor has channels: the in-job client says hello."""
        if self._script.saves_every_s is None and not self._script.nonsense:
            return
        self._socket = SimSocket(self._heard, lambda: None)
        self._ranks.supervisor.channels.open(PeerRole.RANK, self._socket)
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
        self._ranks.machine.hooks.ended(self.run)
        self._ranks.supervisor.wake()

    def told(self, number: int) -> None:
        if number == signal.SIGKILL or not self._script.ignores_sigterm:
            self.end(number=number)

    def _tick(self) -> None:
        self._done_s += TICK_S
        script, age_s = self._script, self._ranks.machine.loop.time() - self._began_at
        self.output.write(f"{script.name} {self._ranks.plan.attempt} {self.rank} {self._done_s:g}\n".encode())
        if script.kills_supervisor_at_s is not None and age_s >= script.kills_supervisor_at_s:
            self._ranks.supervisor.die()
            return
        for line in script.nonsense:
            self._say_bytes(line)
        if script.saves_every_s is not None:
            self._say({"type": "progress", "steps": self._done_s, "steps_per_s": 1.0, "samples": int(age_s) + 1})
            if self._done_s - self._saved_s >= script.saves_every_s:
                self._save()
        if self._done_s >= script.work_s:
            self._say({"type": "finished"})
            self.end(code=script.exit_code)
            return
        self._timer = self._ranks.machine.call_later(TICK_S, self._tick)

    def _save(self) -> None:
        plan, self._saved_s = self._ranks.plan, self._done_s
        if self.rank == 0:
            path = f"{plan.checkpoint_dir}/attempt-{plan.attempt:04d}/step-{self._done_s:g}"
            digest = f"{plan.job_id:032x}{plan.attempt:08x}{int(self._done_s):024x}"
            self._say({"type": "commit", "path": path, "step": self._done_s, "digest": digest, "took_s": 0.5})

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
        supervisor = _STARTING[-1]
        self.machine, self.supervisor, self.plan = supervisor.machine, supervisor, plan
        self.ended: list[Any] = []
        self.cpu_s = 0.0
        supervisor.ranks = self
        self.all = [PlayedRank(self, rank, _PlayedOutput(rank_log(folder, rank))) for rank in plan.ranks]

    @property
    def have_all_ended(self) -> bool:
        return len(self.ended) == len(self.all)

    @property
    def first_failure(self) -> Any:
        return next((rank for rank in self.ended if rank.exit_code != 0), None)

    def reap(self) -> bool:
        return not self.have_all_ended

    def signal(self, number: int) -> None:
        for rank in self.all:
            rank.told(number)


_STARTING: list["SimSupervisor"] = []


class SimSupervisor(Supervisor):
    """The real supervisor, woken by the loop instead of a selector."""

    ranks: PlayedRanks

    def __init__(self, machine: "Machine", folder: Path, plan: AttemptPlan) -> None:
        self.machine, self.plan, self.folder = machine, plan, folder
        self.pid, self.is_alive, self.reasons = machine.new_pid(), True, list[str]()
        self._next: asyncio.TimerHandle | None = None
        self._is_woken = True
        _STARTING.append(self)
        try:
            super().__init__(folder, plan)
        finally:
            _STARTING.pop()
        for rank in self.ranks.all:
            rank.connect()
        self._is_woken = False
        self.wake()

    @property
    def channels(self) -> PlayedChannels:
        return self._channels  # type: ignore[return-value]

    @property
    def lease_until(self) -> float:
        return self._lease_until

    def wake(self) -> None:
        if self.is_alive and not self._is_woken:
            self._is_woken = True
            self.machine.call_later(0.0, self._turn_now)

    def die(self) -> None:
        """`kill -9`: PDEATHSIG and the guardian take the ranks along; nothing is written down."""
        if self.is_alive:
            self.is_alive = False
            for rank in self.ranks.all:
                rank.end(number=signal.SIGKILL)
                rank.run.how = "supervisor killed"
            self._leave()

    def _end(self, now: float, grace_s: float, reason: str, cause: str = "exited") -> None:
        self.reasons.append(reason)
        self.machine.hooks.asked_to_end(self, reason)
        super()._end(now, grace_s, reason, cause)

    def _wake_on_signals(self) -> None:
        return

    def _turn_now(self) -> None:
        if not self.is_alive:
            return
        self._is_woken = False
        if self._next is not None:
            self._next.cancel()
        self.channels.receive_ready()
        if self._take_turn(processes.boottime()) or not self.ranks.have_all_ended:
            self._next = self.machine.call_later(max(0.01, self._sleep_s()), self._turn_now)
            return
        self._finish()
        self.is_alive = False
        self._leave()

    def _leave(self) -> None:
        for connection in self.channels.connections:
            connection.socket.close()
        self.machine.supervisors.remove(self)
        self.machine.hooks.gone(self)


class _AgentTransport(asyncio.Transport):
    """The agent's end of a connection to a supervisor."""

    def __init__(self, process: SimProcess, supervisor: SimSupervisor, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self._process, self._supervisor, self._protocol = process, supervisor, protocol
        self._loop = supervisor.machine.loop
        self._closing = False
        self._socket = SimSocket(self._deliver, self._closed_there)
        supervisor.channels.open(PeerRole.AGENT, self._socket)
        process.on_kill.append(self._hang_up)
        self._loop.call_soon(protocol.connection_made, self, context=process.context)

    def write(self, data: Any) -> None:
        if not self._closing:
            self._socket.inbound += data
            self._supervisor.wake()

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._hang_up()
            self._loop.call_soon(self._protocol.connection_lost, None, context=self._process.context)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return

    def _hang_up(self) -> None:
        self._socket.is_ended = True
        self._supervisor.wake()

    def _deliver(self, data: bytes) -> None:
        if not self._closing:
            self._loop.call_soon(self._protocol.data_received, data, context=self._process.context)  # type: ignore[attr-defined]

    def _closed_there(self) -> None:
        if not self._closing:
            self._loop.call_soon(self._protocol.eof_received, context=self._process.context)  # type: ignore[attr-defined]


class _Launched(asyncio.SubprocessTransport):
    """The launcher of a supervisor: `asyncio.subprocess.Process` asks it how it ended."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._done: asyncio.Future[int] = loop.create_future()
        self.timer: asyncio.TimerHandle | None = None

    def end(self, code: int) -> None:
        if not self._done.done():
            self._done.set_result(code)

    async def _wait(self) -> int:
        return await asyncio.shield(self._done)

    def get_pid(self) -> int:
        return 0

    def get_returncode(self) -> int | None:
        return self._done.result() if self._done.done() else None

    def get_pipe_transport(self, fd: int) -> Any:
        return None

    def kill(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.end(-9)

    def close(self) -> None:
        return


class Hooks:
    """What a machine tells the observer of the world; overridden there."""

    def script_of(self, argv: list[str]) -> Script:
        raise NotImplementedError

    def launch_delay_s(self) -> float:
        return 0.05

    def began(self, run: Run, plan: AttemptPlan) -> None: ...

    def ended(self, run: Run) -> None: ...

    def recorded(self, run: Run, digest: str) -> None: ...

    def asked_to_end(self, supervisor: SimSupervisor, reason: str) -> None: ...

    def gone(self, supervisor: SimSupervisor) -> None: ...


@dataclass
class Machine:
    """Processes that outlive agents."""

    name: str
    loop: VirtualLoop
    hooks: Hooks
    supervisors: list[SimSupervisor] = field(default_factory=list)
    boots: int = 1

    def __post_init__(self) -> None:
        self._kernel = SimProcess(self.name, self.loop, self)

    def new_pid(self) -> int:
        _PIDS[0] += 1
        return _PIDS[0]

    @property
    def boot_id(self) -> str:
        return f"{self.name}-{self.boots}"

    def call_later(self, delay_s: float, call: Callable[..., None], *args: Any) -> asyncio.TimerHandle:
        return self.loop.call_at(self.loop.time() + delay_s, call, *args, context=self._kernel.context)

    @property
    def live(self) -> list[SimSupervisor]:
        return [each for each in self.supervisors if not each.ranks.have_all_ended]

    def reboot(self) -> None:
        """Everything on it dies at once."""
        self.boots += 1
        for each in list(self.supervisors):
            each.die()

    def connect(self, process: SimProcess, path: str, protocol: asyncio.BaseProtocol) -> asyncio.Transport:
        for each in self.supervisors:
            if each.channels.agent_path == path and not each.channels.is_closed:
                return _AgentTransport(process, each, protocol)
        raise ConnectionRefusedError(path)

    def spawn(self, process: SimProcess, arguments: tuple[str, ...], protocol: Any) -> asyncio.BaseTransport:
        launched = _Launched(self.loop)
        launched.timer = self.call_later(self.hooks.launch_delay_s(), self._start, Path(arguments[-1]), launched)
        protocol.connection_made(launched)
        return launched

    def _start(self, folder: Path, launched: _Launched) -> None:
        try:
            plan = read_plan(folder)
            facts = {"pid": _PIDS[0] + 1, "start_ticks": 1, "boot_id": self.boot_id}
            write_durably(folder / SUPERVISOR_FILE, facts)
            supervisor = SimSupervisor(self, folder, plan)
        except OSError:
            launched.end(1)
            return
        self.supervisors.append(supervisor)
        self.call_later(0.01, launched.end, 0)


_PIDS = [1000]


def _current_machine() -> Machine:
    process = PROCESS.get()
    assert process is not None
    assert isinstance(process.machine, Machine)
    return process.machine


class _NoSelector:
    def register(self, *_: Any) -> None: ...

    def unregister(self, *_: Any) -> None: ...


@dataclass
class _PlayedPort:
    number: int

    def getsockname(self) -> tuple[str, int]:
        return "", self.number

    def close(self) -> None:
        return


@contextlib.contextmanager
def installed(loop: VirtualLoop, machines: list[Machine]) -> Iterator[None]:
    """While it lasts, `workers` finds these machines where it looks for the kernel."""
    ports = iter(range(20_000, 1_000_000))
    _PIDS[0] = 1000

    def is_alive(name: processes.ProcessName) -> bool:
        return any(each.pid == name.pid for machine in machines for each in machine.supervisors)

    def kill_carriers(cookie: str, timeout_s: float) -> bool:
        for machine in machines:
            for each in [each for each in machine.supervisors if each.plan.cookie == cookie]:
                each.die()
        return True

    no_selectors = types.SimpleNamespace(DefaultSelector=_NoSelector, EVENT_READ=1)
    changes: list[tuple[Any, str, Any]] = [
        (processes, "boottime", loop.time),
        (processes, "boot_id", lambda: _current_machine().boot_id),
        (processes.ProcessName, "is_alive", property(is_alive)),
        (processes, "kill_carriers", kill_carriers),
        (supervisor_module, "Ranks", PlayedRanks),
        (supervisor_module, "Channels", PlayedChannels),
        (supervisor_module, "selectors", no_selectors),
        (supervisor_module, "LONGEST_SLEEP_S", 5.0),
        (agent_module, "bind_rendezvous_port", lambda: _PlayedPort(next(ports))),
        (launch_module, "build_client_folder", lambda state: Path("/client")),
        (follower_module, "RECONNECT_S", 0.1),
        (os, "fsync", lambda _: None),
    ]
    before = [(place, name, getattr(place, name)) for place, name, _ in changes]
    for place, name, value in changes:
        setattr(place, name, value)
    try:
        yield
    finally:
        for place, name, value in before:
            setattr(place, name, value)
