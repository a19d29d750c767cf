"""Speeds of cells that nobody measured: the table that keeps them, and what predictors make of the others."""

from dataclasses import replace
from math import exp

import numpy as np
import pytest

from optimizer.planning.machine_recommendation import specs_by_accelerator
from scheduler.core.cycle.speed_predictions import DataWait, PredictionQuestion, predict_speeds
from scheduler.core.speed_events import Guess, PredictedSpeed
from scheduler.core.state.throughput import MeasuredCell, ScoredBelief, SpeedSource, ThroughputTable
from walras.job_request import Kind
from walras.spec.catalog import load_catalog

NOMINAL = {"a": 1.0, "b": 2.0, "c": 4.0}


def predicted(steps_per_s: float, accelerator: str = "b", kind: str = "cnn") -> PredictedSpeed:
    low, high = 0.8 * steps_per_s, 1.25 * steps_per_s
    parts = (Guess("nominal", 2.0 * steps_per_s, steps_per_s, 4.0 * steps_per_s),)
    return PredictedSpeed(Kind(kind), accelerator, 1, Guess("fused", steps_per_s, low, high), parts)


def test_a_prediction_is_used_until_a_measurement_stands() -> None:
    """A declared speed is believed before it, and one that hardly moves is no news, or all would cause solves."""
    table = ThroughputTable()
    table.measure(Kind("cnn"), "a", 1, 1.0, NOMINAL)
    assert table.predict(predicted(1.4))
    told = table.speed(Kind("cnn"), "b", 1, NOMINAL)
    assert (told.steps_per_s, told.source) == (1.4, SpeedSource.PREDICTED)
    assert (told.low, told.high) == (pytest.approx(1.12), pytest.approx(1.75))
    table.measure(Kind("cnn"), "b", 1, 1.5, NOMINAL)
    assert not table.predict(predicted(9.0))
    assert table.speed(Kind("cnn"), "b", 1, NOMINAL).steps_per_s == 1.5
    table = ThroughputTable()
    table.declare(Kind("cnn"), "b", 1, 3.0)
    assert not table.predict(predicted(1.4))
    assert table.speed(Kind("cnn"), "b", 1, NOMINAL).source is SpeedSource.DECLARED
    table = ThroughputTable()
    assert table.predict(predicted(1.0))
    assert not table.predict(predicted(1.05))
    assert table.predict(predicted(1.2))


def test_every_part_of_a_prediction_is_scored_by_what_is_measured() -> None:
    """Or nobody could tell which predictor was wrong."""
    table = ThroughputTable()
    table.measure(Kind("cnn"), "a", 1, 1.0, NOMINAL)
    table.predict(predicted(1.4))
    table.measure(Kind("cnn"), "b", 1, 1.5, NOMINAL)
    scored = {each.source: (each.predicted, each.measured) for each in table.scored() if each.accelerator == "b"}
    assert scored == {"fused": (1.4, 1.5), "nominal": (2.8, 1.5)}
    assert {each.source for each in table.scored(since=1)} == {"fused", "nominal"}


def fleet(kinds: int, factors: dict[str, float]) -> list[tuple[str, str, float]]:
    """(kind, accelerator, true speed): kinds that gain alike from an accelerator, give or take some percent."""
    draw = np.random.default_rng(0)
    return [
        (f"k{n}", name, exp(0.3 * (n % 5)) * factor * exp(0.04 * draw.standard_normal()))
        for n in range(kinds)
        for name, factor in factors.items()
    ]


def question(
    cells: list[tuple[str, str, float]], missing: set[tuple[str, str]], past: tuple[ScoredBelief, ...] = ()
) -> PredictionQuestion:
    known = tuple(MeasuredCell(Kind(k), a, 1, s, 0.02, 5) for k, a, s in cells if (k, a) not in missing)
    wanted = tuple((Kind(k), a, 1) for k, a, _ in cells if (k, a) in missing)
    return PredictionQuestion(known, wanted, tuple(NOMINAL.items()), past)


def test_kinds_that_ran_everywhere_tell_of_those_that_did_not() -> None:
    """An administrator's nominal speeds are wrong by half here; after a few kinds predictions are not."""
    cells = fleet(10, {"a": 1.0, "b": 1.3, "c": 1.7})
    missing = {("k1", "c"), ("k4", "b"), ("k7", "c"), ("k8", "b")}
    told = {(each.kind, each.accelerator): each for each in predict_speeds(question(cells, missing), {})}
    assert told.keys() == missing
    held = 0
    for kind, accelerator, truth in cells:
        if (kind, accelerator) in missing:
            fused = told[Kind(kind), accelerator].fused
            assert fused.steps_per_s == pytest.approx(truth, rel=0.15)
            held += fused.low < truth < fused.high
    assert held >= 3


def test_three_cells_of_a_new_type_are_to_be_measured_first() -> None:
    """Of a type with two measured cells one more, and none of a type that is well known."""
    cells = fleet(10, {"a": 1.0, "b": 1.3, "c": 1.7})
    for known, wanted in ((0, 3), (2, 1), (4, 0)):
        missing = {(f"k{n}", "c") for n in range(known, 10)} | {("k1", "b")}
        told = predict_speeds(question(cells, missing), {})
        assert [each.accelerator for each in told if each.first] == ["c"] * wanted


def test_one_measured_cell_is_told_on_by_nominal_speeds() -> None:
    """There is nothing else to go on; the interval says how little that is."""
    (told,) = predict_speeds(question([("cnn", "a", 1.0), ("cnn", "b", 2.0)], {("cnn", "b")}), {})
    assert told.fused.steps_per_s == pytest.approx(2.0)
    assert told.fused.high / told.fused.low > 2.0


def test_a_predictor_that_was_wrong_loses_weight() -> None:
    """Nominal speeds were three times too high for cells that ran: they count less for those that did not."""
    cells = [("k0", "a", 1.0), ("k0", "b", 1.3), ("k1", "a", 2.0), ("k1", "b", 2.6), ("k2", "a", 1.0), ("k2", "b", 1.3)]
    wrong = tuple(ScoredBelief(Kind(f"old{n}"), "b", 1, "nominal", 3.0, 1.0, 2.8, 3.2) for n in range(10))
    (before,) = predict_speeds(question(cells, {("k2", "b")}), {})
    (after,) = predict_speeds(question(cells, {("k2", "b")}, wrong), {})
    assert abs(after.fused.steps_per_s - 1.3) < abs(before.fused.steps_per_s - 1.3)


def test_what_a_kind_waits_for_its_data_does_not_become_shorter_on_a_faster_accelerator() -> None:
    """Half of a step of a second: rated four times as fast, the other half takes an eighth. Others gain all."""
    known = tuple(MeasuredCell(Kind(kind), "a", 1, 1.0, 0.0, 5) for kind in ("cnn", "lm"))
    wanted = tuple((Kind(kind), "b", 1) for kind in ("cnn", "lm"))
    asked = PredictionQuestion(known, wanted, (("a", 1.0), ("b", 4.0)), ())
    plain = {each.kind: each.fused.steps_per_s for each in predict_speeds(asked, {})}
    waits = replace(asked, data_waits=(DataWait(Kind("cnn"), "a", 1, 0.5),))
    found = {each.kind: each for each in predict_speeds(waits, {})}
    assert found[Kind("cnn")].fused.steps_per_s == pytest.approx(1 / (0.5 + 0.5 / plain[Kind("cnn")]))
    assert found[Kind("cnn")].fused.steps_per_s < 2.0 < plain[Kind("cnn")]
    assert found[Kind("lm")].fused.steps_per_s == plain[Kind("lm")]
    guess = found[Kind("cnn")].fused
    assert guess.low < guess.steps_per_s < guess.high < 2.0
    known = tuple(MeasuredCell(Kind("cnn"), name, 1, speed, 0.0, 5) for name, speed in (("a", 1.0), ("b", 1.5)))
    asked = PredictionQuestion(known, ((Kind("cnn"), "c", 1),), (("a", 1.0), ("b", 4.0), ("c", 8.0)), ())
    waits = replace(asked, data_waits=(DataWait(Kind("cnn"), "a", 1, 0.5),))
    assert predict_speeds(waits, {}) == predict_speeds(asked, {})


def test_a_type_under_the_name_that_its_driver_tells_is_predicted_by_its_data_sheet() -> None:
    """An agent that finds an H100 by itself calls it `h100-80gb`; the sheet stands under `h100`."""
    sheets = specs_by_accelerator(load_catalog())
    told = []
    for v100, h100 in (("v100", "h100"), ("v100-16gb", "h100-80gb")):
        known = (MeasuredCell(Kind("cnn"), v100, 1, 1.0, 0.0, 5),)
        asked = PredictionQuestion(known, ((Kind("cnn"), h100, 1),), ((v100, 1.0), (h100, 1.0)), ())
        told.append([each.fused for each in predict_speeds(asked, sheets)])
    assert told[0] == told[1]
    assert told[0][0].steps_per_s > 2.0


def test_a_speed_that_is_told_is_not_rounded_and_one_that_is_measured_is() -> None:
    """Noise must not make every solve different from the last; a table has none."""
    table, kind = ThroughputTable(), Kind("net")
    assert table.set_known(kind, "a100", 1, 1.23456789)
    assert not table.set_known(kind, "a100", 1, 1.23456789)
    assert table.speed(kind, "a100", 1, {}).steps_per_s == 1.23456789
    assert table.speed(kind, "a100", 1, {}).source is SpeedSource.MEASURED
    table.measure(kind, "b100", 1, 1.23456789)
    assert table.speed(kind, "b100", 1, {}).steps_per_s == 1.23
