"""Predictions in a simulated run: the scheduler's own question and answer, and a score of what came of them."""

import json
import subprocess
import sys
from math import inf
from pathlib import Path

import pytest
from typer.testing import CliRunner

from optimizer.policy import PolicySpec
from optimizer.prediction.predictor import AcceleratorSpecs
from scheduler.core.core import SchedulerCore
from scheduler.core.events import AttemptProgressed, Event
from scheduler.core.speed_events import FactsTold, SpeedsPredicted
from scheduler.world.attempts import AttemptCosts, SimulatedJob, WorldParameters
from scheduler.world.engine import Engine
from scheduler.world.machines import PoolModel
from simulator.conditions import Conditions
from simulator.ground_truth import GroundTruth, PredictionSettings, SpeedKey
from simulator.online_predictor import OnlinePredictor
from simulator.simulation import Scenario, Simulation, SimulationResult
from walras.cli.main import app
from walras.cluster import Pool, PoolId, Shape
from walras.errors import ConfigError
from walras.job_request import Demand, JobId, JobRequest, Kind
from walras.model_facts import ModelFacts
from walras.spec.file_model import check_model

CNN = Kind("cnn")
SHEETS = {"slow": AcceleratorSpecs("slow", 1e13, 1e12), "quick": AcceleratorSpecs("quick", 3e13, 3e12)}
FACTS = (FactsTold(0.0, CNN, ModelFacts(flops_per_sample=1e10, batch_per_accelerator=64.0)),)
#: What the quick one is by its facts, and what an administrator who rates all types alike does not know.
SPEEDS = {SpeedKey(CNN, "slow", 1): 5.0, SpeedKey(CNN, "quick", 1): 15.0}


def pool(name: str) -> PoolModel:
    return PoolModel(Pool(PoolId(name), Shape(name, name, 1, 8.0, 2**30)), machines=1)


def job(number: int, at: float, accelerator: str) -> SimulatedJob:
    return SimulatedJob(at, JobRequest(JobId(number), CNN, demands=(Demand(accelerator, 1),), steps=3000.0), 3000.0)


def scenario(forecasts: PredictionSettings) -> Scenario:
    return Scenario(
        (pool("slow"), pool("quick")), GroundTruth(SPEEDS, default_costs=AttemptCosts()), PolicySpec("fifo"),
        world=WorldParameters(report_s=20.0), oracle=False, forecasts=forecasts,
    )  # fmt: skip


def ran(forecasts: PredictionSettings) -> tuple[SimulationResult, list[Event]]:
    """One job on the slow type, and later one on the other."""
    heard: list[Event] = []
    simulation = Simulation(scenario(forecasts))
    result = simulation.run([job(1, 0.0, "slow"), job(2, 100.0, "quick")], lambda event, _: heard.append(event))
    return result, heard


def test_a_kind_measured_on_one_type_is_predicted_on_another_and_scored() -> None:
    """Before it is measured there; what each predictor said stands beside what came of it."""
    result, heard = ran(PredictionSettings(10.0, sheets=SHEETS, facts=FACTS))
    told = [each for event in heard if isinstance(event, SpeedsPredicted) for each in event.speeds]
    assert {(each.accelerator, each.count) for each in told} == {("slow", 1), ("quick", 1)}
    scored = {each.source: each for each in result.scored if each.accelerator == "quick"}
    assert scored["analytic"].predicted == pytest.approx(15.0, rel=0.01)
    assert scored["analytic"].measured == pytest.approx(15.0, rel=0.01)
    assert scored["fused"].low is not None
    assert not result.violations


def test_without_the_condition_nothing_is_predicted() -> None:
    """The table's own rule is scored all the same: types that are rated alike are taken to be alike."""
    result, heard = ran(PredictionSettings())
    assert not [event for event in heard if isinstance(event, SpeedsPredicted)]
    (quick,) = [each for each in result.scored if each.accelerator == "quick"]
    assert (quick.source, quick.predicted, quick.measured) == ("scaled", 5.0, 15.0)


def test_equal_runs_predict_alike() -> None:
    first, second = (ran(PredictionSettings(10.0, sheets=SHEETS, facts=FACTS))[1] for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"predict_every": 60}, "predict_every"),
        ({"speeds_told": False, "facts": {"cnn": {"gradient_bytes": 1}}}, "facts"),
        ({"speeds_told": False, "predict_every": 0}, "predict_every"),
        ({"speeds_told": False, "predict_every": 60, "facts": {"cnn": {"flops_per_sample": -1}}},
         "facts.cnn.flops_per_sample"),
        ({"speeds_told": False, "predict_every": 60, "facts": {"cnn": {"flops_per_sample": 1}}},
         "facts.cnn.batch_per_accelerator"),
        ({"speeds_told": False, "predict_every": 60, "facts": {"rnn": {"gradient_bytes": 1}}}, "facts"),
    ],
)  # fmt: skip
def test_conditions_that_would_predict_nothing_are_refused(given: object, field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_model(Conditions, given, source="test").applied_to(scenario(PredictionSettings()))
    assert refused.value.field == field
    assert refused.value.fix


def test_conditions_tell_how_a_run_predicts() -> None:
    stated = {"flops_per_sample": 1e10, "batch_per_accelerator": 64}
    given = {"speeds_told": False, "predict_every": "5m", "facts": {"cnn": stated}}
    forecasts = check_model(Conditions, given, source="test").applied_to(scenario(PredictionSettings())).forecasts
    assert (forecasts.every_s, forecasts.facts) == (300.0, FACTS)
    assert forecasts.sheets["a100-40gb"].flops_per_s == 19.5e12
    assert (
        check_model(Conditions, {}, source="test").applied_to(scenario(PredictionSettings())).forecasts.every_s == inf
    )


def test_a_simulated_run_is_judged_by_the_command(tmp_path: Path) -> None:
    """`walras cloud profile report` reads the folder that `walras simulate run --out` left."""
    job = {"run": "x", "profile": "cnn", "steps": 6000, "resources": {"accelerators": {"a100": 1}}}
    (tmp_path / "workload.yaml").write_text(json.dumps({"jobs": [{"at": 0, "job": job}]}))
    (tmp_path / "conditions.yaml").write_text("{speeds_told: false, predict_every: 1m}")
    told = CliRunner().invoke(
        app,
        ["simulate", "run", str(tmp_path / "workload.yaml"), "--cluster", "demo", "--policy", "fifo", "--conditions",
         str(tmp_path / "conditions.yaml"), "--out", str(tmp_path / "out")],
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    report = CliRunner().invoke(app, ["cloud", "profile", "report", str(tmp_path / "out"), "-o", "json"])
    assert report.exit_code == 0, report.output
    (judged,) = json.loads(report.stdout)["predictions"]
    assert (judged["source"], judged["accelerator"], judged["measured"]) == ("nominal", "1 x a100", 16.0)


def test_a_run_that_predicts_nothing_loads_no_learner() -> None:
    """SciPy takes half a second and 40 MiB: runs whose speeds are told do without."""
    learners = "any(m.split('.')[0] in ('scipy', 'sklearn') for m in sys.modules)"
    code = f"import sys, simulator.reports.repeated_runs; sys.exit({learners})"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_a_late_report_of_a_job_that_has_ended_teaches_nothing() -> None:
    """The core passes it over, and so does what listens before it."""
    core = SchedulerCore()
    engine = Engine(core, lambda solve: pytest.fail("no solve is expected"))
    OnlinePredictor(engine, core, PredictionSettings(sheets=SHEETS))
    engine.send(AttemptProgressed(0.0, JobId(9), 1, 5.0, 2.0))
    assert not core.ledger.jobs
