"""What a process that predicts runs. It imports the predictors and their questions, and nothing of the server."""

from dataclasses import dataclass

from optimizer.planning.machine_recommendation import specs_by_accelerator
from optimizer.prediction.loss_curve import TargetForecast, forecast_target
from scheduler.core.cycle.speed_predictions import PredictionQuestion, predict_speeds
from scheduler.core.speed_events import PredictedSpeed
from walras.job_request import JobId
from walras.spec.catalog import load_catalog


def predict_from_catalog(question: PredictionQuestion) -> tuple[PredictedSpeed, ...]:
    """Returns predicted speeds, by the data sheets of the shipped catalog. Takes seconds."""
    return predict_speeds(question, specs_by_accelerator(load_catalog()))


@dataclass(frozen=True, slots=True)
class TargetQuestion:
    """What is known of one job: (step, value) ascending, the newest step, the target, the steps it declares."""

    job_id: JobId
    points: tuple[tuple[float, float], ...]
    at_step: float
    at_most: float
    steps: float | None


ForecastAnswer = tuple[TargetForecast, ...]


def forecast_targets(asked: tuple[TargetQuestion, ...]) -> ForecastAnswer:
    """Returns one forecast for each question, in order. Takes about 30 ms each."""
    return tuple(forecast_target(each.points, each.at_step, each.at_most, each.steps) for each in asked)
