"""What accelerators achieve of their data sheets, by publications, and what the catalog ships of it."""

from math import log

import pytest

from benchmarks.published_speeds import SHEETS, achieved, published
from walras.spec.catalog import SHIPPED_CATALOG, load_catalog


def test_the_catalog_ships_what_publications_say() -> None:
    """Each factor of the shipped catalog is the one that least squares over the publications finds, to two digits."""
    found = published()
    shipped = load_catalog([SHIPPED_CATALOG]).accelerators
    factors = {name: float(facts.achieves) for name, facts in shipped.items() if float(facts.achieves) != 1.0}
    assert factors == {name: round(found[name], 2) for name in factors}
    assert set(factors) == set(found) & set(shipped) - {"v100"}
    for name, (tera_flops, giga_bytes) in SHEETS.items():
        assert shipped[name].peak_flops["fp32"] == pytest.approx(tera_flops * 1e12)
        assert shipped[name].memory_bytes_per_s == pytest.approx(giga_bytes * 1e9)


def test_publications_are_joined_through_accelerators_that_they_share() -> None:
    """One tells a against a V100, another b against a: b follows, whatever unit each speaks in."""
    found = achieved([{"v100": 3.0, "a": 3.0 + log(0.5)}, {"a": -1.0, "b": -1.0 + log(3.0)}])
    assert found == pytest.approx({"v100": 1.0, "a": 0.5, "b": 1.5})
