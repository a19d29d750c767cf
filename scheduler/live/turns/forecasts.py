"""When jobs with a target will be there: foreseen some time after their values grew, in a process of its own.

The loop only puts the question together and keeps the answer with the job. The core is not told: nobody's schedule
hangs on it. An answer that takes too long, or a process that dies, leaves what was foreseen before.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from itertools import islice

from optimizer.performance.target_forecast import TargetForecast, forecast
from scheduler.live.turns.board import Board
from scheduler.live.turns.daemon import Daemon
from scheduler.live.turns.solver_pool import end, new_process
from scheduler.live.turns.turn import Effects, Turn
from walras.ids import JobId

log = logging.getLogger(__name__)

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
        self._task: asyncio.Task[None] | None = None

    def deliver(self, effects: Effects) -> None:
        """Called in the loop; almost always there is nothing to do."""
        if self._daemon.board.to_foresee and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self._follow())

    async def _follow(self) -> None:
        await asyncio.sleep(self._pace_s)
        asked = questions(self._daemon.board)
        found = await self._found(asked) if asked else ()
        if found:
            await self._daemon.perform(lambda turn: keep(turn, asked, found))

    async def _found(self, asked: tuple[Asked, ...]) -> Answer:
        process = new_process()
        try:
            work = asyncio.get_running_loop().run_in_executor(process, self._foresee, asked)
            return await asyncio.wait_for(work, self._timeout_s)
        except TimeoutError:
            log.warning("no forecast of %d targets within %g s", len(asked), self._timeout_s)
        except BrokenProcessPool:
            log.warning("the process that foresees targets has died")
        except Exception:  # the outermost place of that process: whatever it was, nothing depends on it
            log.warning("targets could not be foreseen", exc_info=True)
        finally:
            end(process)
        return ()

    async def close(self) -> None:
        """Give up what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def keep(turn: Turn, asked: tuple[Asked, ...], found: Answer) -> None:
    """Note the forecasts of the jobs that are not over."""
    for each, foreseen in zip(asked, found, strict=True):
        job = turn.board.jobs.get(each.job_id)
        if job is not None and job.target is not None:
            job.target = replace(job.target, forecast=foreseen)
            turn.target_changed(job)
