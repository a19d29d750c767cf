"""Runs situations and says which promises were broken."""

import warnings
from dataclasses import dataclass

from scheduler.core.commands import Command
from scheduler.core.core import SchedulerCore
from scheduler.core.events import Event
from scheduler.live.store.event_journal import encode_command, encode_event, replay_journal
from scheduler.live.store.table_rows import JournalRow
from simulator.simulation import Simulation
from tests.crossings.promises import Observer
from tests.crossings.situations import Situation

#: Of so many situations one is replayed from its journal.
REPLAYED_OF = 5


@dataclass(frozen=True)
class Outcome:
    """A situation, and what it broke."""

    situation: Situation
    broken: tuple[str, ...]
    events: int
    #: Accelerator-seconds held, and of these lost with attempts that were cut for others.
    held_s: float = 0.0
    cut_s: float = 0.0

    @property
    def text(self) -> str:
        """The recipe and the broken promises, a line each."""
        return "\n".join((self.situation.recipe, *(f"    {line}" for line in self.broken)))


def run_situation(situation: Situation) -> Outcome:
    """Runs it to its end. A warning or an error of the scheduler is a broken promise too."""
    simulation = Simulation(situation.scenario)
    core = simulation.core
    assert isinstance(core, SchedulerCore)
    observer = Observer(situation, core)
    rows: list[JournalRow] = []

    def record(event: Event, commands: list[Command]) -> None:
        if situation.seed % REPLAYED_OF == 0:
            rows.append(encode_event(event))
            rows.extend(encode_command(event.at, command) for command in commands)
        observer.record(event, commands)

    simulation.begin(situation.jobs, record)
    for act in situation.acts:
        simulation.engine.schedule(act.at, lambda _, event: (event,), act)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            result = simulation.finish(simulation.engine.run(situation.scenario.limits))
        except Exception as error:  # whatever it is, with the recipe
            return Outcome(situation, (*observer.broken, f"{type(error).__name__}: {error}"), simulation.engine.events)
    broken = observer.finish(result)
    if rows and not replay_journal(rows).identical:
        broken = [*broken, "its journal gives other commands"]
    return Outcome(situation, tuple(broken), result.events, observer.held_s, observer.cut_s)
