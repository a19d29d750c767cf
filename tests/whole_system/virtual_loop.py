"""An event loop in virtual time, and processes in it that can be killed at any await.

When nothing is ready, the loop jumps to its next timer: hours pass in milliseconds, always in the same order. Every
callback belongs to a `SimProcess`, found through the context it was scheduled in; once that is dead, nothing of it runs
any more, not even what stands in its `finally`: as after `kill -9`. Threads and worker processes are calls that take
virtual time (`run_in_executor`): a process may die before such a call, or after it and before it hears of it. Unix
sockets and children go to the machine of the process that asks for them (`SimProcess.machine`).
"""

import asyncio
import contextvars
import heapq
from collections.abc import Callable
from typing import Any, Protocol


class Surroundings(Protocol):
    """What a machine offers to the processes on it."""

    def connect(self, process: "SimProcess", path: str, protocol: asyncio.BaseProtocol) -> asyncio.Transport: ...


class ProcessKilled(BaseException):
    """Raised into the code that runs at the very moment at which its process is killed."""


class SimProcess:
    """A process of the simulated world. `countdown` kills it after so many more of its callbacks."""

    def __init__(self, name: str, loop: "VirtualLoop", machine: Surroundings | None = None) -> None:
        self.name = name
        self.machine = machine
        self.is_dead = False
        #: Until then it takes no turn, as after SIGSTOP.
        self.stopped_until = 0.0
        self.countdown = -1
        self.on_kill: list[Callable[[], None]] = []
        self.executor_delay: Callable[[], float] = lambda: 0.0
        #: Dead tasks are kept: collected early, their `finally` would run after all.
        self.tasks: list[asyncio.Task[Any]] = []
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)
        self._loop = loop
        loop.processes.append(self)

    def spawn(self, work: Any) -> "asyncio.Task[Any]":
        return self._loop.create_task(work, context=self.context)

    def kill(self) -> None:
        if not self.is_dead:
            self.is_dead = True
            for call in self.on_kill:
                call()


PROCESS: contextvars.ContextVar[SimProcess | None] = contextvars.ContextVar("process", default=None)


class _SimHandle(asyncio.Handle):
    """What asyncio's does, without its questions about debugging: hundreds of thousands are made a minute."""

    __slots__ = ()

    def __init__(self, callback: Any, args: Any, loop: Any, context: contextvars.Context | None) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop, self._callback, self._args = loop, callback, args
        self._cancelled, self._repr, self._source_traceback = False, None, None

    def cancel(self) -> None:
        self._cancelled, self._callback, self._args = True, None, None


class _SimTimer(_SimHandle, asyncio.TimerHandle):
    """The same with an instant."""

    __slots__ = ()

    def __init__(self, when: float, callback: Any, args: Any, loop: Any, context: contextvars.Context | None) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop, self._callback, self._args, self._when = loop, callback, args, when
        self._cancelled, self._scheduled, self._repr, self._source_traceback = False, False, None, None


class Deadlock(Exception):
    """Nothing will ever happen again."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Give it to `asyncio.set_event_loop`, or call its `run_until_complete`."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 1000.0
        #: (instant, order of asking, timer): tuples compare without a call of Python code.
        self._timers: list[tuple[float, int, asyncio.Handle]] = []
        self._asked = 0
        self.turns = 0
        #: All that ever lived: a dead one that is collected would run its `finally`.
        self.processes: list[SimProcess] = []
        self.set_task_factory(_tracked_task)  # type: ignore[arg-type]
        self.set_exception_handler(self._note_exception)
        #: Exceptions that nobody caught, by the process they broke out in.
        self.uncaught: list[tuple[str, BaseException]] = []

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        """One turn: everything that is ready; if nothing is, jump to the next timer first."""
        ready, timers = self._ready, self._timers  # type: ignore[attr-defined]
        if not ready:
            while timers and timers[0][2]._cancelled:  # type: ignore[attr-defined]
                heapq.heappop(timers)
            if timers:
                self._now = max(self._now, timers[0][0])
            elif not self._stopping:  # type: ignore[attr-defined]
                raise Deadlock
        while timers and timers[0][0] <= self._now:
            timer = heapq.heappop(timers)[2]
            if not timer._cancelled:  # type: ignore[attr-defined]
                ready.append(timer)
        self.turns += 1
        next_ready = ready.popleft
        for _ in range(len(ready)):
            handle = next_ready()
            if handle._cancelled:
                continue
            # What `asyncio.Handle._run` does, if the process that it belongs to lives.
            context = handle._context
            process = context.get(PROCESS)
            if process is not None:
                if process.countdown >= 0:
                    process.countdown -= 1
                    if process.countdown < 0:
                        process.kill()
                if process.is_dead:
                    continue
                if process.stopped_until > self._now:
                    self._asked += 1
                    heapq.heappush(timers, (process.stopped_until, self._asked, handle))
                    continue
            try:
                context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler({"exception": error, "handle": handle})

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when its instant comes."""

    def _process_events(self, event_list: list[Any]) -> None:
        return

    def _write_to_self(self) -> None:
        return

    def _note_exception(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        handle = context.get("handle")
        process = handle._context.get(PROCESS) if handle is not None else None
        if error is not None and not isinstance(error, ProcessKilled) and not self.is_closed():
            self.uncaught.append((process.name if process is not None else "", error))

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> asyncio.Handle:
        handle = _SimHandle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _SimTimer(when, callback, args, self, context)
        self._asked += 1
        heapq.heappush(self._timers, (when, self._asked, timer))
        return timer

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:
        """Nobody signals a simulated process: it is killed."""

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """Call it in this thread, some virtual time from now; its caller hears of it some time after that."""
        done = self.create_future()
        process = PROCESS.get()
        delay = process.executor_delay if process is not None else float

        def answer(set_it: Any, value: Any) -> None:
            if not done.done():
                set_it(value)

        def work() -> None:
            try:
                result = func(*args)
            except ProcessKilled:
                raise
            except Exception as error:
                self.call_later(delay(), answer, done.set_exception, error)
            else:
                self.call_later(delay(), answer, done.set_result, result)

        self.call_later(delay(), work)
        return done

    async def create_unix_connection(self, protocol_factory: Any, path: Any = None, **_: Any) -> Any:
        process = PROCESS.get()
        assert process is not None
        assert process.machine is not None
        await asyncio.sleep(0)
        protocol = protocol_factory()
        return process.machine.connect(process, str(path), protocol), protocol


def _tracked_task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> "asyncio.Task[Any]":
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
    context = options.get("context")
    process = PROCESS.get() if context is None else context.get(PROCESS)
    if process is not None:
        process.tasks.append(task)
        if len(process.tasks) > 256 and not process.is_dead:
            process.tasks = [each for each in process.tasks if not each.done()]
    return task
