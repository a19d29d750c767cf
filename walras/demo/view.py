"""How the demo shows itself while it runs: a live picture on a terminal, one line per change elsewhere."""

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from walras.api import JobView, NodeView, PriceView
from walras.demo.recording import prices_line

#: Changes shown below the tables.
LAST_LINES = 8


class View:
    """Shows the state of the cluster; use as a context manager."""

    def __init__(self, console: Console, *, live: bool) -> None:
        self._console = console
        self._live = (
            Live(console=console, refresh_per_second=4, transient=True) if live and console.is_terminal else None
        )
        self._lines: list[str] = []

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, at_s: float, lines: Iterable[str]) -> None:
        """Tell what changed."""
        for line in lines:
            told = f"{at_s:6.1f} s  {line}"
            self._lines = [*self._lines[-(LAST_LINES - 1) :], told]
            if self._live is None:
                self._console.print(told, markup=False, highlight=False, soft_wrap=True)

    def show(self, jobs: Sequence[JobView], nodes: Sequence[NodeView], prices: Sequence[PriceView]) -> None:
        """Draw the present state (terminals only)."""
        if self._live is not None:
            below = Text("\n".join([f"prices: {prices_line(prices)}", "", *self._lines]))
            self._live.update(Group(_nodes(nodes), _jobs(jobs), below))


def _nodes(nodes: Sequence[NodeView]) -> Table:
    table = Table(title="machines (emulated accelerators)", title_justify="left")
    for name in ("machine", "type", "market", "state", "free", "jobs"):
        table.add_column(name)
    for node in nodes:
        busy = " ".join(str(job) for job in node.jobs)
        free = f"{node.free} of {node.accelerators}"
        table.add_row(escape(node.node_id), node.accelerator, node.market, node.state, free, busy)
    return table


def _jobs(jobs: Sequence[JobView]) -> Table:
    table = Table(title="jobs", title_justify="left")
    for name in ("job", "name", "user", "state", "on", "step", "steps/s", "loss", "reason"):
        table.add_column(name, no_wrap=True)
    for job in jobs:
        loss = job.last_values.get("loss")
        total = f" of {job.steps_total:.0f}" if job.steps_total else ""
        table.add_row(
            str(job.id),
            escape(job.name),
            escape(job.user),
            job.state,
            job.accelerator or "",
            f"{job.steps:.0f}{total}",
            f"{job.steps_per_s:.1f}" if job.steps_per_s else "",
            f"{loss:.3f}" if loss is not None else "",
            job.reason or "",
        )
    return table
