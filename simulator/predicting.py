"""Speeds that nobody measured, predicted while a simulated run goes on: the question and the answer of a live server.

Decides when to ask: some time after a job reported or came, and at most once in a given time. What is asked and what is
answered are the scheduler's own (`scheduler.core.speeds.predicting`); the core hears a `SpeedsPredicted`, as it does in
life. Answers take no virtual time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from optimizer.performance.predicting.observation import AcceleratorFacts
from scheduler.core.core import SchedulerCore
from scheduler.core.events import AttemptProgressed, Event, JobSubmitted
from scheduler.core.speed_events import FactsTold, SpeedsPredicted
from scheduler.core.speeds.predicting import Question, news_of, predict_speeds, question_of
from simulator.engine import Engine
from walras.ids import Kind
from walras.model_facts import ModelFacts


@dataclass(frozen=True, slots=True)
class Forecasts:
    """How a run predicts. `every_s`: least time between two questions; inf: it never asks."""

    every_s: float = inf
    #: Accelerators by their data sheets.
    sheets: Mapping[str, AcceleratorFacts] = field(default_factory=dict)
    #: Of kinds, told at the beginning as if they had been stated.
    facts: Mapping[Kind, ModelFacts] = field(default_factory=dict)


class Predicting:
    """Listens to an engine, and asks."""

    def __init__(self, engine: Engine, core: SchedulerCore, forecasts: Forecasts) -> None:
        self._engine, self._core, self._forecasts = engine, core, forecasts
        self._seen = (-1, -1, -1)
        self._asked: Question | None = None
        self._is_due = False
        for kind in (AttemptProgressed, JobSubmitted):
            engine.on_event[kind] = _both(engine.on_event.get(kind), self._heard)

    def begin(self) -> None:
        """Let the scheduler know what is known of kinds, behind its policy."""
        for kind, facts in self._forecasts.facts.items():
            self._engine.schedule(0.0, _tell, FactsTold(0.0, kind, facts))

    def _heard(self, event: Any) -> None:
        if not self._is_due:
            self._is_due = True
            self._engine.schedule(event.at + self._forecasts.every_s, self._ask)

    def _ask(self, at: float, _: object) -> Iterable[Event]:
        self._is_due = False
        ledger = self._core.ledger
        news = news_of(ledger)
        if news == self._seen:
            return ()
        self._seen = news
        question = question_of(ledger, ())
        if question.is_empty or question == self._asked:
            return ()
        self._asked = question
        speeds = predict_speeds(question, self._forecasts.sheets)
        return (SpeedsPredicted(at, speeds),) if speeds else ()


def _both(first: Any, second: Any) -> Any:
    """One listener made of two."""
    if first is None:
        return second

    def heard(event: Any) -> None:
        first(event)
        second(event)

    return heard


def _tell(_: float, event: Event) -> Iterable[Event]:
    return (event,)
