"""What predictors of speed reach on measured data, and what plans made from them cost.

    WALRAS_DATA=... python -m benchmarks performance

Without the data only the figures of published tables and synthetic jobs are told.
"""

import os
from math import exp
from pathlib import Path
from random import Random
from statistics import median
from time import process_time

from benchmarks.performance_scores import (
    best_factors,
    each_type_left_out,
    pooled,
    score_model,
    told,
    with_publications,
    with_tables,
)
from benchmarks.profiles import pair, pair_on_type, parted, singles
from benchmarks.tables import Measured
from optimizer.prediction.affine_law import AffinePredictor
from optimizer.prediction.ensemble import Ensemble
from optimizer.prediction.gaussian_process import GaussianProcess
from optimizer.prediction.predictor import AcceleratorSpecs, KindFacts, Layout, Observation, SpeedCell
from optimizer.prediction.table_predictors import MatrixCompletion, sheet_speed

_HELD = 30


def measure(scale: float) -> list[Measured]:
    """Tables in the order of the docstring; those of measured data only where there is some."""
    given = os.environ.get("WALRAS_DATA", "")
    measured = [_cost(scale)]
    if given:
        found = Path(given)
        measured += [
            _unseen(found),
            _by_what_is_known(found),
        ]
    return measured


def _unseen(data: Path) -> Measured:
    measured = Measured("speeds of unseen cells on known types", f"{_HELD} % unseen, one accelerator")
    goals = {"profet": 10.0, "sia": 10.0}
    for source in ("profet", "sia", "gavel"):
        observations = singles(data, source)
        for what, key in (("model and batch", pair), ("model and batch on the type", pair_on_type)):
            answer = told(*parted(observations, key, _HELD))
            measured.add(f"{source}, {what}: median error", 100 * answer.median, "%", at_most=goals.get(source))
            measured.add("   inside 80 % intervals", 100 * answer.coverage, "%")
    members = (MatrixCompletion(), AffinePredictor(), GaussianProcess())
    for source in ("profet", "sia", "gavel"):
        for what, key in (("on the type", pair_on_type), ("on any type", pair)):
            known, asked = parted(singles(data, source), key, _HELD)
            for predictor in (MatrixCompletion(), AffinePredictor(), Ensemble(members)):
                found = score_model(predictor.fit(known), asked)
                if not found.predicted:
                    continue
                goal = 10.0 if isinstance(predictor, Ensemble) else None
                name = f"{source}, {what}, {predictor.name}: median error"
                measured.add(name, 100 * found.median_error, "%", at_most=goal)
                measured.add("   inside 80 % intervals", 100 * found.coverage, "%")
    return measured


def _by_what_is_known(data: Path) -> Measured:
    """A type that nobody measured, by data sheets alone, by publications too, by other tables too, in hindsight."""
    measured = Measured("speeds on a type that nobody measured, by what is known of it", "nothing measured there")
    tables = {source: singles(data, source) for source in ("profet", "sia", "gavel")}
    for source, observations in tables.items():
        others = [table for name, table in tables.items() if name != source]
        for what, given in (
            ("data sheets", observations),
            ("publications", with_publications(observations)),
            ("publications and the other tables", with_tables(observations, others)),
        ):
            answers = each_type_left_out(given, 0)
            goal = 25.0 if what == "publications" else None
            measured.add(f"{source}, {what}: median error", 100 * pooled(answers).median, "%", at_most=goal)
            measured.add("   worst type's median", 100 * max(answer.median for answer in answers.values()), "%")
            measured.add("   inside 80 % intervals", 100 * pooled(answers).coverage, "%")
        probed = each_type_left_out(with_publications(observations), 1)
        measured.add(f"{source}, publications and one cell: median error", 100 * pooled(probed).median, "%")
        measured.add(f"{source}, best factor in hindsight: median error", 100 * best_factors(observations).median, "%")
    every = [*tables.items(), ("lambda-v1", singles(data, "lambda-v1"))]
    answers = {
        f"{source} {name}": answer
        for source, observations in every
        for name, answer in each_type_left_out(with_publications(observations), 0).items()
    }
    whole = pooled(answers)
    measured.add("all four sources, publications: median error", 100 * whole.median, "%", at_most=25.0)
    measured.add("   inside 80 % intervals", 100 * whole.coverage, "%")
    return measured


def _cost(scale: float) -> Measured:
    """Of learning and telling, as a server does after something new was measured."""
    measured = Measured(
        "time of a fit and of telling 2,000 cells", "one process; made-up kinds, six types, four counts"
    )
    for many in (200, 600, 2000, 4000):
        known, asked, truths = made_up(max(50, round(scale * many)), 2000)
        began = process_time()
        model = Ensemble((MatrixCompletion(), GaussianProcess())).fit(known)
        told = model.predict_many(asked)
        seconds = process_time() - began
        errors = [abs(truth / each.steps_per_s - 1.0) for truth, each in zip(truths, told, strict=True) if each]
        measured.add(f"{len(known)} known: CPU time", seconds, "s", at_most=60 if many == 2000 else None)
        measured.add("   median error", 100 * median(errors), "%")
    return measured


def made_up(known: int, asked: int) -> tuple[list[Observation], list[SpeedCell], list[float]]:
    """Known cells, others of the same kinds, and the others' speeds. Kinds like some types more; 3 % of noise."""
    random = Random(1)
    types = [AcceleratorSpecs(f"type-{n}", 4e12 * 2.0**n, 2e11 * 1.6**n) for n in range(6)]
    cells, speeds = [], []
    for number in range(known // 5):
        base = random.gauss(0.0, 1.5)
        for facts in types:
            taste = random.gauss(0.0, 0.15)
            for count in (1, 2, 4, 8):
                cells.append(SpeedCell(KindFacts(f"kind-{number}"), facts, Layout(float(count), count)))
                speeds.append(exp(base + taste) * sheet_speed(facts) / 1e12 * count**0.9)
    order = random.sample(range(len(cells)), len(cells))
    observations = [Observation(cells[n], speeds[n] * random.gauss(1.0, 0.03), 0.03, 4) for n in order[:known]]
    rest = order[known : known + asked]
    return observations, [cells[n] for n in rest], [speeds[n] for n in rest]
