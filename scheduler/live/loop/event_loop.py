"""The event loop of the live server: steps come in, one transaction is committed, then answers and effects go out.

    inbox -> take every step of the batch -> commit in the writer thread -> resolve the callers, post, solve, rent

A step is a plain function of the transaction. It may raise `UserError` before it has emitted anything; that is then its
answer. A step that may cause hundreds of commands is taken in pieces (`perform_soon_in_pieces`): between them the rest
of the server runs, but no other step. Steps that need no common transaction are taken in turns (`perform_in_turns`):
those of a few holders a batch, each holder after the other, and short ones where others wait. An AssertionError is a
bug in Walras: nothing of the batch is written, and the process ends (a restart begins from what was committed). Nothing
in the loop's thread touches the database.

Nothing in the loop may block it for 20 ms. Work over many items yields between them (`CooperativeYield`). A full
garbage collection takes 50 to 80 ms with ten thousand active jobs, so only young objects are collected automatically,
and everything once an hour.

A commit that the disk refuses (mostly because it is full) is repeated until it succeeds: the core has decided, so the
batch cannot be taken back, and nothing of it is answered or sent before it is written. Meanwhile callers who wait for
it get an error, new steps are refused, and steps without a caller stay in the inbox. An idempotency key makes it safe
to submit again.

The clock counts seconds since the epoch that the store remembers; it never decreases, not even across restarts. Wall
time is read once, at the start, to find how long the server was away; from then on the monotonic clock counts, so that
setting the wall clock moves no instant. Wall time serves display and the calendar: when a month ends, its charges are
closed, and the core learns that the budgets of a new month begin.
"""

import asyncio
import gc
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from heapq import heappop, heappush
from math import inf
from typing import Any, Protocol, TypeVar

from scheduler.core.core import SchedulerCore
from scheduler.core.events import Woke
from scheduler.live.loop.apply_commands import emit_in_pieces
from scheduler.live.loop.live_state import LiveState
from scheduler.live.loop.transaction import FrozenTransaction, Transaction, TransactionEffects
from scheduler.live.store.sql_store import Store
from scheduler.live.store.store_interface import StoreUnavailable
from walras.clocks import SYSTEM_CLOCKS, Clocks
from walras.cluster import Market
from walras.errors import ClusterError, UserError


def _lease_s() -> dict[str, float]:
    # A silent owned machine mostly comes back; a silent spot machine is probably gone.
    return {Market.OWNED: 600.0, Market.ON_DEMAND: 600.0, Market.SPOT: 120.0}


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """Settings of the live server. Lengths are in seconds unless the name says otherwise."""

    #: How long an attempt may run after the last contact between agent and server, by market.
    lease_s: dict[str, float] = field(default_factory=_lease_s)
    #: Longest interval of heartbeats while there is nothing to report; agents draw theirs between half of it and this.
    heartbeat_s: float = 5.0
    #: Silence after which a machine is shown as unreachable and gets no new jobs.
    unreachable_s: float = 15.0
    #: What happens to attempts that still run when the database was restored: "go_on", or "stop" (their jobs are held).
    after_restore: str = "go_on"
    #: A solve that takes longer is cancelled, and the policy keeps its last answer.
    solve_timeout_s: float = 120.0
    #: The most requests under way at once, not counting those that wait for something to happen.
    concurrency: int = 256


class Clock:
    """The source of the live server's instants."""

    def __init__(
        self, epoch_unix_s: float, last_at: float, clocks: Clocks = SYSTEM_CLOCKS, absent_until: float | None = None
    ) -> None:
        """`absent_until`: the present instant by what is known of the server's absence; None: by wall time."""
        self._epoch_unix_s = epoch_unix_s
        self._monotonic, self._wall = clocks.monotonic, clocks.wall
        # A wall clock that was set back while the server was down must not set the cluster's time back.
        start_at = max(last_at, clocks.wall() - epoch_unix_s) if absent_until is None else max(last_at, absent_until)
        self._offset = start_at - clocks.monotonic()

    def now(self) -> float:
        """Returns the present instant, seconds since the cluster's epoch."""
        return self._offset + self._monotonic()

    def follow(self) -> float:
        """Takes over a correction of the wall clock; returns by how many seconds it was stepped (0.0: it was not).

        Instants of the cluster keep their distances; what they are called in UTC is corrected.
        """
        step_s = self._wall() - self._epoch_unix_s - self.now()
        if abs(step_s) < _STEP_LEAST_S:
            return 0.0
        self._epoch_unix_s += step_s
        return step_s

    def unix(self, at: float) -> float:
        """Returns an instant as Unix seconds."""
        return self._epoch_unix_s + at

    def shown(self, at: float) -> str:
        """Returns an instant as RFC 3339 text in UTC, for programs."""
        return datetime.fromtimestamp(self._epoch_unix_s + at, UTC).isoformat(timespec="milliseconds")

    def in_words(self, at: float) -> str:
        """Returns an instant as people read it, in UTC, to the second."""
        return f"{datetime.fromtimestamp(self._epoch_unix_s + at, UTC):%Y-%m-%d %H:%M:%S} UTC"

    def shown_or_none(self, at: float | None) -> str | None:
        return None if at is None else self.shown(at)


#: The most steps that may wait for the loop (requests beyond that are refused with 429), and those of one transaction.
_INBOX_MOST, _BATCH_MOST = 10_000, 500
_YIELD_AFTER_S = 0.004
#: The most steps of one turn, and the most holders that have one in a batch.
_TURN_MOST, _HOLDERS_MOST = 16, 4
#: A refused commit is repeated after these waits, s, doubling up to the most; callers get the error at this try.
_RETRY_FIRST_S, _RETRY_MOST_S, _TRIES_UNTOLD = 0.025, 5.0, 3
_NOTE_CLOCKS_EVERY_S, _FOLLOW_CLOCK_EVERY_S = 60.0, 2.0
#: A wall clock that is off by less is left alone: callers' clocks are no better.
_STEP_LEAST_S = 1.0
#: Thresholds of the garbage collector by generation: only new objects are collected as they come, in short pieces
#: (`collect_young`). Collections of older ones made pieces of 20 to 30 ms and freed next to nothing: with a thousand
#: machines nine objects a second are in cycles that outlive the first. `collect_all_hourly` frees them.
_YOUNG, _NEVER = 2_000, 1_000_000
_YOUNG_GC_EVERY_S, _FULL_GC_EVERY_S = 0.05, 3600.0


class CooperativeYield:
    """Lets the rest of the server run during long work: call `await cooperative.yield_if_due()` between its items."""

    def __init__(self, now: Callable[[], float] = SYSTEM_CLOCKS.monotonic) -> None:
        self._now = now
        self._since = now()

    async def yield_if_due(self) -> None:
        """Yield to the event loop if the work has gone on for 4 ms since it last did."""
        if self._now() - self._since > _YIELD_AFTER_S:
            await self.yield_now()

    async def yield_now(self) -> None:
        """Yield to the event loop."""
        await asyncio.sleep(0)
        self._since = self._now()


def freeze_gc() -> None:
    """Run a full garbage collection; automatic ones then skip the objects that exist, and those that grow old."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _NEVER, _NEVER)


async def collect_young(every_s: float = _YOUNG_GC_EVERY_S) -> None:
    """Collect new objects twenty times a second, for ever.

    The collector waits until 2,000 more have been made than freed, old ones included. A server frees about as many as
    it makes: tens of thousands of new ones come together first, and looking through them takes 10 to 20 ms.
    """
    while True:
        await asyncio.sleep(every_s)
        gc.collect(0)


async def collect_all_hourly() -> None:
    """Collect everything once an hour, for ever."""
    while True:
        await asyncio.sleep(_FULL_GC_EVERY_S)
        gc.unfreeze()
        freeze_gc()


log = logging.getLogger(__name__)

T = TypeVar("T")
Step = Callable[[Transaction], T]
#: A step that is taken in pieces; it has no answer.
LongStep = Callable[[Transaction], Iterator[None]]


class Overloaded(ClusterError):
    """More steps wait than the inbox may hold."""


class EffectHandler(Protocol):
    """Receives the effects of each batch once it is durable. It is called in the loop and must not block."""

    def deliver(self, effects: TransactionEffects) -> None: ...


@dataclass(slots=True)
class _QueuedSteps:
    #: Steps of one transaction; the loop may yield between them.
    steps: Sequence[Step[Any]]
    done: asyncio.Future[list[Any]]
    #: A step that is taken in pieces, in the place of `steps`.
    long: LongStep | None = None
    #: Whose turn it takes; None: it takes none.
    holder: str | None = None


class _Turns:
    """What waits for its turn, by holder: each holder has one after the other."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[_QueuedSteps]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, holder: str, item: _QueuedSteps) -> None:
        self._waiting.setdefault(holder, deque()).append(item)

    def next_ones(self) -> list[_QueuedSteps]:
        """Takes out the oldest item of each holder whose turn it is, of a few holders."""
        found = []
        for holder in list(self._waiting)[:_HOLDERS_MOST]:
            own = self._waiting.pop(holder)
            found.append(own.popleft())
            if own:
                self._waiting[holder] = own
        return found


def _no_step(_: Transaction) -> None:
    pass


class ServerLoop:
    """Owns the core and the live state; everything that changes them goes through `perform`."""

    def __init__(
        self, core: SchedulerCore, state: LiveState, store: Store, clock: Clock, settings: LiveSettings
    ) -> None:
        self.core = core
        self.state = state
        self.clock = clock
        #: When the wall clock was last set, and by how many seconds.
        self.clock_stepped: tuple[float, float] | None = None
        self.settings = settings
        self.effect_handlers: list[EffectHandler] = []
        #: The least time, s, between two progress reports of a job to the core; follows the policy's rules.
        self.progress_interval_s = 60.0
        self._store = store
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store-writer")
        self._inbox: asyncio.Queue[_QueuedSteps] = asyncio.Queue(_INBOX_MOST)
        self._turns = _Turns()
        #: Whether the last batch could take turns.
        self._is_turn = True
        #: How many wait for the batch under way to end, besides those in the inbox.
        self._beside = 0
        self._settled = asyncio.Event()
        self._settled.set()
        #: True while a batch is being taken or written: nothing of it is durable yet.
        self._is_committing = False
        #: Why the batch under way cannot be written at present; None while nothing says so.
        self._stuck: StoreUnavailable | None = None
        #: The futures of all callers who wait for an answer.
        self._callers: set[asyncio.Future[list[Any]]] = set()
        #: Instants at which the core wants to be woken, earliest first.
        self._wakes: list[float] = []
        self._timer: asyncio.TimerHandle | None = None

    # ---------------------------------------------------------------- what others call

    async def perform(self, step: Step[T]) -> T:
        """Take a step in the next batch; returns its answer once the batch is durable.

        Raises UserError as the step does, Overloaded where too many steps wait, StoreUnavailable where the database
        cannot be written: a step that was under way then may still take effect.
        """
        return (await self._put([step]))[0]  # type: ignore[no-any-return]

    async def perform_in_pieces(self, step: LongStep) -> None:
        """As `perform`, for a step so long that the rest of the server must run between its pieces."""
        await self._put((), step)

    async def perform_all(self, steps: Sequence[Step[T]]) -> list[T]:
        """Take steps in one batch, of which all are written or none. Only the first may raise."""
        return await self._put(steps)

    async def perform_in_turns(
        self, holder: str, steps: Sequence[Step[T]], *, first: Step[None] = _no_step, last: Step[None] = _no_step
    ) -> list[T]:
        """Take steps in order, in several batches, each begun by `first` and ended by `last`; returns their answers.

        A batch has one turn of a holder, of a few steps, or of fewer where others wait for it.
        """
        answers: list[T] = []

        def turn(transaction: Transaction) -> Iterator[None]:
            first(transaction)
            until = self.clock.now() + _YIELD_AFTER_S
            for step in steps[len(answers) :][:_TURN_MOST]:
                transaction.at = self.clock.now()
                answers.append(step(transaction))
                yield
                if self.clock.now() >= until and (self._beside or not self._inbox.empty()):
                    break
            last(transaction)

        await self._put((), turn, holder)
        while len(answers) < len(steps):
            await self._put((), turn, holder)
        return answers

    def perform_soon(self, step: Step[Any]) -> None:
        """Take a step without a caller. It is never dropped, because it says what has happened in the world."""
        self._put_patiently([step])

    def perform_soon_in_pieces(self, step: LongStep) -> None:
        """As `perform_soon`, for a step so long that the rest of the server must run between its pieces."""
        self._put_patiently((), step)

    async def settled(self) -> None:
        """Wait until what the live state shows is durable. Raises StoreUnavailable where that will take long."""
        while self._is_committing:
            if self._stuck is not None:
                raise self._stuck
            self._beside += 1
            try:
                await self._settled.wait()
            finally:
                self._beside -= 1

    async def note_clocks(self) -> None:
        """Record the machine's clocks every minute; the next start derives from them how long the server was down."""
        note_at = -inf
        while True:
            self.follow_clock()
            if self.clock.now() >= note_at:
                note_at = self.clock.now() + _NOTE_CLOCKS_EVERY_S
                note = partial(self._store.note_alive, self.clock.now())
                await asyncio.get_running_loop().run_in_executor(self._writer, note)
            await asyncio.sleep(_FOLLOW_CLOCK_EVERY_S)

    def follow_clock(self) -> None:
        """Take over a step of the wall clock, and say so."""
        if step_s := self.clock.follow():
            self.clock_stepped = (self.clock.now(), step_s)
            self.state.epoch_unix_s = self.clock.unix(0.0)
            log.warning("the wall clock was set by %+.0f s: it is %s", step_s, self.clock.shown(self.clock.now()))

    async def touch_store(self) -> None:
        """Write to the database, to test that it works. Raises StoreUnavailable."""
        await asyncio.get_running_loop().run_in_executor(self._writer, self._store.touch)

    async def store_bytes(self) -> int:
        """Returns how much of the disk the database takes. Raises StoreUnavailable."""
        return await asyncio.get_running_loop().run_in_executor(None, self._store.size_bytes)

    @property
    def is_store_writable(self) -> bool:
        """Whether the database took the last batch, as far as is known."""
        return self._stuck is None

    def arm(self, wakes: Iterable[float]) -> None:
        """Wake the core at these instants too. All are kept: the core may pass an instant without needing it."""
        for wake_at in wakes:
            if wake_at not in self._wakes:
                heappush(self._wakes, wake_at)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._wakes:
            # Timers may fire a tick early, and the core must not find that its instant has not come.
            delay_s = max(0.0, self._wakes[0] - self.clock.now()) + 0.001
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake_core)

    async def run(self) -> None:
        """Run the loop until it is cancelled, or until an AssertionError shows a bug."""
        while True:
            await self._take([item for item in await self._next_batch() if not _was_refused(item.done)])
            # Callers of this batch, and of `settled`, read the state before the next batch changes it: under steady
            # load they would otherwise wait for an idle moment.
            await asyncio.sleep(0)

    async def _next_batch(self) -> list[_QueuedSteps]:
        """Returns what came to the inbox, waiting for it if need be, and turns of those that wait.

        Where both wait they alternate, so that who needs one batch does not wait for a turn besides.
        """
        waiting: list[_QueuedSteps] = []
        while not (waiting or self._turns) or not self._inbox.empty():
            item = await self._inbox.get()
            if item.holder is not None:
                self._turns.put(item.holder, item)
            else:
                waiting.append(item)
                if len(waiting) == _BATCH_MOST:
                    break
        self._is_turn = not waiting or not self._is_turn
        return [*waiting, *(self._turns.next_ones() if self._is_turn else ())]

    def close(self) -> None:
        """Stop the timer and the writer, after commits under way have finished."""
        if self._timer is not None:
            self._timer.cancel()
        self._writer.shutdown(wait=True)

    # ---------------------------------------------------------------- one batch

    async def _take(self, waiting: list[_QueuedSteps]) -> None:
        self.follow_clock()
        transaction = Transaction(self.core, self.state, self.settings.lease_s, self.progress_interval_s)
        answers: list[tuple[asyncio.Future[list[Any]], list[Any]]] = []
        self._settled.clear()
        self._is_committing = True
        cooperative = CooperativeYield(self.clock.now)
        self._beside += len(waiting) - 1
        try:
            for item in waiting:
                try:
                    if item.long is not None:
                        await self._pieces(transaction, item.long, cooperative)
                    answers.append((item.done, await self._steps(transaction, item.steps, cooperative)))
                except UserError as error:
                    if not item.done.done():
                        item.done.set_exception(error)
            self.core = transaction.core
            await cooperative.yield_if_due()
            frozen = transaction.freeze()
            if not frozen.is_empty:
                # If the loop is cancelled, the commit still finishes: its callers must not be left without an answer.
                began_at = self.clock.now()
                await asyncio.shield(asyncio.ensure_future(self._commit(frozen)))
                transaction.effects.commit_s = self.clock.now() - began_at
        except BaseException:
            for item in waiting:
                item.done.cancel()
            raise
        finally:
            self._beside -= len(waiting) - 1
            self._is_committing = False
            self._settled.set()
        frozen.log_events(log)
        for done, answer in answers:
            if not done.done():
                done.set_result(answer)
        if transaction.effects.wakes:
            self.arm(transaction.effects.wakes)
        for handler in self.effect_handlers:
            handler.deliver(transaction.effects)

    async def _commit(self, frozen: FrozenTransaction) -> None:
        """Write a batch, repeating it until it succeeds."""
        loop, tries = asyncio.get_running_loop(), 0
        while True:
            try:
                await loop.run_in_executor(self._writer, lambda: self._store.commit(frozen.encoded()))
            except StoreUnavailable as error:
                tries += 1
                if tries == _TRIES_UNTOLD:
                    log.error("%s; nothing is taken until it can be", error)
                    self._refuse_all(error)
                await asyncio.sleep(min(_RETRY_MOST_S, _RETRY_FIRST_S * 2**tries))
                continue
            if self._stuck is not None:
                log.warning("the database can be written again")
                self._stuck = None
            return

    def _refuse_all(self, error: StoreUnavailable) -> None:
        """Answer all callers with the error: their steps are in the batch that cannot be written, or not taken."""
        self._stuck = StoreUnavailable(
            f"{error}; what runs goes on, and nothing new is taken until it can be. Send it again with the same"
            " Idempotency-Key"
        )
        for done in self._callers:
            if not done.done():
                done.set_exception(self._stuck)
        # Wakes `settled`, which then raises the error.
        self._settled.set()

    async def _steps(
        self, transaction: Transaction, steps: Sequence[Step[Any]], cooperative: CooperativeYield
    ) -> list[Any]:
        """Take steps one by one, yielding to the rest of the server when they take long."""
        answers = []
        for step in steps:
            transaction.at = self.clock.now()
            answers.append(step(transaction))
            await cooperative.yield_if_due()
        return answers

    async def _pieces(self, transaction: Transaction, step: LongStep, cooperative: CooperativeYield) -> None:
        # The steps before it count as a piece, and the first piece may be as long as any.
        await cooperative.yield_now()
        transaction.at = self.clock.now()
        for _ in step(transaction):
            await cooperative.yield_if_due()

    async def _put(
        self, steps: Sequence[Step[Any]], long: LongStep | None = None, holder: str | None = None
    ) -> list[Any]:
        if self._stuck is not None:
            raise self._stuck
        done: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        try:
            self._inbox.put_nowait(_QueuedSteps(steps, done, long, holder))
        except asyncio.QueueFull:
            raise Overloaded("the server has more to do than it can hold; try again in a moment") from None
        self._callers.add(done)
        try:
            return await done
        finally:
            self._callers.discard(done)

    def _put_patiently(self, steps: Sequence[Step[Any]], long: LongStep | None = None) -> None:
        async def put() -> None:
            done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            await self._inbox.put(_QueuedSteps(steps, done, long))
            await done

        asyncio.ensure_future(put()).add_done_callback(_log_refused_step)

    def _wake_core(self) -> None:
        self._timer = None
        now = self.clock.now()
        while self._wakes and self._wakes[0] <= now:
            heappop(self._wakes)
        self.arm(())
        self.perform_soon_in_pieces(lambda transaction: emit_in_pieces(transaction, Woke(transaction.at)))


def _was_refused(done: "asyncio.Future[list[Any]]") -> bool:
    """Whether the caller was told already that the database cannot be written."""
    return done.done() and not done.cancelled() and isinstance(done.exception(), StoreUnavailable)


def _log_refused_step(task: "asyncio.Future[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        log.warning("a step that nobody waited for was refused: %s", task.exception())
