"""The loop of the live server: steps in, one transaction, then answers and effects.

    inbox -> take every step of the batch -> commit in the writer thread -> resolve what waited, post, solve, rent

A step is a plain function of the turn. It may raise `UserError` before it has emitted anything; that is its answer. A
step whose consequences may be hundreds of commands is taken in pieces (`perform_soon_in_pieces`): between them the rest
of the server runs, and no other step does. An AssertionError is a mistake of ours: nothing of the batch is written, and
the process ends (a restart begins from what was committed). Nothing in the loop's thread touches the database.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Protocol, TypeVar

from scheduler.core.core import SchedulerCore
from scheduler.core.events import Woke
from scheduler.live.records.store import Store
from scheduler.live.settings import LiveSettings
from scheduler.live.turns.board import Board
from scheduler.live.turns.carry_out import emit_in_pieces
from scheduler.live.turns.clock import Clock
from scheduler.live.turns.turn import Effects, Turn
from walras.errors import ClusterError, UserError

log = logging.getLogger(__name__)

T = TypeVar("T")
Step = Callable[[Turn], T]
#: A step taken in pieces; none of them is the answer to anybody.
LongStep = Callable[[Turn], Iterator[None]]
#: The loop is given way to this often during a long batch.
_BREATH_S = 0.004


class Overloaded(ClusterError):
    """More steps wait than the server is willing to hold."""


class Outlet(Protocol):
    """Where effects go once a batch is durable. Called in the loop; must not block."""

    def deliver(self, effects: Effects) -> None: ...


@dataclass(slots=True)
class _Waiting:
    #: Steps of one transaction; between them the loop may breathe.
    steps: Sequence[Step[Any]]
    done: asyncio.Future[list[Any]]
    #: Instead of steps, one that is taken in pieces.
    long: LongStep | None = None


class Daemon:
    """Owns core and board; everything that changes them goes through `perform`."""

    def __init__(self, core: SchedulerCore, board: Board, store: Store, clock: Clock, settings: LiveSettings) -> None:
        self.core = core
        self.board = board
        self.clock = clock
        self.settings = settings
        self.outlets: list[Outlet] = []
        #: The core hears of a job's progress at most this often; follows the policy's rules.
        self.progress_interval_s = 60.0
        self._store = store
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store-writer")
        self._inbox: asyncio.Queue[_Waiting] = asyncio.Queue(settings.inbox_limit)
        self._settled = asyncio.Event()
        self._settled.set()
        self._breathed_at = 0.0
        #: Instants at which the core wants to be woken, earliest first.
        self._wakes: list[float] = []
        self._timer: asyncio.TimerHandle | None = None

    # ---------------------------------------------------------------- what others call

    async def perform(self, step: Step[T]) -> T:
        """Take a step in the next batch; returns its answer once the batch is durable.

        Raises UserError as the step does, Overloaded where too many steps wait.
        """
        return (await self._put([step]))[0]  # type: ignore[no-any-return]

    async def perform_all(self, steps: Sequence[Step[T]]) -> list[T]:
        """Take steps in one batch: all of them are written, or none. Only the first may raise."""
        return await self._put(steps)

    def perform_soon(self, step: Step[Any]) -> None:
        """Take a step that nobody waits for. Never dropped: what the world did must be known."""
        self._put_patiently([step])

    def perform_soon_in_pieces(self, step: LongStep) -> None:
        """As `perform_soon`, for a step so long that the rest of the server must run between its pieces."""
        self._put_patiently((), step)

    async def settled(self) -> None:
        """Wait until what the board shows is durable."""
        while not self._settled.is_set():
            await self._settled.wait()

    async def touch_store(self) -> None:
        """Write to the database, to show that it works."""
        await asyncio.get_running_loop().run_in_executor(self._writer, self._store.touch)

    def arm(self, wakes: Iterable[float]) -> None:
        """Wake the core at these instants too. All are kept: by the time one rings, the core may have moved past it."""
        for wake_at in wakes:
            if wake_at not in self._wakes:
                heappush(self._wakes, wake_at)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._wakes:
            # Timers may ring a tick early; the core must not find that it is not yet time.
            delay_s = max(0.0, self._wakes[0] - self.clock.now()) + 0.001
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._ring)

    async def run(self) -> None:
        """The loop. Ends by cancellation, or by an AssertionError of ours."""
        while True:
            waiting = [await self._inbox.get()]
            while len(waiting) < self.settings.batch_limit and not self._inbox.empty():
                waiting.append(self._inbox.get_nowait())
            await self._take(waiting)

    def close(self) -> None:
        """Stop timers and the writer; commits under way are finished."""
        if self._timer is not None:
            self._timer.cancel()
        self._writer.shutdown(wait=True)

    # ---------------------------------------------------------------- one batch

    async def _take(self, waiting: list[_Waiting]) -> None:
        turn = Turn(self.core, self.board, self.settings.lease_s, self.progress_interval_s)
        answers: list[tuple[asyncio.Future[list[Any]], list[Any]]] = []
        self._settled.clear()
        self._breathed_at = self.clock.now()
        try:
            for item in waiting:
                try:
                    if item.long is not None:
                        await self._pieces(turn, item.long)
                    answers.append((item.done, await self._steps(turn, item.steps)))
                except UserError as error:
                    if not item.done.done():
                        item.done.set_exception(error)
            self.core = turn.core
            await self._breathe()
            frozen = turn.freeze()
            if not frozen.is_empty:
                commit = asyncio.get_running_loop().run_in_executor(
                    self._writer, lambda: self._store.commit(frozen.encoded())
                )
                # A cancelled loop must not leave answers hanging over a commit that goes through.
                await asyncio.shield(commit)
        except BaseException:
            for item in waiting:
                item.done.cancel()
            raise
        finally:
            self._settled.set()
        frozen.tell(log)
        for done, answer in answers:
            if not done.done():
                done.set_result(answer)
        if turn.effects.wakes:
            self.arm(turn.effects.wakes)
        for outlet in self.outlets:
            outlet.deliver(turn.effects)

    async def _steps(self, turn: Turn, steps: Sequence[Step[Any]]) -> list[Any]:
        """Take steps one by one, giving way to the rest of the server when they take long."""
        answers = []
        for step in steps:
            turn.at = self.clock.now()
            answers.append(step(turn))
            await self._breathe()
        return answers

    async def _pieces(self, turn: Turn, step: LongStep) -> None:
        # What was done before it is another piece already: the first may be as long as any.
        await asyncio.sleep(0)
        self._breathed_at = turn.at = self.clock.now()
        for _ in step(turn):
            await self._breathe()

    async def _breathe(self) -> None:
        if self.clock.now() - self._breathed_at > _BREATH_S:
            await asyncio.sleep(0)
            self._breathed_at = self.clock.now()

    async def _put(self, steps: Sequence[Step[Any]]) -> list[Any]:
        done: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        try:
            self._inbox.put_nowait(_Waiting(steps, done))
        except asyncio.QueueFull:
            raise Overloaded("the server has more to do than it can hold; try again in a moment") from None
        return await done

    def _put_patiently(self, steps: Sequence[Step[Any]], long: LongStep | None = None) -> None:
        async def put() -> None:
            done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            await self._inbox.put(_Waiting(steps, done, long))
            await done

        asyncio.ensure_future(put()).add_done_callback(_tell_mistake)

    def _ring(self) -> None:
        self._timer = None
        now = self.clock.now()
        while self._wakes and self._wakes[0] <= now:
            heappop(self._wakes)
        self.arm(())
        self.perform_soon_in_pieces(lambda turn: emit_in_pieces(turn, Woke(turn.at)))


def _tell_mistake(task: "asyncio.Future[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        log.warning("a step that nobody waited for was refused: %s", task.exception())
