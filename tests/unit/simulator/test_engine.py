"""Virtual time: order, wakes, solves, ends."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from optimizer.policy import PolicySpec
from optimizer.problem import Columns, Entities, Jobs, Pools, Problem
from scheduler.core.commands import Command, Solve, WakeAt
from scheduler.core.events import Event, JobHeld, NodeBack, Proposal, Solved, Woke
from scheduler.world.engine import Engine, RunLimits, RunOutcome, SolveClock, SolveTime
from walras.cluster import NodeId
from walras.job_request import JobId

_NO_FLOATS, _NO_INTS = np.zeros(0), np.zeros(0, np.int64)
_PROBLEM = Problem(
    0.0,
    Jobs(*[_NO_INTS, *[_NO_FLOATS] * 7, _NO_INTS, _NO_INTS]),  # type: ignore[arg-type]
    Columns(_NO_INTS, _NO_FLOATS, _NO_INTS, _NO_INTS, _NO_FLOATS, np.zeros(0, bool)),
    Pools((), (), _NO_FLOATS, _NO_FLOATS, _NO_FLOATS, _NO_FLOATS),
    Entities(),
)
PROPOSAL = Proposal((), (), (), (), (), (), (), "", 0.0, (), "optimal", 0.0, 0.0, 0.0, "test")


class Scripted:
    """A core that answers by a function and keeps what it heard."""

    def __init__(self, answer: Callable[[Event], list[Command]] = lambda event: []) -> None:
        self.heard: list[Event] = []
        self._answer = answer

    def handle(self, event: Event) -> list[Command]:
        self.heard.append(replace(event))
        return self._answer(event)


def _engine(core: Scripted, solve_time: SolveTime | None = None) -> Engine:
    return Engine(core, lambda solve: PROPOSAL, solve_time)


def _tell(at: float, event: Event) -> tuple[Event]:
    return (event,)


def test_things_happen_in_order_of_time_and_equal_instants_in_order_of_scheduling() -> None:
    """A later instant never comes first, and ties keep the order in which they were scheduled."""
    core = Scripted()
    engine = _engine(core)
    for at, number in ((5.0, 1), (2.0, 2), (5.0, 3), (2.0, 4)):
        engine.schedule(at, _tell, JobHeld(at, JobId(number)))
    assert engine.run() is RunOutcome.EXHAUSTED
    assert [event.job_id for event in core.heard if isinstance(event, JobHeld)] == [2, 4, 1, 3]
    assert engine.now == 5.0


def test_what_is_cancelled_does_not_happen_even_after_the_heap_was_rebuilt() -> None:
    """Thousands of cancelled entries are forgotten without losing one that is still to come."""
    core = Scripted()
    engine = _engine(core)
    timers = [engine.schedule(float(n), _tell, JobHeld(float(n), JobId(n))) for n in range(5000)]
    for timer in timers[1:]:
        engine.cancel(timer)
    engine.cancel(timers[7])
    engine.run()
    assert len(core.heard) == 1


def test_only_the_earliest_wake_counts() -> None:
    """A later `WakeAt` with an earlier instant replaces the pending one; one with a later instant changes nothing."""
    asked = iter([[WakeAt(50.0)], [WakeAt(20.0)], [WakeAt(30.0)], []])
    core = Scripted(lambda event: next(asked))
    engine = _engine(core)
    for at in (1.0, 2.0, 3.0):
        engine.schedule(at, _tell, NodeBack(at, NodeId("n")))
    engine.run()
    assert [event.at for event in core.heard if isinstance(event, Woke)] == [20.0]


def test_a_wake_in_the_past_comes_at_once() -> None:
    asked = iter([[WakeAt(1.0)], []])
    core = Scripted(lambda event: next(asked))
    engine = _engine(core)
    engine.schedule(4.0, _tell, NodeBack(4.0, NodeId("n")))
    engine.run()
    assert core.heard[-1] == Woke(4.0)


def test_a_solve_is_answered_after_the_modelled_time() -> None:
    """The answer carries the request's number and comes exactly the fixed time later."""
    ask = Solve(7, _PROBLEM, PolicySpec("any"), None, 0.0)
    core = Scripted(lambda event: [ask] if isinstance(event, NodeBack) else [])
    engine = _engine(core, SolveTime(SolveClock.FIXED, 2.5))
    engine.schedule(1.0, _tell, NodeBack(1.0, NodeId("n")))
    engine.run()
    answer = core.heard[-1]
    assert isinstance(answer, Solved)
    assert (answer.at, answer.request_id, answer.took_s) == (3.5, 7, 2.5)
    assert engine.solve_stats.statuses == {"optimal": 1}


def test_a_core_that_only_waits_for_ever_is_called_stalled() -> None:
    """Rounds that decide nothing, with nothing else under way, end the run instead of running for ever."""
    core = Scripted(lambda event: [WakeAt(event.at + 360.0)])
    engine = _engine(core)
    engine.schedule(0.0, _tell, NodeBack(0.0, NodeId("n")))
    assert engine.run() is RunOutcome.STALLED


def test_waiting_for_something_that_is_under_way_is_no_stall() -> None:
    """A thousand quiet rounds before an arrival are only waiting."""
    core = Scripted(lambda event: [WakeAt(event.at + 1.0)] if event.at < 5000 else [])
    engine = _engine(core)
    engine.schedule(0.0, _tell, NodeBack(0.0, NodeId("n")))
    engine.schedule(4000.5, _tell, NodeBack(4000.5, NodeId("n")))
    assert engine.run() is not RunOutcome.STALLED


def test_limits_end_a_run() -> None:
    """A run ends at its time limit, with the clock there, and at its limit of events."""
    core = Scripted(lambda event: [WakeAt(event.at + 10.0)])
    engine = _engine(core)
    engine.schedule(0.0, _tell, NodeBack(0.0, NodeId("n")))
    assert engine.run(RunLimits(until_at=95.0)) is RunOutcome.TIME_LIMIT
    assert engine.now == 95.0
    assert len(core.heard) == 10
    assert engine.run(RunLimits(max_events=12)) is RunOutcome.EVENT_LIMIT


def test_the_recorder_sees_every_event_with_its_commands() -> None:
    core = Scripted(lambda event: [WakeAt(9.0)] if isinstance(event, NodeBack) else [])
    engine = _engine(core)
    log: list[tuple[Event, list[Command]]] = []
    engine.recorder = lambda event, commands: log.append((event, commands))
    engine.schedule(1.0, _tell, NodeBack(1.0, NodeId("n")))
    engine.run()
    assert log == [(NodeBack(1.0, NodeId("n")), [WakeAt(9.0)]), (Woke(9.0), [])]


def test_a_solve_may_take_no_time_or_the_time_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero by default; measured: as long as the solver took on this machine."""
    ticks = iter((10.0, 12.0, 20.0, 27.0))
    monkeypatch.setattr("scheduler.world.engine.perf_counter", lambda: next(ticks))
    ask = Solve(7, _PROBLEM, PolicySpec("any"), None, 0.0)
    for asked, took_s in ((SolveTime(), 0.0), (SolveTime(SolveClock.MEASURED), 7.0)):
        core = Scripted(lambda event: [ask] if isinstance(event, NodeBack) else [])
        engine = _engine(core, asked)
        engine.schedule(1.0, _tell, NodeBack(1.0, NodeId("n")))
        engine.run()
        assert [(e.at, e.took_s) for e in core.heard if isinstance(e, Solved)] == [(1.0 + took_s, took_s)]
