"""What the screens of `walras top` have in common: they are updated while they are visible.

A screen asks the server, and then follows what the server tells by itself, where there is such a stream; else, and
when the stream breaks, it asks again and again. When the server is away the screen keeps what it knows, says since
when, and goes on by itself once the server answers.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import work
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from walras.cli.forecast_text import clock_text
from walras.cli.terminal_output import safe_text
from walras.cli.top_text import JobLine
from walras.errors import UserError, WalrasError

if TYPE_CHECKING:
    from walras.client import Client

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
