import pytest

from optimizer.registry import describe, names


@pytest.mark.parametrize("name", names())
def test_every_policy_says_what_it_does(name: str):
    """A sentence for the policy, where it comes from, and a description for every parameter."""
    described = describe(name)
    assert described.source
    assert described.summary.endswith(".")
    assert len(described.summary) <= 120
    assert [each.name for each in described.parameters if not each.description] == []
    assert (described.family in ("shares", "plan")) == bool(described.price_unit)
