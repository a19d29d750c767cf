"""Known speeds: steps per second of each kind of job on each accelerator, restart costs, networks, model facts.

Several sources may know a speed; the best one is used (measured, declared, measured by another project, predicted). A
measured speed is published again only when the median of the newest samples leaves a band around the published one,
since each publication may cause a solve. `cycle/profiling_leases.py` decides what to measure.

Speeds of a program that one project measured stand for the kinds of others that run it. A *program* is the code that
the machines get with its command and environment (`walras.spec.spec_request.program_of`). A cell that another project
measured in several reports stands until the own project has measured it. It is scaled by what both measured elsewhere,
and clipped to what data sheets allow beside the other cells of the kind; a type without a data sheet takes none. So
false reports move jobs of another project by less than data sheets differ, once it measured or declared a speed of the
kind. Until then the cell counts as unmeasured, and its first job corrects it.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice
from math import inf, isfinite, sqrt
from statistics import median
from typing import get_args

from optimizer.prediction.predictor import AcceleratorSpecs, peak_of
from scheduler.core.events import RememberedProgram
from scheduler.core.speed_events import Guess, PredictedSpeed
from walras.cluster import PoolId
from walras.job_request import Kind, project_of
from walras.model_facts import ModelFacts, Precision, merge_facts
from walras.spec.accelerator_names import covers, family_of, sheet_names

#: A published speed changes only when the median of the newest samples leaves this relative band around it. Smaller
#: noise would make every solve different from the last.
REPUBLISH_BAND = 0.10
#: Number of newest samples in a median.
WINDOW = 9


class SpeedSource(IntEnum):
    """Source of a speed; a larger value is a better source."""

    #: Nothing is known of the kind: nominal speeds.
    ASSUMED = -1
    PREDICTED = 0
    #: Measured by jobs of another project that ran the same program.
    SHARED = 1
    DECLARED = 2
    MEASURED = 3


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
    #: `declared` by a submitter, `shared` by another project, `fused` from predictors (whose own guesses are listed
    #: too, by their names), `scaled` from another cell of the kind, `derived` from the kind for a job that differs from
    #: it, or `nominal` if nothing of the kind was known.
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


#: An accelerator type and a number of accelerators.
Gang = tuple[str, int]
#: Source, steps per second, and the bounds of the interval if there is one.
_Belief = tuple[str, float, float | None, float | None]


@dataclass(slots=True)
class _Cell:
    published: float
    source: SpeedSource
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def __deepcopy__(self, _: object) -> "_Cell":
        return _Cell(self.published, self.source, self.recent.copy())  # a forecast copies all cells for every future

    def publishes(self, steps_per_s: float) -> bool:
        """Adds a sample. Returns whether the published speed changed."""
        self.recent.append(steps_per_s)
        now = median(self.recent)
        if abs(now - self.published) <= REPUBLISH_BAND * self.published:
            return False
        self.published = _three_digits(now)
        return True


def _declared_of_family(cells: Mapping[Gang, _Cell], accelerator: str, count: int) -> _Cell | None:
    cell = cells.get((family_of(accelerator), count))
    return cell if cell is not None and cell.source is SpeedSource.DECLARED else None


def _three_digits(steps_per_s: float) -> float:
    """Rounds to three significant digits, so that equal jobs stay equal and are solved as one class."""
    return float(f"{steps_per_s:.3g}")


def _relative_deviation(samples: Sequence[float]) -> float:
    """Returns the relative standard deviation."""
    many, mean = len(samples), sum(samples) / len(samples)
    squares = sum((sample - mean) ** 2 for sample in samples)
    return sqrt(squares / (many - 1)) / mean if many > 1 and mean > 0 else 0.0


#: How the guess of a speed is called that another project measured of the program (`state/throughput.py`).
SHARED = "shared"
#: Reports of a project after which its speed of a program counts for others.
REPORTS = 3
#: The most programs that are kept, and remembered for a successor: those reported last.
PROGRAMS_MOST, _REMEMBERED_MOST = 2_000, 300
#: The most kinds of one program, those of its newest jobs; and of all, or whose facts are kept: the one updated longest
#: ago is dropped.
_KINDS_OF_PROGRAM, KINDS_MOST = 32, 10_000


class ProgramSpeeds:
    """What each project measured of each program, and the kinds that run it."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, dict[Gang, deque[float]]]] = {}
        #: The program of each kind's newest job, and the kinds of each program.
        self._program: dict[Kind, str] = {}
        self._kinds: dict[str, dict[Kind, None]] = {}

    def ran(self, kind: Kind, program: str) -> None:
        """Notes the program of a new job of the kind; empty: none that could be compared."""
        self._forget(kind)
        if program:
            self._program[kind] = program
            here = self._kinds.setdefault(program, {})
            here[kind] = None
            if len(here) > _KINDS_OF_PROGRAM:
                self._forget(next(iter(here)))
            elif len(self._program) > KINDS_MOST:
                self._forget(next(iter(self._program)))

    def _forget(self, kind: Kind) -> None:
        program = self._program.pop(kind, "")
        if program:
            del self._kinds[program][kind]
            if not self._kinds[program]:
                del self._kinds[program]

    def __deepcopy__(self, _: object) -> "ProgramSpeeds":
        return ProgramSpeeds()  # a forecast shares nothing

    def saw(self, program: str, project: str, gang: Gang, steps_per_s: float) -> None:
        """Records a report of a job of the project that stands for its kind."""
        if program and 0.0 < steps_per_s < inf:
            cells = self._seen.pop(program, {})
            self._seen[program] = cells
            cells.setdefault(project, {}).setdefault(gang, deque(maxlen=WINDOW)).append(steps_per_s)
            if len(self._seen) > PROGRAMS_MOST:
                del self._seen[next(iter(self._seen))]

    def kinds(self, program: str) -> tuple[Kind, ...]:
        """Returns the kinds that run the program where another project reported speeds of it."""
        seen = self._seen.get(program, {}).keys()
        return tuple(kind for kind in self._kinds.get(program, ()) if seen - {project_of(kind)})

    def told(self, program: str) -> dict[str, dict[Gang, float]]:
        """Returns the speeds that count for other projects, by the project that measured them."""
        found: dict[str, dict[Gang, float]] = {}
        for project, cells in self._seen.get(program, {}).items():
            for gang, speeds in cells.items():
                if len(speeds) >= REPORTS:
                    found.setdefault(project, {})[gang] = median(speeds)
        return found

    def remembered(self) -> tuple[RememberedProgram, ...]:
        """Returns what counts for others, for a successor, of the programs reported last."""
        newest = reversed(list(islice(reversed(self._seen), _REMEMBERED_MOST)))
        told = ((program, *each) for program in newest for each in self.told(program).items())
        return tuple(
            (program, project, *gang, speed) for program, project, cells in told for gang, speed in cells.items()
        )

    def recall(self, told: tuple[RememberedProgram, ...]) -> None:
        """Takes over what counted for others in the core before this one."""
        for program, project, accelerator, count, speed in told:
            for _ in range(REPORTS):
                self.saw(program, project, (accelerator, count), speed)


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
        #: Gangs over several types that share each batch: their measured speed by accelerators of each type.
        self._mixes: dict[Kind, dict[tuple[tuple[str, int], ...], _Cell]] = {}
        self.programs = ProgramSpeeds()

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
        return cell.publishes(steps_per_s)

    def measure_mix(self, kind: Kind, held: Mapping[str, int], steps_per_s: float) -> bool:
        """Records the speed of a gang over several types that shares each batch. Returns whether the published one
        changed.
        """
        cells, key = self._mixes.setdefault(kind, {}), tuple(sorted(held.items()))
        if key not in cells:
            cells[key] = _Cell(_three_digits(steps_per_s), SpeedSource.MEASURED, deque([steps_per_s], WINDOW))
            return True
        return cells[key].publishes(steps_per_s)

    def measured_mix(self, kind: Kind, held: Mapping[str, int]) -> float | None:
        """Returns the published speed of a gang over these types; None if it was not measured."""
        cell = self._mixes.get(kind, {}).get(tuple(sorted(held.items())))
        return None if cell is None else cell.published

    def measured_mixes(self, kind: Kind) -> dict[tuple[tuple[str, int], ...], float]:
        """Returns the published speed of each gang over several types that was measured, by accelerators of a type."""
        return {held: cell.published for held, cell in self._mixes.get(kind, {}).items()}

    def mixing_part(self, kind: Kind, nominal: dict[str, float]) -> float:
        """Returns the part of the sum of their parts' speeds at which gangs over several types of the kind ran: the
        median over those measured, at most 1; 1 if none was.
        """
        ran = []
        for held, cell in self._mixes.get(kind, {}).items():
            gang = sum(count for _, count in held)
            whole = sum(self.speed(kind, name, gang, nominal).steps_per_s * count / gang for name, count in held)
            ran.append(cell.published / whole if whole > 0 else 1.0)
        return min(1.0, median(ran)) if ran else 1.0

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

    def is_measured_or_declared(self, kind: Kind) -> bool:
        """Returns whether the own project knows a speed of the kind, which bounds those that others share."""
        return any(cell.source >= SpeedSource.DECLARED for cell in self._cells.get(kind, {}).values())

    def derived(self, kind: Kind) -> list[Kind]:
        """Returns the kinds that are derived from this one."""
        return [other for other, (like, _) in self._like.items() if like == kind]

    def predict(self, predicted: PredictedSpeed) -> bool:
        """Records a prediction of a cell. Returns whether it changes the cell's published speed."""
        key = (predicted.kind, predicted.accelerator, predicted.count)
        if predicted.fused.source == SHARED:
            is_news = self.takes_shared(predicted)
            if is_news:
                shared = _Cell(_three_digits(predicted.fused.steps_per_s), SpeedSource.SHARED)
                self._cells.setdefault(predicted.kind, {})[key[1:]] = shared
            return is_news
        if key[1:] in self._cells.get(predicted.kind, ()):
            return False
        earlier = self._predicted.get(key)
        band = 0.0 if earlier is None else REPUBLISH_BAND * earlier.fused.steps_per_s
        if earlier is not None and abs(predicted.fused.steps_per_s - earlier.fused.steps_per_s) <= band:
            return False
        self._predicted[key] = predicted
        return True

    def takes_shared(self, shared: PredictedSpeed) -> bool:
        """Returns whether another project's speed of the cell is news, and nothing of the own project stands there."""
        cells = self._cells.get(shared.kind, {})
        cell = cells.get((shared.accelerator, shared.count))
        if cell is None or cell.source < SpeedSource.SHARED:
            return _declared_of_family(cells, shared.accelerator, shared.count) is None
        differs = abs(shared.fused.steps_per_s - cell.published) > REPUBLISH_BAND * cell.published
        return cell.source is SpeedSource.SHARED and differs

    def is_first(self, kind: Kind, accelerator: str, count: int) -> bool:
        """Returns whether predictions ask for this cell to be measured before others of its accelerator."""
        predicted = self._predicted.get((kind, accelerator, count))
        return predicted is not None and predicted.first

    def known(self, source: SpeedSource = SpeedSource.MEASURED) -> Iterator[MeasuredCell]:
        """Yields every cell with a speed of this source, of the newest kinds first."""
        for kind in reversed(self._cells):
            yield from self.cells_of(kind, source)

    def cells_of(self, kind: Kind, source: SpeedSource = SpeedSource.MEASURED) -> Iterator[MeasuredCell]:
        """Yields the kind's cells with a speed of this source."""
        for (accelerator, count), cell in self._cells.get(kind, {}).items():
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
        there = cells.get((accelerator, count))
        source = there.source.name.lower() if there is not None else "scaled" if cells else "nominal"
        source = "derived" if kind in self._like else source
        return ((source, self.speed(kind, accelerator, count, nominal).steps_per_s, None, None),)

    def declare(self, kind: Kind, accelerator: str, count: int, steps_per_s: float) -> bool:
        """Records a submitter's figure, used until a speed is measured. Returns whether it is new.

        The figure of a family (`a100`) holds for each of its types that has none of its own.
        """
        cells = self._cells.setdefault(kind, {})
        if (accelerator, count) in cells and cells[accelerator, count].source is not SpeedSource.SHARED:
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
        if cells and ((accelerator, count) not in cells or cells[accelerator, count].source is SpeedSource.SHARED):
            of_family = _declared_of_family(cells, accelerator, count)
            if of_family is not None:
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
            return BelievedSpeed(nominal.get(accelerator, 1.0) * count, SpeedSource.ASSUMED)
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
    """Bandwidths that gangs over several machines of a pool measured, by project: what a project's jobs report counts
    for that project's.
    """

    def __init__(self) -> None:
        self._got: dict[tuple[str, PoolId], deque[float]] = {}
        #: Changes with every measurement.
        self.version = 0

    def planned(self, project: str, pool_id: PoolId) -> float | None:
        """Returns bytes per second; None if nothing was measured yet."""
        got = self._got.get((project, pool_id))
        return median(got) if got else None

    def saw(self, project: str, pool_id: PoolId, bytes_per_s: float) -> None:
        self._got.setdefault((project, pool_id), deque(maxlen=_NETWORK_SAMPLES)).append(bytes_per_s)
        self.version += 1

    def projects(self) -> list[str]:
        """Returns the projects whose gangs measured a network."""
        return list(dict.fromkeys(project for project, _ in self._got))


def shared_news(
    table: ThroughputTable, program: str, sheets: Mapping[str, AcceleratorSpecs]
) -> tuple[PredictedSpeed, ...]:
    """Returns what the program's kinds learn of other projects' measurements that the table does not have yet."""
    kinds = table.programs.kinds(program)
    told = table.programs.told(program) if kinds else {}
    return tuple(each for kind in kinds for each in _for_kind(table, kind, told, sheets) if table.takes_shared(each))


def _for_kind(
    table: ThroughputTable,
    kind: Kind,
    told_by: Mapping[str, Mapping[Gang, float]],
    sheets: Mapping[str, AcceleratorSpecs],
) -> Iterator[PredictedSpeed]:
    """Yields what other projects measured where the kind was not measured."""
    own = {(each.accelerator, each.count): each.steps_per_s for each in table.cells_of(kind)}
    others = [told for project, told in told_by.items() if project != project_of(kind)]
    declared = table.cells_of(kind, SpeedSource.DECLARED)
    known = own | {(each.accelerator, each.count): each.steps_per_s for each in declared}
    for gang in sorted({gang for told in others for gang in told} - known.keys()):
        if _sheet(sheets, gang[0]) is not None:
            said = median(told[gang] * _factor(own, told) for told in others if gang in told)
            least, most = allowed_speeds(known, *gang, sheets)
            speed = known[gang] = min(most, max(least, said))
            if 0.0 < speed < inf:
                yield PredictedSpeed(kind, *gang, Guess(SHARED, speed, speed, speed))


def _factor(own: Mapping[Gang, float], told: Mapping[Gang, float]) -> float:
    """Returns how much faster the own project's jobs are than another's where both were measured; 1: nowhere."""
    ratios = [speed / told[gang] for gang, speed in own.items() if gang in told]
    return median(ratios) if ratios else 1.0


def _sheet(sheets: Mapping[str, AcceleratorSpecs], accelerator: str) -> AcceleratorSpecs | None:
    return next((sheets[name] for name in sheet_names(accelerator) if name in sheets), None)


#: How many times as fast as another a type of the same data sheet may be.
_SIBLING = 1.5


def times_at_most(sheets: Mapping[str, AcceleratorSpecs], accelerator: str, other: str) -> float:
    """Returns how many times as fast as another type a type is at most, by data sheets; inf where none says.

    That is the largest ratio of their peaks and memory bandwidths. The lesser type may be as fast (a job that waits for
    its data), but no faster.
    """
    own, its = _sheet(sheets, accelerator), _sheet(sheets, other)
    if accelerator == other:
        return 1.0
    if own is None or its is None:
        return inf
    if own is its:
        return _SIBLING
    # Jobs are written for the arithmetic of training; where the other type lacks one, it does what it is rated for.
    known = ((peak, name) for name, peak in own.peaks if name in get_args(Precision))
    peaks = (peak / (peak_of(its.peaks, name) or its.flops_per_s) for peak, name in known)
    return max(1.0, own.memory_bytes_per_s / its.memory_bytes_per_s, *peaks)


def allowed_speeds(
    known: Mapping[Gang, float], accelerator: str, count: int, sheets: Mapping[str, AcceleratorSpecs]
) -> tuple[float, float]:
    """Returns the least and the most steps per second of a gang beside known speeds of the kind, by data sheets.

    A larger gang is faster at most by its size.
    """
    least, most = 0.0, inf
    for (other, many), speed in known.items():
        most = min(most, speed * times_at_most(sheets, accelerator, other) * max(1.0, count / many))
        slower = times_at_most(sheets, other, accelerator) * max(1.0, many / count)
        least = max(least, speed / slower if isfinite(slower) else 0.0)
    return least, most
