"""Background predictions: speeds that were never measured, and when jobs with a target will reach it.

After something new was measured, both wait some seconds, collect one question, and have it answered in a process of its
own. The core receives predicted speeds as an event, which the journal keeps. Target forecasts are kept with the job;
the core does not receive them, because no decision depends on them. If an answer takes too long, or the process dies,
the former predictions stay, and the next change asks again.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

from scheduler.core.cycle.speed_predictions import (
    DataWait,
    PredictionQuestion,
    prediction_question,
    prediction_versions,
)
from scheduler.core.events import Event
from scheduler.core.speed_events import PredictedSpeed, SpeedsPredicted
from scheduler.core.state.throughput import ScoredBelief
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.claimed_speeds import data_sheets
from scheduler.live.loop.event_loop import ServerLoop
from scheduler.live.loop.live_state import LiveState
from scheduler.live.loop.prediction_process import (
    ForecastAnswer,
    TargetQuestion,
    forecast_targets,
    predict_from_catalog,
)
from scheduler.live.loop.transaction import Transaction, TransactionEffects
from scheduler.live.loop.worker_process import SingleFlightTask, try_worker_process
from scheduler.live.store.event_journal import as_journaled
from walras.job_request import Kind

#: Seconds from a change to the question, so that measurements at about the same time become one question.
PREDICTION_PACE_S = 10.0
#: A fit that takes longer, seconds, is given up.
PREDICTION_TIMEOUT_S = 120.0
#: How many speeds the core gets in one step; other steps run between two.
_SPEEDS_PER_STEP = 100


class SpeedPredictions:
    """An effect handler that starts a prediction after a batch which brought new measurements or new questions."""

    def __init__(
        self,
        loop: ServerLoop,
        past: Sequence[ScoredBelief] = (),
        pace_s: float = PREDICTION_PACE_S,
        timeout_s: float = PREDICTION_TIMEOUT_S,
        find: Callable[[PredictionQuestion], tuple[PredictedSpeed, ...]] = predict_from_catalog,
    ) -> None:
        data_sheets()  # read before the loop runs, which it would hold up
        self._loop = loop
        self._past = past
        self._pace_s = pace_s
        self._timeout_s = timeout_s
        self._find = find
        self._seen: tuple[int, ...] = ()
        self._asked: PredictionQuestion | None = None
        self._task = SingleFlightTask()

    def deliver(self, effects: TransactionEffects) -> None:
        """Called in the loop: compares a few version numbers when nothing is new."""
        if self._versions() != self._seen and not self._task.is_under_way:
            self._task.begin(self._follow())

    async def _follow(self) -> None:
        await asyncio.sleep(self._pace_s)
        self._seen = self._versions()
        waits = (
            DataWait(Kind(kind), accelerator, count, tenths / 10)
            for (kind, accelerator, count), tenths in self._loop.state.data_waits.items()
            if tenths
        )
        question = replace(prediction_question(self._loop.core.ledger, self._past), data_waits=tuple(waits))
        if question.is_empty or question == self._asked:
            return
        self._asked, asked_at = question, self._loop.clock.now()
        speeds = await try_worker_process(self._find, question, self._timeout_s, "predicting speeds") or ()
        for first in range(0, len(speeds), _SPEEDS_PER_STEP):
            took_s = max(0.0, self._loop.clock.now() - asked_at)
            event = SpeedsPredicted(0.0, speeds[first : first + _SPEEDS_PER_STEP], took_s)
            await self._tell(await asyncio.get_running_loop().run_in_executor(None, as_journaled, event))

    def _versions(self) -> tuple[int, ...]:
        return *prediction_versions(self._loop.core.ledger), self._loop.state.data_waits_version

    async def _tell(self, event: Event) -> None:
        def step(transaction: Transaction) -> None:
            event.at = transaction.at
            emit(transaction, event)

        await self._loop.perform(step)

    async def close(self) -> None:
        """Cancel a prediction under way."""
        await self._task.close()


#: Seconds from the first series that grew to the question, so that it includes others that grow at about that time.
FORECAST_PACE_S = 5.0
#: An answer that takes longer, seconds, is given up.
FORECAST_TIMEOUT_S = 120.0
#: The most jobs in one question; the others are in the next.
_MOST_JOBS = 200


def target_questions(state: LiveState) -> tuple[TargetQuestion, ...]:
    """Returns the next jobs to ask about and takes them off the list; they return to it with their next report."""
    asked = list[TargetQuestion]()
    for job_id in list(islice(state.to_forecast, _MOST_JOBS)):
        del state.to_forecast[job_id]
        job = state.jobs.get(job_id)
        if job is not None and job.target is not None and job.target.is_worth_a_forecast:
            series = job.target.series
            points = tuple((point.step, point.value) for point in series.points)
            asked.append(TargetQuestion(job_id, points, series.newest_step, job.target.at_most, job.row.steps_total))
    return tuple(asked)


class TargetForecasts:
    """An effect handler that starts forecasts after a batch in which the reported values of some job have grown."""

    def __init__(
        self,
        loop: ServerLoop,
        pace_s: float = FORECAST_PACE_S,
        timeout_s: float = FORECAST_TIMEOUT_S,
        foresee: Callable[[tuple[TargetQuestion, ...]], ForecastAnswer] = forecast_targets,
    ) -> None:
        self._loop = loop
        self._pace_s = pace_s
        self._timeout_s = timeout_s
        self._foresee = foresee
        self._task = SingleFlightTask()

    def deliver(self, effects: TransactionEffects) -> None:
        """Called in the loop: does nothing in nearly all cases."""
        if self._loop.state.to_forecast and not self._task.is_under_way:
            self._task.begin(self._follow())

    async def _follow(self) -> None:
        await asyncio.sleep(self._pace_s)
        asked = target_questions(self._loop.state)
        if not asked:
            return
        found = await try_worker_process(self._foresee, asked, self._timeout_s, "foreseeing targets")
        if found:
            await self._loop.perform(lambda transaction: keep_forecasts(transaction, asked, found))

    async def close(self) -> None:
        """Cancel a forecast under way."""
        await self._task.close()


def keep_forecasts(transaction: Transaction, asked: tuple[TargetQuestion, ...], found: ForecastAnswer) -> None:
    """Store the forecasts of the jobs that are not over."""
    for each, foreseen in zip(asked, found, strict=True):
        job = transaction.state.jobs.get(each.job_id)
        if job is not None and job.target is not None:
            job.target = replace(job.target, forecast=foreseen)
            transaction.target_changed(job)
