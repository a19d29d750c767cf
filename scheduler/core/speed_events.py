"""Events about speeds: measured elsewhere, predicted, or not what the kind of a job usually reaches; work that is
counted anew; networks of machines; facts about models.
"""

from dataclasses import dataclass

from walras.cluster import PoolId
from walras.job_request import JobId, Kind
from walras.model_facts import ModelFacts


@dataclass(frozen=True, slots=True)
class Guess:
    """What one source takes a speed to be, steps per second; the truth lies inside four times out of five."""

    source: str
    steps_per_s: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PredictedSpeed:
    """One unmeasured cell: what is to be believed of it, and what each predictor by itself would have said."""

    kind: Kind
    accelerator: str
    count: int
    fused: Guess
    parts: tuple[Guess, ...] = ()


@dataclass(slots=True)
class SpeedsPredicted:
    """Predicted speeds of unmeasured cells. A cell that was measured in the meantime keeps its measured speed."""

    at: float
    speeds: tuple[PredictedSpeed, ...]


@dataclass(slots=True)
class NetworkMeasured:
    """What the machines of an attempt exchange, bytes per second of one direction: its ranks measured it on meeting."""

    at: float
    job_id: JobId
    attempt: int
    bytes_per_s: float


@dataclass(slots=True)
class NetworkKnown:
    """What gangs that met in a pool exchanged before this core began: bytes per second of one direction."""

    at: float
    pool_id: PoolId
    bytes_per_s: float


@dataclass(slots=True)
class SpeedDiffers:
    """A job goes at another speed than others of its kind did in the same place, and that is no noise."""

    at: float
    job_id: JobId
    attempt: int
    #: Steps per second: of the others, and its own.
    usual: float
    own: float


@dataclass(slots=True)
class WorkRestated:
    """The job counts its work anew (its batch size changed): from now on it is of this kind and has these steps."""

    at: float
    job_id: JobId
    kind: Kind
    #: Steps in all and done, in the new count. What was saved is all that was done.
    steps_total: float
    steps: float


@dataclass(slots=True)
class FactsTold:
    """What is known of a kind of job. `counted`: by a job of the kind; else people stated it."""

    at: float
    kind: Kind
    facts: ModelFacts
    counted: bool = False


SpeedEvent = SpeedsPredicted | NetworkMeasured | NetworkKnown | SpeedDiffers | FactsTold


@dataclass(slots=True)
class ThroughputMeasured:
    """A speed known from elsewhere (an earlier run's table, a profile): steps per second of the whole gang."""

    at: float
    kind: Kind
    accelerator: str
    count: int
    steps_per_s: float
    samples: int = 1


@dataclass(slots=True)
class RestartMeasured:
    """A restart cost known from elsewhere, seconds."""

    at: float
    kind: Kind
    restart_s: float
