"""The form in which every benchmark hands back its figures."""

from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value, and between what it should lie; None: only told, not judged."""

    what: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None

    @property
    def met(self) -> bool:
        """Whether it lies where it should."""
        low = self.at_least is None or self.value >= self.at_least
        return low and (self.at_most is None or self.value <= self.at_most)

    @property
    def wanted(self) -> str:
        """The target in words; empty without one."""
        bounds = [
            f"{sign} {bound:g} {self.unit}"
            for sign, bound in (("<=", self.at_most), (">=", self.at_least))
            if bound is not None
        ]
        return " and ".join(bounds)


@dataclass(slots=True)
class Measured:
    """One benchmark and its figures."""

    title: str
    #: Machine-independent facts that the figures depend on (sizes, seeds).
    setting: str
    rows: list[Figure] = field(default_factory=list)

    def add(
        self, what: str, value: float, unit: str, at_most: float | None = None, at_least: float | None = None
    ) -> None:
        """Add a figure, with the target it should keep to."""
        self.rows.append(Figure(what, value, unit, at_most, at_least))

    @property
    def met(self) -> bool:
        """Whether every figure with a target reaches it."""
        return all(figure.met for figure in self.rows)

    def named(self) -> dict[str, Figure]:
        """The figures by full name.

        An indented one belongs to the last before it that is not indented; a second of the same name ends with `#2`.
        """
        found: dict[str, Figure] = {}
        head = ""
        for figure in self.rows:
            bare = figure.what.strip()
            if figure.what.startswith(" "):
                bare = f"{head} / {bare}"
            else:
                head = bare
            name, count = bare, 1
            while name in found:
                count += 1
                name = f"{bare} #{count}"
            found[name] = figure
        return found


def show(measured: Measured, console: Console) -> None:
    """Print as a table; a missed target is marked."""
    table = Table("what", "measured", "target", title=f"{measured.title} ({measured.setting})")
    for figure in measured.rows:
        wanted = figure.wanted + ("" if figure.met else " MISSED")
        table.add_row(figure.what, f"{figure.value:,.4g} {figure.unit}", wanted, style=None if figure.met else "red")
    console.print(table)
