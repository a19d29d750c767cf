"""What is known of speeds: steps per second of each kind of job on each accelerator, the cost of a restart, networks
between machines, and facts about models.

Several sources may know a speed; the best one is believed (measured, then declared, then predicted). A measured
speed is published again only when the median of the newest samples leaves a band around the published one, since
each publication may cause a solve. `cycle/profiling_leases.py` decides what to measure.
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

#: A published speed changes only when the median of the newest samples leaves this band around it. Noise below it
#: would make every solve different from the last.
REPUBLISH_BAND = 0.10
#: Medians are taken over this many newest samples.
WINDOW = 9


class SpeedSource(IntEnum):
    """Where a speed comes from; larger is better."""

    PREDICTED = 0
    DECLARED = 1
    MEASURED = 2


@dataclass(frozen=True, slots=True)
class BelievedSpeed:
    """Steps per second of a whole gang, and the source of that number."""

    steps_per_s: float
    source: SpeedSource
    #: The interval that holds the true speed with probability 0.8; None if the source states none.
    low: float | None = None
    high: float | None = None
    #: Of a prediction: the names of the predictors that contributed.
    by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScoredBelief:
    """What a cell was taken to be until it was first measured, and what it turned out to be."""

    kind: Kind
    accelerator: str
    count: int
    #: `declared` by a submitter, `fused` from predictors (whose own guesses are listed too, by their names),
    #: `scaled` from another cell of the kind, `derived` from the kind for a job that differs from it, or `nominal`:
    #: nothing of the kind was known.
    source: str
    predicted: float
    measured: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class MeasuredCell:
    """A measured cell. `spread`: relative standard deviation of the newest samples."""

    kind: Kind
    accelerator: str
    count: int
    steps_per_s: float
    spread: float
    samples: int


#: Source, steps per second, and the interval if there is one.
_Belief = tuple[str, float, float | None, float | None]


@dataclass(slots=True)
class _Cell:
    published: float
    source: SpeedSource
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))


def _three_digits(steps_per_s: float) -> float:
    """Three significant digits: equal jobs stay equal, so that they are solved as one class."""
    return float(f"{steps_per_s:.3g}")


def _relative_deviation(samples: Sequence[float]) -> float:
    """Relative standard deviation."""
    many, mean = len(samples), sum(samples) / len(samples)
    squares = sum((sample - mean) ** 2 for sample in samples)
    return sqrt(squares / (many - 1)) / mean if many > 1 and mean > 0 else 0.0


class ThroughputTable:
    """(kind, accelerator, count) -> steps per second."""

    def __init__(self) -> None:
        self._cells: dict[Kind, dict[tuple[str, int], _Cell]] = {}
        #: Predicted speeds of unmeasured cells.
        self._predicted: dict[tuple[Kind, str, int], PredictedSpeed] = {}
        #: By kind that is measured by another: that other, and the factor between them.
        self._like: dict[Kind, tuple[Kind, float]] = {}
        #: By cell that was used before it was measured: source, speed and interval of what was believed of it.
        self._believed: dict[tuple[Kind, str, int], tuple[_Belief, ...]] = {}

    def measure(
        self, kind: Kind, accelerator: str, count: int, steps_per_s: float, nominal: dict[str, float] | None = None
    ) -> bool:
        """Take in one measured speed. True if the published speed of the kind changed.

        With `nominal`, what was believed of a cell until now is kept, to be scored.
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
        """This kind is faster than that one by this factor, wherever nothing else is known of it."""
        self._like[kind] = (like, factor)

    def guess(self, kind: Kind, accelerator: str, count: int, steps_per_s: float) -> None:
        """What a cell of a derived kind is taken to be until it is measured."""
        cells = self._cells.setdefault(kind, {})
        if (accelerator, count) not in cells:
            cells[accelerator, count] = _Cell(_three_digits(steps_per_s), SpeedSource.PREDICTED)

    def measured(self, kind: Kind, accelerator: str, count: int) -> float | None:
        """The published speed of a cell that was measured; None for another."""
        cell = self._cells.get(kind, {}).get((accelerator, count))
        return None if cell is None or cell.source is not SpeedSource.MEASURED else cell.published

    def is_measured(self, kind: Kind) -> bool:
        """Whether any cell of the kind was."""
        return any(cell.source is SpeedSource.MEASURED for cell in self._cells.get(kind, {}).values())

    def derived(self, kind: Kind) -> list[Kind]:
        """Kinds that are as fast as this one, but for some cells."""
        return [other for other, (like, _) in self._like.items() if like == kind]

    def predict(self, predicted: PredictedSpeed) -> bool:
        """Take in what predictors say of a cell. True if another speed is published for it from now on."""
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
        """Every cell that was measured (or is of another source), of the newest kinds first."""
        for kind, cells in reversed(self._cells.items()):
            for (accelerator, count), cell in cells.items():
                if cell.source is source and cell.published > 0:
                    recent = cell.recent
                    spread = _relative_deviation(recent) if recent else 0.0
                    yield MeasuredCell(kind, accelerator, count, cell.published, spread, max(1, len(recent)))

    @property
    def judged(self) -> int:
        """Cells of which something was believed before they were measured."""
        return len(self._believed)

    def scored(self, since: int = 0) -> list[ScoredBelief]:
        """Every belief that was used and then measured, with the speed that is published now; of cells `since`."""
        return [
            ScoredBelief(*key, source, believed, self._cells[key[0]][key[1:]].published, low, high)
            for key, beliefs in islice(self._believed.items(), since, None)
            for source, believed, low, high in beliefs
        ]

    def _beliefs(self, kind: Kind, accelerator: str, count: int, nominal: dict[str, float]) -> "tuple[_Belief, ...]":
        """What is believed of a cell that is not measured: first what is used, then what parts it is made of."""
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
        """Take in a submitter's figure: believed until something is measured. True if it was news."""
        cells = self._cells.setdefault(kind, {})
        if (accelerator, count) in cells:
            return False
        cells[accelerator, count] = _Cell(_three_digits(steps_per_s), SpeedSource.DECLARED)
        return True

    def speed(self, kind: Kind, accelerator: str, count: int, nominal: dict[str, float]) -> BelievedSpeed:
        """Best knowledge of a speed.

        Measured and declared cells stand, others are as predictors say. Where those say nothing a cell is taken from
        the kind's best-known one, scaled by nominal accelerator speed and (for lack of better) by gang size; a kind
        of which nothing is known is assumed to run at nominal speed.
        """
        cells = self._cells.get(kind)
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
        # Prefer the same gang size, then measured over declared, then a stable order.
        (near, size), known = min(
            cells.items(), key=lambda item: (item[0][1] != count, -item[1].source, item[0][1], item[0][0])
        )
        scale = nominal.get(accelerator, 1.0) / nominal.get(near, 1.0) * (count / size)
        return BelievedSpeed(_three_digits(known.published * scale), SpeedSource.PREDICTED)


class RestartCosts:
    """Seconds that a restart of a kind costs: a checkpoint and its way to the store, start, warm-up. Medians of all."""

    def __init__(self) -> None:
        self._starts: dict[Kind, deque[float]] = {}
        #: Of these, the starts before which inputs were fetched.
        self._cold: dict[Kind, deque[float]] = {}
        self._checkpoints: dict[Kind, deque[float]] = {}
        self._lags: dict[Kind, deque[float]] = {}
        #: By kind with a start that was seen: asked for far more often than anything new is seen.
        self._known: dict[Kind, float] = {}
        #: Another number whenever an answer may have become another.
        self.version = 0

    def saw_start(self, kind: Kind, start_s: float, *, cold: bool = False) -> None:
        """`cold`: a machine had to fetch inputs of the job before its ranks could start."""
        if cold:
            self._cold.setdefault(kind, deque(maxlen=WINDOW)).append(start_s)
        self._starts.setdefault(kind, deque(maxlen=WINDOW)).append(start_s)
        self._know(kind)

    def saw_checkpoint(self, kind: Kind, took_s: float) -> None:
        seen = self._checkpoints.setdefault(kind, deque(maxlen=WINDOW))
        is_the_same = len(seen) == WINDOW and seen[0] == took_s  # as the one that it displaces
        seen.append(took_s)
        if not is_the_same:
            self._know(kind)

    def saw_lag(self, kind: Kind, lag_s: float) -> None:
        """So long after it was written a checkpoint was safe."""
        if lag_s > 0 or kind in self._lags:
            self._lags.setdefault(kind, deque(maxlen=WINDOW)).append(lag_s)
            self._know(kind)

    def write_s(self, kind: Kind) -> float | None:
        """Seconds that writing a checkpoint takes; None until one was recorded."""
        seen = self._checkpoints.get(kind)
        return median(seen) if seen else None

    def lag_s(self, kind: Kind) -> float:
        """Seconds from the end of writing until a checkpoint is safe."""
        seen = self._lags.get(kind)
        return median(seen) if seen else 0.0

    def fetch_s(self, kind: Kind) -> float:
        """Seconds by which a start that fetches inputs takes longer than `restart_s` has it; 0 until one was seen."""
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
        """The default until a start of the kind has been seen."""
        return self._known.get(kind, default_s)


#: Kinds whose facts are kept; the one updated longest ago is dropped.
KINDS_MOST = 10_000


class ModelFactsTable:
    """Kind -> facts."""

    def __init__(self) -> None:
        self._stated: dict[Kind, ModelFacts] = {}
        self._counted: dict[Kind, ModelFacts] = {}
        #: Another number whenever some facts have become others.
        self.version = 0

    def update(self, kind: Kind, facts: ModelFacts, *, counted: bool) -> bool:
        """Take in facts. True if they are news."""
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
        """Whether these would be no news."""
        return (self._counted if counted else self._stated).get(kind) == facts

    def of(self, kind: Kind) -> ModelFacts | None:
        """What is believed of the kind; None: nothing is known."""
        counted, stated = self._counted.get(kind), self._stated.get(kind)
        return stated if counted is None else merge_facts(counted, stated)

    def is_counted(self, kind: Kind) -> bool:
        """Whether a job of the kind has counted."""
        return kind in self._counted

    def kinds(self) -> list[Kind]:
        """Of which something is known."""
        return list(dict.fromkeys((*self._stated, *self._counted)))


#: A network's speed is the median of this many newest measurements.
_NETWORK_SAMPLES = 15


class NetworkTable:
    """What gangs over several machines got, by pool."""

    def __init__(self) -> None:
        self._got: dict[PoolId, deque[float]] = {}
        #: Another number whenever something was measured.
        self.version = 0

    def planned(self, pool_id: PoolId) -> float | None:
        """Bytes per second; None where nothing was measured yet."""
        got = self._got.get(pool_id)
        return median(got) if got else None

    def saw(self, pool_id: PoolId, bytes_per_s: float) -> None:
        self._got.setdefault(pool_id, deque(maxlen=_NETWORK_SAMPLES)).append(bytes_per_s)
        self.version += 1
