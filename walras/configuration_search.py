"""The terms of a search for a job's batch and number of workers while it trains: trials, forecasts, next step.

The optimizer chooses the next configuration (`optimizer.planning.online_search`), `workers.trials` runs it; both
use these types.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from walras.errors import UserError


class SearchError(UserError):
    """No configuration of the job can be searched as it is."""


class SearchAim(StrEnum):
    """The objective: least time, least cost, or the knee of the curve between both."""

    TIME = "time"
    MONEY = "money"
    KNEE = "knee"


@dataclass(frozen=True, slots=True, order=True)
class TrialConfiguration:
    """A number of workers, and the batch that they share, in samples."""

    workers: int
    batch: int

    def __str__(self) -> str:
        return f"{self.workers} {'worker' if self.workers == 1 else 'workers'}, batch {self.batch}"


@dataclass(frozen=True, slots=True)
class Trial:
    """A part of the job that ran in one configuration; its steps count."""

    configuration: TrialConfiguration
    steps: int
    #: Median seconds per step over undisturbed windows, without the first steps.
    iteration_s: float
    #: Seconds without steps: start, loading and saving the checkpoint, end.
    move_s: float
    #: Seconds before that, in which its workers started while the part before it still trained.
    standby_s: float = 0.0
    #: Gradient noise scale that the script reported last, in samples; None if it reports none.
    noise_scale: float | None = None


@dataclass(frozen=True, slots=True)
class ConfigurationForecast:
    """Forecast of the rest of the job in one configuration, the move there included."""

    configuration: TrialConfiguration
    time_s: float
    usd: float
    #: Whether it was measured; if not, the fitted laws predict it.
    measured: bool


@dataclass(frozen=True, slots=True)
class SearchStep:
    """The configuration in which the job continues. `settled`: to its end."""

    configuration: TrialConfiguration
    settled: bool
    why: str
    #: Forecasts of all configurations, fastest first; empty before there are enough trials.
    expected: tuple[ConfigurationForecast, ...] = ()
    #: Fraction of the job that is left.
    left: float = 1.0


#: The trials so far, in order -> the next step.
ChooseNext = Callable[[Sequence[Trial]], SearchStep]
