"""What one event costs the core: submit, start and finish with thousands of active jobs.

A first-come order with a full fleet: each job that ends makes room for the next in line, and a new one is submitted,
so the number of active jobs stays. Times are processor time of `handle` alone, as the server and the simulator call it.
"""

from collections import deque
from time import process_time

from benchmarks.tables import Measured
from optimizer.policy import PolicySpec
from scheduler.core.commands import Command, Start
from scheduler.core.core import SchedulerCore
from scheduler.core.events import (
    AttemptEnded,
    AttemptStarted,
    EndCause,
    Event,
    JobSubmitted,
    NodeJoined,
    PolicyChanged,
    PoolDeclared,
)
from scheduler.core.rules import RoundRules
from scheduler.core.speed_events import ThroughputMeasured
from walras.cluster import NodeId, Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind

#: Mean microseconds of one `handle`, on the machine that runs the benchmark.
TARGET_US = 60.0
_PER_MACHINE = 8
_KINDS = [Kind(f"kind-{n}") for n in range(8)]


class Clocked:
    """A core whose every `handle` is timed, by type of event."""

    def __init__(self) -> None:
        self._core = SchedulerCore()
        self.spent_s: dict[type, float] = {}
        self.handled: dict[type, int] = {}
        self.at = 0.0
        self.started: deque[Start] = deque()

    def handle(self, event: Event) -> None:
        began = process_time()
        commands: list[Command] = self._core.handle(event)
        took_s = process_time() - began
        self.spent_s[type(event)] = self.spent_s.get(type(event), 0.0) + took_s
        self.handled[type(event)] = self.handled.get(type(event), 0) + 1
        self.started.extend(command for command in commands if isinstance(command, Start))

    def mean_us(self, *types: type) -> float:
        """Mean cost of these events."""
        handled = sum(self.handled.get(kind, 0) for kind in types)
        return 1e6 * sum(self.spent_s.get(kind, 0.0) for kind in types) / max(1, handled)

    def forget_times(self) -> None:
        self.spent_s.clear()
        self.handled.clear()


def _job(number: int) -> JobRequest:
    return JobRequest(JobId(number), _KINDS[number % len(_KINDS)], demands=(Demand("a100", 1),), steps=1000.0)


def _filled(active: int) -> Clocked:
    """Half of the active jobs run, the other half wait."""
    core = Clocked()
    core.handle(PolicyChanged(0.0, PolicySpec("fifo"), RoundRules()))
    pool = Pool(PoolId("a100"), Shape("a100x8", "a100", _PER_MACHINE, 64.0, 2**39))
    core.handle(PoolDeclared(0.0, pool))
    for machine in range(active // 2 // _PER_MACHINE):
        core.handle(NodeJoined(0.0, NodeId(f"n{machine}"), pool.pool_id))
    for kind in _KINDS:
        core.handle(ThroughputMeasured(0.0, kind, "a100", 1, 1.0))
    for number in range(1, active + 1):
        core.at += 0.01
        core.handle(JobSubmitted(core.at, _job(number)))
    return core


def _turn(core: Clocked, number: int) -> None:
    """One job starts, ends, makes room for the next, and a new one comes."""
    start = core.started.popleft()
    core.at += 0.01
    core.handle(AttemptStarted(core.at, start.job_id, start.attempt))
    core.at += 0.01
    core.handle(AttemptEnded(core.at, start.job_id, start.attempt, EndCause.EXITED, exit_code=0))
    core.at += 0.01
    core.handle(JobSubmitted(core.at, _job(number)))


def measure(scale: float = 1.0) -> list[Measured]:
    """`scale` shrinks the number of active jobs and of turns."""
    active, turns = max(100, int(10_000 * scale)), max(100, int(20_000 * scale))
    core = _filled(active)
    _turn(core, active + 1)
    core.forget_times()
    for turn in range(turns):
        _turn(core, active + 2 + turn)
    measured = Measured("cost of SchedulerCore.handle", f"{active} active jobs, {turns} turns, fifo")
    measured.add("submit", core.mean_us(JobSubmitted), "us")
    measured.add("start", core.mean_us(AttemptStarted), "us")
    measured.add("finish (and start of the next)", core.mean_us(AttemptEnded), "us")
    measured.add("mean", core.mean_us(JobSubmitted, AttemptStarted, AttemptEnded), "us", TARGET_US)
    return [measured]
