"""What the shells tell of speeds that nobody has measured yet: what predictors make of them."""

from dataclasses import dataclass

from walras.ids import Kind


@dataclass(frozen=True, slots=True)
class Guess:
    """What one source takes a speed to be, steps per second; the truth lies inside four times out of five."""

    source: str
    steps_per_s: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PredictedSpeed:
    """One unmeasured cell: what is to be believed of it, and what each predictor by itself would have said."""

    kind: Kind
    accelerator: str
    count: int
    fused: Guess
    parts: tuple[Guess, ...] = ()


@dataclass(slots=True)
class SpeedsPredicted:
    """Speeds of cells that nobody measured. Of a cell that was measured meanwhile nothing is taken."""

    at: float
    speeds: tuple[PredictedSpeed, ...]
