"""What was planned of the network against what was obtained."""

from math import inf, nan

import pytest

from optimizer.prediction.predictor import AcceleratorSpecs, KindFacts, Layout, SpeedCell
from optimizer.prediction.step_time import ObtainedNetwork, RooflinePredictor


@pytest.mark.parametrize(("measured", "replan"), [(2e9, False), (1e9, False), (0.85e9, False), (0.84e9, True)])
def test_fifteen_percent_below_plan_is_planned_anew(measured: float, replan: bool) -> None:
    """As much as planned, more, or up to 15 % less keeps the plan; anything lower does not, and says so."""
    obtained = ObtainedNetwork(1e9, measured)
    assert obtained.replan is replan
    assert ("planned anew" in obtained.why) is replan


def test_predictions_go_on_from_what_was_measured() -> None:
    """A slower network makes the predicted step of a gang over machines longer, and that on one machine no longer."""
    facts = AcceleratorSpecs("a", 1e13, 1e12, link_bytes_per_s=5e10, network_bytes_per_s=1e9)
    slow = ObtainedNetwork(1e9, 0.5e9).facts(facts)
    kind = KindFacts("k", flops_per_sample=1e9, gradient_bytes=1e9)
    spread, together = Layout(64, 4, 2), Layout(64, 4, 1)
    law = RooflinePredictor()
    assert law.parts(SpeedCell(kind, slow, spread)).sync_s > 1.9 * law.parts(SpeedCell(kind, facts, spread)).sync_s
    assert law.parts(SpeedCell(kind, slow, together)) == law.parts(SpeedCell(kind, facts, together))


@pytest.mark.parametrize("wrong", [0.0, -1.0, inf, nan])
def test_a_bandwidth_that_is_none_is_refused(wrong: float) -> None:
    """A probe that told nonsense makes no plan."""
    with pytest.raises(ValueError, match="finite and above 0"):
        ObtainedNetwork(1e9, wrong)
