"""When jobs with a target will be there: foreseen some time after their values grew, in a process of its own.

The loop only puts the question together and keeps the answer with the job. The core is not told: nobody's schedule
hangs on it. An answer that takes too long, or a process that dies, leaves what was foreseen before.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice

from optimizer.performance.target_forecast import TargetForecast, forecast
from scheduler.live.turns.board import Board
from scheduler.live.turns.daemon import Daemon
from scheduler.live.turns.own_process import Errand, answered_if_possible
from scheduler.live.turns.turn import Effects, Turn
from walras.ids import JobId

#: From the first series that grew to the question: those that grow at about the same time are one question.
PACE_S = 5.0
#: An answer that takes longer is given up.
TIMEOUT_S = 120.0
#: Jobs in one question; the others come next.
_MOST_JOBS = 200


@dataclass(frozen=True, slots=True)
class Asked:
    """What is known of one job: (step, value) ascending, the newest step, the target, the steps it declares."""

    job_id: JobId
    points: tuple[tuple[float, float], ...]
    at_step: float
    at_most: float
    steps: float | None


Answer = tuple[TargetForecast, ...]
Foresee = Callable[[tuple[Asked, ...]], Answer]


def answer(asked: tuple[Asked, ...]) -> Answer:
    """One for each job, in order. Some 30 ms a job."""
    return tuple(forecast(each.points, each.at_step, each.at_most, each.steps) for each in asked)


def questions(board: Board) -> tuple[Asked, ...]:
    """The next jobs to ask about. Whatever becomes of the question, they come again when they report again."""
    asked = list[Asked]()
    for job_id in list(islice(board.to_foresee, _MOST_JOBS)):
        del board.to_foresee[job_id]
        job = board.jobs.get(job_id)
        if job is not None and job.target is not None and job.target.is_worth_a_forecast:
            series = job.target.series
            points = tuple((point.step, point.value) for point in series.points)
            asked.append(Asked(job_id, points, series.newest_step, job.target.at_most, job.row.steps_total))
    return tuple(asked)


class Forecasts:
    """An outlet that looks, after each batch, whether the values of some job have grown."""

    def __init__(
        self, daemon: Daemon, pace_s: float = PACE_S, timeout_s: float = TIMEOUT_S, foresee: Foresee = answer
    ) -> None:
        self._daemon = daemon
        self._pace_s = pace_s
        self._timeout_s = timeout_s
        self._foresee = foresee
        self._errand = Errand()

    def deliver(self, effects: Effects) -> None:
        """Called in the loop; almost always there is nothing to do."""
        if self._daemon.board.to_foresee and not self._errand.is_under_way:
            self._errand.begin(self._follow())

    async def _follow(self) -> None:
        await asyncio.sleep(self._pace_s)
        asked = questions(self._daemon.board)
        if not asked:
            return
        found = await answered_if_possible(self._foresee, asked, self._timeout_s, "foreseeing targets")
        if found:
            await self._daemon.perform(lambda turn: keep(turn, asked, found))

    async def close(self) -> None:
        """Give up what is under way."""
        await self._errand.close()


def keep(turn: Turn, asked: tuple[Asked, ...], found: Answer) -> None:
    """Note the forecasts of the jobs that are not over."""
    for each, foreseen in zip(asked, found, strict=True):
        job = turn.board.jobs.get(each.job_id)
        if job is not None and job.target is not None:
            job.target = replace(job.target, forecast=foreseen)
            turn.target_changed(job)
