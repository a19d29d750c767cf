"""A machine of the simulated world: real supervisors over ranks that are played.

`workers.supervisor.Supervisor` runs unmodified; what stands under it is replaced while a simulation runs
(`installed`): the ranks (`PlayedRanks`), its sockets and its waiting. `Machine.live` lists the attempts whose processes
are alive here: the truth that invariants count.
"""

import asyncio
import contextlib
import os
import signal
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import workers.agent.follower as follower_module
import workers.agent.launch as launch_module
from scheduler.live.http import request_bodies
from tests.whole_system.played_ranks import STARTING, PlayedChannels, PlayedRanks, Run, Script, SimSocket
from tests.whole_system.virtual_loop import PROCESS, SimProcess, VirtualLoop
from walras.errors import WalrasError
from workers import processes
from workers import supervisor as supervisor_module
from workers import supervisor_protocol as protocol_module
from workers.supervisor import Supervisor
from workers.supervisor_protocol import (
    SUPERVISOR_FILE,
    AttemptPlan,
    PeerRole,
    read_plan,
    write_durably,
)


class SimSupervisor(Supervisor):
    """The real supervisor, woken by the loop instead of a selector."""

    ranks: PlayedRanks

    def __init__(self, machine: "Machine", folder: Path, plan: AttemptPlan) -> None:
        self.machine, self.plan, self.folder = machine, plan, folder
        self.pid, self.is_alive, self.reasons = machine.new_pid(), True, list[str]()
        self._next: asyncio.TimerHandle | None = None
        self._is_woken = True
        STARTING.append(self)
        try:
            super().__init__(folder, plan)
        finally:
            STARTING.pop()
        for rank in self.ranks.all:
            rank.connect()
        self._is_woken = False
        self.wake()

    @property
    def channels(self) -> PlayedChannels:
        return self._channels  # type: ignore[return-value]

    @property
    def lease_until(self) -> float:
        """The loop's instant, as `launched_at`."""
        return self._lease_until + self.machine.booted_at

    @property
    def launched_at(self) -> float:
        return self._launched_at + self.machine.booted_at

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
            self.ranks.signal_all(signal.SIGKILL)
            self._leave()

    def _end(self, now: float, grace_s: float, reason: str, cause: str = "exited") -> None:
        self.reasons.append(reason)
        self.machine.hooks.asked_to_end(self, reason)
        super()._end(now, grace_s, reason, cause)

    def _wake_on_signals(self) -> None:
        return

    def _look_around(self, now: float) -> None:
        """Its descendants are played: no process of this machine is one."""

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


class InlineWorker:
    """In the place of a worker process: the virtual loop calls what it is asked, so that no semaphores are taken."""

    _processes: None = None

    def submit(self, *_: Any) -> None:
        """What would only make later answers better is left out."""

    def shutdown(self, **_: Any) -> None:
        return


class InlineReader:
    """In the place of the process that reads bodies."""

    def ask(self, read: Callable[[Any], Any], body: bytes | bytearray) -> list[Any]:
        try:
            found = read(body)
        except WalrasError as error:
            found = error
        return list(request_bodies._split(found))

    def end(self) -> None:
        return


class Hooks:
    """What a machine tells the observer of the world; overridden there."""

    #: No fault happens any more.
    is_healed = False

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
    #: When it booted last: its clocks count from there.
    booted_at: float = 0.0

    def __post_init__(self) -> None:
        self._kernel = SimProcess(self.name, self.loop, self)

    def new_pid(self) -> int:
        _PIDS[0] += 1
        return _PIDS[0]

    @property
    def boot_id(self) -> str:
        return f"{self.name}-{self.boots}"

    def call_later(self, delay_s: float, call: Callable[..., None], *args: Any) -> asyncio.TimerHandle:
        return self.loop.call_later(delay_s, call, *args, context=self._kernel.context)

    @property
    def live(self) -> list[SimSupervisor]:
        return [each for each in self.supervisors if each.ranks.is_anyone_alive]

    def boottime(self) -> float:
        return self.loop.time() - self.booted_at

    def reboot(self) -> None:
        """Everything on it dies at once, and its clocks begin anew."""
        self.boots, self.booted_at = self.boots + 1, self.loop.time()
        for each in list(self.supervisors):
            each.die()

    def connect(self, process: SimProcess, path: str, protocol: asyncio.BaseProtocol) -> asyncio.Transport:
        for each in self.supervisors:
            if each.channels.agent_path == path and not each.channels.is_closed:
                return _AgentTransport(process, each, protocol)
        raise ConnectionRefusedError(path)

    async def fork(self, folder: Path) -> bool:
        """What the process that forks supervisors does, agent or no agent."""
        told: asyncio.Future[bool] = self.loop.create_future()
        self.call_later(self.hooks.launch_delay_s(), self._start, self.boots, folder, told)
        return await told

    def _start(self, boot: int, folder: Path, told: "asyncio.Future[bool]") -> None:
        if boot != self.boots:
            return  # a reboot took the process that forks, and the agent that waited for it
        try:
            plan = read_plan(folder)
            facts = {"pid": _PIDS[0] + 1, "start_ticks": 1, "boot_id": self.boot_id}
            write_durably(folder / SUPERVISOR_FILE, facts)
            supervisor = SimSupervisor(self, folder, plan)
        except OSError:
            _tell(told, False)
            return
        self.supervisors.append(supervisor)
        self.call_later(0.01, _tell, told, True)


def _tell(told: "asyncio.Future[bool]", is_started: bool) -> None:
    if not told.done():  # else the agent has died meanwhile
        told.set_result(is_started)


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
def replaced(changes: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """(place, name, value): while it lasts, the names have these values there."""
    before = [(place, name, getattr(place, name)) for place, name, _ in changes]
    for place, name, value in changes:
        setattr(place, name, value)
    try:
        yield
    finally:
        for place, name, value in before:
            setattr(place, name, value)


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

    def send_signal(pids: list[int], number: int) -> None:
        for machine in machines:
            for each in [each for each in machine.supervisors if each.pid in pids]:
                each.die()

    no_selectors = types.SimpleNamespace(DefaultSelector=_NoSelector, EVENT_READ=1)
    changes: list[tuple[Any, str, Any]] = [
        (processes, "boottime", lambda: _current_machine().boottime()),
        (processes, "boot_id", lambda: _current_machine().boot_id),
        (processes.ProcessName, "is_alive", property(is_alive)),
        (processes, "kill_carriers", kill_carriers),
        (processes, "kill_known", lambda names, leader, timeout_s: None),
        (processes, "send_signal", send_signal),
        (processes, "is_stopped", lambda pid: False),
        (processes, "descendants", lambda pid: []),
        (processes, "name_process", lambda pid: None),
        (protocol_module, "boot_id", lambda: _current_machine().boot_id),
        (supervisor_module, "Ranks", PlayedRanks),
        (supervisor_module, "Channels", PlayedChannels),
        (supervisor_module, "selectors", no_selectors),
        (supervisor_module, "LONGEST_SLEEP_S", 5.0),
        (processes, "hold_port", lambda port=0: _PlayedPort(port or next(ports))),
        (launch_module, "build_client_folder", lambda state: Path("/client")),
        (launch_module.SupervisorStarter, "fork", lambda _, folder, plan: _current_machine().fork(folder)),
        (follower_module, "LOOK_EVERY_S", 5.0),
        (follower_module, "end_of", lambda _: contextlib.nullcontext(asyncio.Event())),
        (os, "fsync", lambda _: None),
    ]
    with replaced(changes):
        yield
