"""The picture of `walras recommend`: time against money. Here alone that command loads matplotlib."""

from pathlib import Path
from typing import TYPE_CHECKING

from walras.errors import ConfigError

if TYPE_CHECKING:
    from optimizer.performance.choosing.choice import Goal
    from scheduler.cloud.recommending import Found

_ENDINGS = (".png", ".svg")
_HOUR_S = 3600.0


def draw(path: Path, found: "Found", goal: "Goal") -> None:
    """The front with its intervals, the limits, and what was taken. Raises ConfigError for another ending."""
    taken = found.recommendation
    assert taken is not None, "drawn only where there is something to take"
    if path.suffix.lower() not in _ENDINGS:
        raise ConfigError(
            f"{path}: pictures are written as {' or '.join(_ENDINGS)}", field="--picture", fix="change it"
        )
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "walras", "font.size": 9}):
        figure = Figure(figsize=(7.5, 4.5), layout="constrained")
        axes = figure.subplots()
        hours = [setup.time_s / _HOUR_S for setup in taken.front]
        early = [(setup.time_s - setup.early_s) / _HOUR_S for setup in taken.front]
        late = [(setup.late_s - setup.time_s) / _HOUR_S for setup in taken.front]
        usd = [setup.usd for setup in taken.front]
        axes.errorbar(
            hours, usd, xerr=[early, late], fmt="o-", color="tab:blue", ecolor="lightgrey", label="not beaten"
        )
        axes.plot([taken.setup.time_s / _HOUR_S], [taken.setup.usd], "*", color="tab:red", markersize=14, label="taken")
        if goal.deadline_s is not None:
            axes.axvline(goal.deadline_s / _HOUR_S, color="tab:grey", linestyle="--", label="deadline")
        if goal.budget_usd is not None:
            axes.axhline(goal.budget_usd, color="tab:grey", linestyle=":", label="budget")
        axes.set(xlabel="time (h), four cases out of five", ylabel="USD")
        axes.set_title(found.work.kind.name, parse_math=False)
        axes.legend()
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else {"Software": None}
        try:
            figure.savefig(path, metadata=metadata)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}", field="--picture", fix="check the path") from None
