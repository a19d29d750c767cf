"""Solves in a process of its own, so that the event loop never waits for one.

At most one solve is under way (the core sees to that). A solve that fails, takes too long or crashes its process is
answered by `SolveFailed`; after a timeout or a crash the next one gets a new process. A policy of another package runs
there alone: the keys of an order are asked for in the same way (`RankJobs`). On demand, a second process
computes a bound on what whole gangs can reach for the last question that was solved; the answer is kept for all who
ask.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress

from optimizer.assignment.whole_gang_bound import LARGEST_FLEET
from scheduler.core.commands import RankJobs, Solve
from scheduler.core.cycle.solve_requests import integral_gang_bound
from scheduler.core.events import Event, JobsRanked, Solved, SolveFailed
from scheduler.live.loop.apply_commands import emit_in_pieces
from scheduler.live.loop.event_loop import ServerLoop
from scheduler.live.loop.solver_process import answer, import_solver, prepare_program
from scheduler.live.loop.transaction import Transaction, TransactionEffects
from scheduler.live.loop.worker_process import as_error, ask_worker_process, kill_worker_process, new_worker_process
from scheduler.live.store.event_journal import as_journaled
from walras.clocks import SYSTEM_CLOCKS, Clocks

#: A policy that gives no keys for so long, seconds, has failed. The start of its process counts.
RANK_TIMEOUT_S = 20.0


class SolverPool:
    """Answers `Solve` and `RankJobs` commands, one process at a time."""

    def __init__(
        self,
        loop: ServerLoop,
        timeout_s: float,
        answer_it: Callable[[Solve | RankJobs], Solved | JobsRanked | SolveFailed] = answer,
        clocks: Clocks = SYSTEM_CLOCKS,
    ) -> None:
        self._loop = loop
        self._clocks = clocks
        self._timeout_s = timeout_s
        self._answer_it = answer_it
        self._pool = new_worker_process()
        self._is_prepared = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.state = "starting"
        #: The last question that was answered; None if it was too large to keep.
        self.answered: Solve | None = None

    async def start(self, *, rents: bool = False) -> None:
        """Have the solver process import what it needs before the first question.

        Args:
            rents: machines can be rented. The first decision will then need cvxpy, which is imported as well.
        """
        await asyncio.get_running_loop().run_in_executor(self._pool, import_solver)
        self.state = "ok"
        if rents:
            self._prepare()

    def _prepare(self) -> None:
        if not self._is_prepared:
            self._is_prepared = True
            with suppress(RuntimeError):  # the process has died since, or is being ended
                self._pool.submit(prepare_program)

    def deliver(self, effects: TransactionEffects) -> None:
        for command in effects.solves:
            task = asyncio.ensure_future(self._answer(command))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, command: Solve | RankJobs) -> None:
        event = await self._event(command)

        def step(transaction: Transaction) -> Iterator[None]:
            event.at = transaction.at
            return emit_in_pieces(transaction, event)

        self._loop.perform_soon_in_pieces(step)

    async def _event(self, command: Solve | RankJobs) -> Event:
        loop, began = asyncio.get_running_loop(), self._clocks.monotonic()
        timeout_s = min(self._timeout_s, RANK_TIMEOUT_S) if isinstance(command, RankJobs) else self._timeout_s
        try:
            event = await asyncio.wait_for(
                loop.run_in_executor(self._pool, as_error, self._answer_it, command), timeout_s
            )
        except TimeoutError:
            self._restart()
            return SolveFailed(0.0, command.request_id, f"no answer within {timeout_s:g} s")
        except BrokenProcessPool:
            self._restart()
            return SolveFailed(0.0, command.request_id, "the solver process died")
        except Exception as error:  # outermost handler of that process: whatever failed, the server goes on
            self.state = f"failed: {error}"[:200]
            return SolveFailed(0.0, command.request_id, f"{type(error).__name__}: {error}"[:500])
        if isinstance(event, SolveFailed):
            self.state = f"failed: {event.reason}"[:200]
            return event
        self.state = "ok"
        if isinstance(command, Solve) and isinstance(event, Solved):
            self._prepare()
            self.answered = command if command.problem.pools.capacity.sum() <= LARGEST_FLEET else None
            event.took_s = self._clocks.monotonic() - began
        # As a reader of the journal will see it, or a replay could differ. Large, so not in the loop's thread.
        return await loop.run_in_executor(None, as_journaled, event)

    def _restart(self) -> None:
        kill_worker_process(self._pool)
        self._pool = new_worker_process()
        self._is_prepared = False
        self.state = "restarted"

    async def close(self) -> None:
        """End the process; a solve under way is cancelled."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        kill_worker_process(self._pool)


#: A search that takes longer, seconds, is given up. Callers over HTTP wait 30 s.
WHOLE_GANG_TIMEOUT_S = 20.0


class WholeGangBound:
    """The integral bound for the last question that the solver has answered."""

    def __init__(
        self,
        solver: SolverPool,
        timeout_s: float = WHOLE_GANG_TIMEOUT_S,
        find: Callable[[Solve], float | None] = integral_gang_bound,
    ) -> None:
        self._solver = solver
        self._timeout_s = timeout_s
        self._find = find
        self._turn = asyncio.Lock()
        #: The last question with its bound.
        self._known: tuple[Solve, float | None] | None = None

    async def bound(self) -> float | None:
        """Returns the bound in the unit of the answer's objective; None where none exists or was found in time."""
        async with self._turn:
            question = self._solver.answered
            if question is None:
                return None
            if self._known is None or self._known[0] is not question:
                self._known = (question, await self._found(question))
            return self._known[1]

    async def _found(self, question: Solve) -> float | None:
        try:
            return await ask_worker_process(self._find, question, self._timeout_s)
        except (TimeoutError, BrokenProcessPool):
            return None
