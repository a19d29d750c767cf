"""When jobs are expected to start and end, in words and local time: never a time without its interval."""

from datetime import datetime
from typing import TYPE_CHECKING

from walras.units import format_length

if TYPE_CHECKING:
    from walras.api import ForecastView

#: Seconds beyond which a forecast is said to be old.
_OLD_S = 900.0
_DAY_S = 86_400.0


def clock_text(unix_s: float, now_unix_s: float) -> str:
    """Returns an instant in local time: the time of day, with its day if that is not today, its date if it is far."""
    at, now = datetime.fromtimestamp(unix_s).astimezone(), datetime.fromtimestamp(now_unix_s).astimezone()
    if at.date() == now.date():
        return f"{at:%H:%M}"
    return f"{at:%a %H:%M}" if abs(unix_s - now_unix_s) < 6 * _DAY_S else f"{at:%d %b %H:%M}"


def interval_text(told: tuple[float, float, float], now_unix_s: float) -> str:
    """Returns p10 to p90 of an instant, such as `16:10-17:30`; `now` if both have come."""
    early, _, late = (max(each, now_unix_s) for each in told)
    first, last = clock_text(early, now_unix_s), clock_text(late, now_unix_s)
    if late - now_unix_s < 30.0:
        return "any moment"
    return first if first == last else f"{first}-{last}"


def expected_text(forecast: "ForecastView | None", now_unix_s: float) -> str:
    """Returns the cell of a listing: when a waiting job starts, or a running one ends. Empty if nobody can tell."""
    if forecast is None:
        return ""
    if forecast.start is not None:
        return f"starts {interval_text(forecast.start, now_unix_s)}"
    if forecast.starts_after is not None:
        return f"starts {_after_text(forecast.starts_after, now_unix_s)}"
    if forecast.end is not None:
        return f"ends {interval_text(forecast.end, now_unix_s)}"
    return "" if forecast.ends_after is None else f"ends {_after_text(forecast.ends_after, now_unix_s)}"


def _after_text(unix_s: float, now_unix_s: float) -> str:
    return f"after {clock_text(max(unix_s, now_unix_s), now_unix_s)}"


def forecast_text(forecast: "ForecastView | None", now_unix_s: float) -> str:
    """Returns start and end with their intervals, in a line; of what is beyond, how long it takes at least. Empty if
    nobody can tell.
    """
    if forecast is None:
        return ""
    parts = []
    for verb, told, after in (
        ("starts", forecast.start, forecast.starts_after),
        ("ends", forecast.end, forecast.ends_after),
    ):
        if told is not None:
            middle = clock_text(max(told[1], now_unix_s), now_unix_s)
            parts.append(f"{verb} about {middle} ({interval_text(told, now_unix_s)} four times in five)")
        elif after is not None:
            parts.append(f"{verb} {_after_text(after, now_unix_s)} in nine futures of ten, and most do not show when")
    old_s = now_unix_s - forecast.as_of
    as_of = f", as of {format_length(old_s)} ago" if old_s > _OLD_S else ""
    return ", ".join(parts) + as_of
