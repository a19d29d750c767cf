"""Round rules as people write them."""

import pytest

from scheduler.core.rules import parse_rules
from walras.errors import ConfigError


@pytest.mark.parametrize("part", [-0.1, 1.5, float("nan"), float("inf")])
def test_a_tolerated_lag_is_a_part(part: float) -> None:
    """What cannot be a part of what was received is refused, and the field is named."""
    with pytest.raises(ConfigError, match=r"rules\.tolerated_lag"):
        parse_rules({"tolerated_lag": part})


def test_no_lag_need_be_tolerated() -> None:
    """0 and 1 are parts."""
    assert parse_rules({"tolerated_lag": 0}).tolerated_lag == 0.0
    assert parse_rules({"tolerated_lag": 1}).tolerated_lag == 1.0
