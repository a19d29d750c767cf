"""Events about speeds: measured elsewhere, predicted, or different from the kind's usual speed.

Also work that a job counts anew, networks of machines, and facts about models.
"""

from dataclasses import dataclass

from walras.cluster import PoolId
from walras.job_request import JobId, Kind
from walras.model_facts import ModelFacts


@dataclass(frozen=True, slots=True)
class Guess:
    """A source's estimate of a speed, steps per second; the interval holds the true speed with probability 0.8."""

    source: str
    steps_per_s: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PredictedSpeed:
    """An unmeasured cell: its combined prediction, and what each predictor alone predicts."""

    kind: Kind
    accelerator: str
    count: int
    fused: Guess
    parts: tuple[Guess, ...] = ()
    #: Whether its measurement would tell most of an accelerator that is new.
    first: bool = False


@dataclass(slots=True)
class SpeedsPredicted:
    """Predicted speeds of unmeasured cells. A cell that was measured in the meantime keeps its measured speed."""

    at: float
    speeds: tuple[PredictedSpeed, ...]
    #: Seconds since the measurements from which they were predicted were taken.
    took_s: float = 0.0


@dataclass(slots=True)
class NetworkMeasured:
    """Bandwidth between an attempt's machines, bytes per second in one direction, measured by its ranks at start."""

    at: float
    job_id: JobId
    attempt: int
    bytes_per_s: float


@dataclass(slots=True)
class NetworkKnown:
    """Bandwidth that gangs measured in a pool before this core started, bytes per second in one direction.

    `pool_id` names the project as a kind's name does (`walras.job_request.kind_within`).
    """

    at: float
    pool_id: PoolId
    bytes_per_s: float


@dataclass(slots=True)
class SpeedDiffers:
    """A job runs at a speed different from others of its kind in the same place, by more than noise."""

    at: float
    job_id: JobId
    attempt: int
    #: Steps per second: of the others, and its own.
    usual: float
    own: float


@dataclass(slots=True)
class WorkRestated:
    """The job counts its work anew (its batch size changed): from now on it has this kind and these steps."""

    at: float
    job_id: JobId
    kind: Kind
    #: Total and done steps in the new count; all steps done are saved.
    steps_total: float
    steps: float


@dataclass(slots=True)
class FactsTold:
    """Model facts of a kind of job; `counted` if a job of the kind counted them, else people stated them."""

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
    #: Its type; of a gang over several pools each type with its count: `a100:2,v100:1`.
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
