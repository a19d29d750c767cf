"""What would be different, in words: the answer of `walras whatif`, and the menu of `walras submit`, from which one may
take a way.
"""

import time
from typing import TYPE_CHECKING

from walras.cli.forecast_text import clock_text, interval_text
from walras.cli.job_choice import instant_of
from walras.cli.session import with_client
from walras.cli.terminal_output import Column, Listing, OutputFormat, dash, show_json, show_line, show_listing
from walras.units import format_length, format_money

if TYPE_CHECKING:
    from walras.api import JobDetail
    from walras.spec.job_spec import JobSpec
    from walras.what_if import DifferenceView, JobDifferenceView, QuoteView, Triple, WayView, WhatIfView

#: Differences that a person would not notice: in seconds, and in USD.
_SAME_S, _SAME_USD = 1.0, 0.005


def show_what_if(found: "WhatIfView") -> None:
    """Prints the differences by project and job, or that there are none."""
    show_line(
        f"If: {'; '.join(found.changes)}. {found.draws} futures, each with and without; four in five lie between."
    )
    if all(_is_same(each) for each in (found.total, *found.projects)):
        show_line("Nothing is different for the jobs of now in any of them.")
    else:
        rows = [found.total, *(found.projects if len(found.projects) > 1 else ())]
        show_listing(Listing(_COLUMNS, [_row(each) for each in rows], None), OutputFormat.TABLE)
    if found.jobs:
        show_line("Jobs that change most:")
        show_listing(Listing(_JOB_COLUMNS, [_job_row(each) for each in found.jobs], None), OutputFormat.TABLE)
    for way in found.submitted:
        show_line(f"The job: {_way_text(way)}")
    before, after = found.unfinished
    if max(before, after) > 0:
        ends = "counted as ended where the futures were given up"
        show_line(f"Never ended, and {ends}: {before:.0f} jobs as things are, {after:.0f} with it.")


_COLUMNS = [
    Column("PROJECT", shrinks=True),
    Column("JOBS", right=True),
    Column("START", spare=1),
    Column("END"),
    Column("USD"),
]
_JOB_COLUMNS = [
    Column("JOB", right=True),
    Column("NAME", shrinks=True, keeps_ends=True),
    Column("PROJECT", shrinks=True, spare=1),
    Column("START"),
    Column("END"),
]


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
    if output is OutputFormat.JSON:
        show_json(found.model_dump(mode="json"))
        return
    show_ways(found)
    show_line("Nothing is submitted; --take WAY submits it so.")


def take_from_menu(spec: "JobSpec", wanted: str, *, quiet: bool) -> "JobSpec":
    """Returns the job as a way of its menu has it, which is shown. Raises UserError where there is no such way."""
    from walras.taken_quote import take_way

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
    from walras.taken_quote import quoted_outcome

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
    show_line(f"{found.draws} futures of each way; four in five lie between, and a promised end is kept in 19 of 20.")
    columns = [Column("WAY"), Column("STARTS"), Column("ENDS"), Column("PROMISED"), Column("USD"), Column("DELAYS")]
    show_listing(Listing(columns, [_quote_row(way) for way in found.ways], None), OutputFormat.TABLE)
    for way in found.ways:
        if way.promised_by is None:
            show_line(
                f"{way.way or 'as it asks'}: no end is promised: {way.no_promise or 'the server does not say why'}."
            )


def _quote_row(way: "WayView") -> list[str]:
    now, told = time.time(), way.forecast
    starts = "not soon" if told is None or told.start is None else interval_text(told.start, now)
    ends = "not soon" if told is None or told.end is None else interval_text(told.end, now)
    promised = "nothing" if way.promised_by is None else f"by {clock_text(way.promised_by, now)}"
    low, _, high = way.usd
    usd = f"{format_money(low)} to {format_money(high)}"
    return [way.way or "as it asks", starts, ends, promised, usd, _delays(way)]


def _way_text(way: "WayView") -> str:
    if way.forecast is None or way.forecast.start is None or way.forecast.end is None:
        return "it does not end within the time that is looked ahead"
    now, start, end = time.time(), way.forecast.start, way.forecast.end
    starts = f"starts about {clock_text(max(start[1], now), now)} ({interval_text(start, now)})"
    ends = f"ends about {clock_text(max(end[1], now), now)} ({interval_text(end, now)})"
    return f"{starts}, {ends}, costs {format_money(way.usd[1])}; delays {_delays(way)}"


def _delays(way: "WayView") -> str:
    return f"{way.delayed_jobs} jobs by {format_length(way.delay_s)} in all" if way.delayed_jobs else "nobody"
