"""Known speeds: steps per second of each kind of job on each accelerator, restart costs, networks, model facts.

Several sources may know a speed; the best one is used (measured, then declared, then predicted). A measured speed is
published again only when the median of the newest samples leaves a band around the published one, since each
publication may cause a solve. `cycle/profiling_leases.py` decides what to measure.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice
from math import sqrt
from statistics import median

from scheduler.core.speed_events import PredictedSpeed
from walras.cluster import PoolId
from walras.job_request import Kind
from walras.model_facts import ModelFacts, merge_facts
from walras.spec.accelerator_names import covers, family_of

#: A published speed changes only when the median of the newest samples leaves this relative band around it. Smaller
#: noise would make every solve different from the last.
REPUBLISH_BAND = 0.10
#: Number of newest samples in a median.
WINDOW = 9


class SpeedSource(IntEnum):
    """Source of a speed; a larger value is a better source."""

    PREDICTED = 0
    DECLARED = 1
    MEASURED = 2


@dataclass(frozen=True, slots=True)
class BelievedSpeed:
    """Steps per second of a whole gang, and the source of that number."""

    steps_per_s: float
    source: SpeedSource
    #: Bounds of an interval that holds the true speed with probability 0.8; None if the source states none.
    low: float | None = None
    high: float | None = None
    #: For a prediction: the names of the predictors that contributed.
    by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScoredBelief:
    """The speed assumed for a cell until its first measurement, and the measured one."""

    kind: Kind
    accelerator: str
    count: int
    #: `declared` by a submitter, `fused` from predictors (whose own guesses are listed too, by their names), `scaled`
    #: from another cell of the kind, `derived` from the kind for a job that differs from it, or `nominal` if nothing of
    #: the kind was known.
    source: str
    predicted: float
    measured: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class MeasuredCell:
    """A measured cell. `spread` is the relative standard deviation of the newest samples."""

    kind: Kind
    accelerator: str
    count: int
    steps_per_s: float
    spread: float
    samples: int


#: Source, steps per second, and the bounds of the interval if there is one.
_Belief = tuple[str, float, float | None, float | None]


@dataclass(slots=True)
class _Cell:
    published: float
    source: SpeedSource
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))


def _three_digits(steps_per_s: float) -> float:
    """Rounds to three significant digits, so that equal jobs stay equal and are solved as one class."""
    return float(f"{steps_per_s:.3g}")


def _relative_deviation(samples: Sequence[float]) -> float:
    """Returns the relative standard deviation."""
    many, mean = len(samples), sum(samples) / len(samples)
    squares = sum((sample - mean) ** 2 for sample in samples)
    return sqrt(squares / (many - 1)) / mean if many > 1 and mean > 0 else 0.0


class ThroughputTable:
    """Steps per second by (kind, accelerator, count)."""

    def __init__(self) -> None:
        self._cells: dict[Kind, dict[tuple[str, int], _Cell]] = {}
        #: Predicted speeds of unmeasured cells.
        self._predicted: dict[tuple[Kind, str, int], PredictedSpeed] = {}
        #: For a derived kind: the kind from which it is derived, and the factor between their speeds.
        self._like: dict[Kind, tuple[Kind, float]] = {}
        #: For cells used before their first measurement: source, speed and interval assumed until then.
        self._believed: dict[tuple[Kind, str, int], tuple[_Belief, ...]] = {}

    def measure(
        self, kind: Kind, accelerator: str, count: int, steps_per_s: float, nominal: dict[str, float] | None = None
    ) -> bool:
        """Records one measured speed. Returns whether the published speed of the kind changed.

        With `nominal`, what was assumed of a new cell until now is kept, to be scored.
        """
        cells = self._cells.setdefault(kind, {})
        cell = cells.get((accelerator, count))
        if cell is None or cell.source < SpeedSource.MEASURED:
            if nominal is not None:
                self._believed[kind, accelerator, count] = self._beliefs(kind, accelerator, count, nominal)
            self._predicted.pop((kind, accelerator, count), None)
            cell = _Cell(_three_digits(steps_per_s), SpeedSource.MEASURED)
            cells[accelerator, count] = cell
            cell.recent.append(steps_per_s)
            return True
        cell.recent.append(steps_per_s)
        now = median(cell.recent)
        if abs(now - cell.published) <= REPUBLISH_BAND * cell.published:
            return False
        cell.published = _three_digits(now)
        return True

    def set_known(self, kind: Kind, accelerator: str, count: int, steps_per_s: float) -> bool:
        """Records a speed that is known from elsewhere and has no noise. Returns whether it is new."""
        cells = self._cells.setdefault(kind, {})
        cell = cells.get((accelerator, count))
        if cell is not None and cell.source is SpeedSource.MEASURED and cell.published == steps_per_s:
            return False
        cells[accelerator, count] = _Cell(steps_per_s, SpeedSource.MEASURED, deque([steps_per_s], WINDOW))
        return True

    def derive(self, kind: Kind, like: Kind, factor: float = 1.0) -> None:
        """Sets a kind's speed to `factor` times that of another kind, where nothing else is known of it."""
        self._like[kind] = (like, factor)

    def guess(self, kind: Kind, accelerator: str, count: int, steps_per_s: float) -> None:
        """Sets the speed of a cell of a derived kind until it is measured."""
        cells = self._cells.setdefault(kind, {})
        if (accelerator, count) not in cells:
            cells[accelerator, count] = _Cell(_three_digits(steps_per_s), SpeedSource.PREDICTED)

    def measured(self, kind: Kind, accelerator: str, count: int) -> float | None:
        """Returns the published speed of a measured cell; None if it was not measured."""
        cell = self._cells.get(kind, {}).get((accelerator, count))
        return None if cell is None or cell.source is not SpeedSource.MEASURED else cell.published

    def is_measured(self, kind: Kind) -> bool:
        """Returns whether any cell of the kind was measured."""
        return any(cell.source is SpeedSource.MEASURED for cell in self._cells.get(kind, {}).values())

    def derived(self, kind: Kind) -> list[Kind]:
        """Returns the kinds that are derived from this one."""
        return [other for other, (like, _) in self._like.items() if like == kind]

    def predict(self, predicted: PredictedSpeed) -> bool:
        """Records a prediction of a cell. Returns whether it changes the cell's published speed."""
        key = (predicted.kind, predicted.accelerator, predicted.count)
        if key[1:] in self._cells.get(predicted.kind, ()):
            return False
        earlier = self._predicted.get(key)
        band = 0.0 if earlier is None else REPUBLISH_BAND * earlier.fused.steps_per_s
        if earlier is not None and abs(predicted.fused.steps_per_s - earlier.fused.steps_per_s) <= band:
            return False
        self._predicted[key] = predicted
        return True

    def known(self, source: SpeedSource = SpeedSource.MEASURED) -> Iterator[MeasuredCell]:
        """Yields every cell with a speed of this source, of the newest kinds first."""
        for kind, cells in reversed(self._cells.items()):
            for (accelerator, count), cell in cells.items():
                if cell.source is source and cell.published > 0:
                    recent = cell.recent
                    spread = _relative_deviation(recent) if recent else 0.0
                    yield MeasuredCell(kind, accelerator, count, cell.published, spread, max(1, len(recent)))

    @property
    def judged(self) -> int:
        """Returns the number of cells whose speed was assumed before they were measured."""
        return len(self._believed)

    def scored(self, since: int = 0) -> list[ScoredBelief]:
        """Returns all assumed speeds of cells measured later, with the published speed; from cell number `since` on."""
        return [
            ScoredBelief(*key, source, believed, self._cells[key[0]][key[1:]].published, low, high)
            for key, beliefs in islice(self._believed.items(), since, None)
            for source, believed, low, high in beliefs
        ]

    def _beliefs(self, kind: Kind, accelerator: str, count: int, nominal: dict[str, float]) -> "tuple[_Belief, ...]":
        """Returns what is assumed of an unmeasured cell: first the speed in use, then the predictions it is made of."""
        cells = self._cells.get(kind, {})
        predicted = self._predicted.get((kind, accelerator, count))
        if (accelerator, count) not in cells and predicted is not None:
            return tuple(
                (guess.source, guess.steps_per_s, guess.low, guess.high)
                for guess in (predicted.fused, *predicted.parts)
            )
        source = "declared" if (accelerator, count) in cells else "scaled" if cells else "nominal"
        source = "derived" if kind in self._like else source
        return ((source, self.speed(kind, accelerator, count, nominal).steps_per_s, None, None),)

    def declare(self, kind: Kind, accelerator: str, count: int, steps_per_s: float) -> bool:
        """Records a submitter's figure, used until a speed is measured. Returns whether it is new.

        The figure of a family (`a100`) holds for each of its types that has none of its own.
        """
        cells = self._cells.setdefault(kind, {})
        if (accelerator, count) in cells:
            return False
        cells[accelerator, count] = _Cell(_three_digits(steps_per_s), SpeedSource.DECLARED)
        return True

    def speed(self, kind: Kind, accelerator: str, count: int, nominal: dict[str, float]) -> BelievedSpeed:
        """Returns the best known speed of a cell.

        Measured and declared cells are used as they are, others by their predictions. Without a prediction the speed is
        scaled from the kind's best-known cell, by nominal accelerator speed and (for lack of better) by gang size; a
        kind of which nothing is known is assumed to run at nominal speed.
        """
        cells = self._cells.get(kind)
        if cells and (accelerator, count) not in cells:
            of_family = cells.get((family_of(accelerator), count))
            if of_family is not None and of_family.source is SpeedSource.DECLARED:
                return BelievedSpeed(of_family.published, of_family.source)
        if kind in self._like and (accelerator, count) not in (cells or ()):
            like, factor = self._like[kind]
            found = self.speed(like, accelerator, count, nominal)
            return (
                found
                if factor == 1.0
                else BelievedSpeed(_three_digits(factor * found.steps_per_s), SpeedSource.PREDICTED)
            )
        predicted = self._predicted.get((kind, accelerator, count))
        if predicted is not None and (accelerator, count) not in (cells or ()):
            guess = predicted.fused
            by = tuple(part.source for part in predicted.parts)
            return BelievedSpeed(_three_digits(guess.steps_per_s), SpeedSource.PREDICTED, guess.low, guess.high, by)
        if not cells:
            return BelievedSpeed(nominal.get(accelerator, 1.0) * count, SpeedSource.PREDICTED)
        cell = cells.get((accelerator, count))
        if cell is not None:
            return BelievedSpeed(cell.published, cell.source)
        # Prefers the same gang size, then measured over declared, then a stable order.
        (near, size), known = min(
            cells.items(), key=lambda item: (item[0][1] != count, -item[1].source, item[0][1], item[0][0])
        )
        same_family = next((name for name in (accelerator, *sorted(nominal)) if covers(near, name)), near)
        scale = nominal.get(accelerator, 1.0) / nominal.get(same_family, 1.0) * (count / size)
        return BelievedSpeed(_three_digits(known.published * scale), SpeedSource.PREDICTED)


class RestartCosts:
    """Seconds that a restart of a kind costs: a checkpoint, its upload, start and warm-up. Each part is a median."""

    def __init__(self) -> None:
        self._starts: dict[Kind, deque[float]] = {}
        #: Those of the starts before which inputs were downloaded.
        self._cold: dict[Kind, deque[float]] = {}
        self._checkpoints: dict[Kind, deque[float]] = {}
        self._lags: dict[Kind, deque[float]] = {}
        #: Cache by kind with a measured start, because reads are far more frequent than measurements.
        self._known: dict[Kind, float] = {}
        #: Changes whenever an answer may have changed.
        self.version = 0

    def saw_start(self, kind: Kind, start_s: float, *, cold: bool = False) -> None:
        """Records a start. `cold`: a machine had to download inputs of the job before its ranks could start."""
        if cold:
            self._cold.setdefault(kind, deque(maxlen=WINDOW)).append(start_s)
        self._starts.setdefault(kind, deque(maxlen=WINDOW)).append(start_s)
        self._know(kind)

    def saw_checkpoint(self, kind: Kind, took_s: float) -> None:
        seen = self._checkpoints.setdefault(kind, deque(maxlen=WINDOW))
        is_the_same = len(seen) == WINDOW and seen[0] == took_s  # equals the sample that it displaces
        seen.append(took_s)
        if not is_the_same:
            self._know(kind)

    def saw_lag(self, kind: Kind, lag_s: float) -> None:
        """Records how long after it was written a checkpoint was safe."""
        if lag_s > 0 or kind in self._lags:
            self._lags.setdefault(kind, deque(maxlen=WINDOW)).append(lag_s)
            self._know(kind)

    def write_s(self, kind: Kind) -> float | None:
        """Returns the seconds that writing a checkpoint takes; None until one was recorded."""
        seen = self._checkpoints.get(kind)
        return median(seen) if seen else None

    def lag_s(self, kind: Kind) -> float:
        """Returns the seconds from the end of writing until a checkpoint is safe."""
        seen = self._lags.get(kind)
        return median(seen) if seen else 0.0

    def fetch_s(self, kind: Kind) -> float:
        """Returns the seconds that a start with downloads takes beyond a usual start; 0 until one was measured."""
        cold = self._cold.get(kind)
        return max(0.0, median(cold) - median(self._starts[kind])) if cold else 0.0

    def _know(self, kind: Kind) -> None:
        starts, checkpoints = self._starts.get(kind), self._checkpoints.get(kind)
        if starts:
            restart_s = median(starts) + (median(checkpoints) if checkpoints else 0.0) + self.lag_s(kind)
            if restart_s != self._known.get(kind):
                self._known[kind] = restart_s
                self.version += 1

    def restart_s(self, kind: Kind, default_s: float) -> float:
        """Returns the restart cost in seconds; `default_s` until a start of the kind was measured."""
        return self._known.get(kind, default_s)


#: Maximum of kinds whose facts are kept; the one updated longest ago is dropped.
KINDS_MOST = 10_000


class ModelFactsTable:
    """Model facts by kind."""

    def __init__(self) -> None:
        self._stated: dict[Kind, ModelFacts] = {}
        self._counted: dict[Kind, ModelFacts] = {}
        #: Changes whenever facts change.
        self.version = 0

    def update(self, kind: Kind, facts: ModelFacts, *, counted: bool) -> bool:
        """Records facts. Returns whether they are new."""
        book = self._counted if counted else self._stated
        if book.get(kind) == facts:
            return False
        book.pop(kind, None)
        book[kind] = facts
        if len(book) > KINDS_MOST:
            del book[next(iter(book))]
        self.version += 1
        return True

    def has(self, kind: Kind, facts: ModelFacts, *, counted: bool) -> bool:
        """Returns whether `update` with these would change nothing."""
        return (self._counted if counted else self._stated).get(kind) == facts

    def of(self, kind: Kind) -> ModelFacts | None:
        """Returns the facts of the kind; None if there are none."""
        counted, stated = self._counted.get(kind), self._stated.get(kind)
        return stated if counted is None else merge_facts(counted, stated)

    def is_counted(self, kind: Kind) -> bool:
        """Returns whether a job of the kind has counted its facts."""
        return kind in self._counted

    def kinds(self) -> list[Kind]:
        """Returns the kinds of job whose model facts (parameters, FLOPs per sample) were stated or counted."""
        return list(dict.fromkeys((*self._stated, *self._counted)))


#: Number of newest measurements whose median is a network's bandwidth.
_NETWORK_SAMPLES = 15


class NetworkTable:
    """Bandwidths that gangs over several machines measured, by pool."""

    def __init__(self) -> None:
        self._got: dict[PoolId, deque[float]] = {}
        #: Changes with every measurement.
        self.version = 0

    def planned(self, pool_id: PoolId) -> float | None:
        """Returns bytes per second; None if nothing was measured yet."""
        got = self._got.get(pool_id)
        return median(got) if got else None

    def saw(self, pool_id: PoolId, bytes_per_s: float) -> None:
        self._got.setdefault(pool_id, deque(maxlen=_NETWORK_SAMPLES)).append(bytes_per_s)
        self.version += 1
