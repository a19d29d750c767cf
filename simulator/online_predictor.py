"""Predicts speeds that were never measured while a simulated run goes on, as a live server does.

A prediction is scheduled some time after a job reports or arrives, at most once per interval, and is answered at once;
or at given instants, each with the time to its answer. Request and answer are the scheduler's own
(`scheduler.core.cycle.speed_predictions`); the core receives a `SpeedsPredicted`, as in production.
"""

from collections.abc import Iterable
from math import inf
from typing import Any

from scheduler.core.core import SchedulerCore
from scheduler.core.cycle.speed_predictions import (
    PredictionQuestion,
    predict_speeds,
    prediction_question,
    prediction_versions,
)
from scheduler.core.events import AttemptProgressed, Event, JobSubmitted
from scheduler.core.speed_events import SpeedsPredicted
from scheduler.core.state.throughput import shared_news
from scheduler.world.engine import Engine
from simulator.ground_truth import PredictionSettings


class OnlinePredictor:
    """Listens to an engine's events, and sends the core new predictions when an event may have changed them."""

    def __init__(self, engine: Engine, core: SchedulerCore, settings: PredictionSettings) -> None:
        self._engine, self._core, self._settings = engine, core, settings
        self._versions = (-1, -1, -1)
        self._last_question: PredictionQuestion | None = None
        self._is_scheduled = False
        for kind in (AttemptProgressed, JobSubmitted):
            for listener in (self._on_event,) * (settings.every_s < inf) + (self._share,):
                engine.on_event[kind] = _chain_listeners(engine.on_event.get(kind), listener)

    def begin(self) -> None:
        """Announces the facts about kinds to the scheduler, after its policy, and schedules given predictions."""
        for told in self._settings.facts:
            self._engine.send_later(told)
        for at, took_s in self._settings.asked:
            self._engine.schedule(at, self._predict, took_s)

    def _on_event(self, event: Any) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._engine.schedule(event.at + self._settings.every_s, self._predict_if_changed)

    def _share(self, event: AttemptProgressed | JobSubmitted) -> None:
        """Tells the core, after the event, what projects learn of each other's measurements of a program."""
        if isinstance(event, JobSubmitted):
            program = event.job.program
        else:
            job = self._core.ledger.jobs.get(event.job_id)
            program = "" if job is None else job.request.program
        if program:
            self._engine.schedule(event.at, self._told_shared, program)

    def _told_shared(self, at: float, program: object) -> Iterable[Event]:
        speeds = shared_news(self._core.ledger.table, str(program), self._settings.sheets)
        return (SpeedsPredicted(at, speeds),) if speeds else ()

    def _predict_if_changed(self, at: float, _: object) -> Iterable[Event]:
        self._is_scheduled = False
        versions = prediction_versions(self._core.ledger)
        if versions == self._versions:
            return ()
        self._versions = versions
        return self._predict(at, 0.0)

    def _predict(self, at: float, took_s: float) -> Iterable[Event]:
        question = prediction_question(self._core.ledger, ())
        if question.is_empty or question == self._last_question:
            return ()
        self._last_question = question
        speeds = predict_speeds(question, self._settings.sheets)
        if not speeds:
            return ()
        told = SpeedsPredicted(at + took_s, speeds, took_s)
        if not took_s:
            return (told,)
        self._engine.send_later(told)
        return ()


def _chain_listeners(first: Any, second: Any) -> Any:
    """Returns one listener that calls both."""
    if first is None:
        return second

    def both(event: Any) -> None:
        first(event)
        second(event)

    return both
