"""Speeds on a type of accelerator that is new: after no cell, after three, and of models that never ran anywhere.

    WALRAS_DATA=... python -m benchmarks new_types

Each type of each table is left out in turn. Three cells are those that the Gaussian process chooses, or are drawn. Mean
errors of step time; each type counts once. Constants are not fitted to any of it: the process learns from the other
types of the table, and the parts of peaks are those of other publications (`optimizer.prediction.step_time`).
"""

import os
from pathlib import Path
from statistics import fmean, median

from benchmarks.needs import NotHereError
from benchmarks.performance_scores import (
    Told,
    chosen_probes,
    drawn_probes,
    each_type_left_out,
    with_publications,
)
from benchmarks.profiles import singles
from benchmarks.published_utilisation import language_checks, utilisation_checks
from benchmarks.tables import Measured

SOURCES = ("profet", "gavel", "sia", "lambda-v1")
_CELLS = 3


def measure(scale: float) -> list[Measured]:
    """The types, then the models."""
    given = os.environ.get("WALRAS_DATA", "")
    if not given:
        raise NotHereError("the measured speeds are not there: set WALRAS_DATA")
    return [_types(Path(given), max(2, round(8 * scale))), _models(Path(given))]


def _types(data: Path, draws: int) -> Measured:
    measured = Measured("speeds on a type left out", f"one accelerator; {_CELLS} cells known; {draws} draws")
    by_way: dict[str, dict[str, list[Told]]] = {"nothing known": {}, "chosen": {}, "drawn": {}}
    for source in SOURCES:
        observations = with_publications(singles(data, source))
        nothing, chosen = each_type_left_out(observations, 0), chosen_probes(observations, _CELLS)
        drawn = drawn_probes(observations, _CELLS, draws)
        for name in chosen:
            found = {"nothing known": [nothing[name]], "chosen": [chosen[name]], "drawn": drawn[name]}
            for way, answers in found.items():
                by_way[way][f"{source} {name}"] = answers
                measured.add(f"{source} {name}, {way}: mean error", 100 * fmean(a.mean for a in answers), "%")
                if way == "drawn":
                    measured.add("   worst draw", 100 * max(a.mean for a in answers), "%")
                measured.add("   inside 80 % intervals", 100 * fmean(a.coverage for a in answers), "%")
    none = 100 * fmean(_mean(answers) for answers in by_way["nothing known"].values())
    for way, types in by_way.items():
        means = {name: _mean(answers) for name, answers in types.items()}
        goal = {"nothing known": None, "chosen": 15.0, "drawn": none}[way]
        measured.add(f"all types, {way}: mean error", 100 * fmean(means.values()), "%", at_most=goal)
        worst = max(means, key=lambda name: means[name])
        measured.add(f"   worst type ({worst})", 100 * means[worst], "%")
        inside = 100 * fmean(answer.coverage for answers in types.values() for answer in answers)
        measured.add("   inside 80 % intervals", inside, "%", at_most=90 if way == "chosen" else None, at_least=70)
    return measured


def _mean(answers: list[Told]) -> float:
    return fmean(answer.mean for answer in answers)


def _models(data: Path) -> Measured:
    measured = Measured("published runs told by data sheets and operations", "nothing measured")
    for what, checks, usual, worst in (
        ("language models", language_checks(data), 1.35, 2.0),
        ("language models, family unknown", language_checks(data, family=None), None, 2.0),
        ("ResNet-50 and BERT", utilisation_checks(data), 1.5, 2.5),
    ):
        measured.add(f"{what}, {len(checks)} runs: factor off, median", median(c.factor for c in checks), "x", usual)
        measured.add("   worst", max(check.factor for check in checks), "x", at_most=worst)
        measured.add("   inside 80 % intervals", 100 * fmean(check.is_inside for check in checks), "%", at_least=70)
    return measured
