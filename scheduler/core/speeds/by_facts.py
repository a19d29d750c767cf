"""Speeds from facts of a kind: roofline and all-reduce (`predicting/analytic.py`) as one of the predictors.

The other predictors know a cell by kind, accelerator and count alone; here it becomes a cell of a real model on real
machines. Networks between machines are as gangs measured them on the pools of a type; where none did, as slow as the
slowest that was measured anywhere.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from statistics import median

from optimizer.performance.predicting.analytic import Analytic, AnalyticModel
from optimizer.performance.predicting.observation import AcceleratorFacts, Cell, KindFacts, Layout, Observation
from optimizer.performance.predicting.predictor import CannotPredict, Prediction
from scheduler.core.ledger.ledger import Ledger
from scheduler.core.ledger.throughput import Known, Source
from walras.ids import Kind
from walras.model_facts import ModelFacts

#: A cell of the table.
CellKey = tuple[Kind, str, int]
#: Kinds with facts that are taken into one question, the newest of them; and declared speeds.
_KINDS_MOST, _DECLARED_MOST = 500, 1000


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of kinds and networks besides speeds."""

    kinds: tuple[tuple[Kind, ModelFacts], ...] = ()
    #: Speeds that submitters declared of these kinds, where nothing of the kind was measured.
    declared: tuple[Known, ...] = ()
    #: Cells that lie on more than one machine, and on how many.
    machines: tuple[tuple[CellKey, int], ...] = ()
    #: Bytes per second between machines with this accelerator.
    networks: tuple[tuple[str, float], ...] = ()


def told_of(ledger: Ledger, known: Sequence[Known], wanted: Iterable[CellKey]) -> Told:
    """What the ledger knows that a question about these cells needs. `known`: the measured ones that it goes by."""
    kinds = {kind: facts for kind in ledger.facts.kinds()[-_KINDS_MOST:] if (facts := ledger.facts.of(kind))}
    if not kinds:
        return Told()
    seen = {each.kind for each in known}
    stated = (each for each in ledger.table.known(Source.DECLARED) if each.kind in kinds and each.kind not in seen)
    declared = tuple(islice(stated, _DECLARED_MOST))
    cells = [(each.kind, each.accelerator, each.count) for each in (*known, *declared)]
    gangs = _Gangs(ledger)
    spread = {key: gangs.machines(key) for key in (*cells, *wanted) if key[0] in kinds and key[2] > 1}
    return Told(
        tuple(kinds.items()),
        declared,
        tuple((key, machines) for key, machines in spread.items() if machines > 1),
        tuple(sorted(_networks(ledger).items())),
    )


class _Gangs:
    """Over how many machines gangs lie."""

    def __init__(self, ledger: Ledger) -> None:
        self._classes = ledger.classes
        #: Accelerators of the largest machine of a type; machines that a kind's gang is spread over at least.
        self._sizes: dict[str, int] = {}
        self._nodes: dict[Kind, int] = {}
        for pool in ledger.fleet.pools:
            shape = pool.pool.shape
            self._sizes[shape.accelerator] = max(shape.accelerators, self._sizes.get(shape.accelerator, 0))

    def machines(self, key: CellKey) -> int:
        """Fewest machines of the type that hold such a gang of the kind."""
        kind, accelerator, count = key
        if kind not in self._nodes:
            self._nodes[kind] = min((each.nodes for each in self._classes.of(kind)), default=1)
        return min(count, max(self._nodes[kind], -(-count // self._sizes.get(accelerator, count))))


def _networks(ledger: Ledger) -> dict[str, float]:
    """By accelerator type; two digits, so that noise asks no question again."""
    got: dict[str, list[float]] = {}
    for pool in ledger.fleet.pools:
        planned = ledger.networks.planned(pool.pool.pool_id)
        got.setdefault(pool.pool.shape.accelerator, []).extend([] if planned is None else [planned])
    every = [speed for speeds in got.values() for speed in speeds]
    if not every:
        return {}
    return {name: float(f"{median(speeds) if speeds else min(every):.2g}") for name, speeds in got.items()}


@dataclass(frozen=True, slots=True)
class FromFacts:
    """The predictor. `accelerators`: their facts; others are not told of. `is_rated`: only ratios of them are true."""

    told: Told
    accelerators: Mapping[str, AcceleratorFacts]
    is_rated: bool = False
    law: Analytic = field(default_factory=Analytic)

    @property
    def name(self) -> str:
        return self.law.name

    def fit(self, observations: Sequence[Observation]) -> "FromFactsModel":
        """Raises CannotPredict where no kind has facts."""
        cells = _Cells(self.told, self.accelerators)
        seen = {observation.cell.kind.name for observation in observations}
        stated = [
            Observation(cells.of(each.kind, each.accelerator, each.count), each.steps_per_s)
            for each in self.told.declared
            if each.kind not in seen and cells.knows(each.kind, each.accelerator)
        ]
        measured = [
            replace(observation, cell=cells.like(observation.cell))
            for observation in observations
            if cells.knows(observation.cell.kind.name, observation.cell.accelerator.name)
        ]
        model = self.law.fit([*measured, *stated])
        return FromFactsModel(cells, model, frozenset(model.of_kind) if self.is_rated else None)


@dataclass(frozen=True, slots=True, eq=False)
class FromFactsModel:
    """How far kinds stay behind their facts."""

    cells: "_Cells"
    model: AnalyticModel
    #: Kinds that may be told of; None: all with facts.
    only: frozenset[str] | None

    def predict(self, cell: Cell) -> Prediction:
        if self.only is not None and cell.kind.name not in self.only:
            raise CannotPredict(
                f"no speed of {cell.kind.name} was measured, and no data sheet of an accelerator is known"
            )
        if not self.cells.knows(cell.kind.name, cell.accelerator.name):
            raise CannotPredict(f"the FLOPs of {cell.kind.name} or its peak on {cell.accelerator.name} are unknown")
        return self.model.predict(self.cells.like(cell))


class _Cells:
    """Cells with all that is known of kind, accelerator and network."""

    def __init__(self, told: Told, accelerators: Mapping[str, AcceleratorFacts]) -> None:
        self._kinds: dict[str, ModelFacts] = dict(told.kinds)
        self._machines = dict(told.machines)
        networks = dict(told.networks)
        self._accelerators = {
            name: replace(facts, network_bytes_per_s=networks.get(name)) for name, facts in accelerators.items()
        }

    def knows(self, kind: str, accelerator: str) -> bool:
        """Whether there is anything to tell from."""
        facts, of_type = self._kinds.get(kind), self._accelerators.get(accelerator)
        if facts is None or of_type is None or facts.flops_per_sample is None:
            return False
        return of_type.doing(facts.precision) is not None

    def like(self, cell: Cell) -> Cell:
        """The same with facts."""
        return self.of(Kind(cell.kind.name), cell.accelerator.name, cell.layout.accelerators)

    def of(self, kind: Kind, accelerator: str, count: int) -> Cell:
        """Only of what it `knows`."""
        facts = self._kinds[kind]
        own = self._accelerators[accelerator].doing(facts.precision)
        assert own is not None, "it is known"
        layout = Layout(facts.samples(count), count, self._machines.get((kind, accelerator, count), 1))
        return Cell(KindFacts.of(kind, facts), own, layout)
