"""When speeds are predicted: some time after something new was measured or asked for, in a process of its own.

The loop only puts the question together and takes the answer, as an event that the journal keeps. An answer that takes
too long, or a process that dies, leaves what was believed before; the next change asks again.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import cache

from optimizer.performance.predicting.observation import AcceleratorFacts
from scheduler.cloud.recommending import sheets_of
from scheduler.core.events import Event
from scheduler.core.ledger.throughput import Scored
from scheduler.core.speed_events import PredictedSpeed, SpeedsPredicted
from scheduler.core.speeds.predicting import Question, news_of, predict_speeds, question_of
from scheduler.live.records.journal import plain
from scheduler.live.turns.carry_out import emit
from scheduler.live.turns.daemon import Daemon
from scheduler.live.turns.own_process import Errand, answered_if_possible
from scheduler.live.turns.turn import Effects, Turn
from walras.catalog import load_catalog

#: From a change to the question: what is measured at about the same time is one question.
PACE_S = 10.0
#: A fit that takes longer is given up.
TIMEOUT_S = 120.0
#: Speeds told to the core in one step: others may have their turn between two.
_STEP = 100

Find = Callable[[Question], tuple[PredictedSpeed, ...]]


@cache
def _sheets() -> dict[str, AcceleratorFacts]:
    return sheets_of(load_catalog())


def answer(question: Question) -> tuple[PredictedSpeed, ...]:
    """With the data sheets of the catalog that is shipped. Takes seconds."""
    return predict_speeds(question, _sheets())


class Predictions:
    """An outlet that looks, after each batch, whether there is something new to predict from or to predict."""

    def __init__(
        self,
        daemon: Daemon,
        past: Sequence[Scored] = (),
        pace_s: float = PACE_S,
        timeout_s: float = TIMEOUT_S,
        find: Find = answer,
    ) -> None:
        self._daemon = daemon
        self._past = past
        self._pace_s = pace_s
        self._timeout_s = timeout_s
        self._find = find
        self._seen = (-1, -1, -1)
        self._asked: Question | None = None
        self._errand = Errand()

    def deliver(self, effects: Effects) -> None:
        """Called in the loop: a comparison of a few numbers where nothing is new."""
        if news_of(self._daemon.core.ledger) != self._seen and not self._errand.is_under_way:
            self._errand.begin(self._follow())

    async def _follow(self) -> None:
        await asyncio.sleep(self._pace_s)
        ledger = self._daemon.core.ledger
        self._seen = news_of(ledger)
        question = question_of(ledger, self._past)
        if question.is_empty or question == self._asked:
            return
        self._asked = question
        speeds = await answered_if_possible(self._find, question, self._timeout_s, "predicting speeds") or ()
        for first in range(0, len(speeds), _STEP):
            event = SpeedsPredicted(0.0, speeds[first : first + _STEP])
            await self._tell(await asyncio.get_running_loop().run_in_executor(None, plain, event))

    async def _tell(self, event: Event) -> None:
        def step(turn: Turn) -> None:
            event.at = turn.at
            emit(turn, event)

        await self._daemon.perform(step)

    async def close(self) -> None:
        """Give up what is under way."""
        await self._errand.close()
