"""Scoring predictions that were used."""

import pytest

from optimizer.prediction.ensemble import ScoredPrediction, accuracy_rows, source_weights


def judged(source: str, error: float, width: float | None = None) -> ScoredPrediction:
    """A prediction of 100 that was so far off, with an interval of this relative half-width."""
    low, high = (None, None) if width is None else (100 / (1 + width), 100 * (1 + width))
    return ScoredPrediction(source, "net", "v100", 100.0, 100.0 * (1 + error), low, high)


def test_lines_are_ordered_by_error_and_tell_coverage() -> None:
    """The worst group comes first; coverage is told only where intervals are stated."""
    found = accuracy_rows(
        [judged("sure", 0.3, 0.1), judged("sure", 0.05, 0.1), judged("plain", 0.5)], lambda j: j.source
    )
    assert [line.name for line in found] == ["plain", "sure"]
    assert found[0].coverage is None
    assert (found[1].coverage, found[1].median_error) == (0.5, pytest.approx(0.175))


def test_bad_predictors_lose_weight() -> None:
    """Of two that claim the same, the one that erred more counts less; likewise of two that claim nothing."""
    claimed = source_weights([judged("good", 0.02, 0.1), judged("bad", 0.6, 0.1)] * 5)
    assert claimed["bad"] < 0.2 < 0.8 < claimed["good"]
    plain = source_weights([judged("good", 0.02), judged("bad", 0.9)] * 5)
    assert plain["bad"] < 0.3 < 0.7 < plain["good"]
    assert sum(plain.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf")])
def test_rates_of_nothing_are_no_predictions(speed: float) -> None:
    """A rate of zero, or none at all, is an error that shows the row."""
    with pytest.raises(ValueError, match="above 0"):
        ScoredPrediction("source", "net", "v100", 1.0, speed)
