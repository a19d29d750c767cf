"""The terms of a search for a job's batch and number of workers while it trains: trials, forecasts, next step.

The optimizer chooses the next configuration (`optimizer.performance.choosing.search`), `workers.trials` runs it; both
use these types.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from walras.errors import UserError


class SearchError(UserError):
    """The job cannot be searched for as it is."""


class SearchAim(StrEnum):
    """What is to be little: time, money, or neither at the other's cost."""

    TIME = "time"
    MONEY = "money"
    KNEE = "knee"


@dataclass(frozen=True, slots=True, order=True)
class TrialConfiguration:
    """So many workers that share a batch of so many samples."""

    workers: int
    batch: int

    def __str__(self) -> str:
        return f"{self.workers} {'worker' if self.workers == 1 else 'workers'}, batch {self.batch}"


@dataclass(frozen=True, slots=True)
class Trial:
    """A part of the job that ran in one configuration; its steps count."""

    configuration: TrialConfiguration
    steps: int
    #: Median over undisturbed windows, the first steps left out.
    iteration_s: float
    #: Seconds that were no steps: starting, loading the checkpoint, saving it, ending.
    move_s: float
    #: Seconds before those that its workers needed to start, while the part before it still trained.
    standby_s: float = 0.0
    #: Noise scale of the gradient as the script reported it last, in samples; None: it does not.
    noise_scale: float | None = None


@dataclass(frozen=True, slots=True)
class ConfigurationForecast:
    """What is left of the job, if it goes on like this. Moving there is included."""

    configuration: TrialConfiguration
    time_s: float
    usd: float
    #: False: told by the laws.
    measured: bool


@dataclass(frozen=True, slots=True)
class SearchStep:
    """Where the job goes on. `settled`: to its end."""

    configuration: TrialConfiguration
    settled: bool
    why: str
    #: Of every configuration, once there is enough to tell; fastest first.
    expected: tuple[ConfigurationForecast, ...] = ()
    #: Part of the job that is still to be done.
    left: float = 1.0


#: From the trials so far, in order.
ChooseNext = Callable[[Sequence[Trial]], SearchStep]
