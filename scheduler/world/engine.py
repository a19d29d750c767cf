"""A discrete-event engine: virtual time, a heap of timers, dispatch to the scheduler core, named random streams.

The engine only decides what happens next. `SimulatedWorld` simulates jobs and machines, and the core reacts. Two runs
over the same inputs give the core the same events in the same order and get the same commands (unless the solve time is
measured, which makes this machine's clock an input).

Every random draw of a run comes from a stream that is named after its purpose, so that one more draw in a stream never
shifts another. The same seed and name give the same stream on every machine.
"""

import gc
import heapq
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from random import Random
from time import perf_counter
from typing import Any, Protocol

from scheduler.core.commands import Command, Solve, WakeAt
from scheduler.core.events import Event, Proposal, Solved, Woke


class RandomStreams:
    """The random streams of one simulated run, each made at its first use."""

    def __init__(self, seed: int | str) -> None:
        self.seed = seed
        self._streams: dict[str, Random] = {}

    def stream(self, name: str) -> Random:
        """Returns the stream of that name (`arrivals`, `faults`, `speeds`, ...); the same object every time."""
        found = self._streams.get(name)
        if found is None:
            found = self._streams[name] = self._fresh(name)
        return found

    @property
    def drawn(self) -> bool:
        """Whether anything was drawn from any stream. If not, every other seed gives the same run."""
        return any(stream.getstate() != self._fresh(name).getstate() for name, stream in self._streams.items())

    def _fresh(self, name: str) -> Random:
        return Random(f"{self.seed}/{name}")


#: Cancelled entries tolerated in the heap before it is rebuilt without them.
_CANCELLED_MIN = 1024
#: Objects allocated between two runs of the garbage collector.
_YOUNG_MAX = 50_000


class EventHandler(Protocol):
    """Receives events and answers with commands: `SchedulerCore`, or a script in a test."""

    def handle(self, event: Event) -> list[Command]:
        """Handles one event and returns the commands that follow."""
        ...


#: The function that a timer calls at its instant: it changes the world and returns the events for the scheduler.
Action = Callable[[float, Any], Iterable[Event]]


class Timer:
    """An entry of the heap. `act` is None after it has fired or was cancelled."""

    __slots__ = ("act", "at", "subject")

    def __init__(self, at: float, act: Action | None, subject: Any) -> None:
        self.at = at
        self.act = act
        self.subject = subject


class SolveClock(StrEnum):
    """The duration of a solve in virtual time."""

    ZERO = "zero"
    FIXED = "fixed"
    #: The real time on this machine: realistic, but not reproducible.
    MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class SolveTime:
    """The modelled time between a `Solve` and its answer."""

    clock: SolveClock = SolveClock.ZERO
    fixed_s: float = 0.0

    def took_s(self, measured_s: float) -> float:
        """Returns the virtual seconds of a solve that took `measured_s` on this machine."""
        if self.clock is SolveClock.MEASURED:
            return measured_s
        return self.fixed_s if self.clock is SolveClock.FIXED else 0.0


class RunOutcome(StrEnum):
    """Why a run ended."""

    #: `stop` was called: normally because every job has ended.
    COMPLETE = "complete"
    #: The heap is empty.
    EXHAUSTED = "exhausted"
    #: The scheduler wakes again and again without a decision, and no other timer is pending.
    STALLED = "stalled"
    TIME_LIMIT = "time_limit"
    EVENT_LIMIT = "event_limit"


@dataclass(slots=True)
class SolveStats:
    """Solver statistics, in real seconds of this machine."""

    solves: int = 0
    real_s: float = 0.0
    real_s_max: float = 0.0
    statuses: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Limits at which a run ends, whatever is unfinished."""

    until_at: float = inf
    max_events: float = inf
    #: Number of consecutive wakes, with no other timer and no decision, after which a run counts as stalled.
    quiet_wakes_max: int = 1000


class Engine:
    """The clock, the heap and the dispatch.

    `on_command` maps a command type to the function that carries it out, `on_event` calls observers before the core
    handles an event, and `recorder` (if set) receives each event with the commands that followed.
    """

    def __init__(
        self, core: EventHandler, solver: Callable[[Solve], Proposal], solve_time: SolveTime | None = None
    ) -> None:
        self.core = core
        self.now = 0.0
        self.events = 0
        self.solve_stats = SolveStats()
        self.on_command: dict[type, Callable[[float, Any], None]] = {WakeAt: self.wake_at, Solve: self._solve}
        self.on_event: dict[type, Callable[[Any], None]] = {}
        self.recorder: Callable[[Event, list[Command]], None] | None = None
        self._solver = solver
        self._solve_time = solve_time if solve_time is not None else SolveTime()
        self._heap: list[tuple[float, int, Timer]] = []
        self._sequence = 0
        self._cancelled = 0
        self._wake: Timer | None = None
        # Number of the engine's own entries (wakes, answers), and of the others at the last wake.
        self._own = 0
        self._scheduled_before = 0
        self._quiet_wakes = 0
        self._stopped = False

    # -- used by the world

    def schedule(self, at: float, act: Action, subject: Any = None) -> Timer:
        """Schedules `act(at, subject)` at `at` (not before now). Equal instants fire in the order scheduled."""
        assert at >= self.now, f"scheduled for {at}, but it is {self.now} already"
        timer = Timer(at, act, subject)
        self._sequence += 1
        heapq.heappush(self._heap, (at, self._sequence, timer))
        return timer

    def send_later(self, event: Event) -> None:
        """Sends the core the event at its instant."""
        self.schedule(event.at, _send_subject, event)

    def cancel(self, timer: Timer) -> None:
        """Cancels the timer; does nothing if it has fired."""
        if timer.act is None:
            return
        timer.act = None
        timer.subject = None
        self._cancelled += 1
        if self._cancelled > _CANCELLED_MIN and 2 * self._cancelled > len(self._heap):
            # Modified in place, because `run` holds the list.
            self._heap[:] = [entry for entry in self._heap if entry[2].act is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def send(self, event: Event) -> None:
        """Sends the core an event of this instant, and carries out its commands."""
        self.events += 1
        observe = self.on_event.get(type(event))
        if observe is not None:
            observe(event)
        commands = self.core.handle(event)
        if self.recorder is not None:
            self.recorder(event, commands)
        self.carry_out(event.at, commands)

    def carry_out(self, at: float, commands: Iterable[Command]) -> None:
        """Carries out commands of the core."""
        carry_out = self.on_command
        for command in commands:
            carry_out[type(command)](at, command)

    def stop(self) -> None:
        """Ends the run after the present event."""
        self._stopped = True

    # -- the loop

    def run(self, limits: RunLimits | None = None) -> RunOutcome:
        """Fires timers until `stop` is called, none is left, or a limit is reached."""
        limits = limits if limits is not None else RunLimits()
        heap, until_at, max_events = self._heap, limits.until_at, limits.max_events
        while heap:
            if self._stopped:
                return RunOutcome.COMPLETE
            if self._quiet_wakes > limits.quiet_wakes_max:
                return RunOutcome.STALLED
            if self.events >= max_events:
                return RunOutcome.EVENT_LIMIT
            if heap[0][0] > until_at:
                self.now = until_at
                return RunOutcome.TIME_LIMIT
            at, _, timer = heapq.heappop(heap)
            act = timer.act
            if act is None:
                self._cancelled -= 1
                continue
            self.now = at
            subject = timer.subject
            timer.act = timer.subject = None  # breaks the cycle between a timer and its owner
            for event in act(at, subject):
                self.send(event)
        return RunOutcome.COMPLETE if self._stopped else RunOutcome.EXHAUSTED

    # -- commands about time

    def wake_at(self, now: float, command: WakeAt) -> None:
        """Sends `Woke` at the command's instant, unless an earlier wake is scheduled."""
        # Only the earliest wake counts: a core that still needs the later one asks again when it wakes.
        at = max(command.at, now)
        if self._wake is not None:
            if self._wake.at <= at:
                return
            self.cancel(self._wake)
        self._own += 1
        self._wake = self.schedule(at, self._woke)

    def _woke(self, at: float, _: object) -> Iterable[Event]:
        self._wake = None
        alone = len(self._heap) == self._cancelled
        scheduled_by_world = self._sequence - self._own
        # No other timer is pending, and none was scheduled since the last wake: the scheduler only waits.
        self._quiet_wakes = self._quiet_wakes + 1 if alone and scheduled_by_world == self._scheduled_before else 0
        self._scheduled_before = scheduled_by_world
        return (Woke(at),)

    def _solve(self, now: float, command: Solve) -> None:
        began = perf_counter()
        proposal = self._solver(command)
        real_s = perf_counter() - began
        stats = self.solve_stats
        stats.solves += 1
        stats.real_s += real_s
        stats.real_s_max = max(stats.real_s_max, real_s)
        stats.statuses[proposal.status] = stats.statuses.get(proposal.status, 0) + 1
        took_s = self._solve_time.took_s(real_s)
        self._own += 1
        self.send_later(Solved(now + took_s, command.request_id, proposal, took_s))


def _send_subject(_: float, event: Event) -> Iterable[Event]:
    return (event,)


@contextmanager
def rare_garbage_collection() -> Iterator[None]:
    """Collects garbage less often, because a run allocates many small objects and hardly any cycles.

    Objects that existed before, such as the jobs of a trace, are frozen and not scanned.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _YOUNG_MAX) if before[0] else 0, *before[1:])
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
