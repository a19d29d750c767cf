"""The screens of `walras top`: the cluster, one job, the machines, and the question before a job is cancelled.

A screen asks the server while it is visible, and then follows what the server tells by itself, where there is such a
stream; else, and when the stream breaks, it asks again and again. When the server is away the screen keeps what it
knows, says since when, and goes on by itself once the server answers. Nothing that comes from a job is read as markup:
widgets are handed `Text`, made safe, never strings. The texts (the header, the fleet, the queue, and one job's
attempts) are made from the bodies of the REST API.
"""

import asyncio
import colorsys
import contextlib
import time
from collections import Counter, deque
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.css.query import NoMatches
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Footer, Input, OptionList, Static
from textual.widgets.option_list import Option

from walras.cli.arguments import instant_of
from walras.cli.forecast_text import clock_text, expected_text
from walras.cli.job_commands import explain_lines, headline, reason_words
from walras.cli.terminal_output import STATE_STYLES, LogText, cut_in_the_middle, joined, safe_text
from walras.errors import NotFound, UserError, WalrasError
from walras.resources.fleet import NodeView
from walras.resources.overview import Overview
from walras.states import JobState
from walras.units import format_count, format_length, format_money

if TYPE_CHECKING:
    from walras.client import Client
    from walras.resources.jobs import AttemptView, JobView
    from walras.resources.overview import MachineCells, Overview
    from walras.resources.prices import PriceView

#: An accelerator of a machine in this state; one that is idle on a machine that is up is `_IDLE`.
_CELLS = {"up": "■", "leaving": "▨", "draining": "▨", "unreachable": "▢", "quarantined": "▢"}
_IDLE, _NO_JOBS = "□", "▢"
#: The largest fleet whose machines are shown with names.
_NAMED_MACHINES_MOST = 40
_ALERTS_SHOWN = 3
_BARS = "▁▂▃▄▅▆▇█"
#: The number of solves whose prices make a pool's line.
_LINE_POINTS = 24


@dataclass(frozen=True, slots=True)
class JobLine:
    """A job of the list: its number, and what is shown of it."""

    job_id: int
    text: Text


def colour_of_job(job_id: int) -> str:
    """Returns the colour of a job's cells, the same as on the web page: neighbours in number are far apart."""
    red, green, blue = colorsys.hls_to_rgb((job_id * 137.508 % 360) / 360, 0.6, 0.65)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def header_text(overview: "Overview") -> Text:
    """Returns how many run and wait, what is free of each type, money per hour, and the alerts."""
    shown = Text(safe_text(headline(overview)), style="bold")
    if overview.money is not None:
        shown.append(f"; {format_money(overview.money.usd_per_h)}/h now")
        shown.append(f", {format_money(overview.money.spent_usd)} this month")
        saved = overview.money.on_demand_usd - overview.money.spent_usd
        if saved >= 0.01:
            shown.append(f" ({format_money(saved)} less than all on demand)")
    for alert in overview.alerts[:_ALERTS_SHOWN]:
        shown.append(f"\n! {safe_text(alert.text)}", style="bold red" if alert.level == "error" else "yellow")
    if (more := len(overview.alerts) - _ALERTS_SHOWN) > 0:
        shown.append(f"\n! and {more} more alerts", style="yellow")
    return shown


def fleet_text(overview: "Overview") -> Text:
    """Returns each pool with its price, and below it a cell for each accelerator, in the colour of its job."""
    if not overview.pools:
        return Text("No pool is declared and no machine has joined: `walras agent` starts one.")
    by_pool: dict[str, list[MachineCells]] = {}
    for machine in overview.machines:
        by_pool.setdefault(machine.pool, []).append(machine)
    is_named = len(overview.machines) <= _NAMED_MACHINES_MOST
    shown = Text()
    for pool in overview.pools:
        shown.append_text(_pool_text(pool, _price_line(overview, pool.pool)))
        for machine in by_pool.get(pool.pool, []):
            shown.append("  ")
            shown.append_text(_machine_text(machine, is_named=is_named))
        shown.append("\n")
    shown.rstrip()
    return shown


def _pool_text(pool: "PriceView", line: str) -> Text:
    shown = Text(safe_text(pool.pool), style="bold")
    shown.append(f"  {pool.capacity - pool.free:g} of {pool.capacity:g} held", style="not bold")
    shown.append(f", price {pool.price:.3g} {safe_text(pool.unit)}".rstrip(), style="not bold")
    if pool.market_usd_per_h:
        shown.append(f", machine {format_money(pool.market_usd_per_h)}/h", style="not bold")
    if pool.quota_machines:
        shown.append(f", {pool.rented_machines} of {pool.quota_machines} rented", style="not bold")
    shown.append(f" {line}\n" if line else "\n", style="not bold")
    return shown


def _price_line(overview: "Overview", pool: str) -> str:
    """Returns the prices of the last solves as bars; empty before the second."""
    prices = [point.prices[pool] for point in overview.history if pool in point.prices][-_LINE_POINTS:]
    if len(prices) < 2:
        return ""
    low, high = min(prices), max(prices)
    step = (high - low) / (len(_BARS) - 1) or 1.0
    return "".join(_BARS[round((price - low) / step)] for price in prices)


def _machine_text(machine: "MachineCells", *, is_named: bool) -> Text:
    # A line break inside a machine would make two machines of it.
    shown = Text(f"{safe_text(machine.machine or machine.node_id)}\u00a0" if is_named else "")
    idle = _IDLE if machine.state == "up" else _NO_JOBS
    for job_id, cells in groupby(machine.cells):
        many = sum(1 for _ in cells)
        if job_id:
            shown.append(_CELLS.get(machine.state, _NO_JOBS) * many, style=colour_of_job(job_id))
        else:
            shown.append(idle * many, style="bright_black")
    if machine.state != "up" and is_named:
        shown.append(f"\u00a0{safe_text(machine.state)}", style=STATE_STYLES.get(machine.state, "red"))
    return shown


# -------------------------------------------------------------------------------------------------------- jobs


def job_lines(overview: "Overview", wanted: str, width: int) -> list[JobLine]:
    """Returns those who are next, in order, and behind them those that hold accelerators, where `wanted` occurs in the
    number, name, user, project or reason. Names are cut in their middle at this width; numbers never are.
    """
    now = time.time()
    found = [_waiting_line(place, job, now, width) for place, job in enumerate(overview.queue, start=1)]
    found += _running_lines(overview, width)
    return [line for line in found if wanted.lower() in line.text.plain.lower()]


def _named(job_id: int, name: str, width: int) -> Text:
    shown = Text(f"{job_id} ", style=f"bold {colour_of_job(job_id)}")
    shown.append_text(cut_in_the_middle(Text(safe_text(name), style="bold default"), max(width // 2, 12)))
    return shown


def _waiting_line(place: int, job: "JobView", now: float, width: int) -> JobLine:
    shown = Text(f"{place}. ")
    shown.append_text(_named(job.id, job.name, width))
    waits = format_length(max(now - instant_of(job.submitted_at), 0.0))
    facts = f"{safe_text(job.user)}/{safe_text(job.project)}, {format_count(job.accelerators)} acc, waits {waits}"
    shown.append(f"  {facts}", style="bright_black")
    shown.append(f"\n   {safe_text(reason_words(job))}")
    if expected := expected_text(job.forecast, now):
        shown.append(f"; {expected}", style="cyan")
    return JobLine(job.id, shown)


def _running_lines(overview: "Overview", width: int) -> Iterator[JobLine]:
    """Yields the jobs that hold accelerators, with the machines that they are on."""
    held: dict[int, Counter[str]] = {}
    places: dict[int, list[str]] = {}
    for machine in overview.machines:
        for job_id, count in Counter(filter(None, machine.cells)).items():
            held.setdefault(job_id, Counter())[machine.accelerator] += count
            places.setdefault(job_id, []).append(machine.node_id)
    for job_id in sorted(held):
        if (name := overview.names.get(str(job_id))) is None:
            continue  # it belongs to a project that this user does not see
        shown = Text("▶  ", style="green")
        shown.append_text(_named(job_id, name, width))
        types = " + ".join(f"{count} x {safe_text(accelerator)}" for accelerator, count in held[job_id].items())
        shown.append(f"\n   on {types}: {safe_text(_some(places[job_id]))}", style="default")
        yield JobLine(job_id, shown)


def _some(names: Sequence[str], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def attempts_text(attempts: "Sequence[AttemptView]") -> Text:
    """Returns the timeline of a job: each attempt with its times (local), its machines and what came of it."""
    if not attempts:
        return Text("It has not run yet.")
    now, shown = time.time(), Text()
    for attempt in attempts:
        leased = instant_of(attempt.leased_at)
        end = now if attempt.ended_at is None else instant_of(attempt.ended_at)
        until = "now" if attempt.ended_at is None else clock_text(end, now)
        took = format_length(max(end - leased, 0.0))
        shown.append(f"{attempt.attempt}. {clock_text(leased, now)}-{until} ({took})  ")
        shown.append(str(attempt.state), style=STATE_STYLES.get(str(attempt.state), ""))
        shown.append(f": {attempt.reason.words}" if attempt.reason else "")
        shown.append(f"  {attempt.accelerators} x {safe_text(attempt.accelerator)}")
        shown.append(f" on {safe_text(_some(attempt.placement))}")
        if attempt.exit_code is not None:
            shown.append(f", exit code {attempt.exit_code}")
        if attempt.checkpoint_step is not None:
            shown.append(f", checkpoint at step {format_count(attempt.checkpoint_step)}")
        shown.append(f", {format_money(attempt.usd)}\n")
    shown.rstrip()
    return shown


# ------------------------------------------------------------------------------------------------------------- screens


#: After a poll that took long, the next one waits at least this many times as long.
_PART = 20.0


class WatchScreen(Screen[None]):
    """A screen that is updated from the server again and again, and says when the server does not answer."""

    def __init__(self, client: "Client", every_s: float) -> None:
        super().__init__()
        self.client = client
        self.every_s = every_s
        self._lost_at: float | None = None

    def look(self) -> Awaitable[None]:
        """Asks the server and shows what it says; raises WalrasError."""
        raise NotImplementedError

    async def follow(self) -> None:
        """Shows what the server tells by itself, until it ends; returns at once where there is nothing to follow."""

    def on_mount(self) -> None:
        self._keep_looking()

    @work(exclusive=True)
    async def _keep_looking(self) -> None:
        while True:
            began_at = time.monotonic()
            if self.is_current:
                await self.look_once()
            took_s = time.monotonic() - began_at
            if self.is_current and self._lost_at is None:
                await self._follow_quietly()
            # A failed request says nothing of how long the server takes to answer.
            await asyncio.sleep(self.every_s if self._lost_at else max(self.every_s, _PART * took_s))

    async def _follow_quietly(self) -> None:
        """Follows until the stream ends, or the screen is being closed."""
        with contextlib.suppress(NoMatches):
            await self.follow()

    async def look_once(self) -> None:
        """Polls once, and shows it if the server does not answer."""
        told = ""
        try:
            await self.look()
            self._lost_at = None
        except NoMatches:
            # The answer came while the screen was being closed.
            return
        except UserError as error:
            # The server answers, and refuses: no such job, or a token that was revoked.
            self._lost_at = None
            told = f"{error}{fix_of(error)}"
        except WalrasError as error:
            self._lost_at = self._lost_at or time.time()
            told = f"since {clock_text(self._lost_at, time.time())}: {error}; trying again"
        for status in self.query("#status").results(Static):
            status.update(Text(safe_text(told), style="bold white on red"))
            status.display = bool(told)


def fix_of(error: WalrasError) -> str:
    """Returns what an error says may be done, to stand behind it; empty if it says nothing."""
    return f"; {error.fix}" if isinstance(error, UserError) and error.fix else ""


class JobList(OptionList):
    """The jobs, two lines each; the choice stays on its job while the list changes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", "Down", show=False),
        Binding("k", "cursor_up", "Up", show=False),
        Binding("enter", "select", "Job"),
    ]

    def __init__(self) -> None:
        super().__init__(id="jobs", markup=False)
        self._shown: list[Text] = []

    def show_jobs(self, lines: list[JobLine]) -> None:
        """Replaces the list if anything in it changed."""
        texts = [line.text for line in lines]
        if texts == self._shown:
            return
        chosen, place, at = self.chosen, self.highlighted or 0, self.scroll_offset
        self._shown = texts
        self.clear_options()
        self.add_options([Option(line.text, id=str(line.job_id)) for line in lines])
        ids = [line.job_id for line in lines]
        if ids:
            self.highlighted = ids.index(chosen) if chosen in ids else min(place, len(ids) - 1)
            self.scroll_to(*at, animate=False)

    @property
    def chosen(self) -> int | None:
        """The number of the chosen job; None where the list is empty."""
        option = self.highlighted_option
        return None if option is None or option.id is None else int(option.id)


#: The server reports changes by itself. Where that stream does not work, the screen only polls for so many seconds
#: before it tries the stream again.
_ASKED_ALONE_S = 60.0
#: The most jobs that the list holds; the filter searches all that the server reports.
_LISTED_MOST = 250
#: The end of a log that is shown, in bytes.
_LOG_LINES = 200
_LOG_BYTES = 256 * 1024
_LOG_READ_MOST = 4 * 1024 * 1024
#: Columns of the list's width that borders and scroll bars take.
_FRAME = 6


class ClusterScreen(WatchScreen):
    """The first view: header, fleet with prices, and who is next."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "machines", "Machines"),
        Binding("c", "cancel", "Cancel"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("escape", "clear_filter", "All", show=False),
        Binding("q", "app.quit", "Quit"),
    ]

    def __init__(self, client: "Client", every_s: float) -> None:
        super().__init__(client, every_s)
        self._overview: Overview | None = None
        self._fleet = Text()
        self._follow_again_at = 0.0

    def compose(self) -> ComposeResult:
        yield Static("", id="header", markup=False)
        yield Static("", id="status", markup=False)
        with VerticalScroll(id="fleet-box", can_focus=False):
            yield Static("", id="fleet", markup=False)
        yield JobList()
        yield Static("", id="more", markup=False)
        yield Input(placeholder="number, name, user, project or reason; Escape: all", id="filter")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one("#filter").display = False
        self.query_one("#status").display = False
        self.query_one(JobList).focus()

    async def look(self) -> None:
        self._overview = await self.client.overview()
        self._show()

    async def follow(self) -> None:
        if time.monotonic() < self._follow_again_at:
            return
        was_told = False
        try:
            async for overview in self.client.overviews():
                self._overview, was_told = overview, True
                self._show()
        except NotFound:
            self._follow_again_at = inf  # the server has an older release
            return
        except WalrasError:
            pass  # the next poll reports what is wrong, if anything is
        if not was_told:
            self._follow_again_at = time.monotonic() + _ASKED_ALONE_S

    def on_resize(self) -> None:
        self._show()

    @on(Input.Changed, "#filter")
    def _show(self) -> None:
        if self._overview is None:
            return
        overview, wanted = self._overview, self.query_one("#filter", Input).value.strip()
        self.query_one("#header", Static).update(header_text(overview))
        if (fleet := fleet_text(overview)) != self._fleet:
            # Thousands of cells are drawn anew only if one of them changed.
            self._fleet = fleet
            self.query_one("#fleet", Static).update(fleet)
        lines = job_lines(overview, wanted, self.size.width - _FRAME)
        self.query_one(JobList).show_jobs(lines[:_LISTED_MOST])
        self.query_one("#more", Static).update(Text(self._below_the_list(overview, wanted, len(lines))))

    @staticmethod
    def _below_the_list(overview: Overview, wanted: str, shown: int) -> str:
        told = [f"filter {wanted!r}: {shown} shown"] if wanted else []
        if wanted.isdecimal() and not shown:
            told.append(f"Enter opens job {wanted}")
        if not shown and not wanted:
            told.append("No job waits or runs.")
        if shown > _LISTED_MOST:
            told.append(f"{shown - _LISTED_MOST:,} more run: / filters")
        if (behind := overview.waiting + overview.counts.get(JobState.HELD, 0) - len(overview.queue)) > 0:
            told.append(f"{behind:,} more wait behind these")
        return safe_text("; ".join(told))

    # ------------------------------------------------------------------------------------------------ what keys do

    @on(OptionList.OptionSelected, "#jobs")
    def _open_chosen(self, event: OptionList.OptionSelected) -> None:
        if event.option_id is not None:
            self.app.push_screen(JobScreen(self.client, self.every_s, int(event.option_id)))

    def action_machines(self) -> None:
        self.app.push_screen(MachinesScreen(self.client, self.every_s))

    def action_cancel(self) -> None:
        job_id, overview = self.query_one(JobList).chosen, self._overview
        if job_id is not None and overview is not None:
            names = overview.names | {str(job.id): job.name for job in overview.queue}
            ask_and_cancel(self, job_id, names.get(str(job_id), ""))

    def action_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.display = True
        box.focus()

    def action_clear_filter(self) -> None:
        self.query_one("#filter", Input).value = ""
        self._close_filter()

    @on(Input.Submitted, "#filter")
    def _close_filter(self) -> None:
        box, jobs = self.query_one("#filter", Input), self.query_one(JobList)
        box.display = False
        jobs.focus()
        wanted = box.value.strip()
        if wanted.isdecimal() and not jobs.option_count and len(wanted) < 16:
            self.app.push_screen(JobScreen(self.client, self.every_s, int(wanted)))


class JobScreen(WatchScreen):
    """One job: its attempts, why it waits or runs where it does, and the end of its log."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "back", "Back", key_display="Esc"),
        Binding("j", "scroll(3)", "Down", show=False),
        Binding("k", "scroll(-3)", "Up", show=False),
        Binding("c", "cancel", "Cancel"),
        Binding("q", "app.quit", "Quit"),
    ]

    def __init__(self, client: "Client", every_s: float, job_id: int) -> None:
        super().__init__(client, every_s)
        self.job_id = job_id
        self._job_name = ""

    def compose(self) -> ComposeResult:
        yield Static(f"job {self.job_id}", id="header", markup=False)
        yield Static("", id="status", markup=False)
        with VerticalScroll(id="job-box"):
            yield Static("", id="attempts", classes="part", markup=False)
            yield Static("", id="explain", classes="part", markup=False)
            yield Static("", id="log", classes="part", markup=False)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one("#status").display = False
        for part, title in (("#attempts", "Attempts"), ("#explain", "Why"), ("#log", "End of the log")):
            self.query_one(part).border_title = title

    async def look(self) -> None:
        job = await self.client.job(self.job_id)
        self._job_name = job.name
        explained = await self.client.explain(self.job_id)
        head = Text(f"job {job.id} {safe_text(job.name)}  ", style="bold")
        head.append(str(job.state), style=STATE_STYLES.get(str(job.state), ""))
        head.append(f"  {safe_text(job.user)}/{safe_text(job.project)}", style="not bold")
        self.query_one("#header", Static).update(head)
        self.query_one("#attempts", Static).update(attempts_text(job.attempt_list))
        lines = explain_lines(explained, job)
        lines += [f"  {job.why}"] if job.why and job.state.is_final else []
        self.query_one("#explain", Static).update(Text("\n".join(map(safe_text, lines))))
        log = await self._end_of_log() if job.attempt_list else ""
        self.query_one("#log", Static).update(Text(log or "Nothing was printed yet."))

    async def _end_of_log(self) -> str:
        """Returns the last lines of the newest attempt's first rank."""
        try:
            offset = await self.client.log_start(self.job_id, tail=_LOG_LINES)
        except NotFound:
            return ""
        pieces: deque[bytes] = deque()
        kept = read = 0
        async for piece in self.client.logs(self.job_id, offset=offset):
            pieces.append(piece)
            kept, read = kept + len(piece), read + len(piece)
            while kept - len(pieces[0]) >= _LOG_BYTES:
                kept -= len(pieces.popleft())
            if read >= _LOG_READ_MOST:
                break
        return LogText().feed(b"".join(pieces), final=True).rstrip("\n")

    def action_back(self) -> None:
        self.dismiss()

    def action_scroll(self, lines: int) -> None:
        self.query_one("#job-box").scroll_relative(y=lines, animate=False)

    def action_cancel(self) -> None:
        ask_and_cancel(self, self.job_id, self._job_name)


class MachinesScreen(WatchScreen):
    """The machines: their state, and who is on them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace,n", "back", "Back", key_display="Esc"),
        Binding("j", "down", "Down", show=False),
        Binding("k", "up", "Up", show=False),
        Binding("q", "app.quit", "Quit"),
    ]
    _COLUMNS = ("MACHINE", "STATE", "FREE", "OF", "TYPE", "POOL", "JOBS", "WHY")

    def compose(self) -> ComposeResult:
        yield Static(Text("Machines", style="bold"), id="header", markup=False)
        yield Static("", id="status", markup=False)
        yield DataTable[Text](id="machines", cursor_type="row", zebra_stripes=True)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one("#status").display = False
        table = self.query_one(DataTable)
        table.add_columns(*(Text(name) for name in self._COLUMNS))
        table.focus()

    async def look(self) -> None:
        nodes = await self.client.nodes()
        table = self.query_one(DataTable)
        at, offset = table.cursor_row, table.scroll_offset
        table.clear()
        table.add_rows(self._row(node) for node in nodes)
        table.move_cursor(row=min(at, max(len(nodes) - 1, 0)), scroll=False)
        table.scroll_to(*offset, animate=False)

    @staticmethod
    def _row(node: NodeView) -> list[Text]:
        return [
            Text(safe_text(node.machine or node.node_id)),
            Text(safe_text(node.state), style=STATE_STYLES.get(node.state, "")),
            Text(str(node.free), justify="right"),
            Text(str(node.accelerators), justify="right"),
            Text(safe_text(node.accelerator)),
            Text(safe_text(node.pool)),
            Text(joined(node.jobs)),
            Text(safe_text(node.detail or node.problem)),
        ]

    def action_back(self) -> None:
        self.dismiss()

    def action_down(self) -> None:
        self.query_one(DataTable).action_cursor_down()

    def action_up(self) -> None:
        self.query_one(DataTable).action_cursor_up()


# ------------------------------------------------------------------------------------------------------ cancelling


class ConfirmCancel(ModalScreen[bool]):
    """Asks whether a job shall be cancelled; only `y` says yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,enter,q", "answer(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical(id="question"):
            yield Static(Text(self._question), markup=False)
            yield Static(Text("y = yes, n = no", style="bold"), markup=False)

    def action_answer(self, is_yes: bool) -> None:
        self.dismiss(is_yes)


def ask_and_cancel(screen: WatchScreen, job_id: int, name: str) -> None:
    """Asks, and cancels the job if the answer is yes; what came of it is told in a corner of the screen."""

    async def cancel() -> None:
        try:
            state = await screen.client.cancel(job_id)
        except WalrasError as error:
            screen.notify(safe_text(f"{error}{fix_of(error)}"), severity="error", markup=False)
            return
        told = f"job {job_id} is {state}" if state.is_final else f"job {job_id} is being cancelled"
        screen.notify(told, markup=False)
        await screen.look_once()

    def answered(is_yes: bool | None) -> None:
        if is_yes:
            screen.run_worker(cancel(), group="cancel", exit_on_error=False)

    screen.app.push_screen(ConfirmCancel(safe_text(f"Cancel job {job_id} {name}".rstrip()) + "?"), answered)


class TopApp(App[None]):
    """`walras top`."""

    TITLE = "walras top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #header { padding: 0 1; }
    #status { padding: 0 1; }
    #fleet-box { height: auto; max-height: 45%; padding: 0 1; border-top: solid $primary; }
    #fleet { height: auto; }
    #jobs { height: 1fr; border: none; border-top: solid $primary; padding: 0; }
    #more { padding: 0 1; color: $text-muted; }
    #job-box { height: 1fr; }
    .part { border: round $primary; padding: 0 1; height: auto; }
    #machines { height: 1fr; }
    ConfirmCancel { align: center middle; }
    #question { width: auto; max-width: 90%; height: auto; padding: 1 2; border: round $warning; background: $surface; }
    #question Static { width: auto; }
    """

    def __init__(self, client: "Client", every_s: float = 2.0) -> None:
        super().__init__()
        self._client = client
        self._every_s = every_s

    def on_mount(self) -> None:
        self.push_screen(ClusterScreen(self._client, self._every_s))
