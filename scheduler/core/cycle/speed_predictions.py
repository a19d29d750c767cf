"""Predicted speeds of unmeasured cells (kind, accelerator, count): the question to predictors, and its answer. Pure.

A server predicts in another process and sends the core a `SpeedsPredicted`, which the journal keeps, so a replay
needs no predictor. Cells of a kind without any measurement and without model facts are not asked about; the
throughput table has a rule for those. `ModelFactsPredictor` is the analytic predictor (roofline and all-reduce) for
kinds whose model facts are known; networks between machines are as gangs measured them on the pools of a type, or as
slow as the slowest measured anywhere.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from statistics import median

from optimizer.prediction.boosted_trees import BoostedTrees
from optimizer.prediction.ensemble import Ensemble, PredictionOutcome, predictions_by_model
from optimizer.prediction.predictor import (
    AcceleratorSpecs,
    CannotPredict,
    KindFacts,
    Layout,
    Observation,
    Prediction,
    Predictor,
    SpeedCell,
)
from optimizer.prediction.step_time import RooflineModel, RooflinePredictor
from optimizer.prediction.table_predictors import MatrixCompletion, RatioPredictor, sheet_speed
from scheduler.core.speed_events import Guess, PredictedSpeed
from scheduler.core.state.ledger import Ledger
from scheduler.core.state.throughput import MeasuredCell, ScoredBelief, SpeedSource
from walras.job_request import Kind
from walras.model_facts import ModelFacts

#: A cell of the table.
CellKey = tuple[Kind, str, int]
#: Kinds with facts that are taken into one question, the newest of them; and declared speeds.
_KINDS_MOST, _DECLARED_MOST = 500, 1000


@dataclass(frozen=True, slots=True)
class ModelKnowledge:
    """Model facts of kinds, declared speeds, gang sizes and networks: what the analytic predictor needs."""

    kinds: tuple[tuple[Kind, ModelFacts], ...] = ()
    #: Speeds that submitters declared of these kinds, where nothing of the kind was measured.
    declared: tuple[MeasuredCell, ...] = ()
    #: Cells that lie on more than one machine, and on how many.
    machines: tuple[tuple[CellKey, int], ...] = ()
    #: Bytes per second between machines with this accelerator.
    networks: tuple[tuple[str, float], ...] = ()


def model_knowledge(ledger: Ledger, known: Sequence[MeasuredCell], wanted: Iterable[CellKey]) -> ModelKnowledge:
    """What the ledger knows that a question about these cells needs. `known`: the measured ones that it goes by."""
    kinds = {kind: facts for kind in ledger.facts.kinds()[-_KINDS_MOST:] if (facts := ledger.facts.of(kind))}
    if not kinds:
        return ModelKnowledge()
    seen = {each.kind for each in known}
    stated = (each for each in ledger.table.known(SpeedSource.DECLARED) if each.kind in kinds and each.kind not in seen)
    declared = tuple(islice(stated, _DECLARED_MOST))
    cells = [(each.kind, each.accelerator, each.count) for each in (*known, *declared)]
    gangs = _GangMachines(ledger)
    spread = {key: gangs.machines(key) for key in (*cells, *wanted) if key[0] in kinds and key[2] > 1}
    return ModelKnowledge(
        tuple(kinds.items()),
        declared,
        tuple((key, machines) for key, machines in spread.items() if machines > 1),
        tuple(sorted(_networks(ledger).items())),
    )


class _GangMachines:
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
            self._nodes[kind] = min((each.request.nodes for each in self._classes.of(kind)), default=1)
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
class ModelFactsPredictor:
    """Analytic (roofline and all-reduce) predictor. Skips accelerators that are not in `accelerators`.

    `is_rated`: the accelerators' figures are ratings, usable only as ratios.
    """

    knowledge: ModelKnowledge
    accelerators: Mapping[str, AcceleratorSpecs]
    is_rated: bool = False
    law: RooflinePredictor = field(default_factory=RooflinePredictor)

    @property
    def name(self) -> str:
        return self.law.name

    def fit(self, observations: Sequence[Observation]) -> "FittedModelFacts":
        """Raises CannotPredict where no kind has facts."""
        cells = _Cells(self.knowledge, self.accelerators)
        seen = {observation.cell.kind.name for observation in observations}
        stated = [
            Observation(cells.of(each.kind, each.accelerator, each.count), each.steps_per_s)
            for each in self.knowledge.declared
            if each.kind not in seen and cells.knows(each.kind, each.accelerator)
        ]
        measured = [
            replace(observation, cell=cells.like(observation.cell))
            for observation in observations
            if cells.knows(observation.cell.kind.name, observation.cell.accelerator.name)
        ]
        model = self.law.fit([*measured, *stated])
        return FittedModelFacts(cells, model, frozenset(model.of_kind) if self.is_rated else None)


@dataclass(frozen=True, slots=True, eq=False)
class FittedModelFacts:
    """How far kinds stay behind their facts."""

    cells: "_Cells"
    model: RooflineModel
    #: Kinds that may be predicted; None: all with facts.
    only: frozenset[str] | None

    def predict(self, cell: SpeedCell) -> Prediction:
        if self.only is not None and cell.kind.name not in self.only:
            raise CannotPredict(
                f"no speed of {cell.kind.name} was measured, and no data sheet of an accelerator is known"
            )
        if not self.cells.knows(cell.kind.name, cell.accelerator.name):
            raise CannotPredict(f"the FLOPs of {cell.kind.name} or its peak on {cell.accelerator.name} are unknown")
        return self.model.predict(self.cells.like(cell))


class _Cells:
    """Cells with all that is known of kind, accelerator and network."""

    def __init__(self, knowledge: ModelKnowledge, accelerators: Mapping[str, AcceleratorSpecs]) -> None:
        self._kinds: dict[str, ModelFacts] = dict(knowledge.kinds)
        self._machines = dict(knowledge.machines)
        networks = dict(knowledge.networks)
        self._accelerators = {
            name: replace(facts, network_bytes_per_s=networks.get(name)) for name, facts in accelerators.items()
        }

    def knows(self, kind: str, accelerator: str) -> bool:
        """Whether the kind's FLOPs and the accelerator's peak are known."""
        facts, of_type = self._kinds.get(kind), self._accelerators.get(accelerator)
        if facts is None or of_type is None or facts.flops_per_sample is None:
            return False
        return of_type.doing(facts.precision) is not None

    def like(self, cell: SpeedCell) -> SpeedCell:
        """The same cell with the facts that are known of it."""
        return self.of(Kind(cell.kind.name), cell.accelerator.name, cell.layout.accelerators)

    def of(self, kind: Kind, accelerator: str, count: int) -> SpeedCell:
        """Only of what it `knows`."""
        facts = self._kinds[kind]
        own = self._accelerators[accelerator].doing(facts.precision)
        assert own is not None, "it is known"
        layout = Layout(facts.samples(count), count, self._machines.get((kind, accelerator, count), 1))
        return SpeedCell(KindFacts.of(kind, facts), own, layout)


#: Cells asked about at once, measured ones learned from, and outcomes remembered: what a fit of seconds can take.
WANTED_MOST, KNOWN_MOST, PAST_MOST = 4000, 2000, 2000
#: An accelerator of nominal speed 1, where no data sheet is known: only ratios of these matter.
_FLOPS_PER_S, _BYTES_PER_S = 1e13, 1e12
#: FLOPs of a sample where none were counted; each accelerator is assumed to take one sample a step.
_FLOPS = 1e9


@dataclass(frozen=True, slots=True)
class DataWait:
    """In which part of its steps a kind waits for its data, from 0 to 1, on the accelerators where that was seen."""

    kind: Kind
    accelerator: str
    count: int
    share: float


@dataclass(frozen=True, slots=True)
class PredictionQuestion:
    """What was measured, and what is wanted. `nominal`: by accelerator type, as an administrator rates it."""

    known: tuple[MeasuredCell, ...]
    wanted: tuple[tuple[Kind, str, int], ...]
    nominal: tuple[tuple[str, float], ...]
    past: tuple[ScoredBelief, ...]
    #: Of kinds whose facts are known.
    facts: ModelKnowledge = field(default_factory=ModelKnowledge)
    data_waits: tuple[DataWait, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.wanted

    @property
    def types(self) -> list[str]:
        """Accelerators that it is about."""
        known = {each.accelerator for each in (*self.known, *self.facts.declared)}
        return sorted(known | {accelerator for _, accelerator, _ in self.wanted})


def prediction_versions(ledger: Ledger) -> tuple[int, int, int]:
    """Others than before wherever another question may be due."""
    return ledger.classes.version, ledger.facts.version, ledger.networks.version


def prediction_question(ledger: Ledger, past: Sequence[ScoredBelief]) -> PredictionQuestion:
    """What is to be predicted now. `past`: what was believed before this core began, and what was measured then."""
    known = tuple(islice(ledger.table.known(), KNOWN_MOST))[::-1]
    # A kind whose measured cells are not among those is left to what the table scales from them.
    by_facts = (kind for kind in ledger.facts.kinds() if not ledger.table.is_measured(kind))
    kinds = {each.kind for each in known} | set(by_facts)
    pools = [(pool.row, pool.pool.shape.accelerator) for pool in ledger.fleet.pools]
    wanted: dict[tuple[Kind, str, int], None] = {}
    for job_class in ledger.classes.classes:
        if job_class.kind not in kinds or len(wanted) >= WANTED_MOST:
            continue
        counts = ledger.classes.shapes[job_class.shape].counts
        for row, accelerator in pools:
            if counts[row] and not job_class.measured[row]:
                wanted[job_class.kind, accelerator, counts[row]] = None
    nominal = tuple(sorted(ledger.classes.nominal.items()))
    scored = (*past, *ledger.table.scored())[-PAST_MOST:]
    return PredictionQuestion(known, tuple(wanted), nominal, scored, model_knowledge(ledger, known, wanted))


def predict_speeds(question: PredictionQuestion, sheets: Mapping[str, AcceleratorSpecs]) -> tuple[PredictedSpeed, ...]:
    """Predicts every wanted cell for which a predictor has an answer. `sheets`: data sheets of accelerators."""
    facts = _Facts(question, sheets)
    observations = [
        Observation(facts.cell(each.kind, each.accelerator, each.count), each.steps_per_s, each.spread, each.samples)
        for each in question.known
    ]
    fusion = Ensemble(_predictors(question, sheets), tuple(_outcomes(question.past)))
    try:
        model = fusion.fit(observations)
    except CannotPredict:
        return ()
    cells = [facts.cell(*wanted) for wanted in question.wanted]
    predictions = predictions_by_model(model.models, cells)
    found = []
    for place, (wanted, fused) in enumerate(zip(question.wanted, model.fused(predictions, cells), strict=True)):
        if fused is not None:
            each = ((name, predictions[name][place]) for name in sorted(predictions))
            parts = tuple(_guess(name, prediction) for name, prediction in each if prediction is not None)
            found.append(PredictedSpeed(*wanted, _guess(fusion.name, fused), parts))
    return _data_bound(question, found)


def _data_bound(question: PredictionQuestion, found: Iterable[PredictedSpeed]) -> tuple[PredictedSpeed, ...]:
    """The same, where the wait for data is of a known length: it lasts as long on any accelerator.

    Only of kinds that were measured on one type: speeds on two have it in them already.
    """
    types: dict[Kind, set[str]] = {}
    for cell in question.known:
        types.setdefault(cell.kind, set()).add(cell.accelerator)
    step_s = {(cell.kind, cell.accelerator, cell.count): 1.0 / cell.steps_per_s for cell in question.known}
    seen = {
        wait.kind: (wait.share, step_s[wait.kind, wait.accelerator, wait.count])
        for wait in question.data_waits
        if types.get(wait.kind) == {wait.accelerator} and (wait.kind, wait.accelerator, wait.count) in step_s
    }
    return tuple(
        speed
        if (wait := seen.get(speed.kind)) is None
        else replace(
            speed,
            fused=_waiting(speed.fused, *wait),
            parts=tuple(_waiting(part, *wait) for part in speed.parts),
        )
        for speed in found
    )


def _waiting(guess: Guess, share: float, step_s: float) -> Guess:
    """A guess of the whole step's speed, where that share of a step of this length (seconds) does not scale."""
    bounds = (guess.steps_per_s, guess.low, guess.high)
    found = [1.0 / (share * step_s + (1.0 - share) / speed) for speed in bounds]
    return Guess(guess.source, *found)


def _predictors(question: PredictionQuestion, sheets: Mapping[str, AcceleratorSpecs]) -> tuple[Predictor, ...]:
    """The analytic predictors by data sheets and ratings, and the learned ones.

    Nominal speeds that are all equal are mere defaults, so they do not compete with data sheets.
    """
    # Brings SciPy: half a second that only who predicts should pay.
    from optimizer.prediction.gaussian_process import GaussianProcess

    nominal = dict(question.nominal)
    rated = {name: sheet_speed(sheets[name]) for name in question.types if name in sheets}
    analytic = [RatioPredictor("sheets", rated)] if rated else []
    if len(rated) < len(question.types) or len(set(nominal.values())) > 1:
        analytic.append(RatioPredictor("nominal", nominal))
    by_facts = [_roofline(question, sheets)] if question.facts.kinds else []
    return (*analytic, *by_facts, MatrixCompletion(), GaussianProcess(), BoostedTrees())


def _roofline(question: PredictionQuestion, sheets: Mapping[str, AcceleratorSpecs]) -> ModelFactsPredictor:
    """On types with a data sheet; where a fleet has none at all, on types as they are rated against each other."""
    known = {name: sheets[name] for name in question.types if name in sheets}
    return ModelFactsPredictor(question.facts, known or _rated(question), is_rated=not known)


def _rated(question: PredictionQuestion) -> dict[str, AcceleratorSpecs]:
    """Types as an administrator rates them: only ratios of these facts mean something."""
    worth = {name: dict(question.nominal).get(name, 1.0) for name in question.types}
    return {name: AcceleratorSpecs(name, _FLOPS_PER_S * speed, _BYTES_PER_S * speed) for name, speed in worth.items()}


class _Facts:
    """The facts of cells for predictors: data sheets if all types have one, else nominal speeds for all types."""

    def __init__(self, question: PredictionQuestion, sheets: Mapping[str, AcceleratorSpecs]) -> None:
        is_known = all(name in sheets for name in question.types)
        self._of = {name: sheets[name] for name in question.types} if is_known else _rated(question)

    def cell(self, kind: Kind, accelerator: str, count: int) -> SpeedCell:
        return SpeedCell(KindFacts(kind, flops_per_sample=_FLOPS), self._of[accelerator], Layout(float(count), count))


def _outcomes(past: Iterable[ScoredBelief]) -> Iterable[PredictionOutcome]:
    """Of predictions that stated an interval: what fusion weighs its members by."""
    for each in past:
        if each.low is not None and each.high is not None and each.measured > 0:
            prediction = Prediction(each.predicted, each.low, each.high)
            yield PredictionOutcome(each.source, each.kind, each.accelerator, prediction, each.measured)


def _guess(source: str, prediction: Prediction) -> Guess:
    return Guess(source, prediction.steps_per_s, prediction.low, prediction.high)
