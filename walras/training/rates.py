"""How fast the loop goes, and holding it to a pace. Time is an argument (seconds of a steady clock)."""

from __future__ import annotations

from collections import deque
from statistics import median

#: The first steps compile, allocate and warm caches; they say nothing about the speed to come.
WARM_UP_STEPS = 2
#: A window closes at the first step after this long.
WINDOW_S = 0.5
WINDOWS_KEPT = 60
#: A pause this long, and this many times a usual step, was not a step: the process was suspended, or did other work.
PAUSE_S = 1.0
PAUSE_STEPS = 5.0
#: A loop that falls behind its pace makes up for this much and no more.
CATCH_UP_S = 0.25


class Meter:
    """Median rate over undisturbed windows of steps."""

    def __init__(self) -> None:
        self._to_skip = WARM_UP_STEPS
        self._opened_at: float | None = None
        self._last_at = 0.0
        self._steps = 0
        self._rates: deque[float] = deque(maxlen=WINDOWS_KEPT)
        #: Windows measured so far.
        self.samples = 0
        #: Median of the rates, found once a window and not once a step; and the longest gap that is still a step.
        self.steps_per_s: float | None = None
        self._longest_s = float("inf")

    def step(self, at: float) -> None:
        """A step ended at this instant."""
        if self._to_skip > 0:
            self._to_skip -= 1
            return
        if self._opened_at is None or at - self._last_at > self._longest_s:
            self._open(at)
            return
        self._steps += 1
        self._last_at = at
        if at - self._opened_at >= WINDOW_S:
            self._rates.append(self._steps / (at - self._opened_at))
            self.samples += 1
            self.steps_per_s = median(self._rates)
            self._longest_s = max(PAUSE_S, PAUSE_STEPS / self.steps_per_s)
            self._open(at)

    def disturb(self) -> None:
        """Something else than steps happened (a checkpoint): drop the open window."""
        self._opened_at = None

    def _open(self, at: float) -> None:
        self._opened_at = self._last_at = at
        self._steps = 0


class Pacer:
    """Says how long to wait so that steps end `pace` times a second."""

    def __init__(self, pace: float) -> None:
        assert pace > 0
        self._step_s = 1.0 / pace
        self._due_at: float | None = None

    def begin(self, at: float) -> None:
        """Steps begin now: what was waited for before is not made up for."""
        self._due_at = at

    def wait_s(self, at: float, part: float = 1.0) -> float:
        """How long the step that has done its work at this instant still has to last. `part`: of a usual step."""
        due_at = at if self._due_at is None else self._due_at + part * self._step_s
        # Time lost to a suspension or a checkpoint is lost; jitter is made up for.
        self._due_at = max(due_at, at - CATCH_UP_S)
        return max(0.0, self._due_at - at)
