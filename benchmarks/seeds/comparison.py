"""What the command of a seed prints: figures of a paper or its data beside ours."""

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """One figure. `paper` is None where ours is only shown."""

    what: str
    paper: float | None
    ours: float
    #: Which values of ours agree with the paper's, both inclusive.
    least: float
    most: float

    @property
    def agrees(self) -> bool:
        """Whether ours is what the paper says, or as good as it."""
        return self.least <= self.ours <= self.most


@dataclass(slots=True)
class Comparison:
    """The figures of one question."""

    title: str
    figures: list[ComparedFigure] = field(default_factory=list)

    def equal(self, what: str, paper: float, ours: float, within: float = 1e-9) -> None:
        """Adds a figure that may differ by at most `within`, in its own unit."""
        self.figures.append(ComparedFigure(what, paper, ours, paper - within, paper + within))

    def at_most(self, what: str, paper: float, ours: float) -> None:
        """Adds a figure that may be lower than the paper's."""
        self.figures.append(ComparedFigure(what, paper, ours, -float("inf"), paper))

    def at_least(self, what: str, paper: float, ours: float) -> None:
        """Adds a figure that may be higher than the paper's."""
        self.figures.append(ComparedFigure(what, paper, ours, paper, float("inf")))

    def show(self, what: str, ours: float) -> None:
        """Adds a figure that the paper does not state."""
        self.figures.append(ComparedFigure(what, None, ours, -float("inf"), float("inf")))

    @property
    def agrees(self) -> bool:
        """Whether every figure does."""
        return all(figure.agrees for figure in self.figures)


def reference_data() -> Path:
    """Returns the folder of the recorded data. Ends the command where nobody names it."""
    given = os.environ.get("WALRAS_DATA")
    if not given:
        sys.exit("this comparison reads recorded data: set WALRAS_DATA to their folder")
    return Path(given)


def run_comparisons(compare: Callable[[], Iterable[Comparison]]) -> int:
    """Prints the tables as they are ready. Returns the exit code: 1 if a figure differs from the paper's."""
    console, agrees = Console(), True
    for each in compare():
        table = Table("what", "reference", "ours", "", title=each.title)
        for figure in each.figures:
            paper = "-" if figure.paper is None else f"{figure.paper:,.5g}"
            mark = "" if figure.agrees else "DIFFERS"
            table.add_row(figure.what, paper, f"{figure.ours:,.5g}", mark, style="red" if mark else None)
        console.print(table)
        agrees = agrees and each.agrees
    return 0 if agrees else 1
