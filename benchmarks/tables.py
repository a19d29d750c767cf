"""The form in which every benchmark hands back its figures."""

from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table


@dataclass(slots=True)
class Measured:
    """One benchmark: rows of (what, value, unit, target); a target of None is only told, not judged."""

    title: str
    #: Machine-independent facts that the figures depend on (sizes, seeds).
    setting: str
    rows: list[tuple[str, float, str, float | None]] = field(default_factory=list)

    def add(self, what: str, value: float, unit: str, at_most: float | None = None) -> None:
        """Add a figure. `at_most`: the target it should not exceed."""
        self.rows.append((what, value, unit, at_most))

    @property
    def met(self) -> bool:
        """Whether every figure with a target reaches it."""
        return all(target is None or value <= target for _, value, _, target in self.rows)


def show(measured: Measured, console: Console) -> None:
    """Print as a table; a missed target is marked."""
    table = Table("what", "measured", "target", title=f"{measured.title} ({measured.setting})")
    for what, value, unit, target in measured.rows:
        missed = target is not None and value > target
        wanted = "" if target is None else f"<= {target:g} {unit}" + (" MISSED" if missed else "")
        table.add_row(what, f"{value:,.4g} {unit}", wanted, style="red" if missed else None)
    console.print(table)
