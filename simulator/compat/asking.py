"""The beat of a world of steps: at the end of each a solve, and with its answer everybody moves and the next begins."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from optimizer.problem import Problem
from scheduler.core import resolve
from scheduler.core.cycle import Cycle
from simulator.compat.moving import Moving


class AskedSteps(ABC):
    """A `RoundMechanism` that asks at the end of every step. Who runs where then is the subclass's matter."""

    def __init__(self, step_s: float) -> None:
        self._asked = False
        self.moving = Moving(step_s)

    def settle(self, cycle: Cycle) -> None:
        """Nothing to do but where a step has ended, a solve is answered, or somebody is being moved."""
        if cycle.beat is not None:
            cycle.beat = None
            self.step_ended(cycle)
        if self._asked and not cycle.in_flight:
            self._asked = False
            self.decide(cycle)
        self.moving.go_on(cycle)

    def ask(self, cycle: Cycle, problem_of: Callable[[], Problem]) -> None:
        """Ask about the jobs that are there; where there is none, begin the next step."""
        if cycle.ledger.jobs:
            self._asked = True
            resolve.ask(cycle, problem_of())
        else:
            self.moving.begin(cycle, [], [])

    @abstractmethod
    def step_ended(self, cycle: Cycle) -> None:
        """Let newcomers in, and `ask`."""

    @abstractmethod
    def decide(self, cycle: Cycle) -> None:
        """Carry out what was answered, through `moving`; what was answered before, where a solve failed."""
