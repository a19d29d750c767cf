"""Predicts speeds that were never measured while a simulated run goes on, as a live server does.

A prediction is scheduled some time after a job reports or arrives, at most once per interval, and is answered at once;
or at given instants, each with the time to its answer. Request and answer are the scheduler's own
(`scheduler.core.cycle.speed_predictions`); the core receives a `SpeedsPredicted`, as in production.
"""

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from optimizer.prediction.predictor import AcceleratorSpecs
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle.speed_predictions import (
    PredictionQuestion,
    predict_speeds,
    prediction_question,
    prediction_versions,
)
from scheduler.core.events import AttemptProgressed, Event, JobSubmitted
from scheduler.core.speed_events import FactsTold, SpeedsPredicted
from simulator.engine import Engine


class OnlinePredictor:
    """Listens to an engine's events, and sends the core new predictions when an event may have changed them."""

    def __init__(
        self,
        engine: Engine,
        core: SchedulerCore,
        every_s: float,
        asked: Iterable[tuple[float, float]],
        sheets: Mapping[str, AcceleratorSpecs],
        facts: Iterable[FactsTold],
    ) -> None:
        """At least `every_s` seconds lie between two predictions; inf: there are only those `asked`, each an instant
        and the seconds to its answer. `sheets`: data sheets by accelerator type.
        """
        self._engine, self._core = engine, core
        self._every_s, self._asked, self._sheets, self._facts = every_s, asked, sheets, facts
        self._versions = (-1, -1, -1)
        self._last_question: PredictionQuestion | None = None
        self._is_scheduled = False
        for kind in (AttemptProgressed, JobSubmitted) if every_s < inf else ():
            engine.on_event[kind] = _chain_listeners(engine.on_event.get(kind), self._on_event)

    def begin(self) -> None:
        """Announces the facts about kinds to the scheduler, after its policy, and schedules given predictions."""
        for told in self._facts:
            self._engine.schedule(told.at, _emit_event, told)
        for at, took_s in self._asked:
            self._engine.schedule(at, self._predict, took_s)

    def _on_event(self, event: Any) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._engine.schedule(event.at + self._every_s, self._predict_if_changed)

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
        speeds = predict_speeds(question, self._sheets)
        if not speeds:
            return ()
        told = SpeedsPredicted(at + took_s, speeds, took_s)
        if not took_s:
            return (told,)
        self._engine.schedule(told.at, _emit_event, told)
        return ()


def _chain_listeners(first: Any, second: Any) -> Any:
    """Returns one listener that calls both."""
    if first is None:
        return second

    def both(event: Any) -> None:
        first(event)
        second(event)

    return both


def _emit_event(_: float, event: Event) -> Iterable[Event]:
    return (event,)
