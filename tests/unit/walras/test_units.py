"""Lengths, sizes and counts: what is accepted, what is refused and how, and what people are shown."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walras.units import (
    format_count,
    format_jobs,
    format_length,
    format_money,
    format_size,
    parse_length,
    parse_minimum_count,
    parse_minimum_size,
    parse_size,
)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (90, 90.0), (0.5, 0.5), ("90", 90.0), ("10m", 600.0), ("1h30m", 5400.0), ("1h 30 min", 5400.0),
        ("2d", 172_800.0), ("1w", 604_800.0), ("250ms", 0.25), ("1.5h", 5400.0), (" 45 Seconds ", 45.0), (0, 0.0),
    ],
)  # fmt: skip
def test_lengths_that_people_write(written: object, seconds: float) -> None:
    """A number is seconds; text may carry units, several of them."""
    assert parse_length(written) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "written",
    ["", "soon", "10 parsecs", "-5m", "1h30", "1:30", "nan", "1e3", "m", "1" * 200, -1, float("nan"), float("inf"),
     True, None, [5], "٣m", 1e300],
)  # fmt: skip
def test_other_lengths_are_refused_with_examples(written: object) -> None:
    """The complaint quotes the text, shortened, and shows what would be accepted."""
    with pytest.raises(ValueError, match="write '90', '10m', '1h30m'") as refusal:
        parse_length(written)
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("24GB", 24 * 10**9), ("512MiB", 512 * 2**20), ("1.5 TB", 1_500_000_000_000), (4096, 4096), ("4096", 4096),
        ("8gib", 8 * 2**30),
    ],
)  # fmt: skip
def test_sizes_that_people_write(written: object, size: int) -> None:
    """GB is a power of 1000 and GiB of 1024."""
    assert parse_size(written) == size


@pytest.mark.parametrize("written", ["", "24 GBs", "lots", "-1GB", 1.5, "1.5", True, None, "99999PB", "1e9"])
def test_other_sizes_are_refused_with_examples(written: object) -> None:
    """The complaint shows what would be accepted."""
    with pytest.raises(ValueError, match="write '24GB', '512MiB'"):
        parse_size(written)


def test_a_plus_changes_nothing() -> None:
    """What is asked for is always a minimum, so `4+` is 4."""
    assert parse_minimum_count("4+") == parse_minimum_count(4) == 4.0
    assert parse_minimum_count("0.5") == 0.5
    assert parse_minimum_size("24GB+") == parse_size("24GB")
    for wrong in ("4++", "four", "-4", True, None, float("nan"), -1):
        with pytest.raises(ValueError, match="write '4' or '4"):
            parse_minimum_count(wrong)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0s"), (0.85, "850ms"), (1.5, "1.5s"), (12, "12s"), (59.7, "1m00s"), (200, "3m20s"), (7500, "2h05m"),
        (86_400 * 4 + 6 * 3600, "4d06h"), (-90, "-1m30s"), (float("inf"), "∞"),
    ],
)  # fmt: skip
def test_lengths_for_people(seconds: float, shown: str) -> None:
    """At most two units, the second one padded."""
    assert format_length(seconds) == shown


@given(st.integers(min_value=60, max_value=10**9))
def test_a_shown_length_reads_back_within_its_precision(seconds: int) -> None:
    """What people are shown can be typed in again, and is right to the smaller unit shown."""
    assert parse_length(format_length(seconds)) == pytest.approx(seconds, abs=3600 if seconds >= 86_400 else 60)


def test_sizes_counts_and_money_for_people() -> None:
    """Three digits; small amounts of money keep their digits."""
    assert [format_size(size) for size in (512, 24e9, 1.5e12, 999.7e3)] == ["512 B", "24 GB", "1.5 TB", "1 MB"]
    assert [format_money(usd) for usd in (0, 12.4, 0.0031, -2, 1234.5)] == [
        "$0", "$12.40", "$0.0031", "-$2.00", "$1,234.50",
    ]  # fmt: skip
    assert [format_count(number) for number in (1200, 0.5)] == ["1,200", "0.5"]


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ([18], "job 18"), ([18, 19], "jobs 18 and 19"), ([3, 4, 7], "jobs 3, 4 and 7"),
        (range(9), "jobs 0, 1, 2 and 6 more"),
    ],
)  # fmt: skip
def test_jobs_are_named_as_people_name_them(jobs: Sequence[int], said: str) -> None:
    assert format_jobs(jobs) == said
