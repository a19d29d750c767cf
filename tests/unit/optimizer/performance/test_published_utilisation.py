"""What is told before anything was measured, and what data sheets promise, against what others published."""

from math import log
from pathlib import Path
from statistics import median

import pytest

from benchmarks.published_speeds import SHEETS, achieved, published
from benchmarks.published_utilisation import language_checks, utilisation_checks
from walras.spec.catalog import SHIPPED_CATALOG, load_catalog


def test_data_sheets_and_operations_tell_published_speeds(reference_data: Path) -> None:
    """At least eight of ten inside their 80 % intervals; a factor of 1.5 off in the middle, never one of 2.5."""
    checks = utilisation_checks(reference_data)
    assert len(checks) >= 20
    assert sum(check.is_inside for check in checks) >= 0.8 * len(checks)
    assert median(check.factor for check in checks) <= 1.5
    assert max(check.factor for check in checks) <= 2.5


def test_language_models_are_told_within_a_factor_of_two(reference_data: Path) -> None:
    """On V100, A100, H100 and H200, a median factor of 1.35; also where nobody said that they are transformers."""
    checks = language_checks(reference_data)
    assert {check.what.split(" x ")[1].split("-")[0].split(",")[0] for check in checks} >= {
        "v100", "a100", "h100", "h200",
    }  # fmt: skip
    assert median(check.factor for check in checks) <= 1.35
    for found in (checks, language_checks(reference_data, family=None)):
        assert max(check.factor for check in found) <= 2.0
        assert sum(check.is_inside for check in found) >= 0.7 * len(found)


def test_resnet_50_in_mlperf_lies_inside(reference_data: Path) -> None:
    """On eight H100, and on four L40S."""
    checks = {check.what: check for check in utilisation_checks(reference_data)}
    for what in ("resnet50, 8 x h100, fp16", "resnet50, 4 x l40s, fp16"):
        assert checks[what].is_inside, checks[what]


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
