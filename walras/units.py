"""Lengths, sizes, counts, money and jobs as people write and read them.

Parsing raises ValueError with the text and examples of what is accepted; the caller adds the name of the field. Inside
Walras instants are plain seconds, and only edges know the calendar (`walras.spec.field_types`).
"""

import re
from collections.abc import Sequence
from math import isfinite

from walras.contract import SECONDS_PER_DAY, SECONDS_PER_HOUR

_LENGTH_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": SECONDS_PER_HOUR, "d": SECONDS_PER_DAY, "w": 604_800.0}
_LENGTH_WORDS = {
    "sec": "s", "secs": "s", "second": "s", "seconds": "s", "min": "m", "mins": "m", "minute": "m", "minutes": "m",
    "hr": "h", "hrs": "h", "hour": "h", "hours": "h", "day": "d", "days": "d", "week": "w", "weeks": "w",
}  # fmt: skip
_SIZE_UNITS = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "pb": 10**15,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "pib": 2**50,
}  # fmt: skip
_NUMBER = r"\d+(?:\.\d+)?"
_PLAIN_NUMBER = re.compile(_NUMBER, re.ASCII)
_LENGTH_PART = re.compile(rf"\s*({_NUMBER})\s*([a-z]+)", re.ASCII)
_SIZE = re.compile(rf"({_NUMBER})\s*([a-z]*)", re.ASCII)
_LENGTH_EXAMPLES = "'90', '10m', '1h30m', '2d'"
_SIZE_EXAMPLES = "'24GB', '512MiB'"
#: The longest text that is parsed, so that errors do not quote a hostile file at length.
_LONGEST_TEXT = 64
#: A hundred years: a longer length is a mistake, and would overflow calendars.
MAX_LENGTH_S = 100 * 365.25 * SECONDS_PER_DAY
#: An exbibyte, in bytes.
MAX_SIZE_BYTES = 2**60


def parse_length(value: object) -> float:
    """Returns the seconds: a number is seconds, text is a number or parts such as `1h30m`. Never negative, NaN or
    infinite.
    """
    if isinstance(value, str):
        seconds = _length_of_text(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    else:
        raise ValueError(f"{_quoted(value)} is not a length of time; write {_LENGTH_EXAMPLES}")
    if not (isfinite(seconds) and 0 <= seconds <= MAX_LENGTH_S):
        raise ValueError(f"{_quoted(value)} is not a length between 0 and 100 years; write {_LENGTH_EXAMPLES}")
    return seconds


def _length_of_text(text: str) -> float:
    lowered = text.strip().lower()
    refusal = ValueError(f"{_quoted(text)} is not a length of time; write {_LENGTH_EXAMPLES}")
    if not lowered or len(lowered) > _LONGEST_TEXT:
        raise refusal
    if _PLAIN_NUMBER.fullmatch(lowered):
        return float(lowered)
    seconds, end = 0.0, 0
    while end < len(lowered):
        part = _LENGTH_PART.match(lowered, end)
        if part is None:
            raise refusal
        unit = _LENGTH_WORDS.get(part[2], part[2])
        if unit not in _LENGTH_UNITS:
            raise refusal
        seconds += float(part[1]) * _LENGTH_UNITS[unit]
        end = part.end()
    return seconds


def parse_size(value: object) -> int:
    """Returns the bytes: a whole number is bytes, text carries a unit (powers of 1000: `GB`; of 1024: `GiB`)."""
    if isinstance(value, str):
        text = value.strip().lower()
        match = _SIZE.fullmatch(text) if len(text) <= _LONGEST_TEXT else None
        if match is None or (match[2] or "b") not in _SIZE_UNITS or ("." in match[1] and not match[2]):
            raise ValueError(f"{_quoted(value)} is not a size; write {_SIZE_EXAMPLES}")
        size = (float(match[1]) if "." in match[1] else int(match[1])) * _SIZE_UNITS[match[2] or "b"]
    elif isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        raise ValueError(f"{_quoted(value)} is not a size; write {_SIZE_EXAMPLES}")
    if not 0 <= size <= MAX_SIZE_BYTES:
        raise ValueError(f"{_quoted(value)} is not a size between 0 and 1 EiB; write {_SIZE_EXAMPLES}")
    return round(size)


def parse_minimum_size(value: object) -> int:
    """Does what `parse_size` does; `24GB+` is accepted and means the same, because every size asked for
    is a minimum.
    """
    return parse_size(_without_plus(value))


def parse_minimum_count(value: object) -> float:
    """Returns a count such as `4`, `0.5` or `4+`; the plus changes nothing, because every count asked for is a
    minimum.
    """
    value = _without_plus(value)
    if isinstance(value, str):
        text = value.strip()
        if len(text) > _LONGEST_TEXT or not _PLAIN_NUMBER.fullmatch(text):
            raise ValueError(f"{_quoted(value)} is not a count; write '4' or '4+'")
        return float(text)
    if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value >= 0:
        return float(value)
    raise ValueError(f"{_quoted(value)} is not a count; write '4' or '4+'")


def _without_plus(value: object) -> object:
    return value.strip().removesuffix("+") if isinstance(value, str) else value


def _quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "…"


# --------------------------------------------------------------------------------------------- for people to read


def format_jobs(job_ids: Sequence[int], most: int = 3) -> str:
    """Returns `job 18`, `jobs 18 and 19`, or `jobs 3, 4, 7 and 12 more`; at least one job."""
    if len(job_ids) == 1:
        return f"job {job_ids[0]}"
    shown, more = [str(each) for each in job_ids[:most]], len(job_ids) - most
    last = f"{more} more" if more > 0 else shown.pop()
    return f"jobs {', '.join(shown)} and {last}"


def format_length(seconds: float) -> str:
    """Returns at most two units, largest first: `0s`, `850ms`, `12s`, `3m20s`, `2h05m`, `4d06h`."""
    if seconds < 0:
        return "-" + format_length(-seconds)
    if not isfinite(seconds):
        return "∞"
    if 0 < seconds < 0.9995:
        return f"{round(seconds * 1000)}ms"
    if seconds < 9.95 and seconds != round(seconds):
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02}h"


def format_size(size_bytes: float) -> str:
    """Returns three digits in powers of 1000: `512 B`, `24 GB`, `1.5 TB`."""
    value, units = float(size_bytes), ["B", "kB", "MB", "GB", "TB", "PB"]
    while value >= 999.5 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.3g} {units[0]}" if value < 999.5 else f"{value:.0f} {units[0]}"


def format_money(usd: float) -> str:
    """Returns cents from a dollar up, four digits below: `$12.40`, `$0.0031`, `$0`."""
    if usd < 0:
        return "-" + format_money(-usd)
    if usd == 0:
        return "$0"
    return f"${usd:,.2f}" if usd >= 1 else f"${usd:.4f}"


def format_amount(number: float) -> str:
    """Returns hundredths, of a small number two digits, so that it is not said to be nothing: `2.50`, `0.0031`."""
    return f"{number:.2g}" if 0 < abs(number) < 0.1 else f"{number:.2f}"


def format_count(number: float) -> str:
    """Returns whole numbers with thousands separated, others to one place: `1,200`, `0.5`."""
    return f"{number:,.0f}" if number == round(number) else f"{number:,.1f}"
