"""Predicted speeds of unmeasured cells (kind, accelerator, count): the question to predictors, and its answer. Pure.

A server predicts in another process and sends the core a `SpeedsPredicted`, which the journal keeps, so a replay needs
no predictor. Cells of a kind with neither measurements nor model facts are not asked about; the throughput table has a
rule for them. `ModelFactsPredictor` is the analytic predictor (roofline and all-reduce) for kinds whose model facts are
known. The bandwidth between machines of a type is the median that gangs measured on its pools, else the slowest
measured anywhere.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from statistics import median

from optimizer.prediction.ensemble import Ensemble, EnsembleModel, PredictionOutcome, predictions_by_model
from optimizer.prediction.predictor import (
    AcceleratorSpecs,
    CannotPredict,
    CellChooser,
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
from walras.job_request import Kind, project_of
from walras.model_facts import ModelFacts
from walras.spec.accelerator_names import sheet_names

#: A cell of the throughput table: kind, accelerator type, accelerators.
CellKey = tuple[Kind, str, int]
#: Maximum of kinds with facts in one question (the newest), and of declared speeds.
_KINDS_MOST, _DECLARED_MOST = 500, 1000


@dataclass(frozen=True, slots=True)
class ModelKnowledge:
    """Model facts of kinds, declared speeds, gang sizes and networks: the input of the analytic predictor."""

    kinds: tuple[tuple[Kind, ModelFacts], ...] = ()
    #: Speeds that submitters declared for these kinds, if no speed of the kind was measured.
    declared: tuple[MeasuredCell, ...] = ()
    #: Cells whose gangs need more than one machine, and how many machines.
    machines: tuple[tuple[CellKey, int], ...] = ()
    #: Bandwidth that the project measured between machines with this accelerator, bytes per second.
    networks: tuple[tuple[str, str, float], ...] = ()


def model_knowledge(ledger: Ledger, known: Sequence[MeasuredCell], wanted: Iterable[CellKey]) -> ModelKnowledge:
    """Returns what a prediction of these cells needs of the ledger. `known` are the measured cells asked with."""
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
        tuple((project, *each) for project in ledger.networks.projects() for each in _networks(ledger, project)),
    )


class _GangMachines:
    """Finds over how many machines gangs of a kind are spread."""

    def __init__(self, ledger: Ledger) -> None:
        self._classes = ledger.classes
        #: Accelerators of the largest machine by type; fewest machines that a kind's jobs ask for.
        self._sizes: dict[str, int] = {}
        self._nodes: dict[Kind, int] = {}
        for pool in ledger.fleet.pools:
            shape = pool.pool.shape
            self._sizes[shape.accelerator] = max(shape.accelerators, self._sizes.get(shape.accelerator, 0))

    def machines(self, key: CellKey) -> int:
        """Returns the fewest machines of the type that hold such a gang of the kind."""
        kind, accelerator, count = key
        if kind not in self._nodes:
            self._nodes[kind] = min((each.request.nodes for each in self._classes.of(kind)), default=1)
        return min(count, max(self._nodes[kind], -(-count // self._sizes.get(accelerator, count))))


def _networks(ledger: Ledger, project: str) -> list[tuple[str, float]]:
    """Returns bytes per second by accelerator type, rounded to two digits so that noise causes no new question."""
    got: dict[str, list[float]] = {}
    for pool in ledger.fleet.pools:
        planned = ledger.networks.planned(project, pool.pool.pool_id)
        got.setdefault(pool.pool.shape.accelerator, []).extend([] if planned is None else [planned])
    every = [speed for speeds in got.values() for speed in speeds]
    if not every:
        return []
    return sorted((name, float(f"{median(speeds) if speeds else min(every):.2g}")) for name, speeds in got.items())


@dataclass(frozen=True, slots=True)
class ModelFactsPredictor:
    """Analytic predictor (roofline and all-reduce). It skips accelerators that are not in `accelerators`.

    `is_rated`: the accelerators' figures are ratings, of which only ratios mean something.
    """

    knowledge: ModelKnowledge
    accelerators: Mapping[str, AcceleratorSpecs]
    is_rated: bool = False
    law: RooflinePredictor = field(default_factory=RooflinePredictor)

    @property
    def name(self) -> str:
        return self.law.name

    def fit(self, observations: Sequence[Observation]) -> "FittedModelFacts":
        """Fits to measured and declared speeds. Raises CannotPredict if no kind has facts."""
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
    """The fitted predictor: by which factor each kind is slower than its facts say."""

    cells: "_Cells"
    model: RooflineModel
    #: Kinds that may be predicted; None: all kinds with facts.
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
    """Makes cells with all known facts of kind, accelerator and network."""

    def __init__(self, knowledge: ModelKnowledge, accelerators: Mapping[str, AcceleratorSpecs]) -> None:
        self._kinds: dict[str, ModelFacts] = dict(knowledge.kinds)
        self._machines = dict(knowledge.machines)
        networks = {accelerator: speed for _, accelerator, speed in knowledge.networks}
        self._accelerators = {
            name: replace(facts, network_bytes_per_s=networks.get(name)) for name, facts in accelerators.items()
        }

    def knows(self, kind: str, accelerator: str) -> bool:
        """Returns whether the kind's FLOPs and the accelerator's peak are known."""
        facts, of_type = self._kinds.get(kind), self._accelerators.get(accelerator)
        if facts is None or of_type is None or facts.flops_per_sample is None:
            return False
        return of_type.doing(facts.precision) is not None

    def like(self, cell: SpeedCell) -> SpeedCell:
        """Returns the same cell with the facts that are known of it."""
        return self.of(Kind(cell.kind.name), cell.accelerator.name, cell.layout.accelerators)

    def of(self, kind: Kind, accelerator: str, count: int) -> SpeedCell:
        """Returns a cell with its facts. Only for kinds and accelerators that `knows` accepts."""
        facts = self._kinds[kind]
        own = self._accelerators[accelerator].doing(facts.precision)
        assert own is not None, "it is known"
        layout = Layout(facts.samples(count), count, self._machines.get((kind, accelerator, count), 1))
        return SpeedCell(KindFacts.of(kind, facts), own, layout)


#: Cells of a new accelerator to measure before others, and of how many they are chosen.
_FIRST_CELLS, _FIRST_OF_MOST = 3, 300
#: Limits of one question: cells asked about, measured cells, and past outcomes. They bound a fit to seconds.
WANTED_MOST, KNOWN_MOST, PAST_MOST = 4000, 2000, 2000
#: Peak of an accelerator of nominal speed 1 without a data sheet. Only ratios matter, so the figures are arbitrary.
_FLOPS_PER_S, _BYTES_PER_S = 1e13, 1e12
#: FLOPs of a sample whose FLOPs were not counted; each accelerator is assumed to process one sample per step.
_FLOPS = 1e9


@dataclass(frozen=True, slots=True)
class DataWait:
    """Fraction (0 to 1) of its steps that a kind waits for input data, on accelerators where that was measured."""

    kind: Kind
    accelerator: str
    count: int
    share: float


@dataclass(frozen=True, slots=True)
class PredictionQuestion:
    """Measured cells and wanted cells. `nominal` are an administrator's ratings by accelerator type."""

    known: tuple[MeasuredCell, ...]
    wanted: tuple[tuple[Kind, str, int], ...]
    nominal: tuple[tuple[str, float], ...]
    past: tuple[ScoredBelief, ...]
    #: Facts about kinds whose model facts are known.
    facts: ModelKnowledge = field(default_factory=ModelKnowledge)
    data_waits: tuple[DataWait, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.wanted

    @property
    def types(self) -> list[str]:
        """Returns the accelerator types that occur in the question."""
        known = {each.accelerator for each in (*self.known, *self.facts.declared)}
        return sorted(known | {accelerator for _, accelerator, _ in self.wanted})


def prediction_versions(ledger: Ledger) -> tuple[int, int, int]:
    """Returns version numbers that change whenever another question may be due."""
    return ledger.classes.version, ledger.facts.version, ledger.networks.version


def prediction_question(ledger: Ledger, past: Sequence[ScoredBelief]) -> PredictionQuestion:
    """Returns what is to be predicted now. `past` are predictions older than this core, with what was measured."""
    known = tuple(islice(ledger.table.known(), KNOWN_MOST))[::-1]
    # A kind whose measured cells are beyond the limit is left to the throughput table, which scales its speeds.
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
    """Returns predictions of the wanted cells that a predictor can answer. `sheets`: data sheets by canonical name; a
    type that a driver named otherwise (`h100-80gb`) has that of its short name.

    Each project's kinds are predicted from what its own jobs told: no claim of another project moves its jobs.
    """
    projects = dict.fromkeys(project_of(kind) for kind, _, _ in question.wanted)
    parts = (_predict_within(_of_project(question, project), sheets) for project in projects)
    return tuple(speed for part in parts for speed in part)


def _of_project(question: PredictionQuestion, project: str) -> PredictionQuestion:
    """Returns the part of the question that is about kinds of the project."""
    facts = replace(
        question.facts,
        kinds=tuple(each for each in question.facts.kinds if project_of(each[0]) == project),
        declared=tuple(each for each in question.facts.declared if project_of(each.kind) == project),
        networks=tuple(each for each in question.facts.networks if each[0] == project),
    )
    return replace(
        question,
        known=tuple(each for each in question.known if project_of(each.kind) == project),
        wanted=tuple(each for each in question.wanted if project_of(each[0]) == project),
        past=tuple(each for each in question.past if project_of(each.kind) == project),
        facts=facts,
        data_waits=tuple(each for each in question.data_waits if project_of(each.kind) == project),
    )


def _predict_within(question: PredictionQuestion, sheets: Mapping[str, AcceleratorSpecs]) -> tuple[PredictedSpeed, ...]:
    """Returns the predictions of one project's cells."""
    sheets = _by_type(question.types, sheets)
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
    first = _measured_first(model, question, cells)
    found = []
    for place, (wanted, fused) in enumerate(zip(question.wanted, model.fused(predictions, cells), strict=True)):
        if fused is not None:
            each = ((name, predictions[name][place]) for name in sorted(predictions))
            parts = tuple(_guess(name, prediction) for name, prediction in each if prediction is not None)
            found.append(PredictedSpeed(*wanted, _guess(fusion.name, fused), parts, place in first))
    return _data_bound(question, found)


def _measured_first(model: EnsembleModel, question: PredictionQuestion, cells: Sequence[SpeedCell]) -> set[int]:
    """Returns the places of the few cells that tell most of each accelerator of which few were measured."""
    learned = model.models.get("learned")
    wanted: dict[str, list[int]] = {}
    for place, (_, accelerator, _) in enumerate(question.wanted):
        wanted.setdefault(accelerator, []).append(place)
    measured = Counter(each.accelerator for each in question.known)
    found: set[int] = set()
    for accelerator, places in wanted.items():
        if isinstance(learned, CellChooser) and (left := _FIRST_CELLS - measured[accelerator]) > 0:
            few = places[:_FIRST_OF_MOST]
            found.update(few[each] for each in learned.most_telling([cells[place] for place in few], left))
    return found


def _by_type(types: Iterable[str], sheets: Mapping[str, AcceleratorSpecs]) -> dict[str, AcceleratorSpecs]:
    named = ((each, next((name for name in sheet_names(each) if name in sheets), None)) for each in types)
    return {each: replace(sheets[name], name=each) for each, name in named if name is not None}


def _data_bound(question: PredictionQuestion, found: Iterable[PredictedSpeed]) -> tuple[PredictedSpeed, ...]:
    """Returns the predictions corrected for the wait for data, which takes the same seconds on any accelerator.

    Corrects only kinds that were measured on one type: speeds measured on two types contain the wait already.
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
    """Returns a guess for the whole step, of whose `step_s` seconds the fraction `share` does not scale."""
    bounds = (guess.steps_per_s, guess.low, guess.high)
    found = [1.0 / (share * step_s + (1.0 - share) / speed) for speed in bounds]
    return Guess(guess.source, *found)


def _predictors(question: PredictionQuestion, sheets: Mapping[str, AcceleratorSpecs]) -> tuple[Predictor, ...]:
    """Returns the analytic predictors by data sheets and ratings, and the learned ones.

    If all nominal speeds are equal they are mere defaults, so they do not compete with data sheets.
    """
    # Imported here because it loads SciPy, which takes half a second.
    from optimizer.prediction.gaussian_process import GaussianProcess

    nominal = dict(question.nominal)
    rated = {name: sheet_speed(sheets[name]) for name in question.types if name in sheets}
    analytic = [RatioPredictor("sheets", rated)] if rated else []
    if len(rated) < len(question.types) or len(set(nominal.values())) > 1:
        analytic.append(RatioPredictor("nominal", nominal))
    by_facts = [_roofline(question, sheets)] if question.facts.kinds else []
    return (*analytic, *by_facts, MatrixCompletion(), GaussianProcess())


def _roofline(question: PredictionQuestion, sheets: Mapping[str, AcceleratorSpecs]) -> ModelFactsPredictor:
    """Returns the roofline predictor: for types with a data sheet, or by ratings for all types if none has one."""
    known = {name: sheets[name] for name in question.types if name in sheets}
    return ModelFactsPredictor(question.facts, known or _rated(question), is_rated=not known)


def _rated(question: PredictionQuestion) -> dict[str, AcceleratorSpecs]:
    """Returns types with specifications made from an administrator's ratings: only their ratios mean something."""
    worth = {name: dict(question.nominal).get(name, 1.0) for name in question.types}
    return {name: AcceleratorSpecs(name, _FLOPS_PER_S * speed, _BYTES_PER_S * speed) for name, speed in worth.items()}


class _Facts:
    """Facts of cells for predictors: data sheets if all types have one, else nominal speeds for all types."""

    def __init__(self, question: PredictionQuestion, sheets: Mapping[str, AcceleratorSpecs]) -> None:
        is_known = all(name in sheets for name in question.types)
        self._of = {name: sheets[name] for name in question.types} if is_known else _rated(question)

    def cell(self, kind: Kind, accelerator: str, count: int) -> SpeedCell:
        return SpeedCell(KindFacts(kind, flops_per_sample=_FLOPS), self._of[accelerator], Layout(float(count), count))


def _outcomes(past: Iterable[ScoredBelief]) -> Iterable[PredictionOutcome]:
    """Yields outcomes of predictions that stated an interval; the ensemble weighs its members by them."""
    for each in past:
        if each.low is not None and each.high is not None and each.measured > 0:
            prediction = Prediction(each.predicted, each.low, each.high)
            yield PredictionOutcome(each.source, each.kind, each.accelerator, prediction, each.measured)


def _guess(source: str, prediction: Prediction) -> Guess:
    return Guess(source, prediction.steps_per_s, prediction.low, prediction.high)
