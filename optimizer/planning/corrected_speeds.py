"""Training speeds on which a plan relies.

The speeds come from the predictors; where the predictors know too little of a job, its latest observation answers
instead. If the job runs already, its measured speed corrects all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optimizer.planning.machine_setups import CandidateMachine, RemainingWork
from optimizer.prediction.affine_law import AffinePredictor
from optimizer.prediction.boosted_trees import BoostedTrees
from optimizer.prediction.ensemble import Ensemble
from optimizer.prediction.predictor import (
    Z80,
    CannotPredict,
    Layout,
    Observation,
    Prediction,
    SpeedCell,
    SpeedModel,
)
from optimizer.prediction.step_time import RooflinePredictor

#: Relative spread between machines of one type, however precisely one of them was measured.
_LEAST_SPREAD = 0.1


def fit_speed_model(observations: Sequence[Observation]) -> SpeedModel:
    """Returns the ensemble of predictors, each weighted by its accuracy on these observations."""
    # This import brings in SciPy, which takes half a second: only callers that predict pay for it.
    from optimizer.prediction.gaussian_process import GaussianProcess

    return Ensemble((RooflinePredictor(), AffinePredictor(), GaussianProcess(), BoostedTrees())).fit(observations)


@dataclass(frozen=True, slots=True)
class ObservedCells:
    """A speed model that answers with an observation where the predictors know too little of the job."""

    model: SpeedModel
    #: By kind of job, accelerator and layout; the last of several observations counts.
    observed: Mapping[tuple[str, str, Layout], Observation]

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> "ObservedCells":
        found = {_place_of(each.cell): each for each in observations}
        return cls(fit_speed_model(observations), found)

    def predict(self, cell: SpeedCell) -> Prediction:
        """Predicts steps per second. Raises CannotPredict where neither the predictors nor an observation know the
        cell.
        """
        try:
            return self.model.predict(cell)
        except CannotPredict:
            known = self.observed.get(_place_of(cell))
            if known is None:
                raise
            return _as_measured(known.steps_per_s, Z80 * known.spread)


@dataclass(frozen=True, slots=True)
class MeasuredGang:
    """Speed of a running job, in updates of the whole gang per second, and the accelerators on which it runs."""

    accelerator: str
    accelerators: int
    machines: int
    steps_per_s: float


@dataclass(frozen=True, slots=True)
class CorrectedModel:
    """A speed model in which one cell was measured by the running job itself.

    For the measured cell the model returns the measurement. For every other cell it multiplies its prediction by the
    ratio of the measured speed to the speed predicted for the measured cell: a job that has more work per step than
    expected has it on every machine. The ratio could also come from the machines instead of the job, so the returned
    interval contains the uncorrected prediction too.
    """

    model: SpeedModel
    gang: MeasuredGang
    #: Measured speed over predicted speed; 1 where the model cannot predict the measured gang.
    factor: float

    @classmethod
    def of(
        cls, model: SpeedModel, work: RemainingWork, machines: Sequence[CandidateMachine], gang: MeasuredGang
    ) -> "CorrectedModel":
        layout = Layout(float(work.batch), gang.accelerators, gang.machines)
        here = next((each.accelerator for each in machines if each.accelerator.name == gang.accelerator), None)
        try:
            said = None if here is None else model.predict(SpeedCell(work.kind, here, layout)).steps_per_s
        except CannotPredict:
            said = None
        return cls(model, gang, 1.0 if said is None else gang.steps_per_s / said)

    def predict(self, cell: SpeedCell) -> Prediction:
        """Predicts steps per second. Raises CannotPredict where the underlying model does."""
        gang, layout = self.gang, cell.layout
        place = (cell.accelerator.name, layout.accelerators, layout.machines)
        if place == (gang.accelerator, gang.accelerators, gang.machines):
            return _as_measured(gang.steps_per_s, 0.0)
        said = self.model.predict(cell)
        low, high = sorted((1.0, self.factor))
        return Prediction(said.steps_per_s * self.factor, said.low * low, said.high * high)


def _place_of(cell: SpeedCell) -> tuple[str, str, Layout]:
    return cell.kind.name, cell.accelerator.name, cell.layout


def _as_measured(steps_per_s: float, spread: float) -> Prediction:
    part = 1.0 + max(_LEAST_SPREAD, spread)
    return Prediction(steps_per_s, steps_per_s / part, steps_per_s * part)
