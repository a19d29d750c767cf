"""What is told before anything was measured, against runs that others published (`WALRAS_DATA`)."""

from pathlib import Path
from statistics import median

from benchmarks.published_utilisation import utilisation_checks


def test_data_sheets_and_operations_tell_published_speeds(reference_data: Path) -> None:
    """At least eight of ten inside their 80 % intervals; a factor of 1.5 off in the middle, never one of 2.5."""
    checks = utilisation_checks(reference_data)
    assert len(checks) >= 20
    assert sum(check.is_inside for check in checks) >= 0.8 * len(checks)
    assert median(check.factor for check in checks) <= 1.5
    assert max(check.factor for check in checks) <= 2.5


def test_resnet_50_in_mlperf_lies_inside(reference_data: Path) -> None:
    """On eight H100, and on four L40S."""
    checks = {check.what: check for check in utilisation_checks(reference_data)}
    for what in ("resnet50, 8 x h100, fp16", "resnet50, 4 x l40s, fp16"):
        assert checks[what].is_inside, checks[what]
