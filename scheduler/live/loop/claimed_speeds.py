"""How far the speed that a job claims is believed.

The job's script says its speed and its steps; when it said so, the server knows. A claim is kept within `FACTOR` of the
rate at which steps and checkpoints arrived, and within what the type can do by its data sheet and the speeds of other
types. Once anything of the kind was measured, a claim that contradicts it counts only after `WINDOWS` windows of steps:
one report moves no job.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from optimizer.planning.machine_recommendation import specs_by_accelerator
from optimizer.prediction.predictor import AcceleratorSpecs
from scheduler.core.state.ledger import Ledger
from scheduler.core.state.throughput import REPUBLISH_BAND, MeasuredCell, allowed_speeds
from walras.job_request import Kind
from walras.spec.catalog import load_catalog

#: A claim is a median that leaves pauses out (evaluation, checkpoints), the rate over all time is not.
FACTOR = 4.0
#: Shortest window over which steps are compared with time, seconds; and the windows with steps that vouch for a claim.
WINDOW_S, WINDOWS = 2.0, 2


@cache
def data_sheets() -> dict[str, AcceleratorSpecs]:
    """Returns the data sheets of the shipped catalog, by accelerator type."""
    return specs_by_accelerator(load_catalog())


@dataclass(slots=True)
class StepRate:
    """The steps of an attempt over the server's time."""

    began: tuple[float, float] | None = None
    #: Instant and steps at the end of the last window.
    marked: tuple[float, float] = (0.0, 0.0)
    #: Windows with a step, the rate of the fastest, and that since the beginning, steps per second.
    windows: int = 0
    fastest: float = 0.0
    mean: float = 0.0

    def hear(self, at: float, steps: float) -> None:
        """Records the steps that were done at an instant."""
        if self.began is None:
            self.began = self.marked = at, steps
        elif at - self.marked[0] >= WINDOW_S and steps > self.marked[1]:
            self.windows += 1
            self.fastest = max(self.fastest, (steps - self.marked[1]) / (at - self.marked[0]))
            self.mean = (steps - self.began[1]) / (at - self.began[0])
            self.marked = at, steps


@dataclass(slots=True)
class StepEvidence:
    """What vouches for the speeds that an attempt claims: its reported steps, and its checkpoints."""

    reported: StepRate = field(default_factory=StepRate)
    saved: StepRate = field(default_factory=StepRate)
    #: What counts of the newest claim, steps per second; None as long as nothing vouches for it.
    speed: float | None = None

    def believed(self, claim: float, kind: Kind, gang: tuple[str, int], ledger: Ledger) -> float | None:
        """Returns what counts of a claim, as `speed` does. `gang`: accelerator type and count."""
        (accelerator, count), table = gang, ledger.table
        bound = most_by_data_sheet(table.cells_of(kind), accelerator, count, data_sheets())
        if self.saved.windows:
            bound = min(bound, FACTOR * self.saved.fastest)
        if self.reported.windows >= WINDOWS:
            return min(bound, max(self.reported.mean / FACTOR, min(claim, FACTOR * self.reported.fastest)))
        if table.is_measured(kind):
            known = table.speed(kind, accelerator, count, ledger.classes.nominal).steps_per_s
            if abs(claim - known) > REPUBLISH_BAND * known:
                return None
        return min(bound, claim)


def most_by_data_sheet(
    measured: Iterable[MeasuredCell], accelerator: str, count: int, sheets: Mapping[str, AcceleratorSpecs]
) -> float:
    """Returns the most steps per second of a gang, by the kind's speeds on other types; inf where no sheet says."""
    others = {(cell.accelerator, cell.count): cell.steps_per_s for cell in measured if cell.accelerator != accelerator}
    return allowed_speeds(others, accelerator, count, sheets)[1]
