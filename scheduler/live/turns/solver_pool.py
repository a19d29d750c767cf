"""Solves in a process of their own, so that the loop never waits for one.

At most one solve is under way (the core sees to that). A solve that fails, takes too long or takes its process down is
answered by `SolveFailed`; the next one finds a new process.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool

from optimizer.gangs.whole import LARGEST_FLEET
from scheduler.core.commands import Solve
from scheduler.core.events import Event, Proposal, Solved, SolveFailed
from scheduler.core.solving import solve
from scheduler.live.records.journal import plain
from scheduler.live.turns.carry_out import emit_in_pieces
from scheduler.live.turns.daemon import Daemon
from scheduler.live.turns.own_process import end, new_process
from scheduler.live.turns.turn import Effects, Turn


def _warm_up() -> bool:
    """Nothing to do: importing this module in the child is the work."""
    return True


class SolverPool:
    """Answers `Solve` commands, one process at a time."""

    def __init__(self, daemon: Daemon, timeout_s: float, solve_it: Callable[[Solve], Proposal] = solve) -> None:
        self._daemon = daemon
        self._timeout_s = timeout_s
        self._solve_it = solve_it
        self._pool = new_process()
        self._tasks: set[asyncio.Task[None]] = set()
        self.state = "starting"
        #: The last question that was answered; a large one is not kept.
        self.answered: Solve | None = None

    async def start(self) -> None:
        """Have the solver process import what it needs before the first question."""
        await asyncio.get_running_loop().run_in_executor(self._pool, _warm_up)
        self.state = "ok"

    def deliver(self, effects: Effects) -> None:
        for command in effects.solves:
            task = asyncio.ensure_future(self._answer(command))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, command: Solve) -> None:
        event = await self._event(command)

        def step(turn: Turn) -> Iterator[None]:
            event.at = turn.at
            return emit_in_pieces(turn, event)

        self._daemon.perform_soon_in_pieces(step)

    async def _event(self, command: Solve) -> Event:
        loop, began = asyncio.get_running_loop(), time.monotonic()
        try:
            proposal = await asyncio.wait_for(
                loop.run_in_executor(self._pool, self._solve_it, command), self._timeout_s
            )
        except TimeoutError:
            self._restart()
            return SolveFailed(0.0, command.request_id, f"no answer within {self._timeout_s:g} s")
        except BrokenProcessPool:
            self._restart()
            return SolveFailed(0.0, command.request_id, "the solver process died")
        except Exception as error:  # the outermost place of the solver's process: whatever it was, life goes on
            self.state = f"failed: {error}"[:200]
            return SolveFailed(0.0, command.request_id, f"{type(error).__name__}: {error}"[:500])
        self.state = "ok"
        self.answered = command if command.problem.pools.capacity.sum() <= LARGEST_FLEET else None
        solved = Solved(0.0, command.request_id, proposal, took_s=time.monotonic() - began)
        # As a reader of the journal will see it, or a replay could differ. Large, so not in the loop's thread.
        return await loop.run_in_executor(None, plain, solved)

    def _restart(self) -> None:
        end(self._pool)
        self._pool = new_process()
        self.state = "restarted"

    async def close(self) -> None:
        """End the process; a solve under way is given up."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        end(self._pool)
