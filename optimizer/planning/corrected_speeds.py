"""Speeds that a plan counts on: what the predictors say, what was observed where they know too little, and all of it
corrected by what a job that runs already does.
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

#: Machines of one type differ by about this part, however well one of them was measured.
_LEAST_SPREAD = 0.1


def fit_speed_model(observations: Sequence[Observation]) -> SpeedModel:
    """The predictors, each believed by its record on these observations."""
    # It brings SciPy: half a second that only who predicts should pay.
    from optimizer.prediction.gaussian_process import GaussianProcess

    return Ensemble((RooflinePredictor(), AffinePredictor(), GaussianProcess(), BoostedTrees())).fit(observations)


@dataclass(frozen=True, slots=True)
class ObservedCells:
    """A model that answers with what was observed where the predictors know too little of the job."""

    model: SpeedModel
    #: By kind, accelerator and layout; of several observations the last.
    observed: Mapping[tuple[str, str, Layout], Observation]

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> "ObservedCells":
        found = {_place_of(each.cell): each for each in observations}
        return cls(fit_speed_model(observations), found)

    def predict(self, cell: SpeedCell) -> Prediction:
        """Raises CannotPredict where nobody knows."""
        try:
            return self.model.predict(cell)
        except CannotPredict:
            known = self.observed.get(_place_of(cell))
            if known is None:
                raise
            return _as_measured(known.steps_per_s, Z80 * known.spread)


@dataclass(frozen=True, slots=True)
class MeasuredGang:
    """Speed of a running job, in updates of the whole gang per second, and what it runs on."""

    accelerator: str
    accelerators: int
    machines: int
    steps_per_s: float


@dataclass(frozen=True, slots=True)
class CorrectedModel:
    """A model of which one cell was measured by the job itself.

    There it answers with the measurement. Elsewhere its answer is multiplied by what was measured over what it would
    have said there: a job with more work in a step than believed has more of it everywhere. Whether it was the job or
    the machines nobody knows, so the interval also holds what the model says uncorrected.
    """

    model: SpeedModel
    gang: MeasuredGang
    #: Measured over predicted; 1 where the model says nothing of the measured gang.
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
        """Raises CannotPredict where nobody knows."""
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
