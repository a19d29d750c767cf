"""Speeds of cells that nobody measured, from all that was measured: what to ask, and the answer. Pure.

A server answers in another process and tells the core with a `SpeedsPredicted`, which the journal keeps: a replay needs
no predictor. Cells of a kind of which nothing was measured, and no facts are known, are not asked about; for those the
table has a rule.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from optimizer.performance.predicting.boosted import Boosted
from optimizer.performance.predicting.completion import Completion
from optimizer.performance.predicting.fusion import Fusion, Outcome, told_by
from optimizer.performance.predicting.observation import AcceleratorFacts, Cell, KindFacts, Layout, Observation
from optimizer.performance.predicting.predictor import CannotPredict, Prediction, Predictor
from optimizer.performance.predicting.ratios import Ratios, sheet_speed
from scheduler.core.ledger.ledger import Ledger
from scheduler.core.ledger.throughput import Known, Scored
from scheduler.core.speed_events import Guess, PredictedSpeed
from scheduler.core.speeds.by_facts import FromFacts, Told, told_of
from walras.ids import Kind

#: Cells asked about at once, measured ones learned from, and outcomes remembered: what a fit of seconds can take.
WANTED_MOST, KNOWN_MOST, PAST_MOST = 4000, 2000, 2000
#: An accelerator of nominal speed 1, where no data sheet is known: only ratios of these matter.
_FLOPS_PER_S, _BYTES_PER_S = 1e13, 1e12
#: What a job is taken to be where nobody counted: of each accelerator one sample a step.
_FLOPS = 1e9


@dataclass(frozen=True, slots=True)
class Question:
    """What was measured, and what is wanted. `nominal`: by accelerator type, as an administrator rates it."""

    known: tuple[Known, ...]
    wanted: tuple[tuple[Kind, str, int], ...]
    nominal: tuple[tuple[str, float], ...]
    past: tuple[Scored, ...]
    #: Of kinds whose facts are known.
    facts: Told = field(default_factory=Told)

    @property
    def is_empty(self) -> bool:
        return not self.wanted

    @property
    def types(self) -> list[str]:
        """Accelerators that it is about."""
        known = {each.accelerator for each in (*self.known, *self.facts.declared)}
        return sorted(known | {accelerator for _, accelerator, _ in self.wanted})


def news_of(ledger: Ledger) -> tuple[int, int, int]:
    """Others than before wherever another question may be due."""
    return ledger.classes.version, ledger.facts.version, ledger.networks.version


def question_of(ledger: Ledger, past: Sequence[Scored]) -> Question:
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
        counts = ledger.classes.forms[job_class.form].counts
        for row, accelerator in pools:
            if counts[row] and not job_class.measured[row]:
                wanted[job_class.kind, accelerator, counts[row]] = None
    nominal = tuple(sorted(ledger.classes.nominal.items()))
    scored = (*past, *ledger.table.scored())[-PAST_MOST:]
    return Question(known, tuple(wanted), nominal, scored, told_of(ledger, known, wanted))


def predict_speeds(question: Question, sheets: Mapping[str, AcceleratorFacts]) -> tuple[PredictedSpeed, ...]:
    """Of every wanted cell that some predictor can tell. `sheets`: facts of accelerators that a catalog knows."""
    facts = _Facts(question, sheets)
    observations = [
        Observation(facts.cell(each.kind, each.accelerator, each.count), each.steps_per_s, each.spread, each.samples)
        for each in question.known
    ]
    fusion = Fusion(_members(question, sheets), tuple(_outcomes(question.past)))
    try:
        model = fusion.fit(observations)
    except CannotPredict:
        return ()
    cells = [facts.cell(*wanted) for wanted in question.wanted]
    told = told_by(model.models, cells)
    found = []
    for place, (wanted, fused) in enumerate(zip(question.wanted, model.fused(told, cells), strict=True)):
        if fused is not None:
            each = ((name, told[name][place]) for name in sorted(told))
            parts = tuple(_guess(name, prediction) for name, prediction in each if prediction is not None)
            found.append(PredictedSpeed(*wanted, _guess(fusion.name, fused), parts))
    return tuple(found)


def _members(question: Question, sheets: Mapping[str, AcceleratorFacts]) -> tuple[Predictor, ...]:
    """The analytic ones by accelerators' worth, and those that learn.

    Nominal speeds that are all the same were given by nobody: they say nothing against data sheets.
    """
    # Brings SciPy: half a second that only who predicts should pay.
    from optimizer.performance.predicting.learned import Learned

    nominal = dict(question.nominal)
    rated = {name: sheet_speed(sheets[name]) for name in question.types if name in sheets}
    analytic = [Ratios("sheets", rated)] if rated else []
    if len(rated) < len(question.types) or len(set(nominal.values())) > 1:
        analytic.append(Ratios("nominal", nominal))
    by_facts = [_by_facts(question, sheets)] if question.facts.kinds else []
    return (*analytic, *by_facts, Completion(), Learned(), Boosted())


def _by_facts(question: Question, sheets: Mapping[str, AcceleratorFacts]) -> FromFacts:
    """On types with a data sheet; where a fleet has none at all, on types as they are rated against each other."""
    known = {name: sheets[name] for name in question.types if name in sheets}
    return FromFacts(question.facts, known or _rated(question), is_rated=not known)


def _rated(question: Question) -> dict[str, AcceleratorFacts]:
    """Types as an administrator rates them: only ratios of these facts mean something."""
    worth = {name: dict(question.nominal).get(name, 1.0) for name in question.types}
    return {name: AcceleratorFacts(name, _FLOPS_PER_S * speed, _BYTES_PER_S * speed) for name, speed in worth.items()}


class _Facts:
    """Cells as predictors see them: data sheets where all types have one, else nominal speeds for all of them."""

    def __init__(self, question: Question, sheets: Mapping[str, AcceleratorFacts]) -> None:
        is_known = all(name in sheets for name in question.types)
        self._of = {name: sheets[name] for name in question.types} if is_known else _rated(question)

    def cell(self, kind: Kind, accelerator: str, count: int) -> Cell:
        return Cell(KindFacts(kind, flops_per_sample=_FLOPS), self._of[accelerator], Layout(float(count), count))


def _outcomes(past: Iterable[Scored]) -> Iterable[Outcome]:
    """Of predictions that stated an interval: what fusion weighs its members by."""
    for each in past:
        if each.low is not None and each.high is not None and each.measured > 0:
            prediction = Prediction(each.predicted, each.low, each.high)
            yield Outcome(each.source, each.kind, each.accelerator, prediction, each.measured)


def _guess(source: str, prediction: Prediction) -> Guess:
    return Guess(source, prediction.steps_per_s, prediction.low, prediction.high)
