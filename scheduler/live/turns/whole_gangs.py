"""What whole gangs can reach at best on the fleet as it was last asked about: for a person who wants to know.

In a process of its own that ends with the answer, so neither the loop nor a solve waits for it. Asked by many at once,
it is found once; none is kept waiting for long.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool

from scheduler.core.commands import Solve
from scheduler.core.solving import whole_gangs
from scheduler.live.turns.own_process import answered
from scheduler.live.turns.solver_pool import SolverPool

#: A search that takes longer is given up. People who ask over HTTP wait 30 s.
TIMEOUT_S = 20.0


class WholeGangs:
    """The integral bound of the last question that the solver has answered."""

    def __init__(
        self,
        solver: SolverPool,
        timeout_s: float = TIMEOUT_S,
        find: Callable[[Solve], float | None] = whole_gangs,
    ) -> None:
        self._solver = solver
        self._timeout_s = timeout_s
        self._find = find
        self._turn = asyncio.Lock()
        #: The question that was looked into, and what was found.
        self._known: tuple[Solve, float | None] | None = None

    async def bound(self) -> float | None:
        """In the unit of the answer's objective. None: nothing bounds it, or not within the time."""
        async with self._turn:
            question = self._solver.answered
            if question is None:
                return None
            if self._known is None or self._known[0] is not question:
                self._known = (question, await self._found(question))
            return self._known[1]

    async def _found(self, question: Solve) -> float | None:
        try:
            return await answered(self._find, question, self._timeout_s)
        except (TimeoutError, BrokenProcessPool):
            return None
