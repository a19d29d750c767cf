"""Speeds of a kind from its own speeds elsewhere."""

import pytest

from optimizer.prediction.predictor import AcceleratorSpecs, CannotPredict, KindFacts, Layout, Observation, SpeedCell
from optimizer.prediction.table_predictors import RatioPredictor, sheet_speed

RULE = RatioPredictor("nominal", {"k80": 1.0, "p100": 3.0, "v100": 6.0})


def cell(kind: str, accelerator: str, count: int = 1) -> SpeedCell:
    return SpeedCell(KindFacts(kind), AcceleratorSpecs(accelerator, 1e12, 1e11), Layout(float(count), count))


def test_one_speed_tells_the_others_by_what_accelerators_are_worth() -> None:
    """Twice as fast an accelerator is twice as fast for a job, and two of them as fast as two."""
    model = RULE.fit([Observation(cell("cnn", "p100"), 3.0)])
    assert model.predict(cell("cnn", "v100")).steps_per_s == pytest.approx(6.0)
    assert model.predict(cell("cnn", "k80", 4)).steps_per_s == pytest.approx(4.0)


def test_a_kind_or_a_type_that_nobody_knows_is_refused() -> None:
    """There is nothing to go on from, and the message says what is missing."""
    model = RULE.fit([Observation(cell("cnn", "p100"), 3.0)])
    with pytest.raises(CannotPredict, match="no speed of lstm"):
        model.predict(cell("lstm", "p100"))
    with pytest.raises(CannotPredict, match="no rating of tpu"):
        model.predict(cell("cnn", "tpu"))


def test_the_further_a_gang_is_from_those_measured_the_wider_the_interval() -> None:
    """Gangs do not speed up in proportion, and nobody knows by how much they fall short."""
    model = RULE.fit([Observation(cell("cnn", "p100"), 3.0)])
    same, eight = model.predict(cell("cnn", "v100")), model.predict(cell("cnn", "v100", 8))
    assert eight.log_sd > same.log_sd


def test_a_rule_that_errs_says_so_with_its_interval() -> None:
    """Kinds that gain little from the faster type are told badly; the interval holds what they do."""
    observations = [
        Observation(cell(f"k{n}", name), speed) for n in range(8) for name, speed in (("k80", 1.0), ("v100", 1.5))
    ]
    wrong = RULE.fit(observations).predict(cell("k0", "p100"))
    right = RatioPredictor("true", {"k80": 1.0, "p100": 1.2, "v100": 1.5}).fit(observations).predict(cell("k0", "p100"))
    assert wrong.log_sd > 4 * right.log_sd


def test_a_data_sheet_rates_by_arithmetic_and_memory_alike() -> None:
    """Four times the arithmetic alone is worth twice the speed."""
    slow, fast = AcceleratorSpecs("a", 1e12, 1e11), AcceleratorSpecs("b", 4e12, 1e11)
    assert sheet_speed(fast) == pytest.approx(2 * sheet_speed(slow))
