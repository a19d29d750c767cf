"""When jobs are expected to start and end, in words and local time: never a time without its interval.

What would be different, in words: the answer of `walras simulate whatif`, and the menu of `walras submit`, from
which one may take a way.
"""

import time
from datetime import datetime
from typing import TYPE_CHECKING

from walras.cli.arguments import instant_of
from walras.cli.session import with_client
from walras.cli.terminal_output import OutputFormat, dash, show_as_json, show_columns, show_line, show_sentence
from walras.contract import FORECAST_AHEAD_S
from walras.units import format_length, format_money

if TYPE_CHECKING:
    from walras.resources.jobs import ForecastView, JobDetail
    from walras.resources.what_if import DifferenceView, JobDifferenceView, QuoteView, Triple, WayView, WhatIfView
    from walras.spec.job_spec import JobSpec


#: Seconds beyond which a forecast is said to be old.
_OLD_S = 60.0
_DAY_S = 86_400.0


def clock_text(unix_s: float, now_unix_s: float) -> str:
    """Returns an instant in local time: the time of day, with its day if that is not today, its date if it is far."""
    at, now = datetime.fromtimestamp(unix_s).astimezone(), datetime.fromtimestamp(now_unix_s).astimezone()
    if at.date() == now.date():
        return f"{at:%H:%M}"
    return f"{at:%a %H:%M}" if abs(unix_s - now_unix_s) < 6 * _DAY_S else f"{at:%d %b %H:%M}"


def interval_text(told: tuple[float, float, float], now_unix_s: float, as_of: float) -> str:
    """Returns p10 to p90 of an instant, such as `16:10-17:30`, or `16:10 or later` where p90 is beyond what is looked
    ahead from `as_of`; `any moment` if both have come.
    """
    early, _, late = (max(each, now_unix_s) for each in told)
    if is_open(told, as_of):
        return f"{clock_text(early, now_unix_s)} or later"
    first, last = clock_text(early, now_unix_s), clock_text(late, now_unix_s)
    if late - now_unix_s < 30.0:
        return "any moment"
    return first if first == last else f"{first}-{last}"


def is_open(told: tuple[float, float, float], as_of: float) -> bool:
    """Returns whether the p90 of an instant is only the end of what is looked ahead."""
    return told[2] >= as_of + FORECAST_AHEAD_S - 1.0


def expected_text(forecast: "ForecastView | None", now_unix_s: float) -> str:
    """Returns the cell of a listing: when a waiting job starts, or a running one ends. Empty if nobody can tell."""
    if forecast is None:
        return ""
    if forecast.start is not None:
        return f"starts {interval_text(forecast.start, now_unix_s, forecast.as_of)}"
    if forecast.starts_after is not None:
        return f"starts {_after_text(forecast.starts_after, now_unix_s)}"
    if forecast.end is not None:
        return f"ends {interval_text(forecast.end, now_unix_s, forecast.as_of)}"
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
            often = "nine times in ten" if is_open(told, forecast.as_of) else "four times in five"
            parts.append(f"{verb} about {middle} ({interval_text(told, now_unix_s, forecast.as_of)} {often})")
        elif after is not None:
            parts.append(f"{verb} {_after_text(after, now_unix_s)} in nine cases of ten; when, is not known")
    old_s = now_unix_s - forecast.as_of
    as_of = f", as of {format_length(old_s)} ago" if old_s >= _OLD_S else ""
    return ", ".join(parts) + as_of


#: Differences that a person would not notice: in seconds, and in USD.
_SAME_S, _SAME_USD = 1.0, 0.005


def show_what_if(found: "WhatIfView") -> None:
    """Prints the differences by project and job, or that there are none."""
    if found.not_known:
        show_line(f"If: {'; '.join(found.changes) or 'as asked'}. Not known yet: {found.not_known}.")
        for way in found.submitted:
            show_line(f"The job: {forecast_text(way.forecast, time.time()) or 'not known'}")
        return
    show_line(
        f"If: {'; '.join(found.changes)}. {found.draws} futures, each with and without; four in five lie between."
    )
    if all(_is_same(each) for each in (found.total, *found.projects)):
        show_line("Nothing is different for the jobs of now in any of them.")
    else:
        rows = [found.total, *(found.projects if len(found.projects) > 1 else ())]
        show_columns(_COLUMNS, [_row(each) for each in rows])
    if found.jobs:
        show_line("Jobs that change most:")
        show_columns(_JOB_COLUMNS, [_job_row(each) for each in found.jobs])
    for way in found.submitted:
        show_line(f"The job: {_way_text(way)}")
    before, after = found.unfinished
    if max(before, after) > 0:
        ends = "counted as ended where the futures were given up"
        show_line(f"Never ended, and {ends}: {before:.0f} jobs as things are, {after:.0f} with it.")


_COLUMNS = "PROJECT~ | JOBS> | START?1 | END | USD"
_JOB_COLUMNS = "JOB> | NAME~~ | PROJECT~?1 | START | END"


def _is_same(found: "DifferenceView") -> bool:
    times = [*found.completion_s, *(found.waiting_s or ())]
    return all(abs(each) < _SAME_S for each in times) and all(abs(each) < _SAME_USD for each in found.usd)


def _row(found: "DifferenceView") -> list[str]:
    usd = "same" if all(abs(each) < _SAME_USD for each in found.usd) else _money_text(found.usd)
    return [found.project or "others", str(found.jobs), _waits(found.waiting_s), later_text(found.completion_s), usd]


def _job_row(found: "JobDifferenceView") -> list[str]:
    return [str(found.id), found.name, found.project, _waits(found.start_s), later_text(found.end_s)]


def _waits(told: "Triple | None") -> str:
    return dash(None) if told is None else later_text(told)


def later_text(told: "Triple") -> str:
    """Returns a difference in words: `12m sooner (8m to 20m)`; where its sign is not sure, both ends with theirs."""
    low, middle, high = told
    if max(abs(low), abs(high)) < _SAME_S:
        return "same"
    if low < -_SAME_S and high > _SAME_S:
        return f"not sure ({_signed(low)} to {_signed(high)})"
    near, far = sorted((abs(low), abs(high)))
    word = "sooner" if middle < 0 else "later"
    return f"{format_length(abs(middle))} {word} ({format_length(near)} to {format_length(far)})"


def _signed(seconds: float) -> str:
    return f"{format_length(abs(seconds))} {'sooner' if seconds < 0 else 'later'}"


def _money_text(told: "Triple") -> str:
    low, middle, high = (f"{'-' if each < 0 else '+'}{format_money(abs(each))}" for each in told)
    return f"{middle} ({low} to {high})"


# ---------------------------------------------------------------------------------------------------- the menu


def show_menu(spec: "JobSpec", output: OutputFormat) -> None:
    """Ask the server for the ways to run a job, and show them."""
    found = _menu_of(spec)
    if show_as_json(found, output):
        return
    show_ways(found)
    show_line("Nothing is submitted; --take WAY submits it so.")


def take_from_menu(spec: "JobSpec", wanted: str, *, quiet: bool) -> "JobSpec":
    """Returns the job as a way of its menu has it, which is shown. Raises UserError where there is no such way."""
    from walras.resources.what_if import take_way

    found = _menu_of(spec)
    if not quiet:
        show_ways(found)
    taken = take_way(spec, found, wanted)
    assert taken.quoted is not None, "just taken"
    if not quiet:
        show_line(f"taken: {taken.quoted.way}; its deadline is {clock_text(taken.quoted.end_by, time.time())}")
    return taken


def taken_text(job: "JobDetail") -> str:
    """Returns which way of its menu a job took, what was told of it, and what came of that; empty if it took none."""
    from walras.resources.what_if import quoted_outcome

    ended_at = None if job.ended_at is None else instant_of(job.ended_at)
    found = quoted_outcome(job.spec, ended_at=ended_at, usd=job.usd, now_unix_s=time.time())
    if found is None:
        return ""
    by = clock_text(found.end_by_unix_s, time.time())
    return f"{found.way}, to end by {by} for at most {format_money(found.usd_most)}: {found.text}"


def _menu_of(spec: "JobSpec") -> "QuoteView":
    from walras.spec.job_spec import spec_mapping

    return with_client(lambda client: client.quote(spec_mapping(spec)))


def show_ways(found: "QuoteView") -> None:
    """Prints the ways to run a job, one per line."""
    kept = "four in five lie between, and a promised end is kept in 19 of 20"
    show_line(
        f"{found.draws} futures of each way; {kept}."
        if found.draws
        else "As far as places are free or waiting jobs tell:"
    )
    show_columns("WAY | STARTS | ENDS | PROMISED | USD | DELAYS", [_quote_row(way) for way in found.ways])
    if found.note:
        show_line(f"this {found.note}")
    for way in found.ways:
        if way.promised_by is None:
            why = way.no_promise or "the server does not say why"
            show_sentence(f"{way.way or 'as it asks'}: no end is promised: {why}.")


def _quote_row(way: "WayView") -> list[str]:
    now, told = time.time(), way.forecast
    starts = "not known" if told is None or told.start is None else interval_text(told.start, now, told.as_of)
    ends = "not known" if told is None or told.end is None else interval_text(told.end, now, told.as_of)
    promised = "nothing" if way.promised_by is None else f"by {clock_text(way.promised_by, now)}"
    usd = "-" if way.usd is None else " to ".join(dict.fromkeys(format_money(each) for each in way.usd[::2]))
    return [way.way or "as it asks", starts, ends, promised, usd, dash(None) if way.usd is None else _delays(way)]


def _way_text(way: "WayView") -> str:
    if way.forecast is None or way.forecast.start is None or way.forecast.end is None:
        return "it does not end within the time that is looked ahead"
    now, start, end = time.time(), way.forecast.start, way.forecast.end
    starts = f"starts about {clock_text(max(start[1], now), now)} ({interval_text(start, now, way.forecast.as_of)})"
    ends = f"ends about {clock_text(max(end[1], now), now)} ({interval_text(end, now, way.forecast.as_of)})"
    costs = "" if way.usd is None else f", costs {format_money(way.usd[1])}"
    return f"{starts}, {ends}{costs}; delays {_delays(way)}"


def _delays(way: "WayView") -> str:
    return f"{way.delayed_jobs} jobs by {format_length(way.delay_s)} in all" if way.delayed_jobs else "nobody"
